"""How long the iterations of a job took by NCCL's Inspector: it writes calls down in batches, so a batch's time over its number of iterations.

1. A process' calls in the order of their file; an id is the communicator, operation and size. Their period is that of recorded calls
   (rca/analyses/_call_period.py).
2. A batch holds some calls and ends when it was written. The time since the batch before, over the iterations that its calls are, is the time of
   an iteration, for each batch one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from rca.analyses._call_period import period
from rca.types import Cite, Tables

__all__ = ["Batches", "inspected_paces"]

SAMPLED: Final = 4  # processes that are looked at
MIN_BATCHES: Final = 8
MIN_ITERATIONS: Final = 1.0  # of a batch: fewer calls than an iteration has tell of its parts


@dataclass(frozen=True)
class Batches:
    """Time of an iteration, s, per batch of a process; where each batch begins."""

    length: int  # calls of an iteration
    seconds: tuple[float, ...]
    rows: pl.DataFrame  # of each batch its first call: op, collective_seq_id, comm, logged_at, evidence_id, record

    def cite(self, number: int) -> Cite:
        """The first call of a batch."""
        row = self.rows.row(number, named=True)
        text = f"{row['op']} {row['collective_seq_id']} of {row['comm']}, written {row['logged_at']:%H:%M:%S} UTC"
        return Cite("nccl_calls", row["evidence_id"], "", row["record"], text)


def inspected_paces(case: Tables) -> list[Batches]:
    """Of up to SAMPLED processes, those whose order of calls repeats and that wrote enough batches; the one with most batches first."""
    told = case.table("nccl_calls").filter(pl.col("logged_at").is_not_null())
    process = ("evidence_id", "host", "pid")
    who = told.group_by(process).agg(pl.col("logged_at").n_unique().alias("n")).filter(pl.col("n") > MIN_BATCHES).sort(process).collect()
    step = max(1, -(-who.height // SAMPLED))
    chosen = who.select(process)[::step]
    if not chosen.height:
        return []
    columns = (*process, "comm", "op", "size_bytes", "collective_seq_id", "logged_at", "record")
    rows = told.filter(pl.col("evidence_id").is_in(chosen["evidence_id"].to_list())).select(columns).collect()
    rows = rows.join(chosen, on=process, how="semi", nulls_equal=True)
    found = []
    for _, frame in sorted(rows.group_by(process), key=lambda item: str(item[0])):
        line = pl.col("record").str.extract(r"([0-9]+)$").cast(pl.Int64, strict=False)
        calls = frame.sort("logged_at", line, "record")
        of = period(calls.select(pl.struct("comm", "op", "size_bytes").rank("dense").cast(pl.Int64)).to_series().to_numpy())
        if of is None:
            continue
        batches = calls.group_by("logged_at", maintain_order=True).agg(
            pl.len().alias("n"), pl.col("op", "collective_seq_id", "comm", "evidence_id", "record").first()
        )  # fmt: skip
        took = pl.col("logged_at").diff().dt.total_microseconds() / 1e6
        share = len(of.kept) / calls.height  # calls that are of no iteration are written down as well
        batches = batches.with_columns(took=took, num=pl.col("n") * share / of.length).filter(pl.col("took").is_not_null())
        batches = batches.filter(pl.col("num") >= MIN_ITERATIONS)
        if batches.height >= MIN_BATCHES:
            found.append(Batches(of.length, tuple((batches["took"] / batches["num"]).to_list()), batches))
    return sorted(found, key=lambda one: (-len(one.seconds), one.rows["evidence_id"][0]))
