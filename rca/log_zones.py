"""The zones of logs whose stamps name none, by what another file dates: steps that it times, and calls whose time-out the log tells. Pure.

A line of a time-out lies half an hour or more behind the last instant of its rank: taken as it is, it would tell a zone that is off by the time-out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from rca.local_time import QUARTER_S, SANE_STAMP, SLACK_S, filled, shifts
from rca.types import Tables

__all__ = ["told_zones"]

RAN: Final = r"\bran for ([0-9]{1,10}) milliseconds before timing out"

Told = Iterator[tuple[str, float | None]]


def told_zones(case: Tables, by_rank: Mapping[int, tuple[datetime, datetime]]) -> dict[str, float]:
    """evidence_id -> local time minus UTC, s, where all that a log tells agrees. `by_rank`: first and last instant of a rank's calls and steps."""
    found: dict[str, float] = {}
    for told in (_by_calls(case, by_rank), _by_steps(case)):  # steps tell it to the second
        zones: dict[str, set[float | None]] = defaultdict(set)
        for id_, zone in told:
            zones[id_].add(zone)
        found |= {id_: zone for id_, of in zones.items() if len(of) == 1 and (zone := next(iter(of))) is not None}
    return found


def _by_steps(case: Tables) -> Told:
    """Where a log prints the end of steps that another file dates."""
    end = pl.col("started_at") + pl.duration(microseconds=(pl.col("step_s") * 1e6).round().cast(pl.Int64))
    told = pl.concat([
        case.table("progress").select("step", pl.col("ended_at").alias("end")),
        case.table("steps").select("step", end.alias("end")),
    ])  # fmt: skip
    ends = dict(told.drop_nulls().group_by("step").agg(pl.col("end").max()).collect().iter_rows())
    printed = case.table("progress").filter(pl.col("ended_at_local").is_not_null() & pl.col("step").is_not_null())
    for id_, step, text in printed.select("evidence_id", "step", "ended_at_local").collect().iter_rows():
        local = filled(text, ends[step]) if step in ends else None
        if local is not None:
            apart = (local - ends[step].replace(tzinfo=None)).total_seconds()
            quarters = round(apart / QUARTER_S)
            yield id_, float(quarters * QUARTER_S) if abs(apart - quarters * QUARTER_S) < SLACK_S else None


def _by_calls(case: Tables, by_rank: Mapping[int, tuple[datetime, datetime]]) -> Told:
    """Where a log tells how long the call of a rank ran before its time-out: it was made while the rank's calls were recorded."""
    ran = pl.col("message").str.extract(RAN).cast(pl.Int64)
    local = pl.col("logged_at_local")
    lines = case.table("log_events").filter((pl.col("signature") == "nccl_watchdog_timeout") & local.str.contains(SANE_STAMP))
    rows = lines.select("evidence_id", "rank", local.alias("local"), ran.alias("ran")).drop_nulls().unique()
    for id_, rank, text, ran_ms in rows.collect().iter_rows():
        span, after = by_rank.get(rank), timedelta(milliseconds=ran_ms)
        ended = filled(text, span[1] + after) if span is not None else None
        if span is not None and ended is not None:
            zones = shifts((ended - after, ended - after), span)
            if len(zones) == 1:
                yield id_, zones[0]
