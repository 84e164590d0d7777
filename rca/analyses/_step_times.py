"""Times per rank and step as matrices, and their way back to the rows they come from."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import polars as pl

from rca.types import Cite, Tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

__all__ = ["Times", "began", "cite_step", "last_stretch", "step_rows", "times"]

LEAST_HOLE: Final = 10  # steps: fewer are lost where a rank kept what it wrote in memory


@dataclass(frozen=True)
class Times:
    """One time per rank and step, s; NaN where none was written."""

    ranks: list[int]
    steps: list[int]
    values: Matrix  # ranks x steps

    def usual(self, ranks: Collection[int], first: int, last: int) -> float:
        """Median of these ranks over columns `first` to `last`, s; NaN where none of them has a time there."""
        import numpy as np

        values = self.values[[r in ranks for r in self.ranks], first : last + 1]
        known = values[~np.isnan(values)]
        return float(np.median(known)) if known.size else math.nan


def step_rows(case: Tables, *, warm_up: int) -> pl.DataFrame:
    """Rows of `steps`, one per rank and step (the last where a step was run again); without the first steps, and those of few ranks.

    Where every rank writes some of the steps only, and not the same ones, a stretch as long as from one to the next stands for a step.
    """
    rows, shared = case.derive(_by_step)
    return rows.join(shared[warm_up:], on="step", how="semi", maintain_order="left")


def _by_step(case: Tables) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of `steps`, one per rank and step, and the steps that count. Made once by `case.derive`."""
    order = ["rank", "step", "started_at", "evidence_id", "record"]
    steps = case.table("steps").filter(pl.col("rank").is_not_null() & pl.col("step").is_not_null())
    rows = steps.sort(order, nulls_last=False).unique(["rank", "step"], keep="last", maintain_order=True).collect()
    shared = _shared(rows)
    if rows.height and rows.join(shared, on="step", how="semi").height * 2 < rows.height:
        gap = rows.group_by("rank").agg(pl.col("step").diff().median().alias("gap"))["gap"].median()
        width = round(gap) if isinstance(gap, float) and gap >= 2 else 1
        rows = rows.with_columns(pl.col("step") // width * width).unique(["rank", "step"], keep="last", maintain_order=True)
        shared = _shared(rows)
    return rows, shared


def _shared(rows: pl.DataFrame) -> pl.DataFrame:
    """Steps that at least half of the ranks have, sorted."""
    return rows.group_by("step").agg(pl.len().alias("n")).filter(pl.col("n") * 2 >= rows["rank"].n_unique()).sort("step")


def last_stretch(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows (with `step`) behind the last hole in the record: more steps missing than there are from the hole before on, and to the end.

    What changed while nobody wrote may be of another launch, with another layout, batch or code: no change is dated into such a hole.
    """
    steps = rows["step"].drop_nulls().unique().sort().to_list()
    first = steps[0] if steps else 0
    for before, after in pairwise(steps):
        if after - before - 1 > max(LEAST_HOLE, before - first + 1, steps[-1] - after + 1):
            first = after
    return rows.filter(pl.col("step") >= first)


def times(rows: pl.DataFrame, column: str) -> Times:
    """A column of these rows as a matrix over the ranks and steps that have it."""
    import numpy as np

    known = rows.filter(pl.col(column).is_finite() & (pl.col(column) >= 0))
    ranks, steps = (known[name].unique().sort() for name in ("rank", "step"))
    values = np.full((len(ranks), len(steps)), np.nan)
    values[np.searchsorted(ranks, known["rank"]), np.searchsorted(steps, known["step"])] = known[column]
    return Times(ranks.to_list(), steps.to_list(), values)


def began(case: Tables, ranks: Collection[int], step: int) -> str | None:
    """When a step began on the first of these ranks, ISO 8601 in UTC; None where it is not recorded."""
    steps = case.table("steps").filter(pl.col("rank").is_in(list(ranks)) & (pl.col("step") == step))
    at = steps.select(pl.col("started_at").min()).collect().item()
    return at.isoformat() if at is not None else None


def cite_step(rows: pl.DataFrame, rank: int, step: int, column: str) -> list[Cite]:
    """The row of a rank and step, as text; none where it was not written."""
    found = rows.filter((pl.col("rank") == rank) & (pl.col("step") == step)).select("evidence_id", "record", column).rows()
    name = column.removesuffix("_s")
    return [
        Cite("steps", e, "", record, f"rank {rank}, step {step}: {name} {value:.4g} s") for e, record, value in found if value is not None
    ]
