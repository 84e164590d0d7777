"""Replays that really run, every host a process: a flipped bit, none, one that shows now and then, a host that dies; and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from _house import ROOT, Done, call

from rca.errors import UsageError
from rca.probes._replay_order import RunOptions, load_plan, parse_injection
from rca.probes._replay_plan import plan_document
from rca.probes._replay_run import run_plan

END_WAIT_S = 30.0


def plan_file(folder: Path, num_hosts: int, pp: int, **more: Any) -> Path:
    path = folder / "plan.json"
    path.write_text(json.dumps(plan_document(num_hosts, pp, **more)))
    return path


def replayed(folder: Path, plan: Path, *words: str) -> Done:
    return call("replay", "run", plan, "--out", folder / "out", "--json", *words)


def the_one(done: Done) -> dict[str, Any]:
    assert done.code == 0, done.err
    (found,) = done.doc["replays"]
    return dict(found)


def processes_of(folder: Path) -> list[int]:
    """Pids, zombies left out, whose command line names the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.live
def test_the_host_with_a_flipped_bit_is_named(tmp_path: Path) -> None:
    """Eight hosts in two phases of four groups; the flip hits an activation, so that its whole group differs in the same step."""
    plan = plan_file(tmp_path, 8, 2, hosts=[f"node-{n}" for n in (5, 1, 7, 3, 0, 2, 6, 4)], suspects=["node-3"])
    found = the_one(replayed(tmp_path, plan, "--inject", "host=node-3,step=1,bit=17,where=activation", "--steps", "3"))
    assert (found["outcome"], found["hosts"]) == ("culprit", ["node-3"])
    assert (found["runs_differed"], found["runs"]) == (2, 2)
    differing = {(g["phase"], g["group"]): g["hosts"] for g in found["groups"] if g["outcome"] == "differs"}
    assert differing == {("horizontal", 1): ["node-7", "node-3"], ("vertical", 3): ["node-3", "node-4"]}
    assert processes_of(tmp_path) == []
    names = sorted(path.name for path in (tmp_path / "out").iterdir() if path.name != "case.duckdb")
    assert names == sorted(["plan.json", *(f"{phase}-{number}-r0.json" for phase in ("horizontal", "vertical") for number in range(4))])
    record = json.loads((tmp_path / "out" / "horizontal-1-r0.json").read_text())
    assert record["schema_version"] == "rca.replay/1"
    assert record["outcome"] == "differs"
    assert [step["outcome"] for step in record["hosts"][1]["steps"]] == ["equal", "differs", "differs", "differs"]


@pytest.mark.live
def test_without_a_fault_all_groups_agree_bit_by_bit(tmp_path: Path) -> None:
    """Replicas too: groups of two pipelines, whose gradients are summed."""
    found = the_one(replayed(tmp_path, plan_file(tmp_path, 8, 2, k=2), "--steps", "2", "--repeats", "2"))
    assert (found["outcome"], found["hosts"]) == ("clean", [])
    assert {g["outcome"] for g in found["groups"]} == {"equal"}
    assert {tuple(g["repeats"].items()) for g in found["groups"]} == {(("equal", 2),)}
    record = json.loads((tmp_path / "out" / "horizontal-1-r1.json").read_text())
    told = [[step["fingerprint"] for step in host["steps"]] for host in record["hosts"]]
    assert len({fingerprint for host in told for fingerprint in host[:-1]}) == 4 * 2, "places and steps that look alike hide faults"
    assert told[0][-1] == told[2][-1], "replicas hold the same parameters"
    assert told[0][-1] != told[1][-1]


