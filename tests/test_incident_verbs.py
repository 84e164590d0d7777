"""The life of an incident through the real command: open, note, stage, overrule, close; what goes wrong on the way, and hostile hands."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from _house import CASES, RCA, ROOT, Done, call, copy_built, copy_case, finish, start

from apps.incidents import fleetbook
from apps.incidents.moments import moment
from apps.incidents.notebook import MAX_TEXT, AlreadyOpen, notebook
from apps.places import fleet_folder
from rca.errors import UsageError
from rca.incidents.incident import fold
from rca.incidents.records import iso, job_of, note

SCHEMA = json.loads((ROOT / "docs" / "incident.schema.json").read_text("utf-8"))
T = datetime(2026, 11, 20, 8, 0, tzinfo=UTC)
SAID = {
    "cause": "gpu_fault", "layer": "hardware", "attribution": "platform", "action": "replace", "probability": 0.97, "proven": False,
    "ranks": [3], "hosts": ["host-b"], "gpus": [], "at": "2026-11-20T08:00:00Z", "step": 12, "summary": "rank 3 on host-b failed first",
}  # fmt: skip
OPEN = {"detected_at": iso(T), "diagnosis": SAID, "job": job_of(job_id="job-7", attempt=0, num_gpus=8)}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("RCA_FLEET", raising=False)
    return tmp_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder on which an incident is open; its evidence does not matter."""
    path = tmp_path / "case"
    path.mkdir()
    notebook(path).append(note("INC-1", T + timedelta(minutes=1), "open", "opened", OPEN))
    return path


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """The logs of the planned stop, read before."""
    return copy_built("planned_stop", tmp_path / "planned")


def real(*argv: str | Path) -> Done:
    return finish(start(*argv))


def fields(path: Path, incident: str = "INC-1") -> list[dict[str, Any]]:
    return [dict(one) for one in notebook(path).notes[incident]]


def record_in(fleet: Path) -> dict[str, Any]:
    (file,) = fleet.glob("incidents/*/*.json")
    record = dict(json.loads(file.read_text("utf-8")))
    jsonschema.Draft202012Validator(SCHEMA).validate(record)
    return record


def verdict(path: Path) -> dict[str, Any]:
    """The document of a diagnosis, without its timing and what notes may tell more of: restarts so far, and with them the steps and checks after."""
    document = {key: value for key, value in call("diagnose", path, "--json").doc.items() if key != "timing"}
    noted = ("retries", "next", "recovery", "before_restart")
    return document | {"advice": {key: value for key, value in document["advice"].items() if key not in noted}}


def test_whole_life_of_a_hang(tmp_path: Path) -> None:
    path, fleet = copy_case("lock_hang", tmp_path / "hang"), tmp_path / "fleet"
    before = verdict(path)
    opened = real(
        "open", path, "--by", "on call", "--detected-at", "2026-11-29T21:12:00Z", "--job", "pretrain", "--tokens-per-step", "4096"
    )
    assert opened.code == 0, opened.err
    incident = re.findall(r"INC-20261129-2111-[0-9a-f]{4}", opened.out)[0]
    assert opened.out.startswith(f"{incident} is open")
    assert "Rank 3 on host-b" in opened.out.splitlines()[1]
    assert re.search(r"detect .* 28 s +60 s, kept +hand", opened.out)
    assert f"rca close {path}" in opened.out
    assert call("note", path, "asked", "the", "owner", "of <step_log>").code == 0
    assert call("stage", path, "replace", "--start", "2026-11-29T21:13:00Z", "--end", "2026-11-29T21:16:00Z").code == 0
    over = call("stage", path, "resume", "--end", "2026-11-29T21:21:31.633346Z", "--why", "step 13 printed")
    assert "over by 60 s" in over.out
    ruled = call("overrule", path, "--cause", "storage_stall", "--because", "the log directory is on a mount that hung")
    assert "the tool said code hang (workload)" in ruled.out
    closed = real(
        "close", path, "--fleet", fleet, "--checkpoint-step", "10", "--evicted", "Host-B.example,host-c", "--code-version", "1.4.2"
    )
    assert closed.code == 0, closed.err
    record = record_in(fleet)
    assert str(fleet / "incidents" / "2026-W48" / f"{incident}.json") in closed.out
    assert (record["incident_id"], record["revision"], record["job_id"]) == (incident, 1, "pretrain")
    assert (record["cause"], record["attribution"], record["diagnosis"]["cause"]) == ("storage_stall", "platform", "code_hang")
    assert (record["began_at"], record["detected_at"]) == ("2026-11-29T21:11:31.633346Z", "2026-11-29T21:12:00Z")
    assert (record["lost_gpu_s"], record["recomputed_steps"], record["recomputed_tokens"]) == (8 * 600.0, 2, 8192)
    assert (record["evicted"], record["ranks"], record["action"]) == (["host-b", "host-c"], [3], "retry")
    assert [one["kind"] for one in record["history"]] == ["open", "note", "stage", "stage", "overrule", "close"]
    assert {s["stage"]: s["origin"] for s in record["stages"]} == dict.fromkeys(("detect", "localize", "replace", "resume"), "hand")
    (launch,) = fleet.glob("attempts/*/*.json")
    attempt = json.loads(launch.read_text())
    assert (launch.name, attempt["end_kind"], attempt["num_hosts"]) == ("pretrain-0.json", "failed", 4)
    assert attempt["started_at"] < record["began_at"] < attempt["ended_at"] < "2026-11-29T21:13"
    assert verdict(path) == before, "notes in the folder disturbed the diagnosis"
    files = call("inspect", path, "--json").doc["files"]
    assert {f["collector"] for f in files if f["path"].startswith("notes/")} == {"notes"}
    assert [f["path"] for f in files if f["collector"] is None] == []
    again = call("close", path, "--fleet", fleet, "--json").doc
    assert (again["revision"], again["evicted"], again["code_version"]) == (2, record["evicted"], "1.4.2")
    assert again["history"][:6] == record["history"]
    assert record_in(fleet) == again
    built = call("build", fleet)
    assert "1 attempts, 1 incidents, 4 stages, 7 notes" in built.out


