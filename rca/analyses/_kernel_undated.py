"""Kernel records counted back from the end of their host's log: all that is left where they have no instant, or nothing else tells when the job ran.

dmesg prints seconds since boot, syslog a local time without zone or year. Without a boot time or zone neither is an instant, but both say how long
before the last line of its own log a record was. Logs that were collected together end at about the same time. So a record is of another time
than the job (`past`) where its boot ended before the job, or where its log goes on for longer than the job and some days.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from rca.clocks import clocks
from rca.types import Tables

__all__ = ["before_the_end", "past"]

COLLECTED: Final = timedelta(days=3)  # so long after a job, over a weekend, its logs are still collected
HALF_YEAR: Final = timedelta(days=183)
YEAR: Final = timedelta(days=366)  # that of the leading `_YEARLESS`
CLOCKS_DIFFER: Final = timedelta(minutes=1)  # those of host and trainer

_YEARLESS: Final = "2000-"  # a leap year
_DAYLESS: Final = "2000-01-01T"


def before_the_end(case: Tables) -> dict[tuple[str, str], float]:
    """(evidence_id, record) -> seconds, 0 or less, from the last line of that log; only of logs of one host, and of their last boot."""
    ended = case.derive(clocks).kernel.ended
    ends: dict[str, list[tuple[float | None, str | None]]] = defaultdict(list)
    for id_, uptime_s, local in case.table("host_logs").select("evidence_id", "last_uptime_s", "last_at_local").collect().iter_rows():
        ends[id_].append((uptime_s, local))
    rows = case.table("kernel_events").filter(pl.col("logged_at").is_null())
    found = {}
    for id_, record, uptime_s, local in rows.select("evidence_id", "record", "uptime_s", "logged_at_local").collect().iter_rows():
        if len(ends[id_]) != 1 or (id_, record) in ended:
            continue
        last_uptime_s, last_local = ends[id_][0]
        if uptime_s is not None and last_uptime_s is not None:
            found[id_, record] = min(0.0, uptime_s - last_uptime_s)
        elif local and last_local and (one := _naive(local)) and (two := _naive(last_local)) and two - one < HALF_YEAR:
            one -= YEAR if one - two > HALF_YEAR else timedelta(0)  # of last year: the log goes on over New Year
            found[id_, record] = min(0.0, (one - two).total_seconds())  # further apart, a year may have ended in between
    return found


def past(case: Tables, span: tuple[datetime, datetime] | None) -> frozenset[tuple[str, str]]:
    """(evidence_id, record) of records that are older than the job, whose first and last instant are `span`: of those without an instant, and, where
    nothing tells when the job ran, of all."""
    ended = case.derive(clocks).kernel.ended
    most_s = (COLLECTED + (span[1] - span[0] if span is not None else timedelta(0))).total_seconds()
    of_old_boots = (key for key, began in ended.items() if began is not None and span is not None and began < span[0] - CLOCKS_DIFFER)
    before = before_the_end(case) | (_dated_before_the_end(case) if span is None else {})
    return frozenset([*of_old_boots, *(key for key, seconds in before.items() if seconds < -most_s)])


def _dated_before_the_end(case: Tables) -> dict[tuple[str, str], float]:
    """As `before_the_end`, of records with an instant in logs whose last line has one."""
    ends = case.table("host_logs").group_by("evidence_id").agg(pl.col("last_at").max()).drop_nulls()
    rows = case.table("kernel_events").filter(pl.col("logged_at").is_not_null()).join(ends, on="evidence_id")
    before = (pl.col("logged_at") - pl.col("last_at")).dt.total_seconds()
    return {(id_, record): min(0.0, seconds) for id_, record, seconds in rows.select("evidence_id", "record", before).collect().iter_rows()}


def _naive(stamp: str) -> datetime | None:
    """A stamp of `logged_at_local` as naive time; what it lacks is the same for all of a log."""
    for lead in ("", _YEARLESS, _DAYLESS):
        try:
            return datetime.fromisoformat(lead + stamp)
        except ValueError:
            continue
    return None
