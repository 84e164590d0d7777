"""Whether a printed loss that jumps and stays only stepped to another level, as other data or a resumed run make it.

A loss in nats has the level of its text, and a summed one that of its batch: another blend, sequence length, batch size, task or learning rate moves
it in one step, and from that step on it is as calm as before. A divergence climbs over steps, or swings. So a level is told by its shape: there from
its first step on, no rise behind it, no more noise than before, at most a few times the old level. Gradient norms, where printed, tell more than the
shape. Behind a resume the old level is no baseline, whatever the norms and the height say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from rca.analyses._numbers import SPIKE

__all__ = ["Level", "level_from"]

NEAR: Final = 64  # losses before and behind the step that are compared
MIN_BEHIND: Final = 3  # of them behind it, before a shape can be told
AT_ONCE: Final = 3  # first ones, all of which are at the new level
CALM: Final = 0.2  # relative: what a level may rise, or lack at its first steps, where its noise is small
NOISES: Final = 3.0  # the same in typical differences of neighbouring steps
WILDER: Final = 3.0  # times the typical difference before, from which on a loss swings
SWING: Final = 0.05  # relative difference of neighbouring steps that is never called a swing
PAUSE: Final = 10.0  # times the usual time of a step
LAUNCH_S: Final = 60.0  # no launch of a job prints its first step sooner, s
LONGER: Final = 2.0  # times the longest other pause of the steps before, which are saves and evaluations


@dataclass(frozen=True, slots=True)
class Level:
    """A step to another level: times the level before, and what the record tells of a resume right before it (None = nothing)."""

    times: float
    resumed: str | None


def level_from(rows: pl.DataFrame, start: float, loads: pl.DataFrame) -> Level | None:
    """The step to another level that begins at `start` in one pass of one file (columns at, record, loss, grad_norm, ended_at, ended_at_local); None
    where it is none. `loads`: the lines of that file by which a checkpoint is read (record)."""
    losses = rows.filter(pl.col("loss") > 0).sort("at")
    before, behind = losses.filter(pl.col("at") < start).tail(NEAR), losses.filter(pl.col("at") >= start).head(NEAR)
    if before.height < MIN_BEHIND or behind.height < MIN_BEHIND or not _is_level(before["loss"], behind["loss"]):
        return None
    times = _median(behind["loss"]) / _median(before["loss"])
    resumed = _resumed(before, behind, loads)
    has_norms = rows["grad_norm"].is_not_null().any()
    return Level(times, resumed) if resumed is not None or (times < SPIKE and not has_norms) else None


def _is_level(before: pl.Series, behind: pl.Series) -> bool:
    noise, usual_noise = _noise(behind), _noise(before)
    rise = 1 + max(CALM, NOISES * noise)
    half = behind.len() // 2
    climbs = _median(behind[half:]) > rise * _median(behind[:half])
    is_at_once = bool((behind[:AT_ONCE] * rise >= _median(behind)).all())
    return is_at_once and not climbs and noise <= max(SWING, WILDER * usual_noise)


def _noise(losses: pl.Series) -> float:
    """The typical relative difference of neighbouring losses: a slow slope does not count."""
    return _median(losses.log().diff().abs().drop_nulls())


def _resumed(before: pl.DataFrame, behind: pl.DataFrame, loads: pl.DataFrame) -> str | None:
    """What tells that the job was started again between the two: a checkpoint is read there, or no step is printed for as long as a launch takes."""
    last, first = _line(before.tail(1))[0], _line(behind.head(1))[0]
    if last is not None and first is not None and _line(loads).is_between(last, first).any():
        return "a checkpoint was read right before it"
    steps_s = _gaps_s(pl.concat([before, behind.head(1)])).to_list()
    if not steps_s or steps_s[-1] is None:
        return None
    usual = [s for s in steps_s[:-1] if s is not None]
    is_launch = len(usual) >= MIN_BEHIND and steps_s[-1] >= max(LAUNCH_S, PAUSE * _median(pl.Series(usual)), LONGER * max(usual))
    return f"no step was printed for {steps_s[-1]:.0f} s right before it, as where a job is started again" if is_launch else None


def _gaps_s(rows: pl.DataFrame) -> pl.Series:
    """Seconds between neighbouring rows, by the clock that the file writes, with a zone or without."""
    at = pl.col("ended_at").dt.replace_time_zone(None)
    local = pl.col("ended_at_local").str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", strict=False, time_unit="us")
    written = rows.select(pl.when(pl.col("ended_at").is_not_null().all()).then(at.cast(pl.Datetime("us"))).otherwise(local).alias("at"))
    return written["at"].diff()[1:].dt.total_milliseconds() / 1000


def _line(rows: pl.DataFrame) -> pl.Series:
    return rows["record"].str.extract(r"([0-9]+)\D*$").cast(pl.Int64, strict=False)


def _median(values: pl.Series) -> float:
    found = values.median()
    return float(found) if isinstance(found, (int, float)) else 0.0
