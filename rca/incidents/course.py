"""What evidence tells of the course of an interruption beside the fault: since when the job ran, how far it came, when trouble could be noticed.

Facts of the job (`job_facts`), the moments of an incident's stages (`evidence_stages`) and the identity of the evidence (`fingerprint`). Stamps
without a zone become instants as `rca.clocks` tells them, or stay out. What is not told is null: a person may add it by hand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl

from rca.catalogues import cached, rows
from rca.clocks import Clocks, clocks
from rca.incidents.records import Record, iso, job_of
from rca.roster import Roster
from rca.types import Tables, Verdict

__all__ = ["Course", "course", "evidence_stages", "fingerprint", "job_facts", "last_step", "step_s"]

STAMPED: Final = (("log_events", "logged_at"), ("scheduler_events", "changed_at"), ("progress", "ended_at"))
# Events of launchers and trainers (trainer_events) that are moments of an interruption; none of them comes with every step.
TROUBLE: Final = frozenset({"failure_detected", "fault_detect"})
STARTS: Final = frozenset({"worker_start_started", "process_restart", "job_start"})
MEETS: Final = ("rendezvous_started", "rendezvous_completed")  # of a launcher: from the one to the other the ranks find each other again
LEAD: Final = timedelta(seconds=5)  # of a line before the fault: two hosts' clocks kept by NTP, and buffering, explain so much
WARM_UP_STEPS: Final = 1  # the first holds compilation and allocation
NOT_OF_THE_JOB: Final = ("notes", "quarantine")  # evidence of this kind is about the incident


@dataclass(frozen=True)
class Course:
    """Moments that evidence tells; None = it does not."""

    first_at: datetime | None  # first sign of life of the job
    launched_at: datetime | None  # start of the launch; a dump of calls or stacks, whenever it was taken, does not show it
    last_at: datetime | None  # last one
    noticed_at: datetime | None  # first line in which the trouble shows to whoever watches the logs
    noticed_by: str | None  # that line, in words
    relaunched_at: datetime | None  # first start of workers after the trouble was there to see
    resumed_at: datetime | None  # end of the first step after that
    rebuilt: tuple[datetime, datetime] | None  # the launcher's rendezvous after the trouble, from its start to its end
    num_files: int
    fingerprint: str


def course(case: Tables, verdict: Verdict) -> Course:
    """The course of one interruption."""
    told = case.derive(clocks)
    lines = sorted([*_lines(case, told), *_events(case, told)], key=lambda line: line[0])
    began = verdict.failed_at
    noticed = next(((at, why) for at, kind, why in lines if kind == "trouble" and (began is None or at >= began - LEAD)), None)
    signs = [at for at, kind, _ in lines if kind != "announcement"] + list(_signs(case))
    after = noticed[0] if noticed else None
    launched = next((at for at, kind, _ in lines if kind == "start" and after is not None and at > after), None)
    resumed = next((at for at, kind, _ in lines if kind == "step" and launched is not None and at > launched), None)
    num_files, print_ = fingerprint(case)
    return Course(
        min(signs, default=None),
        _launched(case, lines, began),
        max(signs, default=None),
        None if noticed is None else max(noticed[0], began) if began is not None else noticed[0],
        noticed[1] if noticed else None,
        launched,
        resumed,
        _rebuilt(lines, after, launched),
        num_files,
        print_,
    )


def _rebuilt(lines: list[tuple[datetime, str, str]], after: datetime | None, launched: datetime | None) -> tuple[datetime, datetime] | None:
    """The first rendezvous after the trouble; it ends when the last host is there, before workers start again."""
    began = next((at for at, kind, _ in lines if kind == MEETS[0] and after is not None and at > after), None)
    ends = [at for at, kind, _ in lines if kind == MEETS[1] and began is not None and at >= began]
    last = max((at for at in ends if launched is None or at <= launched), default=None)
    return (began, last) if began is not None and last is not None else None


def _launched(case: Tables, lines: list[tuple[datetime, str, str]], began: datetime | None) -> datetime | None:
    """When the launch began: when the first of its processes did; else the first line of a log, or the first step timed, in which nothing is wrong
    yet. Of processes, only those count that were there before the fault: what was captured later may be the next launch."""
    births = case.table("ranks").filter(pl.col("started_at").is_not_null())
    if began is not None:
        births = births.filter(pl.col("started_at") <= began)
    born: datetime | None = births.select(pl.col("started_at").min()).collect().item()
    if born is not None:
        return born
    timed: datetime | None = case.table("steps").select(pl.col("started_at").min()).collect().item()
    told = [at for at, kind, _ in lines if kind in ("start", "step", "other")] + ([timed] if timed is not None else [])
    first = min(told, default=None)
    return first if first is None or began is None or first <= began else None


def fingerprint(case: Tables) -> tuple[int, str]:
    """How many different files the evidence has, and 16 hex digits that change when their content does; notes of an incident are left out."""
    rows = case.table("evidence").select("evidence_id", "kind").collect()
    ids = sorted({id_ for id_, kind in rows.iter_rows() if kind not in NOT_OF_THE_JOB})
    return len(ids), hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16]


@cached
def _informs() -> frozenset[str]:
    """Kinds of lines in which nothing is wrong."""
    return frozenset(row["signature"] for row in rows("signatures") if row["role"] == "info")


def _lines(case: Tables, told: Clocks) -> Iterator[tuple[datetime, str, str]]:
    """Dated lines: when, what it is to an incident (start, trouble, step, other), and its text."""
    for table, moment in STAMPED:
        for row in case.table(table).collect().iter_rows(named=True):
            at = told.at(row, moment=moment)
            if at is None:
                continue
            if table == "progress":
                yield at, "step", ""
            elif table == "scheduler_events":
                yield at, "start" if row["state"] == "resumed" else "trouble", f"announced: {row['reason'] or row['state']}"[:200]
            elif row["signature"] == "worker_started":
                yield at, "start", ""
            else:
                kind = "other" if row["signature"] in _informs() else "trouble"
                yield at, kind, f"{row['signature'].replace('_', ' ')}: {row['message'] or ''}"[:200]


def _events(case: Tables, told: Clocks) -> Iterator[tuple[datetime, str, str]]:
    """The same of events that launchers and trainers write."""
    names = [*TROUBLE, *STARTS, *MEETS]
    for row in case.table("trainer_events").filter(pl.col("event").is_in(names)).collect().iter_rows(named=True):
        if (at := told.at(row)) is not None:
            kind = "trouble" if row["event"] in TROUBLE else "start" if row["event"] in STARTS else row["event"]
            yield at, kind, f"{row['event'].replace('_', ' ')}: {row['message'] or ''}"[:200]


def _signs(case: Tables) -> Iterator[datetime]:
    """First and last instants of what is no log."""
    for table, first, last in (
        ("dumps", "first_at", "last_at"),
        ("steps", "started_at", "started_at"),
        ("dump_index", "sampled_at", "sampled_at"),
        ("trainer_events", "logged_at", "logged_at"),
    ):
        found = case.table(table).select(pl.col(first).min().alias("first"), pl.col(last).max().alias("last")).collect()
        yield from (at for at in found.row(0) if at is not None)


def job_facts(case: Tables, who: Roster, told: Course, given: Mapping[str, Any] | None = None) -> Record:
    """The job of an incident as evidence tells it; what a person gave goes first.

    Hosts and GPUs are counted only when they are known of every rank. A job that nothing names is called after its evidence, since in a fleet
    two nameless jobs are not one.
    """
    given = {name: value for name, value in (given or {}).items() if value is not None}
    world_size = who.world_size if who.world_size is not None else len(who.everyone) or None
    is_mapped = bool(who.everyone) and who.everyone <= set(who.hosts)
    gpus = {(who.hosts[rank], who.gpus[rank]) for rank in who.everyone if rank in who.gpus} if is_mapped else set()
    facts = {
        "job_id": f"job-{told.fingerprint[:8]}" if who.job_id == "job-0" else who.job_id,
        "attempt": who.attempt,
        "world_size": world_size,
        "num_hosts": len(set(who.hosts.values())) if is_mapped else None,
        "num_gpus": len(gpus) if gpus and who.everyone <= set(who.gpus) else None,
        "started_at": iso(told.launched_at),
        "last_step": last_step(case),
        "step_s": step_s(case),
    }
    return job_of(**facts | given)


def last_step(case: Tables) -> int | None:
    """The last step that any rank, or the trainer's print, is seen to have finished."""
    found = [
        case.table("steps").filter(pl.col("step_s").is_not_null()).select(pl.col("step").max()).collect().item(),
        case.table("progress").select(pl.col("step").max()).collect().item(),
    ]
    return max((int(step) for step in found if step is not None), default=None)


