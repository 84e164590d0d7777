"""Does one rank, or the whole job, compute a little slower with every hour?

1. Per rank and step take the time of its own computation; of the job the usual time of whole steps, over the ranks of a step.
2. A rank's time over that of its peers (the ranks of its pipeline stage), step by step: what the whole job does cancels out. A ramp in it
   (rca/analyses/_ramp.py), against the rank's own first steps, is heat, a leak or a failing part on that rank. Many ranks at once: nobody.
3. A ramp in the steps of the job that no rank explains accuses nobody: all ranks leak, fragment their memory or read ever slower.
4. Single slow steps (evaluations, checkpoints) count for nothing. A job that was watched for too few steps is left open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rca.analyses._lasting import medians, over_peers
from rca.analyses._layout import hosts, stages
from rca.analyses._ramp import GROWS, LEAST_VALUES, Ramp, ramp
from rca.analyses._step_times import Times, cite_step, last_stretch, step_rows, times
from rca.analyses._time_units import odd_times
from rca.analyses._words import ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Finding, Sign, Tables

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("steps",)
USES = ("ranks", "groups", "memberships", "dump_index", "log_events")
SIGNS = {
    "rank_ramps": Sign("slowness", ("slow_rank", "gpu_fault", "unknown")),
    "job_ramps": Sign("pace", ("slow_rank", "data_stall", "unknown")),
}

WARM_UP: Final = 2  # first steps: compilation, allocation
MIN_PEERS: Final = 2  # of a stage
MANY: Final = 1 / 3  # of the ranks at once is no longer an exception
QUARTER: Final = 4
NEAR: Final = 0.8  # of the growth that the ends of a series must show before its trend is looked at


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding for the ranks that grow slower than their peers, else one for the job."""
    rows = last_stretch(step_rows(case, warm_up=WARM_UP))
    rows = rows.filter(~rows["rank"].is_in([odd.rank for odd in odd_times(rows)]))
    compute, whole = times(rows, "compute_s"), times(rows, "step_s")
    if max(len(compute.steps), len(whole.steps)) < LEAST_VALUES:
        raise NotEnoughEvidence(
            f"{max(len(compute.steps), len(whole.steps))} steps of ranks are timed; a trend of a job takes {LEAST_VALUES} to tell"
        )
    growing = _growing(compute, stages(case))
    if growing:
        return [_ranks(growing, compute, rows, case)]
    of, column = (whole, "step_s") if len(whole.steps) >= LEAST_VALUES else (compute, "compute_s")
    grown = ramp(medians(of.values)) if of.ranks else None
    return [_job(grown, of, column, rows)] if grown is not None else ()


def _growing(compute: Times, stage: Mapping[int, Hashable]) -> dict[int, Ramp]:
    """Row -> ramp of a rank's computation over that of its peers; few rows, or none."""
    import numpy as np

    if len(compute.steps) < LEAST_VALUES:
        return {}
    by_stage: dict[Hashable, list[int]] = defaultdict(list)
    for row, rank in enumerate(compute.ranks):
        by_stage[stage.get(rank) if stage else ""].append(row)
    logs = np.log(np.where(compute.values > 0, compute.values, np.nan))
    excess = np.full(logs.shape, np.nan)
    for rows in by_stage.values():
        if len(rows) > MIN_PEERS:
            excess[rows] = over_peers(logs[rows])
    width = len(compute.steps) // QUARTER
    with np.errstate(all="ignore"):
        rise = medians(excess[:, -width:].T) - medians(excess[:, :width].T)
    candidates = np.flatnonzero(rise >= NEAR * np.log1p(GROWS)).tolist()
    found = {row: grown for row in candidates if (grown := ramp(np.exp(excess[row]))) is not None}
    return found if len(found) <= max(1, MANY * len(compute.ranks)) else {}


def _ranks(growing: Mapping[int, Ramp], compute: Times, rows: pl.DataFrame, case: Tables) -> Finding:
    where = hosts(case)
    worst = max(growing, key=lambda row: (growing[row].ratio, -row))
    ranks = tuple(compute.ranks[row] for row in sorted(growing))
    on = tuple(sorted({where[rank] for rank in ranks if rank in where}))
    first, last = compute.steps[0], compute.steps[-1]
    says = (
        f"{ranks_text(ranks)}{' on ' + ', '.join(on) if on else ''}: from step {first} to {last} computation has grown to {growing[worst].ratio:.2f} "
        "times what it was against that of its peers, little by little"
    )
    numbers = {"ratio": round(growing[worst].ratio, 3), "tau": round(growing[worst].tau, 3), "over_steps": last - first}
    others = tuple(rank for rank in compute.ranks if rank not in ranks)
    cites = tuple(cite for step in (first, last) for cite in cite_step(rows, compute.ranks[worst], step, "compute_s"))
    return Finding("slow_ramp", "rank_ramps", says, ranks=ranks, hosts=on, explains=others, numbers=numbers, cites=cites)


def _job(grown: Ramp, of: Times, column: str, rows: pl.DataFrame) -> Finding:
    says = (
        f"from step {of.steps[0]} to {of.steps[-1]} a step of the job has grown from {grown.before:.3g} s to {grown.after:.3g} s "
        f"({grown.ratio:.2f} times as long), little by little and on all ranks: what builds up (a leak, heat, fragmentation) is sought, not an event"
    )
    numbers = {"before_s": round(grown.before, 6), "after_s": round(grown.after, 6), "tau": round(grown.tau, 3)}
    cites = tuple(cite for step in (of.steps[0], of.steps[-1]) for cite in cite_step(rows, of.ranks[0], step, column))
    return Finding("slow_ramp", "job_ramps", says, scope="job", numbers=numbers, cites=cites)
