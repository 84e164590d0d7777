"""The hosts of a case in pipeline order, and how many of them make one pipeline. Pure.

1. The stage of a rank: its coordinate in a rank map; without one its place in its pipeline group. Its replica: the coordinates of data and
   context parallelism; without them the pipeline group.
2. A host holds a set of stages. Hosts with the same set stand at the same place of a pipeline, and there must be equally many of each set.
3. Pipeline i is made of the i-th host of each set, in the order of their replicas.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from rca.errors import UsageError
from rca.types import Tables

__all__ = ["hosts_in_order"]

Place = tuple[int, tuple[int, ...]]  # stage, replica


def hosts_in_order(case: Tables, rank_hosts: Mapping[int, str], pp: int | None = None) -> tuple[list[str], int]:
    """Hosts in pipeline order and the hosts of one pipeline. `rank_hosts` = rank -> host, `pp` = what to take where nothing tells.

    Raises UsageError where no host is known, or where the stages are not and `pp` is not given.
    """
    if not rank_hosts:
        raise UsageError("the evidence names no host of a rank: add a rank map (rank,host,pp,dp as CSV), or plan with --hosts and --pp")
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank, host in sorted(rank_hosts.items()):
        by_host[host].append(rank)
    places = _coordinates(case) or _pipeline_groups(case)
    if pp is not None or not set(rank_hosts) <= set(places):
        if pp is None:
            lacking = sorted(set(rank_hosts) - set(places))
            shown = ", ".join(map(str, lacking[:8]))
            raise UsageError(
                f"the pipeline stage of ranks {shown} is not told: add a rank map with a column pp, or give --pp (hosts of one pipeline)"
            )
        return sorted(by_host, key=lambda host: by_host[host][0]), pp
    return _in_pipelines(by_host, places)


def _in_pipelines(by_host: Mapping[str, Sequence[int]], places: Mapping[int, Place]) -> tuple[list[str], int]:
    of_stages: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for host, ranks in by_host.items():
        of_stages[tuple(sorted({places[rank][0] for rank in ranks}))].append(host)
    counts = {len(hosts) for hosts in of_stages.values()}
    held = [stage for stages in of_stages for stage in stages]
    if len(counts) != 1 or len(held) != len(set(held)):
        raise UsageError(
            f"the hosts do not hold the stages evenly ({len(by_host)} hosts in {len(of_stages)} different sets of stages): "
            "give --pp (hosts of one pipeline)"
        )
    columns = [
        sorted(of_stages[stages], key=lambda host: (min(places[rank][1] for rank in by_host[host]), by_host[host][0]))
        for stages in sorted(of_stages)
    ]
    return [host for pipeline in zip(*columns, strict=True) for host in pipeline], len(columns)


def _coordinates(case: Tables) -> dict[int, Place]:
    """Of every rank whose stage a map tells; where maps of one rank differ, it has none."""
    axes = pl.col("dp", "cp", "ep").fill_null(0)
    told = case.table("ranks").filter(pl.col("rank").is_not_null() & pl.col("pp").is_not_null())
    rows = told.select("rank", "pp", axes).unique().collect().unique("rank", keep="none").sort("rank")
    return {rank: (pp, (dp, cp, ep)) for rank, pp, dp, cp, ep in rows.iter_rows()}


def _pipeline_groups(case: Tables) -> dict[int, Place]:
    """Of every rank in one pipeline group: its place there, and the lowest rank of the group as the replica."""
    groups = case.table("groups").filter(pl.col("kind") == "pp").select("group_id").unique()
    rows = case.table("memberships").filter(pl.col("rank").is_not_null()).join(groups, on="group_id", how="semi")
    members: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for group, rank, at in rows.select("group_id", "rank", "group_rank").unique().sort("rank").collect().iter_rows():
        members[group].append((rank if at is None else at, rank))
    found: dict[int, list[Place]] = defaultdict(list)
    for pairs in members.values():
        first = min(rank for _, rank in pairs)
        for stage, (_, rank) in enumerate(sorted(pairs)):
            found[rank].append((stage, (first,)))
    return {rank: places[0] for rank, places in found.items() if len(places) == 1}
