"""Did a rank call another collective than its peers: other operation, shape or type, one too few, one too many?

1. At every call that is unfinished, or is a rank's last in its group, compare what the members called under the same group and
   `collective_seq_id`. The minority is odd. Shapes are compared only for operations that need them equal.
2. Two members cannot outvote each other, and a peer's dump may be missing. So the ranks that ran the same program until the last
   collective that all of them made (the anchor) are sisters; the first place where one rank's calls in a kind of group part from its
   sisters' names it, and says whether it skipped a call, added one, or called something else. Not where all members of its group called the same
   there: stages of a pipeline end their last step by different calls.
3. Equal calls hide a gap in the order inside one kind, so the order across kinds is compared too, where somebody waits: a rank that is
   awaited at a call, but has made a later one that all its sisters made only after it, skipped it; a rank alone at a call, where its
   sisters went on to another kind instead, added it.
4. Where that names nobody and all who are awaited wait themselves, all that was recorded is compared, point to point too: ranks of a stage
   make the same call at the same number of recording (_program_order).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import polars as pl

from rca.analyses._layout import stages
from rca.analyses._program_order import parted
from rca.analyses._wait_graph import Waits, group_kind
from rca.analyses._waits import build_waits, is_done
from rca.types import Cite, Finding, Sign, Tables

NEEDS = ("dumps", "collectives")
USES = ("memberships", "group_status", "groups", "ranks", "steps")

_CAUSE = ("collective_mismatch",)
SIGNS = {
    "odd_size": Sign("mismatch", _CAUSE),
    "odd_dtype": Sign("mismatch", _CAUSE),
    "odd_op": Sign("mismatch", _CAUSE),
    "skipped_call": Sign("mismatch", _CAUSE),
    "extra_call": Sign("mismatch", _CAUSE),
    "pair_disagrees": Sign("mismatch", (*_CAUSE, "unknown")),
}

SAME_SHAPES = (
    "all_reduce", "allreduce_coalesced", "broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "all_gather", "_all_gather_base",
    "reduce_scatter", "_reduce_scatter_base",
)  # fmt: skip
HISTORY = 32  # calls before the anchor that must agree for two ranks to be sisters
MIN_OVERLAP = 0.75  # of the longer history that the shorter one must reach
MIN_LOOK = 16  # calls, of all kinds: the like of a step or two
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
    content: int  # equal numbers: the same call as far as it must be the same
    evidence_id: str
    record: str

    @property
    def kind(self) -> str:
        return group_kind(self.group)

    def cite(self) -> Cite:
        text = f"rank {self.rank}: {self.op} #{self.seq} on {self.group} {self.sizes} {self.dtypes}"
        return Cite("collectives", self.evidence_id, "", self.record, text)


Later = Mapping[int, Mapping[str, Sequence[int]]]  # rank -> kind -> numbers
_Program = list[tuple[str, int]]  # kind of group and content of a rank's last calls before the anchor, in order


@dataclass(frozen=True)
class _Tail:
    """The last collectives of every rank: numbers only; the words of a call are fetched when a finding needs them."""

    rows: pl.DataFrame  # rank, group_id, collective_seq_id, record_id, content, open; sorted by rank and order of recording
    case: Tables

    def call(self, rank: int, order: int) -> _Call:
        """One call, by its place in the rank's recording."""
        return self._calls((pl.col("rank") == rank) & (pl.col("record_id") == order))[0]

    def _calls(self, which: pl.Expr) -> list[_Call]:
        texts = ("op", "sizes", "dtypes", "evidence_id", "record")
        words = self.case.table("collectives", where="is_tail").filter(which).select("rank", "record_id", *texts).collect()
        rows = self.rows.filter(which).join(words, on=["rank", "record_id"], how="left", maintain_order="left")
        return [
            _Call(r["rank"], r["group_id"], r["collective_seq_id"], r["op"] or "?", r["sizes"] or "", r["dtypes"] or "", r["record_id"],
                  r["content"], r["evidence_id"], r["record"])
            for r in rows.iter_rows(named=True)
        ]  # fmt: skip

    def at(self, group: str, seq: int) -> list[_Call]:
        """What every member called there."""
        return self._calls((pl.col("group_id") == group) & (pl.col("collective_seq_id") == seq))


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding per odd rank (the earliest place it parts from its peers), or per pair that disagrees without a third to judge."""
    waits = case.derive(build_waits)
    tail = _tail(case, waits.torn)
    odd, undecided = _against_members(tail)
    sisters = {f.ranks[0]: f for f in _against_sisters(tail, waits)}
    found = {**odd, **sisters}  # sisters know more: they tell a skipped call from another one
    if not found and waits.first and waits.awaited.keys() <= waits.first.keys():  # all who are awaited wait themselves: orders cross
        found = {f.ranks[0]: f for f in _against_program(case, waits)}
    found = {rank: replace(f, explains=_held_up(f, waits)) for rank, f in found.items()}
    return [*(found[rank] for rank in sorted(found)), *(finding for pair, finding in undecided if not pair & set(found))]


def _against_program(case: Tables, waits: Waits) -> list[Finding]:
    """Step 4."""
    found = []
    for one in parted(case, stages(case), waits.torn):
        if one.rank in waits.first or one.rank in waits.awaited:
            call, due = _recorded(case, one.rank, one.order), _recorded(case, one.peer, one.order)
            found.append(_finding(one.sign, call, due, one.votes))
    return found


def _recorded(case: Tables, rank: int, order: int) -> _Call:
    """A call by its number of recording, wherever in the record it stands."""
    row = case.table("collectives").filter((pl.col("rank") == rank) & (pl.col("record_id") == order)).collect().row(0, named=True)
    seq = row["p2p_seq_id"] if row["is_p2p"] else row["collective_seq_id"]
    return _Call(
        rank, row["group_id"] or "?", seq if seq is not None else -1, row["op"] or "?", row["sizes"] or "", row["dtypes"] or "", order, 0,
        row["evidence_id"], row["record"],
    )  # fmt: skip


def _held_up(finding: Finding, waits: Waits) -> tuple[int, ...]:
    """The other members of the group, for whom the call could not end well, and all who wait for them."""
    members = {rank for group in finding.groups for rank in waits.members.get(group, ())}
    return tuple(sorted((members | waits.behind({*members, *finding.ranks})) - set(finding.ranks)))


def _tail(case: Tables, torn: frozenset[int]) -> _Tail:
    same = pl.col("op").is_in(SAME_SHAPES)
    content = pl.struct("op", pl.when(same).then("sizes"), pl.when(same).then("dtypes"))
    rows = (
        case.table("collectives", where="is_tail")
        .filter(~pl.col("rank").is_in(list(torn)))  # their last calls are missing
        .filter(pl.col("rank").is_not_null() & pl.col("record_id").is_not_null() & pl.col("collective_seq_id").is_not_null())
        .filter(~pl.col("is_p2p").fill_null(value=False) & (pl.col("op") != "coalesced").fill_null(value=True))
        .select(
            "rank",
            pl.col("group_id").fill_null("?"),
            "collective_seq_id",
            "record_id",
            content.rank("dense").cast(pl.Int64).alias("content"),
            (~is_done().fill_null(value=False)).alias("open"),
        )
        .sort("rank", "record_id")
        .collect()
    )
    return _Tail(rows, case)


def _against_members(tail: _Tail) -> tuple[dict[int, Finding], list[tuple[frozenset[int], Finding]]]:
    """Step 1."""
    rows = tail.rows.with_columns(pl.col("collective_seq_id").max().over("rank", "group_id").alias("last"))
    live = rows.filter(pl.col("open") | (pl.col("collective_seq_id") == pl.col("last"))).select("group_id", "collective_seq_id").unique()
    differing = (
        rows.join(live, on=["group_id", "collective_seq_id"], how="semi")
        .group_by("group_id", "collective_seq_id")
        .agg(pl.col("content").n_unique().alias("n"))
        .filter(pl.col("n") > 1)
        .sort("collective_seq_id", "group_id")
    )
    odd: dict[int, Finding] = {}
    undecided: list[tuple[frozenset[int], Finding]] = []
    for group, seq, _ in differing.iter_rows():
        members = tail.at(group, seq)
        (most, votes), *_ = Counter(call.content for call in members).most_common()
        if votes * 2 > len(members) and votes >= MIN_SISTERS - 1:
            peer = next(c for c in members if c.content == most)
            for call in members:
                if call.content != most:
                    odd.setdefault(call.rank, _finding(_difference(call, peer), call, peer, votes, who="peers"))
        else:
            undecided.append((frozenset(c.rank for c in members), _pair_finding(members)))
    return odd, undecided


def _difference(call: _Call, peer: _Call) -> str:
    return "odd_op" if call.op != peer.op else "odd_size" if call.sizes != peer.sizes else "odd_dtype"


def _finding(sign: str, call: _Call, peer: _Call, votes: int, *, who: str = "sister ranks") -> Finding:
    at = f"#{call.seq} on {call.group}"
    what = {
        "odd_op": f"called {call.op} as {at}, where {votes} {who} called {peer.op}",
        "odd_size": f"called {call.op} {at} with {call.sizes}, where {votes} {who} called it with {peer.sizes}",
        "odd_dtype": f"called {call.op} {at} with {call.dtypes}, where {votes} {who} called it with {peer.dtypes}",
        "skipped_call": f"left out {peer.op} {peer.sizes} in its {peer.kind} group, which {votes} {who} made before {call.op} {at}",
        "extra_call": f"made {call.op} {call.sizes} as {at}, which none of {votes} {who} made there",
    }[sign]
    numbers = {"awaited": {"group": call.group, "op": call.op, "seq": call.seq}, "peers": votes}
    cites = tuple(dict.fromkeys((call.cite(), peer.cite())))
    return Finding(
        "mismatched_collective", sign, f"rank {call.rank} {what}", ranks=(call.rank,), groups=(call.group,), numbers=numbers, cites=cites
    )


def _pair_finding(members: Sequence[_Call]) -> Finding:
    said = "; ".join(f"rank {c.rank}: {c.op} {c.sizes} {c.dtypes}" for c in members[:MAX_CITES])
    call = members[0]
    says = f"the members of {call.group} disagree at #{call.seq} and no third tells who is odd: {said}"
    return Finding(
        "mismatched_collective", "pair_disagrees", says, groups=(call.group,), scope=f"{call.group} {call.seq}",
        numbers={"candidates": sorted(c.rank for c in members)}, cites=tuple(c.cite() for c in members[:MAX_CITES]),
    )  # fmt: skip


def _against_sisters(tail: _Tail, waits: Waits) -> list[Finding]:
    """Steps 2 and 3."""
    anchor = _anchor(tail.rows)
    if anchor is None:
        return []
    start = tail.rows.filter((pl.col("group_id") == anchor[0]) & (pl.col("collective_seq_id") == anchor[1]))
    rows = tail.rows.join(start.select("rank", pl.col("record_id").alias("start")), on="rank", how="inner").with_columns(
        pl.col("group_id").str.extract(r"^([^:?]*)").alias("kind")
    )
    node = ("group_id", "collective_seq_id")
    agreed = (pl.len().over(node) > 1) & (pl.col("content").n_unique().over(node) == 1)
    later = (
        rows.with_columns(agreed=agreed)
        .filter(pl.col("record_id") > pl.col("start"))
        .group_by("rank", "kind", maintain_order=True)
        .agg("record_id", "content", "agreed")
    )
    cut = _cut_kinds(rows)
    orders: dict[int, dict[str, list[int]]] = {rank: {} for rank in start["rank"].to_list()}
    contents: dict[int, dict[str, list[int]]] = {rank: {} for rank in orders}
    settled: dict[int, dict[str, list[bool]]] = {rank: {} for rank in orders}  # whether the members of the group agree there
    for rank, kind, order, content, agrees in later.iter_rows():
        if kind not in cut:
            orders[rank][kind], contents[rank][kind], settled[rank][kind] = order, content, agrees
    found: dict[int, Finding] = {}
    for sisters in _classes(rows):
        steps = (
            _parting(sisters, orders, contents, settled, tail),
            _skipped(sisters, orders, waits, tail),
            _added(sisters, orders, waits, tail),
        )
        for finding in (f for step in steps for f in step):
            found.setdefault(finding.ranks[0], finding)
    return list(found.values())


def _cut_kinds(rows: pl.DataFrame) -> frozenset[str]:
    """Kinds of groups in which some rank's calls since the anchor are not all here (evicted, or more than a tail): not to be counted."""
    reach = rows.group_by("rank", "kind", "group_id").agg(
        (pl.col("record_id") < pl.col("start")).any().alias("before"), pl.col("collective_seq_id").min().alias("first")
    )
    return frozenset(reach.filter(~pl.col("before") & (pl.col("first") > 1))["kind"].unique().to_list())


