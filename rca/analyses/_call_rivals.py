"""Members of a group that disagree about a call, with no majority among them: who of them is odd, by what was called elsewhere and before.

1. Parallel groups: groups of the same kind that made the same calls before it, number by number, are the same place in the program. What all of
   them called at this number was due.
2. Habit: where all calls of this kind of group are made again and again, and one of the rivals called what nobody, itself included, has called
   before or elsewhere, that one is odd. Not where sizes change from call to call: there every call is new.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from rca.analyses._call_records import OddCall, RecordedCall, Tail, difference, shift

__all__ = ["Rivals"]

HISTORY = 32  # calls before this one at which a parallel group is held against the group
MIN_SHARED = 4  # of them that both have on record, and all alike
MIN_VOTES = 2  # ranks of parallel groups
MIN_HABIT = 4  # calls of the usual kind, so that a new one is an exception

Place = tuple[int, int]  # rank and order of recording


@dataclass(frozen=True)
class _Kind:
    """What the groups of one kind called."""

    settled: dict[str, dict[int, tuple[int, int, Place]]]  # group -> number -> content, ranks, one of them: where all of them agree
    uses: Counter[int]  # content -> calls (of a group) in which some member made it
    places: dict[int, Place]  # content -> the last rank and order of recording


class Rivals:
    """The judge of members that disagree."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._kinds: dict[str, _Kind] = {}

    def judge(self, members: Sequence[RecordedCall]) -> list[OddCall]:
        """The odd ones of those that disagree at one call of a group; none where nothing tells."""
        kind = self._kind(members[0].kind)
        return self._by_parallel_groups(members, kind) or self._by_habit(members, kind)

    @cached_property
    def _rows(self) -> pl.DataFrame:
        return self._tail.rows.with_columns(pl.col("group_id").str.extract(r"^([^:?]*)").alias("kind"))

    def _kind(self, name: str) -> _Kind:
        if name not in self._kinds:
            rows = self._rows.filter(pl.col("kind") == name)
            nodes = rows.group_by("group_id", "collective_seq_id", maintain_order=True).agg(
                "content", pl.col("rank").first(), pl.col("record_id").first()
            )
            settled: dict[str, dict[int, tuple[int, int, Place]]] = defaultdict(dict)
            uses: Counter[int] = Counter()
            for group, seq, contents, rank, order in nodes.iter_rows():
                called = set(contents)
                uses.update(called)
                if len(called) == 1:
                    settled[group][seq] = (contents[0], len(contents), (rank, order))
            places = {content: (rank, order) for content, rank, order in rows.select("content", "rank", "record_id").iter_rows()}
            self._kinds[name] = _Kind(settled, uses, places)
        return self._kinds[name]

    def _by_parallel_groups(self, members: Sequence[RecordedCall], kind: _Kind) -> list[OddCall]:
        group, seq = members[0].group, members[0].seq
        own = {n: said[0] for n, said in kind.settled.get(group, {}).items() if seq - HISTORY <= n < seq}
        votes: Counter[int] = Counter()
        following: Counter[int] = Counter()
        places: dict[int, Place] = {}
        for other, said in kind.settled.items():
            if other == group or seq not in said:
                continue
            shared = [content == said[n][0] for n, content in own.items() if n in said]
            if len(shared) >= MIN_SHARED and all(shared):
                content, ranks, place = said[seq]
                votes[content] += ranks
                places.setdefault(content, place)
                if seq + 1 in said:
                    following[said[seq + 1][0]] += 1
        called = {call.content for call in members}
        if len(votes) != 1 or votes.total() < MIN_VOTES or not called & set(votes):
            return []
        due, count = next(iter(votes.items()))
        after = following.most_common(1)[0][0] if following else None
        peer = self._tail.call(*places[due])
        return [self._odd(call, peer, count, after, "ranks of parallel groups") for call in members if call.content != due]

    def _odd(self, call: RecordedCall, due: RecordedCall, votes: int, after: int | None, who: str) -> OddCall:
        is_next = (pl.col("rank") == call.rank) & (pl.col("group_id") == call.group) & (pl.col("collective_seq_id") == call.seq + 1)
        own_next = self._tail.rows.filter(is_next)["content"].to_list()
        sign = shift(call.content, own_next[0] if own_next else None, due.content, after)
        return OddCall(sign or difference(call, due), call, due, votes, who)

    def _by_habit(self, members: Sequence[RecordedCall], kind: _Kind) -> list[OddCall]:
        called = {call.content for call in members}
        usual = {content for content in called if kind.uses[content] > MIN_HABIT}
        if len(usual) != 1 or any(uses == 1 for content, uses in kind.uses.items() if content not in called):
            return []
        if any(kind.uses[content] > 1 for content in called - usual):
            return []
        due = next(iter(usual))
        peer = next(call for call in members if call.content == due)
        who = f"times before and elsewhere {peer.kind} groups"
        return [OddCall(difference(call, peer), call, peer, kind.uses[due] - 1, who) for call in members if call.content != due]
