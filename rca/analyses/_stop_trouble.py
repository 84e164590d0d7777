"""What had gone wrong before a job was stopped: then the stop only cleaned up, and explains nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from rca.analyses._alive import went_on
from rca.analyses._faults import Story, is_consequence
from rca.analyses._job_logs import Line
from rca.analyses._stop_pace import Pace
from rca.analyses._stops import ASKED
from rca.analyses._words import ranks_text
from rca.types import Tables

__all__ = ["Trouble", "trouble_before"]

CLOSED_S: Final = 5.0  # closed connections this long before the stop are not of it, whoever's clock wrote them
TIMED_OUT: Final = frozenset(
    {"nccl_watchdog_timeout", "nccl_watchdog_detected", "nccl_heartbeat_timeout", "nccl_dump_signal", "store_barrier_timeout"}
)  # they follow a stall of minutes
# By which slurmstepd says that it ends the job or step for its memory.
_MEMORY_KILL: Final = re.compile(r"(?i)exceeded (?:(?:job|step) )?memory limit.{0,80}being killed|exceeded job memory limit")


@dataclass(frozen=True)
class Trouble:
    """What had gone wrong before the stop, in words."""

    says: str
    is_stall: bool = False  # nothing but that no step had ended for long


def trouble_before(case: Tables, told: Story, began: Line, pace: Pace | None) -> Trouble | None:
    """What had gone wrong before the stop; None where nothing had."""
    if told.first:
        ranks = sorted({rank for fault in told.first for rank in fault.ranks})
        return Trouble(f"{ranks_text(ranks)} had failed before ({told.first[0].kind.replace('_', ' ')})")
    for line in told.logs.lines:
        kind = _symptom(line) or ("lost its node" if _lost_node(case, told, line) else None)
        if kind is not None and _is_before(told, line, began, margin_s=0.0 if kind == "timed out" else CLOSED_S):
            whose = f"rank {line.rank}" if line.rank is not None else "a rank"
            return Trouble(f"{whose} had {kind} before")
    if pace is not None and pace.is_stalled:
        by = " (if the stamps of step and stop, which name no zone, are of the same one)" if pace.last_at is None else ""
        since = f" since step {pace.last_step}" if pace.last_step is not None else ""
        return Trouble(f"no step had ended for {pace.idle_s:.1f} s{since}{by}, with one every {pace.usual_s:.3g} s before", is_stall=True)
    return None


def _lost_node(case: Tables, told: Story, line: Line) -> bool:
    """Whether a scheduler says which node failed, and no step ended after it: a job that was asked for so (`--no-kill`) may run on without it."""
    return line.signature == "slurm_node_failure" and line.host is not None and not went_on(case, told.logs, line)


def _symptom(line: Line) -> str | None:
    if line.signature in TIMED_OUT:
        return "timed out"
    if line.signal == "SIGABRT" or line.exit_code in (-6, 134):
        return "aborted"
    if line.signature == "slurm_step_failed" or (line.signature == "slurm_task_exit" and line.exit_code not in (None, 0, *ASKED)):
        return "ended"  # srun cancels a step when one of its tasks ends: what it says of the others comes behind
    if line.signature == "python_traceback" and is_consequence(line):
        return "timed out" if "timed out" in line.text.lower() else "lost a connection"
    if line.signature == "host_out_of_memory" and _MEMORY_KILL.search(line.text):
        return "used up its memory"
    return "lost a connection" if line.signature in ("nccl_socket_closed", "tcpstore_broken") else None


def _is_before(told: Story, line: Line, began: Line, *, margin_s: float) -> bool:
    """Whether a symptom precedes the stop: by the order of one file, else by instants as written and a margin for what two clocks differ."""
    if line.evidence_id == began.evidence_id:
        return told.logs.order(line, began) == -1
    return line.at is not None and began.at is not None and line.at < began.at - timedelta(seconds=margin_s)
