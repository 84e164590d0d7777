"""Which ranks wait for their next batch longer than the others, step after step, in parts of a step?

1. A quarter of a usual step counts at any time of the run. A tenth counts where the rank was like the others before, and the steps became longer
   when it began to wait: then it is the loader of that rank, and all wait for it.
2. Where one rank of a replica loads and hands its batch on, that one alone waits for data, in every replica alike. So if ranks of all replicas are
   found, what they have in common is their task: the data come late for the whole job, and none of them is the exception.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

import polars as pl

from rca.analyses._lasting import Rise, over_peers, rises
from rca.analyses._step_times import Times

__all__ = ["late_data"]

WAITS: Final = 0.25  # of a usual step, that a rank waits longer for its batch than others do
MILDLY: Final = 0.1  # the same of a rank that began to wait during the run: as much as makes a step slow (GREYHOUND: 1.1 times)
VICTIM: Final = 0.5  # of the longest wait; whoever has less only shares its host
BEFORE: Final = 8  # steps in which it was like the others
GREW: Final = 0.5  # of the wait, that the steps became longer by at least
MANY: Final = 1 / 3  # of the ranks at once is no longer an exception


def late_data(data: Times, rows: pl.DataFrame, batch: Mapping[int, Hashable]) -> tuple[list[Rise], str]:
    """Rises of the wait for data against all others, in usual steps, and why nobody is named although some wait ("" = none does).

    `rows`: those of `steps` that `data` is of; `batch`: rank -> what it works on, empty where that is not told.
    """
    usual = rows["step_s"].median()
    if len(data.ranks) < 2 or not isinstance(usual, float) or usual <= 0:
        return [], ""
    excess = over_peers(data.values) / usual
    found = _longest(rises(excess, least=WAITS))
    if not found:
        found = [rise for rise in _longest(rises(excess, least=MILDLY)) if rise.first >= BEFORE and _grew(rise, data, rows, usual)]
    if len(found) > max(1, MANY * len(data.ranks)):
        return [], f"{len(found)} of {len(data.ranks)} ranks wait longer for data than the others: too many to be the exception"
    of = {batch.get(data.ranks[rise.row]) for rise in found}
    if len(of) > 1 and of >= {batch[rank] for rank in data.ranks if rank in batch}:
        return (
            [],
            f"{len(found)} ranks of all {len(of)} replicas wait for data, as those that load for the others do: the data are late for all",
        )
    return found, ""


def _longest(found: Sequence[Rise]) -> list[Rise]:
    return sorted((rise for rise in found if rise.height >= VICTIM * max(other.height for other in found)), key=lambda rise: rise.row)


def _grew(rise: Rise, data: Times, rows: pl.DataFrame, usual: float) -> bool:
    """Whether the steps became longer when it began to wait."""
    start = data.steps[rise.first]
    before, after = (rows.filter(when)["step_s"].median() for when in (pl.col("step") < start, pl.col("step") >= start))
    return isinstance(before, float) and isinstance(after, float) and after - before >= GREW * rise.height * usual
