"""Records that the tool wrote itself: notes, incidents, launches."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from _sources import FIXTURES, rows_of, source_of

from collectors import _notes, attempt_record, incident_record, notes
from rca import plugins
from rca.causes import ATTRIBUTIONS, STAGES
from rca.errors import EvidenceError
from rca.incidents.records import END_KINDS, NOTE_KINDS
from rca.parts import Parts
from rca.reading import collectors, read_source

FIXTURE = {
    "notes": "own_notes.jsonl",
    "incident_record": "own_incident.json",
    "attempt_record": "own_attempt.json",
}


def changed(name: str, **changes: object) -> bytes:
    return json.dumps(json.loads((FIXTURES / name).read_text()) | changes).encode()


def read(folder: Path, name: str, **changes: object) -> Any:
    collector = plugins.load("collectors", name)
    return rows_of(collector, source_of(folder, changed(FIXTURE[name], **changes)))


def test_vocabularies_are_those_of_the_library() -> None:
    assert tuple(STAGES) == incident_record.STAGES
    assert ATTRIBUTIONS == incident_record.ATTRIBUTIONS
    assert END_KINDS == attempt_record.END_KINDS
    assert NOTE_KINDS == _notes.KINDS


@pytest.mark.parametrize(("name", "file"), FIXTURE.items())
def test_each_file_is_claimed_by_its_reader_alone(name: str, file: str) -> None:
    head = (FIXTURES / file).read_bytes()
    own = [n for n in FIXTURE if plugins.load("collectors", n).claims("x", head)]
    assert own == [name]


def test_notes_that_quote_logs_are_read_as_notes_only(tmp_path: Path) -> None:
    """What a person pastes into a note is not read as if the log itself lay there."""
    lines = (
        "[rank3]: RuntimeError: CUDA error: an illegal memory access\nNVRM: Xid (PCI:0000:01:00): 79, pid=12, GPU has fallen off the bus."
    )
    note = json.loads((FIXTURES / "own_notes.jsonl").read_text().splitlines()[1]) | {"text": lines}
    torn = json.dumps(note).encode()[:-9].replace(b"\\n", b" ")
    source = source_of(tmp_path, json.dumps(note).encode() + b"\n" + torn, "INC-1.jsonl")
    parts = Parts(tmp_path / "parts")
    reading = read_source(source, collectors(), parts)
    assert (reading.collectors, reading.num_rows, reading.num_skipped) == (["notes"], 1, 1)
    assert parts.table("notes")["text"].to_list() == [lines]


def test_rows_of_notes_in_the_order_of_the_lines(tmp_path: Path) -> None:
    tables, skips = rows_of(notes, source_of(tmp_path, (FIXTURES / "own_notes.jsonl").read_bytes()))
    assert not skips
    assert [row["kind"] for row in tables["notes"]] == ["open", "note", "stage", "overrule", "stage", "close"]
    first = tables["notes"][0]
    assert (first["record"], first["noted_at"]) == ("L1", datetime(2026, 11, 20, 8, 2, tzinfo=UTC))
    assert json.loads(first["data"])["diagnosis"]["cause"] == "code_hang"


def test_torn_lines_are_skipped_and_the_rest_counts(tmp_path: Path) -> None:
    tables, skips = rows_of(notes, source_of(tmp_path, (FIXTURES / "own_notes_torn.jsonl").read_bytes()))
    assert [row["record"] for row in tables["notes"]] == ["L2", "L3", "L4"]
    assert [skip.record for skip in skips] == ["L1", "L5"]


@pytest.mark.parametrize(
    "change", [{"kind": "rumour"}, {"incident_id": ""}, {"at": "2026-11-20T08:02:00"}, {"at": 17}, {"schema_version": "x"}]
)
def test_a_line_that_is_no_note_is_skipped(tmp_path: Path, change: dict[str, object]) -> None:
    lines = (FIXTURES / "own_notes.jsonl").read_text().splitlines()[:2]
    data = "\n".join([lines[0], json.dumps(json.loads(lines[1]) | change)]).encode()
    tables, skips = rows_of(notes, source_of(tmp_path, data))
    assert len(tables["notes"]) == 1
    assert [skip.record for skip in skips] == ["L2"]


def test_incident_gives_its_stages_and_its_history(tmp_path: Path) -> None:
    tables, skips = read(tmp_path, "incident_record")
    assert not skips
    (row,) = tables["incidents"]
    assert (row["cause"], row["is_overruled"], row["attribution"]) == ("storage_stall", True, "platform")
    assert (row["lost_gpu_s"], row["recomputed_tokens"], row["ranks"]) == (2400.0, 4096, [3])
    assert row["began_at"] == datetime(2026, 11, 20, 8, 1, tzinfo=UTC)
    assert [(s["stage"], s["origin"], s["record"]) for s in tables["stages"]] == [
        ("detect", "evidence", "stages/E0"),
        ("localize", "evidence", "stages/E1"),
        ("replace", "hand", "stages/E2"),
        ("resume", "hand", "stages/E3"),
    ]
    assert [n["record"] for n in tables["notes"]] == [f"history/E{i}" for i in range(6)]
    assert {r["incident_id"] for name in tables for r in tables[name]} == {row["incident_id"]}


def test_what_is_not_known_stays_null(tmp_path: Path) -> None:
    tables, _ = read(tmp_path, "incident_record", lost_gpu_s=None, num_gpus=None, began_at=None, stages=[], history=[])
    (row,) = tables["incidents"]
    assert (row["lost_gpu_s"], row["num_gpus"], row["began_at"]) == (None, None, None)
    assert tables["stages"] == tables["notes"] == []


def test_foreign_words_in_an_incident_are_told(tmp_path: Path) -> None:
    tables, skips = read(tmp_path, "incident_record", attribution="gremlins", stages=[{"stage": "coffee"}, 3], history=["x"])
    assert tables["incidents"][0]["attribution"] == "unknown"
    assert [skip.record for skip in skips] == ["E0", "stages/E0", "stages/E1", "history/E0"]
    with pytest.raises(EvidenceError, match="names no incident"):
        read(tmp_path, "incident_record", incident_id=None)


def test_attempt_that_still_runs_differs_from_one_with_a_broken_end(tmp_path: Path) -> None:
    tables, skips = read(tmp_path, "attempt_record", ended_at=None, end_kind=None)
    assert not skips
    (row,) = tables["attempts"]
    assert (row["job_id"], row["attempt"], row["ended_at"], row["step_s"]) == ("job-7", 0, None, 0.25)
    for broken in ("noon", "2026-11-20T07:00:00Z", 12):
        with pytest.raises(EvidenceError, match="ended_at"):
            read(tmp_path, "attempt_record", ended_at=broken)
    with pytest.raises(EvidenceError, match="started_at"):
        read(tmp_path, "attempt_record", started_at=None)
    tables, skips = read(tmp_path, "attempt_record", end_kind="exploded")
    assert (tables["attempts"][0]["end_kind"], len(skips)) == (None, 1)
