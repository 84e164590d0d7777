"""A stuck call that one member's GPU never began: that GPU is held up by what it was given before."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest

from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES

RANKS = range(4)
AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def case(states: list[str]) -> MemoryCase:
    """Four ranks in one call of the world; `states` as their recorders say."""
    of = [{"evidence_id": f"fr-{r}", "record": "E0", "rank": r} for r in RANKS]
    call: dict[str, Any] = {
        "backend": "nccl",
        "group_id": "world:0",
        "collective_seq_id": 7,
        "op": "all_reduce",
        "sizes": "[8] -> [8]",
        "is_p2p": False,
    }
    rows = {
        "dumps": [{**one, "backend": "nccl", "format": "pickle", "num_entries": 1, "is_torn": False} for one in of],
        "groups": [{"evidence_id": "fr-0", "record": "E0", "group_id": "world:0", "kind": "world", "size": len(RANKS)}],
        "memberships": [{**one, "group_id": "world:0", "group_rank": r} for r, one in zip(RANKS, of, strict=True)],
        "collectives": [
            {**one, **call, "state": state, "is_retired": False, "is_tail": True} for one, state in zip(of, states, strict=True)
        ],
        "evidence": [{"evidence_id": one["evidence_id"], "path": one["evidence_id"], "is_stale": False} for one in of],
    }
    return MemoryCase({name: TABLES[name].rows(made) for name, made in rows.items()})


@pytest.mark.parametrize(
    ("states", "sign", "ranks"),
    [
        (["started", "scheduled", "started", "started"], "never_began", (1,)),
        (["started", "scheduled", "scheduled", "started"], "all_arrived", ()),
        (["scheduled"] * 4, "all_arrived", ()),  # starts are not recorded
        (["started"] * 4, "all_arrived", ()),
    ],
)
def test_the_one_gpu_that_never_began_it(states: list[str], sign: str, ranks: tuple[int, ...]) -> None:
    (finding,) = ask(case(states), "stuck_collective").findings
    assert (finding.sign, finding.ranks) == (sign, ranks)


@pytest.mark.parametrize("state", ["scheduled", "started"])
def test_a_gpu_that_never_began_a_call_of_its_own_keeps_the_others_waiting(state: str) -> None:
    shared = case(["started", "scheduled", "started", "started"]).frames
    mine = {
        "evidence_id": "fr-1",
        "rank": 1,
        "backend": "nccl",
        "group_id": "tp:1",
        "op": "all_gather",
        "is_p2p": False,
        "is_retired": False,
    }
    own = [
        {
            **mine,
            "record": "E8",
            "record_id": 8,
            "collective_seq_id": 2,
            "state": "completed",
            "started_at": AT,
            "completed_at": AT,
            "is_tail": True,
        },
        {**mine, "record": "E9", "record_id": 9, "collective_seq_id": 3, "state": state, "is_tail": True},
    ]
    alone = {
        "groups": [{"evidence_id": "fr-1", "record": "E0", "group_id": "tp:1", "kind": "tp", "size": 1}],
        "memberships": [{"evidence_id": "fr-1", "record": "E0", "rank": 1, "group_id": "tp:1", "group_rank": 0}],
        "collectives": own,
    }
    later = shared["collectives"].with_columns(record_id=pl.lit(10, pl.Int64))
    frames = {**shared, "collectives": later}
    case_ = MemoryCase(
        {name: pl.concat([frame, TABLES[name].rows(alone[name])]) if name in alone else frame for name, frame in frames.items()}
    )
    assert [(f.sign, f.ranks) for f in ask(case_, "stuck_collective").findings] == ([("never_began", (1,))] if state == "scheduled" else [])


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        ({0: 3, 1: 2, 2: 3, 3: 3}, [("never_began", (1,))]),
        ({0: 3, 1: 2, 2: 2, 3: 3}, [("all_arrived", ())]),  # two of them: neither is the one
        ({0: 2, 1: 2, 2: 2, 3: 2}, [("all_arrived", ())]),  # starts are not counted
    ],
)
def test_counters_tell_it_where_the_records_no_longer_hold_the_call(
    begun: dict[int, int], expected: list[tuple[str, tuple[int, ...]]]
) -> None:
    shared = {name: case(["scheduled"] * 4).table(name).collect() for name in ("dumps", "groups", "memberships", "collectives", "evidence")}
    counters = [
        {
            "evidence_id": f"fr-{r}",
            "record": "S0",
            "rank": r,
            "group_id": "world:0",
            "last_enqueued": 7,
            "last_started": n,
            "last_completed": 2,
        }
        for r, n in begun.items()
    ]
    found = ask(MemoryCase({**shared, "group_status": TABLES["group_status"].rows(counters)}), "stuck_collective").findings
    assert [(f.sign, f.ranks) for f in found] == expected


@pytest.mark.parametrize(("finished", "signs"), [(6, ["all_arrived"]), (3, [])])
def test_records_that_begin_behind_the_call_that_holds_them_show_no_stuck_one(finished: int, signs: list[str]) -> None:
    """`finished` = last call that the counters of all ranks tell as ended; the records begin at #7."""
    shared = {name: case(["scheduled"] * 4).table(name).collect() for name in ("dumps", "groups", "memberships", "collectives", "evidence")}
    counters = [
        {
            "evidence_id": f"fr-{r}",
            "record": "S0",
            "rank": r,
            "group_id": "world:0",
            "counts": "collectives",
            "last_enqueued": 7,
            "last_started": -1,
            "last_completed": finished,
        }
        for r in RANKS
    ]
    found = ask(MemoryCase({**shared, "group_status": TABLES["group_status"].rows(counters)}), "stuck_collective").findings
    assert [f.sign for f in found] == signs
