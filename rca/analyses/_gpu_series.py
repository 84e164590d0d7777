"""Series of GPU metrics and their edges: what changed from one sample to the next, and whose GPU it was.

A gauge that holds the last error is a level: it tells neither when, nor whether it came again. What changes between two samples happened between
them. Samples with instants are ordered by them, across files; without, by their scrape within the file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import polars as pl

from rca.analyses._job_logs import JobLogs
from rca.analyses._kernel_users import users_of
from rca.types import Cite, Tables

__all__ = ["Edge", "Gpu", "Owners", "Sample", "cite_sample", "edges", "owners_of", "series_of"]


@dataclass(frozen=True)
class Gpu:
    """A GPU as the labels of a metric name it."""

    host: str | None
    address: str | None
    index: int | None
    uuid: str | None

    @property
    def words(self) -> str:
        """For people."""
        which = self.address or (f"GPU {self.index}" if self.index is not None else self.uuid or "a GPU")
        return f"{which} of {self.host}" if self.host else which


@dataclass(frozen=True)
class Sample:
    """One printed value."""

    gpu: Gpu
    name: str
    link: int | None
    at: datetime | None
    value: float
    code: int | None
    evidence_id: str
    record: str


@dataclass(frozen=True)
class Edge:
    """Two samples of a series that follow each other and differ."""

    before: Sample
    after: Sample


def series_of(case: Tables, names: str) -> list[list[Sample]]:
    """The series of metrics whose name fits the expression, each in the order of time."""
    rows = case.table("gpu_samples").filter(pl.col("name").str.contains(names) & pl.col("value").is_not_null())
    columns = ("host", "gpu", "gpu_index", "gpu_uuid", "name", "link", "sampled_at", "value", "code", "evidence_id", "record", "scrape")
    ordered = rows.select(columns).sort("sampled_at", "evidence_id", "scrape", "record", nulls_last=False).collect()
    found: dict[tuple[Any, ...], list[Sample]] = defaultdict(list)
    for host, address, index, uuid, name, link, at, value, code, evidence_id, record, _ in ordered.iter_rows():
        sample = Sample(Gpu(host, address, index, uuid), name, link, at, value, code, evidence_id, record)
        # what counts events by code is a series for each code; without an instant samples of two files have no order
        of = (host, address or uuid or index, name, link, code if "COUNT" in name and "XID" in name else None, None if at else evidence_id)
        found[of].append(sample)
    return [samples for _, samples in sorted(found.items(), key=lambda item: str(item[0]))]


def edges(series: Sequence[Sample]) -> Iterator[Edge]:
    """Where the value changes from one moment to the next: parts of a GPU may be told side by side."""
    for before, after in pairwise(series):
        if before.value != after.value and (before.at is None) == (after.at is None) and (before.at is None or before.at != after.at):
            yield Edge(before, after)


def cite_sample(sample: Sample) -> Cite:
    """The sample as a cite."""
    when = f" at {sample.at:%H:%M:%S} UTC" if sample.at is not None else ""
    return Cite("gpu_samples", sample.evidence_id, "", sample.record, f"{sample.name} of {sample.gpu.words}: {sample.value:g}{when}")


@dataclass(frozen=True)
class Owners:
    """Which ranks use which GPU."""

    logs: JobLogs
    by_name: Mapping[tuple[str, str], frozenset[int]]  # (host, address, UUID or number) -> ranks
    hosts: frozenset[str]

    def ranks(self, gpu: Gpu) -> tuple[int, ...]:
        """Ranks that use the GPU by its address, its UUID or its number, in this order; sorted."""
        for name in (gpu.address, (gpu.uuid or "").lower(), str(gpu.index) if gpu.index is not None else None):
            if gpu.host is not None and name and (found := self.by_name.get((gpu.host, name))):
                return tuple(sorted(found))
        return ()

    def is_of_job(self, gpu: Gpu) -> bool:
        """Whether the GPU may be one of the job's: its host is one of the job's, or no host is known, and no map says that others use it alone."""
        if gpu.host is None or not self.hosts:
            return not self.hosts
        named = any(host == gpu.host for host, _ in self.by_name)
        return gpu.host in self.hosts and (not named or bool(self.ranks(gpu)) or self._may_be(gpu))

    def _may_be(self, gpu: Gpu) -> bool:
        """Whether some rank of the host has no GPU that the labels could name: then this may be its own."""
        placed = {rank for (host, name), ranks in self.by_name.items() if host == gpu.host and name in _kinds(gpu, name) for rank in ranks}
        return not placed.issuperset(self.logs.ranks_on(gpu.host))


def _kinds(gpu: Gpu, name: str) -> tuple[str, ...]:
    """The name, if it is of a kind that the labels give too."""
    told = gpu.address if ":" in name else gpu.index if name.isdigit() else gpu.uuid
    return (name,) if told is not None else ()


def owners_of(case: Tables, logs: JobLogs) -> Owners:
    """From maps: a GPU's address, UUID or number. Where processes see one GPU only, maps call it 0 for all: a number of several ranks is none."""
    found: dict[tuple[str, str], set[int]] = defaultdict(set)
    for (on, address), ranks in users_of(case).gpus.items():
        found[on, address] |= ranks
    rows = case.table("ranks").filter(pl.col("rank").is_not_null() & pl.col("gpu").is_not_null()).select("rank", "gpu").unique().collect()
    for rank, name in rows.iter_rows():
        if (host := logs.hosts.get(rank)) is not None and ":" not in name:
            found[host, name.lower().removeprefix("gpu ")].add(rank)
    clear = {key: frozenset(ranks) for key, ranks in found.items() if not key[1].isdigit() or len(ranks) == 1}
    return Owners(logs, clear, frozenset(logs.hosts.values()))
