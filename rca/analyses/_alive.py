"""Signs of life: what shows that a rank went on after something that could have ended it.

A process that was killed runs no further; an exception that its program caught and logged ended nothing. Instants of two hosts are compared
only outside the error of their clocks, lines of one file by their place.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final

import polars as pl

from rca.analyses._job_logs import JobLogs, Line, job_logs
from rca.analyses._stack_views import main_motion
from rca.types import Cite, Tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

__all__ = ["ENDS", "LOST", "TIMED_OUT", "Sign", "is_top_level", "is_unharmed", "last_steps", "was_seen_after", "went_on"]

LINGERS: Final = timedelta(seconds=2)  # how long the last words of a dying process may come behind the record of its end
STEPS_ON: Final = (
    2  # steps after which an exception was outlived: the one under way may still be counted, two are not made without the rank
)
# What is logged when a rank ends: time-outs and lost connections by others, the end itself by launchers.
TIMED_OUT: Final = frozenset({"nccl_watchdog_timeout", "nccl_watchdog_detected", "store_barrier_timeout"})
LOST: Final = frozenset(
    {"nccl_socket_closed", "nccl_connect_refused", "tcpstore_broken", "nccl_net_completion_error", "nccl_desync_report"}
)
ENDS: Final = ("process_signal", "elastic_child_failed", "elastic_root_cause", "slurm_task_exit")
# slurmstepd's word that it ends the job or step; what one file prints behind it is of the next launch, as after a requeue.
_LAUNCH_ENDS: Final = re.compile(r"\*\*\* (?:JOB|STEP) .{1,120}\bCANCELLED AT\b")
_MODULE: Final = "<module>"  # the outermost frame of what reached the top of a program
MAX_SPEAKERS: Final = 8  # ranks that print the steps of the job, of which any one is enough
_INSTANTS: Final = (("stacks", "sampled_at"), ("dumps", "last_at"), ("steps", "started_at"), ("progress", "ended_at"))


@dataclass(frozen=True)
class Sign:
    """The latest sign of life of a rank that one table has."""

    at: datetime
    pid: int | None  # process that was seen; None where the source names none
    cite: Cite


def was_seen_after(case: Tables, logs: JobLogs, end: Line, rank: int) -> Sign | None:
    """The sign of life of a rank (of the very process, where the end names a loader worker) that is later than its end for certain.

    `end` says that a process ended; its clock is that of the host that says so.
    """
    of_worker = end.pid is not None and end.pid in logs.worker_pids.get(rank, ())
    of_trainer = end.pid is not None and end.pid in logs.pids.get(rank, ())
    for sign in case.derive(_latest).get(rank, ()):
        if (of_worker and sign.pid != end.pid) or (of_trainer and sign.pid not in (None, end.pid)):
            continue
        if logs.clocks.order((sign.at - LINGERS, logs.hosts.get(rank)), (end.at, end.clock)) == 1:
            return sign
    return None


def _latest(case: Tables) -> dict[int, list[Sign]]:
    """rank -> its latest stack of each process, recorded call, step and printed step, the latest first."""
    found: dict[int, list[Sign]] = defaultdict(list)
    for table, moment in _INSTANTS:
        rows = case.table(table).filter(pl.col("rank").is_not_null() & pl.col(moment).is_not_null())
        pid = pl.col("pid") if table == "stacks" else pl.lit(None, pl.Int64).alias("pid")
        if table == "stacks":
            rows = rows.filter(pl.col("dump_status") == "ok")
        last = (
            rows.select("rank", pid, moment, "evidence_id", "record").sort(moment, "evidence_id", "record").group_by("rank", "pid").last()
        )
        for rank, process, at, evidence_id, record in last.collect().iter_rows():
            found[rank].append(Sign(at, process, Cite(table, evidence_id, "", record, f"rank {rank} at {at:%H:%M:%S.%f} UTC")))
    return {rank: sorted(signs, key=lambda s: (s.at, s.cite.evidence_id, s.cite.record), reverse=True) for rank, signs in found.items()}


def went_on(case: Tables, logs: JobLogs, line: Line) -> bool:
    """Whether the rank that wrote a line made steps after it, ended well, or was seen moving in its training loop.

    A step of the job is a step of every rank: none ends without all of them.
    """
    after = case.derive(_after)
    end = _end_of_launch(logs, after.launch_ends, line)
    if line.rank is not None and any(end is None or logs.order(x, end) != 1 for x in after.ended_well.get(line.rank, ())):
        return True
    # What a program printed may reach the file at its exit, behind the traceback that ended it: place alone counts while it has not failed.
    if (line.at is not None or line.rank not in after.ended_badly) and _printed_on(after, line, end):
        return True
    if _is_last_word(after, line):
        return False
    of_job, own = after.of_job, after.own
    if end is not None and end.at is not None and any(at > end.at for at, _ in (*of_job, *own)):
        of_job, own = _of_job(case, end.at), _own(case, end.at)
    of_job = of_job if line.rank not in after.ended_badly else ()  # a job may go on without a rank that it lost
    later = [*of_job, *((at, rank) for at, rank in own if rank == line.rank)]
    if any(logs.clocks.order((at, logs.hosts.get(rank)), (line.at, line.clock)) == 1 for at, rank in later):
        return True
    if line.at is None and _outlived_its_end(case, logs, line):
        return True
    if line.at is None and is_unharmed(case, logs, line):
        return True  # no clock orders it, but the end of a rank that all others wait for leaves neither a job that moves nor silence
    seen_at = after.moved.get(line.rank) if line.rank is not None else None
    return seen_at is not None and logs.clocks.order((seen_at, logs.hosts.get(line.rank or 0)), (line.at, line.clock)) == 1


def is_top_level(line: Line) -> bool:
    """Whether a traceback is one that no program caught: it was the end of its process. One that a program logs begins where it was caught."""
    return line.signature == "python_traceback" and bool(line.frames) and line.frames[-1].startswith(_MODULE)


def _is_last_word(after: _After, line: Line) -> bool:
    """Whether a traceback is one that no program caught, of a rank that is silent afterwards while others complain: then it is the end of that
    process, some time behind its stamp, which is that of a line before."""
    return (
        is_top_level(line)
        and bool(after.complain)
        and line.rank not in after.complain
        and after.last_place.get(line.evidence_id) == line.place
    )


def _end_of_launch(logs: JobLogs, ends: Sequence[Line], line: Line) -> Line | None:
    """The first line behind this one by which a scheduler ended the launch: by place in its file, else by a clock."""
    place = bisect_right(ends, (line.evidence_id, line.place), key=lambda end: (end.evidence_id, end.place))
    if place < len(ends) and ends[place].evidence_id == line.evidence_id:
        return ends[place]
    some = (next(own) for _, own in groupby(ends, key=lambda end: end.evidence_id))
    behind = [end for end in islice(some, MAX_SPEAKERS) if line.at is not None and logs.order(line, end) == -1]
    return min(behind, key=lambda end: (end.at is None, end.at or 0), default=None)


def _outlived_its_end(case: Tables, logs: JobLogs, line: Line) -> bool:
    """Whether every dated end of the line's rank that a launcher told lies before a sign of life of that rank: then the one that wrote the line, of
    which nothing else tells when, is a process of an earlier launch."""
    ends = [x for x in logs.lines if line.rank is not None and x.rank == line.rank and x.signature in ENDS and x.at is not None]
    return bool(ends) and all(was_seen_after(case, logs, x, x.rank) is not None for x in ends if x.rank is not None)


def is_unharmed(case: Tables, logs: JobLogs, line: Line) -> bool:
    """Whether a rank was seen moving and its recorder answered, in a job that moves and of whose end no log tells, and not only before the line.

    Instants order the two; where the line has none, what the rank wrote elsewhere by a clock of the same form. Where nothing orders them, a line
    behind the steps of the one file that the rank has may be its end; one in another file is of a process before it.
    """
    after = case.derive(_after)
    if line.rank is None or line.rank not in after.unharmed:
        return False
    if line.at is not None:
        signs = case.derive(_latest).get(line.rank)
        return not signs or logs.clocks.order((signs[0].at, logs.hosts.get(line.rank)), (line.at, line.clock)) != -1
    elsewhere = [local for id_, local in after.written.get(line.rank, {}).items() if id_ != line.evidence_id]
    alike = [local for local in elsewhere if local is not None and line.local is not None and len(local) == len(line.local)]
    if alike:
        return max(alike) > str(line.local)
    printed = after.printed.get(line.evidence_id)
    return bool(elsewhere) or printed is None or int(printed[0].searchsorted(line.place[-1])) < len(printed[0]) or not len(printed[0])


def last_steps(case: Tables, logs: JobLogs) -> list[tuple[datetime, str | None]]:
    """Until when, by the clock of each host, the job made steps for certain: what a kernel recorded before has not ended it."""
    after = case.derive(_after)
    last: dict[str | None, datetime] = {}
    for at, rank in (*after.of_job, *after.own):
        host = logs.hosts.get(rank)
        last[host] = max(at, last.get(host, at))
    return sorted(((at, host) for host, at in last.items()), key=lambda told: told[0])[-MAX_SPEAKERS:]


def _printed_on(after: _After, line: Line, end: Line | None) -> bool:
    """By place in the file of the line itself, up to the end of the launch."""
    printed = after.printed.get(line.evidence_id)
    if printed is None:
        return False
    places, steps = printed
    at = int(places.searchsorted(line.place[-1]))
    later = steps[at : int(places.searchsorted(end.place[-1])) if end is not None and end.evidence_id == line.evidence_id else None]
    return bool(later.size) and int(later.max() - (steps[:at].max() if at else later.min() - 1)) >= STEPS_ON


@dataclass(frozen=True)
class _After:
    """What a line must precede for its rank to have gone on."""

    ended_well: Mapping[int, Sequence[Line]]
    ended_badly: frozenset[int | None]
    printed: Mapping[str, tuple[Numbers, Numbers]]  # evidence_id -> lines and numbers of the steps that it prints
    own: Sequence[tuple[datetime, int]]  # start of the last step but one that a rank timed, and the rank
    # End of the last step but two that a rank prints (the first after a line may have been under way on every rank), and the rank; a few.
    of_job: Sequence[tuple[datetime, int]]
    moved: Mapping[int, datetime]  # rank that was seen moving -> its first sample
    written: Mapping[
        int, Mapping[str, str | None]
    ]  # rank -> each file that holds words or steps of it -> its latest stamp there without zone
    complain: frozenset[int]  # ranks that timed out, or lost a connection
    last_place: Mapping[str, tuple[int, ...]]  # of the last line of each file
    launch_ends: Sequence[Line]  # by which a scheduler ended the launch, by file and place
    unharmed: frozenset[int]  # ranks that were seen moving and whose recorder answered, in a job that moves and of whose end nobody tells


def _after(case: Tables) -> _After:
    lines = case.derive(job_logs).lines
    _, motion = case.derive(main_motion)
    taken = case.table("stacks").filter((pl.col("dump_status") == "ok") & pl.col("sampled_at").is_not_null())
    first = dict(taken.group_by("rank").agg(pl.col("sampled_at").min()).collect().iter_rows())
    is_told_of = any(line.exit_code or line.signal or line.signature in TIMED_OUT | LOST | {*ENDS} for line in lines)
    dumped = case.table("dump_index").select("rank").drop_nulls().unique().collect()["rank"].to_list() if motion.job_moves else []
    well: dict[int, list[Line]] = defaultdict(list)
    for line in lines:
        if line.rank is not None and (line.signature == "worker_finished" or line.exit_code == 0):
            well[line.rank].append(line)
    return _After(
        well,
        frozenset(line.rank for line in lines if line.exit_code or line.signal),
        _printed(case),
        _own(case),
        _of_job(case),
        {rank: first[rank] for rank in motion.moved if motion.job_moves and rank in first},
        _written(case) if dumped else {},
        frozenset(line.rank for line in lines if line.rank is not None and line.signature in TIMED_OUT | LOST),
        {line.evidence_id: line.place for line in lines},
        [line for line in lines if line.signature == "slurm_requeued" or _LAUNCH_ENDS.search(line.text)],
        frozenset() if is_told_of else frozenset(motion.moved) & frozenset(dumped),
    )


def _written(case: Tables) -> dict[int, dict[str, str | None]]:
    """What ranks wrote, by file."""
    found: dict[int, dict[str, str | None]] = defaultdict(dict)
    parts = [
        case.table(table).filter(pl.col("rank").is_not_null()).select("rank", "evidence_id", local=local)
        for table, local in (("log_events", "logged_at_local"), ("progress", "ended_at_local"))
    ]
    rows = pl.concat(parts).group_by("rank", "evidence_id").agg(pl.col("local").max()).sort("rank", "evidence_id")
    for rank, evidence_id, local in rows.collect().iter_rows():
        found[rank][evidence_id] = local
    return found


def _own(case: Tables, until: datetime | None = None) -> list[tuple[datetime, int]]:
    return _nth_last(case, "steps", "started_at", STEPS_ON, until)


def _of_job(case: Tables, until: datetime | None = None) -> list[tuple[datetime, int]]:
    return sorted(_nth_last(case, "progress", "ended_at", STEPS_ON + 1, until))[-MAX_SPEAKERS:]


def _nth_last(case: Tables, table: str, moment: str, number: int, until: datetime | None) -> list[tuple[datetime, int]]:
    """The instant of the `number`-th step from the end of each rank, and the rank; of those until an instant."""
    told = case.table(table).select("rank", "step", at=moment).drop_nulls()
    told = told if until is None else told.filter(pl.col("at") <= until)
    rows = told.group_by("rank", "step").agg(pl.col("at").min())
    chosen = rows.sort("at").group_by("rank").agg(pl.col("at").tail(number).first(), pl.len().alias("n")).filter(pl.col("n") >= number)
    return [(at, rank) for rank, at in chosen.select("rank", "at").sort("rank").collect().iter_rows()]


def _printed(case: Tables) -> dict[str, tuple[Numbers, Numbers]]:
    """Of the files in which more than steps is told."""
    told = case.table("log_events").filter(~pl.col("signature").is_in(["train_progress", "worker_started"]))
    rows = (
        case.table("progress").filter(pl.col("step").is_not_null()).join(told.select("evidence_id").unique(), on="evidence_id", how="semi")
    )
    line = pl.col("record").str.extract(r"([0-9]+)$").cast(pl.Int64)
    lists = rows.select("evidence_id", "step", line=line).sort("line").group_by("evidence_id").agg("line", "step").collect()
    import numpy as np

    return {id_: (np.asarray(places), np.asarray(steps)) for id_, places, steps in lists.iter_rows()}