def test_whole_life_of_a_planned_stop(logs: Path, tmp_path: Path) -> None:
    opened = real("open", logs, "--json")
    assert opened.code == 0
    jsonschema.Draft202012Validator(SCHEMA).validate(opened.doc)
    assert (opened.doc["revision"], opened.doc["closed_at"], opened.doc["attribution"]) == (0, None, "planned")
    detect, localize = opened.doc["stages"]
    assert (detect["stage"], detect["origin"], detect["started_at"]) == ("detect", "evidence", detect["ended_at"])
    assert "maintenance window" in detect["why"]
    assert (localize["started_at"], localize["ended_at"]) == (detect["ended_at"], opened.doc["opened_at"])
    closed = real("close", logs, "--fleet", tmp_path / "fleet")
    assert "planned: it never counts against the platform" in closed.out
    record = record_in(tmp_path / "fleet")
    assert (record["cause"], record["attribution"], record["ranks"], record["num_gpus"]) == ("planned_stop", "planned", [], 8)
    (launch,) = (tmp_path / "fleet").glob("attempts/*/*.json")
    assert json.loads(launch.read_text())["end_kind"] == "stopped"
    assert json.loads(launch.read_text())["job_id"] == record["job_id"] == f"job-{record['evidence']['fingerprint'][:8]}"


def test_same_evidence_gets_the_same_name_wherever_it_lies(logs: Path, tmp_path: Path) -> None:
    other = copy_case("planned_stop", tmp_path / "elsewhere")
    assert call("open", logs, "--json").doc["incident_id"] == call("open", other, "--json").doc["incident_id"]


def test_second_opening_changes_nothing_unless_asked_for(logs: Path) -> None:
    first = call("open", logs, "--json").doc["incident_id"]
    file = logs / "notes" / f"{first}.jsonl"
    before = file.read_bytes()
    second = call("open", logs)
    assert (second.code, second.out) == (2, "")
    assert first in second.err
    assert "--again" in second.err
    assert call("open", logs, "--again", "--id", first).code == 2
    assert file.read_bytes() == before
    assert call("open", logs, "--again", "--json").doc["incident_id"] == f"{first}-2"
    assert call("open", logs, "--id", "INC-mine", "--json").doc["incident_id"] == "INC-mine"
    unclear = call("note", logs, "hello")
    assert unclear.code == 2
    assert "--id" in unclear.err
    assert all(name in unclear.err for name in (first, f"{first}-2", "INC-mine"))
    assert call("note", logs, "hello", "--id", "INC-mine").code == 0
    assert [one["kind"] for one in fields(logs, "INC-mine")] == ["open", "note"]


@pytest.mark.parametrize("name", ["../x", "a/b", "", "-", "x" * 200, "a\nb", "."])
def test_hostile_names_are_refused(folder: Path, name: str) -> None:
    for argv in (("open", folder, f"--id={name}"), ("note", folder, "x", f"--id={name}"), ("open", folder, "--again", f"--job={name}")):
        done = call(*argv)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("rca: ")
        assert "Traceback" not in done.err
    assert sorted(p.name for p in folder.rglob("*")) == ["INC-1.jsonl", "notes"]


