"""Records of incidents and launches made ready to be counted: newest revision each, when an interruption began and ended, where a job ran.

1. Of several revisions of an incident, or records of one launch, the newest counts.
2. An interruption lasts from when the fault first showed (else was noticed, else opened) to the end of its `resume` stage. Without that end its
   length is not known; `until` is then the latest end of any stage, which bounds what it cost from below.
3. A job's span runs from its first launch to its last end, or to the end of the interruption that ended it, the time between two launches
   included. It is cut at the launches into spells, each as large as the attempt that began it. A spell that is still running has no end.
4. Words outside the closed lists read as `unknown`; moments outside `EARLIEST` to `LATEST`, and counts, costs and lengths of time outside
   `_AMOUNTS` (negative ones, jobs without a host, recomputation of years) read as not recorded. All are counted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import polars as pl

from rca.causes import ATTRIBUTIONS, CAUSES, LAYERS, STAGES
from rca.incidents.incident import RECURS_WITHIN, recurrence

__all__ = ["NEAR", "Interval", "Ledger", "Spell", "clipped", "length_s", "open_ledger", "union"]

Interval = tuple[datetime, datetime]
FAILURE = ("platform", "workload", "unknown")  # attributions that count as failures; what nobody attributed is unplanned
EARLIEST, LATEST = datetime(1990, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
NEAR = timedelta(minutes=30)  # a fault may show so long before the launch ends, or after: the usual time-out of a collective
YEAR_S = 366 * 86400.0
MAX_COST = 10**15  # GPU seconds, steps, tokens: a hundred times the longest training yet
MAX_SIZE = 10**7  # hosts, ranks, GPUs: a hundred times the largest job yet
MAX_LAUNCHES = 10**6  # of a job: one a minute for two years
_AMOUNTS = {  # column of any of the tables -> the least and the most that it can be
    **dict.fromkeys(
        ("lost_gpu_s", "recomputed_steps", "recomputed_tokens", "resumed_from_step", "last_step", "tokens_per_step"), (0, MAX_COST)
    ),
    **dict.fromkeys(("recomputed_s", "step_s", "budget_s"), (0, YEAR_S)),
    **dict.fromkeys(("num_hosts", "num_gpus", "world_size"), (1, MAX_SIZE)),
    **dict.fromkeys(("attempt", "revision"), (0, MAX_LAUNCHES)),
    "exit_code": (-(2**31), 2**32 - 1),
}
_STAGE_COLUMNS = ("incident_id", "stage", "started_at", "ended_at", "budget_s")


@dataclass(frozen=True)
class Spell:
    """A stretch of a job at one size: from a launch to the next launch, or to the job's end (None = still running when recorded)."""

    job_id: str
    attempt: int | None
    started_at: datetime
    ended_at: datetime | None  # of the spell: the next launch, or the end of the last one
    stopped_at: datetime | None  # of the attempt itself; None = it ran to the end of the spell, as far as is recorded
    num_hosts: int | None
    num_gpus: int | None
    end_kind: str | None  # of the attempt


@dataclass(frozen=True)
class Ledger:
    """What is counted.

    `incidents`: one row per incident; beside the table's columns `at` (when it began, null = no moment is recorded), `recovered_at`, `until`,
    `length_s`, `kind` (failure, planned, none), `repeats` (the earlier incident it repeats). `stages`: incident x stage with `stage_s`.
    """

    incidents: pl.DataFrame
    stages: pl.DataFrame
    spells: tuple[Spell, ...]
    num_older: int  # revisions and records that newer ones replaced
    num_strange: int  # words outside the closed lists, moments and costs that cannot be
    num_without_start: int  # launches without a start, or an impossible end: they give no time

    @cached_property
    def launches(self) -> Mapping[str, Sequence[Spell]]:
        """The spells of each job, in order."""
        found: dict[str, list[Spell]] = defaultdict(list)
        for spell in self.spells:
            found[spell.job_id].append(spell)
        return dict(found)

    @property
    def jobs(self) -> frozenset[str]:
        """Jobs whose time is known."""
        return frozenset(spell.job_id for spell in self.spells)