def _anchor(rows: pl.DataFrame) -> tuple[str, int] | None:
    """The last collective that every rank made: in the group with the most ranks (of those, the first by name)."""
    reach = rows.group_by("group_id", "rank").agg(pl.col("collective_seq_id").max().alias("made"))
    groups = reach.group_by("group_id").agg(pl.len().alias("n"), pl.col("made").min()).sort(["n", "group_id"], descending=[True, False])
    if not groups.height or groups["n"][0] < MIN_SISTERS:
        return None
    return groups["group_id"][0], groups["made"][0]


def _classes(rows: pl.DataFrame) -> list[list[int]]:
    """Ranks that made the same last calls before the anchor, where at least MIN_SISTERS did."""
    before = rows.filter(pl.col("record_id") < pl.col("start")).sort("rank", "record_id").group_by("rank", maintain_order=True)
    same = before.agg("kind", "content").group_by("kind", "content").agg(pl.col("rank").sort())  # most ranks of a stage: looked at once
    programs = [(list(zip(kind, content, strict=True)), ranks) for kind, content, ranks in same.iter_rows()]
    met = {rank for _, ranks in programs for rank in ranks}
    programs.append(([], sorted(set(rows["rank"].unique().to_list()) - met)))
    classes: list[tuple[_Program, dict[str, list[int]], list[int]]] = []
    for program, ranks in sorted((one for one in programs if one[1]), key=lambda one: (-len(one[0]), one[1])):
        kinds = _by_kind(program)
        own = next((mine for longer, other, mine in classes if other == kinds or _is_longer_look(longer, program)), None)
        if own is None:
            classes.append((program, kinds, ranks))
        else:
            own.extend(ranks)
    return [sorted(ranks) for _, _, ranks in classes if len(ranks) >= MIN_SISTERS]


