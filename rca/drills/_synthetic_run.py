"""Plays the plans of all ranks against each other: a call ends when every member has reached it, in program order.

The model is causal. A rank reaches a call when its CPU has enqueued it and its earlier calls have ended; a call whose
members disagree (other operation, size or type) never ends. The result is how far each rank came, and when.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence

from rca.drills._synthetic_job import Plan

__all__ = ["START_NS", "created_ns", "enqueued", "play"]

START_NS = 1_758_610_505_000_000_000  # some moment in 2025
ENQUEUE_NS = 40_000  # CPU time of one call
CALL_NS = 200_000  # a call takes this long once all members are there
WORK_NS = 300_000  # computation before each call, at least

Key = tuple[int, int, int, int]


class _Meeting:
    """Members that have arrived at one collective, or the two ends of one transfer."""

    __slots__ = ("at", "is_broken", "missing", "ranks", "signature")

    def __init__(self, members: int, signature: tuple[object, ...] | None) -> None:
        self.ranks: list[int] = []
        self.missing = members
        self.signature = signature
        self.is_broken = False
        self.at = 0


class _Play:
    """State of a run: what each rank has finished and where it waits."""

    def __init__(self, plans: Sequence[Plan], stuck: Key | None, *, blocking: bool) -> None:
        self.plans, self.stuck, self.blocking = plans, stuck, blocking
        self.done = [array("q") for _ in plans]
        self.cpu = [START_NS] * len(plans)  # when the CPU made its last call
        self.free = [START_NS] * len(plans)  # until when it has waited
        self.open = [0] * len(plans)  # meetings of the present call that are not complete
        self.latest = [START_NS] * len(plans)
        self.meetings: dict[Key, _Meeting] = {}
        self.ready = deque(range(len(plans)))
        self.crossing = _crossing(plans)

    def arrive(self, rank: int) -> None:
        """The rank reaches its next call."""
        plan, place = self.plans[rank], len(self.done[rank])
        if place >= (plan.limit if plan.reach is None else plan.reach):
            return
        op, meets = plan.program.ops[place], plan.program.meets[place]
        self.cpu[rank] = max(self.cpu[rank] + ENQUEUE_NS, self.free[rank])
        jitter = (rank * 7919 + place * 104_729) % 1000 * 100
        at = max(self.cpu[rank], self.latest[rank]) + WORK_NS + jitter
        self.open[rank] = len(meets)
        signature = None if op.transfers else op.signature
        for axis, src, dst, number in meets:
            group = plan.groups[axis]
            key = (group.number, src, dst, number)
            meeting = self.meetings.get(key)
            if meeting is None:
                meeting = self.meetings[key] = _Meeting(2 if src >= 0 else len(group.members), signature)
            meeting.ranks.append(rank)
            meeting.missing -= 1
            meeting.at = max(meeting.at, at)
            meeting.is_broken |= meeting.signature != signature or (
                plan.cut is not None and place >= plan.cut and group.number in self.crossing
            )
            if not meeting.missing and not meeting.is_broken and key != self.stuck:
                del self.meetings[key]
                self.end(meeting)

    def end(self, meeting: _Meeting) -> None:
        """All are there: whoever waits for nothing else goes on."""
        for rank in meeting.ranks:
            self.open[rank] -= 1
            self.latest[rank] = max(self.latest[rank], meeting.at + CALL_NS)
            if self.open[rank]:
                continue
            place = len(self.done[rank])
            self.done[rank].append(self.latest[rank])
            if self.blocking or self.plans[rank].program.ops[place].sync:
                self.free[rank] = self.latest[rank]
            self.ready.append(rank)


def _crossing(plans: Sequence[Plan]) -> frozenset[int]:
    """Numbers of the groups with members that are cut off from the others."""
    cut = {rank for rank, plan in enumerate(plans) if plan.cut is not None}
    groups = {group.number: group.members for rank in cut for group in plans[rank].groups.values()}
    return frozenset(number for number, members in groups.items() if not cut.issuperset(members))


def play(plans: Sequence[Plan], stuck: Key | None, *, blocking: bool) -> list[array[int]]:
    """Per rank the end of each finished call, ns since 1970, in program order: its length says how far it came."""
    state = _Play(plans, stuck, blocking=blocking)
    while state.ready:
        state.arrive(state.ready.popleft())
    return state.done


def enqueued(plan: Plan, finished: int, *, blocking: bool) -> int:
    """How many calls the CPU had made at the end: it runs ahead up to the first unfinished call it waits for."""
    for place in range(finished, plan.limit):
        if blocking or plan.program.ops[place].sync:
            return place + 1
    return plan.limit


def created_ns(plan: Plan, done: Sequence[int], *, calls: int, blocking: bool) -> Iterator[int]:
    """When the CPU made each of the first `calls` calls, ns since 1970."""
    cpu = free = START_NS
    for place, op in enumerate(plan.program.ops[:calls]):
        cpu = max(cpu + ENQUEUE_NS, free)
        yield cpu
        if place < len(done) and (blocking or op.sync):
            free = done[place]
