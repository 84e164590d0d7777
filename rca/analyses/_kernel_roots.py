"""Kernel records of the job's hosts: which began a chain, which only followed, and which ranks sit on the device.

1. A record counts when it is of a host of the job and in the job's time. A corrected error never does.
2. Of an Xid the catalogue says what it can be: the root of a chain, its consequence, the repair of memory, or an application's own fault.
   A record that names its cause, or follows a root on the same GPU, is a consequence.
3. Where no device has a root, what may be either is a root unless an earlier record of the host, or of a link's other end, explains it.
4. One application fault on most GPUs of a host at once is the program, no GPU.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from importlib import resources
from typing import Any, Final

import polars as pl

from rca.analyses._faults import Story
from rca.analyses._job_logs import JobLogs, Line, kernel_line, place
from rca.types import Tables

__all__ = ["Record", "Scene", "scene"]

BEFORE: Final = timedelta(minutes=1)  # a record so long before the first sign of the job may be of it: clocks of host and trainer differ
AFTER: Final = timedelta(minutes=10)  # kernels notice late: a time-out of a command, a bus that no longer answers
CHAIN: Final = timedelta(minutes=2)  # one fault shows in records so far apart
NODE_WIDE: Final = 3  # GPUs of a host with the same application fault: the program, not a device

LOST: Final = 79  # Xid of a GPU that left the bus; the same is told without any number
CAUSE_OF_KIND: Final[Mapping[str, tuple[str, str]]] = {  # kind -> role, cause
    "bus_loss": ("root", "gpu_fault"),
    "aer": ("either", "gpu_fault"),
    "mce": ("root", "host_fault"),
    "edac": ("root", "host_fault"),
    "lockup": ("either", "host_fault"),
    "panic": ("either", "host_fault"),
    "nic": ("either", "network_fault"),
    "ib": ("either", "network_fault"),
    "storage": ("root", "storage_stall"),
    "storage_nvme": ("root", "storage_stall"),
    "storage_nfs": ("root", "storage_stall"),
    "storage_lustre": ("root", "storage_stall"),
    "hung_task": ("either", "storage_stall"),
}
NEEDS_SEVERITY: Final = frozenset({"aer", "mce", "edac"})  # without a word for it they are mere notes


@dataclass(frozen=True)
class Record:
    """One kernel event of a host of the job."""

    line: Line
    host: str
    kind: str
    code: int | None
    gpu: str | None
    role: str  # root, either, application, repair, consequence
    cause: str

    @property
    def name(self) -> str:
        """As people say it."""
        return f"Xid {self.code}" if self.kind == "xid" else f"SXid {self.code}" if self.kind == "sxid" else self.kind.replace("_", " ")


@dataclass(frozen=True)
class Scene:
    """What the kernels of the job's hosts say."""

    roots: tuple[Record, ...]  # began a chain, in the job's time
    undated: tuple[Record, ...]  # could have, but when is not told
    node_wide: tuple[Record, ...]  # the same application fault on most GPUs of a host
    num_old: int  # roots from before the job or after it


@lru_cache(maxsize=2)
def catalogue(name: str) -> Mapping[int, tuple[str, str]]:
    """Number of an Xid or SXid -> role and cause, from catalogue/xid.csv or sxid.csv."""
    text = resources.files("rca.catalogue").joinpath(f"{name}.csv").read_text("utf-8")
    return {int(row["code"]): (row["role"], row["cause"]) for row in csv.DictReader(text.splitlines())}


def scene(case: Tables, told: Story) -> Scene:
    """The records of the job's hosts, sorted into what began and what followed."""
    records = _records(case, told.logs)
    span = told.logs.span
    dated = [r for r in records if r.line.at is not None and span is not None]
    in_time = [r for r in dated if span is not None and r.line.at is not None and span[0] - BEFORE <= r.line.at <= span[1] + AFTER]
    live = [r for r in in_time if not _after_the_end(r, told)]
    node_wide, rest = _node_wide(live)
    return Scene(
        tuple(_chain_heads(rest)),
        tuple(r for r in records if r not in dated and r.role == "root"),
        tuple(node_wide),
        sum(r.role == "root" for r in dated) - sum(r.role == "root" for r in live),
    )


