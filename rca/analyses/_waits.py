"""Who waits for whom: the first unfinished call of every rank, and the members that have not arrived at it.

Built from the recorder alone. A call is named by its group's identity and `collective_seq_id` (point to point: group, source, destination),
never by `record_id` or `pg_id`. A rank without an unfinished call waits for nobody; a member without a dump is a node without a way out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import polars as pl

from rca.types import Cite, Tables

__all__ = ["Call", "Waits", "build_waits", "cite_call", "is_done"]

LISTED = 8  # members of a group that are named one by one
Node = tuple[str, Any]  # (group_id, sequence number) or (group_id, "src->dst")


@dataclass(frozen=True)
class Call:
    """A recorded call of a rank."""

    rank: int
    group_id: str
    seq: int | None
    op: str
    sizes: str
    created_at: datetime | None
    is_p2p: bool
    src: int | None
    dst: int | None
    p2p_seq: int | None
    evidence_id: str
    record: str

    @property
    def node(self) -> Node:
        """What the rank waits at, the same for every member."""
        return (self.group_id, f"{self.src}->{self.dst}") if self.is_p2p else (self.group_id, self.seq)


@dataclass
class Waits:
    """The wait graph of a job. A node is a call; ranks wait at nodes, and nodes wait for the members that have not arrived."""

    members: dict[str, frozenset[int]]
    dumped: frozenset[int]  # ranks with a dump
    read: frozenset[int]  # ranks whose calls were read (not only the header)
    first: dict[int, Call]  # rank -> its first unfinished call
    enqueued: dict[tuple[int, str], int]  # (rank, group) -> last collective enqueued
    last: dict[int, Call]  # rank -> its last recorded call
    hidden_p2p: bool  # the backend leaves no trace of send and recv (gloo)
    open_groups: frozenset[str]  # groups that may have members nobody has seen
    torn: frozenset[int]  # ranks whose dump breaks off: what they did last is not known
    held: frozenset[int]  # ranks of which only the header tells that something is unfinished
    places: dict[tuple[str, int], int] = field(default_factory=dict)  # (kind of group, number) -> place in the program
    waiters: dict[Node, list[int]] = field(default_factory=dict)  # call -> ranks whose first unfinished call it is
    lagging: dict[Node, frozenset[int]] = field(default_factory=dict)  # call somebody waits at -> members that have not arrived
    finished: dict[Node, frozenset[int]] = field(default_factory=dict)  # call somebody waits at -> members that have finished it
    unsure: dict[Node, frozenset[int]] = field(
        default_factory=dict
    )  # call somebody waits at -> dumped members that may or may not be there
    awaited: dict[int, list[Node]] = field(default_factory=dict)  # rank -> calls that others wait for it at

    def waiting_for(self, rank: int) -> set[int]:
        """Ranks that wait for this one directly."""
        return {other for node in self.awaited.get(rank, ()) for other in self.waiters[node]} - {rank}

    def ways_out(self, rank: int) -> frozenset[int]:
        """Ranks that this rank waits for."""
        call = self.first.get(rank)
        return self.lagging.get(call.node, frozenset()) - {rank} if call else frozenset()

    def place(self, call: Call) -> int:
        """Place of an awaited collective in the program, as far as ranks that made several of them show; point to point comes last."""
        return self.places.get((_kind(call.group_id), call.seq or 0), len(self.places)) if not call.is_p2p else len(self.places)

    def behind(self, roots: Iterable[int]) -> set[int]:
        """All ranks that wait for the roots, directly or through others; the roots themselves left out."""
        start = set(roots)
        found, todo, visited = set(start), list(start), set()
        while todo:
            for node in self.awaited.get(todo.pop(), ()):
                if node not in visited:
                    visited.add(node)
                    new = [rank for rank in self.waiters[node] if rank not in found]
                    found.update(new)
                    todo += new
        return found - start

    def group(self, group_id: str) -> str:
        """A group for people: its kind and its members."""
        kind = _kind(group_id)
        members = sorted(self.members.get(group_id, ()))
        if not members:
            return f"the {kind} group {group_id}"
        known = "known " if group_id in self.open_groups else ""
        shown = f"{known}ranks {', '.join(map(str, members))}" if len(members) <= LISTED else f"{len(members)} {known}ranks"
        return f"the {kind} group ({shown})"

    def name(self, call: Call) -> str:
        """A call for people: op, number, group."""
        return f"{call.op} in {self.group(call.group_id)}" if call.is_p2p else f"{call.op} #{call.seq} of {self.group(call.group_id)}"

    def may_have_failed(self, rank: int) -> frozenset[int]:
        """Members without a dump of the group that this rank called last: the call may have failed with them. Of a torn dump the last call
        is not known, so all its groups count."""
        if rank in self.torn:
            groups = [members for members in self.members.values() if rank in members]
        else:
            groups = [self.members.get(self.last[rank].group_id, frozenset())] if rank in self.last else []
        return frozenset().union(*groups) - self.dumped - {rank}

    def last_is_short(self, rank: int) -> bool:
        """Whether the last call was in a group that may have a member nobody has seen, who may have failed it.

        Of a group whose members are not listed only its users are known. It is short when fewer are known than of others of its kind, when
        only one is, or when the ranks that left a dump have gaps.
        """
        call = self.last.get(rank)
        if call is None or call.group_id not in self.open_groups:
            return False
        known, kind = len(self.members[call.group_id]), _kind(call.group_id)
        has_gaps = len(self.dumped) <= max(self.dumped)
        return known < 2 or has_gaps or known < max(len(members) for group, members in self.members.items() if _kind(group) == kind)


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
    calls = case.table("collectives", where="is_tail").filter(pl.col("rank").is_not_null()).select(*_KEPT, *_ENDS)
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
    first = {row["rank"]: _call(row) for row in _first_pending(calls, status).iter_rows(named=True) if row["rank"] not in torn}
    _add_failed(first, progress["ends"], enqueued, members, dumped)
    last = {row["rank"]: _call(row) for row in progress["last"].iter_rows(named=True)}
    hidden = "gloo" in dumps["backend"].to_list() and not progress["has_p2p"]
    held = frozenset(
        row["rank"]
        for row in status.iter_rows(named=True)
        if row["rank"] in torn | (dumped - read) and (row["last_completed"] or 0) < (row["last_enqueued"] or 0)
    )
    waits = Waits(members, dumped, read, first, enqueued, last, hidden, inferred, torn, held)
    pairs = _pairs(calls) if progress["has_p2p"] else {}
    for rank, call in sorted(first.items()):
        waits.waiters.setdefault(call.node, []).append(rank)
    for node, waiting in waits.waiters.items():
        call = first[waiting[0]]
        late, done = _late_pair(waits, call, pairs) if call.is_p2p else _late_members(waits, call, finished)
        waits.lagging[node], waits.finished[node] = late, done
        for rank in sorted(late):
            if set(waiting) - {rank}:
                waits.awaited.setdefault(rank, []).append(node)
    waits.places.update(_places(calls, {(_kind(group), seq) for group, seq in waits.lagging if isinstance(seq, int)}))
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
    before: Counter[tuple[tuple[str, int], tuple[str, int]]] = Counter()
    for _, rows in made.group_by("rank", maintain_order=True):
        order = list(zip(rows["kind"], rows["collective_seq_id"], strict=True))
        before.update((one, two) for place, one in enumerate(order) for two in order[place + 1 :])
    ahead = {key: sum(before[other, key] > before[key, other] for other in awaited) for key in awaited}
    return {key: ahead[key] for key in awaited}


_KEPT = (
    "rank",
    "group_id",
    "collective_seq_id",
    "p2p_seq_id",
    "op",
    "sizes",
    "is_p2p",
    "src",
    "dst",
    "evidence_id",
    "record",
    "record_id",
    "created_at",
)
_ENDS = ("state", "is_retired", "backend", "completed_at", "timeout_s")  # what tells whether a call has ended


def _call(row: Mapping[str, Any]) -> Call:
    return Call(
        row["rank"], row["group_id"] or "?", row["collective_seq_id"], row["op"] or "?", row["sizes"] or "", row["created_at"], bool(row["is_p2p"]),
        row["src"], row["dst"], row["p2p_seq_id"], row["evidence_id"], row["record"],
    )  # fmt: skip


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
    rows = case.table("memberships").filter(pl.col("rank").is_not_null()).select("group_id", "rank", "is_inferred").unique().collect()
    members: dict[str, set[int]] = defaultdict(set)
    listed: set[str] = set()
    for group, rank, is_inferred in rows.iter_rows():
        members[group].add(rank)
        if not is_inferred:
            listed.add(group)
    return {g: frozenset(r) for g, r in members.items()}, frozenset(members) - listed


def _status(case: Tables) -> pl.DataFrame:
    """The header's status of ranks and groups that are known, one row each."""
    known = case.table("group_status").filter(pl.col("rank").is_not_null() & pl.col("group_id").is_not_null())
    return known.unique(["rank", "group_id"], keep="first", maintain_order=True).collect()


