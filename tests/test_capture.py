"""`rca capture` on small jobs of plain processes: who is stopped stays stopped, who was not is never left so, whatever happens to the capture."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from _capture_jobs import (
    STUCK,
    capture,
    environment,
    free_port,
    hanging_py_spy,
    loaded,
    naming,
    processes,
    start_capture,
    state,
    stays_running,
    wait_until,
)

from collectors._capture.files import Folder
from collectors._capture.find import Member
from collectors._capture.guard import Guard
from collectors._capture.proc import read_process, stop_is_due
from collectors._capture.stacks import PySpy, Stacks

pytestmark = pytest.mark.live
QUICK = ("--rounds", 1, "--gap", 0, "--host", "host-a")


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def job(tmp_path: Path, port: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two ranks that wait for a lock for ever, with a secret in their environment."""
    secret = {"NCCL_API_KEY": "hunter2", "MY_TOKEN": "hunter2", "NCCL_DEBUG": "WARN"}
    with processes([(STUCK, environment(rank, 2, port, **secret)) for rank in range(2)], tmp_path, ["--api-key", "hunter2"]) as started:
        yield started


def test_a_capture_holds_stacks_logs_map_states_and_a_list_with_hashes(
    job: list[subprocess.Popen[bytes]], port: int, tmp_path: Path
) -> None:
    done = capture("--out", tmp_path / "out", "--rounds", 2, "--gap", 0.1, "--host", "host-a", "--job", port, "--json")
    assert done.returncode == 0, done.stderr
    (one,) = json.loads(done.stdout)["jobs"]
    root = tmp_path / "out" / "host-a"
    assert (one["ranks"], one["num_dumps_failed"], one["is_partial"]) == ([0, 1], 0, False)
    rows = loaded(root / "stacks" / "index.json")
    ours = {process.pid for process in job}
    assert {(row["round"], row["rank"], row["pid"]) for row in rows if row["pid"] in ours} == {
        (number, rank, process.pid) for number in range(2) for rank, process in enumerate(job)
    }
    assert "wait_for_lock" in (root / "stacks" / "round_1" / "rank_1.main.json").read_text()
    assert (root / "logs" / "rank_0.log").read_text().startswith("ready")
    assert [(row["rank"], row["host"], row["gpu"]) for row in loaded(root / "topology.json")["ranks"]] == [
        (0, "host-a", None),
        (1, "host-a", None),
    ]
    states = loaded(root / "proc" / "processes.json")["processes"]
    assert {len(row["samples"]) for row in states} == {2}
    bundle = loaded(root / "rca-bundle.json")
    listed = {entry["path"] for entry in bundle["files"]}
    assert listed == {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()} - {"rca-bundle.json"}
    assert not (root / ".rca-partial").exists()
    assert stays_running([process.pid for process in job])


def test_secrets_of_environment_and_command_line_are_not_written(job: list[subprocess.Popen[bytes]], port: int, tmp_path: Path) -> None:
    assert capture("--out", tmp_path / "out", *QUICK, "--job", port, "--native").returncode == 0
    assert (tmp_path / "out" / "host-a" / "stacks" / "round_0" / "rank_0.main.native.txt").read_text().startswith(f"Process {job[0].pid}: ")
    text = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert b"hunter2" not in text
    assert b"NCCL_DEBUG" in text
    assert b"API_KEY" not in text
    assert b"--api-key" in text


def test_what_was_stopped_before_stays_stopped_and_is_still_read(job: list[subprocess.Popen[bytes]], port: int, tmp_path: Path) -> None:
    os.kill(job[0].pid, signal.SIGSTOP)
    wait_until(lambda: state(job[0].pid) == "T")
    assert capture("--out", tmp_path / "out", *QUICK, "--job", port).returncode == 0
    assert [state(process.pid) for process in job] == ["T", "S"]
    rows = {row["rank"]: row for row in loaded(tmp_path / "out" / "host-a" / "stacks" / "index.json") if row["rank"] is not None}
    assert (rows[0]["rc"], rows[0]["nonblocking"], rows[1].get("nonblocking")) == (0, True, None)


