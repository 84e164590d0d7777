"""Series of metrics over the steps of a job, one series a metric, as rows of `steps` (of no rank) and `progress`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from collectors._step_names import MAX_TIME_S
from rca.tables import TABLES

if TYPE_CHECKING:
    from rca.tables import Table

__all__ = ["Point", "series_frames"]

_TIMES: Final = ("step_s", "compute_s", "comm_s", "data_s", "checkpoint_s")


class Point(NamedTuple):
    """A value of a series: the value, NaN and infinity included, None = missing; where it stands, and when it was written."""

    value: float | None
    record: str
    at: datetime | None = None


def series_frames(
    series: Mapping[str, Mapping[int, Point]], rank: int | None = None, *, nan_is_missing: bool
) -> Iterator[tuple[Table, pl.DataFrame]]:
    """Column of `steps` or `progress` -> step -> point; sorted by step. A step of any time is a row of `steps`, one of any metric of `progress`."""
    timed = {column: points for column, points in series.items() if column in _TIMES and points}
    told = {column: points for column, points in series.items() if column not in _TIMES and points}
    if timed:
        yield _frame("steps", timed, {}, rank)
    if not told:
        return
    steps = sorted(set().union(*told.values()))
    extra: dict[str, Any] = {
        "ended_at": [next((p.at for points in told.values() if (p := points.get(step)) is not None), None) for step in steps],
        "logged_step_s": [_time(timed.get("step_s", {}).get(step)) for step in steps],
    }
    losses = [told[column] for column in ("loss", "grad_norm") if column in told]
    if losses:
        extra["is_finite"] = [
            _is_finite([p.value for points in losses if (p := points.get(step))], nan_is_missing=nan_is_missing) for step in steps
        ]
    yield _frame("progress", told, extra, rank)


def _frame(name: str, series: Mapping[str, Mapping[int, Point]], extra: Mapping[str, Any], rank: int | None) -> tuple[Table, pl.DataFrame]:
    steps = sorted(set().union(*series.values()))
    rows: dict[str, Any] = {"step": steps, "rank": rank, **extra}
    rows["record"] = [next(points[step].record for points in series.values() if step in points) for step in steps]
    for column, points in series.items():
        values = [_time(points.get(step)) if column in _TIMES else _known(points.get(step)) for step in steps]
        if column == "tokens_total":
            rows[column] = pl.Series(values, dtype=pl.Float64).cast(pl.Int64, strict=False)
        else:
            rows[column] = pl.Series(values, dtype=pl.Float64)
    return TABLES[name], TABLES[name].frame(rows, height=len(steps))


def _known(point: Point | None) -> float | None:
    return point.value if point is not None and point.value is not None and math.isfinite(point.value) else None


def _time(point: Point | None) -> float | None:
    value = _known(point)
    return value if value is not None and 0 <= value <= MAX_TIME_S else None


def _is_finite(values: list[float | None], *, nan_is_missing: bool) -> bool | None:
    told = [v for v in values if v is not None and not (nan_is_missing and math.isnan(v))]
    return all(map(math.isfinite, told)) if told else None
