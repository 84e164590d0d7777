"""Ranks that ran the same program until a collective that all made (the anchor) are sisters: where does one part from the others after it?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache

import polars as pl

from rca.analyses._call_records import Calls, OddCall, difference, group_kind_of, shift
from rca.analyses._wait_graph import Waits, group_kind

__all__ = ["HISTORY", "MIN_SISTERS", "against_sisters"]

HISTORY = 32  # calls before the anchor that must agree for two ranks to be sisters
MIN_OVERLAP = 0.75  # of the longer history that the shorter one must reach
MIN_LOOK = 16  # calls, of all kinds: the like of a step or two
MIN_SISTERS = 3  # ranks that ran the same program, the odd one included

Later = Mapping[int, Mapping[str, Sequence[int]]]  # rank -> kind -> numbers
_Program = list[tuple[str, int]]  # kind of group and content of a rank's last calls before the anchor, in order


def against_sisters(tail: Calls, waits: Waits, places: Mapping[int, int]) -> list[OddCall]:
    """Steps 2 and 3 of mismatched_collective: one per odd rank. `places` in their pipelines: stages order forward and backward passes differently."""
    anchor = _anchor(tail.rows)
    if anchor is None:
        return []
    start = tail.rows.filter((pl.col("group_id") == anchor[0]) & (pl.col("collective_seq_id") == anchor[1]))
    rows = tail.rows.join(start.select("rank", pl.col("record_id").alias("start")), on="rank", how="inner").with_columns(
        group_kind_of().alias("kind")
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
    found: dict[int, OddCall] = {}
    for sisters in _classes(rows, places):
        steps = (
            _parting(sisters, orders, contents, settled, tail),
            _skipped(sisters, orders, waits, tail),
            _added(sisters, orders, waits, tail),
        )
        for odd in (one for step in steps for one in step):
            found.setdefault(odd.call.rank, odd)
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


def _classes(rows: pl.DataFrame, places: Mapping[int, int]) -> list[list[int]]:
    """Ranks of one pipeline stage that made the same last calls before the anchor, where at least MIN_SISTERS did."""
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
    stages: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, (_, _, ranks) in enumerate(classes):
        for rank in sorted(ranks):
            stages[number, places.get(rank, 0)].append(rank)
    return [ranks for ranks in stages.values() if len(ranks) >= MIN_SISTERS]


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
    sisters: Sequence[int], orders: Later, contents: Later, settled: Mapping[int, Mapping[str, Sequence[bool]]], tail: Calls
) -> list[OddCall]:
    """The first place where one sister's calls in a kind of group part from what most sisters called there."""
    found: dict[int, OddCall] = {}
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
                    peer = max((r for r, c in here.items() if c == most), key=lambda r: (len(lists[r]), -r))
                    sign = shift(lists[rank][place:], lists[peer][place:])
                    call, due = tail.call(rank, orders[rank][kind][place]), tail.call(peer, orders[peer][kind][place])
                    peers = tuple(sorted(r for r, c in here.items() if c == most))
                    found[rank] = OddCall(sign or difference(call, due), call, due, votes, peers=peers)
    return list(found.values())


def _majority(contents: Sequence[int]) -> tuple[int | None, int]:
    """What more than half called, at least two; else None."""
    if not contents:
        return None, 0
    content, votes = Counter(contents).most_common(1)[0]
    return (content, votes) if votes >= MIN_SISTERS - 1 and votes * 2 > len(contents) else (None, 0)


def _skipped(sisters: Sequence[int], orders: Later, waits: Waits, tail: Calls) -> list[OddCall]:
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
                    found.append(OddCall("skipped_call", tail.call(rank, own[-1]), due, len(votes), peers=tuple(sorted(votes))))
                    break
    return found


def _added(sisters: Sequence[int], orders: Later, waits: Waits, tail: Calls) -> list[OddCall]:
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
            found.append(OddCall("extra_call", calls[0], calls[0], len(votes), peers=tuple(sorted(votes))))
    return found


def _is_ahead(orders: Mapping[str, Sequence[int]], own: Mapping[str, Sequence[int]], kind: str) -> bool:
    """Whether a sister has made more calls than the rank in another kind of group: it has gone on, and is not merely behind."""
    return any(len(made) > len(own.get(other, ())) for other, made in orders.items() if other != kind)
