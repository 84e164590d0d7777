"""When the steps of the job became longer, which part of them grew: computation, communication, or the wait for data?

1. The usual time of a step over the ranks, step by step; a lasting rise (rca/analyses/_change_points.py) parts the run into before and after. So does
   one of the wait for data that all ranks have, where the steps became longer with it.
2. Ranks wait for each other inside communication. So communication itself grew only if it grew on the rank that has least of it: whoever is late
   has no wait. Computation or data explain the rise as far as they grew on the rank that has most of them.
3. Communication that makes up MOST of the rise, while no rank computes or waits for data much longer, is the network's; data that all ranks wait
   longer for is storage's or the loaders'. Computation of all ranks at once accuses nobody. One rank alone is asked by `slow_rank`.

Compute against communication as in Aegis (NSDI'25) and GREYHOUND (ATC'25), by the times that each rank wrote for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import polars as pl

from rca.analyses._change_points import ChangePoint, change_points
from rca.analyses._step_times import Times, cite_step, last_stretch, step_rows, times
from rca.analyses._time_units import odd_times
from rca.analyses._words import ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Finding, Sign, Tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("steps",)
USES = ("ranks", "memberships")
SIGNS = {
    "communication_grew": Sign("pace", ("network_fault", "network_transient", "unknown")),
    "data_grew": Sign("pace", ("data_stall", "storage_stall", "unknown")),
    "computation_grew": Sign("pace", ("unknown",)),
}

WARM_UP: Final = 2  # first steps: compilation, allocation
MIN_AFTER: Final = 8  # steps behind the rise: the last ones before a death or a hang take longer as well
SLOWER: Final = 1.1  # times the first pace, at the end (GREYHOUND)
MOST: Final = 0.5  # of the rise that a part makes up
LITTLE: Final = 0.25  # of the rise that the other parts may make up
KNOWN: Final = 0.8  # of the ranks that must have written a part in a step


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding for the part that grew; NotEnoughEvidence where no lasting rise is seen or its parts were not written."""
    import numpy as np

    rows = last_stretch(step_rows(case, warm_up=WARM_UP))
    rows = rows.filter(~rows["rank"].is_in([odd.rank for odd in odd_times(rows)]))
    whole = times(rows, "step_s")
    if len(whole.ranks) < 2:
        raise NotEnoughEvidence("fewer than two ranks wrote whole steps: whether one is late or all are slow is not to be told")
    series = _over(whole, np.nanmedian, whole.steps)
    parts = {name: times(rows, f"{name}_s") for name in ("compute", "comm", "data")}
    up = _rise(series, _over(parts["data"], np.nanmin, whole.steps))
    if up is None:
        return ()
    if len(series) - up.index < MIN_AFTER or up.after < SLOWER * up.before:
        raise NotEnoughEvidence("the steps became longer for a while, or too near the end to tell that it lasts")
    rise = up.after - up.before

    def grew(name: str, of: Callable[..., Vector]) -> float | None:
        """How much a part grew, s a step; None where too few ranks wrote it."""
        found = _over(parts[name], of, whole.steps)
        before, after = (part[np.isfinite(part)] for part in (found[: up.index], found[up.index :]))
        enough = len(before) >= KNOWN * up.index and len(after) >= KNOWN * (len(series) - up.index)
        return float(np.median(after) - np.median(before)) if enough else None

    most_compute, least_compute, least_comm = grew("compute", np.nanmax), grew("compute", np.nanmin), grew("comm", np.nanmin)
    most_data, least_data = grew("data", np.nanmax), grew("data", np.nanmin)
    if most_compute is None or least_compute is None:
        raise NotEnoughEvidence("the steps became longer, but their computation was not timed by the ranks: which part grew is open")
    data, computes = most_data or 0.0, most_compute > LITTLE * rise
    step = whole.steps[up.index]
    if least_comm is not None and least_comm >= MOST * rise and not computes and data <= LITTLE * rise:
        if unseen := _unseen(case, whole.ranks):
            raise NotEnoughEvidence(
                f"all wait longer for others, and {ranks_text(unseen)} wrote no times: one of them may be what they wait for"
            )
        sign, name, grown, what = (
            "communication_grew",
            "comm",
            least_comm,
            "on every rank, also on the one that waits least; none computes longer",
        )
    elif least_data is not None and least_data >= MOST * rise and not computes:
        sign, name, grown, what = "data_grew", "data", least_data, "on every rank; none computes longer"
    elif least_compute >= MOST * rise:
        sign, name, grown, what = (
            "computation_grew",
            "compute",
            least_compute,
            "on every rank alike: heat or power of all, or more work in a step",
        )
    else:
        raise NotEnoughEvidence("the steps became longer, and no part of them grew on all ranks: one rank may be late (`slow_rank`)")
    words = {"comm": "communication", "data": "the wait for data", "compute": "computation"}[name]
    says = (
        f"from step {step} on a step takes {up.after:.3g} s instead of {up.before:.3g} s; {grown:.3g} s of the {rise:.3g} s are {words}, "
        f"{what}"
    )
    numbers = {"before_s": up.before, "after_s": up.after, "part_s": round(grown, 6), "step": step}
    rank = whole.ranks[0]
    cites = tuple(cite for at in (whole.steps[max(0, up.index - 1)], step) for cite in cite_step(rows, rank, at, f"{name}_s"))
    return [Finding("slow_parts", sign, says, scope="parts", numbers=numbers, cites=cites)]


def _rise(series: Vector, data: Vector) -> ChangePoint | None:
    """The first lasting rise of the steps, `after` the level at their end. A job that waits for its data is unsteady, which hides a rise: where the
    steps show none, the place is looked for in the wait that all ranks have (`data`)."""
    import numpy as np

    for of in (series, data):
        changes = change_points(of)
        up = next((change for change in changes if change.ratio > 1), None)
        if up is None:
            continue
        if of is series:
            return replace(up, after=changes[-1].after)
        before, after = (part[np.isfinite(part)] for part in (series[: up.index], series[changes[-1].index :]))
        if len(before) and len(after) and changes[-1].after > up.before and np.median(after) >= SLOWER * np.median(before):
            return replace(up, before=float(np.median(before)), after=float(np.median(after)))
    return None


def _unseen(case: Tables, timed: Sequence[int]) -> list[int]:
    """Ranks that maps or groups name and of which no time is on record."""
    named = (case.table(name).select(pl.col("rank").drop_nulls()) for name in ("ranks", "memberships"))
    return sorted(set(pl.concat(named).unique().collect()["rank"].to_list()) - set(timed))


def _over(part: Times, of: Callable[..., Vector], steps: Sequence[int]) -> Vector:
    """One value per step over the ranks; NaN where fewer than KNOWN of them wrote one."""
    import numpy as np

    found = np.full(len(steps), np.nan)
    at = {step: place for place, step in enumerate(steps)}
    if not part.ranks:
        return found
    enough = np.mean(np.isfinite(part.values), axis=0) >= KNOWN
    columns = [(column, at[step]) for column, step in enumerate(part.steps) if enough[column] and step in at]
    if columns:
        found[[place for _, place in columns]] = of(part.values[:, [column for column, _ in columns]], axis=0)
    return found