def test_nothing_works_before_an_incident_is_open(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    for argv in (("note", "x"), ("stage", "queue", "--now"), ("overrule", "--cause", "gpu_fault", "--because", "x"), ("close",)):
        done = call(argv[0], tmp_path / "bare", *argv[1:])
        assert (done.code, done.out) == (2, "")
        assert f"rca open {tmp_path / 'bare'}" in done.err
        assert call(argv[0], tmp_path / "nowhere", *argv[1:]).code == 2
    assert not list((tmp_path / "bare").iterdir())


def test_folder_without_readable_evidence_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "prose").mkdir()
    (tmp_path / "prose" / "a.txt").write_text("nothing to see here\n")
    done = call("open", tmp_path / "prose")
    assert (done.code, done.out) == (3, "")
    assert "no readable evidence" in done.err
    assert not (tmp_path / "prose" / "notes").exists()


# Words


HOSTILE = 'line one\nline two\r\x1b[2J\x07 <script>alert(1)</script> | `rm -rf` \u202e \u2028 \x00 {"schema_version": "rca.note/1"}'


def test_text_is_kept_as_it_is_and_never_drives_the_terminal(folder: Path) -> None:
    done = subprocess.run(
        [*RCA, "note", folder, "-", "--by", "x\x1b[2J\ny"], input=HOSTILE.encode(), capture_output=True, cwd=ROOT, timeout=60, check=True
    )
    assert b"\x1b" not in done.stdout + done.stderr
    assert fields(folder)[-1]["text"] == HOSTILE.strip()
    assert len((folder / "notes" / "INC-1.jsonl").read_bytes().splitlines()) == 2
    shown = call("overrule", folder, "--cause", "host_fault", "--because", HOSTILE.replace("\x00", ""))
    assert shown.code == 0
    assert shown.out.isascii() or not re.search("[\x00-\x09\x0b-\x1f\u202e\u2028]", shown.out)
    assert len([line for line in shown.out.splitlines() if line.startswith("line two")]) == 0


def test_bytes_that_are_no_text_do_not_stop_a_note(folder: Path) -> None:
    done = subprocess.run([*RCA, "note", folder, b"caf\xe9 \xff"], capture_output=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert fields(folder)[-1]["text"].startswith("caf")
    piped = subprocess.run([*RCA, "note", folder, "-"], input=b"caf\xe9", capture_output=True, cwd=ROOT, timeout=60, check=False)
    assert piped.returncode == 0
    assert fields(folder)[-1]["text"] == "caf\N{REPLACEMENT CHARACTER}"


def test_a_log_is_no_note(folder: Path) -> None:
    before = (folder / "notes" / "INC-1.jsonl").read_bytes()
    done = subprocess.run([*RCA, "note", folder, "-"], input=b"x" * 1_000_000, capture_output=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 2
    assert b"too long for a note" in done.stderr
    assert (folder / "notes" / "INC-1.jsonl").read_bytes() == before
    assert call("note", folder, "").code == call("note", folder, "  \n").code == 2
    assert call("note", folder, "x" * MAX_TEXT).code == 0


# Times


NOW = datetime(2026, 11, 29, 22, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("-90s", NOW - timedelta(seconds=90)),
        ("-5m", NOW - timedelta(minutes=5)),
        ("-1h30m", NOW - timedelta(minutes=90)),
        ("-2d", NOW - timedelta(days=2)),
        ("2026-11-29T21:16:54Z", datetime(2026, 11, 29, 21, 16, 54, tzinfo=UTC)),
        ("2026-11-29 22:16:54.5+01:00", datetime(2026, 11, 29, 21, 16, 54, 500000, tzinfo=UTC)),
        ("2026-11-29T22:01:00Z", NOW),
    ],
)
def test_moments_that_are_taken(text: str, expected: datetime) -> None:
    assert moment(text, NOW, "--start") == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2026-11-29T21:16:54", "names no zone"),
        ("2026-11-29", "names no zone"),
        ("2026-11-29T23:16:54Z", "in the future"),
        ("9999-12-31T23:59:59-14:00", "in the future|before the year"),
        ("1999-11-29T23:16:54Z", "before the year 2000"),
        ("0001-01-01T00:00:00+14:00", "before the year 2000"),
        ("yesterday", "no moment"),
        ("", "no moment"),
        ("-", "no moment"),
        ("-5", "no moment"),
        ("-5x", "no moment"),
        ("-m5", "no moment"),
        ("5m", "no moment"),
        ("2026-13-01T00:00:00Z", "no moment"),
    ],
)
def test_moments_that_are_refused_with_what_to_type(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"--start.*({says})"):
        moment(text, NOW, "--start")


def test_time_ago_needs_no_equals_sign(folder: Path) -> None:
    assert call("stage", folder, "replace", "--start", "-5m", "--end", "-90s").code == 0
    data = fields(folder)[-1]["data"]
    assert datetime.fromisoformat(data["ended_at"]) - datetime.fromisoformat(data["started_at"]) == timedelta(seconds=210)


# Stages


