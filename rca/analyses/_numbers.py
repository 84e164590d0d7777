"""What is wrong with each loss and gradient norm of a series: not finite, a jump that lasts, a trouble that passed, or nothing.

1. Rows count in the order in which they were written. Where the step goes back, the run was resumed: another pass, with a baseline of its own.
2. The baseline is the median of the steps before, so a warm-up (losses fall, norms settle) and a change of the learning rate move it along. A
   series that is not clearly above zero (losses of reinforcement learning) has no ratio to a baseline, and is not judged by one.
3. A number that is not finite, after which the same pass writes finite ones, was masked or its update was skipped: parameters that hold NaN never
   come back. Gradients alone that are not finite are what loss scaling looks for; they count when they last or end the record.
4. A jump counts when it lasts: none of the next steps is near the baseline, and no later stretch comes back to it. Else it has healed.
5. Where no gradient norm is printed, the loss alone has to tell, and one that is bounded (a cross-entropy by what chance tells) cannot rise fivefold:
   twice what nine of ten steps stayed below counts, if it lasts twice as long.
"""

from __future__ import annotations

from typing import Final

import polars as pl

__all__ = ["DRIFT_LOSS", "DRIFT_NORM", "PERSISTS", "SPIKE", "WINDOW", "drift_start", "judged", "judged_where_wild", "newest", "wild"]

SPIKE: Final = 5.0  # times the moving median; ByteRobust's alarm for the loss or the gradient norm
DRIFT_LOSS, DRIFT_NORM = 1.4, 2.0  # times the moving median; from there Gemini 2.5 replays a step
WINDOW: Final = 32  # steps of the moving median
MIN_BEFORE: Final = 4  # of them, before a jump can be told
ABOVE_NOISE: Final = 2.0  # times what nine of ten steps of the window stay below
AFTER: Final = 3  # steps that a jump must last
LONG: Final = 6  # steps in a row, from which on one that heals later was no chance batch
HEALED: Final = 1.2  # times the median before the jump: back where it was
PERSISTS: Final = 32  # skipped steps in a row that are no search for a loss scale: halved so often, the largest usual one (2^32) is 1
_HELP: Final = (
    *("place", "bad_loss", "bad_norm", "loss_passed", "norm_passed", "skipped", "streak"),
    *("loss_usual", "norm_usual", "loss_leaps", "norm_leaps", "loss_up", "alone", "lone_leaps"),
)
_CHAOS: Final = 0.25  # share of rows that go back, from which on a file is not in the order of its steps


def judged(
    rows: pl.LazyFrame, *, series: str, by: str, slack: float = 0.0, epoch: str | None = None, is_alone: bool = False
) -> pl.LazyFrame:
    """The rows with `loss_is` and `norm_is`: nonfinite, passed (not finite, and over), spike, healed, raised, ok; null = not written; with
    `loss_x` and `norm_x` (times the moving median; null = none), `is_long` (a jump of LONG steps, healed or not) and `run`
    (0, 1, ...: the pass that the row is of in its file).

    `series` = column that tells series apart, `by` = step or what counts instead; it must go back by more than `slack` to be another pass,
    and not because another `epoch` begins, in which some trainers count anew. `is_alone`: a lower jump counts where a series has no norms; not
    where it would accuse a rank, whose data alone may have changed.
    """
    file = sorted({series, "evidence_id"})
    keys, order = [*file, "run"], [*file, "place", by, "record"]
    lines = rows.with_columns(pl.col("record").str.extract(r"([0-9]+)\D*$").cast(pl.Int64, strict=False).alias("place")).sort(order)
    back = (pl.col(by) < pl.col(by).shift(1) - slack).fill_null(value=False)
    back &= ~(pl.col(epoch) > pl.col(epoch).shift(1)).fill_null(value=False) if epoch else pl.lit(value=True)
    is_in_order = ((pl.col(by) < pl.col(by).shift(1)).sum() <= _CHAOS * pl.len()).over(file)
    lines = lines.with_columns(pl.when(is_in_order).then("place")).sort(order)
    lines = lines.with_columns(back.cum_sum().over(file).cast(pl.Int64).alias("run"))

    bad = pl.col("is_finite").not_().fill_null(value=False)
    writes_loss, writes_norm = (pl.col(name).is_not_null().any().over(series) for name in ("loss", "grad_norm"))
    lines = lines.with_columns((bad & pl.col("loss").is_null() & (writes_loss | pl.col("grad_norm").is_not_null())).alias("bad_loss"))
    lines = lines.with_columns((bad & pl.col("grad_norm").is_null() & (writes_norm | ~pl.col("bad_loss"))).alias("bad_norm"))
    later_loss, later_norm = (_later(pl.col(name).is_not_null(), keys) for name in ("loss", "grad_norm"))
    lines = lines.with_columns(
        (pl.col("bad_loss") & later_loss).alias("loss_passed"),
        # its update was not applied: the next number is sound
        (pl.col("bad_norm") & ~pl.col("bad_loss") & (later_loss | later_norm)).alias("skipped"),
        (pl.col("bad_norm") != pl.col("bad_norm").shift(1)).fill_null(value=True).cum_sum().over(keys).alias("streak"),
    )
    lasted = pl.len().over([*keys, "streak"]) >= PERSISTS
    has_skipped = pl.col("skipped").cum_max().over(keys)
    over = pl.when("bad_loss").then("loss_passed").otherwise(has_skipped & ~lasted)
    lines = lines.with_columns((pl.col("bad_norm") & over).alias("norm_passed"))
    return _with_jumps(lines, keys, ~writes_norm if is_alone else pl.lit(value=False))