@pytest.mark.live
def test_a_flip_that_shows_now_and_then_is_found_by_repeats_and_the_dead_are_missing(tmp_path: Path) -> None:
    """Host 4 dies in the middle; host 2 flips a bit in about half of the runs, and its group of each phase shows it before it spreads."""
    words = ("--inject", "host=2,step=1,bit=9,probability=0.5", "--inject", "host=4,step=1,kill", "--repeats", "8", "--steps", "2")
    found = the_one(replayed(tmp_path, plan_file(tmp_path, 6, 2), *words))
    assert (found["outcome"], found["hosts"]) == ("culprit", ["host-2"])
    assert 0 < found["runs_differed"] < found["runs"] == 16
    missing = {(g["phase"], g["group"]) for g in found["groups"] if g["outcome"] == "missing"}
    assert missing == {("horizontal", 2), ("vertical", 1)}
    assert "2 groups told nothing" in found["then"]
    record = json.loads((tmp_path / "out" / "vertical-1-r0.json").read_text())
    assert record["outcome"] == "missing"
    assert "exit code -9" in record["why"]


@pytest.mark.live
def test_too_few_hosts_run_twice_on_their_own_and_a_dead_one_leaves_it_open(tmp_path: Path) -> None:
    plan = plan_file(tmp_path, 3, 2, prefers_double_run=True)
    found = the_one(replayed(tmp_path, plan, "--inject", "host=1,step=0,bit=31,where=parameter", "--steps", "1"))
    assert (found["outcome"], found["hosts"]) == ("culprit", ["host-1"])
    shutil.rmtree(tmp_path / "out")
    found = the_one(replayed(tmp_path, plan, "--inject", "host=1,step=0,kill", "--steps", "1"))
    assert (found["outcome"], found["hosts"]) == ("undecided", [])


@pytest.mark.live
def test_a_group_that_takes_too_long_is_missing(tmp_path: Path) -> None:
    found = the_one(replayed(tmp_path, plan_file(tmp_path, 2, 1), "--timeout", "0.3"))
    assert found["outcome"] == "undecided"
    assert {g["outcome"] for g in found["groups"]} == {"missing"}
    assert json.loads((tmp_path / "out" / "vertical-0-r0.json").read_text())["why"] == "timed out"
    assert processes_of(tmp_path) == []


