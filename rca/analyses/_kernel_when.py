"""Which kernel records are of the job's time, and why others do not count.

1. A record counts when it is in the job's time, and the job made no more steps after it, was not told to stop and had not failed before.
2. Where nothing but kernel logs tells of the job, the last records of GPUs and switches count that stand near the end of their logs
   (`_kernel_last`), and what led to a panic with which the log of a host ends (`last_words`). Stamps that are no instants count beside others
   where a record of their host names a process of the job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from rca.analyses._alive import ENDS, LOST
from rca.analyses._faults import TIMED_OUT, Fault, Story
from rca.analyses._job_logs import JobLogs, Line
from rca.analyses._kernel_events import Record
from rca.analyses._kernel_last import GAP_S, last_chain, waited_s
from rca.analyses._kernel_links import last_links
from rca.analyses._kernel_undated import before_the_end
from rca.analyses._own_faults import is_programs_own
from rca.clocks import clocks
from rca.types import Tables

__all__ = [
    "AFTER",
    "AFTER_IT",
    "BEFORE",
    "BEHIND_END",
    "ENDED_BY_THEN",
    "OTHER_FIRST",
    "OUTLIVED",
    "after_the_end",
    "last_down",
    "last_of_storage",
    "last_records",
    "last_undated",
    "last_words",
    "of_the_dead",
    "of_the_job",
    "reasons",
    "undated_of_the_job",
    "was_outlived",
]

BEFORE: Final = timedelta(minutes=1)  # a record so long before the first sign of the job may be of it: clocks of host and trainer differ
AFTER: Final = timedelta(seconds=GAP_S)
NEAR_THE_END: Final = timedelta(hours=1)  # of the logs: without other evidence, older records may be of another job
# why a record of the job's own time does not count as its first fault
OUTLIVED: Final = "the job made more steps after it"
ENDED_BY_THEN: Final = "the job had failed or was stopped by then"
AFTER_IT: Final = "after the job"
BEHIND_END: Final = "the job had ended by then: "  # begins it where the scheduler says when
OTHER_FIRST: Final = "a program of another host failed by itself, and no clock tells that this was before"
SCHEDULERS_END: Final = frozenset({"slurm_cancelled", "slurm_time_limit"})
CANCELLED: Final = "CANCELLED"  # stands in those of them with which a step ends: scancel also sends signals that end nothing
LAST_WORDS_S: Final = 60.0  # a panic so near the end of its host's log ended the host: what follows is its trace
DEVICE_ERRORS: Final = frozenset({"gpu_memory_error", "gpu_error", "unspecified_failure", "illegal_access"})  # of victims of a lost link


def of_the_job(logs: JobLogs) -> tuple[datetime, datetime] | None:
    """First and last instant of the job; a call that ran out of time began before the line that says so."""
    if logs.span is None:
        return None
    begun = [line.at - timedelta(seconds=waited) for line in logs.lines if line.at is not None and (waited := waited_s(line)) > 0]
    return min([logs.span[0], *begun]), logs.span[1]


def last_records(case: Tables, records: Iterable[Record], wait_s: float) -> tuple[datetime, datetime] | None:
    """First and last of the last chain of records of GPUs; None where the logs go on for long after it."""
    chain = last_chain((r for r in records if r.line.at is not None and r.of_gpus), wait_s)
    moments = [r.line.at for r in chain if r.line.at is not None]
    end, counted = _end_of_logs(case), before_the_end(case)
    # an end without a zone is none to hold an instant against
    before_s = [counted.get((r.line.evidence_id, r.line.record), 0.0) for r in chain]
    if not moments or (end is not None and end - moments[-1] > NEAR_THE_END) or max(before_s) < -NEAR_THE_END.total_seconds():
        return None
    return moments[0], moments[-1]


def _end_of_logs(case: Tables) -> datetime | None:
    """The last instant of any kernel log, by its stamps or by its seconds since a boot that is dated elsewhere."""
    clock, columns = case.derive(clocks), ("evidence_id", "host", "last_at", "last_at_local")
    rows = case.table("host_logs").select(*columns, uptime_s="last_uptime_s").collect()
    return max((at for row in rows.iter_rows(named=True) if (at := clock.at(row, moment="last_at")) is not None), default=None)


def last_words(case: Tables, records: Sequence[Record]) -> tuple[datetime, datetime] | None:
    """First and last instant of what led to a panic with which the log of a host of the job ends: that host is dead, whenever the job ran."""
    moments = [r.line.at for r in _before_panics(case, records) if r.line.at is not None]
    return (min(moments), max(moments)) if moments else None


def of_the_dead(case: Tables, logs: JobLogs, records: Sequence[Record]) -> list[Record]:
    """What led to a panic with which the log of a host ends, where the job speaks of its death, whatever the clock of the host says.

    The ranks of other hosts gave up the job or lost a peer, and those of this host, of which none is alive, say nothing of an end. Steps that the
    job made after such a panic only show that one of the clocks is off: by an hour at most (`NEAR_THE_END`), or it is another time.
    """
    telling = [line for line in logs.lines if line.signature in {*TIMED_OUT, *LOST, *ENDS, "python_traceback"}]
    gave_up = {logs.hosts.get(line.rank) for line in telling if line.rank is not None and line.signature in TIMED_OUT | LOST}
    ended = {line.host or logs.hosts.get(-1 if line.rank is None else line.rank) for line in telling}
    return [
        r
        for r in _before_panics(case, records)
        if logs.ranks_on(r.host) and gave_up - {r.host, None} and r.host not in ended and _is_about(r.line.at, logs.span)
    ]


def _is_about(at: datetime | None, span: tuple[datetime, datetime] | None) -> bool:
    return at is not None and span is not None and span[0] - NEAR_THE_END <= at <= span[1] + NEAR_THE_END


def _before_panics(case: Tables, records: Sequence[Record]) -> list[Record]:
    """The records that led to a panic with which the log of their host ends, and that panic."""
    ends: dict[str, list[tuple[datetime | None, float | None]]] = defaultdict(list)
    for id_, last_at, uptime_s in case.table("host_logs").select("evidence_id", "last_at", "last_uptime_s").collect().iter_rows():
        ends[id_].append((last_at, uptime_s))
    found: list[Record] = []
    for panic in (r for r in records if r.kind == "panic" and r.line.at is not None):
        told = ends[panic.line.evidence_id]
        last_at, uptime_s = told[0] if len(told) == 1 else (None, None)
        rest_s = (
            uptime_s - panic.line.uptime_s
            if uptime_s is not None and panic.line.uptime_s is not None
            else (last_at - panic.line.at).total_seconds()
            if last_at is not None and panic.line.at is not None
            else None
        )
        if rest_s is not None and rest_s <= LAST_WORDS_S:
            found += [r for r in records if r.host == panic.host and r.line.at is not None and 0 <= panic.at_s - r.at_s <= GAP_S]
    return found


def last_of_storage(case: Tables, records: Iterable[Record], hosts: Collection[str]) -> tuple[datetime, datetime] | None:
    """First and last instant of errors of storage near the end of the logs, of hosts whose processes wait for storage: that is what they wait for."""
    counted, most_s = before_the_end(case), NEAR_THE_END.total_seconds()
    end = _end_of_logs(case)
    near = [
        r.line.at
        for r in records
        if r.kind.startswith("storage")
        and r.host in hosts
        and r.line.at is not None
        and (
            counted.get((r.line.evidence_id, r.line.record), -2 * most_s) >= -most_s
            or (end is not None and end - r.line.at <= NEAR_THE_END)
        )
    ]
    return (min(near), max(near)) if near else None


def last_down(case: Tables, records: Iterable[Record]) -> list[Record]:
    """Links of several hosts that went down together near the end of the logs."""
    return last_links(records, _end_of_logs(case), NEAR_THE_END.total_seconds())


def undated_of_the_job(case: Tables, logs: JobLogs, records: Sequence[Record], wait_s: float) -> list[Record]:
    """Records without an instant that are of the job: those of a host whose last chain names a process of a rank, which dates it; all of the last
    chain where one of them does, or nothing else tells of the job, and no record has an instant."""
    last = last_undated(case, records, wait_s)
    named = {r.host for r in last if r.line.rank is not None and r.line.pid is not None}
    if all(r.line.at is None for r in records):
        return last if logs.span is None or named else []
    end = _end_of_logs(case)
    since = end.timestamp() if end is not None else 0.0  # logs that were collected together end at about the same time
    return [replace(r, before_end_s=since + r.at_s) for r in last if r.host in named]


def last_undated(case: Tables, records: Iterable[Record], wait_s: float) -> list[Record]:
    """The last chain of records of GPUs without an instant, counted from the end of their logs, where it comes near that end."""
    counted = before_the_end(case)
    placed = [
        replace(r, before_end_s=seconds)
        for r in records
        if r.of_gpus and r.line.at is None and (seconds := counted.get((r.line.evidence_id, r.line.record))) is not None
    ]
    chain = last_chain(placed, wait_s)
    return chain if chain and -chain[-1].at_s <= NEAR_THE_END.total_seconds() else []


def was_outlived(record: Record, steps: Iterable[tuple[datetime, str | None]], logs: JobLogs) -> bool:
    """Whether the job made steps for certain after a record."""
    latest = record.line.at + timedelta(seconds=record.error_s) if record.line.at is not None else None
    return any(logs.clocks.order(last, (latest, record.line.clock)) == 1 for last in steps)


def after_the_end(record: Record, told: Story, faults: Sequence[tuple[Fault, frozenset[str]]]) -> bool:
    """Whether a record is later than the stop of the job, or than the first faults in the logs of ranks on other hosts.

    What a lost link does to other GPUs their programs may notice before the driver names the link: that ends nothing. A fault is
    earlier than the time-outs that stand below it, and those of the record's own host tell whether the record came after them. Where no
    clock tells, what only a program does by itself needs no device of another host to break first.
    """
    if told.stop.is_asked and told.stop.began is not None and told.logs.order(record.line, told.stop.began) == 1:
        return True
    is_later = False
    for fault, hosts in faults:
        if record.host in hosts or (record.cause == "nvlink_fault" and fault.kind in DEVICE_ERRORS):
            continue
        below = _time_outs_below(fault.line, told.logs)
        is_late = bool(below) and _is_after_time_outs(
            record, told.logs
        )  # the fault was there before the job was given up, the record was not
        order = told.logs.order(record.line, _latest(fault.line, below))
        if not is_late and order != 1 and not (order is None and is_programs_own(fault)):
            return False
        is_later = True
    return is_later


def _is_told_later(record: Record, told: Story) -> bool:
    """Whether clocks say that a record is later than the stop, or than a fault in the logs."""
    lines = [fault.line for fault in told.first] + ([told.stop.began] if told.stop.is_asked and told.stop.began is not None else [])
    return _is_after_time_outs(record, told.logs) or any(told.logs.order(record.line, line) == 1 for line in lines)


def _ended_before(record: Record, told: Story) -> str:
    """That, and when, the scheduler had ended the job before a record; "" where no clock tells it."""
    ends = [
        line
        for line in told.logs.lines
        if line.signature in SCHEDULERS_END and CANCELLED in line.text and told.logs.order(record.line, line) == 1
    ]
    first = min((line.at for line in ends if line.at is not None), default=None)
    if first is None or record.line.at is None:
        return ""
    behind_s = (record.line.at - first).total_seconds()
    return f"{BEHIND_END}{f'{behind_s / 60:.0f} minutes' if behind_s >= 120 else f'{behind_s:.0f} s'} after its end at {first:%H:%M:%S}"


def _latest(line: Line, below: Sequence[Line]) -> Line:
    """A line, where it has no stamp with the latest instant at which it can have been written: `below` are time-outs after it in its file."""
    return replace(line, at=max(o.at for o in below if o.at is not None)) if below and line.at is None else line


def _time_outs_below(line: Line, logs: JobLogs) -> list[Line]:
    """Time-outs that stand below a line in its file. They go to the same unbuffered stream as a traceback; what a
    program prints may come late."""
    return [
        o
        for o in logs.lines
        if o.evidence_id == line.evidence_id and o.place > line.place and o.at is not None and o.signature in TIMED_OUT
    ]


def _is_after_time_outs(record: Record, logs: JobLogs) -> bool:
    """Whether the ranks of the record's own host had given up the job by then, by the clock of that very host."""
    own = [
        o
        for o in logs.lines
        if o.signature in TIMED_OUT and o.at is not None and logs.hosts.get(o.rank if o.rank is not None else -1) == record.host
    ]
    return bool(own) and all(logs.order(record.line, o) == 1 for o in own)


