"""Whose times cannot be in the unit that they are said to be in? No part of a step lasts longer than the clock says the step did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

__all__ = ["PARTS", "OddTimes", "odd_times"]

PARTS = ("step_s", "compute_s", "comm_s", "data_s")
APART = 1000**0.5  # times the others: nearer to the next unit (1,000) than to the same one
IMPOSSIBLE = 3.0  # times the way from one step's start to the next: a lone part that long is in another unit, or its clock is broken
TINY = 300.0  # times less than the others; light work is not that light
SOME = 8  # records in another unit, or half of all, before a rank's times are worth nothing


@dataclass(frozen=True)
class OddTimes:
    """A rank whose times contradict the clock, with one record as an example."""

    rank: int
    says_s: float  # longest part of that step, as written
    clock_s: float  # how long a step of the rank (else of the job) takes by the clock, else by the steps of the others
    row: Mapping[str, Any]


def odd_times(rows: pl.DataFrame) -> list[OddTimes]:
    """Ranks whose times are to be distrusted, sorted; `rows` as `step_rows` gives them.

    1. How long a step takes by the clock: median difference of consecutive `started_at` of the rank, else of the job; without any, the median
       `step_s` of all ranks.
    2. The longest part of each step against it. Far more than with most ranks and more than there was time for, or far less than with most
       ranks: that is no speed.
    Where most ranks contradict the clock alike, they can still be compared with each other: only those that differ from them are odd.
    """
    gaps = rows.sort("rank", "step").select(
        "rank",
        pl.when(pl.col("step").diff().over("rank") == 1)
        .then(pl.col("started_at").diff().over("rank").dt.total_microseconds() / 1e6)
        .alias("gap"),
    )
    own = gaps.filter(pl.col("gap") > 0).group_by("rank").agg(pl.col("gap").median().alias("clock_s"))
    whole = own["clock_s"].median() if own.height else rows["step_s"].median()
    if not isinstance(whole, float) or whole <= 0:
        return []
    longest = pl.max_horizontal(PARTS)
    told = (
        rows.filter(longest.is_finite() & (longest > 0))
        .join(own, on="rank", how="left")
        .with_columns(pl.col("clock_s").fill_null(whole), longest.alias("says_s"))
        .with_columns((pl.col("says_s") / pl.col("clock_s")).alias("ratio"))
    )
    typical = told.group_by("rank").agg(pl.col("ratio").median())["ratio"].sort()
    if typical.len() < 2:
        return []
    usual = typical[(typical.len() - 1) // 2]
    ratio = pl.col("ratio")
    is_odd = ((ratio > APART * usual) & (ratio > IMPOSSIBLE)) | (ratio < usual / TINY)
    counted = told.with_columns(is_odd.alias("odd")).with_columns(
        pl.col("odd").sum().over("rank").alias("num_odd"), pl.len().over("rank").alias("num")
    )
    odd = counted.filter(pl.col("odd") & ((pl.col("num_odd") >= SOME) | (pl.col("num_odd") * 2 >= pl.col("num")))).sort("rank", "step")
    return [
        OddTimes(row["rank"], row["says_s"], row["clock_s"], row)
        for row in odd.unique("rank", keep="first", maintain_order=True).iter_rows(named=True)
    ]