def open_ledger(incidents: pl.DataFrame, stages: pl.DataFrame, attempts: pl.DataFrame) -> Ledger:
    """The ledger of the tables `incidents`, `stages` and `attempts` (rca/tables/), in any order of rows."""
    kept = _newest(incidents.filter(pl.col("incident_id").is_not_null()), ["incident_id"], ["revision", "closed_at"])
    plain, num_words = _closed_words(kept)
    plain, num_odd = _possible(plain)
    sound, num_late = _possible(stages)
    known = _stages_of(plain, sound)
    launches = _newest(_numbered(attempts), ["job_id", "attempt", "unnumbered"], ["ended_at", "last_step"]).drop("unnumbered")
    timed, num_ends = _possible(launches)
    timed = timed.filter(timed["ended_at"].is_not_null() | launches["ended_at"].is_null())  # else it would seem to run still
    dated = _with_repeats(_with_times(plain, known))
    return Ledger(
        incidents=dated,
        stages=known,
        spells=tuple(_spells(timed, dated)),
        num_older=incidents.height - kept.height + attempts.height - launches.height,
        num_strange=num_words + num_odd + num_late + num_ends,
        num_without_start=timed["started_at"].null_count() + launches.height - timed.height,
    )


def _numbered(attempts: pl.DataFrame) -> pl.DataFrame:
    """Launches of named jobs, with `unnumbered`: what tells one without a number from others, its start."""
    known = attempts.filter(pl.col("job_id").is_not_null())
    return known.with_columns(pl.when(pl.col("attempt").is_null()).then("started_at").alias("unnumbered"))


def _newest(frame: pl.DataFrame, key: Sequence[str], newest: Sequence[str]) -> pl.DataFrame:
    """One row per key: the one that is newest by these columns, whatever the order of rows; a copy of a record is the same record."""
    tie = [name for name in ("evidence_id", "record") if name in frame.columns]
    return frame.sort([*key, *newest, *tie], nulls_last=False).unique(key, keep="last", maintain_order=True)


