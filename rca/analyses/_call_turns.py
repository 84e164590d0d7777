"""Which rank made a call of a group out of turn, where records are too short to show who ran the same program before?

A rank that is alone at a call of a group, made right after the one before it in that group, while a member of another of its groups, which went on
from that same call to the other group, waits there for it: one of the two left the common order. Where of all ranks whose records show what came
after that same call none went on as the first did, it is the first, and it made a call too many.

And where ranks wait at a call that one reached further on in its program: the members of another group had all made the same number of calls
there when they made it, and one of them more. It left the call out where the others made it, and took its next turn for it.
"""

from __future__ import annotations

import polars as pl

from rca.analyses._call_records import Calls, OddCall, group_kind_of
from rca.analyses._wait_graph import Waits, group_kind

__all__ = ["further_on", "out_of_turn"]

MIN_VOTES = 2  # other ranks that show what comes after the call before


def out_of_turn(tail: Calls, waits: Waits) -> list[OddCall]:
    """One per rank that is alone at a call that nobody else made in this place."""
    alone = [
        call
        for rank, call in sorted(waits.first.items())
        if rank in waits.awaited and not call.is_p2p and waits.waiters[call.node] == [rank]
    ]
    if not alone:
        return []
    columns = (pl.col("group_id").alias("then"), pl.col("collective_seq_id").alias("number"), group_kind_of().alias("then_kind"))
    following = tail.rows.with_columns(column.shift(-1).over("rank") for column in columns).drop_nulls("then")
    found = []
    for call in alone:
        after = following.filter((pl.col("group_id") == call.group_id) & (pl.col("collective_seq_id") == (call.seq or 0) - 1))
        nodes = {rank: (then, number) for rank, then, number in after.select("rank", "then", "number").iter_rows()}
        others = after.filter(pl.col("rank") != call.rank)["then_kind"].to_list()
        if nodes.get(call.rank) != call.node or len(others) < MIN_VOTES or group_kind(call.group_id) in others:
            continue
        if any(nodes.get(rank) == node for node in waits.awaited[call.rank] for rank in waits.waiters[node]):
            made = next(one for one in tail.at(call.group_id, call.seq or 0) if one.rank == call.rank)
            found.append(OddCall("extra_call", made, made, len(others), "ranks after the same call before it"))
    return found


def further_on(tail: Calls, waits: Waits) -> list[OddCall]:
    """One per rank that had gone on in a group before it made the call at which most ranks wait."""
    common = [(len(ranks), node) for node, ranks in waits.waiters.items() if not isinstance(node[1], str)]
    if not common:
        return []
    group, number = max(common, key=lambda one: (one[0], one[1][0]))[1]
    made = tail.rows.filter((pl.col("group_id") == group) & (pl.col("collective_seq_id") == number))
    before = (
        tail.rows.join(made.select("rank", pl.col("record_id").alias("here")), on="rank", how="inner")
        .filter((pl.col("record_id") < pl.col("here")) & (pl.col("group_id") != group))
        .group_by("group_id", "rank", "here")
        .agg(pl.col("collective_seq_id").max().alias("reached"), pl.col("record_id").max().alias("last"))
        .sort("group_id", "rank")
    )
    found: dict[int, OddCall] = {}
    for _, members in before.group_by("group_id", maintain_order=True):
        usual = members["reached"].mode()
        votes = members.filter(pl.col("reached") == usual[0])["rank"].to_list() if len(usual) == 1 else []
        rest = members.filter(pl.col("reached") != usual[0]) if votes else members.clear()
        if len(votes) < max(MIN_VOTES, members.height // 2 + 1) or rest.height != 1 or rest["reached"][0] < usual[0]:
            continue
        (rank,) = rest["rank"]
        due = next(one for one in tail.at(group, number) if one.rank == votes[0])
        found.setdefault(rank, OddCall("skipped_call", tail.call(rank, rest["last"][0]), due, len(votes), "members of its group"))
    return list(found.values()) if len(found) == 1 else []