def _by_kind(program: _Program) -> dict[str, list[int]]:
    """The last calls in each kind of group; the order across kinds may differ from rank to rank."""
    found: dict[str, list[int]] = defaultdict(list)
    for kind, content in program:
        found[kind].append(content)
    return {kind: contents[-HISTORY:] for kind, contents in found.items()}


def _is_longer_look(longer: _Program, shorter: _Program) -> bool:
    """Whether the one history only reaches further back: a ring keeps a few more old calls of a rank that stopped early."""
    return len(shorter) >= max(MIN_LOOK, MIN_OVERLAP * len(longer)) and longer[-len(shorter) :] == shorter


def _parting(
    sisters: Sequence[int], orders: Later, contents: Later, settled: Mapping[int, Mapping[str, Sequence[bool]]], tail: _Tail
) -> list[Finding]:
    """The first place where one sister's calls in a kind of group part from what most sisters called there."""
    found: dict[int, Finding] = {}
    for kind in sorted({k for rank in sisters for k in contents[rank]}):
        lists = {rank: contents[rank].get(kind, ()) for rank in sisters}
        if len({tuple(v) for v in lists.values()}) == 1:
            continue  # all alike
        elsewhere: set[int] = set()  # ranks that go on as their group does, which is not as most sisters do
        for place in range(max(map(len, lists.values()))):
            here = {rank: v[place] for rank, v in lists.items() if len(v) > place and rank not in found and rank not in elsewhere}
            most, votes = _majority(list(here.values()))
            if most is None:
                break
            for rank, content in here.items():
                if content != most and settled[rank][kind][place]:
                    elsewhere.add(rank)
                elif content != most:
                    peer = next(r for r, c in here.items() if c == most)
                    sign = _sign(lists[rank], place, most, _next(lists, place, most))
                    call, due = tail.call(rank, orders[rank][kind][place]), tail.call(peer, orders[peer][kind][place])
                    found[rank] = _finding(sign or _difference(call, due), call, due, votes)
    return list(found.values())