def _closed_words(frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Attribution, layer and cause from the closed lists alone; null and everything else is unknown."""
    count = 0
    for name, words in (("attribution", ATTRIBUTIONS), ("layer", LAYERS), ("cause", tuple(CAUSES))):
        count += frame.filter(pl.col(name).is_not_null() & ~pl.col(name).is_in(words)).height
        frame = frame.with_columns(pl.when(pl.col(name).is_in(words)).then(pl.col(name)).otherwise(pl.lit("unknown")).alias(name))
    return frame, count


def _possible(frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The same rows without moments and amounts that cannot be, and how many of those there were."""
    moments = [pl.col(n).is_between(EARLIEST, LATEST).alias(n) for n, dtype in frame.schema.items() if isinstance(dtype, pl.Datetime)]
    amounts = [pl.col(n).is_between(*_AMOUNTS[n]).alias(n) for n in frame.columns if n in _AMOUNTS]
    rules = frame.select(*moments, *amounts)
    kept = frame.with_columns(pl.when(rules[n].fill_null(value=False)).then(pl.col(n)).alias(n) for n in rules.columns)
    return kept, sum(int((~rules[n]).sum()) for n in rules.columns)


def _stages_of(incidents: pl.DataFrame, stages: pl.DataFrame) -> pl.DataFrame:
    """Stages of the revisions that count, with their length; a stage that ends before it begins has none."""
    own = incidents.select("incident_id", pl.col("evidence_id").alias("of"))
    rows = stages.join(own, on="incident_id").filter((pl.col("of") == pl.col("evidence_id")).fill_null(value=True))
    by_stage = rows.filter(pl.col("stage").is_in(list(STAGES))).group_by("incident_id", "stage")
    merged = by_stage.agg(pl.col("started_at").min(), pl.col("ended_at").max(), pl.col("budget_s").min())
    taken = (pl.col("ended_at") - pl.col("started_at")).dt.total_microseconds() / 1e6
    return merged.select(*_STAGE_COLUMNS, pl.when(taken >= 0).then(taken).alias("stage_s")).sort("incident_id", "stage")


def _with_times(incidents: pl.DataFrame, stages: pl.DataFrame) -> pl.DataFrame:
    ends = stages.group_by("incident_id").agg(
        pl.col("ended_at").filter(pl.col("stage") == "resume").first().alias("recovered_at"), pl.col("ended_at").max().alias("until")
    )
    at = pl.coalesce("began_at", "detected_at", "opened_at").alias("at")
    frame = incidents.join(ends, on="incident_id", how="left").with_columns(at)
    frame = frame.with_columns(
        pl.when(pl.col("recovered_at") >= pl.col("at")).then("recovered_at").alias("recovered_at"),
        pl.when(pl.col("until") >= pl.col("at")).then("until").alias("until"),
        pl.when(pl.col("attribution").is_in(FAILURE)).then(pl.lit("failure")).otherwise("attribution").alias("kind"),
    )
    return frame.with_columns(((pl.col("recovered_at") - pl.col("at")).dt.total_microseconds() / 1e6).alias("length_s")).sort(
        "at", "incident_id", nulls_last=True
    )


def _with_repeats(incidents: pl.DataFrame) -> pl.DataFrame:
    """`repeats`: as the record states it, else as rca/incidents/incident.py finds it among the earlier ones."""
    names = ("incident_id", "began_at", "opened_at", "cause", "attribution", "hosts", "gpus", "job_id", "code_version")
    rows = [{name: row[name] for name in names} | {"at": row["at"]} for row in incidents.iter_rows(named=True)]
    by_cause: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
    found: list[str | None] = []
    for row, stated in zip(rows, incidents["recurs_incident_id"].to_list(), strict=True):
        earlier = by_cause[row["cause"]]
        while row["at"] and earlier and row["at"] - earlier[0]["at"] > RECURS_WITHIN:
            earlier.popleft()
        one = row | {"opened_at": row["at"], "hosts": row["hosts"] or [], "gpus": row["gpus"] or []}
        stated = None if stated == row["incident_id"] else stated  # nothing repeats itself
        found.append(stated or (recurrence(one, earlier) if row["at"] else None))
        if row["at"]:
            earlier.append(one)
    return incidents.with_columns(pl.Series("repeats", found, dtype=pl.String))


def _spells(launches: pl.DataFrame, incidents: pl.DataFrame) -> Iterable[Spell]:
    """The spells of every job, in order."""
    stops: dict[str, list[Interval]] = defaultdict(list)
    ended_by = incidents.filter((pl.col("kind") != "none") & pl.col("until").is_not_null())
    for job, at, until in ended_by.select("job_id", "at", "until").iter_rows():
        stops[job].append((at, until))
    by_job: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in launches.filter(pl.col("started_at").is_not_null()).sort("job_id", "started_at", "attempt").iter_rows(named=True):
        by_job[row["job_id"]].append(row)
    for job, rows in by_job.items():
        last_end = max((row["ended_at"] for row in rows if row["ended_at"]), default=None)
        if last_end is not None:
            last_end = max([last_end, *(until for at, until in stops[job] if rows[0]["started_at"] <= at <= last_end + NEAR)])
        for place, row in enumerate(rows):
            is_last = place == len(rows) - 1
            ended = (last_end if row["ended_at"] else None) if is_last else rows[place + 1]["started_at"]
            if ended is not None and ended < row["started_at"]:
                ended = row["started_at"]
            yield Spell(job, row["attempt"], row["started_at"], ended, row["ended_at"], row["num_hosts"], row["num_gpus"], row["end_kind"])


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals in order that cover the same time."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif end > start:
            joined.append((start, end))
    return joined


def clipped(joined: Sequence[Interval], to: Interval) -> list[Interval]:
    """What of disjoint intervals in order (as `union` gives them) lies within `to`."""
    first = bisect_right(joined, to[0], key=lambda interval: interval[1])
    last = bisect_left(joined, to[1], lo=first, key=lambda interval: interval[0])
    cut = ((max(start, to[0]), min(end, to[1])) for start, end in joined[first:last])
    return [(start, end) for start, end in cut if end > start]


def length_s(intervals: Iterable[Interval]) -> float:
    """Their lengths summed, s."""
    return sum((end - start for start, end in intervals), timedelta()).total_seconds()