@pytest.mark.live
@pytest.mark.parametrize("how", [[], pytest.param(["--torchrun", "--parallel", "1"], marks=pytest.mark.slow)])
def test_a_killed_run_leaves_a_plan_that_says_what_is_missing_and_no_process(how: list[str], tmp_path: Path) -> None:
    plan = plan_file(tmp_path, 8, 2)
    words = [sys.executable, "-m", "apps.cli", "replay", "run", str(plan), "--out", str(tmp_path / "out"), "--repeats", "500", *how]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        deadline = time.monotonic() + END_WAIT_S
        while not list((tmp_path / "out").glob("work*/*/place_0.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (tmp_path / "out" / "plan.json").is_file()
        run.kill()
    deadline = time.monotonic() + END_WAIT_S
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of(tmp_path) == []
    done = call("replay", "judge", tmp_path / "out", "--json")
    assert (the_one(done)["outcome"], {g["outcome"] for g in the_one(done)["groups"]}) == ("undecided", {"missing"})


@pytest.mark.live
@pytest.mark.slow
def test_a_launcher_starts_torchrun_on_every_host(tmp_path: Path) -> None:
    """Four addresses of this machine stand in for hosts; the launcher is `env`, which runs the command where it is."""
    plan = plan_file(tmp_path, 4, 2, hosts=[f"127.0.0.{n}" for n in range(1, 5)])
    words = ("--launcher", "env REPLAYED_ON={host}", "--inject", "host=127.0.0.3,step=1,bit=20", "--parallel", "1")
    found = the_one(replayed(tmp_path, plan, *words))
    assert (found["outcome"], found["hosts"]) == ("culprit", ["127.0.0.3"])


@pytest.mark.live
def test_torchrun_starts_each_group_here_with_the_same_bits_as_forks(tmp_path: Path) -> None:
    """Two groups of two workers under torch.distributed.run, gloo on the CPUs."""
    plan = plan_document(4, 2)
    plan |= {"phases": plan["phases"][:1]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    words = ("--steps", "1", "--inject", "host=2,step=0,bit=20")
    found = the_one(replayed(tmp_path, tmp_path / "plan.json", *words, "--torchrun"))
    assert (found["outcome"], {g["outcome"] for g in found["groups"]}) == ("undecided", {"undecided"})
    records = {path.name: json.loads(path.read_text()) for path in (tmp_path / "out").glob("*-r0.json")}
    shutil.rmtree(tmp_path / "out")
    replayed(tmp_path, tmp_path / "plan.json", *words)
    for name, record in records.items():
        forked = json.loads((tmp_path / "out" / name).read_text())
        assert record["hosts"] == forked["hosts"]
        assert all(host["steps"] for host in record["hosts"])
    assert processes_of(tmp_path) == []


def test_a_torn_record_is_missing_and_said(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    for name, text in a_run(["n0", "n1", "n2"]).items():
        (folder / name).write_text(text)
    assert the_one(call("replay", "judge", folder, "--json"))["outcome"] == "clean"
    torn = folder / "double_run-1-r0.json"
    torn.write_text(torn.read_text()[:-60])
    done = call("replay", "judge", folder, "--json")
    found = the_one(done)
    assert found["outcome"] == "undecided"
    assert [(g["hosts"], g["repeats"]) for g in found["groups"] if g["outcome"] == "missing"] == [(["n1"], {"equal": 1, "missing": 1})]
    assert [skip["path"] for skip in done.doc["skipped"]] == ["double_run-1-r0.json"]
    assert "this run of the replay is missing" in call("replay", "judge", folder).out


def test_hostile_names_stay_on_their_line(tmp_path: Path) -> None:
    names = ["$(reboot)", "<b>x</b>", "a b'\"`|;"]
    folder = tmp_path / "records"
    folder.mkdir()
    for name, text in a_run(names, wrong=names[0]).items():
        (folder / name).write_text(text)
    done = call("replay", "judge", folder, "--json")
    assert the_one(done)["hosts"] == ["$(reboot)"]
    text = call("replay", "judge", folder).out
    assert "Proven: $(reboot)" in text
    (folder / "double_run-0-r0.json").write_text(a_run(["\x1b[2J\nProven: n9", "n1"])["double_run-0-r0.json"])
    shown = call("replay", "judge", folder).out
    assert "\x1b" not in shown
    assert not any(line.startswith("Proven: n9") for line in shown.splitlines())
    plan = plan_document(3, 2, prefers_double_run=True, hosts=names)
    with pytest.raises(UsageError, match="no name that a launcher can be given"):
        run_plan(plan, tmp_path / "out", RunOptions(launcher="ssh {host}"))
    assert not (tmp_path / "out").exists()


def a_run(names: list[str], wrong: str | None = None) -> dict[str, str]:
    """Files of a double run of two repeats, as `run` leaves them."""
    plan = {**plan_document(len(names), 2, mode="double_run", hosts=names), "replay_id": "r-1"}
    files = {"plan.json": json.dumps(plan)}
    for number, name in enumerate(names):
        for repeat in range(2):
            steps = [
                {"step": step, "fingerprint": f"{step}{'x' if name == wrong else ''}", "expected": None, "outcome": None}
                for step in range(3)
            ]
            record = {
                "schema_version": "rca.replay/1", "replay_id": "r-1", "phase": "double_run", "group": number, "repeat": repeat, "outcome": None,
                "ended_at": "2026-03-02T08:00:00Z", "hosts": [{"host": name, "index": number, "place": 0, "outcome": None, "steps": steps}],
            }  # fmt: skip
            files[f"double_run-{number}-r{repeat}.json"] = json.dumps(record, indent=1)
    return files


def test_a_folder_without_records_is_no_readable_evidence(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("nothing here\n")
    done = call("replay", "judge", tmp_path)
    assert done.code == 3
    assert "No record of a replay" in done.out
    assert call("replay", "judge", tmp_path / "gone").code == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("host=9,step=1,bit=3", "there is no host 9, they go from 0 to 3"),
        ("host=n9,step=1,bit=3", "wanted is host=N"),
        ("host=1,step=4,bit=3", "steps go from 0 to 3"),
        ("host=1,step=1,bit=32", "bits from 0 to 31"),
        ("host=1,step=1,bit=3,probability=2", "a probability from 0 to 1"),
        ("host=1,step=1,bit=3,where=moon", "gradient|parameter|activation"),
        ("host=1,step=1", "wanted is"),
        ("host=1,step=1,bit=3,kill", "wanted is"),
        ("", "wanted is"),
    ],
)
def test_a_fault_that_cannot_be_injected_is_refused(text: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_injection(text, ["n0", "n1", "n2", "n3"], 4)
    assert told in str(refused.value)


def test_a_fault_names_its_host_by_name_or_number() -> None:
    by_name = parse_injection("host=n2,step=1,bit=31,probability=0.5,where=activation", ["n0", "n1", "n2"], 4)
    assert by_name == {"host": 2, "step": 1, "bit": 31, "probability": 0.5, "where": "activation"}
    assert parse_injection("host=2,step=1,kill", ["n0", "n1", "n2"], 4)["bit"] is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema_version": "rca.incident/1"}, "no rca.replay_plan/1"),
        ({"num_hosts": 5}, "every host once"),
        ({"hosts": ["a"] * 4}, "1 different names"),
        ({"hosts": ["a.x", "a.y", "b", "c"]}, "3 different names"),
        ({"phases": [{"name": "horizontal", "groups": [[0, 1], [2]], "order": [0, 1]}]}, "every host once"),
        ({"phases": None}, "the plan is damaged"),
        ({"pp": 3}, "every host once"),
        ({"repeats": 0}, "0 repeats are no run"),
        ({"repeats": "many"}, "the plan is damaged"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**plan_document(4, 2), **change}))
    with pytest.raises(UsageError, match=told):
        load_plan(path)
    assert call("replay", "run", path, "--out", tmp_path / "out").code == 2
    assert not (tmp_path / "out").exists()


def test_what_is_no_plan_and_a_filled_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text('{"schema_version": "rca.replay_plan/1"')
    with pytest.raises(UsageError, match="rca replay plan --out FILE"):
        load_plan(tmp_path / "torn.json")
    done = call("replay", "run", plan_file(tmp_path, 4, 2), "--out", tmp_path)
    assert (done.code, "is not an empty folder" in done.err) == (2, True)
    done = call("replay", "run", tmp_path / "plan.json", "--out", tmp_path / "out", "--launcher", "ssh somewhere")
    assert (done.code, "{host} must stand" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--timeout", "nan"), "--timeout nan"),
        (("--timeout", "inf"), "--timeout inf"),
        (("--timeout", "0"), "--timeout 0"),
        (("--steps", "0"), "--steps 0"),
        (("--repeats", "0"), "--repeats 0"),
        (("--parallel", "0"), "--parallel 0"),
        (("--seed", str(1 << 60)), "--seed"),
        (("--torchrun", "--launcher", "ssh {host}"), "--torchrun is for a run on this machine"),
    ],
)
def test_a_number_that_is_none_is_refused_before_anything_runs(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    done = call("replay", "run", plan_file(tmp_path, 4, 2), "--out", tmp_path / "out", *words)
    assert (done.code, told in done.err) == (2, True)
    assert not (tmp_path / "out").exists()


def test_a_plan_that_would_not_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = call("replay", "run", tmp_path / "pipe", "--out", tmp_path / "out")
    assert (done.code, "not a regular file" in done.err) == (2, True)
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert call("replay", "run", tmp_path / "zero", "--out", tmp_path / "out").code == 2


def test_an_interpreter_without_torch_says_what_to_install(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    done = call("replay", "run", plan_file(tmp_path, 4, 2), "--out", tmp_path / "out", "--python", str(bare))
    assert done.code == 2
    assert "install firstfault[drill]" in done.err
    assert not (tmp_path / "out").exists()