def test_a_py_spy_that_hangs_is_ended_and_its_target_goes_on(job: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    program, mark = hanging_py_spy(tmp_path)
    guard = Guard()
    try:
        folder = Folder(tmp_path / "out", "host-a", time.time_ns)
        stacks = Stacks(folder, PySpy(str(program), "0", has_json=True), guard, wait_s=2.0)
        trainers = [Member(p, "main", rank) for rank, q in enumerate(job) if (p := read_process(q.pid))]
        stacks.round(trainers, 0)
    finally:
        guard.close()
    pids = sorted(process.pid for process in job)
    assert sorted(map(int, mark.read_text().split())) == pids
    assert [row["rc"] for row in stacks.rows] == [124, 124]
    assert sorted(stacks.continued) == pids
    assert stays_running(pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_however_the_capture_ends_no_target_stays_stopped(
    number: signal.Signals, job: list[subprocess.Popen[bytes]], port: int, tmp_path: Path
) -> None:
    program, mark = hanging_py_spy(tmp_path)
    running = start_capture("--out", tmp_path / "out", *QUICK, "--job", port, "--py-spy", program)
    pids = sorted(process.pid for process in job)
    wait_until(lambda: mark.exists() and {*map(int, mark.read_text().split())} >= {*pids})
    assert [state(pid) for pid in pids] == ["t", "t"]
    running.send_signal(number)
    assert running.wait(30) == (-9 if number == signal.SIGKILL else 130)
    wait_until(lambda: not naming(str(tmp_path)))  # neither a py-spy nor the guard
    assert not any(stop_is_due(pid) for pid in pids)
    assert stays_running(pids)
    root = tmp_path / "out" / "host-a"
    assert (root / ".rca-partial").exists()
    assert not (root / "rca-bundle.json").exists()
    assert (root / "topology.json").exists()


@pytest.mark.slow
def test_a_capture_killed_at_any_moment_with_the_real_py_spy_leaves_nobody_stopped(
    job: list[subprocess.Popen[bytes]], port: int, tmp_path: Path
) -> None:
    pids = [process.pid for process in job]
    for attempt in range(6):
        running = start_capture(
            "--out", tmp_path / f"out{attempt}", "--rounds", 50, "--gap", 0, "--host", "host-a", "--job", port, "--native"
        )
        wait_until((tmp_path / f"out{attempt}" / "host-a" / "stacks").exists)
        time.sleep(0.06 * attempt)
        running.kill()
        running.wait()
        wait_until(lambda n=attempt: not naming(f"{tmp_path}/out{n}"))  # the guard
        wait_until(lambda: not [pid for pid in pids if naming(f"--pid\0{pid}")])
        assert not any(stop_is_due(pid) for pid in pids)
        assert stays_running(pids, 0.3)


def test_a_target_that_dies_in_the_middle_costs_only_its_own_dumps(job: list[subprocess.Popen[bytes]], port: int, tmp_path: Path) -> None:
    running = start_capture("--out", tmp_path / "out", "--rounds", 2, "--gap", 2, "--host", "host-a", "--job", port)
    index = tmp_path / "out" / "host-a" / "stacks" / "index.json"
    wait_until(index.exists)
    job[1].kill()
    job[1].wait()
    assert running.wait(60) == 0
    rows = [row for row in loaded(index) if row["rank"] is not None]
    assert {(row["round"], row["rank"]) for row in rows if row["rc"] == 0} >= {(0, 0), (0, 1), (1, 0)}
    assert (1, 1) not in {(row["round"], row["rank"]) for row in rows if row["rc"] == 0}
    assert (tmp_path / "out" / "host-a" / "logs" / "rank_1.log").read_text().startswith("ready")


def test_without_py_spy_it_says_what_to_install_and_the_rest_is_captured(
    job: list[subprocess.Popen[bytes]], port: int, tmp_path: Path
) -> None:
    done = capture("--out", tmp_path / "out", *QUICK, "--job", port, "--py-spy", tmp_path / "none", "--json")
    assert done.returncode == 2
    assert "no stack of any process was taken" in done.stderr
    (one,) = json.loads(done.stdout)["jobs"]
    assert one["failed"][0]["step"] == "stacks"
    assert one["num_logs"] == 2
    code = "import shutil, sys; sys.executable = '/none/python'; shutil.which = lambda _: None\n"
    said = subprocess.run(
        [sys.executable, "-c", f"{code}from collectors._capture.stacks import find_py_spy\nprint(find_py_spy(None))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "pip install 'firstfault[capture]'" in said.stdout


def test_nothing_found_ends_with_3_and_says_what_was_looked_for(tmp_path: Path) -> None:
    done = capture("--out", tmp_path / "out", "--job", "no-such-job")
    assert done.returncode == 3
    assert "RANK" in done.stderr
    assert "--pid" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--rounds", -1),
        ("--gap", -1),
        ("--gap", "nan"),
        ("--pid", "x"),
        ("--pid", "1=x"),
        ("--host", "a/b"),
        ("--host", ".x"),
        ("--host", ""),
        ("--host", "a\x1b[31m"),
        ("--host", "a b"),
        ("--host", "h" * 300),
    ],
)
def test_wrong_options_are_usage_errors(words: tuple[object, ...], tmp_path: Path) -> None:
    assert capture("--out", tmp_path / "out", *words).returncode == 2


def test_a_folder_with_something_in_it_is_left_alone(job: list[subprocess.Popen[bytes]], port: int, tmp_path: Path) -> None:
    (tmp_path / "out" / "host-a").mkdir(parents=True)
    (tmp_path / "out" / "host-a" / "mine").write_text("mine")
    done = capture("--out", tmp_path / "out", *QUICK, "--job", port)
    assert done.returncode == 2
    assert "not empty" in done.stderr
    assert [path.name for path in (tmp_path / "out" / "host-a").iterdir()] == ["mine"]


def test_two_jobs_get_a_folder_each_when_both_are_meant(job: list[subprocess.Popen[bytes]], port: int, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    second = free_port()
    with processes([(STUCK, environment(0, 1, second))], other) as started:
        pids = [word for process in (*job, *started) for word in ("--pid", process.pid)]
        done = capture("--out", tmp_path / "out", *QUICK, *pids, "--json")
    jobs = {one["job"]: one["ranks"] for one in json.loads(done.stdout)["jobs"]}
    assert jobs == {f"port-{port}": [0, 1], f"port-{second}": [0]}
    assert (tmp_path / "out" / f"port-{second}" / "host-a" / "rca-bundle.json").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_gets_what_may_be_read_and_a_row_for_the_rest(job: list[subprocess.Popen[bytes]], port: int, tmp_path: Path) -> None:
    become = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    if subprocess.run(
        [*become, sys.executable, "-c", "import apps.cli"], capture_output=True, check=False, cwd=Path(__file__).parents[1]
    ).returncode:
        pytest.skip("the other user cannot start this Python")
    out = Path("/tmp") / f"capture-{os.getpid()}-{port}"
    out.mkdir(mode=0o777)
    out.chmod(0o777)
    try:
        blind = capture("--out", out / "none", "--job", port, prefix=become)
        assert blind.returncode == 3
        assert "may not be read" in blind.stderr
        done = capture(
            "--out", out / "some", *QUICK, *(w for r, p in enumerate(job) for w in ("--pid", f"{p.pid}={r}")), "--json", prefix=become
        )
        assert done.returncode == 2, done.stderr  # no stack may be taken of another's processes
        assert "no stack of any process was taken" in done.stderr
        rows = loaded(out / "some" / "host-a" / "stacks" / "index.json")
        assert {row["rank"] for row in rows} == {0, 1}
        assert all(row["rc"] and "ermission" in row["err"] for row in rows)
        steps = {step["step"]: step for step in loaded(out / "some" / "host-a" / "rca-bundle.json")["steps"]}
        assert steps["stacks"]["status"] == "failed"
        assert (out / "some" / "host-a" / "topology.json").exists()
    finally:
        subprocess.run(["rm", "-r", str(out)], check=True)
    assert stays_running([process.pid for process in job])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_told_and_what_is_there_stays_marked_as_partial(
    job: list[subprocess.Popen[bytes]], port: int, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    script = 'mount -t tmpfs -o size=32k tmpfs "$1" || exit 77; shift; "$@"; code=$?; find "$0" -name ".rca-partial"; exit $code'
    command = [sys.executable, "-m", "apps.cli", "capture", "--out", str(small / "out"), *map(str, QUICK), "--job", str(port)]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, str(small), str(small), *command],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("nothing can be mounted here")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "partial" in done.stderr
    assert ".rca-partial" in done.stdout


def test_a_round_ends_also_where_py_spy_hangs_on_everybody(job: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    program, mark = hanging_py_spy(tmp_path)
    mark.touch()
    guard = Guard()
    try:
        stacks = Stacks(Folder(tmp_path / "out", "host-a", time.time_ns), PySpy(str(program), "0", has_json=True), guard)
        stacks.wait_s, stacks.round_s = 1.0, 0.02  # over before a second turn
        found = [p for process in job if (p := read_process(process.pid))]
        others = [Member(p, "other0", rank) for rank, p in enumerate(found)] * 8
        stacks.round([*others, Member(found[0], "main", 0)], 0)
    finally:
        guard.close()
    whys = [row["err"].partition(" ")[0] for row in stacks.rows]
    assert stacks.rows[0]["role"] == "main"  # ranks come first
    assert {"no", "left"} >= {*whys} - {"cannot"}
    assert len(whys) == len(others) + 1
    assert "left" in whys  # the round was over before their turn; of two on one process the second cannot attach, in either order
    assert len(mark.read_text().split()) < len(others)
    assert stays_running([process.pid for process in job])


TRACER = """
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
print("failed" if libc.ptrace(0x4206, {pid}, None, None) else "traced", flush=True)  # PTRACE_SEIZE: it is not stopped
time.sleep(600)
"""


def test_what_another_traces_is_read_without_stopping_it(job: list[subprocess.Popen[bytes]], port: int, tmp_path: Path) -> None:
    tracer = subprocess.Popen([sys.executable, "-c", TRACER.format(pid=job[0].pid)], stdout=subprocess.PIPE, text=True)
    try:
        assert tracer.stdout is not None
        if tracer.stdout.readline() != "traced\n":
            pytest.skip("nobody may be traced here")
        assert capture("--out", tmp_path / "out", *QUICK, "--job", port).returncode == 0
        rows = {row["rank"]: row for row in loaded(tmp_path / "out" / "host-a" / "stacks" / "index.json") if row["rank"] is not None}
        assert (rows[0]["rc"], rows[0]["nonblocking"], rows[1].get("nonblocking")) == (0, True, None)
    finally:
        tracer.kill()
        tracer.wait()
        tracer.stdout.close()
