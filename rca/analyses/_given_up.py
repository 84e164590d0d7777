"""A rank that left no dump, and whose own watchdog gave up the very call that others wait in: it had come there, and is not awaited in it.

The numbers of calls count from the start of a launch, so number, operation and place in the group agree by no chance.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Final

import polars as pl

from rca.analyses._wait_graph import Node, Waits
from rca.types import Tables

__all__ = ["READS", "but_given_up"]

READS: Final = ("log_events", "memberships")


def but_given_up(case: Tables, waits: Waits) -> Waits:
    """The same graph, in which nobody waits for a rank without a dump at a call that its own watchdog gave up."""
    absent = sorted(waits.awaited.keys() - waits.dumped)
    if not absent:
        return waits
    gave_up = case.table("log_events").filter((pl.col("signature") == "nccl_watchdog_timeout") & pl.col("rank").is_in(absent))
    text = pl.col("message")
    seq, op = text.str.extract(r"SeqNum=([0-9]{1,18})\b").cast(pl.Int64), text.str.extract(r"OpType=(\w+)")
    told = gave_up.select("rank", "group_rank", seq.alias("seq"), op.alias("op")).drop_nulls(["seq", "op"]).unique().collect()
    places = case.table("memberships").filter(pl.col("rank").is_in(absent)).select("rank", "group_id", "group_rank").drop_nulls().unique()
    place_of = {(rank, group): place for rank, group, place in places.collect().iter_rows()}
    there: dict[Node, set[int]] = defaultdict(set)
    for rank, place, number, name in told.sort(pl.all()).iter_rows():
        for node in waits.awaited[rank]:
            call = waits.first_at(node)
            in_group = place is None or place_of.get((rank, call.group_id), place) == place
            if not call.is_p2p and call.seq == number and _plain(call.op) == _plain(name) and in_group:
                there[node].add(rank)
    if not there:
        return waits
    awaited = {rank: [node for node in nodes if rank not in there.get(node, ())] for rank, nodes in waits.awaited.items()}
    return replace(
        waits,
        lagging={node: late - there.get(node, set()) for node, late in waits.lagging.items()},
        awaited={rank: nodes for rank, nodes in awaited.items() if nodes},
    )


def _plain(op: str) -> str:
    """torch's enumeration writes ALLREDUCE for what its recorder calls all_reduce."""
    return op.replace("_", "").lower()
