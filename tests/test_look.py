"""What a page looks at: built when missing, made anew when the evidence is another, its lines read from the raw files and no further."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from _house import CASES, SAMPLE, copy_case, copy_dumps

from apps import look as looking
from apps import supervise
from apps.look import Shelf, is_fleet, lines_around
from apps.scene import stages_so_far
from rca.errors import RcaError
from rca.tables import TABLES
from rca.types import Cite, Source


def source(file: Path) -> Source:
    return Source(file.name, file, file.stat().st_size, "gzip" if file.suffix == ".gz" else "none")


def cite(path: str, record: str) -> Cite:
    return Cite("log_events", "", path, record, "")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A case with logs, built once."""
    folder = copy_case("worker_oom_killed", tmp_path_factory.mktemp("look") / "case")
    Shelf().look(str(folder))
    return folder


@pytest.mark.parametrize(("number", "first", "last"), [(1, 1, 4), (2, 1, 5), (50, 47, 53), (99, 96, 100), (100, 97, 100)])
@pytest.mark.parametrize("is_packed", [False, True])
def test_lines_around_a_line_are_those_of_the_file(tmp_path: Path, number: int, first: int, last: int, is_packed: bool) -> None:  # noqa: FBT001
    text = "\n".join(f"line {i}" for i in range(1, 101)).encode()
    file = tmp_path / ("log.gz" if is_packed else "log")
    file.write_bytes(gzip.compress(text) if is_packed else text)
    found = lines_around(source(file), number)
    assert found.lines == tuple((i, f"line {i}") for i in range(first, last + 1))
    assert found.hit == number


def test_lines_cross_the_blocks_of_a_large_file(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("\n".join(f"{i} {'x' * 700}" for i in range(1, 4001)))
    for number in (1497, 1498, 1499, 2996, 4000):  # a block is 1 MiB: about 1,490 lines
        found = lines_around(source(file), number)
        assert [int(text.split()[0]) for _, text in found.lines] == [n for n, _ in found.lines]
        assert number in dict(found.lines)


def test_a_line_that_is_not_there_or_too_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"one\n" + b"y" * 3_000_000 + b"\nthree\x1b[2J\xff\r\n")
    assert "no line 9" in lines_around(source(file), 9).why
    found = dict(lines_around(source(file), 3).lines)
    assert len(found[2]) == looking.LINE_LETTERS
    assert found[3] == "three\\x1b[2J\N{REPLACEMENT CHARACTER}"
    monkeypatch.setattr(looking, "SCAN_BYTES", 1 << 20)
    assert "open it yourself" in lines_around(source(file), 4000).why
    gone = source(file)
    file.unlink()
    assert lines_around(gone, 1).why


def test_look_holds_the_answer_and_the_very_lines(case: Path) -> None:
    look = Shelf().look(str(case))
    assert look.judgement.verdict.ranks == (4,)
    cites = [c for o in look.judgement.outcomes for f in o.findings for c in f.cites if c.record.startswith("L")]
    assert cites
    for one in cites:
        found = look.excerpt(one)
        lines = (case / one.path).read_text().split("\n")
        assert found.hit == int(one.record[1:])
        assert all(lines[number - 1] == text for number, text in found.lines if len(text) < looking.LINE_LETTERS)
    assert look.excerpt(cite("fr/nccl_trace_rank_0", "E3")).lines == ()
    assert "not at hand" in look.excerpt(cite("no/such/file", "L1")).why
    assert dict(look.states.select("rank", "state").iter_rows())[4] == "first failing"
    assert set(look.events["kind"]) == {"kernel event", "log error", "last recorded call"}


def test_look_is_kept_until_evidence_or_case_is_another(tmp_path: Path) -> None:
    folder = copy_dumps(SAMPLE, tmp_path / "case")
    heard: list[tuple[int, int]] = []
    shelf = Shelf()
    first = shelf.look(str(folder), lambda done, total: heard.append((done, total)))
    assert heard
    assert heard[-1][0] == heard[-1][1]
    shelf.forget()
    assert shelf.look(str(folder)) is first
    (folder / "case.duckdb").unlink()  # a case that was taken away, then evidence that is added
    again = shelf.look(str(folder))
    assert again is not first
    (folder / "more.log").write_text("nothing of interest\n")
    shelf.forget()
    more = shelf.look(str(folder))
    assert more.num_files == again.num_files + 1
    assert more.judgement.verdict.ranks == first.judgement.verdict.ranks


