"""Did a rank call another collective than its peers: other operation, shape or type, one too few, one too many?

1. At every call that is unfinished, or is a rank's last in its group, compare what the members called under the same group and
   `collective_seq_id`. The minority is odd. Shapes are compared only for operations that need them equal. Two members cannot outvote each other:
   then parallel groups and what was called before tell who is odd (_call_rivals).
2. A peer's dump may be missing. So the ranks that ran the same program until the last collective that all of them ended (the anchor) are
   sisters; the first place where one rank's calls in a kind of group part from its sisters' names it, and says whether it skipped a call, added
   one, or called something else. Not where all members of its group called the same there: stages of a pipeline end their last step by different
   calls (_call_sisters).
3. Equal calls hide a gap in the order inside one kind, so the order across kinds is compared too, where somebody waits: a rank that is
   awaited at a call, but has made a later one that all its sisters made only after it, skipped it; a rank alone at a call, where its
   sisters went on to another kind instead, added it.
4. Where that names nobody and all who are awaited wait themselves, as far as their calls are known, all that was recorded is compared, point to
   point too: ranks of a stage make the same call at the same number of recording (_program_order).
5. Where records are short, what all others made after one and the same call tells who made a call out of turn (_call_turns).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import polars as pl

from rca.analyses._call_records import Calls, OddCall, RecordedCall, difference, last_calls, recorded, shift
from rca.analyses._call_rivals import Rivals
from rca.analyses._call_sisters import MIN_SISTERS, against_sisters
from rca.analyses._call_turns import further_on, out_of_turn
from rca.analyses._layout import pipeline_places, stages
from rca.analyses._program_order import parted
from rca.analyses._wait_graph import Waits, group_kind, group_name
from rca.analyses._waits import build_waits
from rca.analyses._words import ranks_text
from rca.types import Finding, Sign, Tables

NEEDS = ("dumps", "collectives")
USES = ("memberships", "group_status", "groups", "ranks", "steps", "stack_frames")

_CAUSE = ("collective_mismatch",)
SIGNS = {
    "odd_size": Sign("mismatch", _CAUSE),
    "odd_dtype": Sign("mismatch", _CAUSE),
    "odd_op": Sign("mismatch", _CAUSE),
    "skipped_call": Sign("mismatch", _CAUSE),
    "extra_call": Sign("mismatch", _CAUSE),
    "pair_disagrees": Sign("mismatch", (*_CAUSE, "unknown")),
}

MAX_CITES = 6
LISTED = 6  # ranks named one by one in a sentence


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding per odd rank (the earliest place it parts from its peers), or per pair that disagrees without a third to judge."""
    waits = case.derive(build_waits)
    tail = last_calls(case, waits.torn)
    odd, undecided = _against_members(tail, waits)
    sisters = {one.call.rank: one for one in against_sisters(tail, waits, case.derive(pipeline_places))}
    pairs = [pair for pair, _ in undecided]
    found = {**odd, **_apart(sisters, pairs)}  # sisters know more: they tell a skipped call from another one
    whole = waits.read - waits.torn
    if (
        not found and waits.first and waits.awaited.keys() & whole <= waits.first.keys()
    ):  # all awaited of whom it is known wait: orders cross
        found = _apart({one.call.rank: one for one in _against_program(case, waits)}, pairs)
    if not found:
        found = _apart({one.call.rank: one for one in out_of_turn(tail, waits) or further_on(tail, waits)}, pairs)
    findings = [_finding(found[rank], waits) for rank in sorted(found)]
    return [*findings, *(finding for pair, finding in undecided if not pair & set(found))]


def _apart(found: dict[int, OddCall], pairs: Sequence[frozenset[int]]) -> dict[int, OddCall]:
    """Without members of a pair that disagrees who all parted from others by one call that they made alike: a part of the program of their own,
    which tells nothing of who of them is odd."""
    alike: set[int] = set()
    for pair in pairs:
        calls = [found[rank].call for rank in pair if rank in found]
        if len(calls) == len(pair) and len({(call.group, call.seq, call.op, call.sizes, call.dtypes) for call in calls}) == 1:
            alike |= pair
    return {rank: one for rank, one in found.items() if rank not in alike}


def _against_program(case: Tables, waits: Waits) -> list[OddCall]:
    """Step 4."""
    return [
        OddCall(one.sign, recorded(case, one.rank, one.order), recorded(case, one.peer, one.order), one.votes)
        for one in parted(case, stages(case), waits.torn)
        if one.rank in waits.first or one.rank in waits.awaited
    ]


