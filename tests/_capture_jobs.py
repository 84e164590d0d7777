"""Small jobs for the tests of `rca capture`: plain Python processes with a rank, and the command itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _house import ROOT

STUCK = """
import os, threading, time
LOCK = threading.Lock()
LOCK.acquire()

def wait_for_lock():
    LOCK.acquire()

print("ready", os.getpid(), flush=True)
wait_for_lock()
"""
# A py-spy at its worst: it holds its target and never lets go, and a stop signal waits, as for a target that it was about to attach to.
# Killed, it leaves the target stopped.
HANGING_PY_SPY = """#!{python}
import ctypes, os, sys, time
if "--version" in sys.argv:
    sys.exit(print("py-spy 0.0.0"))
if "--help" in sys.argv:
    sys.exit(print("--json"))
pid = int(sys.argv[sys.argv.index("--pid") + 1])
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
if libc.ptrace(16, pid, None, None):
    sys.exit("cannot attach: " + os.strerror(ctypes.get_errno()))
os.waitpid(pid, 0x40000000)
os.kill(pid, 19)
open({mark!r}, "a").write(f"{{pid}}\\n")
time.sleep(600)
"""
WAIT_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(rank: int, size: int, port: int, **more: str) -> dict[str, str]:
    """Of a rank as torchrun gives it, without what this test run has itself."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "NCCL", "SLURM", "RANK", "WORLD"))}
    own = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return plain | own | more


@contextlib.contextmanager
def processes(
    programs: Sequence[tuple[str, Mapping[str, str]]], logs: Path, words: Sequence[str] = ()
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start programs, wait until each printed its first line, and end them, stopped ones too."""
    started = []
    try:
        for number, (program, env) in enumerate(programs):
            with (logs / f"out_{number}.txt").open("wb") as out:
                started.append(
                    subprocess.Popen(
                        [sys.executable, "-c", program, *words], env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=out
                    )
                )
        wait_until(lambda: all((logs / f"out_{number}.txt").stat().st_size for number in range(len(programs))))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def wait_until(holds: Any) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "did not come about"
        time.sleep(0.02)


def state(pid: int) -> str:
    """State letter of the main thread."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def stays_running(pids: Sequence[int], seconds: float = 0.5) -> bool:
    """Nobody is stopped, now and for a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if any(state(pid) in "Tt" for pid in pids):
            return False
        time.sleep(0.02)
    return True


def capture(*words: object, prefix: Sequence[str] = (), timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """`rca capture` with its output."""
    command = [*prefix, sys.executable, "-m", "apps.cli", "capture", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=timeout, check=False)


def start_capture(*words: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "apps.cli", "capture", *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def hanging_py_spy(folder: Path) -> tuple[Path, Path]:
    """The program, and the file in which it writes whom it holds."""
    program, mark = folder / "hanging-py-spy", folder / "held.txt"
    program.write_text(HANGING_PY_SPY.format(python=sys.executable, mark=str(mark)))
    program.chmod(0o755)
    return program, mark


def loaded(path: Path) -> Any:
    return json.loads(path.read_text())


def naming(word: str) -> list[int]:
    """Pids of processes whose command line holds a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word in path.read_text(errors="replace"):
                found.append(int(path.parent.name))
    return found


def children(pid: int) -> list[int]:
    """Pids of the processes that a process started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def torch_environment(**more: str) -> dict[str, str]:
    """Of a launcher that is torch's own, without what this test run has itself."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "NCCL", "SLURM", "RANK", "WORLD", "PYTHON"))}
    return plain | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "GLOO_SOCKET_IFNAME": "lo", "LOGLEVEL": "INFO", **more}


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End a process and those of its session."""
    os.killpg(process.pid, signal.SIGKILL)  # its own session; torchrun's workers have sessions of their own
    process.wait()


def have_come_to_rest(pids: Sequence[int]) -> bool:
    """Whether no main thread got on the processor for half a second."""
    before = [_switches(pid) for pid in pids]
    time.sleep(0.5)
    return before == [_switches(pid) for pid in pids]


def _switches(pid: int) -> list[str]:
    return [line for line in Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines() if "ctxt_switches" in line]


def diagnosis(path: Path) -> dict[str, Any]:
    """What `rca diagnose --json` says of a capture."""
    done = subprocess.run(
        [sys.executable, "-m", "apps.cli", "diagnose", str(path), "--json"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode in (0, 1), done.stderr  # a verdict, or an honest unknown
    return dict(json.loads(done.stdout))


@contextlib.contextmanager
def torchrun(program: str, folder: Path, port: int, under_way: Callable[[], bool], **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Four ranks of a program under torchrun, from the moment that the job is under way; ended with all that they started."""
    (folder / "train.py").write_text(program)
    words = ["--nproc-per-node=4", f"--master-port={port}", "--redirects=3", "--log-dir=logs", "train.py"]
    with (folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *words],
            cwd=folder,
            env=torch_environment(**variables),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: agent.poll() is not None or under_way())
        assert agent.poll() is None, (folder / "agent.log").read_text()
        yield agent
    finally:
        ranks = children(agent.pid) if agent.poll() is None else []
        for pid in [child for rank in ranks for child in children(rank)] + ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end_session(agent)
