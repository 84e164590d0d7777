"""Planned windows: calendars, tables, JSON, Slurm's reservations."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from _sources import FIXTURES, rows_of, source_of

from collectors import maintenance_windows
from collectors._recurrence import MAX_TIMES, occurrences
from rca.types import Skip, Source

SIX, TEN = datetime(2026, 5, 3, 6, 0, tzinfo=UTC), datetime(2026, 5, 3, 10, 0, tzinfo=UTC)


def read(folder: Path, text: str) -> tuple[list[dict[str, Any]], list[Skip]]:
    source = source_of(folder, text.encode(), "x")
    assert maintenance_windows.claims("x", source.head), text[:100]
    tables, skips = rows_of(maintenance_windows, source)
    return tables["planned_windows"], skips


def fixture(name: str) -> tuple[list[dict[str, Any]], list[Skip]]:
    file = FIXTURES / name
    tables, skips = rows_of(maintenance_windows, Source(name, file, file.stat().st_size))
    return tables["planned_windows"], skips


def event(*lines: str) -> str:
    return "\r\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", "BEGIN:VEVENT", "UID:1", *lines, "END:VEVENT", "END:VCALENDAR", ""])


def test_a_calendar() -> None:
    rows, skips = fixture("windows.ics")
    assert [skip.record for skip in skips] == ["L30"]  # a rule that is not expanded, said so
    first, second, off, day, floating = rows
    assert (first["hosts"], first["name"]) == (["host-01", "host-02", "host-03", "host-04"], "Firmware of rack 3, row 2")
    assert (first["started_at"], second["started_at"]) == (datetime(2026, 3, 22, 7, 0, tzinfo=UTC), datetime(2026, 3, 29, 6, 0, tzinfo=UTC))
    assert (off["is_cancelled"], off["hosts"], off["ended_at"]) == (True, ["host-05", "host-06"], TEN)
    assert (day["started_at_local"], day["ended_at_local"], day["started_at"]) == ("2026-05-04T00:00:00", "2026-05-05T00:00:00", None)
    assert (floating["started_at_local"], floating["record"]) == ("2026-05-05T06:00:00", "L30")


def test_events_of_a_calendar_stand_alone(tmp_path: Path) -> None:
    own_zone = (
        "BEGIN:VCALENDAR\r\nBEGIN:VTIMEZONE\r\nTZID:Site\r\nBEGIN:STANDARD\r\nDTSTART:19700101T000000\r\nTZOFFSETFROM:+0200\r\nTZOFFSETTO:+0200\r\n"
        "END:STANDARD\r\nEND:VTIMEZONE\r\nBEGIN:VEVENT\r\nDTSTART;TZID=Site:20260503T080000\r\nDTEND;TZID=Site:20260503T120000\r\nEND:VEVENT\r\n"
        "BEGIN:VEVENT\r\nDTSTART:bad\r\nEND:VEVENT\r\nBEGIN:VEVENT\r\nSUMMARY:no time\r\nEND:VEVENT\r\nBEGIN:VEVENT\r\nDTSTART:20260503T060000Z\r\n"
    )
    rows, skips = read(tmp_path, own_zone)
    assert [(row["started_at"], row["ended_at"]) for row in rows] == [(SIX, TEN)]
    assert len(skips) == 3  # no date, no begin, breaks off
    rows, _ = read(tmp_path, event("DTSTART:20260503T060000Z", "RRULE:FREQ=DAILY"))
    assert len(rows) == MAX_TIMES
    assert rows[0]["ended_at"] is None


def test_repetitions() -> None:
    first = datetime(2026, 5, 5, 6, 0)  # a Tuesday
    for rule, until, days in (
        ({"FREQ": ["DAILY"], "INTERVAL": [2], "COUNT": [3]}, None, ["05-05", "05-07", "05-09"]),
        ({"FREQ": ["DAILY"], "UNTIL": ["x"]}, datetime(2026, 5, 6, 7, 0), ["05-05", "05-06"]),
        ({"FREQ": ["WEEKLY"], "COUNT": [3], "BYDAY": ["TU", "TH"]}, None, ["05-05", "05-07", "05-12"]),
        ({"FREQ": ["WEEKLY"], "INTERVAL": [2], "COUNT": [3]}, None, ["05-05", "05-19", "06-02"]),
        ({"FREQ": ["MONTHLY"], "COUNT": [3]}, None, ["05-05", "06-05", "07-05"]),
        ({"FREQ": ["MONTHLY"], "COUNT": [2], "BYDAY": ["1TU"]}, None, ["05-05", "06-02"]),
        ({"FREQ": ["MONTHLY"], "COUNT": [2], "BYDAY": ["-1SU"]}, None, ["05-31", "06-28"]),
        ({"FREQ": ["MONTHLY"], "COUNT": [2], "BYMONTHDAY": [31]}, None, ["05-31", "07-31"]),
    ):
        found = occurrences(rule, first, until)
        assert found is not None, rule
        assert [at.strftime("%m-%d") for at in found] == days, rule
    for rule in ({"FREQ": ["YEARLY"]}, {"FREQ": ["MONTHLY"], "BYSETPOS": [1]}, {"FREQ": ["DAILY"], "INTERVAL": [0]}, {}):
        assert occurrences(rule, first, None) is None, rule


def test_tables(tmp_path: Path) -> None:
    assert [(row["started_at"], row["hosts"]) for row in fixture("windows.csv")[0]] == [
        (SIX, None),
        (datetime(2026, 5, 4, 6, 0, tzinfo=UTC), None),
    ]
    local, zoned = fixture("windows_nodes.csv")[0]
    assert (local["started_at"], local["started_at_local"], local["hosts"]) == (
        None,
        "2026-05-03T06:00:00",
        ["host-01", "host-02", "host-04"],
    )
    assert (zoned["started_at"], zoned["is_cancelled"]) == (datetime(2026, 5, 4, 4, 0, tzinfo=UTC), True)
    for text in (
        "start_time_utc,end_time_utc\n2026-05-03 06:00:00,2026-05-03 10:00:00\n",
        "start_time_utc;end_time_utc;reason\n2026-05-03T06:00Z;2026-05-03T10:00Z;x\n",
        "maintenance_start,maintenance_end\n2026-05-03T08:00:00+02:00,2026-05-03T12:00:00+02:00\n",
        "start,end,node,reason\n1777788000,1777802400,n1,x\n",
        "start_time_utc,end_time_utc\n2026-05-03 06:00:00 UTC,2026-05-03 10:00:00 UTC\n",
    ):
        rows, skips = read(tmp_path, text)
        assert ([(row["started_at"], row["ended_at"]) for row in rows], skips) == ([(SIX, TEN)], []), text
    rows, skips = read(tmp_path, "start_time_utc,end_time_utc\nsoon,later\n2026-05-03T10:00:00Z,2026-05-03T06:00:00Z\n")
    assert (rows, [skip.record for skip in skips]) == ([], ["L2", "L3"])


def test_objects(tmp_path: Path) -> None:
    (row,) = fixture("windows.json")[0]
    assert (row["started_at"], row["hosts"], row["name"]) == (
        datetime(2026, 5, 3, 4, 0, tzinfo=UTC),
        ["host-01", "host-02", "host-03"],
        "switch",
    )
    one = {"start_time_utc": "2026-05-03T06:00:00", "end_time_utc": "2026-05-03T10:00:00"}
    for text in (json.dumps([one]), json.dumps(one), json.dumps({"exclusions": [one]}), json.dumps(one) + "\n" + json.dumps(one)):
        assert {(row["started_at"], row["ended_at"]) for row in read(tmp_path, text)[0]} == {(SIX, TEN)}


def test_reservations_without_maintenance_are_no_windows(tmp_path: Path) -> None:
    (row,), (skip,) = fixture("slurm_reservations.txt")
    assert (row["name"], row["kind"], row["started_at_local"], row["hosts"]) == (
        "maint-5", "reservation", "2026-05-03T06:00:00", ["host-01", "host-02", "host-03", "host-04"],
    )  # fmt: skip
    assert "MAINT" in skip.why
    told = [
        {"name": name, "start_time": {"set": True, "number": 1777788000}, "end_time": 1777802400, "flags": flags, "node_list": "n[1-2]"}
        for name, flags in (("m", ["MAINT", "IGNORE_JOBS"]), ("c", ["SPEC_NODES"]))
    ]
    rows, skips = read(tmp_path, json.dumps({"reservations": told}))
    assert ([(row["name"], row["started_at"], row["ended_at"]) for row in rows], len(skips)) == ([("m", SIX, TEN)], 1)


def test_other_files_are_left_alone() -> None:
    for data in (
        b"start,end\n1,2\n",
        b"step,start,end\n1,2,3\n",
        b"name,start,end\nforward,1,2\n",
        b"rank,start_time_utc,end_time_utc\n",
        b'{"name": "forward", "start": 1, "end": 2}',
        b'{"span": "x", "start_time": 1, "end_time": 2, "trace_id": "a"}',
        b"from,to\na,b\n",
    ):
        assert not maintenance_windows.claims("x", data), data
