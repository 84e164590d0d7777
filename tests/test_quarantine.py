"""The quarantine list of samples: what is proposed, what people decide, what a data loader reads; decisions are evidence and never edited."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from _house import call, copy_case

from collectors import quarantine as collector
from rca.quarantine import accepted, decision, entries
from rca.types import Skip, Source

FAILED = {"what": "exception", "step": 8, "rank": 3, "host": "host-b", "attempt": None, "path": "logs/rank_3.stderr.log", "record": "L4"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The shipped case of a bad sample, only what it takes to tell it."""
    place = copy_case("bad_sample", tmp_path / "evidence")
    for part in ("fr", "stacks", "kernel"):
        shutil.rmtree(place / part)
    return place


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "notes" / "quarantine.jsonl").read_text().splitlines()]


def test_life_of_a_list(folder: Path) -> None:
    proposed = call("quarantine", folder)
    assert (proposed.code, "131" in proposed.out, " proposed " in proposed.out) == (0, True, True)
    assert not (folder / "notes").exists(), "nothing is decided by looking"
    assert call("quarantine", folder, "--ids").out == "", "what is proposed is not on the list"

    assert call("quarantine", folder, "--add", "131", "c4/9:77", "--because", "cut short", "--by", "A. N. Other").code == 0
    assert call("quarantine", folder, "--ids").out == "131\nc4/9:77\n"
    first, second = lines(folder)
    assert first["failures"] == [FAILED | {"record": first["failures"][0]["record"]}], "step, rank, host, file and line go with it"
    assert (first["by"], first["because"], second["failures"]) == ("A. N. Other", "cut short", [])

    assert call("quarantine", folder, "--release", "131", "--because", "mended at its source").code == 0
    listed = call("quarantine", folder, "--json").doc
    assert (listed["schema_version"], listed["ids"]) == ("rca.quarantine_list/1", ["c4/9:77"])
    released = next(sample for sample in listed["samples"] if sample["sample_id"] == "131")
    assert (released["state"], [one["decision"] for one in released["decisions"]]) == ("released", ["add", "release"])
    assert len(released["failures"]) == 1, "what was written down is not a second time"
    assert len(lines(folder)) == 3, "only appended"

    verdict = call("diagnose", folder, "--json").doc["verdict"]
    assert (verdict["cause"], verdict["first_failing"]["ranks"]) == ("bad_sample", [3]), "the list says nothing of the job"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--add", "131"), "--because"),
        (("--because", "x"), "name them"),
        (("--release", "99", "--because", "x"), "not on the list"),
        (("--add", "a\nb", "--because", "x"), "no sample id"),
        (("--add", "", "--because", "x"), "no sample id"),
        (("--add", "1", "--release", "2", "--because", "x"), "not allowed with"),
    ],
)
def test_what_cannot_be_decided_says_what_to_do(folder: Path, words: tuple[str, ...], why: str) -> None:
    done = call("quarantine", folder, *words)
    assert (done.code, why in done.err) == (2, True), done.err
    assert not (folder / "notes").exists()


def test_a_place_that_is_not_there(tmp_path: Path) -> None:
    assert call("quarantine", tmp_path / "absent", "--ids").code == 2


def test_each_option_that_names_samples_counts(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("step 1\n")
    assert call("quarantine", tmp_path, "--add", "1", "--add", "2", "3", "--because", "x").code == 0
    assert call("quarantine", tmp_path, "--ids").out == "1\n2\n3\n"
    assert call("quarantine", tmp_path, "--release", "1", "--release", "3", "--because", "x").code == 0
    assert call("quarantine", tmp_path, "--ids").out == "2\n"


def rows_of(tmp_path: Path, *records: Any) -> tuple[list[dict[str, Any]], list[str]]:
    file = tmp_path / "quarantine.jsonl"
    file.write_text("".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records))
    rows: list[dict[str, Any]] = []
    skips: list[str] = []
    for item in collector.read(Source(file.name, file, file.stat().st_size)):
        if isinstance(item, Skip):
            skips.append(f"{item.record}: {item.why}")
        else:
            rows += item[1].rows(named=True)
    return rows, skips


def added(sample: str, at: str = "2026-03-01T10:00:00Z", what: str = "add", **more: Any) -> dict[str, Any]:
    return decision(sample, at=at, what=what, because="why", **more)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ('{"schema_version": "rca.quarantine/1", "sample', "a torn line"),
        (added("") | {"sample_id": None}, "names no sample"),
        (added("1", what="keep"), "none of add, release"),
        (added("1", at="2026-03-01T10:00:00"), "no instant with a zone"),
        ({"schema_version": "rca.note/1"}, "no record of schema"),
    ],
)
def test_a_line_that_is_no_decision_is_skipped_and_the_rest_counts(tmp_path: Path, record: Any, why: str) -> None:
    rows, skips = rows_of(tmp_path, added("5", failures=[FAILED, FAILED | {"what": "weather"}]), record)
    assert [(row["sample_id"], row["what"], row["failed_record"]) for row in rows] == [("5", "exception", "L4")]
    assert len(skips) == 1
    assert why in skips[0]


def test_the_last_decision_counts_and_every_failure_once(tmp_path: Path) -> None:
    again = added("5", failures=[FAILED])
    rows, _ = rows_of(tmp_path, again, added("5", what="release"), again, added("12"), added("7"), added("7", what="release"))
    listed = entries(rows, failed=[(("5", "40"), "part-3", FAILED | {"rank": 1}), (("5",), None, FAILED)])
    assert [(entry.sample_id, entry.state, len(entry.failures)) for entry in listed] == [
        ("5", "accepted", 2), ("12", "accepted", 0), ("40", "suspected", 1), ("7", "released", 0),
    ]  # fmt: skip
    assert accepted(listed) == ["5", "12"]
    assert listed[0].data_shard == "part-3"
