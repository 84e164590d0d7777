"""Did the job end inside an announced window of maintenance on its hosts?

1. When it ended: by the accounting row of the launch, else by the last word of its logs. A job whose end nobody complains of did not end here.
2. A window counts when it was not called off, concerns a host of the job (or names none: the whole cluster), had begun by then and was not over.
   Stamps without a zone are taken in that of the job's hosts. Where none is told, and the logs have local stamps too, a job that was stopped just as
   the window began counts: by chance, or in another zone, that is rare. So it does by UTC, in which many controllers run. Else the window is only
   told.
3. A window is a reason among others, for little: a fault that is recorded stays the cause, and then the window is only told beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from rca.analyses._faults import Story, complains, story
from rca.analyses._job_hosts import READS as HOST_READS
from rca.analyses._job_hosts import job_hosts
from rca.analyses._job_logs import READS
from rca.analyses._scheduler_records import placed
from rca.analyses._words import iso
from rca.errors import NotEnoughEvidence
from rca.local_time import filled
from rca.types import Cite, Finding, Sign, Tables

NEEDS = ("planned_windows",)
USES = tuple(dict.fromkeys(table for table in (*READS, *HOST_READS) if table not in NEEDS))
SIGNS = {
    "in_window": Sign("window", ("planned_stop", "unknown")),
    "window_beside": Sign("mention", (), is_note=True),
    "window_not_placed": Sign("mention", (), is_note=True),
}

EDGE = timedelta(minutes=5)  # nodes are taken some minutes around the hour that was announced
TAKEN = timedelta(minutes=15)  # after the beginning of a window its nodes have been taken
SOME_DAY = datetime(2024, 7, 1)  # near which stamps without a year are read first
MAX_SHOWN = 3
ENDS = frozenset({"CANCELLED", "FAILED", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "TIMEOUT", "DEADLINE", "REQUEUED", "OUT_OF_MEMORY"})


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding for each window in which the job ended, at most three."""
    told = case.derive(story)
    known = case.derive(job_hosts).named
    rows = (
        case.table("planned_windows")
        .filter(~pl.col("is_cancelled").fill_null(value=False))
        .unique()
        .sort("evidence_id", "record", "started_at")
    )
    windows = [row for row in rows.collect().iter_rows(named=True) if not row["hosts"] or known & set(row["hosts"])]
    if not windows:
        if not known:
            raise NotEnoughEvidence("on which hosts the job ran is not told, and the windows name theirs")
        return ()
    ended = _ended(told)
    if ended is None and _stopped_local(told) is None:
        if told.logs.span is None:
            raise NotEnoughEvidence("when the job ran is not told")
        return ()
    zone = told.logs.clocks.zone_of(known)
    return list(_findings(told, windows, ended, zone))[:MAX_SHOWN]


def _ended(told: Story) -> datetime | None:
    """When the job was interrupted; None where nothing says that it was."""
    launch = told.logs.book.launch
    if launch is not None and launch.ended is not None:
        return launch.ended if launch.row["state"] in ENDS else None
    is_hurt = bool(told.first) or told.stop.is_asked or any(map(complains, told.logs.lines))
    return told.logs.span[1] if is_hurt and told.logs.span is not None else None


def _stopped_local(told: Story) -> datetime | None:
    """When the job was told to stop, by the local stamp of that line; None where it has none with its day."""
    lines = (told.stop.began, told.stop.signal, told.stop.announcement)
    return next((at for line in lines if line is not None and line.local and (at := filled(line.local, SOME_DAY)) is not None), None)


def _begins_then(row: Mapping[str, Any], told: Story) -> bool:
    """Whether the job was stopped just as a window began whose stamps, like those of the logs, have no zone."""
    stopped = _stopped_local(told)
    begins = filled(row["started_at_local"], SOME_DAY) if row["started_at_local"] else None
    if stopped is None or begins is None:
        return False
    stopped = filled(f"{stopped:%m-%dT%H:%M:%S}", begins)  # a launcher's stamp has no year
    return stopped is not None and -EDGE <= stopped - begins <= TAKEN


def _begins_in_utc(row: Mapping[str, Any], told: Story, ended: datetime | None) -> datetime | None:
    """When a window whose stamps have no zone began by UTC, where the job was told to stop just then; else None. Where no instant stands at the
    stop, it was when the job ended."""
    dated = [line.at for line in (told.stop.began, told.stop.signal) if line is not None and line.at is not None]
    stopped = min(dated) if dated else ended if told.stop.is_asked else None
    begins = placed(row, "started", 0.0) if row["started_at"] is None else None
    return begins if begins is not None and stopped is not None and -EDGE <= stopped - begins <= TAKEN else None


def _findings(told: Story, windows: Sequence[Mapping[str, Any]], ended: datetime | None, zone: float | None) -> Iterator[Finding]:
    for row in windows:
        own = 0.0 if (in_utc := _begins_in_utc(row, told, ended)) is not None else zone
        begins, ends = placed(row, "started", own), placed(row, "ended", own)
        name = f"{row['kind'] or 'window'} {row['name']!r}" if row["name"] else row["kind"] or "a window"
        if begins is None and _begins_then(row, told):
            says = f"the job was stopped just as {name} began, announced from {row['started_at_local']}, both by stamps without a zone"
            yield _in_window(told, row, says, None)
            continue
        if begins is None:
            if row["started_at_local"]:
                says = (
                    f"{name} is announced from {row['started_at_local']}, in a zone that is not told: whether the job ended in it is open"
                )
                yield _finding("window_not_placed", row, says, None)
            continue
        if ended is None or not begins - EDGE <= ended <= (ends if ends is not None else begins) + EDGE:
            continue
        where = f"on {len(row['hosts'])} hosts" if row["hosts"] else "of the whole cluster"
        says = f"the job ended inside {name} {where}, announced from {begins:%Y-%m-%d %H:%M} UTC" + (f" to {ends:%H:%M}" if ends else "")
        says += ", by stamps without a zone, read as UTC since the job was stopped just then" if in_utc is not None and zone else ""
        yield _in_window(told, row, says, ended)


def _in_window(told: Story, row: Mapping[str, Any], says: str, ended: datetime | None) -> Finding:
    if any(fault.line.table != "node_states" for fault in (*told.first, *told.unplaced)):
        return _finding("window_beside", row, f"{says}; but a fault of its own is recorded", ended)
    return _finding("in_window", row, says, ended)


def _finding(sign: str, row: Mapping[str, Any], says: str, ended: datetime | None) -> Finding:
    cite = Cite("planned_windows", row["evidence_id"], "", row["record"], says[:300])
    scope = f"{row['evidence_id']} {row['record']} {row['started_at'] or row['started_at_local']}"
    numbers = {"failed_at": iso(ended), "stop_kind": "maintenance" if sign == "in_window" else None}
    return Finding("planned_window", sign, says, scope=scope, numbers=numbers, cites=(cite,))


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