def test_now_begins_a_stage_and_then_ends_it(folder: Path) -> None:
    assert "queue began" in call("stage", folder, "queue", "--now").out
    assert "queue ended" in call("stage", folder, "queue", "--now").out
    begun, ended = (one["data"] for one in fields(folder)[1:])
    assert (begun["ended_at"], begun["started_at"] is None) == (None, False)
    (queue,) = fold(fields(folder))["stages"]
    assert (queue["started_at"], queue["ended_at"]) == (begun["started_at"], ended["ended_at"])
    assert "load ended" in call("stage", folder, "load", "--start", "-10s", "--now").out


def test_stages_that_cannot_be_are_refused(folder: Path) -> None:
    assert call("stage", folder, "queue", "--start", "2026-11-20T09:00:00Z").code == 0
    for argv, says in (
        (("coffee", "--now"), "choose one of detect"),
        (("replace", "--start", "-1m", "--end", "-2m"), "before it starts"),
        (("queue", "--end", "2026-11-20T08:59:00Z"), "before it starts 2026-11-20T09:00:00Z"),
        (("replace",), "say when"),
        (("replace", "--end", "-1m", "--now"), "give one"),
        (("replace", "--start", "2026-11-20T08:00:00"), "names no zone"),
    ):
        done = call("stage", folder, *argv)
        assert (done.code, done.out) == (2, ""), argv
        assert says in done.err
    assert len(fields(folder)) == 2


# Overrules


def test_overrule_needs_words_of_the_vocabulary_and_a_reason(folder: Path) -> None:
    for argv, says in (
        (("--cause", "gremlins", "--because", "x"), "gpu_fault"),
        (("--attribution", "vendor", "--because", "x"), "platform"),
        (("--action", "pray", "--because", "x"), "retry"),
        (("--because", "x"), "nothing is stated"),
        (("--cause", "gpu_fault", "--because", "  "), "empty"),
        (("--ranks", "three", "--because", "x"), "no rank"),
        (("--hosts", "a b", "--because", "x"), "no name of a host"),
        (("--hosts", "../a", "--because", "x"), "no name of a host"),
        (("--cause", "gpu_fault"), "--because"),
    ):
        done = call("overrule", folder, *argv)
        assert (done.code, done.out) == (2, ""), argv
        assert says in done.err
    assert call("overrule", folder, "--ranks", "4-6,1", "2", "--hosts", "Host-C.x", "--because", "seen").code == 0
    assert fields(folder)[-1]["data"] == {"ranks": [1, 2, 4, 5, 6], "hosts": ["host-c"]}
    assert call("overrule", folder, "--ranks", "--attribution", "planned", "--because", "nobody").code == 0
    assert fields(folder)[-1]["data"] == {"ranks": [], "attribution": "planned"}


# Notes on disk

WRITER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from apps.incidents.notebook import notebook
from rca.incidents.records import note
book = notebook(Path(sys.argv[1]))
print("ready", flush=True)
for number in range(int(sys.argv[3])):
    book.append(note("INC-1", datetime.now(UTC), "note", f"{sys.argv[2]} {number} " + sys.argv[2] * 3000))
"""


def writer(folder: Path, name: str, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(folder), name, str(count)], cwd=ROOT, stdout=subprocess.PIPE)


def test_two_writers_lose_no_note_and_mix_none(folder: Path) -> None:
    both = [writer(folder, name, 60) for name in "ab"]
    assert [one.wait(timeout=120) for one in both] == [0, 0]
    for one in both:
        assert one.stdout
        one.stdout.close()
    book = notebook(folder)
    assert book.skipped == []
    texts = [one["text"] for one in book.notes["INC-1"] if one["kind"] == "note"]
    assert sorted(texts) == sorted(f"{name} {n} " + name * 3000 for name in "ab" for n in range(60))


def test_killed_writer_costs_at_most_its_own_note(folder: Path) -> None:
    victim = writer(folder, "a", 1_000_000)
    assert victim.stdout
    assert victim.stdout.readline() == b"ready\n"
    file = folder / "notes" / "INC-1.jsonl"
    while file.stat().st_size < 100_000:
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.wait(timeout=60)
    victim.stdout.close()
    assert call("note", folder, "after").code == 0
    texts = [one["text"].split()[1] for one in fields(folder) if one["text"].startswith("a ")]
    assert texts == [str(n) for n in range(len(texts))]
    assert fields(folder)[-1]["text"] == "after"


@pytest.mark.parametrize("keep", [1, 30, 200])
def test_torn_last_line_is_skipped_and_the_next_note_starts_afresh(folder: Path, keep: int) -> None:
    file = folder / "notes" / "INC-1.jsonl"
    whole = json.dumps(note("INC-1", T + timedelta(minutes=2), "note", "x" * 300)).encode()
    with file.open("ab") as handle:
        handle.write(whole[:keep])
    done = call("note", folder, "after")
    assert done.code == 0
    assert "L2" in done.err
    assert [one["text"] for one in fields(folder)] == ["opened", "after"]
    assert file.read_bytes().splitlines()[1] == whole[:keep]
    assert call("note", folder, "more").code == 0
    assert [one["text"] for one in fields(folder)] == ["opened", "after", "more"]


def test_only_one_of_two_openings_at_once_counts(folder: Path) -> None:
    stale = notebook(folder)
    with pytest.raises(AlreadyOpen):
        stale.append(note("INC-1", T, "open", "opened", OPEN))
    assert len(fields(folder)) == 1


def test_links_and_devices_in_place_of_notes_are_not_followed(tmp_path: Path) -> None:
    """Evidence is unpacked from anywhere: a link in it must not make the command write elsewhere."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "INC-1.jsonl").write_text("")
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "notes").symlink_to(outside)
    notebook(linked).append(note("INC-1", T, "open", "opened", OPEN))
    assert (outside / "INC-1.jsonl").read_text() == ""
    assert call("note", linked, "x").code == 0
    (tmp_path / "file" / "notes").mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    (tmp_path / "file" / "notes" / "INC-1.jsonl").symlink_to(victim)
    os.mkfifo(tmp_path / "file" / "notes" / "INC-2.jsonl")
    for name in ("INC-1", "INC-2"):
        with pytest.raises(UsageError, match="cannot be written"):
            notebook(tmp_path / "file").append(note(name, T, "open", "opened", OPEN))
    assert victim.read_text() == "mine\n"
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes").write_text("a file of that name")
    assert not notebook(tmp_path / "taken").is_beside


