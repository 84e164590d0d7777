"""What do the scheduler's own books say of how this job ended?

1. Find the accounting row that is this launch: by id or hosts, and in whose time the logs lie (`_scheduler_records`). A step that ended worse than
   its job tells how it ended.
2. A launch that ended because a node failed, or because memory ran out, says why and names nobody: which node it was is told by the states of nodes
   (`process_death`). One that was preempted, cancelled by a person or out of time is told by `planned_stop`, which asks whether the job still moved;
   without any log the row alone says it, for less.
3. Other ends, rows of this job that cannot be placed in time, and several jobs that were on these hosts at that time are only told: a row of
   another launch must not decide. Where no row is used, why is told too.
"""

from __future__ import annotations

from collections.abc import Sequence

from rca.analyses._job_logs import READS, JobLogs, job_logs
from rca.analyses._scheduler_records import Record, Unused
from rca.analyses._scheduler_steps import exit_words
from rca.analyses._words import iso
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

NEEDS = ("job_records",)
USES = tuple(table for table in READS if table not in NEEDS)
SIGNS = {
    "node_failed": Sign("death", ("host_lost", "host_fault")),
    "out_of_memory": Sign("death", ("host_out_of_memory",)),
    "preempted_on_record": Sign("stop", ("preemption",)),
    "stopped_on_record": Sign("stop", ("planned_stop",)),
    "ended_as": Sign("mention", (), is_note=True),
    "not_placed": Sign("mention", (), is_note=True),
    "not_used": Sign("mention", (), is_note=True),
}

FAILED_NODES = frozenset({"NODE_FAIL", "BOOT_FAIL"})
WITHOUT_LOGS = {
    "PREEMPTED": "preempted_on_record",
    "CANCELLED": "stopped_on_record",
    "TIMEOUT": "stopped_on_record",
    "DEADLINE": "stopped_on_record",
}
_STOPS = {
    "PREEMPTED": "preempted",
    "CANCELLED": "cancelled",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
}  # how rca.stop_words calls it
MAX_NOTES = 3


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for the launch, or a note for each row of the job that cannot be placed."""
    logs = case.derive(job_logs)
    launch = logs.book.launch
    if logs.book.rivals:
        return [_rivals(logs.book.rivals)]
    if launch is None:
        if not logs.book.unplaced and not logs.book.unused:
            raise NotEnoughEvidence("no accounting row of a job is here")
        if not logs.book.unplaced:
            note = _unused(logs.book.unused)
            if not logs.lines:
                raise NotEnoughEvidence(note.says)
            return [note]
        return [_finding("not_placed", record, f"{record.says}; {_when(record, logs)}") for record in logs.book.unplaced[:MAX_NOTES]]
    state = launch.end["state"]
    if state in FAILED_NODES:
        where = ", ".join(sorted(lost.row["host"] for lost in logs.book.lost))
        says = f"{launch.says}: the scheduler ended it because a node failed" + (f" ({where})" if where else "; which one is not told here")
        return [_finding("node_failed", launch, says)]
    if state == "OUT_OF_MEMORY":
        return [_finding("out_of_memory", launch, f"{launch.says}: memory of its control group ran out")]
    heard = any(line.table in ("log_events", "scheduler_events") for line in logs.lines)
    if launch.step is None and state in WITHOUT_LOGS and launch.row["attribution"] == "planned" and not heard:
        return [_finding(WITHOUT_LOGS[state], launch, f"{launch.says}; no log tells whether it still moved")]
    return [_finding("ended_as", launch, launch.says)]


def _when(record: Record, logs: JobLogs) -> str:
    if logs.span is not None and record.row["ended_at_local"]:
        return "its local times fit the end of the logs in no zone"
    return "when that was against the logs is not told"


def _rivals(records: Sequence[Record]) -> Finding:
    """Several jobs of which any may be this one, in one note."""
    says = f"{len(records)} jobs were on these hosts in the time of the evidence, and which is this one nothing tells: "
    says += "; ".join(record.says.removeprefix("accounting: ") for record in records[:MAX_NOTES])
    cites = tuple(cite for record in records[:MAX_NOTES] for cite in _cites(record))
    return Finding("scheduler_record", "not_placed", says, scope="rivals", numbers={"rows": len(records)}, cites=cites)


def _unused(rows: Sequence[Unused]) -> Finding:
    """What was passed over, in one note."""
    told = [f"job {unused.record.row['job_id']} {unused.record.row['state']}: {unused.why}" for unused in rows[:MAX_NOTES]]
    more = f"; and {len(rows) - MAX_NOTES} more" if len(rows) > MAX_NOTES else ""
    says = f"no accounting row is of this job and launch: {'; '.join(told)}{more}"
    cites = tuple(
        Cite("job_records", row["evidence_id"], "", row["record"], unused.record.says[:300])
        for unused in rows[:MAX_NOTES]
        for row in [unused.record.row]
    )
    return Finding("scheduler_record", "not_used", says, scope="not used", numbers={"rows": len(rows)}, cites=cites)


def _cites(record: Record) -> tuple[Cite, ...]:
    """The row of the step that tells how it ended, then that of the job."""
    told = [(record.row, record.job_says)]
    if record.step is not None:
        told.insert(0, (record.step, f"accounting: step {record.step['job_id']} {record.step['state']}{exit_words(record.step)}"))
    return tuple(Cite("job_records", row["evidence_id"], "", row["record"], says[:300]) for row, says in told)


def _finding(sign: str, record: Record, says: str) -> Finding:
    row, end = record.row, record.end
    numbers = {
        "failed_at": iso(record.ended),
        "state": end["state"],
        "restarts": row["restarts"],
        "exit_code": end["exit_code"],
        "exit_signal": end["exit_signal"],
        "stated_attribution": end["attribution"],
        "stop_kind": _STOPS.get(end["state"]),
    }
    scope = f"{row['job_id']} {row['evidence_id']} {row['record']}"
    return Finding("scheduler_record", sign, says, scope=scope, numbers=numbers, cites=_cites(record))


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
