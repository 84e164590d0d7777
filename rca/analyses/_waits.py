"""Building the wait graph from the recorder alone: the first unfinished call of every rank, and the members that have not arrived at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import nsmallest
from itertools import combinations, groupby
from operator import itemgetter
from typing import Any

import polars as pl

from rca.analyses._wait_graph import Call, Waits, group_kind
from rca.types import Tables

__all__ = ["build_waits", "is_done"]

_OF_CALL = (  # as `_calls` takes them
    *("rank", "group_id", "collective_seq_id", "op", "sizes", "created_at", "is_p2p"),
    *("src", "dst", "p2p_seq_id", "evidence_id", "record"),
)
_ENDS = ("state", "is_retired", "backend", "completed_at", "timeout_s")  # what tells whether a call has ended
Reach = dict[tuple[int, str], int]  # (rank, group) -> number of a collective
Pairs = dict[tuple[int, str, int | None, int | None], tuple[int, int, int, int]]  # as `_pairs` says


def is_done() -> pl.Expr:
    """Whether a call has ended well. With gloo `retired` is the only sign; an aborted NCCL call looks completed, but only after its time-out."""
    lasted = (pl.col("completed_at") - pl.col("created_at")).dt.total_microseconds() / 1e6
    aborted = (pl.col("timeout_s") > 0) & (lasted >= pl.col("timeout_s"))
    retired = pl.col("is_retired").fill_null(value=False)
    return pl.when(pl.col("backend") == "gloo").then(retired).otherwise((pl.col("state") == "completed") & ~aborted.fill_null(value=False))


def build_waits(case: Tables) -> Waits:
    """The wait graph. Use it as `case.derive(build_waits)`.

    1. Unfinished calls; within one group (and one direction of point to point) an earlier call is finished when a later one is.
    2. How far every rank got in every group: its calls, and the header's status where that is known to count collectives.
    3. A call that ended on one rank although another member never made it has failed there: that rank still waits.
    4. For every call somebody waits at: who has not made it, or is held by an earlier call of its own.
    """
    calls = case.table("collectives", where="is_tail").filter(pl.col("rank").is_not_null()).select(*_OF_CALL, "record_id", *_ENDS)
    calls = calls.with_columns(is_done().fill_null(value=False).alias("done")).drop(_ENDS).collect().lazy()
    progress = _progress(calls)
    members, inferred = _members(case)
    dumps = case.table("dumps").filter(pl.col("rank").is_not_null()).collect()
    dumped = frozenset(dumps["rank"].to_list())
    read = frozenset(dumps.filter(pl.col("num_entries").is_not_null())["rank"].to_list())
    complete = frozenset(dumps.filter((pl.col("first_record_id") == 0) & ~pl.col("has_only_active"))["rank"].to_list())
    torn = frozenset(dumps.filter("is_torn")["rank"].to_list())
    status = _status(case)
    enqueued, finished = _reach(status, progress, complete, torn, members)
    first = {call.rank: call for call in _calls(_first_pending(calls, status)) if call.rank not in torn}
    _add_failed(first, progress["ends"], enqueued, members, dumped)
    last = {call.rank: call for call in _calls(progress["last"])}
    hidden = "gloo" in dumps["backend"].to_list() and not progress["has_p2p"]
    headers = torn | (dumped - read)  # ranks of which the header alone tells how far they came
    reached = status.select("rank", "last_completed", "last_enqueued").iter_rows()
    held = frozenset(rank for rank, ended, made in reached if rank in headers and (ended or 0) < (made or 0))
    waits = Waits(members, dumped, read, first, enqueued, last, hidden, inferred, torn, held)
    pairs = _pairs(calls) if progress["has_p2p"] else {}
    for rank, call in sorted(first.items()):
        waits.waiters.setdefault(call.node, []).append(rank)
    for node, waiting in waits.waiters.items():
        call = first[waiting[0]]
        late, done = _late_pair(waits, call, pairs) if call.is_p2p else _late_members(waits, call, finished)
        waits.lagging[node], waits.finished[node] = late, done
        for rank in sorted(late):
            if len(waiting) > 1 or waiting[0] != rank:
                waits.awaited.setdefault(rank, []).append(node)
    waits.places.update(_places(calls, {(group_kind(group), seq) for group, seq in waits.lagging if isinstance(seq, int)}))
    return waits


def _places(calls: pl.LazyFrame, awaited: set[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Order of awaited collectives in the program: every rank runs the same one, so a rank that made two of them shows which comes first."""
    if len(awaited) < 2:
        return dict.fromkeys(awaited, 0)
    wanted = pl.DataFrame(sorted(awaited), schema={"kind": pl.String, "collective_seq_id": pl.Int64}, orient="row").lazy()
    made = (
        calls.filter(~pl.col("is_p2p").fill_null(value=False))
        .with_columns(pl.col("group_id").str.extract(r"^([^:?]*)").alias("kind"))
        .join(wanted, on=["kind", "collective_seq_id"], how="semi")
        .group_by("rank", "kind", "collective_seq_id")
        .agg(pl.col("record_id").min())
        .sort("rank", "record_id")
        .collect()
    )
    orders: Counter[tuple[tuple[str, int], ...]] = Counter()
    for _, rows in groupby(made.select("rank", "kind", "collective_seq_id").iter_rows(), key=itemgetter(0)):
        orders[tuple((kind, seq) for _, kind, seq in rows)] += 1
    before: Counter[tuple[tuple[str, int], tuple[str, int]]] = Counter()
    for order, ranks in orders.items():  # few: ranks of one stage run one program
        for pair in combinations(order, 2):
            before[pair] += ranks
    ahead = {key: sum(before[other, key] > before[key, other] for other in awaited) for key in awaited}
    return {key: ahead[key] for key in awaited}


