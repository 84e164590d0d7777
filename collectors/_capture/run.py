"""One capture of this host: find the jobs, take stacks in rounds, then recorders, logs, the kernel's log and facts of the host; seal it.

Each step that fails is recorded with its reason, and the rest goes on.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from collectors._capture.bounded import bounded
from collectors._capture.facts import rank_rows, write_host, write_processes, write_topology
from collectors._capture.files import Folder, instant, reason, refuse_used
from collectors._capture.find import Asked, Job, find_jobs
from collectors._capture.guard import Guard
from collectors._capture.kernel import boot_ns, capture_kernel, zone_s
from collectors._capture.logs import Logs
from collectors._capture.proc import Process, all_processes, is_same
from collectors._capture.recorder import ask_for_dumps, copy_dumps
from collectors._capture.stacks import PySpy, Stacks, find_py_spy
from collectors._capture.state import state_of

__all__ = ["Captured", "NothingFound", "Options", "capture"]

OPEN_S, COPY_S, FACTS_S = 15.0, 120.0, 30.0  # for files of the job, which may lie where everything hangs
ASK_S = 300.0  # each of eight trainers may take 20 s for its file and 2 x 10 s for its server
Say = Callable[[str], object]


@dataclass(frozen=True)
class Options:
    """What to capture, and into which folder."""

    out: Path
    num_rounds: int = 3
    gap_s: float = 5.0
    asked: tuple[Asked, ...] = ()
    job: str | None = None
    with_logs: bool = True
    may_trigger: bool = True
    with_native: bool = False
    py_spy: str | None = None
    host: str | None = None  # name of this host; None = what it calls itself
    version: str = ""  # of this tool


class NothingFound(Exception):
    """There is no training process to capture; the text says what was looked for and what to do."""


@dataclass
class Captured:
    """What came of one job."""

    job: Job
    folder: Folder
    stacks: Stacks | None
    logs: Logs | None
    samples: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    is_sealed: bool = False

    def summary(self) -> dict[str, Any]:
        """Counts for people and programs."""
        rows = self.stacks.rows if self.stacks else []
        steps = self.folder.steps
        return {
            "job": self.job.name,
            "folder": str(self.folder.root),
            "host": self.folder.host,
            "world_size": self.job.world_size,
            "ranks": [m.rank for m in self.job.trainers if m.rank is not None],
            "num_processes": len(self.job.members),
            "num_dumps": sum(row["rc"] == 0 for row in rows),
            "num_dumps_failed": sum(row["rc"] != 0 for row in rows),
            "longest_dump_s": max((row["dump_s"] for row in rows), default=None),
            "recorders": sorted({s["rank"] for s in steps if s["status"] == "ok" and s.get("file", "").startswith("fr/")}),
            "num_logs": sum(s["step"] == "log" and s["status"] == "ok" for s in steps),
            "failed": [{k: s[k] for k in ("step", "why")} for s in steps if s["status"] == "failed"],
            "continued_pids": sorted(set(self.stacks.continued)) if self.stacks else [],
            "is_partial": not self.is_sealed,
        }


def capture(options: Options, say: Say) -> list[Captured]:
    """Capture every job on this host, or those asked for.

    Raises NothingFound without a trainer, UsageError where the folder is in use, KeyboardInterrupt when stopped by a signal: what was taken by
    then lies there, marked as partial. Make it the only thing that the process does: it forks a guard and takes signals over.
    """
    guard = Guard()  # before any thread
    try:
        with _stop_on_signals():
            return _capture(options, guard, say)
    finally:
        guard.close()


def _capture(options: Options, guard: Guard, say: Say) -> list[Captured]:
    processes = all_processes()
    jobs = find_jobs(processes, options.asked, options.job)
    if not jobs:
        raise NothingFound(_nothing(processes, options))
    py_spy = find_py_spy(options.py_spy)
    host = options.host or _host()
    roots = [options.out / job.name / host if len(jobs) > 1 else options.out / host for job in jobs]
    for root in roots:
        refuse_used(root)
    runs = [_begin(options, job, Folder(root, host, time.time_ns), py_spy, guard) for job, root in zip(jobs, roots, strict=True)]
    for run in runs:
        say(
            f"{run.job.name}: {len(run.job.trainers)} trainers of {run.job.world_size or 'an unknown number'}, {len(run.job.members)} processes"
        )
    if isinstance(py_spy, str):
        say(f"no stacks: {py_spy}")
    try:
        _rounds(options, runs, say)
        for run in runs:
            _rest(options, run, say)
    finally:
        for run in runs:
            with run.folder.doing("processes"):
                write_processes(run.folder, run.job.members, run.samples)
    for run in runs:
        _seal(options, run, say)
    return runs


def _host() -> str:
    """As the tables name hosts: lower case, first label."""
    return socket.gethostname().lower().partition(".")[0] or "host"


def _nothing(processes: Sequence[Process], options: Options) -> str:
    """What was looked for."""
    hidden = sum(p.environ is None for p in processes)
    text = "no training process here: looked for Python processes with RANK and WORLD_SIZE, SLURM_PROCID or OMPI_COMM_WORLD_RANK in their environment"
    if options.asked:
        text = f"no living process {', '.join(str(a.pid) for a in options.asked)}"
    elif options.job:
        text += f", of a job called {options.job}"
    if hidden:
        text += f"; the environment of {hidden} of {len(processes)} processes may not be read: run as their user, or as root"
    hint = "Processes that get their rank otherwise (torch.multiprocessing.spawn): name their parent with --pid PID, or each with --pid PID=RANK"
    return f"{text}. {hint}"


def _begin(options: Options, job: Job, folder: Folder, py_spy: PySpy | str, guard: Guard) -> Captured:
    """What is known at once: the map of ranks, and the logs held open."""
    stacks = None
    if isinstance(py_spy, str):
        folder.note("stacks", "failed", py_spy)
    else:
        stacks = Stacks(folder, py_spy, guard)
    for oddity in job.oddities:
        folder.note("find", "skipped", oddity)
    with folder.doing("topology"):
        write_topology(folder, job, {})
    if not options.with_logs:
        folder.note("log", "skipped", "--no-logs")
    run = Captured(job, folder, stacks, None)
    if options.with_logs:
        with folder.doing("log"):
            run.logs = bounded(lambda: Logs(folder, job.members), OPEN_S)
    return run


def _rounds(options: Options, runs: Sequence[Captured], say: Say) -> None:
    """Stacks of all jobs, round after round; between two rounds the gap passes."""
    for number in range(options.num_rounds):
        if number:
            time.sleep(options.gap_s)
        for run in runs:
            _sample(run)
            with run.folder.doing("stacks", round=number):
                if run.stacks:
                    run.stacks.round(run.job.members, number)
        say(f"round {number + 1} of {options.num_rounds}: {sum(_num_dumps(run, number) for run in runs)} stack dumps")
    if options.with_native:
        for run in runs:
            with run.folder.doing("stacks_native"):
                if run.stacks:
                    run.stacks.round(run.job.trainers, options.num_rounds - 1, native=True)
        say("stacks with native frames")
    for run in runs:
        if run.stacks:
            _tell_stacks(run, run.stacks)


def _num_dumps(run: Captured, number: int) -> int:
    return sum(row["round"] == number and row["rc"] == 0 for row in (run.stacks.rows if run.stacks else ()))


def _tell_stacks(run: Captured, stacks: Stacks) -> None:
    """One record for all dumps; each that failed has its row in the index."""
    good = sum(row["rc"] == 0 for row in stacks.rows)
    whys = sorted({row["err"].splitlines()[0] if row["err"] else f"exit code {row['rc']}" for row in stacks.rows if row["rc"]})
    why = f"{len(stacks.rows) - good} of {len(stacks.rows)} dumps failed: {'; '.join(whys)[:600]}" if whys else None
    if not stacks.rows:
        run.folder.note("stacks", "skipped", "no round was asked for, or no Python process was left")
        return
    run.folder.note("stacks", "ok" if good else "failed", why, num_dumps=good)
    if stacks.continued:
        run.folder.note("stacks", "ok", "py-spy left processes stopped: continued", pids=sorted(set(stacks.continued)))


def _sample(run: Captured) -> None:
    """States of every process, taken before py-spy touches it."""
    for member in run.job.members:
        if is_same(member.process.pid, member.process.started):
            at = instant(time.time_ns())
            run.samples.setdefault(member.process.pid, []).append({"at": at, **state_of(member.process.pid)})


def _rest(options: Options, run: Captured, say: Say) -> None:
    """Recorders, logs, kernel and host."""
    folder, trainers = run.folder, run.job.trainers
    with folder.doing("recorder_file"):
        bounded(lambda: copy_dumps(folder, trainers, "fr"), COPY_S)
    if options.may_trigger:
        with folder.doing("recorder_ask"):
            bounded(lambda: ask_for_dumps(folder, trainers), ASK_S)
    else:
        folder.note("recorder_ask", "skipped", "--no-trigger")
    if logs := run.logs:
        with folder.doing("log"):
            bounded(logs.copy, COPY_S)
    capture_kernel(folder)
    with folder.doing("host"):
        bounded(lambda: write_host(folder, run.job), FACTS_S)
    say(f"{run.job.name}: recorders, logs, kernel, host")


def _seal(options: Options, run: Captured, say: Say) -> None:
    """Write the list of files, unless the disk is full: then the capture stays marked as partial."""
    about = {
        "tool": f"firstfault {options.version}".strip(),
        "job": run.job.name,
        "world_size": run.job.world_size,
        "boot_time_ns": boot_ns(),
        "zone_offset_s": zone_s(),
        "ranks": rank_rows(run.job),
    }
    try:
        if run.folder.is_full:
            raise OSError("the disk is full")
        run.folder.seal(about)
        run.is_sealed = True
    except OSError as error:
        say(f"{run.folder.root}: {reason(error)}: it stays marked as partial, with what could be written")


@contextmanager
def _stop_on_signals() -> Iterator[None]:
    """Ctrl-C, SIGTERM and a lost terminal end the capture in order; more of them change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
