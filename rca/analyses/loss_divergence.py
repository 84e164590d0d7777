"""Does the loss that a trainer prints for the whole job stop being finite, or jump and stay high?

1. Each file with progress is a series of its own, by step (or epoch). Steps whose update the trainer skipped are left out.
2. Not finite: the loss, or the gradient norm for more than one step (loss scaling skips single ones). A jump: both at least five times their
   moving median, and the loss stays high.
3. The numbers are averages over all ranks: they tell the step, and accuse nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from rca.analyses._numbers import SPIKE, judged
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("progress",)
USES = ()
SIGNS = {
    "loss_not_finite": Sign("numbers", ("numeric_divergence", "silent_data_corruption", "bad_sample")),
    "loss_jumped": Sign("numbers", ("numeric_divergence", "bad_sample", "unknown")),
}

MIN_STEPS = 3  # with a loss, before "all sound" says anything


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for the earliest step of any file, or none."""
    rows = case.table("progress").filter(~pl.col("is_skipped").fill_null(value=False))
    rows = rows.select("evidence_id", "record", "step", "epoch", "loss", "grad_norm", "is_finite", "ended_at")
    rows = rows.with_columns(pl.coalesce(pl.col("step").cast(pl.Float64), "epoch").alias("at")).filter(pl.col("at").is_not_null())
    states = judged(rows, series="evidence_id", by="at").filter(pl.any_horizontal(pl.col("loss_is", "norm_is").is_not_null())).collect()
    if states.height < MIN_STEPS:
        raise NotEnoughEvidence(f"{states.height} printed steps with a loss or gradient norm")
    jumped = (pl.col("loss_is") == "spike") & (pl.col("norm_is").is_null() | (pl.col("norm_is") == "spike"))
    wrong = states.filter(pl.any_horizontal(pl.col("loss_is", "norm_is") == "nonfinite") | jumped)
    if wrong.is_empty():
        return ()
    return [_finding(wrong.sort("at", "evidence_id", "record").row(0, named=True))]


def _finding(row: dict[str, Any]) -> Finding:
    place = f"step {row['step']}" if row["step"] is not None else f"epoch {row['epoch']}"
    loss, norm = (f"{row[name]:.6g}" if row[name] is not None else "not finite or not printed" for name in ("loss", "grad_norm"))
    if "nonfinite" in (row["loss_is"], row["norm_is"]):
        sign, what = "loss_not_finite", "loss" if row["loss_is"] == "nonfinite" else "gradient norm"
        says = f"from {place} on the printed {what} of the job is not finite"
    else:
        sign = "loss_jumped"
        says = f"at {place} the printed loss of the job jumps to at least {SPIKE:g} times its moving median ({loss}) and stays high"
    numbers = {name: row[name] for name in ("step", "epoch", "loss", "grad_norm") if row[name] is not None}
    if row["ended_at"] is not None:
        numbers["failed_at"] = row["ended_at"].isoformat()
    cite = Cite("progress", row["evidence_id"], "", row["record"], f"{place}: loss {loss}, gradient norm {norm}")
    return Finding(
        "loss_divergence", sign, f"{says}; an average over all ranks, it accuses nobody", scope="loss", numbers=numbers, cites=(cite,)
    )