def wild(rows: pl.LazyFrame, *, series: str, by: str) -> pl.LazyFrame:
    """The rows of the series in which a number is not finite, or five times what it was at an earlier step: in no other can anything be wrong. A job
    of 16,384 ranks has few of these."""
    leaps = (pl.col(name) >= SPIKE * pl.col(name).cum_min().shift(1).over(series) for name in ("loss", "grad_norm"))
    is_odd = pl.any_horizontal(*leaps, pl.col("is_finite").not_()).fill_null(value=False)
    some = rows.select(series, by, "loss", "grad_norm", "is_finite").sort(series, by).filter(is_odd).select(series).unique()
    return rows.join(some, on=series, how="semi")


def judged_where_wild(rows: pl.LazyFrame, *, series: str, by: str) -> pl.DataFrame:
    """`judged` of the series in which something may be wrong; the rows of the others have the state ok, no ratio, and `run` 0."""
    kept = wild(rows, series=series, by=by).collect()
    states = judged(kept.lazy(), series=series, by=by).collect()
    calm = rows.filter(~pl.col(series).is_in(kept[series].unique().implode())).with_columns(
        *(pl.when(pl.col(value).is_not_null()).then(pl.lit("ok")).alias(state) for value, state in (("loss", "loss_is"), ("grad_norm", "norm_is"))),
        pl.lit(0, pl.Int64).alias("run"),
    )  # fmt: skip
    return pl.concat([states, calm.collect()], how="diagonal")


def _later(flag: pl.Expr, keys: list[str]) -> pl.Expr:
    """Whether it holds in some later row of the same pass."""
    return flag.cast(pl.Int8).reverse().cum_max().reverse().shift(-1).fill_null(0).over(keys).cast(pl.Boolean)


def _with_jumps(lines: pl.LazyFrame, keys: list[str], alone: pl.Expr) -> pl.LazyFrame:
    both = lines.with_columns(*_ratios("loss", "loss", keys), *_ratios("grad_norm", "norm", keys), alone.alias("alone"))
    above = pl.col("loss") >= ABOVE_NOISE * _usual("loss", 0.9).over(keys)
    both = both.with_columns(
        _lasting("loss", "loss", SPIKE, DRIFT_LOSS, keys).alias("loss_leaps"),
        _lasting("loss", "loss", DRIFT_LOSS, DRIFT_LOSS, keys).alias("loss_up"),
        _lasting("grad_norm", "norm", SPIKE, DRIFT_NORM, keys).alias("norm_leaps"),
        (_stays("loss", "loss", DRIFT_LOSS, keys) & (_stays("grad_norm", "norm", DRIFT_NORM, keys) | pl.col("norm_x").is_null())).alias(
            "is_long"
        ),
    )
    loss_x, norm_x = pl.col("loss_x"), pl.col("norm_x")
    both = both.with_columns((pl.col("alone") & pl.col("loss_up") & pl.col("is_long") & above).fill_null(value=False).alias("lone_leaps"))
    leaps = (pl.col("loss_leaps") & (norm_x.is_null() | (norm_x >= DRIFT_NORM))) | (pl.col("norm_leaps") & pl.col("loss_up"))
    leaps |= pl.col("lone_leaps")
    high = (loss_x >= SPIKE) | ((norm_x >= SPIKE) & (loss_x >= DRIFT_LOSS))
    raised = (loss_x >= DRIFT_LOSS) & (norm_x >= DRIFT_NORM)
    states = (
        _state(value, what, pl.col(f"{what}_x") >= least, leaps, high, raised).alias(f"{what}_is")
        for value, what, least in (("loss", "loss", DRIFT_LOSS), ("grad_norm", "norm", DRIFT_NORM))
    )
    return both.with_columns(*states).drop(_HELP)


