"""What the scheduler's own books say of this job: which accounting row is its launch, when that ended, and which of its hosts were lost with it.

1. A row is of this job when its id stands in the logs or in the name of a log (`slurm-4101.out`); where no id is known, when its hosts are just
   those of the job. Steps belong to their job: the worst tells how it ended (`_scheduler_steps`). A row that is told twice is one.
2. Stamps without a zone become instants by the zone of the job's hosts. Where none is told, by the one that lets a row of this job end when its logs
   end and begin before they begin, if only one row of the job can. Where the logs have no instants either, their own stamps without a zone are
   compared just so: which row it is follows, and no instant does.
3. Of several launches the one counts in whose time the logs lie. A row that cannot be placed is told, and counts for nothing; so are the rows of
   several jobs that ran on these hosts at that time.
4. A node of the job that does not answer, or is down because it did not, and for no plan, is lost if its reason was written in the time of the
   launch, or on the same clock within minutes of the end of a launch that the scheduler ended for a failed node. Not if the job went on there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import polars as pl

from rca.analyses._scheduler_steps import exit_words, worst_step
from rca.clocks import Clocks
from rca.local_time import FULL
from rca.types import Tables

__all__ = ["READS", "Book", "Lost", "Record", "Unused", "book", "placed"]

READS: Final = ("job_records", "node_states", "evidence", "log_events", "scheduler_events", "ranks")
BEFORE: Final = timedelta(hours=1)  # containers and checkpoints are loaded before the first line of a log
AFTER: Final = timedelta(minutes=15)  # nodes are set down, and jobs are cleaned up, minutes after their last word
SLACK: Final = timedelta(minutes=4)  # what two clocks and a buffered log may be apart
NEVER: Final = datetime.max.replace(tzinfo=UTC)
QUARTER_S: Final = 900
MAX_ZONE_S: Final = 14 * 3600
_NAMED: Final = re.compile(r"(?:^|/)slurm[-_.]([0-9]{1,12}(?:_[0-9]{1,9})?)(?:[-_.][\w.\-]{0,60})?\.(?:out|err|log)\b")
_WRITTEN: Final = re.compile(r"(?i)\b(?:STEP|JOB|StepId|JobId|SLURM_JOB(?:_?ID)?)[ =:]{1,3}([0-9]{2,12}(?:_[0-9]{1,9})?)(?![0-9:-])")
_GONE: Final = r"(?i)not responding|unexpectedly|rebooted|unreachable|lost contact|no power"  # why a node is down that did not answer
_SPOKEN: Final = re.compile(r"(?i)slurmstepd|srun|salloc|SLURM_JOB|slurmctld|StepId|JobId")


@dataclass(frozen=True)
class Record:
    """An accounting row of this job; `began` and `ended` are None where nothing tells the zone."""

    row: Mapping[str, Any]
    began: datetime | None
    ended: datetime | None
    step: Mapping[str, Any] | None = None  # that of its steps which ended worse than the job

    @property
    def end(self) -> Mapping[str, Any]:
        """The row that tells how it ended."""
        return self.step or self.row

    @property
    def says(self) -> str:
        """The job in words, and its worst step."""
        step = self.step
        return f"{self.job_says}; its step {step['job_id']} {step['state']}{exit_words(step)}" if step is not None else self.job_says

    @property
    def job_says(self) -> str:
        """The row of the job in words."""
        row = self.row
        by = f" by {row['cancelled_by']}" if row["cancelled_by"] else ""
        until = f", ended {row['ended_at'] or row['ended_at_local']}" if row["ended_at"] or row["ended_at_local"] else ""
        why = f" ({row['reason']})" if row["reason"] else ""
        return f"accounting: job {row['job_id']} {row['state']}{by}{why}{until}"


@dataclass(frozen=True)
class Lost:
    """A node of the job that the scheduler says is gone."""

    row: Mapping[str, Any]
    at: datetime | None


@dataclass(frozen=True)
class Unused:
    """A row that was passed over."""

    record: Record
    why: str
    is_near: bool  # of this job, or of one of its hosts, or of none that it tells


@dataclass(frozen=True)
class Book:
    """What the books say of this launch."""

    launch: Record | None = None  # the row in whose time the logs lie
    unplaced: tuple[Record, ...] = ()  # rows of this job whose times are not told, or do not fit
    unused: tuple[
        Unused, ...
    ] = ()  # where no row is this launch and none of this job: why each was passed over, those that come near first
    rivals: tuple[Record, ...] = ()  # jobs that all ran on these hosts in the time of the logs: which is this one nothing tells
    lost: tuple[Lost, ...] = ()


def placed(row: Mapping[str, Any], moment: str, zone: float | None) -> datetime | None:
    """The instant of a row: as told, else its local stamp in a zone."""
    at: datetime | None = row[f"{moment}_at"]
    local = row[f"{moment}_at_local"]
    if at is not None or local is None or zone is None:
        return at
    try:
        return (datetime.fromisoformat(local) - timedelta(seconds=zone)).replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def book(
    case: Tables, clock: Clocks, *, hosts: Collection[str], span: tuple[datetime, datetime] | None, last_seen: Mapping[str, datetime]
) -> Book:
    """The books of this launch. `hosts`: all of the job; `span`: first and last instant of its logs; `last_seen`: host -> its last word."""
    rows, steps = _rows(case)
    zone = clock.zone_of(hosts)

    def is_over(row: Mapping[str, Any]) -> bool:
        ended = placed(row, "ended", zone)
        return span is not None and ended is not None and ended < span[0] - SLACK

    mine = _mine(case, rows, frozenset(hosts))
    records = [Record(row, placed(row, "started", zone), placed(row, "ended", zone), worst_step(row, steps, is_over)) for row in mine]
    fitting = [record for record in records if span is not None and _holds(record, span)]
    if not fitting and zone is None and span is not None:
        fitting = _by_end(records, span)
    if span is None and (local := _local_span(case)) is not None:
        fitting = [replace(record, began=None, ended=None) for record in _by_end(records, local)]
    launch = min(fitting, key=lambda record: (record.ended is None, record.ended or NEVER, record.row["record"]), default=None)
    rivals = tuple(fitting) if len({record.row["job_id"] for record in fitting}) > 1 else ()
    launch = None if rivals else launch
    unplaced = tuple(record for record in records if not fitting and (record.ended is None or span is None))
    unused = () if fitting or unplaced else _unused(rows, records, frozenset(hosts), _ids(case), span)
    return Book(launch, unplaced, unused, rivals, tuple(_lost(case, launch, zone, frozenset(hosts), span, last_seen)))


def _rows(case: Tables) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Rows of jobs, and of steps, each once though several files or lines tell it."""
    alike = ["job_id", "state", "exit_code", "exit_signal", "started_at", "started_at_local", "ended_at", "ended_at_local"]
    table = case.table("job_records").sort(pl.col("hosts").is_null(), "evidence_id", "record")  # those that tell hosts are kept
    rows: list[Mapping[str, Any]] = []
    rows += table.unique(alike, keep="first", maintain_order=True).sort("evidence_id", "record").collect().rows(named=True)
    return [row for row in rows if not row["is_step"]], [row for row in rows if row["is_step"]]


