"""Step times that the trainer prints: of the run at hand, and of what it can be held against, an earlier launch or a golden run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from rca.types import Cite, Tables

__all__ = ["Printed", "cite_step", "printed"]

WARM_UP: Final = 1  # first steps of a launch: allocation, compilation
GOLDEN: Final = "golden_values"  # the collector of reference runs
QUARTER: Final = 4
TOLD: Final = 0.8  # of the steps that must say how much work they did
BACK: Final = 3  # usual distances of printed steps that a new launch goes back: lines of several ranks in one file change places by one
COLUMNS: Final = ("step", "logged_step_s", "evidence_id", "record", "tokens_per_s_per_gpu", "tokens_total")


@dataclass(frozen=True)
class Printed:
    """The run at hand; the launch before it, where the trainer began anew at an earlier step; the reference run. COLUMNS of `progress`, by step."""

    now: pl.DataFrame
    before: pl.DataFrame
    golden: pl.DataFrame

    def did_more(self, ratio: float) -> bool:
        """Whether the last quarter of steps, `ratio` times as long as the first, also did that much more work: a batch that grows by design."""
        width = self.now.height // QUARTER
        steps = self.now.with_columns(
            work=pl.when(pl.col("step").diff() > 0).then(pl.col("tokens_total").diff() / pl.col("step").diff()),
        ).with_columns(work=pl.coalesce(pl.col("tokens_per_s_per_gpu") * pl.col("logged_step_s"), pl.col("work")))
        first, last = (part["work"].drop_nulls() for part in (steps.head(width), steps.tail(width)))
        if min(len(first), len(last)) < max(1.0, TOLD * width):
            return False
        before, after = first.median(), last.median()
        return isinstance(before, float) and isinstance(after, float) and after >= before * (1 + (ratio - 1) / 2)


def printed(case: Tables) -> Printed:
    """All three, in the order of steps; empty where nothing of the kind is there."""
    told = case.table("progress").filter(pl.col("step").is_not_null() & (pl.col("logged_step_s") > 0))
    rows = told.select(*COLUMNS, "rank").collect()
    read = case.table("readings").filter(pl.col("collector") == GOLDEN).select("evidence_id").unique().collect()
    golden = rows.join(read, on="evidence_id", how="semi")
    own = rows.join(read, on="evidence_id", how="anti")
    if not own.height:
        own, golden = golden, own
    line = pl.col("record").str.extract(r"([0-9]+)$").cast(pl.Int64, strict=False)
    own = own.with_columns(line=line).sort("evidence_id", "rank", "line", "record", nulls_last=True)
    of = ("evidence_id", "rank")
    step = pl.col("step").diff().over(of)
    usual = step.filter(step > 0).median().over(of).fill_null(1)
    own = own.with_columns(run=(step < -BACK * usual).fill_null(value=False).cum_sum().over(of))
    ago = pl.col("run").max().over(of) - pl.col("run")
    return Printed(_steps(own.filter(ago == 0)), _steps(own.filter(ago == 1)), _steps(golden))


def _steps(rows: pl.DataFrame) -> pl.DataFrame:
    """Each step once; without the first."""
    once = rows.select(COLUMNS).sort("step", "evidence_id", "record").unique("step", keep="first", maintain_order=True)
    return once.slice(WARM_UP)


def cite_step(steps: pl.DataFrame, place: int) -> Cite:
    """A printed step; places count from the end where they are negative."""
    row = steps.row(place, named=True)
    return Cite("progress", row["evidence_id"], "", row["record"], f"step {row['step']}: {row['logged_step_s']:.3g} s")