def _majority(contents: Sequence[int]) -> tuple[int | None, int]:
    """What more than half called, at least two; else None."""
    if not contents:
        return None, 0
    content, votes = Counter(contents).most_common(1)[0]
    return (content, votes) if votes >= MIN_SISTERS - 1 and votes * 2 > len(contents) else (None, 0)


def _next(lists: Mapping[int, Sequence[int]], place: int, most: int) -> int | None:
    """What the sisters called after this place."""
    after = Counter(v[place + 1] for v in lists.values() if len(v) > place + 1 and v[place] == most)
    return after.most_common(1)[0][0] if after else None


def _sign(own: Sequence[int], place: int, due: int, following: int | None) -> str | None:
    """Skipped when it called what comes next, extra when its next call is what was due, else None: it called something else."""
    if following is not None and following != due and own[place] == following:
        return "skipped_call"
    if len(own) > place + 1 and own[place + 1] == due:
        return "extra_call"
    return None


def _skipped(sisters: Sequence[int], orders: Later, waits: Waits, tail: _Tail) -> list[Finding]:
    """A sister awaited at the next call of a kind although it made a call that the others made only after that one."""

    @cache  # thousands may be awaited at the same call
    def ahead(kind: str, place: int) -> list[int]:
        return [r for r in sisters if len(orders[r].get(kind, ())) > place]

    @cache
    def agreed(kind: str, place: int, other: str, last: int) -> list[int]:
        votes = [r for r in ahead(kind, place) if len(orders[r].get(other, ())) > last]
        return votes if len(votes) >= MIN_SISTERS - 1 and all(orders[r][kind][place] < orders[r][other][last] for r in votes) else []

    found = []
    for rank in (r for r in sisters if r in waits.awaited):
        for kind in sorted({group_kind(node[0]) for node in waits.awaited[rank] if not isinstance(node[1], str)}):
            place = len(orders[rank].get(kind, ()))  # the call it did not make is the next of its kind
            for other, own in sorted(orders[rank].items()):
                if votes := agreed(kind, place, other, len(own) - 1) if other != kind else []:
                    due = tail.call(votes[0], orders[votes[0]][kind][place])
                    found.append(_finding("skipped_call", tail.call(rank, own[-1]), due, len(votes)))
                    break
    return found