def _against_members(tail: Calls, waits: Waits) -> tuple[dict[int, OddCall], list[tuple[frozenset[int], Finding]]]:
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
    odd: dict[int, OddCall] = {}
    undecided: list[tuple[frozenset[int], Finding]] = []
    rivals = Rivals(tail.case)
    for group, seq, _ in differing.iter_rows():
        calls = {call.rank: call for call in tail.at(group, seq)}
        kind = group_kind(group)
        for ranks in (
            rivals.alike(group, seq, kind) if group in waits.open_groups or "?" in group else [list(calls)]
        ):  # "?": known by name only
            members = [calls[rank] for rank in ranks if rank in calls]
            if len({call.content for call in members}) < 2:
                continue
            told = _by_majority(tail, members) or rivals.judge(group, seq, kind)
            for one in told:
                odd.setdefault(one.call.rank, one)
            if not told:
                undecided.append((frozenset(c.rank for c in members), _pair_finding(members)))
    return odd, undecided


def _by_majority(tail: Calls, members: Sequence[RecordedCall]) -> list[OddCall]:
    (most, votes), *_ = Counter(call.content for call in members).most_common()
    if votes * 2 <= len(members) or votes < MIN_SISTERS - 1:
        return []
    peer = next(call for call in members if call.content == most)
    due = tail.onward(peer.rank, peer.group, peer.seq)
    found = []
    for call in (call for call in members if call.content != most):
        sign = shift(tail.onward(call.rank, call.group, call.seq), due)
        found.append(
            OddCall(sign or difference(call, peer), call, peer, votes, "peers", tuple(sorted(c.rank for c in members if c.content == most)))
        )
    return found


def _finding(odd: OddCall, waits: Waits) -> Finding:
    call, due = odd.call, odd.due
    at, who = f"#{call.seq} of {waits.group(call.group)}", f"{odd.votes} {odd.who}{_listed(odd.peers)}"
    what = {
        "odd_op": f"called {call.op} as {at}, where {who} called {due.op}",
        "odd_size": f"called {call.op} {at} with {call.sizes}, where {who} called it with {due.sizes}",
        "odd_dtype": f"called {call.op} {at} with {call.dtypes}, where {who} called it with {due.dtypes}",
        "skipped_call": f"left out {due.op} {due.sizes} in {_own_group(waits, call.rank, due.kind)}, which {who} made before {call.op} {at}",
        "extra_call": f"made {call.op} {call.sizes} as {at}, which none of {who} made there",
    }[odd.sign]
    return Finding(
        "mismatched_collective", odd.sign, f"rank {call.rank} {what}", ranks=(call.rank,), groups=(call.group,),
        explains=_held_up(call, waits), numbers={"awaited": {"group": call.group, "op": call.op, "seq": call.seq}, "peers": odd.votes},
        cites=tuple(dict.fromkeys((call.cite(), due.cite()))),
    )  # fmt: skip


def _own_group(waits: Waits, rank: int, kind: str) -> str:
    """The rank's own group of a kind, with its members where just one such group is known."""
    own = [g for g, ranks in waits.members.items() if rank in ranks and group_kind(g) == kind and g not in waits.open_groups]
    return f"its {kind} group{_listed(sorted(waits.members[own[0]])) if len(own) == 1 else ''}"


def _listed(ranks: Sequence[int]) -> str:
    return f" ({ranks_text(ranks, LISTED)})" if ranks else ""


def _held_up(call: RecordedCall, waits: Waits) -> tuple[int, ...]:
    """The other members of the group, for whom the call could not end well, and all who wait for them."""
    members = set(waits.members.get(call.group, ()))
    return tuple(sorted((members | waits.behind({*members, call.rank})) - {call.rank}))


def _pair_finding(members: Sequence[RecordedCall]) -> Finding:
    said = "; ".join(f"rank {c.rank}: {c.op} {c.sizes} {c.dtypes}" for c in members[:MAX_CITES])
    call = members[0]
    says = f"the members of {group_name(call.group)} disagree at #{call.seq} and no third tells who is odd: {said}"
    return Finding(
        "mismatched_collective", "pair_disagrees", says, groups=(call.group,), scope=f"{call.group} {call.seq}",
        numbers={"candidates": sorted(c.rank for c in members)}, cites=tuple(c.cite() for c in members[:MAX_CITES]),
    )  # fmt: skip


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
