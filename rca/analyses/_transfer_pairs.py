"""How long transfers take from one rank to another, against transfers of the same kind and size between other ranks: the cells of a delay matrix.

Sources: tables of transfers, point-to-point calls of recorders (with start and end) and of NCCL's Inspector, timed sends and receives of pipeline
stages. A call lasts from the moment its own end of the connection is there, so whoever comes first waits inside it. The transfer itself is what
the later end sees: of both ends the one whose calls are usually shorter. That needs no common clock, and both ends: of a rank that left no dump
nothing is known. Calls that their time-out ended took no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from rca.analyses._job_logs import READS as LOG_READS
from rca.analyses._job_logs import job_logs
from rca.analyses._layout import hosts
from rca.analyses._nccl_ranks import ranks_of
from rca.analyses._waits import is_done
from rca.types import Cite, Tables

__all__ = ["READS", "Cell", "cells"]

READS: Final = tuple(sorted({*LOG_READS, "ranks", "steps", "dump_index", "log_events", "host_addresses", "groups", "memberships"}))
MIN_PAIRS: Final = 4  # of one kind and size: of fewer none is odd
MANY_SIZES: Final = 16  # of transfers: of more, equal ones are too few
MIN_S: Final = 1e-6  # of a transfer: less is no time
_SHAPE: Final = {"src": pl.Int64, "dst": pl.Int64, "kind": pl.String, "side": pl.String, "seconds": pl.Float64}


@dataclass(frozen=True)
class Cell:
    """Transfers from one rank to another: usual time over that of its kind, the same of its faster quarter, how many, and one of them."""

    src: int
    dst: int
    ratio: float
    low: float
    seconds: float
    num: int
    cite: Cite


def cells(case: Tables) -> tuple[list[Cell], int]:
    """One cell per pair of ranks, sorted, of several kinds the one with most transfers; and how many pairs are left out: too few have their kind."""
    parts = [part for part in (_tables(case), _recorded(case), _inspected(case), _staged(case)) if part.height]
    if not parts:
        return [], 0
    where = hosts(case)
    ends = (pl.col(c).replace_strict(where, default=None, return_dtype=pl.String) for c in ("src", "dst"))
    rows = pl.concat(parts, how="diagonal").filter((pl.col("src") != pl.col("dst")) & (pl.col("seconds") >= MIN_S))
    rows = rows.with_columns(
        pl.concat_str("kind", pl.struct(*(e.alias(str(n)) for n, e in enumerate(ends))).map_batches(_reach, pl.String))
    )
    sides = rows.group_by("src", "dst", "kind", "side").agg(
        pl.col("seconds").median(), pl.col("seconds").quantile(0.25).alias("low"), pl.len().alias("num"),
        pl.col("table", "evidence_id", "record").sort_by("evidence_id", "record").first(),
    )  # fmt: skip
    is_told = (pl.col("side") == "") | (
        pl.col("side").n_unique().over("src", "dst", "kind") == 2
    )  # one end alone may only have waited for the other
    pairs = (
        sides.filter(is_told)
        .sort("src", "dst", "kind", "seconds", "side")
        .unique(("src", "dst", "kind"), keep="first", maintain_order=True)
    )
    usual = pairs.group_by("kind").agg(pl.col("seconds").median().alias("usual"), pl.len().alias("pairs"))
    every = pairs.select("src", "dst").n_unique()
    pairs = pairs.join(usual, on="kind").filter(pl.col("pairs") >= MIN_PAIRS)
    pairs = pairs.sort("src", "dst", "num", "kind", descending=[False, False, True, False]).unique(
        ("src", "dst"), keep="first", maintain_order=True
    )
    found = [
        Cell(
            row["src"], row["dst"], row["seconds"] / row["usual"], row["low"] / row["usual"], row["seconds"], row["num"],
            Cite(row["table"], row["evidence_id"], "", row["record"], f"{row['src']} -> {row['dst']}: usually {row['seconds']:.3g} s"),
        )
        for row in pairs.iter_rows(named=True)
    ]  # fmt: skip
    return found, every - len(found)


def _reach(ends: pl.Series) -> pl.Series:
    """Whether a pair is on one host or on two: a link inside a host is many times as fast as one between hosts."""
    frame = ends.struct.unnest()
    same = frame["0"] == frame["1"]
    return pl.Series([" inside" if one else " between" if one is not None else "" for one in same], dtype=pl.String)


def _tables(case: Tables) -> pl.DataFrame:
    """Rows of tables. Where sizes are many, a transfer is taken as one of the next smaller power of two, at the same bytes per second."""
    rows = case.table("transfers").filter(pl.all_horizontal(pl.col("src_rank", "dst_rank", "transfer_s").is_not_null())).collect()
    whole = pl.lit(2.0) ** pl.col("bytes").log(2).floor()
    if rows["bytes"].n_unique() > MANY_SIZES:
        scale = pl.when(pl.col("bytes") > 0).then(whole / pl.col("bytes")).otherwise(1.0)
        rows = rows.with_columns(pl.col("transfer_s") * scale, bytes=pl.when(pl.col("bytes") > 0).then(whole.cast(pl.Int64)))
    size = pl.col("bytes").cast(pl.String).fill_null("")
    return rows.select(
        pl.col("src_rank").alias("src"),
        pl.col("dst_rank").alias("dst"),
        pl.concat_str(pl.lit("transfers "), pl.col("op").fill_null(""), pl.lit(" "), size).alias("kind"),
        pl.lit("").alias("side"),
        pl.col("transfer_s").alias("seconds"),
        pl.lit("transfers").alias("table"),
        "evidence_id",
        "record",
    )


def _recorded(case: Tables) -> pl.DataFrame:
    rows = case.table("collectives").filter(
        pl.col("is_p2p") & is_done() & pl.all_horizontal(pl.col("src", "dst", "started_at", "completed_at").is_not_null())
    )
    took = (pl.col("completed_at") - pl.col("started_at")).dt.total_microseconds() / 1e6
    side = pl.when(pl.col("rank") == pl.col("src")).then(pl.lit("send")).otherwise(pl.lit("recv"))
    return rows.select(
        "src", "dst", pl.concat_str(pl.lit("recorded "), pl.col("sizes").fill_null("")).alias("kind"), side.alias("side"), took.alias("seconds"),
        pl.lit("collectives").alias("table"), "evidence_id", "record",
    ).collect()  # fmt: skip


def _inspected(case: Tables) -> pl.DataFrame:
    """Calls of the Inspector, of processes whose ranks are known."""
    told = case.table("nccl_calls").filter(
        pl.col("is_p2p") & pl.all_horizontal(pl.col("comm", "group_rank", "peer", "exec_s").is_not_null())
    )
    columns = ("comm", "group_rank", "group_size", "host", "pid", "peer", "op", "size_bytes", "exec_s", "evidence_id", "record")
    rows = told.select(columns).collect()
    if not rows.height:
        return pl.DataFrame(schema=_SHAPE)
    known = ranks_of(case, case.derive(job_logs))
    who = case.table("nccl_calls").select("comm", "group_rank", "host", "pid", "group_size").unique().collect()
    ranks = {
        (comm, of): rank
        for comm, of, host, pid, size in who.sort(who.columns).iter_rows()
        if (rank := known.rank(host, pid, of, size)) is not None
    }
    place = pl.DataFrame(
        [(comm, of, rank) for (comm, of), rank in ranks.items()],
        schema={"comm": pl.String, "group_rank": pl.Int64, "me": pl.Int64},
        orient="row",
    )
    other = place.rename({"group_rank": "peer", "me": "other"})
    rows = rows.join(place, on=["comm", "group_rank"]).join(other, on=["comm", "peer"])
    sends = pl.col("op").str.to_lowercase().str.contains("send")
    return rows.select(
        pl.when(sends).then("me").otherwise("other").alias("src"), pl.when(sends).then("other").otherwise("me").alias("dst"),
        pl.concat_str(pl.lit("inspected "), pl.col("size_bytes").cast(pl.String).fill_null("")).alias("kind"),
        pl.when(sends).then(pl.lit("send")).otherwise(pl.lit("recv")).alias("side"), pl.col("exec_s").alias("seconds"),
        pl.lit("nccl_calls").alias("table"), "evidence_id", "record",
    )  # fmt: skip


def _staged(case: Tables) -> pl.DataFrame:
    """Timed sends and receives of pipeline stages, where one rank stands for each stage of each replica."""
    told = case.table("ops").filter((pl.col("kind") == "p2p") & pl.all_horizontal(pl.col("rank", "stage", "dp", "op_s").is_not_null()))
    rows = told.select("rank", "stage", "dp", "op", "op_s", "evidence_id", "record").collect()
    at = rows.select("stage", "dp", "rank").unique()
    if not rows.height or at.height > at.select("stage", "dp").n_unique():
        return pl.DataFrame(schema=_SHAPE)
    name, stages = pl.col("op").str.to_lowercase(), int(at["stage"].max()) + 1  # type: ignore[arg-type]
    sends, forward = name.str.contains("send"), name.str.contains("fwd|forward")
    step = pl.when(sends == forward).then(1).otherwise(-1)  # forward goes to the next stage, and comes from the one before
    other = at.rename({"rank": "other", "stage": "far"})
    rows = rows.filter(name.str.contains("(?:fwd|forward|bwd|backward).*(?:send|recv)")).with_columns(far=(pl.col("stage") + step) % stages)
    rows = rows.join(other, on=["far", "dp"])
    return rows.select(
        pl.when(sends).then("rank").otherwise("other").alias("src"), pl.when(sends).then("other").otherwise("rank").alias("dst"),
        pl.concat_str(pl.lit("staged "), pl.when(forward).then(pl.lit("forward")).otherwise(pl.lit("backward"))).alias("kind"),
        pl.when(sends).then(pl.lit("send")).otherwise(pl.lit("recv")).alias("side"), pl.col("op_s").alias("seconds"),
        pl.lit("ops").alias("table"), "evidence_id", "record",
    )  # fmt: skip


def ranks_in(found: Sequence[Cell]) -> list[int]:
    """All ranks of these cells, sorted."""
    return sorted({rank for cell in found for rank in (cell.src, cell.dst)})
