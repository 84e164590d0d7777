"""Dumps and stacks of an older incident beside the files of the one at hand: all below their folder is left out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rca.case import MemoryCase
from rca.old_captures import old_captures
from rca.tables import TABLES

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
Row = dict[str, Any]


def case(**tables: Sequence[Row]) -> MemoryCase:
    """A job of these rows; a file is called as its evidence."""
    rows = {name: [{"record": f"L{n}", **row} for n, row in enumerate(given)] for name, given in tables.items()}
    ids = sorted({row["evidence_id"] for given in rows.values() for row in given})
    return MemoryCase({name: TABLES[name].rows(given) for name, given in rows.items()} | {"readings": read(ids)})


def read(ids: Sequence[str]) -> Any:
    return TABLES["readings"].rows([{"evidence_id": id_, "path": id_} for id_ in ids])


def dump(path: str, days: float = 0.0) -> Row:
    at = NOON + timedelta(days=days)
    return {"evidence_id": path, "rank": 0, "first_at": at - timedelta(minutes=5), "last_at": at}


def step(path: str, days: float) -> Row:
    return {"evidence_id": path, "rank": 0, "step": 7, "step_s": 1.0, "started_at": NOON + timedelta(days=days)}


def line(path: str, signature: str = "python_traceback", **stamp: Any) -> Row:
    return {"evidence_id": path, "rank": 0, "signature": signature, **stamp}


STACK = {"evidence_id": "old/host-a/stacks/rank_0.txt", "rank": 0, "dump_status": "ok"}
OLD = [dump("old/host-a/fr/rank_0")]
LATER = {"logged_at": NOON + timedelta(days=30)}


@pytest.mark.parametrize(
    ("tables", "left_out"),
    [
        ({"steps": [step("timings/a", 30)], "log_events": [line("logs/a", **LATER)]}, True),  # and then it raised
        ({"log_events": [line("logs/a", logged_at_local="2026-04-02T03:00:00")]}, True),
        ({"log_events": [line("logs/a", logged_at_local="04-02T03:00:00")]}, True),  # a year is that of the captures
        ({"steps": [step("timings/a", 30)]}, False),  # it was looked at and ran on: nothing else tells of trouble
        ({"steps": [step("timings/a", 30), step("old/timings/a", 0)]}, True),  # the folder is an incident of its own
        ({"steps": [step("timings/a", 30), step("timings/b", 0), step("old/timings/a", 0)]}, False),  # one job, looked at in between
        (
            {"steps": [step("timings/a", 1)], "log_events": [line("logs/a", logged_at=NOON + timedelta(days=1))]},
            False,
        ),  # a hang is found late
        ({"log_events": [line("logs/a", "unknown", **LATER)]}, False),  # any line is no end
        ({"log_events": [line("old/logs/a", **LATER)]}, True),  # of what lies together too
        ({"steps": [step("timings/a", -30)], "log_events": [line("logs/a", logged_at=NOON - timedelta(days=30))]}, False),  # older itself
    ],
)
def test_a_capture_is_old_where_the_job_wrote_of_an_end_days_later(tables: dict[str, Sequence[Row]], *, left_out: bool) -> None:
    found = old_captures(case(dumps=OLD, stacks=[STACK], **tables), ())
    captured = {OLD[0]["evidence_id"], STACK["evidence_id"]}
    inside = {row["evidence_id"] for rows in tables.values() for row in rows if row["evidence_id"].startswith("old/timings")}
    assert set(found) == (captured | inside if left_out else set())


def test_of_two_captures_the_older_one_goes_with_its_stacks_though_nothing_dates_them() -> None:
    found = old_captures(case(dumps=[*OLD, dump("host-a/fr/rank_0", 3)], stacks=[STACK, {**STACK, "evidence_id": "host-a/stacks/x"}]), ())
    assert set(found) == {OLD[0]["evidence_id"], STACK["evidence_id"]}
    assert set(found.values()) == {"an older incident: its last moment is 2026-03-01 12:00 UTC, and the job wrote on to 2026-03-04 12:00"}
