"""The wait graph of a job, and the questions it answers: who waits for whom, directly or through others, and where.

A call is named by its group's identity and `collective_seq_id` (point to point: group, source, destination), never by `record_id` or `pg_id`.
A rank without an unfinished call waits for nobody; a member without a dump is a node without a way out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from rca.types import Cite

__all__ = ["Call", "Waits", "cite_call", "entered", "group_kind", "group_name"]

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
    unsure: dict[Node, frozenset[int]] = field(default_factory=dict)  # call somebody waits at -> dumped members that may be there or not
    awaited: dict[int, list[Node]] = field(default_factory=dict)  # rank -> calls that others wait for it at
    _first_at: dict[Node, Call] = field(default_factory=dict)  # what `first_at` has found

    def ways_out(self, rank: int) -> frozenset[int]:
        """Ranks that this rank waits for."""
        call = self.first.get(rank)
        late = self.lagging.get(call.node, frozenset()) if call else frozenset()
        return late - {rank} if rank in late else late  # the same set for all who wait there: no copy of thousands for each

    def place(self, call: Call) -> int:
        """Place of an awaited collective in the program, as far as ranks that made several of them show; point to point comes last."""
        return self.places.get((group_kind(call.group_id), call.seq or 0), len(self.places)) if not call.is_p2p else len(self.places)

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
        kind = group_kind(group_id)
        members = sorted(self.members.get(group_id, ()))
        if not members:
            return f"the {kind} group {group_id}"
        if "?" in group_id and kind != "world" and len(members) > LISTED:  # several groups may go by one name
            return f"a {kind} group ({len(members)} ranks use the name {group_id.partition('?')[2]}, which of them are its members no source lists)"
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
            groups = [group for group, members in self.members.items() if rank in members]
        else:
            groups = [self.last[rank].group_id] if rank in self.last else []
        return frozenset().union(*(self._undumped.get(group, frozenset()) for group in groups)) - {rank}

    @cached_property
    def _undumped(self) -> dict[str, frozenset[int]]:
        """group -> its members without a dump."""
        return {group: members - self.dumped for group, members in self.members.items()}

    def last_is_short(self, rank: int) -> bool:
        """Whether the last call was in a group that may have a member nobody has seen, who may have failed it.

        Of a group whose members are not listed only its users are known. It is short when fewer are known than of others of its kind, when
        only one is, or when the ranks that left a dump have gaps.
        """
        call = self.last.get(rank)
        if call is None or call.group_id not in self.open_groups:
            return False
        known = len(self.members[call.group_id])
        return known < 2 or self._has_gaps or known < self._largest[group_kind(call.group_id)]

    @cached_property
    def _has_gaps(self) -> bool:
        """Whether the ranks that left a dump are not 0 to the last one."""
        return len(self.dumped) <= max(self.dumped)

    @cached_property
    def _largest(self) -> dict[str, int]:
        """Kind of group -> members of the largest one."""
        sizes: dict[str, int] = {}
        for group, members in self.members.items():
            sizes[group_kind(group)] = max(sizes.get(group_kind(group), 0), len(members))
        return sizes

    def first_at(self, node: Node) -> Call:
        """Of the calls of those who wait at a node, the one that was made first."""
        if node not in self._first_at:
            self._first_at[node] = min((self.first[rank] for rank in self.waiters[node]), key=entered)
        return self._first_at[node]


def entered(call: Call) -> tuple[bool, float, bool, int, str]:
    """The order of calls by when they were made; of equal ones collectives first, then by rank and group."""
    at = call.created_at
    return (at is None, at.timestamp() if at else 0.0, call.is_p2p, call.rank, call.group_id)


def group_kind(group_id: str) -> str:
    """The kind of a group by its identity: `tp` of `tp:0123abcd`."""
    return group_id.partition(":")[0].partition("?")[0]


def group_name(group_id: str) -> str:
    """A group in a cite: its identity, or where only its name is known (`dp?mesh_dp`), its kind and that name."""
    kind, is_unlisted, name = group_id.partition("?")
    return group_id if not is_unlisted else kind if name in (kind, "") else f"{kind} {name}"


def cite_call(call: Call) -> Cite:
    """The row behind a call."""
    number = "" if call.is_p2p else f" #{call.seq}"
    return Cite(
        "collectives",
        call.evidence_id,
        "",
        call.record,
        f"rank {call.rank}: {call.op}{number} on {group_name(call.group_id)} {call.sizes}".strip(),
    )
