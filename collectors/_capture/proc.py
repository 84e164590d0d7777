"""What /proc says of processes: who they are, whose child, whether they are stopped. Reads only; a process that ends meanwhile is None."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "TICKS",
    "Process",
    "all_processes",
    "effort",
    "is_same",
    "is_stopped",
    "read_process",
    "read_text",
    "sees_files_of",
    "states",
    "stop_is_due",
    "tracer",
]

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")  # per second, of `Process.started`
_SIGSTOP_BIT = 1 << 18  # of the masks in /proc/PID/status: signal 19


@dataclass(frozen=True)
class Process:
    """A process. `environ` None = it may not be read; `started` in clock ticks since boot: with the pid it names a process for good."""

    pid: int
    ppid: int
    started: int
    uid: int
    comm: str
    command: tuple[str, ...]
    environ: Mapping[str, str] | None
    is_python: bool

    @property
    def line(self) -> str:
        """The command line, its words joined by blanks."""
        return " ".join(self.command)


def read_text(path: Path) -> str | None:
    """The text of a file below /proc or /sys, None where it is gone or may not be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return None


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on (the name before them may hold anything)."""
    text = read_text(PROC / str(pid) / "stat")
    return text.rpartition(")")[2].split() if text else None


def read_process(pid: int) -> Process | None:
    """One process; None when it is gone, a zombie or a thread of the kernel."""
    fields, home = _stat(pid), PROC / str(pid)
    if not fields or fields[0] in "ZX":
        return None
    command = tuple((read_text(home / "cmdline") or "").rstrip("\0").split("\0"))
    if command == ("",):
        return None
    environ = _environ(home / "environ")
    try:
        uid = home.stat().st_uid
    except OSError:
        return None
    comm = (read_text(home / "comm") or "").strip()
    return Process(pid, int(fields[1]), int(fields[19]), uid, comm, command, environ, _is_python(home, command))


def _environ(path: Path) -> dict[str, str] | None:
    text = read_text(path)
    if text is None:
        return None
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)


def _is_python(home: Path, command: tuple[str, ...]) -> bool:
    """By the program, or by the name it was called with where the program may not be read."""
    try:
        program = str((home / "exe").readlink())
    except OSError:
        program = command[0]
    return any("python" in Path(name).name.lower() for name in (program, command[0]))


def all_processes() -> list[Process]:
    """Every process of this pid namespace, by pid."""
    pids = sorted(int(name) for name in os.listdir(PROC) if name.isdigit())  # noqa: PTH208 - tens of thousands of names
    return [process for pid in pids if (process := read_process(pid))]


def is_same(pid: int, started: int) -> bool:
    """Whether that very process still lives: its number may have been given to another one."""
    fields = _stat(pid)
    return fields is not None and int(fields[19]) == started and fields[0] not in "ZX"


def _tasks(pid: int) -> Iterable[Path]:
    try:
        return sorted((PROC / str(pid) / "task").iterdir())
    except OSError:
        return ()


def states(pid: int) -> str:
    """State letters of the threads, main thread first; "" when the process is gone."""
    letters = []
    for task in _tasks(pid):
        text = read_text(task / "stat")
        if text:
            letters.append(text.rpartition(")")[2].split()[0])
    return "".join(letters)


def is_stopped(pid: int) -> bool:
    """Whether a thread stands still by a signal (T) or under a tracer (t)."""
    return not {"T", "t"}.isdisjoint(states(pid))


def effort(pid: int) -> dict[str, int | float]:
    """What the main thread has done since it began: switches (voluntary: it went to wait; involuntary: it was pushed off) and CPU time in s.

    Only what the kernel tells; the CPU time from its scheduler in nanoseconds where that keeps it, else in clock ticks.
    """
    home = PROC / str(pid) / "task" / str(pid)
    lines = (line.split() for line in (read_text(home / "status") or "").splitlines() if "ctxt_switches:" in line)
    told: dict[str, int | float] = {name.removesuffix("_ctxt_switches:") + "_switches": int(count) for name, count in lines}
    told = {name.replace("nonvoluntary", "involuntary"): count for name, count in told.items()}
    if on_cpu := (read_text(home / "schedstat") or "").split():
        told["cpu_s"] = int(on_cpu[0]) / 1e9
    elif stat := read_text(home / "stat"):
        told["cpu_s"] = sum(map(int, stat.rpartition(")")[2].split()[11:13])) / TICKS
    return told


def stop_is_due(pid: int) -> bool:
    """Whether a thread is stopped, or will be as soon as it runs: a stop signal waits for it."""
    for task in _tasks(pid):
        text = read_text(task / "status") or ""
        fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        if fields.get("State", "")[:1] in ("T", "t"):
            return True
        if any(int(fields.get(mask, "0"), 16) & _SIGSTOP_BIT for mask in ("SigPnd", "ShdPnd")):
            return True
    return False


def tracer(pid: int) -> int:
    """Pid of the process that traces a thread of it, 0 = nobody."""
    for task in _tasks(pid):
        for line in (read_text(task / "status") or "").splitlines():
            if line.startswith("TracerPid:") and (found := int(line.split()[1])):
                return found
    return 0


def sees_files_of(pid: int, path: str) -> Path:
    """Where a path that a process names lies for us: as it stands when we share its mounts, else through its root."""
    if not path.startswith("/"):
        return PROC / str(pid) / "cwd" / path
    try:
        shared = (PROC / str(pid) / "ns" / "mnt").readlink() == (PROC / "self" / "ns" / "mnt").readlink()
        plain = shared and (PROC / str(pid) / "root").samefile("/")
    except OSError:
        plain = True
    return Path(path) if plain else PROC / str(pid) / "root" / path.lstrip("/")
