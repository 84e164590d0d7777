"""How far the clocks of two hosts are apart, by what their ranks did together. Pure.

A member cannot see a collective end before the last member has made the call, and a rank cannot end a step before the others have begun it: each
bounds the difference of two clocks from one side, all together from both.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import polars as pl

from rca.types import Tables

__all__ = ["hosts_of_ranks", "offsets"]

ALL_WAIT: Final = "(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier"  # a broadcast may be over for its source at once


def offsets(case: Tables) -> dict[str, tuple[float, float]]:
    """host -> (offset, error) of its clock in s, against the host that most others are tied to; hosts that nothing ties are missing."""
    return _offsets([*_call_bounds(case), *_step_bounds(case)])


@dataclass(frozen=True)
class _Bound:
    """The clock of `host` is at least `low_s` ahead of that of `hub`."""

    hub: str
    host: str
    low_s: float


def hosts_of_ranks(case: Tables) -> pl.LazyFrame:
    """rank, host: where all sources that name one agree."""
    named = pl.concat([case.table(table).select("rank", "host").drop_nulls() for table in ("ranks", "steps")]).unique()
    return named.group_by("rank").agg(pl.col("host").first(), pl.len().alias("n")).filter(pl.col("n") == 1).select("rank", "host")


def _call_bounds(case: Tables) -> list[_Bound]:
    """Bounds from recorded collectives: nobody sees the end before everybody has made the call."""
    calls = case.table("collectives").filter(
        pl.col("rank").is_not_null() & pl.col("collective_seq_id").is_not_null() & pl.col("op").str.contains(ALL_WAIT)
    )
    return _bounds(case, calls, ["group_id", "collective_seq_id"], pl.col("created_at"), pl.col("completed_at"))


def _step_bounds(case: Tables) -> list[_Bound]:
    """Bounds from step timings: no rank ends a step, whose gradients it shares with the others, before the others have begun it."""
    end = pl.col("started_at") + pl.duration(microseconds=(pl.col("step_s") * 1e6).round().cast(pl.Int64))
    return _bounds(case, case.table("steps").drop("host").filter(pl.col("rank").is_not_null()), ["step"], pl.col("started_at"), end)


def _bounds(case: Tables, rows: pl.LazyFrame, key: list[str], begin: pl.Expr, end: pl.Expr) -> list[_Bound]:
    """For each shared event, a host's latest begin against the hub's earliest end, and the other way round; the tightest of all events.

    The hub of a group is the host, first by name, that takes part: so the work grows with the rows, not with pairs of hosts.
    """
    group = key[:-1]
    seen = (
        rows.join(hosts_of_ranks(case), on="rank", how="inner")
        .group_by([*key, "host"])
        .agg(begin.max().alias("begin"), end.min().alias("end"))
    )
    hubs = seen.group_by(group).agg(pl.col("host").min().alias("hub")) if group else seen.select(pl.col("host").min().alias("hub"))
    with_hub = seen.join(hubs, on=group, how="inner") if group else seen.join(hubs, how="cross")
    of_hub = with_hub.filter(pl.col("host") == pl.col("hub")).select(
        *key, pl.col("begin").alias("hub_begin"), pl.col("end").alias("hub_end")
    )
    ahead, behind = pl.col("begin") - pl.col("hub_end"), pl.col("hub_begin") - pl.col("end")
    told = (
        with_hub.filter(pl.col("host") != pl.col("hub"))
        .join(of_hub, on=key, how="inner")
        .group_by("hub", "host")
        .agg(ahead.dt.total_microseconds().max().alias("ahead"), behind.dt.total_microseconds().max().alias("behind"))
        .collect()
    )
    found = [_Bound(hub, host, us / 1e6) for hub, host, us, _ in told.iter_rows() if us is not None]
    return found + [_Bound(host, hub, us / 1e6) for hub, host, _, us in told.iter_rows() if us is not None]


def _offsets(bounds: Iterable[_Bound]) -> dict[str, tuple[float, float]]:
    """host -> (offset, error) against the host that most others are tied to, over the ties with the smallest error."""
    lows: dict[tuple[str, str], float] = {}
    for bound in bounds:
        key = (bound.hub, bound.host)
        lows[key] = max(lows.get(key, bound.low_s), bound.low_s)
    ties: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    for (hub, host), low in lows.items():
        other = lows.get((host, hub))
        if other is not None and low <= -other:  # an empty interval: the clock was set meanwhile, or the calls are not the same ones
            ties[hub][host] = ((low - other) / 2, (-other - low) / 2)
    if not ties:
        return {}
    reference = max(sorted(ties), key=lambda h: len(ties[h]))
    found: dict[str, tuple[float, float]] = {}
    queue = [(0.0, reference, 0.0)]
    while queue:
        error, host, offset = heapq.heappop(queue)
        if host in found:
            continue
        found[host] = (offset, error)
        for other_host, (step, step_error) in sorted(ties[host].items()):
            if other_host not in found:
                heapq.heappush(queue, (error + step_error, other_host, offset + step))
    return found
