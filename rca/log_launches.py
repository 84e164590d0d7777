"""Which logs are of an earlier launch of the same job, where nothing but the logs tells one from the other. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from rca.types import Source, Tables

__all__ = ["LogFile", "launched_before", "names_of", "older_sets", "pairs"]

APART = timedelta(minutes=1)  # between the end of one launch and the begin of the next, by the clocks of several hosts
HALF_YEAR, YEAR = timedelta(days=183), timedelta(days=366)


@dataclass
class LogFile:
    """What one log says of the job."""

    ranks: set[tuple[int, str | None, int | None]] = field(default_factory=set)  # rank, host, pid
    hosts: set[str] = field(default_factory=set)
    pids: set[int] = field(default_factory=set)
    first_at: datetime | None = None
    last_at: datetime | None = None
    first_local: datetime | None = (
        None  # earliest and latest stamp without zone, their year left aside: what files without instants are ordered by
    )
    last_local: datetime | None = None

    def saw(self, first: datetime | None, last: datetime | None) -> None:
        """Widen the time that the file covers."""
        self.first_at = min((t for t in (self.first_at, first) if t is not None), default=None)
        self.last_at = max((t for t in (self.last_at, last) if t is not None), default=None)


def older_sets(files: Mapping[str, LogFile], known: Collection[int]) -> dict[str, str]:
    """Files of every set but the newest, where sets of files name different processes for one rank and nothing else decides; `known`: ranks whose
    process other evidence tells."""
    parent = {id_: id_ for id_ in files}

    def root(id_: str) -> str:
        while parent[id_] != id_:
            parent[id_] = id_ = parent[parent[id_]]
        return id_

    first_with: dict[tuple[int, int], str] = {}
    for id_, file in files.items():
        for pair in pairs(file):
            parent[root(id_)] = root(first_with.setdefault(pair, id_))
    sets: dict[str, set[tuple[int, int]]] = defaultdict(set)
    end: dict[str, datetime] = {}
    is_local = all(file.last_at is None for file in files.values() if pairs(file))  # then all of them are of one clock, as far as known
    for id_, file in files.items():
        key = root(id_)
        sets[key].update(pairs(file))
        if (last := file.last_local if is_local else file.last_at) is not None:
            end[key] = max(end.get(key, last), last)
    if end and max(end.values()) - min(end.values()) > HALF_YEAR:  # over New Year
        end = {key: last + YEAR if max(end.values()) - last > HALF_YEAR else last for key, last in end.items()}
    newest: dict[int, tuple[datetime, str]] = {}  # rank -> latest set that names a process for it
    for key in end:
        for rank, _ in sets[key]:
            if rank not in known:
                newest[rank] = max(newest.get(rank, (end[key], key)), (end[key], key))
    older = {}
    for key in end:
        beaten = [rank for rank, _ in sorted(sets[key]) if rank in newest and newest[rank][1] != key]
        if beaten:
            older[key] = f"an earlier launch: another log has a later process of rank {beaten[0]}"
    return {id_: older[root(id_)] for id_ in files if root(id_) in older}


def names_of(case: Tables) -> dict[str, tuple[str, str | None]]:
    """evidence_id -> whose file it is by its name (up to the first dot; "" where no number is in it), and the host that its folder says."""
    paths = case.table("readings").select("evidence_id", "path").unique("evidence_id", keep="first").collect()
    found = {}
    for id_, path in paths.iter_rows():
        stem = path.rsplit("/", 1)[-1].partition(".")[0]
        found[id_] = (stem if any(letter.isdigit() for letter in stem) else "", Source(path, Path(path), 0).host_said)
    return found


def launched_before(files: Mapping[str, LogFile], names: Mapping[str, tuple[str, str | None]]) -> dict[str, str]:
    """Files with processes that all others outlive: those of a launch overlap in time, whatever was cut off at its begin."""
    spans = {id_: (file.first_local, file.last_local) for id_, file in files.items() if file.pids and file.last_at is None}
    dated = sorted(((last, first, id_) for id_, (first, last) in spans.items() if first is not None and last is not None), reverse=True)
    kept: list[str] = []
    begin = dated[0][1] if dated else None
    older = {}
    for last, first, id_ in dated:
        if begin is not None and last + APART >= begin:
            kept.append(id_)
            begin = min(begin, first)
        elif any(_is_twin(names.get(id_), names.get(other)) and not files[other].pids & files[id_].pids for other in kept):
            older[id_] = "an earlier launch: it ends before a log of the same name, with later processes, begins"
    return older


def _is_twin(one: tuple[str, str | None] | None, two: tuple[str, str | None] | None) -> bool:
    """Whether two files have one name, and no two hosts."""
    if one is None or two is None or not one[0] or one[0] != two[0]:
        return False
    return one[1] is None or two[1] is None or one[1] == two[1]


def pairs(file: LogFile) -> Iterable[tuple[int, int]]:
    return sorted({(rank, pid) for rank, _, pid in file.ranks if pid is not None})
