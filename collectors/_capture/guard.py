"""Nobody is left stopped: a target that py-spy left behind is continued, also when the capture itself is killed in the middle.

py-spy stops its target while it reads. A py-spy that is killed can leave it so, or leave a stop signal that waits for it. Whoever was stopped
before, or is traced by another, is left as found.

The guard is a child with a process group of its own, which every py-spy joins. It learns through a pipe which targets are about to be
touched; when the pipe ends with targets left, the capture is dead: the guard gives a running py-spy a moment, ends it, and continues its targets.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import NoReturn

from collectors._capture.proc import is_same, read_text, stop_is_due, tracer

__all__ = ["Guard", "let_go"]

GRACE_S = 3.0  # a dump takes 0.1 s: it may end by itself, which is the cleanest way
KILLED_S = 5.0  # for a killed py-spy to be gone
SETTLE_S = 1.0  # a stop signal that was on its way arrives
POLL_S = 0.02


def let_go(pid: int, started: int, *, settle_s: float = 0.0) -> bool:
    """Continue a process that has been left stopped, or is about to stop; True if that was needed.

    For targets that were not stopped before, and after their py-spy has ended. One that another tracer holds is left alone.
    """
    needed = False
    end = time.monotonic() + settle_s
    while is_same(pid, started):
        if stop_is_due(pid) and not tracer(pid):
            try:
                os.kill(pid, signal.SIGCONT)
            except OSError:  # gone, or not ours to continue
                return needed
            needed = True
        if time.monotonic() >= end:
            break
        time.sleep(POLL_S)
    return needed


class Guard:
    """The child that watches. Make it before there are threads: it is a fork."""

    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _watch(reading)
        os.close(reading)
        with contextlib.suppress(OSError):  # both sides do it, so that the group is there for either of them
            os.setpgid(self.pid, self.pid)

    def about_to_touch(self, pid: int, started: int) -> None:
        """From now on this target is continued if we die."""
        os.write(self._writing, f"+ {pid} {started}\n".encode())

    def done_with(self, pid: int, started: int) -> None:
        """The target has been looked after."""
        os.write(self._writing, f"- {pid} {started}\n".encode())

    def close(self) -> None:
        """End the guard. Targets that were not reported as done are looked after first."""
        os.close(self._writing)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _watch(reading: int) -> NoReturn:
    """The guard's whole life."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        _close_all_but(reading)
        targets = _until_it_ends(reading)
        if targets:
            _end_group()
            for pid, started in sorted(targets):
                let_go(pid, started)
            end = time.monotonic() + SETTLE_S
            while time.monotonic() < end:
                for pid, started in sorted(targets):
                    let_go(pid, started)
                time.sleep(POLL_S)
    finally:
        os._exit(0)


def _close_all_but(kept: int) -> None:
    """Nobody who reads our output shall wait for the guard."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        if number != kept:
            os.dup2(nothing, number)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) > 2 and int(name) != kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _until_it_ends(reading: int) -> set[tuple[int, int]]:
    """Follow the reports to their end; the targets that are still open then."""
    targets: set[tuple[int, int]] = set()
    waiting = b""
    while data := os.read(reading, 65536):
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            sign, pid, started = line.split()
            target = (int(pid), int(started))
            (targets.add if sign == b"+" else targets.discard)(target)
    return targets


def _members() -> list[int]:
    """Who else is in this process group: the running py-spies."""
    found = []
    own, group = os.getpid(), os.getpgrp()
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit() or int(name) == own:
            continue
        fields = (read_text(Path("/proc") / name / "stat") or "").rpartition(")")[2].split()
        if len(fields) > 2 and int(fields[2]) == group and fields[0] not in "ZX":
            found.append(int(name))
    return found


def _end_group() -> None:
    """Wait for the py-spies, end those that stay."""
    for patience_s, is_last in ((GRACE_S, False), (KILLED_S, True)):
        end = time.monotonic() + patience_s
        while members := _members():
            if time.monotonic() > end:
                break
            time.sleep(POLL_S)
        if is_last or not members:
            return
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
