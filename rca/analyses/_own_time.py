"""What each rank spends outside its recorded calls in an iteration, and what a call takes once all its members are there. No log is needed.

1. A call holds its rank from its start to its end, both by the clock of that rank. Recorders of NCCL see both (a start only with timing on: else
   the CPU's enqueueing stands for it). Gloo's see neither; there a call blocks, and ends when the last member has come, which only ranks of one
   host, and so of one clock, can tell of each other.
2. Own time: what lies between the end of all earlier calls and the start of the next one. Waiting for a late peer is inside a call and no part of
   it, so a slow rank has more of it than its peers although every rank's iteration takes equally long.
3. Iterations are told by a kind of group that all ranks have: so many of its calls are one. They bear the same numbers on all ranks. A recorder
   keeps but the last calls: where these are few iterations, each is cut into parts of equally many calls.
4. Transfer: the end of a call less the latest start among its members. As all see the same end, it is the shortest time that a member has
   spent in it, whatever the clocks; the wait of a member is what it has spent more.

Own waits by C4 (HPCA'25): whom all others wait for has the shortest. Compute against communication by Aegis (NSDI'25), GREYHOUND (ATC'25).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from rca.analyses._call_pace import Pace, group_kinds, paces
from rca.analyses._layout import hosts
from rca.types import Tables

__all__ = ["CallTimes", "call_times"]

MAX_ROWS: Final = 2_000_000  # calls that are looked at; of more the last ones of each rank and group
FEW: Final = 4  # calls of a rank in the marking kind at least
ENOUGH: Final = 20  # whole iterations by which ranks are compared: where they have fewer, these are cut into parts
MAX_PARTS: Final = 8
AHEAD: Final = 0.5  # of the calls
UNEVEN: Final = (
    0.1  # of the calls of a rank's stretch: one with many more (an evaluation) or fewer (a torn end) is no iteration like the others
)
_RANK: Final = 1 << 32  # iterations, or parts of them, that a rank may have


@dataclass(frozen=True)
class CallTimes:
    """Times of recorded calls, of ranks whose calls have an end. Frames are empty where there are none."""

    own: pl.DataFrame  # rank, iteration, own_s, began_at (by the rank's clock): whole iterations of a rank, or parts of them
    parts: int  # of an iteration; the numbers in `own` count parts
    iteration_s: float  # usual
    transfers: (
        pl.DataFrame
    )  # group_id, kind, op, sizes, seq, transfer_s, start (s since the first call): calls of which all members have both times
    has_p2p: bool  # False = there is a pipeline, and its transfers are on no record
    runs_ahead: bool  # no starts are recorded, and most calls are enqueued before the one before has ended: own time is the CPU's alone


def call_times(case: Tables) -> CallTimes:
    """Own times and transfers of a case. Made once by `case.derive`."""
    calls = _ended(case, _calls(case))
    kinds = group_kinds(case)
    has_p2p = bool(calls["is_p2p"].any()) or "pp" not in kinds["kind"].to_list()
    calls = calls.join(kinds, on="group_id", how="left", maintain_order="left")
    own, parts, iteration_s = _own(calls, _marker(calls, case.derive(paces)))
    early = (pl.col("start") < pl.col("end").cum_max().shift(1).over("rank")).fill_null(value=False)
    runs_ahead = bool(calls.height) and not calls["is_timed"].any() and bool(calls.select(early.mean() > AHEAD).item())
    return CallTimes(own, parts, iteration_s, _transfers(case, calls), has_p2p, runs_ahead)


def _calls(case: Tables) -> pl.DataFrame:
    """rank, group_id, record_id, seq, op, sizes, is_p2p; created, started, completed: microseconds since 1970."""
    table = case.table("collectives")
    rows = table.filter(pl.col("rank").is_not_null() & pl.col("created_at").is_not_null())
    if table.select(pl.col("rank").len()).collect().item() > MAX_ROWS:
        rows = rows.filter(pl.col("is_tail"))
    times = (pl.col(f"{name}_at").dt.epoch("us").alias(name) for name in ("created", "started", "completed"))
    seq, is_p2p = pl.col("collective_seq_id").alias("seq"), pl.col("is_p2p").fill_null(value=False)
    return rows.select("rank", "group_id", "record_id", seq, "op", "sizes", is_p2p, *times).collect()


def _ended(case: Tables, calls: pl.DataFrame) -> pl.DataFrame:
    """The calls in order of each rank, with start and end, s since the first of all; `is_timed`: both are the recorder's own.

    Parts of a batch of transfers never get times; the batch has them.
    """
    seen = pl.col("completed").is_not_null().any().over("rank")
    calls = calls.with_columns(seen=seen)
    calls = calls.filter(~(pl.col("seen") & pl.col("is_p2p") & pl.col("completed").is_null() & pl.col("started").is_null()))
    blind = calls.filter(~pl.col("seen"))
    # Only where nobody records an end: beside ranks that do, calls do not block, and when a CPU enqueued is no measure beside the times of others.
    if 0 < blind.height == calls.height:
        blind = blind.with_columns(host=pl.col("rank").replace_strict(hosts(case), default=None, return_dtype=pl.String))
        members = case.table("groups").group_by("group_id").agg(pl.col("size").max()).collect()
        met = blind.filter(~pl.col("is_p2p")).group_by("group_id", "seq").agg(
            pl.col("created").max().alias("last"), pl.col("host").n_unique().alias("hosts"), pl.col("host").null_count().alias("unknown"),
            pl.col("rank").n_unique().alias("n"),
        ).join(members, on="group_id", how="left")  # fmt: skip
        met = met.filter((pl.col("hosts") == 1) & (pl.col("unknown") == 0) & (pl.col("n") == pl.col("size"))).select(
            "group_id", "seq", "last"
        )
        calls = calls.join(met, on=["group_id", "seq"], how="left", maintain_order="left")
    else:
        calls = calls.with_columns(last=pl.lit(None, dtype=pl.Int64))
    first = calls["created"].min() or 0
    start = pl.coalesce("started", "created")
    return calls.select(
        "rank", "group_id", "record_id", "seq", "op", "sizes", "is_p2p",
        "created", ((start - first) / 1e6).alias("start"),
        ((pl.coalesce("completed", "last") - first) / 1e6).alias("end"),
        (pl.col("started").is_not_null() & pl.col("completed").is_not_null()).alias("is_timed"),
    ).sort("rank", "start", "record_id", nulls_last=True)  # fmt: skip


def _marker(calls: pl.DataFrame, told: Sequence[Pace]) -> tuple[str, int] | None:
    """The kind of group that all ranks have whose calls are fewest in an iteration, and how many; None where no kind is everybody's."""
    if not calls.height:
        return None
    num = calls["rank"].n_unique()
    by_kind = calls.filter(~pl.col("is_p2p")).group_by("kind", "rank").len().drop_nulls("kind").group_by("kind")
    used = by_kind.agg(pl.len().alias("ranks"), pl.col("len").median()).filter((pl.col("ranks") == num) & (pl.col("len") >= FEW))
    usual = told[0].per_kind if told else {}
    choices = [(usual.get(kind, 0) if usual else 1, -n, kind) for kind, n in used.select("kind", "len").sort("kind").iter_rows()]
    choices = [choice for choice in choices if choice[0] > 0]
    return (min(choices)[2], min(choices)[0]) if choices else None


