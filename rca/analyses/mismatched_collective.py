"""Did a rank call another collective than its peers: other operation, shape or type, one too few, one too many?

1. At every call that is unfinished, or is a rank's last in its group, compare what the members called under the same group and
   `collective_seq_id`. The minority is odd. Shapes are compared only for operations that need them equal.
2. Two members cannot outvote each other, and a peer's dump may be missing. So the ranks that ran the same program until the last collective
   that all of them made (the anchor) are sisters; the first place where one rank's calls in a kind of group part from its sisters' names it,
   and says whether it skipped a call, added one, or called something else.
3. Equal calls hide a gap in the order inside one kind, so the order across kinds is compared too, where somebody waits: a rank that is
   awaited at a call, but has made a later one that all its sisters made only after it, skipped it; a rank alone at a call, where its sisters
   went on to another kind instead, added it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from rca.analyses._waits import Waits, build_waits, is_done
from rca.types import Cite, Finding, Sign, Tables

NEEDS = ("dumps", "collectives")
USES = ("memberships", "group_status")

_CAUSE = ("collective_mismatch",)
SIGNS = {
    "odd_size": Sign("mismatch", _CAUSE),
    "odd_dtype": Sign("mismatch", _CAUSE),
    "odd_op": Sign("mismatch", _CAUSE),
    "skipped_call": Sign("mismatch", _CAUSE),
    "extra_call": Sign("mismatch", _CAUSE),
    "pair_disagrees": Sign("mismatch", (*_CAUSE, "unknown")),
}

SAME_SHAPES = frozenset(
    {
        "all_reduce",
        "broadcast",
        "reduce",
        "_all_gather_base",
        "all_gather",
        "_reduce_scatter_base",
        "reduce_scatter",
        "allreduce_coalesced",
        "_broadcast_oop",
        "_reduce_oop",
    }
)
TAIL = 64  # calls of a rank in a group that are looked at, from the end
HISTORY = 32  # calls before the anchor that must agree for two ranks to be sisters
MIN_SISTERS = 3  # ranks that ran the same program, the odd one included
MAX_CITES = 6


@dataclass(frozen=True)
class _Call:
    rank: int
    group: str
    seq: int
    op: str
    sizes: str
    dtypes: str
    order: int
    evidence_id: str
    record: str

    @property
    def kind(self) -> str:
        return _kind(self.group)

    @property
    def content(self) -> tuple[str, str, str]:
        return (self.op, self.sizes, self.dtypes) if self.op in SAME_SHAPES else (self.op, "", "")

    def cite(self) -> Cite:
        return Cite(
            "collectives",
            self.evidence_id,
            "",
            self.record,
            f"rank {self.rank}: {self.op} #{self.seq} on {self.group} {self.sizes} {self.dtypes}",
        )


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding per odd rank (the earliest place it parts from its peers), or per pair that disagrees without a third to judge."""
    calls = _tail(case)
    odd, undecided = _against_members(case, calls)
    found = {
        **odd,
        **{f.ranks[0]: f for f in _against_sisters(calls, build_waits(case))},
    }  # sisters know more: they tell a skipped call from another one
    return [
        *(found[rank] for rank in sorted(found)),
        *(finding for pair, finding in undecided if not pair & set(found)),
    ]


def _tail(case: Tables) -> list[_Call]:
    calls = case.table("collectives").filter(
        pl.col("rank").is_not_null()
        & pl.col("collective_seq_id").is_not_null()
        & ~pl.col("is_p2p").fill_null(value=False)
        & (pl.col("op") != "coalesced")
    )
    rows = (
        calls.select("rank", "group_id", "collective_seq_id", "op", "sizes", "dtypes", "record_id", "evidence_id", "record")
        .sort("rank", "group_id", "collective_seq_id", "record_id")
        .group_by("rank", "group_id", maintain_order=True)
        .tail(TAIL)
        .collect()
    )
    return [_Call(r[0], r[1] or "?", r[2], r[3] or "?", r[4] or "", r[5] or "", r[6] or 0, r[7], r[8]) for r in rows.iter_rows()]


