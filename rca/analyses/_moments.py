"""When a failure was whose own line bears no stamp, as a traceback does: between which lines of its file it stands. Pure.

What is taken over from another line must be of the same moment. A stamp that stands far above says when that line was written: many steps may have
ended since, and those are lines too.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl

from rca.analyses._job_logs import JobLogs, Line, place
from rca.analyses._words import iso
from rca.types import Tables

__all__ = ["failed"]

SAME: Final = timedelta(seconds=60)  # a failure between two stamps this far apart is told to the minute, as people speak of it
STAMP: Final = timedelta(seconds=1)  # of launchers, cut to the full second
ENDS: Final = (
    "elastic_root_cause",
    "elastic_child_failed",
)  # what a launcher writes when it sees the end of a process, with the time of that


def failed(case: Tables, logs: JobLogs, line: Line) -> dict[str, Any]:
    """`failed_at`, UTC: the line's own instant; else the launcher's for the end of the very rank, where the file does not contradict; else the last
    dated line before it, where the next one follows within a minute. Else null, and `failed_after` says which dated line came last before it."""
    if line.at is not None:
        return {"failed_at": iso(line.at)}
    dated = [*((o.place, o.at) for o in logs.lines if o.evidence_id == line.evidence_id and o.at is not None), *_steps(case, logs, line)]
    before = max((at for where, at in dated if where <= line.place), default=None)
    behind = min((at for where, at in dated if where > line.place and (before is None or at >= before)), default=None)
    ends = [o.at for o in logs.lines if o.signature in ENDS and o.at is not None and o.rank == line.rank]
    ended = min(ends, default=None) if line.rank is not None else None
    if ended is not None and (before is None or ended + STAMP > before):
        return {"failed_at": iso(ended)}
    if before is not None and behind is not None and behind - before <= SAME:
        return {"failed_at": iso(before)}
    return {"failed_at": None, "failed_after": iso(before)}


def _steps(case: Tables, logs: JobLogs, line: Line) -> Iterable[tuple[tuple[int, ...], datetime]]:
    """Place and instant of the last step that the file tells before the line, and of the first one behind it."""
    rows = case.table("progress").filter(
        (pl.col("evidence_id") == line.evidence_id) & (pl.col("ended_at").is_not_null() | pl.col("ended_at_local").is_not_null())
    )
    told = [(place(record), record) for record in rows.select("record").collect()["record"] if record]
    for record in {
        max((t for t in told if t[0] <= line.place), default=None),
        min((t for t in told if t[0] > line.place), default=None),
    } - {None}:
        for row in rows.filter(pl.col("record") == record[1]).head(1).collect().iter_rows(named=True):  # type: ignore[index]
            if (at := logs.clocks.at(row, moment="ended_at")) is not None:
                yield place(row["record"]), at
