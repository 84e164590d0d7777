"""Was the job asked to end: announcements of operators and schedulers, and the moment the launchers began to stop the workers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rca.analyses._job_logs import JobLogs, Line
from rca.analyses._odd_task import OddTask, odd_task
from rca.analyses._slurm_tasks import TASKS, task_numbers

__all__ = ["ASKED", "Stop", "earliest", "stop_of"]

ASKED: Final = (-15, 143, -2, 130)  # ends of what was told to end
ENDS_TASKS: Final = frozenset({"slurm_step_failed", "slurm_node_failure", "node_failure"})  # after which srun ends all others itself
_TASKS: Final = re.compile(rf": {TASKS}: ")
_STEP: Final = re.compile(r"\bSTEP ([0-9]+(?:\.[0-9]+)?) ")

PLANNED = frozenset(
    {"draining", "stopping", "time_limit", "cancelled", "requeued", "slurm_time_limit", "slurm_cancelled", "slurm_requeued"}
)
CANCELS = frozenset({"cancelled", "slurm_cancelled"})
PREEMPTED = frozenset({"preempted", "slurm_preempted"})


@dataclass(frozen=True)
class Stop:
    """The end of the job from outside."""

    announcement: Line | None  # why, in words of an operator or scheduler
    is_preemption: bool
    signal: Line | None  # a launcher, or every task, was told to stop, and by whom is not said
    began: Line | None  # the first line that shows workers being stopped
    closed_pids: frozenset[int]  # workers that a launcher stopped: they were alive until then
    odd: OddTask | None = None  # the one task that was killed where the step was cancelled

    @property
    def is_asked(self) -> bool:
        """Whether anything from outside asked the job to end (a launcher also stops the workers beside one that failed)."""
        return self.announcement is not None or self.signal is not None


def earliest(lines: Iterable[Line]) -> Line | None:
    """The first by instant, those without one last; then by file and place."""
    return min(lines, key=lambda line: (line.at is None, line.at or 0, line.evidence_id, line.place), default=None)


def stop_of(logs: JobLogs) -> Stop:
    """What the logs say of a stop. An announcement that concerns hosts without a rank of this job, or that was taken back, is none; nor is the
    cancellation by which srun itself ends a step once one of its tasks ended badly."""
    resumed = [line for line in logs.lines if line.signature == "resumed"]
    failed = [line for line in logs.lines if line.signature == "slurm_step_failed"]
    announced = [
        line for line in logs.lines if _announces(line, logs) and not _taken_back(line, resumed) and not _by_srun(line, failed, logs)
    ]
    odds = {id(line): odd for line in announced if line.signature in CANCELS and (odd := odd_task(logs.lines, line)) is not None}
    announced = [line for line in announced if not (id(line) in odds and odds[id(line)].is_before)]
    preempted = [line for line in announced if line.signature in PREEMPTED]
    signals = [line for line in logs.lines if line.signature == "elastic_agent_signal"] or _terminated(logs)
    closing = [line for line in logs.lines if line.signature == "elastic_sigterm_victim"]
    ended = [line for line in logs.lines if line.signal == "SIGTERM" or line.exit_code == -15]
    cancels = [line for line in announced if line.signature.startswith("slurm_")]
    pids = frozenset(line.pid for line in closing if line.pid is not None)
    odd = next(iter(odds.values()), None)
    is_behind = odd is not None and odd.is_before and not announced and not signals
    began = odd.line if odd is not None and is_behind else earliest([*signals, *closing, *ended, *cancels])
    return Stop(earliest(preempted or announced), bool(preempted), earliest(signals), began, pids, odd)


def _terminated(logs: JobLogs) -> list[Line]:
    """What srun says of the ends of its tasks, where SIGTERM ended every single one and srun itself had no reason to end any: nobody had failed."""
    ends = [line for line in logs.lines if line.signature == "slurm_task_exit"]
    if any(line.exit_code not in ASKED for line in ends) or any(line.signature in ENDS_TASKS for line in logs.lines):
        return []
    tasks = {task for line in ends if (told := _TASKS.search(line.text)) for task in task_numbers(told["numbers"])}
    of_launchers = bool(tasks) and max(tasks) < len(set(logs.hosts.values()))
    return ends if len(tasks) >= (len(set(logs.hosts.values())) if of_launchers else max(1, len(logs.everyone))) else []


def _announces(line: Line, logs: JobLogs) -> bool:
    if line.signature not in PLANNED | PREEMPTED or line.is_planned is False:
        return False
    return line.table != "scheduler_events" or line.host is None or not logs.hosts or line.host in logs.hosts.values()


def _taken_back(line: Line, resumed: Iterable[Line]) -> bool:
    """Whether a later line of the same file says that the job or node goes on."""
    return any(o.evidence_id == line.evidence_id and o.host == line.host and o.place > line.place for o in resumed)


def _by_srun(line: Line, failed: Iterable[Line], logs: JobLogs) -> bool:
    """Whether srun had said, higher up in this file, that it ends this very step, and no task had been told to end by then."""
    if line.signature not in CANCELS or (step := _STEP.search(line.text)) is None:
        return False
    began = [x for x in failed if x.evidence_id == line.evidence_id and x.place < line.place and step[1] in x.text]
    return bool(began) and not any(
        x.signature == "slurm_task_exit" and x.exit_code in ASKED and x.evidence_id == line.evidence_id and x.place < began[0].place
        for x in logs.lines
    )
