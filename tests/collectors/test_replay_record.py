"""Records of replays and their plans: one row a host and step, `missing` for what should be there and is not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from _sources import FIXTURES, rows_of, source_of

from collectors import replay_record
from rca.errors import EvidenceError


def read(folder: Path, document: Any) -> tuple[list[dict[str, Any]], list[str]]:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    assert replay_record.claims("x", data)
    tables, skips = rows_of(replay_record, source_of(folder, data))
    return tables["replays"], [skip.why for skip in skips]


def test_a_record_gives_a_row_for_each_host_and_step(tmp_path: Path) -> None:
    rows, skips = read(tmp_path, (FIXTURES / "replay_differs.json").read_bytes())
    assert skips == []
    assert [(r["record"], r["step"], r["outcome"]) for r in rows] == [
        ("hosts/E0/E0", 0, "equal"),
        ("hosts/E0/E1", 1, "equal"),
        ("hosts/E0/E2", 2, "differs"),
        ("hosts/E0/E3", 3, "differs"),
        ("hosts/E0/E4", 4, "differs"),
    ]
    assert {(r["phase"], r["group_number"], r["repeat"], r["host"], r["place"]) for r in rows} == {("double_run", 1, 0, "host-1", 0)}
    assert rows[0]["fingerprint"] == rows[0]["expected"]
    assert rows[2]["fingerprint"] != rows[2]["expected"]
    assert rows[0]["ran_at"] == datetime(2026, 11, 29, 23, 39, 32, 843327, UTC)


def test_a_host_that_ended_early_has_its_steps_and_a_missing_row(tmp_path: Path) -> None:
    rows, skips = read(tmp_path, (FIXTURES / "replay_missing.json").read_bytes())
    assert skips == []
    assert [(r["host"], r["step"], r["outcome"]) for r in rows if r["fingerprint"] is None] == [
        ("host-2", None, "missing"),
        ("host-3", None, "missing"),
    ]
    assert [r["step"] for r in rows if r["host"] == "host-2" and r["fingerprint"]] == [0, 1]


def test_a_plan_that_was_run_says_who_should_have_left_a_record(tmp_path: Path) -> None:
    plan = json.loads((FIXTURES / "replay_plan.json").read_text())
    rows, skips = read(tmp_path, plan)
    assert skips == []
    assert [(r["group_number"], r["host"], r["repeat"], r["step"], r["outcome"]) for r in rows] == [
        (number, f"host-{number}", None, None, "missing") for number in range(3)
    ]
    assert rows[1]["record"] == "phases/E0/E1/E0"


def test_a_plan_that_was_never_run_gives_no_rows(tmp_path: Path) -> None:
    plan = json.loads((FIXTURES / "replay_plan.json").read_text())
    assert read(tmp_path, {**plan, "replay_id": None}) == ([], [])


def test_hosts_are_named_as_everywhere(tmp_path: Path) -> None:
    record = json.loads((FIXTURES / "replay_differs.json").read_text())
    for said, named in (("Host-A.Rack3.example", "host-a"), ("10.0.0.7", "10.0.0.7")):
        record["hosts"][0]["host"] = said
        assert {r["host"] for r in read(tmp_path, record)[0]} == {named}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"replay_id": None}, "which replay"),
        ({"group": -1}, "which replay"),
        ({"repeat": True}, "which replay"),
        ({"hosts": [{"host": "a\nb", "place": 0, "steps": []}]}, "names no host"),
        ({"hosts": [{"host": "a", "place": 1.5, "steps": []}]}, "no place"),
        ({"hosts": [7]}, "names no host"),
    ],
)
def test_what_does_not_say_whose_it_is_is_skipped(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    record = json.loads((FIXTURES / "replay_differs.json").read_text())
    rows, skips = read(tmp_path, {**record, **change})
    assert rows == []
    assert len(skips) == 1
    assert told in skips[0]


def test_a_step_without_a_fingerprint_leaves_the_host_missing(tmp_path: Path) -> None:
    record = json.loads((FIXTURES / "replay_differs.json").read_text())
    record["hosts"][0]["steps"][1]["fingerprint"] = None
    rows, _ = read(tmp_path, record)
    assert [r["step"] for r in rows] == [0, 2, 3, 4, None]
    assert rows[-1]["outcome"] == "missing"


def test_an_outcome_that_is_none_is_not_believed(tmp_path: Path) -> None:
    record = json.loads((FIXTURES / "replay_differs.json").read_text())
    record["hosts"][0]["steps"][0]["outcome"] = "fine"
    assert read(tmp_path, record)[0][0]["outcome"] is None


def test_a_torn_record_says_that_the_run_is_missing(tmp_path: Path) -> None:
    data = (FIXTURES / "replay_differs.json").read_bytes()
    with pytest.raises(EvidenceError, match="this run of the replay is missing"):
        read(tmp_path, data[: len(data) // 2])
