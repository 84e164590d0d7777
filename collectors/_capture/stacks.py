"""Stacks of a job's processes in rounds, by py-spy: one dump per process and round, a few at a time, each with a time-out.

A py-spy that does not answer is ended. Afterwards its target is continued if, and only if, it was left stopped and had not been stopped before.
A process that is stopped already, or in an uninterruptible wait, is read without stopping it (`--nonblocking`): py-spy would hang on it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors._capture.files import Folder, reason
from collectors._capture.find import Member
from collectors._capture.guard import Guard, let_go
from collectors._capture.proc import effort, is_same, is_stopped, states, tracer
from collectors._capture.state import safe_command

__all__ = ["PySpy", "Stacks", "find_py_spy", "place_of"]

WAIT_S, NATIVE_WAIT_S = 30.0, 60.0  # a dump takes 0.1 s, with native frames 1-2 s for the symbols of torch
END_S = 5.0
SETTLE_S = 0.5  # in which a stop signal of an ended py-spy arrives
ROUND_S = 120.0  # after that no further dump of a round is begun: where py-spy hangs on all, the capture must still end
AT_ONCE = max(4, min(16, (os.cpu_count() or 1) // 8))
KILLED = (124, 137)  # return codes: no answer in time; ended by us
STUCK = 125  # it could not be ended: it waits in the kernel, and the guard looks after its target at the end
LOOK_S = 0.02  # between two looks: a moment in a driver is no uninterruptible wait
_ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath), "RUST_BACKTRACE": "0"}


@dataclass(frozen=True)
class PySpy:
    """A py-spy and what it can do."""

    program: str
    version: str
    has_json: bool


def find_py_spy(asked: str | None) -> PySpy | str:
    """The py-spy to use: the asked one, that beside our interpreter, or that on PATH; else why there is none."""
    beside = Path(sys.executable).parent / "py-spy"
    program = asked or (str(beside) if beside.exists() else shutil.which("py-spy"))
    if program is None:
        return "py-spy is neither beside this Python nor on PATH: pip install 'firstfault[capture]' (or py-spy), or name one with --py-spy"
    try:
        version = _answer([program, "--version"])
        return PySpy(program, version.removeprefix("py-spy").strip(), "--json" in _answer([program, "dump", "--help"]))
    except (OSError, subprocess.SubprocessError) as error:
        return f"{program} does not run: {reason(error)}"


def _answer(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=END_S, check=True, stdin=subprocess.DEVNULL, env=_ENVIRONMENT)
    return done.stdout.strip()


def place_of(member: Member) -> str:
    """How files of a process are called. A pid is glued to letters, so that nobody takes it for a rank."""
    if member.rank is None:
        return f"{member.role}.pid{member.process.pid}"
    return f"rank_{member.rank}.{member.role}"


@dataclass
class Stacks:
    """The dumps of one job: files in `stacks/round_N/`, rows of `stacks/index.json`."""

    folder: Folder
    py_spy: PySpy
    guard: Guard
    rows: list[dict[str, Any]] = field(default_factory=list)
    continued: list[int] = field(default_factory=list)  # pids that a py-spy left stopped
    wait_s: float = WAIT_S
    round_s: float = ROUND_S
    _deadline: float = 0.0
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _is_ending: threading.Event = field(default_factory=threading.Event)

    def round(self, members: Sequence[Member], number: int, *, native: bool = False) -> None:
        """One dump of each process that still lives; the index is written anew."""
        targets = [m for m in members if m.process.is_python and is_same(m.process.pid, m.process.started)]
        targets.sort(key=lambda m: not m.is_trainer)  # the ranks first, in case that the time does not last
        self._deadline = time.monotonic() + self.round_s
        pool = ThreadPoolExecutor(AT_ONCE, "stacks")
        is_done = False
        try:
            self.rows += pool.map(lambda m: self._dump(m, number, native=native), targets)
            is_done = True
        finally:
            if not is_done:
                self._end_all()
            pool.shutdown(wait=True, cancel_futures=True)
            if self.rows:
                self.folder.write_json("stacks/index.json", self.rows)

    def _end_all(self) -> None:
        """End what runs; their threads look after the targets."""
        self._is_ending.set()
        for process in list(self._running):
            with contextlib.suppress(OSError):
                process.kill()

    def _dump(self, member: Member, number: int, *, native: bool) -> dict[str, Any]:
        """One dump into its file; the row of the index, a failure included: it is evidence too."""
        pid, started = member.process.pid, member.process.started
        form = "json" if self.py_spy.has_json and not native else "txt"
        name = f"stacks/round_{number}/{place_of(member)}{'.native' if native else ''}.{form}"
        was_stopped = is_stopped(pid)
        is_gentle = was_stopped or tracer(pid) != 0 or _waits_uninterruptibly(pid)
        row: dict[str, Any] = {"round": number, "rank": member.rank, "host": self.folder.host, "role": member.role, "pid": pid}
        row |= {"t_ns": time.time_ns(), "format": form} | effort(pid)  # before py-spy, whose stop makes the thread switch too
        if is_gentle:
            row["nonblocking"] = True
        options = ["--json"] if form == "json" else []
        options += ["--nonblocking"] if is_gentle else ["--native"] if native else []
        began = time.monotonic()
        code = KILLED[1]
        if not was_stopped:
            self.guard.about_to_touch(pid, started)
        try:
            code, data, error = self._ask(pid, options, NATIVE_WAIT_S if native else self.wait_s)
        finally:
            if code != STUCK and not was_stopped:
                if let_go(pid, started, settle_s=SETTLE_S if code in KILLED else 0.0):
                    self.continued.append(pid)
                self.guard.done_with(pid, started)
        if code == 0:
            try:
                self.folder.write(name, data if form == "json" else _without_secrets(data, member))
            except OSError as problem:
                code, error = 74, f"cannot be written: {reason(problem)}"  # EX_IOERR
        return row | {"dump_s": round(time.monotonic() - began, 3), "rc": code, "err": error}

    def _ask(self, pid: int, options: list[str], wait_s: float) -> tuple[int, bytes, str]:
        """Return code, output and complaint of one py-spy."""
        if self._is_ending.is_set():
            return 130, b"", "interrupted"
        if time.monotonic() > self._deadline:
            return 124, b"", f"left out: this round took longer than {self.round_s:.0f} s"
        command = [self.py_spy.program, "dump", "--pid", str(pid), *options]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_ENVIRONMENT,
                process_group=self.guard.pid,  # without the guard it does not start
            )
        except OSError as error:
            return 127, b"", f"py-spy does not start: {reason(error)}"
        self._running.add(process)
        try:
            out, complaint = process.communicate(timeout=wait_s)
            code = process.returncode if process.returncode >= 0 else 128 - process.returncode
            return code, out, complaint.decode(errors="replace").strip()[:400]
        except subprocess.TimeoutExpired:
            process.kill()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                return STUCK, b"", f"no answer in {wait_s:.0f} s, and it cannot be ended"
            return KILLED[0], b"", f"no answer in {wait_s:.0f} s: ended"
        finally:
            self._running.discard(process)
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()


def _without_secrets(data: bytes, member: Member) -> bytes:
    """The text form begins with the command line, which may hold line breaks: it is written as everywhere else, on one line."""
    first, mark, rest = data.partition(b"\nPython v")
    if not mark or not first.startswith(b"Process "):
        return data
    command = " ".join(" ".join(safe_command(member.process.command)).split())
    return f"Process {member.process.pid}: {command}".encode("utf-8", "replace") + mark + rest


def _waits_uninterruptibly(pid: int) -> bool:
    if "D" not in states(pid):
        return False
    time.sleep(LOOK_S)
    return "D" in states(pid)
