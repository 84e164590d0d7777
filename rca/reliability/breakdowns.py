"""Incidents of a window by stage, week, cause, layer, attribution and host: the frames that tables and charts show."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Literal

import polars as pl

from rca.causes import STAGES, WHOLE_BUDGET_S
from rca.reliability.ledger import FAILURE, Ledger
from rca.reliability.window import Window

__all__ = ["KINDS", "LOOK_BACK", "bad_hosts", "began_in", "counts_by_week", "lost_by", "stage_times", "with_lost"]

KINDS: Final = (*FAILURE, "planned")  # attributions of interruptions; `none` is a false alarm
LOOK_BACK: Final = timedelta(days=28)  # in which a host's failures are counted together (Meta, HPCA'25: lemon nodes)


def began_in(ledger: Ledger, window: Window) -> pl.DataFrame:
    return ledger.incidents.filter((pl.col("at") >= window.start) & (pl.col("at") < window.end))


def with_lost(ledger: Ledger, window: Window) -> pl.DataFrame:
    """Interruptions that reach into the window, with `began_here` and `lost_s`: GPU seconds of the part within it; null = not recorded."""
    rows = ledger.incidents.filter(pl.col("at").is_not_null() & (pl.col("kind") != "none") & (pl.col("at") < window.end))
    rows = rows.filter((pl.col("at") >= window.start) | (pl.col("until") > window.start))
    whole = (pl.col("until") - pl.col("at")).dt.total_microseconds()
    inside = (
        pl.min_horizontal("until", pl.lit(window.end).cast(pl.Datetime("us", "UTC")))
        - pl.max_horizontal("at", pl.lit(window.start).cast(pl.Datetime("us", "UTC")))
    ).dt.total_microseconds()
    here = pl.col("at") >= window.start
    part = pl.when(whole > 0).then(inside / whole).when(here).then(1.0).otherwise(0.0)  # without an end it lies where it began
    return rows.with_columns(here.alias("began_here"), (pl.col("lost_gpu_s") * part).alias("lost_s"))


def stage_times(ledger: Ledger, window: Window) -> pl.DataFrame:
    """Per stage of the failures that began in the window, and for the `whole`: stage, num (lengths known), mean_s, median_s, p90_s (linear between
    neighbours), budget_s, num_over, num_unknown (begun or ended, but not both told), num_absent (failures that record no such stage)."""
    failures = began_in(ledger, window).filter(pl.col("kind") == "failure")
    rows = ledger.stages.join(failures.select("incident_id"), on="incident_id", how="semi")
    found = []
    for stage, budget in [*STAGES.items(), ("whole", WHOLE_BUDGET_S)]:
        own = rows.filter(pl.col("stage") == stage)
        lengths = (own["stage_s"] if stage != "whole" else failures["length_s"]).drop_nulls()
        recorded = own.height if stage != "whole" else failures.height
        found.append(
            {
                "stage": stage, "num": len(lengths), "mean_s": lengths.mean(), "median_s": lengths.median(),
                "p90_s": lengths.quantile(0.9, "linear"), "budget_s": budget,
                "num_over": None if budget is None else int((lengths > budget).sum()),
                "num_unknown": recorded - len(lengths), "num_absent": failures.height - recorded,
            }
        )  # fmt: skip
    counts = {"num": pl.Int64, "num_over": pl.Int64, "num_unknown": pl.Int64, "num_absent": pl.Int64}
    times = {"mean_s": pl.Float64, "median_s": pl.Float64, "p90_s": pl.Float64, "budget_s": pl.Float64}
    return pl.DataFrame(found, schema_overrides={**counts, **times})


def counts_by_week(ledger: Ledger, windows: Sequence[Window]) -> pl.DataFrame:
    """Interruptions that began in each window, by whose they are: week, attribution, num; a row for every pair."""
    rows = []
    for window in sorted(windows, key=lambda w: w.start):
        counts = dict(began_in(ledger, window).group_by("attribution").len().iter_rows())
        rows += [{"week": window.name, "attribution": kind, "num": counts.get(kind, 0)} for kind in KINDS]
    return pl.DataFrame(rows, schema={"week": pl.String, "attribution": pl.String, "num": pl.Int64})


def lost_by(ledger: Ledger, window: Window, column: Literal["cause", "layer", "attribution"]) -> pl.DataFrame:
    """Interruptions by cause, layer or attribution, the costliest first: the column, attribution, num (begun in the window), lost_gpu_s (of what is
    recorded; null = nothing is), num_unknown (of how many the cost is not recorded, or not to the end), median_s to recover, recomputed_tokens."""
    keys = list(dict.fromkeys([column, "attribution"]))
    rows = with_lost(ledger, window)
    here = pl.col("began_here")
    lost = pl.when(pl.col("lost_s").is_not_null().any()).then(pl.col("lost_s").sum())
    tokens = pl.col("recomputed_tokens").filter(here)
    found = rows.group_by(keys).agg(
        here.sum().cast(pl.Int64).alias("num"),
        lost.alias("lost_gpu_s"),
        (pl.col("lost_s").is_null() | pl.col("recovered_at").is_null()).sum().cast(pl.Int64).alias("num_unknown"),
        pl.col("length_s").filter(here).median().alias("median_s"),
        pl.when(tokens.is_not_null().any()).then(tokens.sum()).alias("recomputed_tokens"),
    )
    return found.sort(["lost_gpu_s", "num", *keys], descending=[True, True, *[False] * len(keys)], nulls_last=True)


def bad_hosts(ledger: Ledger, window: Window, *, at_least: int = 2) -> pl.DataFrame:
    """Hosts that failed first in several failures of the 28 days up to the window's end, those of the workload left out: host, num, causes,
    incidents (oldest first), last_at."""
    since = window.end - LOOK_BACK
    rows = ledger.incidents.filter(
        (pl.col("at") >= since) & (pl.col("at") < window.end) & (pl.col("kind") == "failure") & (pl.col("attribution") != "workload")
    )
    by_host = rows.explode("hosts").filter(pl.col("hosts").is_not_null()).unique(["hosts", "incident_id"]).sort("at", "incident_id")
    found = by_host.group_by(pl.col("hosts").alias("host")).agg(
        pl.len().cast(pl.Int64).alias("num"),
        pl.col("cause").unique().sort().alias("causes"),
        pl.col("incident_id").alias("incidents"),
        pl.col("at").max().alias("last_at"),
    )
    return found.filter(pl.col("num") >= at_least).sort(["num", "host"], descending=[True, False])
