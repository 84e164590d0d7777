"""Records of one thing are compared with the few that can be the same event, not with all: counted in calls, not in seconds."""

from __future__ import annotations

import cProfile
import pstats
from datetime import timedelta
from typing import Any

import pytest
from test_event_questions import NOON

from rca.case import MemoryCase
from rca.kernel_record import kernel_records
from rca.tables import TABLES


def _case(rows: list[dict[str, Any]]) -> MemoryCase:
    return MemoryCase({name: table.rows(rows if name == "kernel_events" else []) for name, table in TABLES.items()})


@pytest.mark.parametrize(
    ("told", "most"),
    [
        ({"kind": "oom"}, 1),  # every row of another process
        ({"kind": "xid", "code": 31, "gpu": "0000:1b:00"}, 1),
        ({"kind": "xid", "code": 74, "gpu": "0000:1b:00", "link": 3}, 1),
    ],
)
def test_rows_of_many_processes_are_hardly_compared(told: dict[str, Any], most: int) -> None:
    number = 500
    rows = [
        {"evidence_id": "k", "record": f"L{n}", "host": "host-a", "pid": 1000 + n, "message": f"killed {n}", "num_folded": 1, **told}
        | {"logged_at": NOON + timedelta(milliseconds=n)}
        for n in range(number)
    ]
    case = _case(rows)
    with cProfile.Profile() as profile:
        found = kernel_records(case)
    assert len(found) == number
    calls = {name: stat[1] for (_, _, name), stat in pstats.Stats(profile).stats.items()}  # type: ignore[attr-defined]
    assert calls.get("admits", 0) <= most * number


def test_a_row_that_tells_more_or_less_is_still_found_among_many() -> None:
    many = [
        {
            "evidence_id": "dmesg",
            "record": f"L{n}",
            "host": "host-a",
            "kind": "xid",
            "code": 74,
            "gpu": "0000:1b:00",
            "pid": 1000 + n,
            "link": 1,
        }
        | {"logged_at": NOON + timedelta(milliseconds=n), "message": f"NVLink {n}", "num_folded": 1}
        for n in range(200)
    ]
    less = [
        {**many[0], "evidence_id": "journal", "record": "L1", "link": None, "message": "NVLink 0 of the journal"},
        {**many[-1], "evidence_id": "syslog", "record": "L1", "pid": None, "message": "NVLink 199 of the syslog"},
    ]
    found = kernel_records(_case([*many, *less]))
    assert len(found) == 200
    assert min(record.row["pid"] for record in found if len(record.rows) > 1) == 1000
    assert sum(len(record.rows) for record in found) == 202
