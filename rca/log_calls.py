"""Which logs name the very calls that recorder dumps end at: they are of the same launch, whatever their stamps and names say. Pure."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from rca.types import Tables

__all__ = ["of_dumps"]


def of_dumps(case: Tables, left_out: Collection[str]) -> set[str]:
    """Logs in which the watchdog of a rank gave up a call that the dump of this rank had made and not completed. `left_out`: dumps of other launches.

    Ranks number the calls of a group from the start of the launch, so two launches agree only where they ended at the same few calls.
    """
    gave_up = case.table("log_events").filter((pl.col("signature") == "nccl_watchdog_timeout") & pl.col("rank").is_not_null())
    named = gave_up.select(
        "evidence_id", "rank", pl.col("message").str.extract(r"SeqNum=([0-9]{1,18})\b").cast(pl.Int64).alias("seq")
    ).drop_nulls()
    status = case.table("group_status").filter(~pl.col("evidence_id").is_in(sorted(left_out)))
    ends = status.select("rank", "last_completed", "last_enqueued").drop_nulls()
    met = named.join(ends, on="rank").filter((pl.col("seq") > pl.col("last_completed")) & (pl.col("seq") <= pl.col("last_enqueued")))
    return set(met.select("evidence_id").unique().collect()["evidence_id"].to_list())