def _against_members(case: Tables, calls: Sequence[_Call]) -> tuple[dict[int, Finding], list[tuple[frozenset[int], Finding]]]:
    """Step 1."""
    unfinished = case.table("collectives").filter(pl.col("rank").is_not_null() & ~is_done().fill_null(value=False))
    live = set(unfinished.select("group_id", "collective_seq_id").unique().collect().iter_rows())
    last: dict[tuple[int, str], int] = {}
    at: dict[tuple[str, int], list[_Call]] = defaultdict(list)
    for call in calls:
        at[call.group, call.seq].append(call)
        last[call.rank, call.group] = max(call.seq, last.get((call.rank, call.group), 0))
    live |= {(group, seq) for (_, group), seq in last.items()}
    odd: dict[int, Finding] = {}
    undecided: list[tuple[frozenset[int], Finding]] = []
    for group, seq in sorted((k for k in live if k in at), key=str):
        members = at[group, seq]
        counts = Counter(call.content for call in members)
        if len(counts) < 2:
            continue
        (most, votes), *_ = counts.most_common()
        if votes * 2 > len(members) and votes >= 2:
            peer = next(c for c in members if c.content == most)
            for call in members:
                if call.content != most and call.rank not in odd:
                    odd[call.rank] = _finding(_difference(call, peer), call, peer, votes)
        else:
            pair = frozenset(c.rank for c in members)
            undecided.append((pair, _pair_finding(members)))
    return odd, undecided


def _difference(call: _Call, peer: _Call) -> str:
    return "odd_op" if call.op != peer.op else "odd_size" if call.sizes != peer.sizes else "odd_dtype"


def _finding(sign: str, call: _Call, peer: _Call, votes: int) -> Finding:
    what = {
        "odd_op": f"called {call.op} as #{call.seq} on {call.group}, where {votes} peers called {peer.op}",
        "odd_size": f"called {call.op} #{call.seq} on {call.group} with {call.sizes}, where {votes} peers called it with {peer.sizes}",
        "odd_dtype": f"called {call.op} #{call.seq} on {call.group} with {call.dtypes}, where {votes} peers called it with {peer.dtypes}",
        "skipped_call": f"left out {peer.op} {peer.sizes} in its {peer.kind} group, which {votes} peers made before {call.op} #{call.seq} on {call.group}",
        "extra_call": f"made {call.op} {call.sizes} as #{call.seq} on {call.group}, which none of {votes} peers made there",
    }[sign]
    numbers = {"awaited": {"group": call.group, "op": call.op, "seq": call.seq}, "peers": votes}
    return Finding(
        "mismatched_collective", sign, f"rank {call.rank} {what}", ranks=(call.rank,), groups=(call.group,),
        numbers=numbers, cites=(call.cite(), peer.cite()),
    )  # fmt: skip


def _pair_finding(members: Sequence[_Call]) -> Finding:
    said = "; ".join(f"rank {c.rank}: {c.op} {c.sizes} {c.dtypes}" for c in members[:MAX_CITES])
    call = members[0]
    return Finding(
        "mismatched_collective", "pair_disagrees", f"the members of {call.group} disagree at #{call.seq} and no third tells who is odd: {said}",
        groups=(call.group,), scope=f"{call.group} {call.seq}", numbers={"candidates": sorted(c.rank for c in members)},
        cites=tuple(c.cite() for c in members[:MAX_CITES]),
    )  # fmt: skip


Later = dict[int, dict[str, list[_Call]]]  # rank -> kind -> its calls after the anchor, in order


def _against_sisters(calls: Sequence[_Call], waits: Waits) -> list[Finding]:
    """Steps 2 and 3."""
    anchor = _anchor(calls)
    if anchor is None:
        return []
    start = {c.rank: c.order for c in calls if (c.group, c.seq) == anchor}
    after: Later = {rank: defaultdict(list) for rank in start}
    before: Later = {rank: defaultdict(list) for rank in start}
    for call in sorted(calls, key=lambda c: (c.rank, c.order)):
        if call.rank in start and call.order != start[call.rank]:
            (after if call.order > start[call.rank] else before)[call.rank][call.kind].append(call)
    classes: dict[Any, list[int]] = defaultdict(list)
    for rank in start:
        classes[tuple((k, tuple(c.content for c in v[-HISTORY:])) for k, v in sorted(before[rank].items()))].append(rank)
    found: dict[int, Finding] = {}
    for sisters in classes.values():
        if len(sisters) >= MIN_SISTERS:
            for finding in (*_parting(sorted(sisters), after), *_skipped(sisters, after, waits), *_added(sisters, after, waits)):
                found.setdefault(finding.ranks[0], finding)
    return list(found.values())


def _anchor(calls: Sequence[_Call]) -> tuple[str, int] | None:
    """The last collective that every rank made: in the group with the most ranks (of those, the first by name)."""
    reach: dict[str, dict[int, int]] = defaultdict(dict)
    for call in calls:
        reach[call.group][call.rank] = max(call.seq, reach[call.group].get(call.rank, 0))
    if not reach:
        return None
    group = max(sorted(reach), key=lambda g: len(reach[g]))
    ranks = reach[group]
    return (group, min(ranks.values())) if len(ranks) >= MIN_SISTERS else None


