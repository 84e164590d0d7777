"""Does the trainer itself print that its steps became slower, and stayed so?

1. Take the step times that the trainer prints (one rank speaks for the job: a step ends for all ranks together).
2. Find the place from which on they stay at least SLOWER times as long. Printed times are noisy, so the quarter of slow steps before it must
   lie below the quarter of fast ones after it.
3. Whose fault it is the print does not tell: that takes timings of every rank. A steady print is no proof of health either, so this question
   only finds, and is otherwise left open.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import polars as pl

from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("progress",)
USES = ()
_Step = tuple[int, float, str, str]  # number, s, evidence_id, record
SIGNS = {"pace_dropped": Sign("pace", ("slow_rank", "data_stall", "network_fault", "unknown"))}

SLOWER = 1.3  # later step time over earlier: below that is the noise of a shared file system or an evaluation
MIN_STEPS = 6  # printed steps on each side of the break
MAX_STEPS = 400  # times compared: of a longer print medians of as many stretches, as each place is weighed against all
WARM_UP = 1  # first steps: allocation, compilation


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for the lasting slow-down; NotEnoughEvidence where none is printed."""
    printed = case.table("progress").filter(pl.col("step").is_not_null() & (pl.col("logged_step_s") > 0))
    rows = printed.select("step", "logged_step_s", "evidence_id", "record").sort("step", "evidence_id", "record")
    steps = _thinned(rows.unique("step", keep="first", maintain_order=True).collect().slice(WARM_UP))
    if len(steps) < 2 * MIN_STEPS:
        raise NotEnoughEvidence(f"{len(steps)} printed step times; at least {2 * MIN_STEPS} are needed to tell a lasting change from noise")
    place = _rise([step[1] for step in steps])
    if place is None:
        raise NotEnoughEvidence("the printed step times show no lasting slow-down; who computes slower than its peers they cannot show")
    before, after = (median(s[1] for s in part) for part in (steps[:place], steps[place:]))
    number, seconds, evidence_id, record = steps[place]
    says = f"from step {number} on a step takes {after:.3g} s instead of {before:.3g} s ({after / before:.2f} times as long), and stays so"
    cite = Cite("progress", evidence_id, "", record, f"step {number}: {seconds:.3g} s")
    numbers = {"before_s": before, "after_s": after, "step": number}
    return [Finding("printed_pace", "pace_dropped", says, scope="pace", numbers=numbers, cites=(cite,))]


def _thinned(steps: pl.DataFrame) -> list[_Step]:
    """The steps, or the first step and the median time of each of MAX_STEPS equal stretches."""
    width = max(-(-steps.height // MAX_STEPS), 1)
    stretches = steps.group_by((pl.int_range(pl.len()) // width).alias("stretch"), maintain_order=True)
    return (
        stretches.agg(pl.col("step").first(), pl.col("logged_step_s").median(), pl.col("evidence_id", "record").first())
        .drop("stretch")
        .rows()
    )


def _rise(values: Sequence[float]) -> int | None:
    """The place from which on the values stay SLOWER times as high; of several the one with the least error."""
    best: tuple[float, int] | None = None
    for place in range(MIN_STEPS, len(values) - MIN_STEPS + 1):
        before, after = sorted(values[:place]), sorted(values[place:])
        if median(after) < SLOWER * median(before) or before[-1 - len(before) // 4] >= after[len(after) // 4]:
            continue
        error = sum(abs(v - median(before)) for v in before) + sum(abs(v - median(after)) for v in after)
        best = min(best, (error, place)) if best else (error, place)
    return best[1] if best else None