def test_build_that_is_broken_off_is_not_taken_for_a_stuck_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watching process ends a reader that stays with one file: a page that is left while it loads must not look like that."""

    class Left(Exception):
        pass

    def leave(done: int, total: int) -> None:
        raise Left

    folder = copy_dumps(SAMPLE, tmp_path / "case")
    reading, writing = os.pipe()
    monkeypatch.setattr(supervise, "_pipe", writing)
    shelf = Shelf()
    with pytest.raises(Left):
        shelf.look(str(folder), leave)
    told = [json.loads(line) for line in os.read(reading, 1 << 16).splitlines()]
    assert told[0][1] != ""
    assert told[-1][1] == ""
    assert not list(folder.glob("*case.duckdb*"))
    assert shelf.look(str(folder)).judgement.verdict.ranks == (3,)
    os.close(reading)
    os.close(writing)


def test_case_file_alone_is_shown_as_it_is_and_a_replaced_one_is_picked_up(case: Path, tmp_path: Path) -> None:
    file = tmp_path / "case.duckdb"
    shutil.copy(case / "case.duckdb", file)
    shelf = Shelf()
    look = shelf.look(str(file))
    assert look.judgement.verdict.ranks == (4,)
    assert look.excerpt(cite("logs/host-c.agent.log", "L1")).lines == ()  # the evidence does not lie beside this copy
    other = copy_dumps(SAMPLE, tmp_path / "other")
    Shelf().look(str(other))
    (other / "case.duckdb").replace(file)
    assert shelf.look(str(file)).judgement.verdict.ranks == (3,)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["case.duckdb", "other"]


def test_case_from_elsewhere_cannot_name_files_outside_its_folder(case: Path) -> None:
    (case.parent / "secret").write_text("secret\n")
    look = Shelf().look(str(case / "case.duckdb"))
    assert look.excerpt(cite("logs/host-c.agent.log", "L1")).lines
    assert look.excerpt(cite("../secret", "L1")).lines == ()
    assert look.excerpt(cite(str(case.parent / "secret"), "L1")).lines == ()


def test_archive_is_unpacked_as_long_as_it_is_looked_at() -> None:
    shelf = Shelf()
    look = shelf.look(str(CASES / "skipped_collective.tar.gz"))
    found = [p for p in (look.source(c.path) for o in look.judgement.outcomes for f in o.findings for c in f.cites) if p is not None]
    assert found
    assert all(one.file.is_file() for one in found)
    shelf.drop(look.path)
    assert not any(one.file.exists() for one in found)


def test_few_looks_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "KEPT", 1)
    shelf = Shelf()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "note.txt").write_text("no evidence\n")
        look = shelf.look(str(tmp_path / name))
        assert look.num_files == 1
        assert look.states.height == look.events.height == 0
    assert list(shelf._looks) == [str(tmp_path / "two")]


def test_path_without_evidence_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(RcaError, match="nowhere"):
        Shelf().look(str(tmp_path / "nowhere"))
    broken = tmp_path / "case.duckdb"
    broken.write_bytes(b"12345678DUCK" + bytes(5000))
    with pytest.raises(RcaError, match="no case file"):
        Shelf().look(str(broken))


def test_a_folder_of_records_is_a_fleet(tmp_path: Path) -> None:
    (tmp_path / "fleet" / "incidents").mkdir(parents=True)
    assert is_fleet(tmp_path / "fleet")
    assert is_fleet(tmp_path / "fleet" / "case.duckdb")
    assert not is_fleet(CASES / SAMPLE)


def test_stages_of_an_open_incident_come_from_its_notes() -> None:
    notes = TABLES["notes"].rows(
        [
            {"kind": "stage", "text": "", "data": '{"stage": "load", "started_at": "2026-03-02T04:00:00Z", "ended_at": null}'},
            {"kind": "stage", "text": "", "data": '{"stage": "load", "started_at": null, "ended_at": "2026-03-02T04:01:00Z"}'},
            {"kind": "note", "text": "no stage", "data": "{}"},
        ]
    )
    found = stages_so_far(notes)
    at = datetime(2026, 3, 2, 4, 0, tzinfo=UTC)
    assert found.select("stage", "started_at", "budget_s", "origin").rows() == [("load", at, 120.0, "hand")]
    assert found.select(pl.col("ended_at") - pl.col("started_at")).item().total_seconds() == 60
    assert stages_so_far(TABLES["notes"].frame()).height == 0
