"""Which captures are of an older incident than the one at hand? Pure: tables in, reasons out.

A folder may hold dumps and stacks that were taken days or months before the job ended as it did. Dumps count their calls in nanoseconds since 1970,
so when they were taken is known; stacks mostly bear no date, and go with the dumps of their folder.

1. A capture is all below the topmost folder that holds its dumps or stacks and nothing that is days younger than these.
2. It is old where what lies outside was written days after it and tells of an end of the job, or holds dumps of its own; or where it is whole, with
   logs or timings of its own time, and nothing outside is of that time. The newest launch is the incident.
3. Else a job that was looked at ran on, and the look is what there is to answer from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import polars as pl

from rca.local_time import filled
from rca.log_sets import ENDS
from rca.types import Tables

__all__ = ["old_captures"]

DAYS: Final = timedelta(days=2)  # further apart than any two zones, and than a job stands still before somebody looks
_OVER: Final = (*ENDS, "worker_finished")
_MOMENTS: Final = (  # table, instants, what it tells
    ("dumps", ("first_at", "last_at"), "capture"),
    ("dump_index", ("sampled_at",), "capture"),
    ("stacks", ("sampled_at",), "capture"),
    ("steps", ("started_at",), "steps"),
    ("progress", ("ended_at", "ended_at_local"), "steps"),
    ("log_events", ("logged_at", "logged_at_local"), "log"),
    ("scheduler_events", ("changed_at", "changed_at_local"), "log"),
)


@dataclass
class _File:
    """What one file is of, and when."""

    path: str
    tells: frozenset[str] = frozenset()
    first: datetime | None = None
    last: datetime | None = None
    ended: datetime | None = None  # its latest line that tells an end

    def saw(self, what: str, moments: Collection[datetime]) -> None:
        self.tells |= {what}
        self.first = min((at for at in (self.first, *moments) if at is not None), default=None)
        self.last = max((at for at in (self.last, *moments) if at is not None), default=None)


def old_captures(case: Tables, stale: Collection[str]) -> dict[str, str]:
    """evidence_id -> why, of all below the folders of old captures; `stale`: dumps known to be of an earlier launch."""
    files = _files(case)
    newest = max((file.last for file in files.values() if file.last is not None), default=None)
    taken = {id_: file for id_, file in files.items() if "capture" in file.tells}
    if newest is None or not any(file.last is not None and file.last + DAYS < newest for file in taken.values()):
        return {}
    found: dict[str, str] = {}
    by_folder: dict[str, list[str]] = defaultdict(list)
    for id_, file in taken.items():
        by_folder[file.path.rpartition("/")[0]].append(id_)
    for folder in sorted(by_folder):
        moments = [at for id_ in by_folder[folder] if (at := files[id_].last) is not None]
        if not moments or found.keys() >= set(by_folder[folder]):
            continue
        root = _root(folder, files, max(moments))
        inside = [id_ for id_, file in files.items() if _is_below(file, root)] if root else by_folder[folder]
        if (why := _why(files, frozenset(inside), stale)) is not None:
            found |= dict.fromkeys(inside, why)
    return found


def _why(files: Mapping[str, _File], inside: frozenset[str], stale: Collection[str]) -> str | None:
    """Why all of these are of an older incident than the rest; None where they may be of the same."""
    mine = [files[id_] for id_ in sorted(inside)]
    last = max((file.last for file in mine if file.last is not None), default=None)
    if last is None:
        return None
    first = min(file.first for file in mine if file.first is not None)
    rest = [file for id_, file in files.items() if id_ not in inside and id_ not in stale]
    after = [file for file in rest if file.last is not None and file.last > last + DAYS]
    if not any("steps" in file.tells or "capture" in file.tells or file.ended is not None for file in after):
        return None
    ends = any(file.ended is not None and file.ended > last + DAYS for file in after) or any("capture" in file.tells for file in after)
    is_whole = any(file.tells - {"capture"} for file in mine)
    is_alone = not any(
        file.first is not None and file.last is not None and file.first < last + DAYS and file.last > first - DAYS for file in rest
    )
    if not ends and not (is_whole and is_alone):
        return None
    newer = max(file.last for file in after if file.last is not None)
    return f"an older incident: its last moment is {last:%Y-%m-%d %H:%M} UTC, and the job wrote on to {newer:%Y-%m-%d %H:%M}"


def _root(folder: str, files: Mapping[str, _File], last: datetime) -> str:
    """The topmost folder above a capture that holds nothing days younger than it; "" where there is none."""
    younger = [file for file in files.values() if file.last is not None and file.last > last + DAYS]
    parts, found = folder.split("/") if folder else [], ""
    for depth in range(len(parts), 0, -1):
        root = "/".join(parts[:depth])
        if any(_is_below(file, root) for file in younger):
            break
        found = root
    return found


def _is_below(file: _File, root: str) -> bool:
    return file.path.startswith(f"{root}/")


def _files(case: Tables) -> dict[str, _File]:
    """evidence_id -> what it is of and when, of all files that were read."""
    paths = case.table("readings").select("evidence_id", "path").unique("evidence_id", keep="first").collect()
    files = {id_: _File(path or id_) for id_, path in paths.iter_rows()}
    near = _latest_capture(case)
    if near is None:
        return {}
    for table, columns, what in _MOMENTS:
        ends = [getattr(pl.col(column), end)().alias(f"{column}_{end}") for column in columns for end in ("min", "max")]
        for id_, *moments in case.table(table).group_by("evidence_id").agg(ends).collect().iter_rows():
            if id_ in files:
                files[id_].saw(what, [at for moment in moments if (at := _instant(moment, near)) is not None])
    is_end = pl.col("signature").is_in(_OVER)
    told = case.table("log_events").filter(is_end).group_by("evidence_id").agg(pl.col("logged_at", "logged_at_local").max())
    announced = case.table("scheduler_events").group_by("evidence_id").agg(pl.col("changed_at", "changed_at_local").max())
    for id_, *moments in (*told.collect().iter_rows(), *announced.collect().iter_rows()):
        if id_ in files:
            known = [at for moment in (files[id_].ended, *moments) if (at := _instant(moment, near)) is not None]
            files[id_].ended = max(known, default=None)
    return files


def _latest_capture(case: Tables) -> datetime | None:
    """When the last call on record was made, or the last dated look taken."""
    found = []
    for table, columns, what in _MOMENTS:
        if what == "capture":
            found.append(case.table(table).select(pl.col(columns[-1]).max()).collect().item())
    return max((at for at in found if at is not None), default=None)


def _instant(moment: datetime | str | None, near: datetime) -> datetime | None:
    """An instant; of a stamp that lacks its zone the one it would be in UTC, of one that lacks its year the one nearest to the captures."""
    at = filled(moment, near) if isinstance(moment, str) else moment
    return at if at is None or at.tzinfo is not None else at.replace(tzinfo=UTC)
