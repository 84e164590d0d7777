"""Transfers of whole groups, call by call, and where each group stands in the job: what sibling groups are compared by.

From recorders (calls of which all members have a start and an end) and from NCCL's Inspector (calls of which all ranks of the communicator wrote
their time). The transfer is the shortest time that a member has spent in the call: whoever came before the last one has also waited.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from rca.analyses._job_logs import READS as LOG_READS
from rca.analyses._job_logs import job_logs
from rca.analyses._layout import hosts, stages
from rca.analyses._nccl_ranks import ranks_of
from rca.analyses._own_time import call_times
from rca.types import Cite, Tables

__all__ = ["READS", "Place", "cite_calls", "group_transfers", "members_of", "places"]

READS: Final = tuple(sorted({*LOG_READS, "ranks", "steps", "dump_index", "log_events", "host_addresses", "groups", "memberships"}))
MIN_S: Final = 1e-6  # of a transfer: less is no time
_SHAPE: Final = {"group": pl.String, "call": pl.String, "number": pl.Int64, "transfer_s": pl.Float64, "table": pl.String}


@dataclass(frozen=True)
class Place:
    """Where a group stands: groups of one place do the same work."""

    kind: str
    stage: str
    size: int
    num_hosts: int  # 0 = not known

    @property
    def text(self) -> str:
        """As in a finding."""
        return f"{self.kind} groups of {self.size}{f' on {self.num_hosts} hosts' if self.num_hosts > 1 else ''}"


def group_transfers(case: Tables) -> pl.DataFrame:
    """group, call (operation and size), number, transfer_s, table: collectives only, in the order of the group's calls."""
    told = case.derive(call_times).transfers
    recorded = told.select(
        pl.col("group_id").alias("group"), pl.concat_str(pl.col("op").fill_null(""), pl.lit(" "), pl.col("sizes").fill_null("")).alias("call"),
        pl.col("seq").alias("number"), "transfer_s", pl.lit("collectives").alias("table"),
    )  # fmt: skip
    rows = case.table("nccl_calls").filter(
        ~pl.col("is_p2p") & pl.all_horizontal(pl.col("comm", "group_rank", "group_size", "collective_seq_id", "exec_s").is_not_null())
    )
    calls = rows.group_by("comm", "op", "collective_seq_id").agg(
        pl.col("exec_s").min().alias("transfer_s"), pl.col("group_rank").n_unique().alias("n"), pl.col("group_size", "size_bytes").max()
    )
    size = pl.col("size_bytes").cast(pl.String).fill_null("")
    inspected = calls.filter(pl.col("n") == pl.col("group_size")).select(
        pl.col("comm").alias("group"), pl.concat_str("op", pl.lit(" "), size).alias("call"), pl.col("collective_seq_id").alias("number"),
        "transfer_s", pl.lit("nccl_calls").alias("table"),
    ).collect()  # fmt: skip
    every = pl.concat([recorded.cast(_SHAPE), inspected.cast(_SHAPE)])  # type: ignore[arg-type]
    return every.filter(pl.col("transfer_s") >= MIN_S).sort("group", "number", "call")


def members_of(case: Tables) -> dict[str, frozenset[int]]:
    """Group, or communicator whose processes are all known -> its global ranks."""
    found: dict[str, set[int]] = defaultdict(set)
    for group, rank in case.table("memberships").select("group_id", "rank").drop_nulls().unique().collect().iter_rows():
        found[group].add(rank)
    columns = ("comm", "group_rank", "host", "pid", "group_size")
    who = case.table("nccl_calls").select(columns).drop_nulls(("comm", "group_rank")).unique().collect().sort(columns)
    if who.height:
        known = ranks_of(case, case.derive(job_logs))
        for comm, of, host, pid, size in who.iter_rows():
            if (rank := known.rank(host, pid, of, size)) is not None:
                found[comm].add(rank)
    return {group: frozenset(ranks) for group, ranks in sorted(found.items())}


def places(case: Tables, members: dict[str, frozenset[int]]) -> dict[str, Place]:
    """Group or communicator -> its place; a communicator's kind is not told, so its size and hosts stand for it."""
    stage, where = stages(case), hosts(case)
    found: dict[str, Place] = {}
    kinds = (
        case.table("groups").filter(pl.col("group_id").is_not_null()).group_by("group_id").agg(pl.col("kind").min(), pl.col("size").max())
    )
    for group, kind, size in kinds.sort("group_id").collect().iter_rows():
        of = members.get(group, frozenset())
        at = {str(stage[rank]) if rank in stage else "" for rank in of}
        on = {where.get(rank, "") for rank in of}
        found[group] = Place(kind or "unknown", at.pop() if len(at) == 1 else "several", size or len(of), 0 if "" in on else len(on))
    rows = case.table("nccl_calls").filter(pl.col("comm").is_not_null()).group_by("comm").agg(pl.col("group_size", "num_hosts").max())
    for comm, size, num in rows.sort("comm").collect().iter_rows():
        found[comm] = Place("communicator", "", size or 0, num or 0)
    return found


def cite_calls(case: Tables, group: str, table: str, numbers: Sequence[int]) -> tuple[Cite, ...]:
    """A row of each of these calls of a group, the shortest one: that of the member that came last."""
    if table == "nccl_calls":
        rows = case.table(table).filter((pl.col("comm") == group) & pl.col("collective_seq_id").is_in(list(numbers)))
        took = pl.col("exec_s")
    else:
        rows = case.table(table).filter(
            (pl.col("group_id") == group) & pl.col("collective_seq_id").is_in(list(numbers)) & ~pl.col("is_p2p")
        )
        took = (pl.col("completed_at") - pl.col("started_at")).dt.total_microseconds() / 1e6
    found = rows.select("collective_seq_id", "op", "evidence_id", "record", took.alias("took")).drop_nulls("took").collect()
    found = found.sort("collective_seq_id", "took", "evidence_id", "record").unique("collective_seq_id", keep="first", maintain_order=True)
    return tuple(
        Cite(table, row["evidence_id"], "", row["record"], f"{row['op']} #{row['collective_seq_id']} of {group}: {row['took']:.3g} s")
        for row in found.iter_rows(named=True)
    )