Reach = dict[tuple[int, str], int]


def _reach(
    status: pl.DataFrame, progress: dict[str, Any], complete: frozenset[int], torn: frozenset[int], members: Mapping[str, frozenset[int]]
) -> tuple[Reach, Reach]:
    """(rank, group) -> last collective enqueued, and last finished, as far as it can be known.

    The header counts collectives only in groups without point to point; where a rank's own calls show it counts something else, it is not
    used for that kind of group. A whole dump (nothing evicted) without a call in a group means none was made; a torn dump lacks its last
    calls, so only its header counts.
    """
    enqueued: Reach = {}
    finished: Reach = {}
    kinds = {_kind(g) for g in status.filter(pl.col("counts") == "calls")["group_id"].to_list()}
    for row in status.iter_rows(named=True):
        if row["counts"] == "collectives" or (row["counts"] == "unknown" and _kind(row["group_id"]) not in kinds):
            key = (row["rank"], row["group_id"])
            if row["last_enqueued"] is not None:
                enqueued[key] = max(row["last_enqueued"], 0)
            if row["last_completed"] is not None and row["last_completed"] >= 0:
                finished[key] = row["last_completed"]
    for rank, group, made, done, opened in progress["by_group"].iter_rows():
        if rank in torn:
            continue
        key = (rank, group)
        enqueued[key] = max(made, enqueued.get(key, 0))
        known = max(n for n in (done, opened - 1 if opened is not None else made, 0) if n is not None)
        finished[key] = min(known, opened - 1) if opened is not None else known
    for group, ranks in members.items():
        for rank in (ranks & complete) - torn:
            enqueued.setdefault((rank, group), 0)
            finished.setdefault((rank, group), 0)
    return enqueued, finished


