"""Two members of a group that call differently: parallel groups, habit or nobody tell who is odd. And a call made out of turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pytest

from rca.analyses._call_records import OddCall, RecordedCall
from rca.analyses._call_sisters import _classes
from rca.analyses.mismatched_collective import _apart
from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES

Call = tuple[str, int, str, str]  # group, number in it, operation, sizes
USUAL, ODD, SHORT = "[8] -> [8]", "[9] -> [9]", "[4] -> [4]"
TURN = (USUAL, USUAL, SHORT)


def case(calls: Mapping[int, Sequence[Call]], *, done: Mapping[int, int] = {}) -> MemoryCase:
    """What each rank made, in order; `done`: how many of a rank's calls ended (else all but its last)."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ("dumps", "groups", "memberships", "collectives", "evidence")}
    users: dict[str, set[int]] = {}
    for rank, made in calls.items():
        of = {"evidence_id": f"fr-{rank}", "rank": rank}
        rows["evidence"].append({"evidence_id": of["evidence_id"], "path": of["evidence_id"], "is_stale": False})
        rows["dumps"].append({**of, "record": "E0", "backend": "nccl", "format": "pickle", "num_entries": len(made), "is_torn": False})
        for order, (group, seq, op, sizes) in enumerate(made):
            users.setdefault(group, set()).add(rank)
            state = "completed" if order < done.get(rank, len(made) - 1) else "scheduled"
            rows["collectives"].append(
                {**of, "record": f"E{order}", "record_id": order, "backend": "nccl", "group_id": group, "collective_seq_id": seq, "op": op,
                 "sizes": sizes, "is_p2p": False, "state": state, "is_retired": False, "is_tail": True}
            )  # fmt: skip
    for group, ranks in users.items():
        kind = group.partition(":")[0].partition("?")[0]
        rows["groups"].append({"evidence_id": "fr-0", "record": "E0", "group_id": group, "kind": kind, "size": len(ranks)})
        rows["memberships"] += [{"evidence_id": f"fr-{r}", "record": "E0", "rank": r, "group_id": group, "group_rank": r} for r in ranks]
    return MemoryCase({name: TABLES[name].rows(made) for name, made in rows.items()})


def pair(group: str, sizes: Sequence[str], op: str = "all_reduce") -> list[Call]:
    return [(group, number, op, size) for number, size in enumerate(sizes, start=1)]


def said(made: MemoryCase) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.sign, finding.ranks) for finding in ask(made, "mismatched_collective").findings]


@pytest.mark.parametrize(
    ("own", "other", "parallel", "expected"),
    [
        ([USUAL, SHORT] * 3 + [USUAL], [USUAL, SHORT] * 3 + [SHORT], [USUAL, SHORT] * 3 + [SHORT], [("odd_size", (0,))]),
        ([USUAL, SHORT] * 3 + [SHORT], [USUAL, SHORT] * 3 + [USUAL], [USUAL, SHORT] * 3 + [SHORT], [("odd_size", (1,))]),
        ([ODD] + [USUAL, SHORT] * 3, [SHORT] + [USUAL, SHORT] * 3, [SHORT] + [USUAL, SHORT] * 3, [("odd_size", (0,))]),  # enqueued ahead
        ([USUAL] * 7, [USUAL] * 6 + [SHORT], [SHORT] * 7, [("pair_disagrees", ())]),  # the others run another part of the program
        ([USUAL] * 6 + [ODD], [USUAL] * 7, [], [("odd_size", (0,))]),  # nobody else: habit
        ([USUAL] * 7, [USUAL] * 6 + [ODD], [], [("odd_size", (1,))]),
        ([ODD, *[USUAL] * 5, SHORT], [ODD, *[USUAL] * 6], [], [("pair_disagrees", ())]),  # a size that comes once is nothing new here
        ([USUAL, ODD], [USUAL, SHORT], [], [("pair_disagrees", ())]),
        ([*TURN * 3, *TURN], [*TURN * 3, USUAL, USUAL, USUAL], [], [("skipped_call", (1,))]),  # each third call is another one
        ([*TURN * 3, USUAL, SHORT], [*TURN * 3, USUAL, USUAL], [], [("extra_call", (0,))]),  # before its turn
        ([*TURN * 2, *TURN], [*TURN * 2, USUAL, USUAL, USUAL], [], [("pair_disagrees", ())]),  # one turn is no rule
        ([*TURN * 2, USUAL, *TURN, USUAL, USUAL, SHORT], [*TURN * 2, USUAL, *TURN, *[USUAL] * 3], [], [("pair_disagrees", ())]),
    ],
)
def test_who_of_two_is_odd(own: list[str], other: list[str], parallel: list[str], expected: list[tuple[str, tuple[int, ...]]]) -> None:
    calls = {0: pair("tp:0", own), 1: pair("tp:0", other)}
    calls |= {rank: pair("tp:1", parallel) for rank in (2, 3) if parallel}
    first = next(place for place, (one, two) in enumerate(zip(own, other, strict=True)) if one != two)
    assert said(case(calls, done={0: first, 1: first})) == expected


