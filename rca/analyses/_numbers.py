"""What is wrong with each loss and gradient norm of a series: not finite, a jump that lasts, or nothing."""

from __future__ import annotations

import polars as pl

__all__ = ["SPIKE", "judged"]

SPIKE = 5.0  # times the moving median; ByteRobust's alarm
WINDOW = 32  # steps of the moving median
MIN_BEFORE = 8  # of them, before a jump can be told
STAYS = 2.0  # times the median, that the next steps keep of a jump; single jumps heal themselves
AFTER = 3  # steps


def judged(rows: pl.LazyFrame, *, series: str, by: str) -> pl.LazyFrame:
    """The rows with `loss_is` and `norm_is`: nonfinite, spike, ok; null = not written. `series` = column that tells series apart, `by` = order.

    A gradient that is not finite in one row only is taken for a step that loss scaling skipped, unless it is the last.
    """
    bad = pl.col("is_finite").not_().fill_null(value=False)
    writes_loss, writes_norm = (pl.col(name).is_not_null().any().over(series) for name in ("loss", "grad_norm"))
    bad_loss = bad & pl.col("loss").is_null() & (writes_loss | pl.col("grad_norm").is_not_null())
    bad_norm = bad & pl.col("grad_norm").is_null() & (writes_norm | ~bad_loss)
    stays = bad.shift(-1).over(series).fill_null(value=True)
    return rows.sort(series, by, "evidence_id", "record").with_columns(
        _state("loss", bad_loss, series).alias("loss_is"), _state("grad_norm", bad_norm & (bad_loss | stays), series).alias("norm_is")
    )


def _state(name: str, nonfinite: pl.Expr, series: str) -> pl.Expr:
    value = pl.col(name)
    usual = value.rolling_median(WINDOW, min_samples=MIN_BEFORE).shift(1).over(series)
    later = pl.min_horizontal(*(value.shift(-step).over(series) for step in range(1, AFTER + 1)))
    jumps = (usual > 0) & (value >= SPIKE * usual) & (later.is_null() | (later >= STAYS * usual))
    return (
        pl.when(nonfinite)
        .then(pl.lit("nonfinite"))
        .when(value.is_null())
        .then(None)
        .when(jumps)
        .then(pl.lit("spike"))
        .otherwise(pl.lit("ok"))
    )
