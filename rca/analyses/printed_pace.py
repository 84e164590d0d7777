"""Does the trainer itself print that its steps became slower, at once or little by little, and stayed so?

1. Take the step times that the trainer prints (one rank speaks for the job: a step ends for all ranks together).
2. Find the place from which on they stay at least SLOWER times as long. Printed times are noisy, so the quarter of slow steps before it must
   lie below the quarter of fast ones after it.
3. Else look for a ramp (rca/analyses/_ramp.py): a job that grows slower for hours, against its own first steps. Single slow steps (evaluations,
   checkpoints) count for nothing, and steps that do as much more work (a batch that grows) are no slower.
4. Where the trainer began anew at an earlier step, the launch before is a baseline; where the evidence holds golden values of a reference run, they
   are one too, and told beside: the reference may have run elsewhere.
5. Whose fault it is the print does not tell: that takes timings of every rank. A steady print is no proof of health either, so this question
   only finds, and is otherwise left open.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import polars as pl

from rca.analyses._printed_steps import Printed, cite_step, printed
from rca.analyses._ramp import ramp
from rca.errors import NotEnoughEvidence
from rca.types import Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("progress",)
USES = ("readings",)
SIGNS = {
    "pace_dropped": Sign("pace", ("slow_rank", "data_stall", "network_fault", "unknown")),
    "pace_ramps": Sign("pace", ("slow_rank", "data_stall", "unknown")),
    "slower_than_last_launch": Sign("pace", ("slow_rank", "network_fault", "config_drift", "unknown")),
    "slower_than_golden": Sign("mention", (), is_note=True),
}

SLOWER = 1.3  # later step time over earlier: below that is the noise of a shared file system or an evaluation
THAN_BASELINE = 1.1  # usual step time over that of a baseline, of the same steps where both have them
MIN_STEPS = 6  # printed steps on each side of the break
MIN_BASELINE = 12  # printed steps of a baseline
MAX_STEPS = 400  # times compared: of a longer print medians of as many stretches, as each place is weighed against all


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding for the lasting slow-down, one against the launch before; NotEnoughEvidence where none is printed."""
    told = printed(case)
    found = [*_before(told), *_golden(told)]
    if told.now.height < 2 * MIN_STEPS:
        if found:
            return found
        raise NotEnoughEvidence(
            f"{told.now.height} printed step times; at least {2 * MIN_STEPS} are needed to tell a lasting change from noise"
        )
    found += _ramps(told) or _dropped(told)
    if not found:
        raise NotEnoughEvidence("the printed step times show no lasting slow-down; who computes slower than its peers they cannot show")
    return found


def _dropped(told: Printed) -> list[Finding]:
    """The step from which on all steps take longer."""
    steps = _thinned(told.now)
    values = steps["logged_step_s"].to_list()
    place = _rise(values)
    if place is None:
        return []
    before, after, number = median(values[:place]), median(values[place:]), steps["step"][place]
    says = f"from step {number} on a step takes {after:.3g} s instead of {before:.3g} s ({after / before:.2f} times as long), and stays so"
    numbers = {"before_s": before, "after_s": after, "step": number}
    return [Finding("printed_pace", "pace_dropped", says, scope="pace", numbers=numbers, cites=(cite_step(steps, place),))]


def _ramps(told: Printed) -> list[Finding]:
    """The slow growth over the whole print."""
    grown = ramp(told.now["logged_step_s"].to_numpy())
    if grown is None or told.did_more(grown.ratio):
        return []
    first, last = told.now["step"][0], told.now["step"][-1]
    says = (
        f"from step {first} to step {last} a step has grown from {grown.before:.3g} s to {grown.after:.3g} s ({grown.ratio:.2f} times as long), "
        "little by little: what builds up (a leak, heat, fragmentation) is sought, not an event"
    )
    numbers = {"before_s": grown.before, "after_s": grown.after, "tau": round(grown.tau, 3)}
    cites = (cite_step(told.now, 0), cite_step(told.now, -1))
    return [Finding("printed_pace", "pace_ramps", says, scope="ramp", numbers=numbers, cites=cites)]


def _before(told: Printed) -> list[Finding]:
    """Slower than the launch before, by the steps that both took, else by all."""
    pair = _compared(told.now, told.before)
    if pair is None:
        return []
    now, before = pair
    number = told.now["step"][0]
    says = (
        f"since the trainer began anew at step {number} a step takes {now:.3g} s; in the launch before it took {before:.3g} s "
        f"({now / before:.2f} times as long)"
    )
    numbers = {"before_s": before, "after_s": now, "step": number}
    cites = (cite_step(told.before, -1), cite_step(told.now, 0))
    return [Finding("printed_pace", "slower_than_last_launch", says, scope="launch", numbers=numbers, cites=cites)]


def _golden(told: Printed) -> list[Finding]:
    pair = _compared(told.now, told.golden)
    if pair is None:
        return []
    now, golden = pair
    says = f"a step takes {now:.3g} s, {now / golden:.2f} times as long as the golden values of the same steps say ({golden:.3g} s)"
    cites = (cite_step(told.now, -1), cite_step(told.golden, -1))
    numbers = {"before_s": golden, "after_s": now}
    return [Finding("printed_pace", "slower_than_golden", says, scope="golden", numbers=numbers, cites=cites)]


def _compared(now: pl.DataFrame, than: pl.DataFrame) -> tuple[float, float] | None:
    """Usual times of the steps that both have, else of all, if this run is clearly slower: its fast quarter above the slow quarter of the other."""
    both = now.join(than, on="step", how="semi")
    if both.height >= MIN_BASELINE:
        now, than = both, than.join(now, on="step", how="semi")
    if min(now.height, than.height) < MIN_BASELINE:
        return None
    these, those = (sorted(steps["logged_step_s"].to_list()) for steps in (now, than))
    is_slower = median(these) >= THAN_BASELINE * median(those) and these[len(these) // 4] > those[-1 - len(those) // 4]
    return (median(these), median(those)) if is_slower else None


def _thinned(steps: pl.DataFrame) -> pl.DataFrame:
    """The steps, or of each of MAX_STEPS equal stretches the first with the stretch's median time."""
    width = max(-(-steps.height // MAX_STEPS), 1)
    stretches = steps.group_by((pl.int_range(pl.len()) // width).alias("stretch"), maintain_order=True)
    return stretches.agg(pl.col("step").first(), pl.col("logged_step_s").median(), pl.col("evidence_id", "record").first())


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
