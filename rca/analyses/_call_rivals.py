"""Members of a group that disagree about a call, with no majority among them: who of them is odd, by what was called elsewhere and before.

1. Parallel groups: groups of the same kind that made the same calls around it, number by number, are the same place in the program. What all of
   them called at this number was due.
2. Habit: where all calls of this kind of group are made again and again, and one of the rivals called what nobody, itself included, has called
   before or elsewhere, that one is odd. Not where sizes change from call to call: there every call is new. Nor where it was made in a function
   that no recorded call was made in: a first evaluation or save, which all were to enter, looks the same as a stray one.
3. Turn: where the group made one of the two calls before, again and again behind the same calls, as an evaluation behind every third step, that tells
   whether it was due.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from rca.analyses._call_records import Calls, OddCall, RecordedCall, calls_near, difference, shift
from rca.types import Tables

__all__ = ["Rivals"]

NEAR = 128  # calls before and after the one in question that are looked at: a step or more. After, as ranks enqueue ahead of their GPUs
MIN_SHARED = 4  # of them that both groups have on record, and all alike
MIN_VOTES = 2  # ranks of parallel groups
MAX_LOOKS = 64  # numbers of calls looked at: of a job whose groups differ all over, the first ones tell as much as all
MIN_TURNS = 2  # times that the same calls lay between one time of a rare call and the next
MIN_HABIT = 4  # times that the usual call is made, so that a new one is an exception

Place = tuple[int, int]  # rank and order of recording


@dataclass(frozen=True)
class _Near:
    """What all groups of a kind called near a number."""

    calls: Calls
    settled: dict[str, dict[int, tuple[int, int, Place]]]  # group -> number -> content, ranks, one of them: where all who are seen agree
    uses: Counter[int]  # content -> calls (of a group) in which some member made it


class Rivals:
    """The judge of members that disagree."""

    def __init__(self, case: Tables) -> None:
        self._case = case
        self._seen: dict[tuple[str, int], _Near] = {}
        self._looks = 0

    def judge(self, group: str, seq: int, kind: str) -> list[OddCall]:
        """The odd ones of those that disagree at this call of a group; none where nothing tells."""
        near = self._near(kind, seq)
        if near is None:
            return []
        members = near.calls.at(group, seq)
        odd = _by_parallel_groups(members, near)
        odd = odd or [one for one in _by_habit(members, near) if not _is_elsewhere(self._case, one.call)]
        return odd or _by_turn(members, near)

    def alike(self, group: str, seq: int, kind: str) -> list[list[int]]:
        """The users of what may be several groups of one name, by what they called under it before: those of one group called the same."""
        near = self._near(kind, seq)
        if near is None:
            return []
        users = near.calls.rows.filter(pl.col("group_id") == group)
        rows, here = (users.filter(which) for which in (pl.col("collective_seq_id") < seq, pl.col("collective_seq_id") == seq))
        before = {rank: dict(zip(numbers, contents, strict=True)) for rank, numbers, contents in _by_rank(rows)}
        found: list[list[int]] = []
        for rank in here["rank"].to_list():
            own = before.get(rank, {})
            like = next((those for those in found if _same(own, before.get(those[0], {}))), None)
            if like is None:
                found.append([rank])
            else:
                like.append(rank)
        return found

    def _near(self, kind: str, seq: int) -> _Near | None:
        if (kind, seq) not in self._seen:
            self._looks += 1
            if self._looks > MAX_LOOKS:
                return None
            calls = calls_near(self._case, kind, seq, NEAR)
            nodes = calls.rows.group_by("group_id", "collective_seq_id", maintain_order=True).agg("content", "rank", "record_id")
            settled: dict[str, dict[int, tuple[int, int, Place]]] = defaultdict(dict)
            uses: Counter[int] = Counter()
            for group, number, contents, ranks, orders in nodes.iter_rows():
                uses.update(set(contents))
                if len(set(contents)) == 1:
                    settled[group][number] = (contents[0], len(contents), (ranks[0], orders[0]))
            self._seen = {(kind, seq): _Near(calls, settled, uses)}  # those of one number are asked for one after the other
        return self._seen[kind, seq]


def _by_rank(rows: pl.DataFrame) -> Iterator[tuple[int, list[int], list[int]]]:
    return rows.group_by("rank", maintain_order=True).agg("collective_seq_id", "content").iter_rows()


def _same(one: Mapping[int, int], other: Mapping[int, int]) -> bool:
    """Whether nothing that both called before differs; so too where nothing is known of that."""
    return all(one[number] == other[number] for number in one.keys() & other.keys())


def _by_parallel_groups(members: Sequence[RecordedCall], near: _Near) -> list[OddCall]:
    group, seq = members[0].group, members[0].seq
    own = {number: said[0] for number, said in near.settled.get(group, {}).items()}
    votes: Counter[int] = Counter()
    places: dict[int, Place] = {}
    for other, said in near.settled.items():
        if other == group or seq not in said:
            continue
        shared = [content == said[number][0] for number, content in own.items() if number in said]
        if len(shared) >= MIN_SHARED and all(shared):
            content, ranks, place = said[seq]
            votes[content] += ranks
            places.setdefault(content, place)
    if len(votes) != 1 or votes.total() < MIN_VOTES or not {call.content for call in members} & votes.keys():
        return []
    due, count = next(iter(votes.items()))
    peer = near.calls.call(*places[due])
    after = near.calls.onward(peer.rank, peer.group, seq)
    found = []
    for call in (call for call in members if call.content != due):
        sign = shift(near.calls.onward(call.rank, group, seq), after)
        found.append(OddCall(sign or difference(call, peer), call, peer, count, "ranks of parallel groups"))
    return found


def _by_turn(members: Sequence[RecordedCall], near: _Near) -> list[OddCall]:
    """By the calls that lay between one time of the rarer call in this group and the next."""
    group, seq = members[0].group, members[0].seq
    own = near.settled.get(group, {})
    first = seq
    while first - 1 in own:
        first -= 1
    before = [own[number][0] for number in range(first, seq)]
    counts = Counter(before)
    called = sorted({call.content for call in members}, key=lambda content: counts[content])
    if len(called) != 2 or counts[called[0]] <= MIN_TURNS or counts[called[0]] == counts[called[1]]:
        return []
    places = [place for place, content in enumerate(before) if content == called[0]]
    turns = {tuple(before[one + 1 : two]) for one, two in pairwise(places)}
    since = tuple(before[places[-1] + 1 :])
    if len(turns) != 1 or not (turn := turns.pop()) or turn[: len(since)] != since:
        return []
    due = called[0] if since == turn else turn[len(since)]
    peer = next((call for call in members if call.content == due), None)
    if peer is None:
        return []
    sign = "extra_call" if due != called[0] else "skipped_call" if turn[0] == called[1] else None
    who = "times before, behind the same calls, its own group"
    odd = [call for call in members if call.content != due]
    return [OddCall(sign or difference(call, peer), call, peer, len(places) - 1, who) for call in odd]


def _is_elsewhere(case: Tables, call: RecordedCall) -> bool:
    """Whether a call was made in a function in which no other recorded call of any rank was made."""
    made = case.table("collectives").filter(pl.col("stack_id").is_not_null())
    own = (pl.col("rank") == call.rank) & (pl.col("record_id") == call.order)
    stacks = made.group_by("stack_id").agg(own.any().alias("own"), (~own).any().alias("others")).collect()
    frames = case.table("stack_frames").select("stack_id", "frames").unique("stack_id", keep="first").collect()
    functions = {stack: set(told or ()) for stack, told in frames.iter_rows()}
    mine = set().union(*(functions.get(stack, set()) for stack in stacks.filter("own")["stack_id"]))
    return bool(mine.difference(*(functions.get(stack, set()) for stack in stacks.filter("others")["stack_id"])))


def _by_habit(members: Sequence[RecordedCall], near: _Near) -> list[OddCall]:
    called = {call.content for call in members}
    usual = {content for content in called if near.uses[content] > MIN_HABIT}
    if len(usual) != 1 or any(near.uses[content] > 1 for content in called - usual):
        return []
    if any(uses == 1 for content, uses in near.uses.items() if content not in called):
        return []
    peer = next(call for call in members if call.content in usual)
    who = f"times before and elsewhere {peer.kind} groups"
    return [OddCall(difference(call, peer), call, peer, near.uses[peer.content] - 1, who) for call in members if call.content not in usual]