def reasons(
    everything: Iterable[Record],
    live: Iterable[Record],
    span: tuple[datetime, datetime] | None,
    in_time: Iterable[Record],
    told: Story,
    steps: Iterable[tuple[datetime, str | None]],
) -> dict[tuple[str, str], str]:
    """(evidence_id, record) -> why a record does not count, where its time or what the job did after it says so."""
    inside = {(r.line.evidence_id, r.line.record) for r in in_time} - {(r.line.evidence_id, r.line.record) for r in live}
    steps, found = list(steps), {}
    for r in everything:
        key = r.line.evidence_id, r.line.record
        if key in inside:
            found[key] = (
                OUTLIVED
                if was_outlived(r, steps, told.logs)
                else ended
                if (ended := _ended_before(r, told))
                else ENDED_BY_THEN
                if _is_told_later(r, told)
                else OTHER_FIRST
            )
        elif r.line.at is not None and span is None:
            found[key] = "the logs go on for long after it, and when the job ran is not told"
        elif r.line.at is not None and span is not None:
            is_later = r.line.at > span[1]
            found[key] = (
                (AFTER_IT if is_later else "before the job")
                if told.logs.span is not None
                else f"long {'after' if is_later else 'before'} the last records of GPUs; when the job ran is not told"
            )
    return found
