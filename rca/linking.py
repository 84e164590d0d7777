"""Raw files -> linked tables: every file read once, and what only several files tell together joined: ranks, hosts, groups, what is stale."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import polars as pl

from rca import belonging, local_ranks, topology
from rca.batches import Means, read_in_batches
from rca.case import UNFILTERED, MemoryCase
from rca.memory import without_gc
from rca.old_captures import old_captures
from rca.parts import Parts
from rca.reading import Originals, Progress, Reading, collectors, read_source, readings_frame
from rca.sources import Inventory
from rca.store import Store
from rca.tables import TABLES
from rca.topology import Hint
from rca.types import Source

__all__ = ["CALLS", "Read", "frames_of", "link", "read_all"]

Rows = TypeVar("Rows", pl.DataFrame, pl.LazyFrame)
CALLS = "collectives"  # linked where they lie, file by file: there are thousands of every rank


@dataclass
class Read:
    """Everything read from an inventory, before it is a case."""

    inventory: Inventory
    parts: Parts
    readings: list[Reading]
    frames: dict[str, pl.DataFrame]  # linked small tables


def read_all(
    inventory: Inventory, parts: Parts, progress: Progress | None = None, store: Store | None = None, means: Means | None = None
) -> Read:
    """Read every file of an inventory once: a copy (same bytes, and no name that tells of another host or rank) counts as its original.

    Much evidence is read in batches that are kept in the `store`, where there is one, with the given means; else one file after the other.
    """
    sources = sorted(inventory.sources, key=_best_named_first)
    total = sum(source.size_bytes for source in sources)
    with without_gc():
        means = means or Means()
        if store is not None and total >= means.many_bytes:
            readings = read_in_batches(sources, parts, store, means, progress)
        else:
            readings = _one_by_one(sources, parts, progress)
    if progress:
        progress(total, total, "")
    readings.sort(key=lambda r: r.source.path)
    return Read(inventory, parts, readings, link(parts, readings))


def _one_by_one(sources: Sequence[Source], parts: Parts, progress: Progress | None) -> list[Reading]:
    known, originals = collectors(), Originals()
    readings: list[Reading] = []
    done, total = 0, sum(source.size_bytes for source in sources)
    for source in sources:
        if progress:
            progress(done, total, source.path)
        done += source.size_bytes
        if (known_by := originals.instead(source)) is not None:
            readings.append(known_by)
            continue
        readings.append(reading := read_source(source, known, parts))
        originals.add(reading)
        source.__dict__.pop("head", None)  # 64 KiB a file would add up
    return readings


def _best_named_first(source: Source) -> tuple[bool, bool, bool, str]:
    """Of two files with the same bytes the one is read whose name says more."""
    return source.rank_said is None, source.host_said is None, source.rank_hint is None, source.path


def link(parts: Parts, readings: Sequence[Reading]) -> dict[str, pl.DataFrame]:
    """The small tables with identities joined: evidence with staleness, stacks with ranks, groups with all their members."""
    frames = {name: parts.table(name) for name in TABLES if name not in parts.large | {CALLS}}
    hints = {
        r.source.evidence_id: Hint(r.source.rank_said, r.source.rank_hint, r.source.sample_hint, r.source.path, r.source.modified_at)
        for r in reversed(readings)
    }
    frames["stack_frames"] = frames["stack_frames"].unique("stack_id", keep="first", maintain_order=True)
    misnamed = topology.misnamed_dumps(frames, hints)
    for name in ("dumps", "group_status", "memberships"):
        frames[name] = topology.without_ranks(frames[name], misnamed)
    parts.rewrite(CALLS, lambda frame: topology.without_ranks(frame, misnamed)) if misnamed else None
    frames["group_status"] = topology.status_by_peers(frames)
    instead = topology.same_groups(frames)
    for name in ("groups", "memberships", "group_status"):
        frames[name] = topology.rename_groups(frames[name], instead)
    parts.rewrite(CALLS, lambda frame: topology.rename_groups(frame, instead)) if instead else None
    frames["memberships"] = topology.members_by_coordinates(frames)
    frames["stacks"] = topology.link_stacks(frames, hints)
    timed = frames["steps"] if "steps" in frames else parts.scan("steps").select("host").unique().collect()
    hosts = topology.hosts_by_name(frames | {"steps": timed}, hints)
    for name in topology.HOST_FILES:
        frames[name] = topology.with_hosts(frames[name], hosts)
    frames["readings"] = readings_frame(readings)
    frames |= local_ranks.globally(frames)
    stale = topology.stale_dumps(frames["dumps"], hints)
    large = {name: parts.scan(name) for name in parts.large - {CALLS}}
    old = old_captures(MemoryCase(frames, large=large), stale)
    newer = MemoryCase(_without(frames, old), large=_without(large, old)) if old else MemoryCase(frames, large=large)
    left_out = belonging.foreign_evidence(newer, stale) | old | stale
    frames["evidence"] = _evidence(readings, frames, left_out)
    return frames


def _without(tables: dict[str, Rows], evidence: Collection[str]) -> dict[str, Rows]:
    """The tables without the rows of some files."""
    return {
        name: rows
        if name in UNFILTERED or "evidence_id" not in rows.collect_schema().names()
        else rows.filter(~pl.col("evidence_id").is_in([*evidence]))
        for name, rows in tables.items()
    }


def _evidence(readings: Sequence[Reading], frames: dict[str, pl.DataFrame], stale: dict[str, str]) -> pl.DataFrame:
    ranks: dict[str, int] = {}
    for table in ("stacks", "dumps"):
        ranks.update(frames[table].select("evidence_id", "rank").drop_nulls().unique("evidence_id", keep="first").iter_rows())
    hosts = topology.rank_hosts(frames)
    rows: dict[str, dict[str, Any]] = {}
    for r in readings:
        key = r.source.evidence_id
        rank = ranks.get(key)
        rows.setdefault(
            key,
            {
                "evidence_id": key,
                "path": r.source.path,
                "kind": ",".join(r.collectors) or None,
                "rank": rank,
                "host": hosts.get(rank) if rank is not None else None,
                "size_bytes": r.source.size_bytes,
                "sha256": r.source.sha256 if "sha256" in r.source.__dict__ else None,
                "is_stale": key in stale,
                "stale_because": stale.get(key),
            },
        )
    return TABLES["evidence"].rows(list(rows.values()))


def frames_of(parts: Parts, linked: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """All tables in memory, stale evidence left out: for the triage and for inputs small enough."""
    frames = linked | {name: parts.table(name) for name in TABLES if name not in linked and parts.height(name)}
    frames.setdefault(CALLS, TABLES[CALLS].frame())
    stale = frames["evidence"].filter("is_stale")["evidence_id"]
    if stale.len():
        for name, frame in frames.items():
            if "evidence_id" in frame.columns and name not in UNFILTERED:
                frames[name] = frame.filter(~pl.col("evidence_id").is_in(stale.implode()))
    return frames
