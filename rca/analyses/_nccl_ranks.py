"""Which global rank a rank of a communicator is, and what RAS saw of each communicator, report by report.

1. NCCL numbers the ranks of each communicator anew, and RAS names hosts by their addresses. A rank of a communicator is a global one by its
   process, where its host is one that the evidence knows under that name or address, or where that process id is of one rank alone and the
   processes of all ranks are known. Failing that, where the communicator is as large as the job is known to be: torch orders the world so.
2. What a report says of calls is one picture per communicator: for every kind of call, who launched how many. Of the text only differences are
   known; whom it lists may be ahead or behind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import polars as pl

from rca.analyses._job_logs import JobLogs
from rca.analyses._network_reports import hosts_by_address
from rca.types import Cite, Tables

__all__ = ["READS", "Op", "Picture", "Process", "Ranks", "pictures", "ranks_of"]

READS: Final = ("nccl_ras_ranks", "nccl_ras_ops", "host_addresses")
_ORDER: Final = ("evidence_id", "snapshot", "record")


@dataclass(frozen=True)
class Ranks:
    """How to find the global rank of a process."""

    logs: JobLogs
    by_address: Mapping[str, str]

    def host(self, name: str | None) -> str | None:
        """The host that has this name or address, as the rest of the evidence calls it; the name itself where nothing maps it."""
        return self.by_address.get(name or "", name)

    def rank(self, host: str | None, pid: int | None, group_rank: int | None = None, size: int | None = None) -> int | None:
        """The global rank of a process, else of a rank of a communicator that is the world; None where neither is known."""
        name = self.host(host)
        if pid is not None and name in set(self.logs.hosts.values()):
            if (found := self.logs.rank_of(pid, name)) is not None:
                return found
        elif (
            pid is not None
            and self.logs.everyone
            and self.logs.pids.keys() >= self.logs.everyone
            and (found := self.logs.rank_of(pid)) is not None
        ):
            return found
        is_world = size is not None and size == len(self.logs.everyone) and self.logs.everyone == frozenset(range(size))
        return group_rank if is_world and group_rank in self.logs.everyone else None


def ranks_of(case: Tables, logs: JobLogs) -> Ranks:
    """From maps, logs and addresses."""
    return Ranks(logs, hosts_by_address(case, logs))


@dataclass(frozen=True)
class Process:
    """A rank of a communicator, as RAS names it."""

    group_rank: int | None
    host: str | None
    pid: int | None
    local_gpu: int | None


@dataclass
class Op:
    """How many calls of one kind the ranks of a communicator launched."""

    calls: dict[int, int] = field(default_factory=dict)  # rank of the communicator -> calls, where told
    num_behind: int | None = None
    num_ahead: int | None = None
    count_behind: int | None = None
    count_ahead: int | None = None
    cites: list[Cite] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        """Whether some ranks launched fewer than others."""
        return bool(self.num_behind) or len(set(self.calls.values())) > 1

    def sides(self, size: int | None) -> tuple[frozenset[int] | None, frozenset[int] | None]:
        """Ranks behind and ranks furthest ahead; None for a side whose ranks are not told, nor follow from the other side."""
        most = self.count_ahead if self.count_ahead is not None else max(self.calls.values(), default=0)
        behind = frozenset(rank for rank, calls in self.calls.items() if calls < most)
        ahead = frozenset(rank for rank, calls in self.calls.items() if calls >= most)
        if self.num_behind is None:  # every rank is told
            return behind, ahead
        everyone = frozenset(range(size)) if size is not None and size == self.num_behind + (self.num_ahead or 0) else None
        if len(behind) == self.num_behind:
            return behind, ahead if len(ahead) == self.num_ahead else everyone - behind if everyone is not None else None
        if len(ahead) == self.num_ahead and everyone is not None:
            return everyone - ahead, ahead
        return None, ahead if len(ahead) == self.num_ahead else None


@dataclass
class Picture:
    """A communicator in one report."""

    comm: str
    evidence_id: str
    snapshot: int
    at: datetime | None  # without a zone where the report names none
    size: int | None = None
    ops: dict[str, Op] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)

    @property
    def launched(self) -> int:
        """Calls of all kinds of those furthest ahead, as far as told."""
        return sum(op.count_ahead if op.count_ahead is not None else max(op.calls.values(), default=0) for op in self.ops.values())

    @property
    def counts(self) -> tuple[Any, ...]:
        """What stays the same while nobody launches anything."""
        return tuple(
            (name, tuple(sorted(op.calls.items())), op.num_behind, op.num_ahead, op.count_behind, op.count_ahead)
            for name, op in sorted(self.ops.items())
        )


def pictures(case: Tables) -> dict[str, list[Picture]]:
    """Communicator -> its pictures, in the order of the reports of each file. Its hash is compared as a number: text pads it, JSON does not."""
    found: dict[tuple[str, str, int], Picture] = {}
    sizes = _sizes(case)

    def of(row: Mapping[str, Any]) -> Picture:
        comm = row["comm"].lower().removeprefix("0x").lstrip("0")
        key = comm, row["evidence_id"], row["snapshot"]
        if key not in found:
            size = sizes.get((row["evidence_id"], row["snapshot"], comm), sizes.get((row["evidence_id"], row["snapshot"], row["group"])))
            at = row["taken_at"] or (datetime.fromisoformat(row["taken_at_local"]) if row["taken_at_local"] else None)
            found[key] = Picture(comm, row["evidence_id"], row["snapshot"], at, size)
        return found[key]

    for row in case.table("nccl_ras_ranks").filter(pl.col("comm").is_not_null()).sort(_ORDER).collect().iter_rows(named=True):
        if row["group_rank"] is not None:
            of(row).processes[row["group_rank"]] = Process(row["group_rank"], row["host"], row["pid"], row["local_gpu"])
    for row in case.table("nccl_ras_ops").filter(pl.col("comm").is_not_null()).sort(_ORDER).collect().iter_rows(named=True):
        op = of(row).ops.setdefault(row["op"], Op())
        if row["group_rank"] is None:
            op.num_behind, op.num_ahead = row["num_behind"], row["num_ahead"]
            op.count_behind, op.count_ahead = row["count_behind"], row["count_ahead"]
            op.cites.insert(
                0, _cite(row, f"{row['op']}: {row['num_behind']} at {row['count_behind']}, {row['num_ahead']} at {row['count_ahead']}")
            )
        else:
            op.calls[row["group_rank"]] = row["num_calls"] or 0
            op.cites.append(_cite(row, f"{row['op']}: rank {row['group_rank']} of {row['comm']} launched {row['num_calls']}"))
    by_comm: dict[str, list[Picture]] = defaultdict(list)
    for _, picture in sorted(found.items(), key=lambda item: item[0]):
        by_comm[picture.comm].append(picture)
    return by_comm


def _sizes(case: Tables) -> dict[tuple[str, int, str | int], int]:
    """Ranks of each communicator, by its hash and by its group, of every report."""
    sizes: dict[tuple[str, int, str | int], int] = {}
    for row in case.table("nccl_ras").sort(_ORDER).collect().iter_rows(named=True):
        for key in (row["group"], row["comm"].lower().removeprefix("0x").lstrip("0") if row["comm"] else None):
            if key is not None and row["ranks_per_comm"] is not None:
                sizes[row["evidence_id"], row["snapshot"], key] = row["ranks_per_comm"]
    return sizes


def _cite(row: Mapping[str, Any], text: str) -> Cite:
    return Cite("nccl_ras_ops", row["evidence_id"], "", row["record"], text)
