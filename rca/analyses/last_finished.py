"""Which ranks' last finished call of a communicator lies behind that of their peers?

1. NCCL's Inspector writes down what ended, in batches: a call that hangs is a gap, and a last batch may be missing. Of each communicator and kind of
   call take the last number that each rank finished, from files that were written until about the same time.
2. A rank that finished BEHIND or more calls fewer than the furthest one is named in a note. It accuses nobody: who waits in a call finishes as
   little as who never made it. It tells where to look, and in which communicator.
3. The call that took longest against the median of its kind and size is a note too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

import polars as pl

from rca.analyses._words import ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("nccl_calls",)
USES = ()
SIGNS = {"behind": Sign("mention", (), is_note=True), "slow_call": Sign("mention", (), is_note=True)}

BEHIND: Final = 2  # calls: one may be in a batch that was not written yet
APART: Final = timedelta(seconds=60)  # between the last batches of two ranks: the files of one that is older end earlier
SLOW: Final = 10.0  # times the median of calls of the same kind, size and communicator
MIN_CALLS: Final = 20  # of which a median is taken
MIN_SLOW_S: Final = 0.1
MAX_CITES: Final = 6
_CALL: Final = ("comm", "op", "group_rank", "collective_seq_id", "exec_s", "size_bytes", "logged_at", "evidence_id", "record")


def analyse(case: Tables) -> Sequence[Finding]:
    """Notes; NotEnoughEvidence where no call says whose it is."""
    calls = case.table("nccl_calls").filter(pl.col("comm").is_not_null() & pl.col("group_rank").is_not_null() & ~pl.col("is_p2p"))
    told = calls.select(_CALL)
    if told.head(1).collect().is_empty():
        raise NotEnoughEvidence("no finished collective names its communicator and rank")
    return [*_behind(told), *_slow(told)]


def _behind(told: pl.LazyFrame) -> Iterator[Finding]:
    """Communicators in which ranks finished fewer calls."""
    order = ("collective_seq_id", "logged_at", "evidence_id", "record")
    last = told.filter(pl.col("collective_seq_id").is_not_null()).sort(order, nulls_last=False).group_by("comm", "op", "group_rank").last()
    until = told.group_by("comm", "group_rank").agg(until=pl.col("logged_at").max())
    rows = last.join(until, on=["comm", "group_rank"]).sort("comm", "op", "group_rank").collect()
    for (comm, op), frame in sorted(rows.group_by("comm", "op"), key=lambda item: str(item[0])):
        ranks = frame.rows(named=True)
        most = max(row["collective_seq_id"] for row in ranks)
        written = [row["until"] for row in ranks if row["until"] is not None]
        late = [row for row in ranks if most - row["collective_seq_id"] >= BEHIND and (not written or row["until"] >= max(written) - APART)]
        if late and len(late) < len(ranks):
            names = ranks_text([row["group_rank"] for row in late])
            least = min(row["collective_seq_id"] for row in late)
            says = (
                f"in communicator {comm} (its own numbering) {names} finished {op} number {least} last, others {most}: only what ended is written "
                "down, so who waits in a call looks the same as who never made it"
            )
            cites = tuple(
                Cite("nccl_calls", row["evidence_id"], "", row["record"], f"{op} {row['collective_seq_id']} of rank {row['group_rank']}")
                for row in late[:MAX_CITES]
            )
            yield Finding("last_finished", "behind", says, scope=f"{comm} {op}", cites=cites)


def _slow(told: pl.LazyFrame) -> list[Finding]:
    """The longest call against others of its kind."""
    kinds = ["comm", "op", "size_bytes"]
    usual = told.filter(pl.col("exec_s") > 0).group_by(kinds).agg(usual=pl.col("exec_s").median(), number=pl.len())
    slow = told.join(usual.filter(pl.col("number") >= MIN_CALLS), on=kinds).filter(
        (pl.col("exec_s") > SLOW * pl.col("usual")) & (pl.col("exec_s") > MIN_SLOW_S)
    )
    rows = slow.sort("exec_s", "evidence_id", "record", descending=[True, False, False]).head(MAX_CITES).collect().rows(named=True)
    if not rows:
        return []
    row = rows[0]
    says = (
        f"{row['op']} number {row['collective_seq_id']} of communicator {row['comm']} took {row['exec_s']:.3g} s on its rank {row['group_rank']}, "
        f"others of its kind {row['usual']:.3g} s: waiting for a late rank counts as time of the call"
    )
    cites = tuple(Cite("nccl_calls", r["evidence_id"], "", r["record"], f"{r['op']}: {r['exec_s']:.3g} s") for r in rows)
    return [Finding("last_finished", "slow_call", says, scope="slow", cites=cites)]
