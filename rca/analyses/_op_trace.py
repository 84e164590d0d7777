"""Timed operations of replicas and pipeline stages as matrices: every replica and step with the same operations side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from rca.errors import NotEnoughEvidence
from rca.types import Tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Cube = NDArray[np.float64]

__all__ = ["BACKWARD", "FORWARD", "Op", "Traced", "op_rows", "traced"]

FORWARD: Final = re.compile(r"forward|fwd")
BACKWARD: Final = re.compile(r"backward|bwd")
MIN_LANES: Final = 2  # replicas times steps: a single one has nothing to compare with
MAX_OPS: Final = 400_000  # that are replayed: of more, as many steps as come to that, evenly spaced
_COLUMNS: Final = (
    "rank",
    "step",
    "stage",
    "dp",
    "microbatch",
    "op",
    "kind",
    "seq_id",
    "start_s",
    "started_at",
    "op_s",
    "evidence_id",
    "record",
)


@dataclass(frozen=True)
class Op:
    """One operation of a stage, and the number it has among its kind there, in the order in which they begin."""

    stage: int
    name: str
    kind: str
    number: int


@dataclass(frozen=True)
class Traced:
    """All operations of the steps that have the same ones."""

    ops: list[Op]
    dps: list[int]
    steps: list[int]
    took: Cube  # ops x replicas x steps, s
    began: Cube  # the same, s since the step began; NaN = not told
    ranks: Mapping[tuple[int, int], int]  # replica, stage -> rank that was traced
    batches: list[int]  # number of the micro-batch of each op, -1 = none
    left_out: int  # steps of another form, or beyond MAX_OPS

    @property
    def stages(self) -> list[int]:
        """The pipeline stages, sorted."""
        return sorted({op.stage for op in self.ops})


def op_rows(case: Tables) -> pl.DataFrame:
    """Operations with a step, a replica and a stage, told by themselves or by a map; of a tensor group the rank that computes longest in all.

    Empty where none has them all, or computation is not told as forward and backward of micro-batches. One pipeline stage where nothing tells of any.
    """
    ops = case.table("ops").select(_COLUMNS).filter(pl.col("step").is_not_null() & (pl.col("op_s") >= 0) & pl.col("op").is_not_null())
    places = case.table("ranks").filter(pl.col("rank").is_not_null()).group_by("rank").agg(pl.col("pp", "dp").drop_nulls().first())
    placed = ops.filter(pl.col("rank").is_not_null()).join(places, on="rank", how="left")
    placed = placed.with_columns(pl.coalesce("dp", "dp_right").alias("dp"), pl.coalesce("stage", "pp").alias("stage")).drop(
        "dp_right", "pp"
    )
    rows = placed.filter(pl.col("dp").is_not_null()).collect()
    if rows["stage"].null_count() == rows.height:
        rows = rows.with_columns(pl.lit(0, dtype=pl.Int64).alias("stage"))
    rows = rows.drop_nulls("stage")
    work = rows.filter(pl.col("kind") == "compute")["op"].unique().str.to_lowercase()
    if not work.str.contains(f"{FORWARD.pattern}|{BACKWARD.pattern}").all():  # kernels, one by one: what waits for what is in no name
        return rows.clear()
    since = (pl.col("started_at") - pl.col("started_at").min().over("step")).dt.total_microseconds() / 1e6
    rows = rows.with_columns(pl.coalesce("start_s", since).cast(pl.Float64).alias("start_s")).drop("started_at")
    load = rows.group_by("dp", "stage", "rank").agg(pl.col("op_s").filter(pl.col("kind") == "compute").sum().alias("load"))
    first = load.sort("load", "rank", descending=[True, False]).unique(["dp", "stage"], keep="first", maintain_order=True)
    return rows.join(first, on=["dp", "stage", "rank"], how="semi", maintain_order="left")


def traced(rows: pl.DataFrame) -> Traced:
    """Those operations as matrices. Raises NotEnoughEvidence where no two replicas or steps have the same ones."""
    import numpy as np

    rows = rows.sort("dp", "step", "stage", "start_s", "seq_id", "op", "record", nulls_last=True)
    rows = rows.with_columns(pl.int_range(pl.len()).over("dp", "step", "stage", "op").alias("number"))
    forms = rows.group_by("step").agg(
        pl.struct("dp", "stage", "op", "number").hash().sort().hash().sum().alias("form"), pl.len().alias("n")
    )
    common = forms.group_by("form", "n").agg(pl.len().alias("times"), pl.col("step").sort()).sort("times", "n", "form", descending=True)
    if not common.height:
        raise NotEnoughEvidence("no operation tells its step, its replica and its pipeline stage")
    steps = common["step"][0].to_list()
    most = max(MAX_OPS // common["n"][0], 1)
    if len(steps) > most:
        steps = [steps[int(at)] for at in np.linspace(0, len(steps) - 1, most)]
    kept = rows.filter(pl.col("step").is_in(steps))
    dps = sorted(set(kept["dp"]))
    if len(dps) * len(steps) < MIN_LANES:
        raise NotEnoughEvidence("operations of one replica in one step that no other has: there is nothing to compare them with")
    same = (
        kept.group_by("stage", "op", "number").agg(pl.col("kind", "microbatch").first(), pl.len().alias("n")).sort("stage", "op", "number")
    )
    if (same["n"] != len(dps) * len(steps)).any():
        raise NotEnoughEvidence("the replicas do not have the same operations in any step: what waits for what cannot be told")
    kept = kept.join(same.select("stage", "op", "number").with_row_index("place"), on=["stage", "op", "number"])
    at = kept["place"].to_numpy(), np.searchsorted(dps, kept["dp"].to_numpy()), np.searchsorted(steps, kept["step"].to_numpy())
    took, began = np.full((2, same.height, len(dps), len(steps)), np.nan)
    took[at], began[at] = kept["op_s"].to_numpy(), kept["start_s"].to_numpy()
    ops = [Op(*row) for row in same.select("stage", "op", "kind", "number").iter_rows()]
    ranks = {(dp, stage): rank for dp, stage, rank in kept.select("dp", "stage", "rank").unique().sort("dp", "stage").iter_rows()}
    return Traced(ops, dps, steps, took, began, ranks, same["microbatch"].fill_null(-1).to_list(), forms.height - len(steps))
