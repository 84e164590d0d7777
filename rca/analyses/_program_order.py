"""Where a rank's order of calls parts from that of its pipeline stage, over all that the recorder kept.

Ranks of a stage run one program, so the same number of recording means the same call on all of them. A rank that leaves a call out, makes one
twice or swaps two has another call at that number and from there on, long before the orders cross and the job stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

import polars as pl

from rca.types import Tables

__all__ = ["Parted", "parted"]

MIN_SAME = 8  # calls before the place in which the rank made what its stage made
MIN_VOTES = 2  # peers that made the same call there
MAX_ODD = 1 / 3  # of a stage's ranks: more than these are no odd ones, the stage has several programs


@dataclass(frozen=True)
class Parted:
    """A rank, the first number of recording at which its call is another, a peer with the call of most, and how many made that."""

    rank: int
    order: int
    peer: int
    votes: int
    sign: str  # skipped_call, extra_call, odd_op


def parted(case: Tables, stage: Mapping[int, Hashable], without: Collection[int]) -> list[Parted]:
    """The first rank or ranks of each stage whose order of calls parts from that of most. `without`: ranks whose last calls are missing."""
    numbers = {name: place for place, name in enumerate(dict.fromkeys(stage.values()))}
    places = pl.DataFrame(
        [(rank, numbers[name]) for rank, name in stage.items()], schema={"rank": pl.Int64, "stage": pl.Int64}, orient="row"
    )
    rows = (
        case.table("collectives")
        .filter(pl.col("rank").is_not_null() & pl.col("record_id").is_not_null() & ~pl.col("rank").is_in(list(without)))
        .select("rank", "record_id", pl.col("group_id").fill_null("?").str.extract(r"^([^:?]*)").alias("kind"), pl.col("op").fill_null("?"))
        .join(places.lazy(), on="rank", how="inner")
        .with_columns(pl.concat_str("kind", pl.lit(" "), "op").alias("call"))
        .with_columns(pl.col("record_id").min().over("rank").max().over("stage").alias("start"))
        .filter(pl.col("record_id") >= pl.col("start"))
        .collect()
    )
    code = pl.col("call").cast(pl.Categorical).to_physical()  # numbers are compared three times as fast as texts
    at = rows.group_by("stage", "record_id").agg((code.min() != code.max()).alias("differ"), pl.col("start").first()).filter("differ")
    is_late = pl.col("record_id") - pl.col("start") >= MIN_SAME
    odd_places = at.filter(is_late).sort("record_id")
    too_early = set(at.filter(~is_late)["stage"].to_list())
    found: list[Parted] = []
    for number in sorted(set(odd_places["stage"].to_list()) - too_early):
        order = int(odd_places.filter(pl.col("stage") == number)["record_id"][0])
        near = rows.filter((pl.col("stage") == number) & pl.col("record_id").is_in([order, order + 1]))
        calls = {(rank, place): call for rank, place, call in near.select("rank", "record_id", "call").iter_rows()}
        here = {rank: call for (rank, place), call in calls.items() if place == order}
        most, votes = Counter(here.values()).most_common(1)[0]
        odd = sorted(rank for rank, call in here.items() if call != most)
        if votes < MIN_VOTES or len(odd) > MAX_ODD * len(here):
            continue
        peer = min((rank for rank, call in here.items() if call == most), key=lambda rank: ((rank, order + 1) not in calls, rank))
        found += [Parted(rank, order, peer, votes, _sign(calls, rank, peer, order)) for rank in odd]
    return found


def _sign(calls: Mapping[tuple[int, int], str], rank: int, peer: int, order: int) -> str:
    """What the rank did to have another call there, by what comes next on both."""
    own, due = calls[rank, order], calls[peer, order]
    own_next, due_next = calls.get((rank, order + 1)), calls.get((peer, order + 1))
    if own == due_next and own_next != due:
        return "skipped_call"
    if own_next == due and own != due_next:
        return "extra_call"
    return "odd_op"
