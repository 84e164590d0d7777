"""Small jobs for the tests of `rca capture`: plain Python processes with a rank, and the command itself."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
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