def _calls(rows: pl.DataFrame) -> Iterator[Call]:
    """The rows as calls."""
    for rank, group, seq, op, sizes, created_at, is_p2p, *rest in rows.select(_OF_CALL).iter_rows():
        yield Call(rank, group or "?", seq, op or "?", sizes or "", created_at, bool(is_p2p), *rest)


def _first_pending(calls: pl.LazyFrame, status: pl.DataFrame) -> pl.DataFrame:
    """Each rank's first unfinished call, without those that a later finished call of their own stream has overtaken.

    Batched point-to-point calls are recorded one by one but never seen to end (pytorch#137969): the joint call tells for them, or the
    header, which counts point-to-point calls in a group that makes them.
    """
    counted = status.filter(pl.col("counts") != "collectives").select("rank", "group_id", pl.col("last_completed").alias("p2p_done")).lazy()
    lane = ["rank", "group_id", "src", "dst"]
    overtaken = calls.filter("done").group_by(lane).agg(pl.col("record_id").max().alias("overtaken"))
    joint_done = calls.filter(pl.col("done") & (pl.col("op") == "coalesced"))
    joint = joint_done.group_by("rank", "group_id").agg(pl.col("record_id").max().alias("joint_done"))
    return (
        calls.filter(~pl.col("done"))
        .join(overtaken, on=lane, how="left", nulls_equal=True)
        .join(joint, on=["rank", "group_id"], how="left", nulls_equal=True)
        .join(counted, on=["rank", "group_id"], how="left", nulls_equal=True)
        .filter(
            ~(pl.col("record_id") < pl.col("overtaken")).fill_null(value=False)
            & ~(pl.col("is_p2p") & (pl.col("record_id") < pl.col("joint_done"))).fill_null(value=False)
            & ~(pl.col("is_p2p") & (pl.col("p2p_seq_id") <= pl.col("p2p_done"))).fill_null(value=False)
        )
        .sort("rank", "record_id")
        .group_by("rank", maintain_order=True)
        .first()
        .collect()
    )


