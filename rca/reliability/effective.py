"""Which part of a job's time trained: effective training time ratio.

1. A job's time is cut into stretches: its spells (rca/reliability/ledger.py) within the window. Each weighs as many GPUs as its launch had.
2. Nothing new is computed during an incident, between two launches, and while steps are done a second time after it. These moments are joined,
   so that each counts once, however many incidents share it.
3. ratio = (time - those moments) / time. What is not recorded cannot be taken off: the ratio is then an upper bound, and says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final

import polars as pl

from rca.reliability import formulas
from rca.reliability.ledger import NEAR, Interval, Ledger, Spell, clipped, length_s, union
from rca.reliability.window import Figure, Window

__all__ = ["effective", "is_seen", "stretches", "unexplained_h"]

HOUR_S: Final = 3600.0


def stretches(ledger: Ledger, window: Window) -> list[tuple[Spell, Interval]]:
    """Spells that reach into the window, cut at its edges; one that is still running reaches up to its end."""
    span = (window.start, window.end)
    cut = ((spell, clipped([(spell.started_at, spell.ended_at or max(window.end, spell.started_at))], span)) for spell in ledger.spells)
    return [(spell, parts[0]) for spell, parts in cut if parts]


def is_seen(ledger: Ledger, window: Window) -> bool:
    """Whether any job is known to have run in the window: only then is no incident a 0."""
    return bool(stretches(ledger, window))


def effective(ledger: Ledger, window: Window) -> Iterable[Figure]:
    """Effective training time ratio, weighted by GPUs: 1 - (incidents, gaps between launches and recomputation, each moment once) / wall.

    The second leaves out of both sides what was lost to planned stops alone.
    """
    wall = lost = only_planned = 0.0
    unsized = 0
    held, planned = _held_up(ledger, only_failures=False), _held_up(ledger, only_failures=True)
    parts = stretches(ledger, window)
    for spell, part in parts:
        if spell.num_gpus is None:
            unsized += 1
            continue
        wall += length_s([part]) * spell.num_gpus
        everything = length_s(clipped(held[spell.job_id], part)) * spell.num_gpus
        lost += everything
        only_planned += everything - length_s(clipped(planned[spell.job_id], part)) * spell.num_gpus
    reach = ledger.incidents.filter((pl.col("at") < window.end) & (pl.col("kind") != "none"))
    open_ended = reach.filter((pl.col("at") >= window.start) & (pl.col("recovered_at").is_null() | pl.col("recomputed_s").is_null())).height
    why = None if wall else "no launch with its number of GPUs is recorded of this time"
    if wall and open_ended:
        why = f"at most: of {open_ended} interruptions the end or the recomputation is not recorded"
    for name, says, whole in (
        ("effective_ratio", "effective training time / time under way, in GPU hours", wall),
        ("effective_ratio_unplanned", "the same without the time lost to planned stops alone", wall - only_planned),
    ):
        kept = (wall - lost) / HOUR_S
        yield Figure(
            name, says, formulas.share(kept, whole / HOUR_S), "", kept if wall else None, whole / HOUR_S if wall else None,
            n=len(parts) - unsized, left_out=unsized + open_ended, why=why,
        )  # fmt: skip


def _held_up(ledger: Ledger, *, only_failures: bool) -> Mapping[str, list[Interval]]:
    """By job the moments at which nothing new was computed, as far as is recorded. A gap between launches that a planned stop overlaps is that
    stop's; one that no incident overlaps counts among the failures' time, since nobody planned it."""
    found: dict[str, list[Interval]] = defaultdict(list)
    plans: dict[str, list[Interval]] = defaultdict(list)
    for row in ledger.incidents.filter(pl.col("at").is_not_null() & (pl.col("kind") != "none")).iter_rows(named=True):
        spans = [(row["at"], row["until"])] if row["until"] else []
        if row["recovered_at"] and row["recomputed_s"]:
            spans.append((row["recovered_at"], row["recovered_at"] + timedelta(seconds=row["recomputed_s"])))
        (plans if row["kind"] == "planned" else found)[row["job_id"]] += spans
    planned = {job: union(spans) for job, spans in plans.items()}
    for job, gaps in _gaps(ledger).items():
        found[job] += [gap for gap in gaps if not (only_failures and clipped(planned.get(job, ()), gap))]
    if not only_failures:
        for job, spans in plans.items():
            found[job] += spans
    return defaultdict(list, {job: union(spans) for job, spans in found.items()})


def _gaps(ledger: Ledger) -> Mapping[str, list[Interval]]:
    """Time of each job between the end of a launch and the next launch."""
    found: dict[str, list[Interval]] = defaultdict(list)
    for spell in ledger.spells:
        if spell.stopped_at is not None and spell.ended_at is not None and spell.stopped_at < spell.ended_at:
            found[spell.job_id].append((spell.stopped_at, spell.ended_at))
    return found


def unexplained_h(ledger: Ledger, window: Window) -> float:
    """Hours between two launches of a job in which no incident is recorded, h: a record is missing, or somebody stopped it without a word."""
    told: dict[str, list[Interval]] = defaultdict(list)
    for row in ledger.incidents.filter(pl.col("at").is_not_null()).iter_rows(named=True):
        told[row["job_id"]].append((row["at"], max(row["until"] or row["at"], row["at"] + timedelta(seconds=1))))
    span = (window.start, window.end)
    silent = []
    for job, gaps in _gaps(ledger).items():
        known = union(told[job])
        silent += clipped([gap for gap in gaps if not clipped(known, (gap[0] - NEAR, gap[1]))], span)
    return length_s(silent) / HOUR_S
