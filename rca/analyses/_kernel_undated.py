"""Kernel records without an instant, counted back from the end of their host's log: all that is left where nothing else tells when the job ran.

dmesg prints seconds since boot, syslog a local time without zone or year. Without a boot time or zone neither is an instant, but both say how long
before the last line of its own log a record was. Logs that were collected together end at about the same time.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Final

import polars as pl

from rca.types import Tables

__all__ = ["before_the_end"]

_YEARLESS: Final = "2000-"  # a leap year
_DAYLESS: Final = "2000-01-01T"


def before_the_end(case: Tables) -> dict[tuple[str, str], float]:
    """(evidence_id, record) -> seconds, 0 or less, from the last line of that log; only of logs of one host and boot."""
    ends: dict[str, list[tuple[float | None, str | None]]] = defaultdict(list)
    for id_, uptime_s, local in case.table("host_logs").select("evidence_id", "last_uptime_s", "last_at_local").collect().iter_rows():
        ends[id_].append((uptime_s, local))
    rows = case.table("kernel_events").filter(pl.col("logged_at").is_null())
    found = {}
    for id_, record, uptime_s, local in rows.select("evidence_id", "record", "uptime_s", "logged_at_local").collect().iter_rows():
        if len(ends[id_]) != 1:
            continue
        last_uptime_s, last_local = ends[id_][0]
        if uptime_s is not None and last_uptime_s is not None:
            found[id_, record] = min(0.0, uptime_s - last_uptime_s)
        elif local and last_local and (one := _naive(local)) and (two := _naive(last_local)):
            found[id_, record] = min(0.0, (one - two).total_seconds())
    return found


def _naive(stamp: str) -> datetime | None:
    """A stamp of `logged_at_local` as naive time; what it lacks is the same for all of a log."""
    for lead in ("", _YEARLESS, _DAYLESS):
        try:
            return datetime.fromisoformat(lead + stamp)
        except ValueError:
            continue
    return None