def _parting(sisters: Sequence[int], after: Mapping[int, Mapping[str, Sequence[_Call]]]) -> list[Finding]:
    """The first place where one sister's calls in a kind of group part from what most sisters called there."""
    found: dict[int, Finding] = {}
    for kind in sorted({k for rank in sisters for k in after[rank]}):
        lists = {rank: after[rank].get(kind, ()) for rank in sisters}
        for place in range(max(map(len, lists.values()))):
            here = {rank: v[place] for rank, v in lists.items() if len(v) > place and rank not in found}
            most, votes = _majority(here.values())
            if most is None:
                break
            for rank, call in here.items():
                if call.content != most.content:
                    found[rank] = _classified(call, lists[rank], place, most, _next(lists, place, most), votes)
    return list(found.values())


def _majority(calls: Iterable[_Call]) -> tuple[_Call | None, int]:
    every = list(calls)
    counts = Counter(call.content for call in every)
    if not counts:
        return None, 0
    content, votes = counts.most_common(1)[0]
    if votes < MIN_SISTERS - 1 or votes * 2 <= len(every):
        return None, 0
    return next(call for call in every if call.content == content), votes


def _next(lists: Mapping[int, Sequence[_Call]], place: int, most: _Call) -> tuple[str, str, str] | None:
    """What the sisters called after this place."""
    after = Counter(v[place + 1].content for v in lists.values() if len(v) > place + 1 and v[place].content == most.content)
    return after.most_common(1)[0][0] if after else None


def _classified(call: _Call, own: Sequence[_Call], place: int, most: _Call, following: tuple[str, str, str] | None, votes: int) -> Finding:
    """Skipped when it called what comes next, extra when its next call is what was due, else another call."""
    if following is not None and following != most.content and call.content == following:
        return _finding("skipped_call", call, most, votes)
    if len(own) > place + 1 and own[place + 1].content == most.content:
        return _finding("extra_call", call, most, votes)
    return _finding(_difference(call, most), call, most, votes)


def _skipped(sisters: Sequence[int], after: Later, waits: Waits) -> list[Finding]:
    """A sister awaited at the next call of a kind although it made a call that the others made only after that one."""
    found = []
    for node, late in sorted(waits.lagging.items(), key=str):
        kind = _kind(node[0])
        for rank in sorted(late & set(sisters)):
            place = len(after[rank].get(kind, ()))  # the call it did not make is the next of its kind
            others = [r for r in sisters if r != rank and len(after[r].get(kind, ())) > place]
            for other_kind, own in sorted(after[rank].items()):
                votes = [r for r in others if other_kind != kind and len(after[r].get(other_kind, ())) >= len(own)]
                if len(votes) >= MIN_SISTERS - 1 and all(
                    after[r][kind][place].order < after[r][other_kind][len(own) - 1].order for r in votes
                ):
                    found.append(_finding("skipped_call", own[-1], after[votes[0]][kind][place], len(votes)))
                    break
    return found


def _added(sisters: Sequence[int], after: Later, waits: Waits) -> list[Finding]:
    """A sister alone at a call, where the others, after the same calls of that kind, went on to another kind and made no more of this one."""
    found = []
    for rank in sorted(sisters):
        waiting = waits.first.get(rank)
        if waiting is None or waiting.is_p2p or waits.waiters()[waiting.node] != [rank]:
            continue
        own = next((c for c in after[rank].get(_kind(waiting.group_id), ()) if c.seq == waiting.seq and c.group == waiting.group_id), None)
        if own is None:
            continue
        place = after[rank][own.kind].index(own)
        votes = [r for r in sisters if r != rank and len(after[r].get(own.kind, ())) == place and _went_on(after[r], own.kind)]
        if len(votes) >= MIN_SISTERS - 1 and not any(len(after[r].get(own.kind, ())) > place for r in sisters if r != rank):
            found.append(_finding("extra_call", own, own, len(votes)))
    return found


def _went_on(later: Mapping[str, Sequence[_Call]], kind: str) -> bool:
    """Whether the last call after the anchor is of another kind."""
    last = max((c for calls in later.values() for c in calls), key=lambda c: c.order, default=None)
    return last is not None and last.kind != kind


def _kind(group: str) -> str:
    return group.partition(":")[0].partition("?")[0]


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
