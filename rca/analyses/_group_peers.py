"""Who stands apart from the ranks of the same pipeline stage in the other copies of the model, by the stacks of their main threads.

1. Ranks of a stage do the same in every copy of the model. A pattern that is seen in more than half of the copies is the rule there; several
   may be (the tensor rank that loads, and those that wait for it). Where fewer than three copies are known, every rank counts as one.
2. A stage has a rule when most of its ranks follow one; everybody else there stands apart. Stages differ legitimately and are never compared.
3. Where a stage has no rule, because half of the copies or more hang in it as well, nobody is odd there. But who is of the same copy as those apart,
   and in the same place, is with them: a copy is no smaller than what of it hangs.
4. Of several samples a rank's most frequent stack counts, and whoever follows the rule in one of them does not stand apart: it was on its way.
Source: ByteRobust (SOSP'25, arXiv 2509.16293, section 5), which compares all ranks; per stage, and per copy, is ours.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from rca.analyses._stack_patterns import patterns
from rca.analyses._stack_scene import Scene, hidden_wait
from rca.analyses._stack_views import View, in_loop, seen
from rca.types import Tables

__all__ = ["DOMINANT_SHARE", "Apart", "apart", "copies", "label", "typical"]

DOMINANT_SHARE: Final = 0.5  # more than: of the copies of the model for a pattern to be the rule, and of the ranks of a stage to follow one
MIN_PEERS: Final = 3  # ranks, and copies of the model, of which two can outvote one
# What a rank does, the likelier root first (evidence of 67 published and own stacks): a rank that does not wait for others, one that may wait
# without saying so, one inside a collective, one at a point-to-point call (which points along the pipeline to somebody else).
ACTS, HIDDEN, COLLECTIVE, P2P = range(4)
OUTSIDE: Final = ("dataloader", "checkpoint", "eval")  # activities that count wherever they are called from
_COPY = ("tp", "pp", "cp", "mp", "tp_cp")  # kinds of groups that never leave one copy of the model


@dataclass(frozen=True)
class Apart:
    """The ranks that stand apart, stage by stage."""

    ranks: tuple[int, ...]
    share: float  # of the ranks in stages with a rule, that follow it: the dominance share
    num_stages: int  # with a rule
    ruled: tuple[int, ...]  # ranks in stages with a rule
    beside: tuple[int, ...]  # ranks in stages without one, of the same copies and in the same places as those apart
    sizes: tuple[int, ...]  # of the groups of like stacks over all stages, largest first


def label(view: View) -> int:
    """ACTS, HIDDEN, COLLECTIVE or P2P."""
    if view.wait_kind == "p2p":
        return P2P
    if view.wait_kind in ("collective", "comm_init", "store"):
        return COLLECTIVE
    return HIDDEN if view.dump_status == "ok" and hidden_wait(view) in ("backward", "device") else ACTS


def typical(job: Scene) -> dict[int, View]:
    """rank -> the view that its samples inside the loop show most often, the last of equals.

    A rank that is outside, and neither loads nor saves, has ended or failed: that is an after-effect, and it takes no part.
    """
    found = {}
    for rank, view in job.last.items():
        if not in_loop(view, job.loop) and view.activity not in OUTSIDE:
            continue
        shown = [v for v in seen(job.views[rank]) if in_loop(v, job.loop)] if len(job.views[rank]) > 1 else []
        counts = Counter(v.frames for v in shown)
        found[rank] = max(reversed(shown), key=lambda v: counts[v.frames]) if len(counts) > 1 else view
    return found


def apart(job: Scene, usual: Mapping[int, View], stages: Mapping[int, Hashable], copy_of: Mapping[int, Hashable]) -> Apart:
    """`usual`: rank -> its view. A failed dump is a pattern of its own; ranks that left no stack take no part."""
    of_rank: dict[int, Hashable] = {**patterns(usual), **{rank: f"dump {view.dump_status}" for rank, view in job.failed.items()}}
    frames = {view.frames: of_rank[rank] for rank, view in usual.items()}
    by_stage: dict[Hashable, list[int]] = defaultdict(list)
    for rank in sorted(of_rank):
        by_stage[stages.get(rank)].append(rank)
    found: list[int] = []
    ruled: list[int] = []
    open_: list[int] = []
    num_stages = 0
    for members in by_stage.values():
        rule = _rule(members, of_rank, copy_of)
        odd = [
            rank for rank in members if of_rank[rank] not in rule and not any(frames.get(v.frames) in rule for v in seen(job.views[rank]))
        ]
        if len(members) >= MIN_PEERS and len(members) - len(odd) > DOMINANT_SHARE * len(members):
            found += odd
            ruled += members
            num_stages += 1
        else:
            open_ += members
    there = {(copy_of[rank], of_rank[rank]) for rank in found if rank in copy_of}
    beside = sorted(rank for rank in open_ if (copy_of.get(rank), of_rank[rank]) in there)
    share = 1.0 - len(found) / len(ruled) if ruled else 0.0
    sizes = Counter([view.frames for view in usual.values()] + [(view.dump_status,) for view in job.failed.values()])
    shown = tuple(sorted(sizes.values(), reverse=True))
    return Apart(tuple(sorted(found)), share, num_stages, tuple(sorted(ruled)), tuple(beside), shown)


def _rule(members: Sequence[int], of_rank: Mapping[int, Hashable], copy_of: Mapping[int, Hashable]) -> set[Hashable]:
    """Patterns that are seen in more than half of the copies of the model; of too few copies to outvote one, in more than half of the ranks."""
    unit = {rank: copy_of.get(rank, ("rank", rank)) for rank in members}
    if len(set(unit.values())) < MIN_PEERS:
        unit = {rank: rank for rank in members}
    seen_in = Counter(pattern for pattern, _ in {(of_rank[rank], own) for rank, own in unit.items()})
    return {pattern for pattern, count in seen_in.items() if count > DOMINANT_SHARE * len(set(unit.values()))}


def copies(case: Tables) -> dict[int, Hashable]:
    """rank -> the copy of the model that it is part of; empty where nothing tells. By the data-parallel coordinate of a map, else by groups."""
    told = case.table("ranks").select("rank", "dp").drop_nulls().unique().collect()
    if told.height:
        return dict(told.unique("rank", keep="none").sort("rank").iter_rows())
    groups = case.table("groups").filter(pl.col("kind").is_in(_COPY)).select("group_id").unique()
    rows = case.table("memberships").filter(pl.col("rank").is_not_null()).select("group_id", "rank").unique()
    members = rows.join(groups, on="group_id", how="semi").group_by("group_id").agg(pl.col("rank").sort()).collect()["rank"].to_list()
    parent: dict[int, int] = {}

    def root(rank: int) -> int:
        while (up := parent.setdefault(rank, rank)) != rank:
            parent[rank] = rank = parent[up]
        return rank

    for group in members:
        for rank in group:
            parent[root(rank)] = root(group[0])
    return {rank: root(rank) for rank in sorted(parent)}
