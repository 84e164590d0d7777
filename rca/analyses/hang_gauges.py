"""Which ranks does a monitor (xpu_timer) say hang?

1. Take the last state of each rank. The gauge is 1 where an operation that the rank launched does not end: so waits whoever waits for another.
2. Where all hang, nobody is named by it. Where some do, they wait: the others either make no call, or are of a group that goes on. Both are a
   note for a person and accuse nobody; who is awaited dumps, stacks or RAS tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from rca.analyses._words import ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("rank_states",)
USES = ()
SIGNS = {"all_hang": Sign("mention", (), is_note=True), "some_hang": Sign("mention", (), is_note=True)}

MAX_CITES: Final = 6


def analyse(case: Tables) -> Sequence[Finding]:
    """A note where ranks hang; NotEnoughEvidence where no state is told."""
    rows = case.table("rank_states").filter(pl.col("rank").is_not_null() & pl.col("is_hang").is_not_null())
    place = pl.col("record").str.extract(r"([0-9]+)").cast(pl.Int64)
    last = rows.sort("logged_at", "evidence_id", place, nulls_last=False).group_by("rank").last().sort("rank").collect()
    states = {row["rank"]: row for row in last.iter_rows(named=True)}
    if not states:
        raise NotEnoughEvidence("no state of a rank is told")
    hang = [rank for rank, row in states.items() if row["is_hang"]]
    rest = [rank for rank in states if rank not in set(hang)]
    if not hang:
        return ()
    cites = tuple(Cite("rank_states", states[r]["evidence_id"], "", states[r]["record"], f"rank {r} hangs") for r in hang[:MAX_CITES])
    if not rest:
        says = f"a monitor says that all {len(hang)} ranks hang: each waits for another, so it names nobody"
        return [Finding("hang_gauges", "all_hang", says, scope="all", cites=cites)]
    says = (
        f"a monitor says that {ranks_text(hang)} hang, and not {ranks_text(rest)}: who hangs waits for a call to end. The others make none, "
        "or go on in groups of their own; the gauge has no time and accuses nobody"
    )
    return [Finding("hang_gauges", "some_hang", says, scope="some", numbers={"hang": hang, "do_not": rest}, cites=cites)]