def test_notes_with_a_path_for_a_name_are_left_out(folder: Path) -> None:
    with (folder / "notes" / "INC-1.jsonl").open("a") as file:
        file.write(json.dumps(note("../../etc/x", T, "open", "opened", OPEN)) + "\n")
    book = notebook(folder)
    assert list(book.notes) == ["INC-1"]
    assert "no name of an incident" in book.skipped[0]


@pytest.fixture
def sealed(logs: Path) -> Iterator[Path]:
    paths = [logs, *(p for p in logs.rglob("*") if p.is_dir())]
    for path in paths:
        path.chmod(0o555)
    yield logs
    for path in paths:
        path.chmod(0o755)


def test_read_only_folder_stays_as_it_is(sealed: Path, tmp_path: Path) -> None:
    before = sorted(p.relative_to(sealed) for p in sealed.rglob("*"))
    opened = call("open", sealed)
    assert opened.code == 0
    assert f"notes lie in {tmp_path / 'data' / 'firstfault' / 'notes'}" in opened.err
    assert call("note", sealed, "hello").code == 0
    assert call("close", sealed).code == 0
    assert sorted(p.relative_to(sealed) for p in sealed.rglob("*")) == before
    record = record_in(tmp_path / "data" / "firstfault" / "fleet")
    assert [one["kind"] for one in record["history"]] == ["open", "note", "close"]


def test_archive_keeps_its_notes_in_the_data_folder(logs: Path, tmp_path: Path) -> None:
    archive = tmp_path / "planned.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(logs, "planned")
    assert call("open", archive).code == 0
    assert call("note", archive, "hello").code == 0
    assert "is closed" in call("close", archive, "--fleet", tmp_path / "fleet").out
    assert record_in(tmp_path / "fleet")["cause"] == "planned_stop"
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("planned")) == ["planned", "planned.tar.gz"]


# The fleet


def test_fleet_is_where_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fleet_folder(None) == tmp_path / "data" / "firstfault" / "fleet"
    monkeypatch.setenv("RCA_FLEET", str(tmp_path / "ours"))
    assert fleet_folder(None) == tmp_path / "ours"
    assert fleet_folder(tmp_path / "asked") == tmp_path / "asked"
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="no folder"):
        fleet_folder(tmp_path / "file")


def test_fleet_that_takes_nothing_is_told_before_anything_is_closed(logs: Path, tmp_path: Path) -> None:
    incident = call("open", logs, "--json").doc["incident_id"]
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "incidents").write_text("in the way")
    done = call("close", logs, "--fleet", tmp_path / "fleet")
    assert (done.code, done.out) == (2, "")
    assert "takes no records" in done.err
    assert [one["kind"] for one in fields(logs, incident)] == ["open"]


def test_wrong_words_close_nothing(logs: Path, tmp_path: Path) -> None:
    incident = call("open", logs, "--json").doc["incident_id"]
    for argv in (
        ("--action", "pray"), ("--recomputed-steps", "-3"), ("--gpus", "0"), ("--recurs", "../x"), ("--evicted", "a b"), ("--checkpoint-step", "x"),
    ):  # fmt: skip
        done = call("close", logs, "--fleet", tmp_path / "fleet", *argv)
        assert (done.code, done.out) == (2, ""), argv
    assert [one["kind"] for one in fields(logs, incident)] == ["open"]
    assert not (tmp_path / "fleet").exists()