def _unused(
    rows: Sequence[Mapping[str, Any]],
    mine: Sequence[Record],
    hosts: frozenset[str],
    ids: Collection[str],
    span: tuple[datetime, datetime] | None,
) -> tuple[Unused, ...]:
    """Why none of the rows is this launch."""
    ours = {(record.row["evidence_id"], record.row["record"]): record for record in mine}
    found = []
    for row in rows:
        record = ours.get((row["evidence_id"], row["record"]))
        if record is not None:
            found.append(Unused(record, _off(record, span), is_near=True))
        else:
            shared = hosts & set(row["hosts"] or ())
            found.append(Unused(Record(row, None, None), _of_another(row, shared, hosts, ids), is_near=bool(shared) or not row["hosts"]))
    return tuple(sorted(found, key=lambda unused: not unused.is_near))


def _of_another(row: Mapping[str, Any], shared: frozenset[str], hosts: frozenset[str], ids: Collection[str]) -> str:
    if ids and row["base_job_id"] not in ids:
        return f"the logs are of job {', '.join(sorted(ids)[:3])}"
    if not row["hosts"]:
        return "it says no hosts, and no log says its id: print it with `sacct -P -o JobID,State,ExitCode,Start,End,NodeList`"
    if not hosts:
        return "which hosts this job has is not told, and no log says its id"
    if not shared:
        return f"it ran on other hosts ({', '.join(sorted(row['hosts'])[:4])}{', ...' if len(row['hosts']) > 4 else ''})"
    others = len(row["hosts"]) - len(shared)
    return f"it has {len(shared)} of the {len(hosts)} hosts of this job{f' and {others} more' if others else ' only'}"


def _off(record: Record, span: tuple[datetime, datetime] | None) -> str:
    """How far from the logs a launch of this job lies."""
    if span is None:
        return "no log tells when the job ran"
    if record.began is None:
        return "it does not say when it began"
    if record.ended is None:
        return f"it began {_long(record.began - span[0])} after the first line of the logs"
    apart = record.ended - span[1]
    rest = timedelta(seconds=abs(apart.total_seconds()) % QUARTER_S)
    zone = abs(apart) > SLACK and min(rest, timedelta(seconds=QUARTER_S) - rest) <= SLACK and abs(apart.total_seconds()) <= MAX_ZONE_S
    says = f"it ended {_long(apart)} {'before' if apart < timedelta() else 'after'} the last line of the logs"
    return f"{says}: another launch, or its times are of another zone" if zone else f"{says}: another launch"


