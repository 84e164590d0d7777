"""Live drills run to their end and leave nothing running; the shipped captures are complete, small and neutral."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

import pytest
from _dumps import load_dump

from apps.verbs import drill as verb
from rca import plugins
from rca.causes import ACTIONS, ATTRIBUTIONS, CAUSES, LAYERS
from rca.drills._harness import Drill, run_live
from rca.drills._launch import Ends
from rca.drills._layout import Layout
from rca.drills._neutral import leaks, neutralise
from rca.errors import ProbeError, UsageError

ROOT = Path(__file__).parents[2]
CASES = ROOT / "data" / "cases"
FAULTS = plugins.names("rca.drills")
TRUTH_KEYS = {"first_failing_ranks", "hosts", "cause", "layer", "attribution", "action", "what"}
SHIPPED = sorted(path.parent for path in CASES.glob("*/truth.json"))
MAX_CASE_BYTES = 300_000
MACHINE_PATH = re.compile(rb"/(?:root|work|home)/|\.pyenv|site-packages/firstfault")
DEAD = {  # of the shipped captures: ranks that left neither dump nor stack
    "bad_sample": {3},
    "host_lost": {4, 5},
    "mismatched_size": {3},
    "nan": {5},
    "planned_stop": set(range(8)),
    "rank_killed": {6},
    "worker_oom_killed": {4},
}
END_WAIT_S = 30.0
NUM_HIT = {
    "none": 1,
    "planned_stop": 1,
    "preemption": 1,
    "host_lost": 4,
    "checkpoint_stuck": 4,
    "p2p_stuck": 4,
    "bit_flip": 6,
}  # sets of ranks over many seeds, else 8


def processes_of(job_dir: Path) -> list[int]:
    """Pids, zombies left out, whose command line names the job's folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(job_dir).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_until_gone(job_dir: Path) -> list[int]:
    deadline = time.monotonic() + END_WAIT_S
    while (left := processes_of(job_dir)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def small(fault: str, job_dir: Path, layout: Layout | None = None) -> Drill:
    layout = layout or Layout(tp=2, pp=1, dp=1)
    return Drill(fault, layout, job_dir=job_dir, num_rounds=2, round_gap_s=1.0, json_rounds=1, is_neutral=True)


def index_of(case: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((case / "stacks" / "index.json").read_text())
    return rows


@pytest.mark.live
def test_a_lock_hang_is_captured_and_leaves_no_process(tmp_path: Path) -> None:
    out, job_dir = tmp_path / "case", tmp_path / "job"
    result = run_live(small("lock_hang", job_dir), out)
    assert processes_of(job_dir) == []
    assert not job_dir.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["case"]
    truth = json.loads((out / "truth.json").read_text())
    assert set(truth) == TRUTH_KEYS
    assert truth["cause"] == ["code_hang"]
    (culprit,) = truth["first_failing_ranks"]
    dumps = {rank: load_dump((out / "fr" / f"nccl_trace_rank_{rank}").read_bytes()) for rank in result.dumped}
    last = {rank: max(entry["collective_seq_id"] for entry in dump["entries"]) for rank, dump in dumps.items()}
    assert set(last) == {0, 1}
    assert last[culprit] < last[1 - culprit]
    assert result.first_steps == result.last_steps
    assert "StepLog._rotate" in (out / "stacks" / "round_1" / f"rank_{culprit}.main.txt").read_text()
    assert {row["rc"] for row in index_of(out)} == {0}
    assert {row["role"] for row in index_of(out)} == {"main", "worker0"}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.live
def test_a_flipped_bit_shows_in_the_checksums_of_one_replica(tmp_path: Path) -> None:
    out = tmp_path / "case"
    run_live(small("bit_flip", tmp_path / "job", Layout(tp=1, pp=1, dp=3)), out)
    truth = json.loads((out / "truth.json").read_text())
    (culprit,), step = truth["first_failing_ranks"], truth["what"]["fault_step"]
    local = {rank: lines_of(out / "timings" / f"local_rank_{rank}.jsonl") for rank in range(3)}
    sums = {rank: [row["param_crc"] for row in rows[: step + 5]] for rank, rows in local.items()}
    first, second = (sums[rank] for rank in sums if rank != culprit)
    assert first == second
    assert first[:step] == sums[culprit][:step]
    assert all(mine != theirs for mine, theirs in zip(sums[culprit][step:], first[step:], strict=True))
    samples = [number for rows in local.values() for row in rows[:5] for number in row["samples"]]
    assert sorted(samples) == list(range(3 * 5 * 8))
    for row in lines_of(out / "timings" / "rank_0.jsonl")[1:5]:
        assert set(row) == {"rank", "step", "t_start_ns", "dur_ms", "phases", "detail"}
        assert 200 < row["detail"]["fwd_compute"] + row["detail"]["bwd_compute"] <= row["dur_ms"]
        assert sum(row["phases"].values()) == pytest.approx(row["dur_ms"], rel=0.05, abs=5)


@pytest.mark.live
def test_a_lost_host_leaves_what_it_wrote_before_and_nothing_after(tmp_path: Path) -> None:
    out = tmp_path / "case"
    result = run_live(small("host_lost", tmp_path / "job", Layout(tp=2, pp=1, dp=2)), out)
    truth = json.loads((out / "truth.json").read_text())
    lost, (host,) = set(truth["first_failing_ranks"]), truth["hosts"]
    left = {0, 1, 2, 3} - lost
    assert lost in ({0, 1}, {2, 3})
    assert set(result.dumped) == left
    assert {row["rank"] for row in index_of(out)} == left
    assert "exitcode" not in (out / "logs" / f"{host}.agent.log").read_text()
    assert all("Traceback" not in (out / "logs" / f"rank_{rank}.stderr.log").read_text() for rank in lost)
    assert any("collective failed" in (out / "logs" / f"rank_{rank}.stderr.log").read_text() for rank in left)
    assert {len(lines_of(out / "timings" / f"rank_{rank}.jsonl")) >= truth["what"]["fault_step"] - 1 for rank in range(4)} == {True}


@pytest.mark.live
def test_a_planned_stop_leaves_its_reason_and_no_process_to_ask(tmp_path: Path) -> None:
    out = tmp_path / "case"
    result = run_live(small("planned_stop", tmp_path / "job"), out)
    assert result.dumped == ()
    assert sorted(path.name for path in out.iterdir()) == ["kernel", "logs", "timings", "topology.json", "truth.json"]
    agent = (out / "logs" / "host-a.agent.log").read_text()
    assert 0 < agent.index(" operator: ") < agent.index("Received 15 death signal")


@pytest.mark.live
def test_a_terminated_drill_takes_its_job_along(tmp_path: Path) -> None:
    job_dir = tmp_path / "job"
    command = [sys.executable, "-c", RUN_VERB, "run", "none", "--out", str(tmp_path / "case"), "--live"]
    command += ["--tp", "1", "--pp", "1", "--dp", "2", "--job-dir", str(job_dir)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as drill:
        assert drill.stderr is not None
        assert drill.stderr.readline().startswith("started 2 ranks")
        assert processes_of(job_dir)
        drill.send_signal(signal.SIGTERM)
        drill.communicate(timeout=60)
    assert drill.returncode != 0
    assert wait_until_gone(job_dir) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.live
def test_a_killed_drill_takes_its_job_along(tmp_path: Path) -> None:
    job_dir = tmp_path / "job"
    command = [sys.executable, "-c", RUN_VERB, "run", "none", "--out", str(tmp_path / "case"), "--live"]
    command += ["--tp", "1", "--pp", "1", "--dp", "2", "--job-dir", str(job_dir)]
    with tempfile.TemporaryDirectory() as short:  # for what a killed drill cannot clear away
        environment = {**os.environ, "TMPDIR": short}
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment) as drill:
            assert drill.stderr is not None
            drill.stderr.readline()
            assert drill.stderr.readline() == "training\n"  # the agents are stopped from here on
            drill.kill()
        assert wait_until_gone(job_dir) == []


RUN_VERB = """
import argparse, sys
from apps.verbs import drill
parser = argparse.ArgumentParser()
drill.arguments(parser)
sys.exit(drill.run(parser.parse_args()))
"""


@pytest.mark.parametrize("case", SHIPPED, ids=lambda case: case.name)
def test_a_shipped_case_is_complete(case: Path) -> None:
    truth = json.loads((case / "truth.json").read_text())
    drill = plugins.load("rca.drills", case.name)
    layout = getattr(drill, "LAYOUT", Layout(tp=2, pp=2, dp=2))
    injection = drill.inject(layout, seed=truth["what"]["seed"])
    assert set(truth) == TRUTH_KEYS
    assert truth["first_failing_ranks"] == list(injection.ranks)
    assert {key: truth[key] for key in drill.TRUTH} == drill.TRUTH
    topology = json.loads((case / "topology.json").read_text())
    assert topology == layout.topology()
    ranks = set(range(layout.world_size))
    living = ranks - DEAD.get(case.name, set())
    assert {path.name for path in case.glob("fr/*")} == {f"nccl_trace_rank_{rank}" for rank in living}
    rows = index_of(case) if living else []
    assert {row["rank"] for row in rows if row["role"] == "main" and row["rc"] == 0} == living
    written = {f"round_{row['round']}/rank_{row['rank']}.{row['role']}.{row['format']}" for row in rows if row["rc"] == 0}
    stacks = case / "stacks"
    assert written == {str(path.relative_to(stacks)) for path in stacks.glob("round_*/*")}
    logs = {*(f"rank_{rank}.stderr.log" for rank in ranks), *(f"{host}.agent.log" for host in layout.hosts)}
    assert {path.name for path in (case / "logs").iterdir()} == logs
    timings = {f"{name}_{rank}.jsonl" for name in ("rank", "local_rank") for rank in ranks}
    assert {path.name for path in (case / "timings").iterdir()} == timings
    assert {path.name for path in (case / "kernel").iterdir()} == {"hosts.json", *(f"{host}.dmesg.log" for host in layout.hosts)}


def shipped_files(folder: Path) -> list[Path]:
    """What is shipped: not the case file, which `make demo` builds beside the evidence."""
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "case.duckdb"]


@pytest.mark.parametrize("case", SHIPPED, ids=lambda case: case.name)
def test_a_shipped_case_is_small_and_names_no_machine(case: Path) -> None:
    files = shipped_files(case)
    assert sum(path.stat().st_size for path in files) < MAX_CASE_BYTES
    assert [path for path in files if MACHINE_PATH.search(path.read_bytes())] == []


@pytest.mark.parametrize("case", SHIPPED, ids=lambda case: case.name)
def test_shipped_dumps_hold_the_groups_of_their_rank(case: Path) -> None:
    groups = json.loads((case / "topology.json").read_text())["groups"]
    for path in case.glob("fr/*"):
        rank = int(path.name.rsplit("_", 1)[1])
        own = {(group["name"], group["desc"]) for group in groups if rank in group["ranks"]}
        entries = load_dump(path.read_bytes())["entries"]
        assert {entry["process_group"] for entry in entries} <= own
        assert 0 < len(entries) <= verb.SMALL["buffer_entries"]


def test_the_archive_is_the_folder_without_its_truth() -> None:
    folder = CASES / "skipped_collective"
    with tarfile.open(CASES / "skipped_collective.tar.gz") as archive:
        members = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        found = {name: file.read() for name, file in members.items() if file is not None}
    wanted = {str(path.relative_to(CASES)): path.read_bytes() for path in shipped_files(folder)}
    truth = wanted.pop("skipped_collective/truth.json")
    assert found == wanted
    assert (CASES / "skipped_collective.truth.json").read_bytes() == truth


@pytest.mark.parametrize("fault", FAULTS)
def test_the_same_seed_hits_the_same_rank(fault: str) -> None:
    drill = plugins.load("rca.drills", fault)
    layout = getattr(drill, "LAYOUT", Layout(tp=2, pp=2, dp=2))
    assert drill.inject(layout, seed=5) == drill.inject(layout, seed=5)
    hit = {drill.inject(layout, seed=seed).ranks for seed in range(60)}
    assert len(hit) == NUM_HIT.get(fault, 8)
    assert all(set(drill.inject(layout, seed=seed).faults) <= {str(rank) for rank in range(layout.world_size)} for seed in range(60))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_truth_speaks_the_vocabulary_of_verdicts(fault: str) -> None:
    drill = plugins.load("rca.drills", fault)
    assert set(drill.TRUTH) == {"cause", "layer", "attribution", "action"}
    assert set(drill.TRUTH["cause"]) <= set(CAUSES)
    assert set(drill.TRUTH["layer"]) <= set(LAYERS)
    assert set(drill.TRUTH["attribution"]) <= set(ATTRIBUTIONS)
    assert set(drill.TRUTH["action"]) <= set(ACTIONS)
    assert all(CAUSES[cause].action in drill.TRUTH["action"] for cause in drill.TRUTH["cause"])
    assert drill.ENDS in get_args(Ends)


def test_groups_cover_every_rank_once_per_kind() -> None:
    layout = Layout(tp=2, pp=3, dp=4)
    for kind in ("world", "tp", "pp", "dp", "mp"):
        members = [group["ranks"] for group in layout.groups() if group["kind"] == kind]
        assert sorted(rank for ranks in members for rank in ranks) == list(range(24))
        assert {len(ranks) for ranks in members} == {layout.size(kind)}


def test_a_fault_without_its_group_is_a_usage_error() -> None:
    drill = plugins.load("rca.drills", "mismatched_size")
    with pytest.raises(UsageError, match="make one of dp larger than 1"):
        drill.inject(Layout(tp=2, pp=1, dp=1), seed=0)


def test_a_layout_without_ranks_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="each at least 1"):
        Layout(tp=0, pp=1, dp=1)