def _progress(calls: pl.LazyFrame) -> dict[str, Any]:
    """Per rank and group: last collective made, last finished, first unfinished; the last call of each rank; whether p2p is recorded."""
    collectives = calls.filter(~pl.col("is_p2p").fill_null(value=False) & pl.col("collective_seq_id").is_not_null())
    by_group = collectives.group_by("rank", "group_id").agg(
        pl.col("collective_seq_id").max().alias("made"),
        pl.col("collective_seq_id").filter("done").max().alias("done"),
        pl.col("collective_seq_id").filter(~pl.col("done")).min().alias("open"),
    )
    ends = collectives.filter(pl.col("done") & (pl.col("record_id") == pl.col("record_id").max().over("rank", "group_id")))
    last = calls.filter(pl.col("record_id") == pl.col("record_id").max().over("rank"))
    has_p2p = calls.select(pl.col("is_p2p").any())
    groups, ended, final, p2p = pl.collect_all([by_group, ends, last, has_p2p])
    return {"by_group": groups, "ends": ended, "last": final, "has_p2p": bool(p2p.item())}


def _members(case: Tables) -> tuple[dict[str, frozenset[int]], frozenset[str]]:
    """group -> members, and the groups whose list may be short (concluded from use only)."""
    rows = case.table("memberships").filter(pl.col("rank").is_not_null()).select("group_id", "rank", "is_inferred")
    by_group = rows.group_by("group_id").agg(pl.col("rank").unique(), pl.col("is_inferred").fill_null(value=False).all()).collect()
    members = {group: frozenset(ranks) for group, ranks, _ in by_group.iter_rows()}
    return members, frozenset(by_group.filter("is_inferred")["group_id"].to_list())


def _status(case: Tables) -> pl.DataFrame:
    """The header's status of ranks and groups that are known, one row each."""
    known = case.table("group_status").filter(pl.col("rank").is_not_null() & pl.col("group_id").is_not_null())
    return known.unique(["rank", "group_id"], keep="first", maintain_order=True).collect()


def _reach(
    status: pl.DataFrame, progress: dict[str, Any], complete: frozenset[int], torn: frozenset[int], members: Mapping[str, frozenset[int]]
) -> tuple[Reach, Reach]:
    """(rank, group) -> last collective enqueued, and last finished, as far as it can be known.

    The header counts collectives only in groups without point to point; where a rank's own calls show it counts something else, it is not
    used for that kind of group. A whole dump (nothing evicted) without a call in a group means none was made; a torn dump lacks its last
    calls, so only its header counts.
    """
    kinds = {group_kind(g) for g in status.filter(pl.col("counts") == "calls")["group_id"].to_list()}
    counts = [
        counts == "collectives" or (counts == "unknown" and group_kind(group) not in kinds)
        for group, counts in status.select("group_id", "counts").iter_rows()
    ]
    told = status.filter(pl.Series(counts, dtype=pl.Boolean)).select(
        "rank", "group_id", pl.col("last_enqueued").clip(lower_bound=0).alias("made"),
        pl.when(pl.col("last_completed") >= 0).then("last_completed").alias("told"),
    )  # fmt: skip
    before = pl.col("open") - 1
    known = pl.max_horizontal("done", pl.coalesce(before, "made"), 0)
    seen = progress["by_group"].filter(~pl.col("rank").is_in(list(torn))).select(
        "rank", "group_id", pl.col("made").clip(lower_bound=0), pl.min_horizontal(known, before).alias("seen")
    )  # fmt: skip
    whole = [(rank, group, 0) for group, ranks in members.items() for rank in (ranks & complete) - torn]
    none = pl.DataFrame(whole, schema={"rank": pl.Int64, "group_id": pl.String, "none": pl.Int64}, orient="row").with_columns(made="none")
    reach = pl.concat([told, seen, none], how="diagonal_relaxed").group_by("rank", "group_id").agg(
        pl.col("made").max(), pl.coalesce(pl.col(name).max() for name in ("seen", "told", "none")).alias("ended")
    )  # fmt: skip
    return (_by_place(reach, "made"), _by_place(reach, "ended"))


def _by_place(reach: pl.DataFrame, column: str) -> Reach:
    """(rank, group) -> a number, where it is known."""
    ranks, groups, numbers = reach.select("rank", "group_id", column).drop_nulls(column).get_columns()
    return dict(zip(zip(ranks.to_list(), groups.to_list(), strict=True), numbers.to_list(), strict=True))