def _long(apart: timedelta) -> str:
    minutes, seconds = divmod(round(abs(apart.total_seconds())), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min" if minutes else f"{seconds} s"


def _mine(case: Tables, rows: Sequence[Mapping[str, Any]], hosts: frozenset[str]) -> list[Mapping[str, Any]]:
    """Rows of this job: by an id that logs or their names tell, else by their hosts."""
    if not rows:
        return []
    ids = _ids(case)
    named = [row for row in rows if row["base_job_id"] in ids]
    if named:
        return [row for row in named if not hosts or not row["hosts"] or hosts <= set(row["hosts"])]
    if ids and not any("_" in (row["base_job_id"] or "") for row in rows):
        return []  # the job has an id, and none of these; only the tasks of an array have two
    return [row for row in rows if hosts and row["hosts"] and hosts == set(row["hosts"])]


def _ids(case: Tables) -> frozenset[str]:
    """Ids of the job as logs write them, and as the names of logs hold them."""
    logs: set[str] = set()
    found: set[str] = set()
    for table, text in (("log_events", "message"), ("scheduler_events", "reason")):
        lines = case.table(table).select("evidence_id", text).filter(pl.col(text).str.contains(_SPOKEN.pattern)).unique().collect()
        for _, words in lines.iter_rows():
            found |= set(_WRITTEN.findall(words))
    for table in ("log_events", "scheduler_events", "ranks", "progress"):
        logs |= set(case.table(table).select("evidence_id").unique().collect()["evidence_id"])
    paths = case.table("evidence").filter(pl.col("evidence_id").is_in(sorted(logs))).select("path").collect()["path"]
    return frozenset(found | {id_ for path in paths if path for id_ in _NAMED.findall(path)})


def _holds(record: Record, span: tuple[datetime, datetime]) -> bool:
    """Whether the logs lie in the time of a launch."""
    if record.began is None:
        return False
    return record.began <= span[0] + SLACK and (record.ended is None or record.ended >= span[1] - SLACK)


def _by_end(records: Sequence[Record], span: tuple[datetime, datetime]) -> list[Record]:
    """The one row that ends with the logs and begins before them in some zone; none where several do."""
    found = []
    for told in records:
        row = told.row
        if not row["started_at_local"] or not row["ended_at_local"]:
            continue
        apart = (datetime.fromisoformat(row["ended_at_local"]) - span[1].replace(tzinfo=None)).total_seconds()
        zone = float(round(apart / QUARTER_S) * QUARTER_S)
        record = replace(told, began=placed(row, "started", zone), ended=placed(row, "ended", zone))
        near = abs(apart - zone) <= SLACK.total_seconds() and abs(zone) <= MAX_ZONE_S
        if near and _holds(record, span) and record.began is not None and span[0] - record.began <= BEFORE:
            found.append(record)
    return found if len(found) == 1 else []


def _local_span(case: Tables) -> tuple[datetime, datetime] | None:
    """First and last stamp that logs give with its day but without a zone, as if they were of UTC: for logs without any instant."""
    found = []
    for table, column in (("progress", "ended_at_local"), ("log_events", "logged_at_local")):
        stamp = pl.col(column).filter(pl.col(column).str.contains(f"{FULL.pattern}[0-9:.]{{8,}}$"))
        found += [text for text in case.table(table).select(stamp.min(), stamp.max().alias("last")).collect().row(0) if text is not None]
    days = [datetime.fromisoformat(text).replace(tzinfo=UTC) for text in found]
    return (min(days), max(days)) if days else None


def _lost(
    case: Tables,
    launch: Record | None,
    zone: float | None,
    hosts: frozenset[str],
    span: tuple[datetime, datetime] | None,
    last_seen: Mapping[str, datetime],
) -> list[Lost]:
    if launch is not None and launch.row["state"] == "COMPLETED":
        return []
    is_told = (pl.col("base_state") == "DOWN") & pl.col("reason").str.contains(_GONE)
    gone = is_told.fill_null(value=False) | ~pl.col("is_responding").fill_null(value=True)
    rows = case.table("node_states").filter(pl.col("host").is_in(sorted(hosts)) & gone & (pl.col("attribution") == "platform"))
    found: dict[str, Lost] = {}
    for row in rows.unique().sort("host", "evidence_id", "record").collect().iter_rows(named=True):
        at = placed(row, "reason", zone)
        if at is None:
            at = _beside_end(row, launch)
        in_time = (
            at is not None and span is not None and span[0] <= at <= max(span[1], (launch.ended if launch else None) or span[1]) + AFTER
        )
        seen = last_seen.get(row["host"])
        if in_time and at is not None and (seen is None or seen <= at + SLACK):
            found.setdefault(row["host"], Lost(row, at))
    return list(found.values())


def _beside_end(node: Mapping[str, Any], launch: Record | None) -> datetime | None:
    """When a node was set down, by the end of a launch that failed with a node: both stamps are of the scheduler's clock."""
    if launch is None or launch.ended is None or launch.row["state"] != "NODE_FAIL":
        return None
    ended, written = launch.row["ended_at_local"], node["reason_at_local"]
    if not ended or not written:
        return None
    apart = datetime.fromisoformat(written) - datetime.fromisoformat(ended)
    return launch.ended + apart if abs(apart) <= AFTER else None
