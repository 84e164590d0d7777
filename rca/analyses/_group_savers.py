"""The rank whose checkpoint thread or process alone is busy: a hang that the main threads do not show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from rca.analyses._stack_views import WAITS_FOR_OTHERS, View
from rca.types import Cite, Tables

__all__ = ["Saver", "lone_saver"]

RESTS = ("queue", "idle", "sleep", "lock")  # wait kinds of a saver between two saves
MIN_OTHERS = 2  # ranks whose savers were seen, or theirs is no exception


@dataclass(frozen=True)
class Saver:
    """What saves beside a main thread, and does not end."""

    rank: int
    what: str  # thread, process
    leaf: str
    num_others: int
    cites: tuple[Cite, ...]


def lone_saver(case: Tables, views: Mapping[int, Sequence[View]]) -> Saver | None:
    """The only rank with a saver that is at the same busy place in every sample of the rank; None where there is none, or several.

    A saver that rests, or waits for other ranks' savers, is none; so is one of a rank whose peers show no saver at all.
    """
    rows = (
        case.table("stacks")
        .filter(pl.col("rank").is_not_null() & (pl.col("dump_status") == "ok"))
        .filter((pl.col("thread_name") != "MainThread") | (pl.col("role") == "other"))
        .join(case.table("stack_frames").unique("stack_id", keep="first"), on="stack_id", how="inner", suffix="_frames")
        .filter(pl.col("activity") == "checkpoint")
        .sort("rank", "sample", "evidence_id", "record")
        .select("rank", "sample", "role", "stack_id", "lines", "leaf", "wait_kind", "shown", "evidence_id", "record")
        .collect()
    )
    of_rank: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows.iter_rows(named=True):
        of_rank[row["rank"]].append(row)
    stuck = {rank: found for rank, own in of_rank.items() if (found := _stuck(own, {v.sample for v in views.get(rank, ())}))}
    if len(stuck) != 1 or len(of_rank) - 1 < MIN_OTHERS:
        return None
    ((rank, own),) = stuck.items()
    cites = tuple(Cite("stacks", r["evidence_id"], "", r["record"], " < ".join(r["shown"] or [r["leaf"] or "?"])) for r in own)
    return Saver(rank, "process" if own[0]["role"] == "other" else "thread", own[0]["leaf"] or "native code", len(of_rank) - 1, cites)


def _stuck(rows: Sequence[Mapping[str, Any]], samples: set[int]) -> list[Mapping[str, Any]]:
    """The rows of a busy place that is in every sample of the rank, two at least."""
    busy: dict[tuple[str, str | None], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["wait_kind"] not in (*RESTS, *WAITS_FOR_OTHERS):
            busy[row["stack_id"], row["lines"]].append(row)
    for _, found in sorted(busy.items(), key=lambda item: (item[0][0], item[0][1] or "")):
        if len(samples) > 1 and {row["sample"] or 0 for row in found} >= samples:
            return list(found)
    return []