def _added(sisters: Sequence[int], orders: Later, waits: Waits, tail: _Tail) -> list[Finding]:
    """A sister alone at a call, where the others, after the same calls of that kind, went on to another kind and made no more of this one."""
    found = []
    for rank in sisters:
        waiting = waits.first.get(rank)
        if waiting is None or waiting.is_p2p or waits.waiters[waiting.node] != [rank]:
            continue
        if not waits.members.get(waiting.group_id, frozenset()) <= waits.read - waits.torn or waiting.group_id in waits.open_groups:
            continue  # a member whose calls are not all known may be the one that did join
        kind = group_kind(waiting.group_id)
        own = orders[rank].get(kind, ())
        calls = [call for call in tail.at(waiting.group_id, waiting.seq or 0) if call.rank == rank and call.order in own]
        if not calls:
            continue
        place = list(own).index(calls[0].order)
        others = [r for r in sisters if r != rank]
        votes = [r for r in others if len(orders[r].get(kind, ())) == place and _is_ahead(orders[r], orders[rank], kind)]
        if len(votes) >= MIN_SISTERS - 1 and not any(len(orders[r].get(kind, ())) > place for r in others):
            found.append(_finding("extra_call", calls[0], calls[0], len(votes)))
    return found


def _is_ahead(orders: Mapping[str, Sequence[int]], own: Mapping[str, Sequence[int]], kind: str) -> bool:
    """Whether a sister has made more calls than the rank in another kind of group: it has gone on, and is not merely behind."""
    return any(len(made) > len(own.get(other, ())) for other, made in orders.items() if other != kind)


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
