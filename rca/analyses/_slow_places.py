"""Is it the same place of every host that is slower? Then it is what that local rank does besides, and not so many GPUs that failed at once.

Local rank 0 logs, writes and stages data for its host; the cores that one local rank is bound to are shared, or far from its GPU; one slot of the
chassis gets the warmest air. Each makes that place of all hosts slower alike. Several GPUs that become slow at once and just there are far less
likely, and to replace them all means to replace every host of the job. On one host alone a place is a rank like any other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from rca.analyses._lasting import Rise
from rca.analyses._layout import hosts
from rca.analyses._step_times import Times, cite_step
from rca.analyses._words import ranks_text
from rca.types import Finding, Tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

__all__ = ["SamePlace", "local_places", "parted", "same_place"]

ALIKE: Final = 0.5  # of the rise of a rank, that its place has on the other hosts at least: the rest is its own
EVERY: Final = 0.9  # of the hosts; of fewer than ten it is all of them


@dataclass(frozen=True)
class SamePlace:
    """A local rank that is slower on every host: its rows, column range (last one included) and usual height."""

    place: int
    rows: tuple[int, ...]
    first: int
    last: int
    height: float


def local_places(case: Tables) -> dict[int, tuple[str, int]]:
    """rank -> its host, and its place there: its local rank where a map tells it, or else its number among the known ranks of that host."""
    on: dict[str, list[int]] = defaultdict(list)
    for rank, host in hosts(case).items():
        on[host].append(rank)
    found = {rank: (host, n) for host, ranks in on.items() for n, rank in enumerate(sorted(ranks))}
    told = case.table("ranks").select("rank", "local_rank").drop_nulls().unique().unique("rank", keep="none").sort(pl.col("rank")).collect()
    return found | {rank: (found[rank][0], local) for rank, local in told.iter_rows() if rank in found}


def parted(
    found: Sequence[Rise], excess: Matrix, ranks: Sequence[int], at: Mapping[int, tuple[str, int]]
) -> tuple[list[Rise], list[SamePlace]]:
    """The rises that are a rank's own, and the places of all hosts that explain the others.

    `excess`: what each rank (a row) is above its peers, step by step, as the rises are measured; `at`: rank -> host and place.
    """
    rows: dict[int, dict[str, int]] = defaultdict(dict)
    for row, rank in enumerate(ranks):
        if rank in at:
            rows[at[rank][1]][at[rank][0]] = row
    risen: dict[int, list[Rise]] = defaultdict(list)
    for rise in found:
        if ranks[rise.row] in at:
            risen[at[ranks[rise.row]][1]].append(rise)
    places, explained = [], set()
    for place, rises in sorted(risen.items()):
        first, last = max(rise.first for rise in rises), min(rise.last for rise in rises)
        if len(rows) < 2 or len(rows[place]) < 2 or last < first:  # one place a host, or one host: no place to tell from a rank
            continue
        heights = sorted((_median(excess[row, first : last + 1]), row) for row in rows[place].values())
        common = heights[int((1 - EVERY) * len(heights))][0]
        by_place = [rise.row for rise in rises if common >= ALIKE * rise.height]
        if by_place:
            explained.update(by_place)
            own = {rise.row for rise in rises} - set(by_place)
            alike = tuple(sorted(row for height, row in heights if height >= common and row not in own))
            places.append(SamePlace(place, alike, first, last, heights[len(heights) // 2][0]))
    return [rise for rise in found if rise.row not in explained], places


def same_place(place: SamePlace, measured: Times, rows: pl.DataFrame, column: str) -> Finding:
    """Told, and nobody is accused: to replace them all is to replace every host of the job."""
    ranks, steps = [measured.ranks[row] for row in place.rows], measured.steps
    first, last = steps[place.first], steps[place.last]
    own_s = measured.usual(set(ranks), place.first, place.last)
    others_s = measured.usual(set(measured.ranks) - set(ranks), place.first, place.last)
    what = "computation takes" if column == "compute_s" else "each batch is waited for"
    says = (
        f"{ranks_text(ranks)}, local rank {place.place} of each of {len(ranks)} hosts: {what} {own_s:.3g} s (others {others_s:.3g} s) on every host "
        f"alike, from step {first} to {last}: what that local rank does besides (it logs, stages data, shares its cores), or how the hosts are "
        f"cooled there, rather than {len(ranks)} GPUs that failed at once"
    )
    numbers = {"candidates": ranks, "step": first, "last_step": last, "own_s": round(own_s, 6), "others_s": round(others_s, 6)}
    cites = tuple(cite for rank in ranks[:2] for step in (first, last) for cite in cite_step(rows, rank, step, column))
    return Finding("slow_rank", "same_place", says, scope=f"place {place.place}, {column}", numbers=numbers, cites=cites)


def _median(values: Matrix) -> float:
    """NaN counts for nothing; a rank without a time there is not slower."""
    import numpy as np

    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else -math.inf