def _state(value: str, what: str, is_up: pl.Expr, leaps: pl.Expr, high: pl.Expr, raised: pl.Expr) -> pl.Expr:
    return (
        pl.when(f"{what}_passed")
        .then(pl.lit("passed"))
        .when(f"bad_{what}")
        .then(pl.lit("nonfinite"))
        .when(pl.col(value).is_null())
        .then(None)
        .when(leaps & is_up)
        .then(pl.lit("spike"))
        .when(high & is_up)
        .then(pl.lit("healed"))
        .when(raised)
        .then(pl.lit("raised"))
        .otherwise(pl.lit("ok"))
    )


def _ratios(value: str, what: str, keys: list[str]) -> list[pl.Expr]:
    """Times the moving median, and that median; null where the window is short, or not clearly above zero or the noise."""
    column = pl.col(value)
    usual = column.rolling_median(WINDOW, min_samples=MIN_BEFORE).shift(1)
    low, high = (_usual(value, share) for share in (0.1, 0.9))
    fits = (low > 0) & (usual > 0) & ((column >= ABOVE_NOISE * high) | (column < SPIKE * usual))
    ratio = pl.when(fits).then(column / usual)
    return [ratio.over(keys).alias(f"{what}_x"), usual.over(keys).alias(f"{what}_usual")]


def _usual(value: str, share: float) -> pl.Expr:
    """What this share of the steps of the window before stays below."""
    return pl.col(value).rolling_quantile(share, window_size=WINDOW, min_samples=MIN_BEFORE).shift(1)


def _lasting(value: str, what: str, least: float, stays: float, keys: list[str]) -> pl.Expr:
    """Whether it is `least` times the median, the next steps keep `stays` times of it, and no stretch of steps comes back to it later."""
    column, usual = pl.col(value), pl.col(f"{what}_usual")
    nearest = pl.min_horizontal(*(column.shift(-step).over(keys) for step in range(1, AFTER + 1)))
    stretch = column.rolling_median(AFTER, min_samples=AFTER).shift(-AFTER).over(keys)  # of the three rows behind this one
    lowest = stretch.reverse().cum_min().reverse().over(keys)
    is_back = (lowest < HEALED * usual).fill_null(value=False)
    return ((pl.col(f"{what}_x") >= least) & (nearest.is_null() | (nearest >= stays * usual)) & ~is_back).fill_null(value=False)


def _stays(value: str, what: str, times: float, keys: list[str]) -> pl.Expr:
    """Whether it and each of the steps behind it, LONG in all, is so many times the median before it."""
    behind = [pl.col(value).shift(-step).over(keys) >= times * pl.col(f"{what}_usual") for step in range(LONG)]
    return pl.all_horizontal(behind).fill_null(value=False)


def newest(states: pl.DataFrame, *, series: str, by: str) -> pl.DataFrame:
    """The rows that still hold: of a file's passes those whose step no later pass reached again (a resumed run began behind it, and went past)."""
    last = states.group_by(series, "evidence_id", "run").agg(pl.col(by).max().alias("reached"))
    later = last.sort("run", descending=True).with_columns(
        pl.col("reached").cum_max().shift(1).over(series, "evidence_id").alias("again_to")
    )
    joined = states.join(later.drop("reached"), on=[series, "evidence_id", "run"], how="left", maintain_order="left")
    return joined.filter(pl.col("again_to").is_null() | (pl.col(by) > pl.col("again_to"))).drop("again_to")


def drift_start(states: pl.DataFrame, *, by: str, at: float) -> float:
    """The first of the steps right before `at` at which the loss was 1.4 times its median, or the norm twice (`states` of one series and pass, or of
    the ranks that went wrong): from there on the state may be wrong. `at` itself where none was."""
    up = (pl.col("loss_x") >= DRIFT_LOSS) | ((pl.col("norm_x") >= DRIFT_NORM) & pl.col("loss_x").is_null())
    by_step = states.filter(pl.col(by) < at).group_by(by).agg(up.fill_null(value=False).any().alias("up")).sort(by, descending=True)
    start = at
    for step, is_up in by_step.select(by, "up").iter_rows():
        if not is_up:
            break
        start = step
    return start