def step_s(case: Tables) -> float | None:
    """The usual length of a step, s: the median of what the ranks timed, else of what the trainer printed."""
    for table, column in (("steps", "step_s"), ("progress", "logged_step_s")):
        rows = case.table(table).filter(pl.col(column).is_not_null() & pl.col("step").is_not_null())
        warm = rows.filter(pl.col("step") >= pl.col("step").min() + WARM_UP_STEPS)
        usual = warm.select(pl.col(column).median()).collect().item()
        if usual is not None:
            return round(float(usual), 6)
    return None


def evidence_stages(
    began_at: datetime | None, detected_at: datetime, how: str, verdict_at: datetime, told: Course, *, is_by_hand: bool
) -> list[Record]:
    """The stages whose moments are told: `detect` from the fault to `detected_at` (`how` that is known, by hand or not), `localize` from there
    to the verdict of the open note, `rebuild` while the launcher's rendezvous lasts, `resume` to the first step after a new launch. A stage whose
    end lies before its start is left out: clocks, or a wrong moment."""
    origin = "hand" if is_by_hand else "evidence"
    found: list[tuple[str, datetime | None, datetime, str, str]] = []
    if began_at is not None:
        found.append(("detect", began_at, detected_at, origin, how))
    found.append(("localize", detected_at, verdict_at, origin, "from then to the verdict of the open note"))
    if told.rebuilt is not None:
        found.append(("rebuild", *told.rebuilt, "evidence", "rendezvous of the launcher, as it writes"))
    if told.resumed_at is not None:
        found.append(("resume", None, told.resumed_at, "evidence", "first step printed after the workers were started again"))
    return [
        {"stage": stage, "started_at": iso(start), "ended_at": iso(end), "origin": source, "why": why}
        for stage, start, end, source, why in found
        if start is None or start <= end
    ]
