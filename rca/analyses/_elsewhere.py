"""Which ends that nothing dates cannot be what ended this launch: their process was there after all, or the job came to its end.

A file may hold the last words of any launch, or of another job. Most say when. Where one does not, what was seen of the job decides.

1. The rank was found waiting with all others when the job stood still (`_kept_up`). One that was found in the midst of its program there, or whose
   recorder answered, had not been ended either: not killed, and not by an exception that reached the top of its program.
2. Nobody's: every rank was.
3. The program itself says that it was done, and no rank speaks of trouble: an exception would have kept it from that.
4. The launchers of all hosts wrote of a start of workers, and to the end of their logs of none that failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rca.analyses._alive import ENDS, LOST, TIMED_OUT, is_top_level
from rca.analyses._job_logs import TORN, JobLogs, Line, job_logs
from rca.analyses._kept_up import kept_up, was_there
from rca.types import Tables

__all__ = ["left_open", "why_elsewhere"]

_OF_LAUNCHERS: Final = ("elastic_", "worker_started", "worker_finished")
# A refused connection is tried again, as when a launch begins before its store does.
_WAITED: Final = frozenset({*LOST, *TIMED_OUT}) - {"nccl_connect_refused"}


def left_open(case: Tables, logs: JobLogs, line: Line) -> tuple[int, ...]:
    """Ranks whose process an undated line without a rank can be of, sorted."""
    there = case.derive(was_there) if is_top_level(line) or line.signature in ENDS else case.derive(kept_up)
    return tuple(sorted(set(logs.ranks_on(line.host) or logs.everyone) - there))


def why_elsewhere(case: Tables, logs: JobLogs, line: Line) -> str | None:
    """Why the end that an undated line tells is not one of this launch; None where it may be."""
    if line.at is not None:
        return None
    is_end = is_top_level(line) or line.signature in ENDS
    if line.rank is not None and line.rank in case.derive(kept_up):
        return "it was found waiting with the others when the job stood still"
    if line.rank is not None and is_end and line.rank in case.derive(was_there):
        return "its process was there when the job stood still"
    if line.rank is None and logs.everyone and not left_open(case, logs, line):
        return f"all ranks{f' of {line.host}' if logs.ranks_on(line.host) else ''} were there when the job stood still"
    told = case.derive(_said_at_last)
    if not is_end or told.is_troubled:
        return None
    if told.is_done:
        return "the program says that it was done"
    if not is_top_level(line):
        return None
    num_hosts = len(set(logs.hosts.values()))
    return "the launchers wrote to their end of no worker that failed" if 0 < num_hosts <= told.num_watching else None


@dataclass(frozen=True)
class _Last:
    """What logs say of the end of the job."""

    is_troubled: bool  # a rank waited for another in vain, or a dated line tells that a process ended badly
    is_done: bool  # a rank's own log ends with the word that it was done
    num_watching: int  # launchers' logs that are not torn and end behind a start of workers: one a host


def _said_at_last(case: Tables) -> _Last:
    logs = case.derive(job_logs)
    own: dict[str, Line] = {}
    launchers: dict[str, Line] = {}
    torn = {line.evidence_id for line in logs.lines if line.signature == TORN}
    for line in logs.lines:
        if line.evidence_id in logs.own_logs:
            own[line.evidence_id] = line
        elif line.rank is None and line.signature.startswith(_OF_LAUNCHERS) and line.evidence_id not in torn:
            launchers[line.evidence_id] = line
    return _Last(
        any(
            line.signature in _WAITED or (line.at is not None and bool(line.exit_code or line.signal or line.signature in ENDS))
            for line in logs.lines
        ),
        any(line.signature == "worker_finished" for line in own.values()),
        sum(line.signature == "worker_started" for line in launchers.values()),
    )