def _add_failed(
    first: dict[int, Call],
    ends: pl.DataFrame,
    enqueued: Mapping[tuple[int, str], int],
    members: Mapping[str, frozenset[int]],
    dumped: frozenset[int],
) -> None:
    """A rank whose last call of a group is put away although a dumped member never made it: the call failed, the rank waited there."""
    free = ends.filter(~pl.col("rank").is_in(list(first)))
    least = {  # group -> the two dumped members that came least far, and how far: one of them may be the rank that is looked at
        group: nsmallest(
            2, ((enqueued[rank, group], rank) for rank in members.get(group, frozenset()) & dumped if (rank, group) in enqueued)
        )
        for group in free["group_id"].fill_null("?").unique().to_list()
    }
    failed: dict[int, int] = {}  # rank -> row
    for place, (rank, group, seq) in enumerate(free.select("rank", "group_id", "collective_seq_id").iter_rows()):
        if rank not in failed and any(made < seq for made, other in least.get(group or "?", ()) if other != rank):
            failed[rank] = place
    first |= {call.rank: call for call in _calls(free[list(failed.values())])}


def _late_members(waits: Waits, call: Call, finished: Mapping[tuple[int, str], int]) -> tuple[frozenset[int], frozenset[int]]:
    """Members that have not arrived at a collective, and members that have finished it."""
    late: set[int] = set()
    done: set[int] = set()
    unsure: set[int] = set()
    seq = call.seq or 0
    for rank in waits.members.get(call.group_id, frozenset()):
        own = waits.first.get(rank)
        if own is not None and own.node == call.node:
            continue
        made = waits.enqueued.get((rank, call.group_id))
        if rank not in waits.dumped or (made is not None and made < seq):
            late.add(rank)
        elif rank in waits.torn:
            unsure.add(rank)
        elif finished.get((rank, call.group_id), -1) >= seq:
            done.add(rank)
        elif own is not None:  # it made the call, but is held by an earlier one
            late.add(rank)
        elif rank in waits.read and made is not None:
            done.add(rank)
        elif rank in waits.read:
            unsure.add(rank)
    waits.unsure[call.node] = frozenset(unsure)
    return frozenset(late), frozenset(done)


def _pairs(calls: pl.LazyFrame) -> Pairs:
    """(rank, group, src, dst) -> calls made, finished, last number, last finished number."""
    rows = (
        calls.filter(pl.col("is_p2p"))
        .group_by("rank", "group_id", "src", "dst")
        .agg(
            pl.len().alias("made"),
            pl.col("done").sum().alias("ended"),
            pl.col("p2p_seq_id").max().alias("last"),
            pl.col("p2p_seq_id").filter("done").max().alias("last_done"),
        )
        .collect()
    )
    return {
        (r, g, s, d): (made, ended, last if last is not None else -1, done if done is not None else -1)
        for r, g, s, d, made, ended, last, done in rows.iter_rows()
    }


def _late_pair(waits: Waits, call: Call, pairs: Pairs) -> tuple[frozenset[int], frozenset[int]]:
    """The other side of a send or recv: late when it has not made its half, or is held by an earlier call."""
    other = call.dst if call.rank == call.src else call.src
    if other is None or other == call.rank:
        return frozenset(), frozenset()
    own = waits.first.get(other)
    if own is not None and own.node == call.node:
        return frozenset(), frozenset()
    if other not in waits.dumped:
        return frozenset({other}), frozenset()
    if other not in waits.read:
        return frozenset(), frozenset()
    mine = pairs.get((call.rank, call.group_id, call.src, call.dst), (0, 0, -1, -1))
    theirs = pairs.get((other, call.group_id, call.src, call.dst), (0, 0, -1, -1))
    in_step = len(waits.members.get(call.group_id, ())) == 2 and call.p2p_seq is not None
    arrived = theirs[2] >= (call.p2p_seq or 0) if in_step else theirs[0] - theirs[1] > 0 or theirs[1] > mine[1]
    ended = theirs[3] >= (call.p2p_seq or 0) if in_step else theirs[1] > mine[1]
    if ended:
        return frozenset(), frozenset({other})
    if not arrived or own is not None:
        return frozenset({other}), frozenset()
    return frozenset(), frozenset()
