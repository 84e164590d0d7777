"""Where each rank sits in the job: its host, its pipeline stage, and the ranks that hold the same parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Any

import polars as pl

from rca.types import Tables

__all__ = ["Replicas", "batches", "hosts", "model_peers", "pipeline_places", "replicas", "stages", "unseen"]

# Groups whose members all work on the same layers; world, mp, pp and embedding groups reach across stages.
_INSIDE_A_STAGE = ("dp", "tp", "cp", "ep", "dp_cp", "tp_cp", "tp_dp", "expert_tp", "expert_dp")


def hosts(case: Tables) -> dict[int, str]:
    """rank -> host, where all that name one agree."""
    return dict(case.derive(_hosts))


def _hosts(case: Tables) -> dict[int, str]:
    found: dict[int, set[str]] = defaultdict(set)
    for table in ("ranks", "steps", "dump_index", "log_events"):
        for rank, host in case.table(table).select("rank", "host").drop_nulls().unique().collect().iter_rows():
            found[rank].add(host)
    return {rank: next(iter(names)) for rank, names in sorted(found.items()) if len(names) == 1}


def stages(case: Tables) -> dict[int, Hashable]:
    """rank -> its pipeline stage, or a stand-in that is equal for ranks of one stage; empty when nothing tells.

    1. What the timings say. 2. The coordinate of a rank map. 3. Ranks tied by tensor, data, context or expert groups are of one stage: that of the
       members whose timings or coordinates say it (often one rank of a tensor group writes times for all), a stand-in where none says it.
    """
    told: dict[int, Hashable] = {}
    for table, column in (("steps", "stage"), ("ranks", "pp")):
        rows = case.table(table).select("rank", column).drop_nulls().unique().collect()
        here: dict[int, Hashable] = dict(rows.unique("rank", keep="none").sort("rank").iter_rows())
        if not told or all(told[rank] == here[rank] for rank in told.keys() & here.keys()):
            told = here | told
    ties = _ties(case)
    if not told:
        return dict(ties)
    of_tie: dict[int, set[Hashable]] = defaultdict(set)
    for rank, stage in told.items():
        if rank in ties:
            of_tie[ties[rank]].add(stage)
    return dict(sorted(({rank: next(iter(of_tie[tie])) for rank, tie in ties.items() if len(of_tie[tie]) == 1} | told).items()))


def _ties(case: Tables) -> dict[int, int]:
    """rank -> the number of the set of ranks that groups inside a stage tie to it."""
    tie: dict[int, int] = {}

    def root(rank: int) -> int:
        while (parent := tie.setdefault(rank, rank)) != rank:
            tie[rank] = rank = tie[parent]
        return rank

    for members in _members(case, _INSIDE_A_STAGE).values():
        for rank in members[1:]:
            tie[root(rank)] = root(members[0])
    return {rank: root(rank) for rank in sorted(tie)}


def pipeline_places(case: Tables) -> dict[int, int]:
    """rank -> its place in its pipeline group, as recorders list it; empty where none does."""
    pipelines = case.table("groups").filter((pl.col("kind") == "pp") & (pl.col("size") > 1)).select("group_id").unique()
    told = case.table("memberships").join(pipelines, on="group_id", how="semi").select("rank", "group_rank").drop_nulls()
    return dict(told.group_by("rank").agg(pl.col("group_rank").min()).sort("rank").collect().iter_rows())


def batches(case: Tables) -> dict[int, Hashable]:
    """rank -> the replica that works on one batch with it (data and context coordinate), as timings or a map tell; empty where neither does."""
    told = case.table("steps").select("rank", "dp").drop_nulls().unique().collect()
    if told.height:
        return dict(told.unique("rank", keep="none").sort("rank").iter_rows())
    rows = case.table("ranks").filter(pl.col("rank").is_not_null() & pl.col("dp").is_not_null()).select("rank", "dp", "cp")
    return {rank: (dp, cp) for rank, dp, cp in rows.unique("rank", keep="first", maintain_order=True).sort("rank").collect().iter_rows()}


@dataclass(frozen=True)
class Replicas:
    """Ranks that hold the same parameters, and how many there are of them as far as known."""

    ranks: tuple[int, ...]
    size: int


def replicas(case: Tables) -> list[Replicas]:
    """Groups of ranks that hold the same parameters by the job's layout, larger than one; empty when nothing tells.

    1. Ranks with the same tensor, pipeline and expert coordinate. 2. Data-parallel groups.
    """
    axes = ("dp", "tp", "pp", "cp", "ep")
    told = case.table("ranks").select("rank", *axes).filter(pl.any_horizontal(pl.col(axes).is_not_null())).collect()
    told = told.group_by("rank").agg(pl.col(axes).drop_nulls().first()).filter(pl.col("dp").is_not_null() | pl.col("cp").is_not_null())
    same: dict[Any, list[int]]
    sizes: dict[Any, int | None]
    if told.height:
        same = {tuple(key): ranks for *key, ranks in told.group_by("tp", "pp", "ep").agg(pl.col("rank").sort()).iter_rows()}
        sizes = {key: len(ranks) for key, ranks in same.items()}
    else:
        same = {**_members(case, ("dp",))}
        sizes = dict(case.table("groups").group_by("group_id").agg(pl.col("size").max()).collect().iter_rows())
    found = [Replicas(tuple(ranks), max(len(ranks), sizes.get(key) or 0)) for key, ranks in same.items()]
    return sorted((r for r in found if len(r.ranks) > 1), key=lambda r: r.ranks)


def model_peers(case: Tables) -> dict[int, frozenset[int]]:
    """rank -> the ranks with which it forms one copy of the model and works on one batch; empty where nothing tells or it has none."""
    told = case.table("ranks").filter(pl.any_horizontal(pl.col("tp", "pp").is_not_null())).select("rank", "dp", "cp").drop_nulls("rank")
    copies = told.unique("rank", keep="first").group_by("dp", "cp").agg(pl.col("rank").sort()).collect()["rank"].to_list()
    peers: dict[int, set[int]] = defaultdict(set)
    for members in copies or _members(case, ("tp", "pp", "mp")).values():
        for rank in members:
            peers[rank] |= set(members) - {rank}
    return {rank: frozenset(others) for rank, others in peers.items() if others}


def unseen(case: Tables, ranks: Collection[int], also: Collection[int] = ()) -> str:
    """Why "all is well" cannot be said: ranks that maps, groups or `also` name and that are not among these; "" = none."""
    known: set[int] = set(also)
    for table in ("ranks", "memberships"):
        known |= set(case.table(table).select(pl.col("rank").drop_nulls().unique()).collect()["rank"])
    missing = sorted(known - set(ranks))
    return f"{len(missing)} of {len(known)} ranks left none of this (ranks {', '.join(map(str, missing[:8]))})" if missing else ""


def _members(case: Tables, kinds: tuple[str, ...]) -> dict[str, list[int]]:
    """group -> its members, sorted, of all groups of these kinds."""
    groups = case.table("groups").filter(pl.col("kind").is_in(kinds)).select("group_id").unique()
    rows = case.table("memberships").filter(pl.col("rank").is_not_null()).select("group_id", "rank").unique()
    found = rows.join(groups, on="group_id", how="semi").group_by("group_id").agg(pl.col("rank").sort()).sort("group_id").collect()
    return dict(found.iter_rows())