_OWN: Final[dict[str, Any]] = {"rank": pl.Int64, "iteration": pl.Int64, "own_s": pl.Float64, "began_at": pl.Datetime("us", "UTC")}


def _own(calls: pl.DataFrame, marker: tuple[str, int] | None) -> tuple[pl.DataFrame, int, float]:
    """Own times, parts of an iteration, usual time of one. Where some calls have no end, what follows them is left out, for all ranks alike."""
    if marker is None:
        return pl.DataFrame(schema=_OWN), 1, 0.0
    kind, count = marker
    marks = (pl.col("kind") == kind) & ~pl.col("is_p2p")
    is_own = pl.col("rank") == pl.col("rank").shift(1)  # calls are sorted by rank: the row before is of the same one
    end, latest = (pl.when(is_own).then(of.shift(1)) for of in (pl.col("end"), pl.col("end").cum_max().over("rank")))
    told = calls.select(
        "rank", "created", is_first=marks & (pl.col("seq") % count == 0), mark=pl.when(marks).then(pl.col("seq") // count),
        gap=pl.when(end.is_not_null()).then((pl.col("start") - latest).clip(lower_bound=0)),
    )  # fmt: skip
    marked = pl.when(pl.col("mark").is_not_null()).then("rank").forward_fill()
    told = told.with_columns(iteration=pl.when(marked == pl.col("rank")).then(pl.col("mark").forward_fill()))
    opened = _by_iteration(told.filter(pl.col("is_first")), pl.col("created").min()).sort("rank", "iteration")
    after = pl.col("iteration").shift(-1).over("rank")
    spans = opened.with_columns(took=(pl.col("created").shift(-1).over("rank") - pl.col("created")) / 1e6, next=after)
    spans = spans.filter(pl.col("next") == pl.col("iteration") + 1).select("rank", "iteration", "took")
    if not spans.height:
        return pl.DataFrame(schema=_OWN), 1, 0.0
    usual = spans.group_by("rank").len()["len"].median()
    parts = 1 if isinstance(usual, float) and usual >= ENOUGH else MAX_PARTS
    # The time before a call is of the iteration of the call before it.
    told = told.select("rank", "gap", *(pl.when(is_own).then(pl.col(name).shift(1)).alias(name) for name in ("iteration", "created")))
    if parts > 1:
        place = pl.int_range(pl.len()).over("rank", "iteration") * parts // pl.len().over("rank", "iteration")
        told = told.filter(pl.col("iteration").is_not_null()).with_columns(pl.col("iteration") * parts + place)
    own = _by_iteration(told, pl.col("gap").sum().alias("own_s"), pl.col("gap").count().alias("n"), pl.col("created").min().alias("began"))
    own = own.join(spans, left_on=("rank", pl.col("iteration") // parts), right_on=("rank", "iteration"), how="semi")
    most = pl.col("n").median().over("rank")
    own = own.filter((pl.col("n") > 0) & ((pl.col("n") - most).abs() <= UNEVEN * most + 1))
    began = pl.col("began").cast(pl.Datetime("us")).dt.replace_time_zone("UTC").alias("began_at")
    took = spans["took"].median()
    own = own.select("rank", "iteration", "own_s", began).cast(pl.Schema(_OWN)).sort("rank", "iteration")
    return own, parts, took if isinstance(took, float) else 0.0


def _by_iteration(rows: pl.DataFrame, *what: pl.Expr) -> pl.DataFrame:
    """rank, iteration and what is asked of the rows of each. One number stands for both: a sorted one is four times as fast."""
    rows = rows.filter(pl.col("iteration").is_not_null()).with_columns(key=pl.col("rank") * _RANK + pl.col("iteration"))
    if rows["key"].is_sorted():
        rows = rows.with_columns(pl.col("key").set_sorted())
    return (
        rows.group_by("key")
        .agg(*what)
        .select((pl.col("key") // _RANK).alias("rank"), (pl.col("key") % _RANK).alias("iteration"), pl.all().exclude("key"))
    )


def _transfers(case: Tables, calls: pl.DataFrame) -> pl.DataFrame:
    sizes = case.table("groups").group_by("group_id").agg(pl.col("size").max()).collect()
    timed = calls.lazy().filter(pl.col("is_timed") & ~pl.col("is_p2p") & (pl.col("end") >= pl.col("start")))
    spent = (pl.col("end") - pl.col("start")).min().alias("transfer_s")
    told = (pl.col("kind").first(), spent, pl.col("start").max(), pl.col("op", "sizes").min(), pl.len().alias("n"))
    took = timed.group_by("group_id", "seq").agg(told).collect()
    took = took.join(sizes, on="group_id", how="left").filter(pl.col("n") == pl.col("size"))
    return took.select("group_id", "kind", "op", "sizes", "seq", "transfer_s", "start").sort("group_id", "seq")
