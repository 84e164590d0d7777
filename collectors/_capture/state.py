"""What /proc shows of each process without stopping it: states and waits of its threads, memory, open files, limits of its cgroup.

Of the environment only settings of torch, NCCL, gloo, Slurm and the launcher are kept, never one with a secret's name; of a value that
may be a secret only a mark that tells whether it changed; words of the command line that follow such a name are blotted out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from collectors._capture.proc import read_text
from collectors._capture.withheld import is_plain, withheld

__all__ = ["cgroup_of", "safe_command", "safe_environment", "state_of"]

MAX_THREADS = 500
KEPT = re.compile(
    r"(?:RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|ROLE_RANK|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_LAUNCH_BLOCKING|OMP_NUM_THREADS|"
    r"(?:MASTER|TORCH|TORCHELASTIC|PYTORCH|NCCL|GLOO|SLURM|OMPI_COMM_WORLD|FI|UCX)_\w+)"
)
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|COOKIE|BEARER", re.I)
BLOT = "***"
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+@")
_WANTED = ("State", "TracerPid", "Threads", "VmRSS", "VmSwap", "SigPnd", "ShdPnd", "SigBlk", "Seccomp", "NSpid")


def safe_environment(environ: Mapping[str, str] | None) -> dict[str, str] | None:
    """Settings that tell how the job communicates; None where the environment may not be read."""
    if environ is None:
        return None
    kept = {name: value for name, value in environ.items() if KEPT.fullmatch(name) and not SECRET.search(name)}
    return {name: value if is_plain(value) else withheld(f"env:{name}", value) for name, value in sorted(kept.items())}


def safe_command(words: Sequence[str]) -> list[str]:
    """The command line; what is given to an option with a secret's name is blotted out."""
    safe: list[str] = []
    is_due = False
    for word in words:
        if is_due and not word.startswith("-"):
            safe.append(BLOT)
            is_due = False
            continue
        name, equals, _ = word.partition("=")
        is_secret = SECRET.search(name) is not None
        is_due = is_secret and not equals and word.startswith("-")
        safe.append(f"{name}={BLOT}" if is_secret and equals else _IN_ADDRESS.sub(f"{BLOT}@", word))
    return safe


def state_of(pid: int) -> dict[str, Any]:
    """States and waits of one process now; what may not be read is null."""
    home = Path("/proc") / str(pid)
    status = _fields(home / "status")
    return {
        "state": status.get("State"),
        "status": {name: status[name] for name in _WANTED if name in status},
        "wchan": _line(home / "wchan"),
        "kernel_stack": _line(home / "stack"),
        "num_fds": _count(home / "fd"),
        "oom_score": _line(home / "oom_score"),
        "threads": list(_threads(home)),
    }


def _threads(home: Path) -> Iterator[dict[str, Any]]:
    try:
        tasks = sorted((home / "task").iterdir(), key=lambda task: int(task.name))[:MAX_THREADS]
    except OSError:
        return
    for task in tasks:
        text = read_text(task / "stat")
        if text:
            state = text.rpartition(")")[2].split()[0]
            yield {"tid": int(task.name), "comm": _line(task / "comm"), "state": state, "wchan": _line(task / "wchan")}


def cgroup_of(pid: int) -> dict[str, str]:
    """Memory of its control group: use, limit and what happened at the limit. Version 2, else version 1; empty where it cannot be read."""
    found = {}
    for line in (read_text(Path("/proc") / str(pid) / "cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = Path("/sys/fs/cgroup") / ("memory" if controllers else "") / path.lstrip("/")
        for name in (
            "memory.events",
            "memory.current",
            "memory.max",
            "memory.usage_in_bytes",
            "memory.limit_in_bytes",
            "memory.oom_control",
        ):
            if (text := _line(base / name)) is not None:
                found[name] = text
    return found


def _fields(path: Path) -> dict[str, str]:
    lines = (line.partition(":") for line in (read_text(path) or "").splitlines())
    return {name: " ".join(value.split()) for name, _, value in lines}


def _line(path: Path) -> str | None:
    text = read_text(path)
    return text.strip()[:4000] or None if text is not None else None


def _count(path: Path) -> int | None:
    try:
        return len(os.listdir(path))  # noqa: PTH208
    except OSError:
        return None