def _kind(group_id: str) -> str:
    return group_id.partition(":")[0].partition("?")[0]


def _add_failed(
    first: dict[int, Call],
    ends: pl.DataFrame,
    enqueued: Mapping[tuple[int, str], int],
    members: Mapping[str, frozenset[int]],
    dumped: frozenset[int],
) -> None:
    """A rank whose last call of a group is put away although a dumped member never made it: the call failed, the rank waited there."""
    for row in ends.iter_rows(named=True):
        call = _call(row)
        if call.rank in first or call.seq is None:
            continue
        others = members.get(call.group_id, frozenset()) - {call.rank}
        if any(rank in dumped and enqueued.get((rank, call.group_id), call.seq) < call.seq for rank in others):
            first[call.rank] = call


def _late_members(waits: Waits, call: Call, finished: Mapping[tuple[int, str], int]) -> tuple[frozenset[int], frozenset[int]]:
    """Members that have not arrived at a collective, and members that have finished it."""
    late: set[int] = set()
    done: set[int] = set()
    unsure: set[int] = set()
    assert call.seq is not None or call.seq is None
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


Pairs = dict[tuple[int, str, int | None, int | None], tuple[int, int, int, int]]


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


def cite_call(call: Call) -> Cite:
    """The row behind a call."""
    number = "" if call.is_p2p else f" #{call.seq}"
    return Cite(
        "collectives", call.evidence_id, "", call.record, f"rank {call.rank}: {call.op}{number} on {call.group_id} {call.sizes}".strip()
    )