def _records(case: Tables, logs: JobLogs) -> list[Record]:
    """Events that can mean a fault, of hosts of the job, in the order of their files."""
    hosts = set(logs.hosts.values())
    rows = case.table("kernel_events").filter(~pl.col("kind").is_in(["oom", "segfault", "thermal", "other"])).collect().rows(named=True)
    host_of_file = _hosts_by_process(rows, logs)
    found = []
    for row in sorted(rows, key=lambda r: (r["evidence_id"], place(r["record"]))):
        host = row["host"] or host_of_file.get(row["evidence_id"])
        role, cause = _role(row)
        if host not in hosts:
            continue
        line = kernel_line(row, logs.rank_of(row["pid"], host), logs, host=host)
        found.append(Record(line, host, row["kind"], row["code"], row["gpu"], role, cause))
    users: dict[tuple[str, str], set[int]] = defaultdict(set)
    for record in found:
        if record.gpu is not None and record.line.rank is not None:
            users[record.host, record.gpu].add(record.line.rank)
    return [_with_user(record, users.get((record.host, record.gpu or ""), set())) for record in found if record.cause]


def _with_user(record: Record, users: set[int]) -> Record:
    """A record with the rank that other records of the same GPU name by its process."""
    if record.line.rank is not None or len(users) != 1:
        return record
    return replace(record, line=replace(record.line, rank=next(iter(users))))


def _hosts_by_process(rows: Sequence[Mapping[str, Any]], logs: JobLogs) -> dict[str, str]:
    """evidence_id -> host of a log that does not name its own, where it names a process of a rank."""
    found: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        rank = logs.rank_of(row["pid"]) if row["host"] is None else None
        if rank is not None and rank in logs.hosts:
            found[row["evidence_id"]].add(logs.hosts[rank])
    return {id_: next(iter(hosts)) for id_, hosts in found.items() if len(hosts) == 1}


def _role(row: Mapping[str, Any]) -> tuple[str, str]:
    """Role and cause of an event; no cause where it accuses nobody by itself."""
    kind, severity = row["kind"], row["severity"]
    if severity == "corrected" or (row["recovery"] == "none" and kind != "xid"):
        return "consequence", ""
    if row["caused_by"] is not None:
        return "consequence", ""
    if kind in ("xid", "sxid"):
        by_word = ("either", "unknown") if kind == "xid" or severity == "fatal" else ("info", "")
        return catalogue(kind).get(row["code"], by_word)  # a number that nobody has described is never simply ignored
    if kind in NEEDS_SEVERITY and severity not in ("uncorrected", "fatal"):
        return "consequence", ""
    return CAUSE_OF_KIND.get(kind, ("consequence", ""))


def _after_the_end(record: Record, told: Story) -> bool:
    """Whether a record is later than the stop of the job, or than the first fault in the logs of ranks on other hosts."""
    if told.stop.is_asked and told.stop.began is not None and told.logs.order(record.line, told.stop.began) == 1:
        return True
    elsewhere = [f for f in told.first if record.host not in told.logs.hosts_of(f.ranks)]
    return bool(elsewhere) and all(told.logs.order(record.line, fault.line) == 1 for fault in elsewhere)


def _node_wide(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Application faults that most GPUs of a host show at once, and all other records."""
    gpus: dict[tuple[str, int | None], set[str | None]] = defaultdict(set)
    for record in records:
        if record.role == "application":
            gpus[record.host, record.code].add(record.gpu)
    wide = {key for key, found in gpus.items() if len(found) >= NODE_WIDE}
    return (
        [r for r in records if r.role == "application" and (r.host, r.code) in wide],
        [r for r in records if r.role != "application" or (r.host, r.code) not in wide],
    )


def _chain_heads(records: Sequence[Record]) -> list[Record]:
    """Of each device the record that began its chain; a device whose chain follows from another one's of the host has none."""
    by_device: dict[tuple[str, str | None], list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda r: (r.line.at, r.line.evidence_id, r.line.place)):
        by_device[record.host, record.gpu].append(record)
    heads = [head for chain in by_device.values() if (head := _head(chain)) is not None]
    certain = [head for head in heads if head.role == "root"]
    left = certain or [head for head in heads if not any(_explains(other, head) for other in heads if other is not head)]
    return sorted(left, key=lambda r: (r.line.at, r.host, r.gpu or ""))


def _head(chain: Sequence[Record]) -> Record | None:
    """The first root of one device, else what came first of the rest. Repairs and consequences never begin anything.

    An error of the device in the same chain beats an application's fault a moment earlier: bad memory makes programs fail first.
    """
    return next((r for r in chain if r.role == "root"), None) or next((r for r in chain if r.role in ("either", "application")), None)


def _explains(one: Record, other: Record) -> bool:
    """Whether a record on the same host, or (for links) of a peer, explains another one: it is of the same time and not later."""
    if one.line.at is None or other.line.at is None or other.line.at - one.line.at > CHAIN:
        return False
    linked = one.cause == other.cause == "nvlink_fault"
    return (one.host == other.host or linked) and one.line.at < other.line.at
