"""How long a job had made no step when it was told to stop, held against its usual pace; by instants, else by stamps without a zone.

Both stamps are of some clock. Of one clock (one file, one host) what they say counts; of two what lies outside their error, where that is measured.
Local stamps of two programs may be of two zones: an idle time that is whole hours and a short pause is taken for a shift of the zone. So may the
stamp of a stop that was shifted by a zone which nothing tells but that it then meets the last step: where the job was seen standing still (stacks
or dumps were taken, time-outs logged), that is a coincidence, and how long it stood still is left open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Final

import polars as pl

from rca.analyses._alive import TIMED_OUT
from rca.analyses._job_logs import JobLogs, Line
from rca.clocks import Clocks
from rca.local_time import filled
from rca.types import Tables

__all__ = ["Pace", "pace_until"]

STALL_INTERVALS: Final = 5.0  # without progress for so many usual intervals: the job stood still
PAUSE: Final = 1.5  # a save or an evaluation may take this much longer than the longest one before
STALL_S: Final = 3.0  # below, buffering of the log explains it
ZONES_S: Final = 3600.0  # most zones in use differ by multiples of an hour (IANA time zone database)
CHANCE: Final = 0.05  # of an hour: an ordinary pause that is longer than this share of it fits a shift of zones too often by chance
LATE_S: Final = 300.0  # a step that is stamped so long after the stop was only written later; beyond that its stamp is of another zone
SOME_DAY: Final = datetime(2024, 7, 1)  # in whose year stamps without one are read, to be held against each other alone
# A cancellation that says when it was asked for; when a maintenance is due says nothing of when the job was told.
_ASKED_AT: Final = re.compile(
    r"\b(?:issued|requested|cancell?ed|sent)\b.{0,60}?\bat "
    r"([0-9]{4}-[0-9][0-9]-[0-9][0-9][ T][0-9][0-9]:[0-9][0-9]:[0-9][0-9])\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Pace:
    """Steps as the job printed or timed them until the stop, by the stamps of one clock or of several."""

    idle_s: float  # from the end of the last step to the stop
    usual_s: float | None  # median time between the ends of two
    longest_s: float | None
    last_at: datetime | None  # UTC; None where stamps tell no zone
    error_s: float = 0.0  # by which the clock of the stop may differ from that of the last step
    last_step: int | None = None  # its number, and the evidence that tells of it
    last_in: str | None = None

    @property
    def is_stalled(self) -> bool:
        """Whether no step had ended for much longer than usual."""
        if self.usual_s is None or self.longest_s is None:
            return False
        if self.last_at is None and self.idle_s % ZONES_S <= PAUSE * self.longest_s <= CHANCE * ZONES_S:
            return False
        return self.idle_s - self.error_s > self._patience_s

    @property
    def is_told(self) -> bool:
        """Whether it shows that the job still moved, or that it did not: stamps of two zones show neither."""
        return self.last_at is not None or self.is_stalled or 0 <= self.idle_s <= self._patience_s

    @property
    def _patience_s(self) -> float:
        return max(STALL_INTERVALS * (self.usual_s or 0.0), PAUSE * (self.longest_s or 0.0), STALL_S)


@dataclass(frozen=True)
class _End:
    """The end of a step as a source stamps it; `host` = whose clock, where that is known."""

    step: int | None
    at: datetime
    evidence_id: str
    host: str | None


def pace_until(case: Tables, logs: JobLogs, lines: Sequence[Line]) -> Pace | None:
    """The steps that ended before the stop, as any log or timing of the job tells; of several clocks the one by which the job moved latest.

    `lines` tell of the stop, the one that dates it best first. None where steps and stop cannot be held against each other: one of them has no
    stamp, or they are of two kinds, or of one step a short while before no pace is known: those who watch for hung jobs wait longer. Stamps without
    zone that lie whole hours apart give a pace that is not told.
    """
    began = next((line for line in lines if line.at is not None), None) or next((line for line in lines if line.local), None)
    began = began or next((replace(line, local=said[1].replace(" ", "T")) for line in lines if (said := _ASKED_AT.search(line.text))), None)
    if began is None:
        return None
    dated, local = _ends(case, logs, began)
    found = list(_by_clock(dated, began, began.at, logs.clocks))
    if not (began.at and found) and began.local is not None and local:
        near = max(end.at for end in local)
        told = [replace(pace, last_at=None) for pace in _by_clock(local, began, filled(began.local, near), logs.clocks, late_s=LATE_S)]
        rest = [pace for pace in told if pace.idle_s > 0]
        lone = rest and all(pace.usual_s is None and pace.idle_s <= CHANCE * ZONES_S for pace in rest)
        found = [pace for pace in told if pace.is_told] or found or ([] if lone else rest)
    elif began.local is not None and logs.clocks.is_fitted(began.evidence_id) and _stood_still(case, logs):
        near = max((end.at for end in dated), default=began.at or SOME_DAY)
        stamp = filled(began.local, near)
        as_written = _by_clock(dated, began, stamp.replace(tzinfo=UTC) if stamp is not None else None, logs.clocks)
        found = [replace(pace, last_at=None) for pace in as_written] or found
    return min(found, key=lambda pace: (pace.is_stalled, pace.idle_s - pace.error_s), default=None)


def _stood_still(case: Tables, logs: JobLogs) -> bool:
    """Whether somebody took the job for hung: it was sampled or dumped, or calls of it timed out."""
    taken = any(case.table(name).head(1).collect().height for name in ("stacks", "dumps"))
    return taken or any(line.signature in TIMED_OUT for line in logs.lines)


def _by_clock(ends: Sequence[_End], began: Line, stop: datetime | None, clock: Clocks, *, late_s: float | None = None) -> Iterator[Pace]:
    """The pace by the clock that stamped the stop, and by all clocks."""
    own = [end for end in ends if end.evidence_id == began.evidence_id or (began.clock is not None and end.host == began.clock)]
    for some in (own, ends) if len(own) < len(ends) else (ends,):
        before = _until(some, stop, late_s) if stop is not None else []
        if stop is None or not before:
            continue
        moments = sorted({end.at for end in before})
        if late_s is not None and len(moments) == 1:  # a step that ended soon after: the stop lies between the two
            after = min((end.at for end in some if stop < end.at <= stop + timedelta(seconds=late_s)), default=None)
            between = [*moments, after] if after is not None and moments[0] <= stop else moments
        else:
            between = moments
        gaps = [(later - at).total_seconds() for at, later in pairwise(between)]
        later = gaps[1:] or gaps  # the first interval holds compilation and allocation
        error = 0.0 if before[-1] in own else _error_s(clock, before[-1].host, began.clock)
        idle_s = (stop - moments[-1]).total_seconds()
        usual, longest = (median(later), max(later)) if later else (None, None)
        yield Pace(idle_s, usual, longest, moments[-1], error, before[-1].step, before[-1].evidence_id)


def _error_s(clock: Clocks, one: str | None, two: str | None) -> float:
    """By how much the clocks of two hosts are known to differ; those that nothing measures pass for right: a stall that is none leaves why open, one
    that is overlooked makes a fault a planned end."""
    if one == two:
        return 0.0
    told = [clock.of(host) or (0.0, 0.0) for host in (one, two)]
    return abs(told[0][0] - told[1][0]) + told[0][1] + told[1][1]


def _until(ends: Sequence[_End], stop: datetime, late_s: float | None) -> list[_End]:
    """Of each step the first end that any source tells, of steps before the stop, in order; else the first one, at most `late_s` behind it."""
    first: dict[int, _End] = {}
    for end in ends:
        step = end.step if end.step is not None else -1 - len(first)
        if step not in first or end.at < first[step].at:
            first[step] = end
    every = sorted(first.values(), key=lambda end: end.at)
    before = [end for end in every if end.at <= stop]
    return before or [end for end in every[:1] if late_s is None or end.at <= stop + timedelta(seconds=late_s)]


def _ends(case: Tables, logs: JobLogs, began: Line) -> tuple[list[_End], list[_End]]:
    """Ends of steps by instants, and by stamps without zone: those too whose instant other lines tell, as the stop may have none."""
    columns = ("evidence_id", "rank", "step", "ended_at", "ended_at_local")
    stamps = [text for text in case.table("progress").select(pl.col("ended_at_local").max()).collect()["ended_at_local"] if text]
    near = filled(max(stamps, default=""), SOME_DAY) or SOME_DAY
    dated, local = [], []
    for row in case.table("progress").select(columns).collect().iter_rows(named=True):
        host, at = logs.hosts.get(row["rank"]), logs.clocks.at(row, moment="ended_at")
        if at is not None:
            dated.append(_End(row["step"], at, row["evidence_id"], host))
        if row["ended_at_local"] and (naive := filled(row["ended_at_local"], near)) is not None:
            local.append(_End(row["step"], naive, row["evidence_id"], host))
    end = pl.col("started_at") + pl.duration(microseconds=(pl.col("step_s") * 1e6).round().cast(pl.Int64))
    timed = case.table("steps").select("rank", "step", "evidence_id", end=end).filter(pl.col("end").is_not_null())
    mates = [rank for rank, host in logs.hosts.items() if host == began.clock]
    for some in (timed, timed.filter(pl.col("rank").is_in(mates))):  # a step ends for all ranks at once: the earliest of each clock will do
        for row in some.group_by("step").agg(pl.all().sort_by("end").first()).collect().iter_rows(named=True):
            dated.append(_End(row["step"], row["end"], row["evidence_id"], logs.hosts.get(row["rank"])))
    return dated, local