def test_neutral_replacement_keeps_lengths_and_pickles(tmp_path: Path) -> None:
    home = "/root/.tools/python"
    dump = tmp_path / "fr" / "nccl_trace_rank_0"
    dump.parent.mkdir()
    dump.write_bytes(pickle.dumps({"filename": f"{home}/lib/threading.py"}, protocol=2))
    before = dump.stat().st_size
    neutralise(tmp_path, prefixes={home: "python", "/root": "home", "/usr": "x", "/opt/venv": "venv"})
    assert dump.stat().st_size == before
    assert load_dump(dump.read_bytes())["filename"] == "/opt/python________/lib/threading.py"
    assert leaks(tmp_path, words=["/root"]) == []


def test_a_drill_without_live_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="add --live"):
        verb.run(parse("run", "none", "--out", str(tmp_path / "case")))


def test_an_unknown_drill_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no drill is called 'flood'.*lock_hang"):
        verb.run(parse("run", "flood", "--out", str(tmp_path), "--live"))


def test_a_filled_folder_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match="is not empty"):
        verb.run(parse("run", "none", "--out", str(tmp_path), "--live"))


def test_an_interpreter_without_torch_says_what_to_install(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    with pytest.raises(ProbeError, match=r"install firstfault\[drill\]"):
        verb.run(parse("run", "none", "--out", str(tmp_path / "case"), "--live", "--python", str(bare)))


def test_list_shows_every_drill_with_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert verb.run(parse("list")) == 0
    lines = capsys.readouterr().out.split("\nsimulated:\n")[0].splitlines()
    assert [line.split()[0] for line in lines] == list(plugins.names("rca.drills"))
    assert "A healthy job, captured while it runs." in lines[FAULTS.index("none")]


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verb.arguments(parser)
    return parser.parse_args(words)
