"""Whose own time between calls rises above that of its peers: ranks of the same stage, its replicas, and its own group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import polars as pl

from rca.analyses._lasting import MIN_LENGTH, Rise, medians, over_peers, rises
from rca.analyses._layout import replicas, stages, unseen
from rca.analyses._own_time import CallTimes
from rca.analyses._step_times import Times
from rca.types import Tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

__all__ = ["Compared", "compare"]

SLOWER: Final = 0.2  # of the peers' own time, that a slow rank's is longer: GREYHOUND verifies suspects at 1.1 to 1.2
LEAST: Final = 0.25  # of an iteration: where ranks own less of it, so much stands for what they own, and trifles are no slowness
MIN_PEERS: Final = 2  # of a stage, or it is open whether one is slow or the other fast
MIN_ITERATIONS: Final = 5  # that a rise lasts: a busy host disturbs its ranks for a few at a time
BASELINE: Final = 8  # first iterations of a rank that stand for its usual pace, where it has too few peers
BASELINE_ERROR: Final = 2.0  # noise widths that the median of so few may be off in one of many ranks
MANY: Final = 1 / 3  # of the ranks slow at once is no longer an exception
VICTIM: Final = 0.5  # of the slowest one's excess: whoever has less shares its host or its cables
AHEAD: Final = (
    "the CPU enqueues calls ahead, and starts are not recorded (TORCH_NCCL_ENABLE_TIMING): what the GPUs own between calls is open"
)
_WIDE: Final = ("world", "other", "unknown")
_NEAR: Final = ("tp", "cp", "tp_cp", "ep")  # groups whose members wait for the same transfers


@dataclass(frozen=True)
class Compared:
    """Own times as a matrix over ranks and iterations, the rises in it (places of rows and columns), and why one may have been missed."""

    own: Times
    began: pl.DataFrame  # rank, iteration, began_at
    per_iteration: float  # columns that are one iteration
    iteration_s: float  # usual
    rises: tuple[Rise, ...]
    blind: str


def compare(case: Tables, told: CallTimes) -> Compared:
    """The ranks whose own time is longer than that of all their peers and stays so."""
    import numpy as np

    usual = told.iteration_s / told.parts
    own = _matrix(told.own, LEAST * usual if told.parts > 1 else 0.0)
    per_iteration = len(own.steps) / max(1, len({step // told.parts for step in own.steps}))  # columns
    ahead = AHEAD if told.runs_ahead else ""
    if len(own.ranks) < 2 or len(own.steps) <= MIN_LENGTH:
        of = "whole iterations" if told.parts == 1 else "parts of whole iterations"
        why = f"{len(own.steps)} {of} of {len(own.ranks)} ranks with the ends of their calls: too few to tell slowness from noise"
        return Compared(own, told.own, per_iteration, told.iteration_s, (), ahead or why)
    share = own.values / np.maximum(medians(own.values), LEAST * usual)  # of what a rank usually owns in that iteration
    excess, alone = _excess(case, own, share, usual, has_p2p=told.has_p2p)
    placed = sorted(set(range(len(own.ranks))) - set(alone))
    found = [replace(rise, row=placed[rise.row]) for rise in rises(excess[placed], least=SLOWER)] if placed else []
    if alone:
        change = share - medians(share[:, :BASELINE].T)[:, None]
        change = np.minimum(change, over_peers(change))[alone]
        found += [replace(rise, row=alone[rise.row]) for rise in rises(change, least=SLOWER, margin=BASELINE_ERROR)]
    found = [rise for rise in found if rise.last - rise.first + 1 >= MIN_ITERATIONS * per_iteration]
    slow = sorted((rise for rise in found if rise.height >= VICTIM * max(other.height for other in found)), key=lambda rise: rise.row)
    if len(slow) > max(1, MANY * len(own.ranks)):
        why = f"{len(slow)} of {len(own.ranks)} ranks own more time than their peers or than before: too many to be the exception"
        return Compared(own, told.own, per_iteration, told.iteration_s, (), why)
    known = [rank for rank, values in zip(own.ranks, own.values, strict=True) if np.isfinite(values).sum() > len(own.steps) // 2]
    blind = "some ranks have no peers of the same work: whether one was slow from the start is open" if alone else unseen(case, known)
    return Compared(own, told.own, per_iteration, told.iteration_s, tuple(slow), ahead or blind)


def _matrix(own: pl.DataFrame, least_s: float) -> Times:
    """Own times by rank and iteration (or part of one); without the parts of which ranks usually own less than `least_s`: no work is in them."""
    import numpy as np

    seen = own.group_by("iteration").agg(pl.len().alias("n")).filter(pl.col("n") * 2 >= own["rank"].n_unique())
    own = own.join(seen, on="iteration", how="semi")
    ranks, iterations = own["rank"].unique().sort(), own["iteration"].unique().sort()
    values = np.full((len(ranks), len(iterations)), np.nan)
    values[np.searchsorted(ranks, own["rank"]), np.searchsorted(iterations, own["iteration"])] = own["own_s"]
    kept = np.flatnonzero(medians(values) >= least_s)
    return Times(ranks.to_list(), iterations[kept].to_list(), values[:, kept])


def _excess(case: Tables, own: Times, share: Matrix, usual: float, *, has_p2p: bool) -> tuple[Matrix, list[int]]:
    """What each rank owns more than its peers, the least over all kinds of peers it has, as a share of theirs; and the rows without enough peers.

    Peers are the ranks of its stage, and its replicas: a rank that reads the data for its tensor-parallel group owns more than the others of its
    stage, and as much as its replicas. Where a pipeline's transfers are on no record, the ranks of its own group too: they wait for the same ones.
    """
    import numpy as np

    row = {rank: place for place, rank in enumerate(own.ranks)}
    every = frozenset(own.ranks)
    kinds = _kinds(case)
    flat = all(kind in _WIDE or members >= every for kind, members in kinds)
    told = stages(case)
    if flat and not told:
        by_stage: list[frozenset[int]] = [every]
        twins: list[frozenset[int]] = [every]
    else:
        by_stage = _sets(told, own.ranks)
        twins = [frozenset(one.ranks) for one in replicas(case)]
    near = [] if has_p2p else [members for kind, members in kinds if kind in _NEAR]
    excess = np.full(share.shape, np.nan)
    alone: list[int] = []
    by_rank = [{rank: members for members in sets for rank in members} for sets in (by_stage, twins, near)]
    for members in sorted({by_rank[0].get(rank, frozenset({rank})) for rank in own.ranks}, key=sorted):
        rows = [row[rank] for rank in sorted(members) if rank in row]
        if len(rows) <= MIN_PEERS:
            alone += rows
        else:
            excess[rows] = over_peers(own.values[rows]) / np.maximum(medians(own.values[rows]), LEAST * usual)
    for sets, needed in ((by_rank[1], True), (by_rank[2], not has_p2p)):
        met: set[int] = set()
        for members in set(sets.values()):
            rows = [row[rank] for rank in sorted(members) if rank in row]
            if len(rows) > 1:
                level = np.maximum(medians(own.values[rows]), LEAST * usual)
                excess[rows] = np.fmin(excess[rows], over_peers(own.values[rows]) / level)
                met.update(rows)
        alone += sorted(set(range(len(own.ranks))) - met - set(alone)) if needed else []
    return (excess if has_p2p else _beyond(excess, own, kinds)), sorted(alone)


def _beyond(excess: Matrix, own: Times, kinds: Sequence[tuple[str, frozenset[int]]]) -> Matrix:
    """The excess less that of the ranks of the same pipeline: where their transfers are on no record, the wait for a slow one passes for own time."""
    import numpy as np

    row = {rank: place for place, rank in enumerate(own.ranks)}
    found = excess.copy()
    for members in (members for kind, members in kinds if kind == "pp"):
        for rank in members & set(row):
            rows = [row[other] for other in members if other in row and other != rank]
            if rows:
                found[row[rank]] -= np.fmax.reduce(np.fmax(excess[rows], 0.0), axis=0)
    return found


def _kinds(case: Tables) -> list[tuple[str, frozenset[int]]]:
    """Kind and members of each group, in a fixed order."""
    groups = case.table("groups").select("group_id", "kind").drop_nulls().unique().collect()
    members = case.table("memberships").select("group_id", "rank").drop_nulls().unique().collect().group_by("group_id").agg("rank")
    rows = groups.join(members, on="group_id").select("kind", "rank").rows()
    return sorted(((kind, frozenset(ranks)) for kind, ranks in rows), key=lambda item: (item[0], sorted(item[1])))


def _sets(stage: Mapping[int, Hashable], ranks: Iterable[int]) -> list[frozenset[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for rank in ranks:
        if rank in stage:
            found[stage[rank]].append(rank)
    return [frozenset(members) for members in found.values()]
