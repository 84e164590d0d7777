"""What to do about uneven work, in figures: how much of a heavy stage to move, how to make batches even, and how much of a step each wins. Pure.

A stage that takes r times as long as each of the p - 1 others does its even share when (p - 1)(r - 1) / (p r) of its work has moved to them: then all
do the mean, (r + p - 1) / p of what an other one does now. What that wins of a step is what the analyses measured: the share of the time lost to
uneven work (1 - 1/S, or of the steps against even ones) that goes away with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rca.decision.facts import Layout
from rca.settings import Settings
from rca.types import Finding, Verdict

__all__ = ["even_work"]

HEAVY, BATCHES, WHAT_IF = ("heavy_stage", "heavy_places"), ("uneven_batches", "uneven_draws"), "straggling"
NO_RESTART: Final = "no host is to blame and a restart alone changes nothing: the job may run on until the change is ready"
MIN_PERCENT: Final = 1.0  # of a step; less is not told as a win


def even_work(verdict: Verdict, findings: Sequence[Finding], layout: Layout, site: Settings) -> str:
    """The sentence for a heavy stage or uneven batches; "" of other causes, or where no finding measured it."""
    signs = {"stage_imbalance": HEAVY, "data_imbalance": BATCHES}.get(verdict.cause, ())
    told = [f for f in findings if f.sign in signs]
    if not told:
        return ""
    first = max(told, key=lambda f: (f.numbers.get("share") or 0.0, f.id))
    does = _move(first.numbers, layout, site) if first.sign in HEAVY else _even_out(first.numbers)
    return f"{does}{_win(first.numbers, findings)}; {NO_RESTART}"


def _move(numbers: Mapping[str, Any], layout: Layout, site: Settings) -> str:
    """Which stage gives up how much of its work."""
    stage, ranks, ratio = numbers.get("stage"), numbers.get("stage_ranks"), numbers.get("ratio")
    named = f"pipeline stage {stage}" if stage is not None else "the heavy pipeline stage"
    who = f" (ranks {_run(ranks)})" if ranks else ""
    num = numbers.get("num_stages") or layout.pp
    if not ratio or ratio <= 1.0 or not num or num < 2:
        return f"move layers off {named}{who} to the others"
    part = (num - 1) * (ratio - 1.0) / (num * ratio)
    layers = ""
    if site.num_layers is not None and site.num_layers % num == 0:
        own = site.num_layers // num
        layers = f", about {max(1, round(own * part))} of its {own} layers if all weigh alike" if own > 1 else ""
    to = "the other stage" if num == 2 else f"the {num - 1} others"
    return f"move about {100 * part:.0f} % of the work of {named}{who} to {to}{layers} (it does {ratio:.2f} times as much as each of them)"


def _even_out(numbers: Mapping[str, Any]) -> str:
    """How batches become even: dealt out by length, or packed to one."""
    fewer = numbers.get("candidates")
    if fewer:
        return (
            f"deal samples out anew, so that ranks {_run(fewer)} get no longer ones than the other replicas: sort each global batch by length "
            "and deal it out in turn, or pack samples to one length"
        )
    return (
        "make the micro-batches of a step even: sort samples by length inside a window of some steps, so that those of a step are alike, or pack "
        "them to one length; count the squares of the lengths beside the tokens, since attention grows with them"
    )


def _win(numbers: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """What it is worth, of each step; "" where it was not measured."""
    share, costs = numbers.get("share"), numbers.get("costs")
    lost = next((f.numbers["waste"] for f in findings if f.sign == WHAT_IF and f.numbers.get("waste") is not None), None)
    if costs is not None and costs > 0:
        lost = 1.0 - 1.0 / costs
    if share is None or lost is None or 100.0 * share * lost < MIN_PERCENT:
        return ""
    return (
        f"; by the what-if numbers that makes steps about {100.0 * share * lost:.0f} % shorter (uneven work costs {100.0 * lost:.0f} % of the time, "
        f"and {100.0 * share:.0f} % of that comes back)"
    )


def _run(ranks: Sequence[int]) -> str:
    """`0-7`, or the first few."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