@pytest.mark.parametrize(
    ("function", "expected"), [("step", [("odd_size", (0,))]), ("eval", [("pair_disagrees", ())]), ("", [("odd_size", (0,))])]
)
def test_a_call_of_a_part_of_the_program_that_nobody_entered_before_is_no_stray_one(
    function: str, expected: list[tuple[str, tuple[int, ...]]]
) -> None:
    made = case({0: pair("tp:0", [*[USUAL] * 6, ODD]), 1: pair("tp:0", [USUAL] * 7)}, done={0: 6, 1: 6})
    is_odd = (pl.col("rank") == 0) & (pl.col("record_id") == 6)
    tables = {name: made.table(name).collect() for name in ("dumps", "groups", "memberships", "collectives", "evidence")}
    stack = pl.when(is_odd).then(pl.lit(function or None)).otherwise(pl.lit("step"))
    tables["collectives"] = tables["collectives"].with_columns(stack_id=stack)
    frames = [
        {"evidence_id": "fr-0", "record": "E0", "stack_id": name, "frames": [f"train:{name}", "train:main"]} for name in ("step", "eval")
    ]
    assert said(MemoryCase({**tables, "stack_frames": TABLES["stack_frames"].rows(frames)})) == expected


@pytest.mark.parametrize(("other", "kept"), [((17, USUAL), {2}), ((17, ODD), {0, 1, 2}), ((18, USUAL), {0, 1, 2}), (None, {0, 2})])
def test_a_call_that_a_pair_made_alike_accuses_neither(other: tuple[int, str] | None, kept: set[int]) -> None:
    """Both parted from the other ranks by it, as an evaluation of their own: of who of them is odd at the end it tells nothing."""

    def odd(rank: int, seq: int, sizes: str) -> OddCall:
        call = RecordedCall(rank, "tp:0", seq, "all_reduce", sizes, "", 31, 0, f"fr-{rank}", "E31")
        return OddCall("extra_call", call, call, 6)

    found = {0: odd(0, 17, USUAL), 2: odd(2, 17, USUAL)} | ({1: odd(1, *other)} if other else {})
    assert _apart(found, [frozenset({0, 1})]).keys() == kept
    assert _apart(found, []) == found


def test_two_calls_in_the_other_order_and_one_left_out_are_told_apart() -> None:
    due = [USUAL, SHORT, ODD, "[2] -> [2]"] * 3
    swapped = [*due[:8], due[9], due[8], *due[10:]]
    without = [*due[:8], *due[9:], due[0]]
    for own, sign in ((swapped, "odd_size"), (without, "skipped_call")):
        calls = {0: pair("tp:0", own), 1: pair("tp:0", due), 2: pair("tp:1", due), 3: pair("tp:1", due)}
        assert (sign, (0,)) in said(case(calls, done={0: 8, 1: 8}))


@pytest.mark.parametrize(("odd", "expected"), [({}, []), ({3: SHORT}, [("odd_size", (3,))])])
def test_one_name_for_several_groups_accuses_none_of_them(odd: dict[int, str], expected: list[tuple[str, tuple[int, ...]]]) -> None:
    """Dumps that tell a group's name and not its members: pipeline stages share it."""
    stages = {rank: ([USUAL] * 6, USUAL) if rank < 4 else ([SHORT] * 6, ODD) for rank in range(8)}
    calls = {rank: pair("tp?tp", [*before, odd.get(rank, last)]) for rank, (before, last) in stages.items()}
    assert said(case(calls)) == expected


@pytest.mark.parametrize(("others_too", "expected"), [(False, [("extra_call", (1,))]), (True, [])])
def test_a_call_out_of_turn(others_too: bool, expected: list[tuple[str, tuple[int, ...]]]) -> None:  # noqa: FBT001
    """Records too short for sisters: after the first call of the world all go on in their pairs, and one calls the world again."""
    world: list[Call] = [("world:0", 1, "all_reduce", USUAL)]
    calls = {rank: [*world, (f"tp:{rank // 2}", 1, "all_gather", USUAL)] for rank in range(6)}
    calls[1] = [*world, ("world:0", 2, "all_reduce", USUAL)]
    if others_too:
        calls[5] = [*world, ("world:0", 2, "all_reduce", USUAL)]
    assert said(case(calls, done=dict.fromkeys((0, 1), 1) | dict.fromkeys((2, 3, 4, 5), 1 if others_too else 2))) == expected


def test_all_to_all_with_uneven_sizes_is_one_call_and_stuck() -> None:
    calls = {rank: [("ep:0", 1, "all_to_all", USUAL), ("ep:0", 2, "all_to_all", f"[{rank}] -> [8]")] for rank in range(4)}
    (finding,) = ask(case(calls), "stuck_collective").findings
    assert (finding.sign, finding.groups) == ("all_arrived", ("ep:0",))


def test_sisters_are_of_one_stage() -> None:
    """Six ranks with one history in each kind of group; two stages that order forward and backward differently from then on."""
    rows = [{"rank": rank, "record_id": at, "start": 20, "kind": "tp", "content": at % 3} for rank in range(6) for at in range(20)]
    frame = pl.DataFrame(rows)
    assert _classes(frame, {}) == [[0, 1, 2, 3, 4, 5]]
    assert _classes(frame, {rank: rank // 3 for rank in range(6)}) == [[0, 1, 2], [3, 4, 5]]
    assert _classes(frame, {rank: rank % 3 for rank in range(6)}) == []  # two of a stage are no rule


@pytest.mark.parametrize(
    ("reached", "expected"),
    [
        ({1: 6}, [("skipped_call", (1,))]),
        ({1: 6, 2: 5}, []),  # two that differ: who is the rule nobody tells
        ({1: 3}, []),  # one that made fewer is behind, or made the common call too early
    ],
)
def test_who_had_gone_on_before_the_call_that_all_make_left_it_out(
    reached: dict[int, int], expected: list[tuple[str, tuple[int, ...]]]
) -> None:
    """Its short record begins in the step after: nothing of it can be laid beside what the others did, but the numbers of their common group."""
    calls = {rank: [*pair("dp:0", [SHORT] * reached.get(rank, 4))[-2:], ("world:0", 7, "barrier", USUAL)] for rank in range(4)}
    assert said(case(calls)) == expected
