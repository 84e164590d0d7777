"""The list of a capture: ranks and host as told; files that changed, steps that failed and captures cut short show as skipped, with the reason."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from _sources import FIXTURES, rows_of, source_of

from collectors import bundle
from rca.errors import EvidenceError
from rca.types import Source


def whys(document: object, folder: Path) -> list[tuple[str | None, str]]:
    _, skips = rows_of(bundle, source_of(folder, json.dumps(document).encode(), "rca-bundle.json"))
    return [(skip.record, skip.why) for skip in skips]


def listed(folder: Path, *names: str) -> dict[str, Any]:
    """A bundle of files that are there."""
    files = []
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"text of {name}")
        data = (folder / name).read_bytes()
        files.append({"path": name, "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    return {"schema_version": "rca.bundle/1", "is_partial": False, "host": "host-a", "files": files, "steps": [], "ranks": []}


def test_ranks_and_boot_are_told(tmp_path: Path) -> None:
    data = (FIXTURES / "capture_bundle.json").read_bytes()
    assert bundle.claims("x", data)
    tables, _ = rows_of(bundle, source_of(tmp_path, data, "rca-bundle.json"))
    assert [(r["record"], r["rank"], r["host"], r["local_rank"], r["pid"], r["role"]) for r in tables["ranks"]] == [
        (f"E{n}", n, "host-a", n, 4100 + n, "trainer") for n in range(4)
    ]
    (host,) = tables["hosts"]
    assert host["boot_at"] == datetime.fromtimestamp(1772000000, UTC) + timedelta(microseconds=123456)
    assert host["zone_offset_s"] == 3600.0


def test_only_trainers_of_the_process_list_are_ranks(tmp_path: Path) -> None:
    tables, skips = rows_of(bundle, source_of(tmp_path, (FIXTURES / "capture_processes.json").read_bytes(), "processes.json"))
    assert [(r["rank"], r["pid"]) for r in tables["ranks"]] == [(0, 4100), (1, 4101)]
    assert skips == []
    assert [r["started_at"] for r in tables["ranks"]] == [datetime(2026, 3, 2, 8, 0, tzinfo=UTC)] * 2


@pytest.mark.parametrize("told", [None, 17, "", "yesterday", "2026-03-02T08:00:00", "1970-01-01T00:00:09Z", "0001-01-01T00:00:00+23:00"])
def test_a_start_that_cannot_be_is_not_told(told: object, tmp_path: Path) -> None:
    document = json.loads((FIXTURES / "capture_processes.json").read_bytes())
    document["processes"][0]["started_at"] = told
    tables, _ = rows_of(bundle, source_of(tmp_path, json.dumps(document).encode(), "processes.json"))
    assert [r["started_at"] is None for r in tables["ranks"]] == [True, False]


def test_failed_steps_show_and_those_left_out_by_choice_do_not(tmp_path: Path) -> None:
    document = json.loads((FIXTURES / "capture_bundle.json").read_bytes()) | {"files": []}
    assert whys(document, tmp_path) == [("E1", "not captured: recorder_pipe: asked; no dump was written in 20 s")]


def test_a_partial_capture_shows(tmp_path: Path) -> None:
    ((record, why),) = whys(json.loads((FIXTURES / "capture_partial.json").read_bytes()), tmp_path)
    assert record is None
    assert "cut short" in why


def test_files_that_are_as_captured_are_not_mentioned(tmp_path: Path) -> None:
    assert whys(listed(tmp_path, "topology.json", "logs/rank_0.log"), tmp_path) == []


def test_files_that_are_gone_or_changed_are_named(tmp_path: Path) -> None:
    document = listed(tmp_path, "a.log", "b.log", "c.log", "d.log")
    (tmp_path / "a.log").unlink()
    (tmp_path / "b.log").write_text("longer than it was before")
    (tmp_path / "c.log").write_text("text of C.log")
    found = dict(whys(document, tmp_path))
    assert set(found) == {"E0", "E1", "E2"}
    assert "not there" in found["E0"]
    assert "another size" in found["E1"]
    assert "other bytes" in found["E2"]


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/../../b", "x\0y"])
def test_names_that_lead_out_of_the_capture_are_not_opened(name: str, tmp_path: Path) -> None:
    document = {"schema_version": "rca.bundle/1", "is_partial": False, "files": [{"path": name, "sha256": "0" * 64}]}
    assert whys(document, tmp_path) == [("E0", "names no file of the capture")]


def test_in_an_archive_the_neighbours_are_not_looked_for(tmp_path: Path) -> None:
    file = tmp_path / "00001"  # archives are unpacked under neutral names
    file.write_bytes((FIXTURES / "capture_bundle.json").read_bytes())
    _, skips = rows_of(bundle, Source("run.tar.gz/host-a/rca-bundle.json", file, file.stat().st_size))
    assert [skip.record for skip in skips] == ["E1"]


def test_broken_lists_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError):
        rows_of(bundle, source_of(tmp_path, b'{"schema_version": "rca.bundle/1", "files": [', "rca-bundle.json"))
