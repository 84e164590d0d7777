"""Does one of two wait for the other at a call that no group of their kind made before? Then it made one too many, or the other left it out."""

from __future__ import annotations

import re

import polars as pl

from rca.analyses._wait_graph import Waits, group_kind
from rca.analyses._wait_words import awaited_calls
from rca.types import Tables

__all__ = ["new_to_both"]

MIN_BEFORE = 8  # calls of groups of one kind on record, that an operation may be called new to them
NUMBERS = "[0-9]+"  # in the names of transfers: `send 0->1`


def new_to_both(case: Tables, waits: Waits, rank: int) -> tuple[int, ...]:
    """The awaited rank and the only one that waits for it, in a group of two, at such a call; else ()."""
    call = next(iter(awaited_calls(waits, (rank,))), None)
    if call is None or len(waits.members.get(call.group_id, ())) != 2 or len(waits.waiters[call.node]) != 1:
        return ()
    of_kind = pl.col("group_id").str.extract(r"^([^:?]*)") == group_kind(call.group_id)
    is_it = (pl.col("evidence_id") == call.evidence_id) & (pl.col("record") == call.record)
    is_same = pl.col("op").str.replace_all(NUMBERS, "") == re.sub(NUMBERS, "", call.op)
    others = case.table("collectives").filter(of_kind & ~is_it).select(is_same.sum().alias("same"), pl.len().alias("all")).collect()
    same, every = others.row(0)
    return (rank, call.rank) if not same and every >= MIN_BEFORE else ()
