"""The answer before everything is read: headers of all dumps, then the calls of the few ranks that decide.

A dump's header (its first few KB) tells how far the rank got in every group; which number is of which group a few whole dumps tell, where the headers
do not. Ranks that lag behind their peers, and the peers that are furthest ahead, are read in full; whoever those wait for is read next, until the
waits end. The same analyses then run on what was read. The result is an answer only when it names ranks; otherwise the full read decides.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import polars as pl

from rca import plugins
from rca.analyses._waits import build_waits
from rca.case import MemoryCase
from rca.decision.history import NO_HISTORY, History
from rca.judge import Judgement, judge
from rca.linking import frames_of, link
from rca.memory import without_gc
from rca.parts import Parts
from rca.reading import Originals, Reading, collectors, read_headers, read_source
from rca.sources import Inventory
from rca.tables import TABLES
from rca.types import Source

__all__ = ["MIN_BYTES", "triage"]

MIN_BYTES = 8 << 20  # recorder dumps in all; less is read in full within a second
MAX_LAGGING = 24  # lagging ranks read in full at first, those that lag in most groups first
AHEAD_PER_GROUP = 2  # peers read for every group somebody lags in
MAX_BODIES = 192  # dumps read in full at most; a job that needs more is answered by the full read
MAX_SHAPES = 16  # numbers of groups that the ranks of a job take part in


def triage(
    inventory: Inventory,
    spool: Path,
    entering: Callable[[Source], None] = lambda source: None,
    history: History = NO_HISTORY,
    *,
    min_bytes: int = MIN_BYTES,
) -> Judgement | None:
    """An early answer, or None when there are fewer bytes of dumps, their headers cannot be tied to groups, or nobody is named."""
    recorder = plugins.load("collectors", "flight_recorder")
    dumps = {}
    for source in inventory.sources:
        if recorder.claims(source.path, source.head):
            dumps[source.path] = source
        del source.__dict__["head"]  # 64 KiB a file would add up
    if sum(s.size_bytes for s in dumps.values()) < min_bytes:
        return None
    try:
        for source in dumps.values():  # hashing the bodies would cost more than reading all headers
            source.__dict__["evidence_id"] = f"header:{source.path}"
        with without_gc():
            return _triage(inventory, dumps, spool, entering, history)
    finally:
        for source in dumps.values():
            source.__dict__.pop("evidence_id", None)


def _triage(
    inventory: Inventory, dumps: Mapping[str, Source], spool: Path, entering: Callable[[Source], None], history: History
) -> Judgement | None:
    known = collectors()
    recorder = {"flight_recorder": known["flight_recorder"]}
    heads, rest, bodies = Parts(spool / "headers"), Parts(spool / "rest"), Parts(spool / "bodies")
    readings = read_headers(dumps.values(), known["flight_recorder"], heads, entering)
    if readings is None:
        return None
    originals = Originals()
    for source in inventory.sources:
        if source.path not in dumps:
            entering(source)
            first = originals.of(source)
            if first is None:
                readings.append(first := read_source(source, known, rest))
                originals.add(first)
    headers = heads.table("dumps").select("rank", "evidence_id").drop_nulls().unique("rank", keep="none")
    by_rank = {rank: dumps[evidence_id.removeprefix("header:")] for rank, evidence_id in headers.iter_rows()}
    if len(by_rank) < len(dumps):
        return None  # a header that cannot be read by itself, or a rank with two dumps: the full read sorts it out
    status = heads.table("group_status")
    wanted = _first_choice(status)
    is_chosen = bool(wanted)
    wanted = wanted or _samples(status)
    read: set[int] = set()
    while wanted and len(read) + len(wanted) <= MAX_BODIES:
        for rank in wanted:
            entering(by_rank[rank])
            read_source(by_rank[rank], recorder, bodies)
        read |= set(wanted)
        case = _case(heads, rest, bodies, readings)
        if not is_chosen:  # what a few dumps tell of their groups holds for the places of all others
            is_chosen = True
            wanted = [rank for rank in _first_choice(case.table("group_status").collect()) if rank not in read and rank in by_rank]
            if wanted:
                continue
        waits = case.derive(build_waits)
        wanted = sorted(rank for rank in waits.awaited if rank in waits.dumped - waits.read and rank in by_rank)
        if not wanted:
            judgement = judge(case, history)
            return judgement if judgement.verdict.ranks else None
    return None


def _case(heads: Parts, rest: Parts, bodies: Parts, readings: Sequence[Reading]) -> MemoryCase:
    """What was read so far: of a dump read in full its own rows count, of the others the header's."""
    full = bodies.table("dumps")["evidence_id"]
    joined = Parts(Path())
    for table in TABLES:
        header = heads.table(table)
        if "evidence_id" in header.columns and full.len():
            header = header.filter(~pl.col("evidence_id").is_in(full.implode()))
        for frame in (header, rest.table(table), bodies.table(table)):
            joined.add(table, frame)
    return MemoryCase(frames_of(joined, link(joined, readings)))


def _samples(status: pl.DataFrame) -> list[int]:
    """Where no header ties a status to its group: a rank of each number of statuses, whose calls tell which place is which group."""
    if status.filter(pl.col("group_id").is_not_null()).height:
        return []
    shapes = status.drop_nulls("rank").group_by("rank").len().sort("len", "rank").group_by("len", maintain_order=True).first()
    return sorted(shapes["rank"].to_list())[:MAX_SHAPES]


def _first_choice(status: pl.DataFrame) -> list[int]:
    """Ranks to read first: those behind their group's leader in most groups, and some of the leaders they are behind of."""
    rows = status.drop_nulls(["group_id", "rank", "last_enqueued"])
    lead = rows.with_columns(pl.col("last_enqueued").max().over("group_id").alias("lead"))
    behind = lead.filter(pl.col("last_enqueued") < pl.col("lead"))
    counts = Counter(behind["rank"].to_list())
    lagging = sorted(counts, key=lambda rank: (-counts[rank], rank))[:MAX_LAGGING]
    groups = set(behind.filter(pl.col("rank").is_in(lagging))["group_id"].to_list())
    ahead: dict[str, list[int]] = defaultdict(list)
    for rank, group in lead.filter(pl.col("last_enqueued") == pl.col("lead")).sort("rank").select("rank", "group_id").iter_rows():
        if group in groups and len(ahead[group]) < AHEAD_PER_GROUP:
            ahead[group].append(rank)
    return sorted({*lagging, *(rank for ranks in ahead.values() for rank in ranks)})