def test_incident_of_another_origin_is_not_overwritten(logs: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    assert call("open", logs, "--id", "INC-1").code == 0
    assert call("close", logs, "--fleet", fleet).code == 0
    before = record_in(fleet)
    other = copy_case("planned_stop", tmp_path / "other")
    assert call("open", other, "--id", "INC-1").code == 0
    done = call("close", other, "--fleet", fleet)
    assert (done.code, done.out) == (2, "")
    assert "another incident INC-1" in done.err
    assert record_in(fleet) == before


def test_lost_notes_do_not_lose_what_the_fleet_has(logs: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    incident = call("open", logs, "--json").doc["incident_id"]
    file = logs / "notes" / f"{incident}.jsonl"
    first = file.read_bytes()
    assert call("note", logs, "seen").code == 0
    assert call("close", logs, "--fleet", fleet).code == 0
    file.write_bytes(first)
    again = call("close", logs, "--fleet", fleet, "--json").doc
    assert (again["revision"], [one["kind"] for one in again["history"]]) == (2, ["open", "note", "close", "close"])


def test_damaged_record_in_the_fleet_does_not_stop_a_closing(logs: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    call("open", logs)
    first = call("close", logs, "--fleet", fleet, "--json").doc
    (file,) = fleet.glob("incidents/*/*.json")
    good = first["history"]
    for damage in (
        b"",
        b"{",
        b"[]",
        json.dumps(first | {"history": 3}).encode(),
        json.dumps(first | {"history": [3, {}, {"at": 1}, *good[1:]]}).encode(),
    ):
        file.write_bytes(damage)
        (file.parent / "other.json").write_bytes(damage)
        done = call("close", logs, "--fleet", fleet, "--json")
        assert done.code == 0, done.err
        jsonschema.Draft202012Validator(SCHEMA).validate(done.doc)
        assert done.doc["history"][: len(good)] == good


def test_half_written_record_is_no_evidence(logs: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    call("open", logs)
    assert call("close", logs, "--fleet", fleet).code == 0
    (file,) = fleet.glob("incidents/*/*.json")
    shutil.copy(file, file.with_name(f".{file.name}.case-tmp-1"))
    assert "1 incidents" in call("build", fleet).out


def test_same_fault_again_recurs_unless_told_otherwise(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    names = []
    for number in range(2):
        path = copy_case("slow_rank", tmp_path / f"slow{number}")
        (path / "more.txt").write_text(f"capture {number}\n")
        names.append(call("open", path, "--json").doc["incident_id"])
        assert call("close", path, "--fleet", fleet).code == 0
    assert names[0] != names[1]
    found = {r["incident_id"]: r["recurs_incident_id"] for r in (json.loads(f.read_text()) for f in fleet.glob("incidents/*/*.json"))}
    assert found == {names[0]: None, names[1]: names[0]}
    path = tmp_path / "slow1"
    assert call("close", path, "--fleet", fleet, "--recurs", "none", "--json").doc["recurs_incident_id"] is None
    assert call("close", path, "--fleet", fleet, "--recurs", "INC-0", "--json").doc["recurs_incident_id"] == "INC-0"


def test_unknown_cause_closes_with_a_warning_and_without_once_overruled(tmp_path: Path) -> None:
    path, fleet = tmp_path / "little", tmp_path / "fleet"
    path.mkdir()
    shutil.copy(CASES / "lock_hang" / "fr" / "nccl_trace_rank_0", path)
    opened = call("open", path)
    assert opened.code == 0
    assert "the cause is open" in opened.err
    closed = call("close", path, "--fleet", fleet)
    assert closed.code == 0
    assert "unknown cause" in closed.err
    record = record_in(fleet)
    assert (record["cause"], record["num_gpus"], record["lost_gpu_s"]) == ("unknown", None, None)
    assert "GPU" in closed.err
    assert call("overrule", path, "--cause", "network_fault", "--because", "the switch was replaced").code == 0
    closed = call("close", path, "--fleet", fleet, "--gpus", "8")
    assert "unknown cause" not in closed.err
    record = record_in(fleet)
    assert (record["revision"], record["cause"], record["num_gpus"]) == (2, "network_fault", 8)


def test_replay_or_log_added_after_opening_counts_at_closing(tmp_path: Path) -> None:
    path, fleet = copy_case("planned_stop", tmp_path / "growing"), tmp_path / "fleet"
    aside = tmp_path / "logs"
    shutil.move(path / "logs", aside)
    assert call("open", path, "--json").doc["cause"] != "planned_stop"
    shutil.move(aside, path / "logs")
    record = call("close", path, "--fleet", fleet, "--json").doc
    assert (record["cause"], record["diagnosis"]["cause"]) == ("planned_stop", "planned_stop")
    assert record["history"][0]["data"]["diagnosis"]["cause"] != "planned_stop"
    assert record_in(fleet) == record


def test_what_is_written_while_somebody_closes_counts(logs: Path, tmp_path: Path) -> None:
    """Two closings and an overrule at once: whoever comes second makes the next revision, and the record holds all that lies on disk."""
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    incident = call("open", logs, "--json").doc["incident_id"]
    with fleetbook.locked(fleet):
        first = start("close", logs, "--fleet", fleet, "--by", "p1", "--evicted", "host-a", "--checkpoint-step", "3", "--gpus", "8")
        second = start("close", logs, "--fleet", fleet, "--by", "p2", "--evicted", "host-b")
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(3.0)  # it has read the evidence by now, or will: it cannot write
        assert call("overrule", logs, "--cause", "storage_stall", "--because", "late").code == 0
    closed = [finish(first), finish(second)]
    assert [done.code for done in closed] == [0, 0], closed
    record = record_in(fleet)
    assert [one["kind"] for one in record["history"]] == ["open", "overrule", "close", "close"]
    assert record["history"] == fields(logs, incident)
    assert (record["revision"], record["is_overruled"], record["num_gpus"]) == (2, True, 8)
    assert sum("(revision 2;" in done.out for done in closed) == 1


def test_who_adds_to_a_closed_incident_is_told_to_close_it_again(logs: Path, tmp_path: Path) -> None:
    assert call("open", logs).code == 0
    assert "closed before" not in call("overrule", logs, "--cause", "storage_stall", "--because", "x").err
    assert call("close", logs, "--fleet", tmp_path / "fleet").code == 0
    for argv in (("overrule", logs, "--cause", "host_fault", "--because", "y"), ("stage", logs, "load", "--now")):
        assert f"close it again: rca close {logs}" in call(*argv).err


def test_pipes_and_devices_among_the_records_are_not_opened(logs: Path, tmp_path: Path) -> None:
    week, launches = (tmp_path / "fleet" / kind / "2026-W48" for kind in ("incidents", "attempts"))
    for folder in (week, launches):
        folder.mkdir(parents=True)
    os.mkfifo(week / "INC-1.json")
    (week / "other.json").symlink_to("/dev/zero")
    (launches / "job-9-0.json").symlink_to("/dev/zero")
    os.mkfifo(launches / "job-9-1.json")
    assert call("open", logs, "--id", "INC-1", "--job", "job-9").code == 0
    done = finish(start("close", logs, "--fleet", tmp_path / "fleet", "--json"), timeout_s=60.0)
    assert done.code == 0, done.err
    (week / "other.json").unlink()
    assert record_in(tmp_path / "fleet") == done.doc
    assert json.loads((launches / "job-9-0.json").read_text())["job_id"] == "job-9"
    assert not (launches / "job-9-0.json").is_symlink()


def test_an_incident_repeats_another_one_that_there_is(logs: Path, tmp_path: Path) -> None:
    assert call("open", logs, "--id", "INC-2").code == 0
    done = call("close", logs, "--fleet", tmp_path / "fleet", "--recurs", "INC-2")
    assert (done.code, done.out) == (2, "")
    assert "the incident itself" in done.err
    assert not (tmp_path / "fleet").exists()
    done = call("close", logs, "--fleet", tmp_path / "fleet", "--recurs", "NOSUCH")
    assert done.code == 0
    assert "has no record of it" in done.err


def test_another_launch_of_the_same_number_is_not_replaced(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    paths = [copy_case(name, tmp_path / name) for name in ("rank_killed", "worker_oom_killed")]
    for path in paths:
        assert call("open", path, "--job", "pretrain").code == 0
    assert call("close", paths[0], "--fleet", fleet).code == 0
    (file,) = fleet.glob("attempts/*/*.json")
    before = file.read_bytes()
    done = call("close", paths[1], "--fleet", fleet)
    assert (done.code, done.out) == (2, "")
    assert "another launch of pretrain with the number 0" in done.err
    assert "--attempt 1" in done.err
    assert (file.read_bytes(), len(list(fleet.glob("incidents/*/*.json")))) == (before, 1)
    assert [one["kind"] for notes in notebook(paths[1]).notes.values() for one in notes] == ["open"]
    done = call("close", paths[1], "--fleet", fleet, "--attempt", "1", "--json")
    assert (done.code, done.doc["attempt"]) == (0, 1)
    assert sorted(one.name for one in fleet.glob("attempts/*/*.json")) == ["pretrain-0.json", "pretrain-1.json"]
    assert call("close", paths[0], "--fleet", fleet).code == 0  # its own, again
    assert file.read_bytes() == before


def test_launch_that_nothing_shows_is_left_out_until_a_person_says_when_it_began(tmp_path: Path) -> None:
    path, fleet = copy_case("lock_hang", tmp_path / "hang"), tmp_path / "fleet"
    for other in path.iterdir():
        if other.name not in ("fr", "stacks", "topology.json"):
            shutil.rmtree(other) if other.is_dir() else other.unlink()
    assert call("open", path).code == 0
    closed = call("close", path, "--fleet", fleet)
    assert closed.code == 0
    assert "--started-at" in closed.err
    assert list(fleet.glob("attempts/*/*.json")) == []
    late = call("close", path, "--fleet", fleet, "--started-at", "2026-11-29T22:00:00Z")
    assert (late.code, late.out) == (2, "")
    assert "check the time" in late.err
    for typed in ("2026-11-29T20:00:00Z", "2026-11-29T20:30:00Z"):  # whoever corrects it is believed
        done = call("close", path, "--fleet", fleet, "--started-at", typed)
        assert done.code == 0, done.err
        (file,) = fleet.glob("attempts/*/*.json")
        assert json.loads(file.read_text())["started_at"] == typed
    assert call("close", path, "--fleet", fleet).code == 0
    assert json.loads(file.read_text())["started_at"] == typed


def test_launch_that_ended_well_has_ended(tmp_path: Path) -> None:
    path = copy_case("none", tmp_path / "none")
    for log in (path / "logs").glob("rank_*.log"):
        who = re.findall(r"\[host-.\]\[rank\d\]", log.read_text())[0]
        with log.open("a") as file:
            file.write(f"2026-11-29 21:10:09,000 {who} INFO training finished\n")
    assert call("open", path, "--job", "short").code == 0
    closed = call("close", path, "--fleet", tmp_path / "fleet", "--json")
    assert (closed.code, closed.doc["attribution"]) == (0, "none")
    (file,) = (tmp_path / "fleet").glob("attempts/*/*.json")
    launch = json.loads(file.read_text())
    assert (launch["ended_at"], launch["end_kind"]) == ("2026-11-29T21:10:09Z", "completed")


def test_a_death_that_a_person_calls_healthy_is_an_end_all_the_same(tmp_path: Path) -> None:
    path = copy_case("rank_killed", tmp_path / "killed")
    assert call("open", path, "--job", "short").code == 0
    assert call("overrule", path, "--cause", "healthy", "--because", "I ended it").code == 0
    assert call("close", path, "--fleet", tmp_path / "fleet").code == 0
    (file,) = (tmp_path / "fleet").glob("attempts/*/*.json")
    launch = json.loads(file.read_text())
    assert launch["ended_at"] is not None
    assert launch["end_kind"] is None


def test_a_clock_that_was_ahead_is_told_and_the_order_of_lines_counts(folder: Path) -> None:
    ahead = datetime.now(UTC) + timedelta(days=300)
    notebook(folder).append(note("INC-1", ahead, "overrule", "clock was ahead", {"cause": "storage_stall"}))
    done = call("overrule", folder, "--cause", "host_fault", "--because", "corrected")
    assert "that clock was ahead" in done.err
    assert fold(fields(folder))["cause"] == "host_fault"


def test_notes_beyond_all_measure_are_left_out(folder: Path) -> None:
    with (folder / "notes" / "INC-2.jsonl").open("wb") as file:
        file.truncate(1 << 27)
    done = call("note", folder, "x")
    assert done.code == 0
    assert "INC-2.jsonl is larger" in done.err


def whole_line(out: str) -> str:
    (line,) = [line for line in out.splitlines() if line.startswith("  whole")]
    return line


def test_no_budget_is_kept_while_the_job_stands(folder: Path) -> None:
    begun = whole_line(call("stage", folder, "replace", "--start", "2026-11-20T08:02:00Z").out)
    assert "2 min so far" in begun
    ended = whole_line(call("stage", folder, "replace", "--end", "2026-11-20T08:03:00Z").out)
    assert "3 min so far" in ended
    assert "kept" not in begun + ended
    late = whole_line(call("stage", folder, "load", "--start", "2026-11-20T08:11:00Z").out)
    assert "11 min so far" in late
    assert "over by 60 s" in late  # that can be said before it is over
    back = whole_line(call("stage", folder, "resume", "--end", "2026-11-20T08:09:00Z").out)
    assert re.search(r" 9 min +10 min, kept +from the fault to the end of resume", back)


def test_a_closed_incident_whose_repair_nobody_timed_keeps_no_budget(logs: Path, tmp_path: Path) -> None:
    assert "so far" in whole_line(call("open", logs).out)
    assert "kept" not in whole_line(call("close", logs, "--fleet", tmp_path / "fleet").out)
