"""Which ranks were there when the job stood still: what raised and ended leaves its peers ahead of it, and no trace at all.

A line without an instant may be of any launch, or any job, that left its log here. Where the rank that wrote it was found waiting in a call that it
and its peers had all made, its process was there, and nothing of its own had stopped it. Who was found in its program, wherever it stood there, had
not ended.
"""

from __future__ import annotations

import polars as pl

from rca.analyses._stack_views import WAITS_FOR_OTHERS, main_motion, main_views, seen
from rca.types import Tables

__all__ = ["kept_up", "was_there"]

MIN_SAMPLES = 2  # of a main thread that stood still
_MODULE = ":<module>"  # the outermost frame of a program that has not ended; what runs at its exit has none


def was_there(case: Tables) -> frozenset[int]:
    """Ranks that were found in the midst of their program while the job stood still; those whose recorder answered when others waited, which that of
    an ended process does not; and those that kept up."""
    _, motion = case.derive(main_motion)
    views = case.derive(main_views) if motion.is_known and not motion.job_moves else {}
    inside = {rank for rank in motion.still if (shown := seen(views.get(rank, ()))) and (shown[-1].frames or ("",))[-1].endswith(_MODULE)}
    waiting = _by_dumps(case)
    dumped = case.table("group_status").select(pl.col("rank").drop_nulls().unique()).collect()["rank"].to_list() if waiting else []
    return case.derive(kept_up) | inside | frozenset(dumped)


def kept_up(case: Tables) -> frozenset[int]:
    """Ranks that a recorder dump shows waiting in a call, for a peer that has not made it or behind no peer anywhere, or that stood in a wait for
    others in every sample of a job that did not move."""
    return _by_dumps(case) | _by_stacks(case)


def _by_dumps(case: Tables) -> frozenset[int]:
    """By the numbers of the calls in the headers: it waits where another dumped rank has made fewer calls, or no other has made more anywhere.
    Transfers are counted by each rank alone."""
    status = case.table("group_status").filter(pl.col("counts").fill_null("collectives") == "collectives")
    status = status.select("rank", "group_id", "last_enqueued", "last_completed").drop_nulls()
    if not status.head(1).collect().height:
        return frozenset()
    made = pl.col("last_enqueued")
    told = status.with_columns(
        most=made.max().over("group_id"), least=made.min().over("group_id"), dumped=pl.col("rank").n_unique().over("group_id")
    )
    shared, waits = pl.col("dumped") > 1, made > pl.col("last_completed")
    found = (
        told.group_by("rank")
        .agg(
            has_peers=shared.any(),
            is_behind=(shared & (made < pl.col("most"))).any(),
            is_ahead=(shared & waits & (made > pl.col("least"))).any(),
            waits=(shared & waits).any(),
        )
        .filter(pl.col("has_peers") & pl.col("waits") & (pl.col("is_ahead") | ~pl.col("is_behind")))
    )
    return frozenset(found.collect()["rank"].to_list())


def _by_stacks(case: Tables) -> frozenset[int]:
    """By what the main threads waited for."""
    _, motion = case.derive(main_motion)
    if motion.job_moves:
        return frozenset()
    views = case.derive(main_views)
    return frozenset(
        rank for rank in motion.still if len(views[rank]) >= MIN_SAMPLES and all(view.wait_kind in WAITS_FOR_OTHERS for view in views[rank])
    )
