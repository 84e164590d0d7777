"""Who uses the device or process that a kernel record names: a rank of the job, or somebody else on the same host.

1. A GPU is nobody's of the job only where the evidence gives the address of the GPU of every rank of that host, and not this one.
2. A process is nobody's of the job only where the process of every rank of that host is known, this is none of them (and none of their loader
   workers), and the record calls it by a name that no trainer has: an id alone may be counted anew inside a container.
3. A log without a host's name is tied to one by the process of a rank that it names, unless another log of that very host was read and does
   not tell the same: ids of processes in containers repeat from host to host.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from rca.analyses._job_logs import JobLogs, job_logs
from rca.types import Tables

__all__ = ["TRAINS", "Users", "hosts_by_process", "users_of"]

# What the kernel calls a program that trains: the interpreter, torch's own names for its threads and workers, launchers, frameworks, and what
# people call their scripts. The kernel cuts names to 15 characters, and writes `(resolved)` where it has none.
TRAINS: Final = re.compile(
    r"(?i)\(?(?:python|pypy|pt_|torch|ray\b|ray::|train|worker|rank|deepspeed|megatron|nemo|accelerate|lightning|mpi|orted|dataload|jax|resolved"
    r"|.*(?:train|worker|llm|gpt|llama))"
)
_PCI: Final = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.[0-7])?")


@dataclass(frozen=True)
class Users:
    """GPUs and processes of the job's ranks."""

    gpus: Mapping[tuple[str, str], frozenset[int]]  # (host, dddd:bb:dd) -> ranks that use it
    with_gpus: frozenset[str]  # hosts of which the GPU of every rank is known by its address
    with_pids: frozenset[str]  # hosts of which the process of every rank is known
    local: Mapping[int, int]  # rank -> its number on its host, where all sources that tell one agree

    def uses(self, host: str, gpu: str | None) -> tuple[int, ...]:
        """Ranks whose GPU has this address, sorted."""
        return tuple(sorted(self.gpus.get((host, gpu or ""), ())))

    def is_strange_gpu(self, host: str, gpu: str | None) -> bool:
        """Whether no rank of the job uses this GPU, as far as that can be told."""
        return gpu is not None and host in self.with_gpus and (host, gpu) not in self.gpus

    def is_strange_process(self, host: str | None, pid: int | None, name: str | None, rank: int | None) -> bool:
        """Whether a process is of no rank; `rank`: the one that has this process id, if any."""
        return pid is not None and rank is None and name is not None and host in self.with_pids and not TRAINS.match(name)


def users_of(case: Tables) -> Users:
    """As maps, indexes, stacks and logs tell it."""
    logs = case.derive(job_logs)
    rows = case.table("ranks").filter(pl.col("rank").is_not_null() & pl.col("gpu").is_not_null()).select("rank", "gpu").unique().collect()
    gpus: dict[tuple[str, str], set[int]] = defaultdict(set)
    for rank, name in rows.iter_rows():
        host, found = logs.hosts.get(rank), _PCI.fullmatch(name.lower())
        if host is not None and found:
            gpus[host, f"{int(found[1] or '0', 16):04x}:{int(found[2], 16):02x}:{int(found[3], 16):02x}"].add(rank)
    addressed = {rank for ranks in gpus.values() for rank in ranks}
    whole = set(logs.hosts.values()) if logs.everyone == logs.hosts.keys() else set()  # a rank that is not placed may be on any host
    return Users(
        {place: frozenset(ranks) for place, ranks in gpus.items()},
        frozenset(host for host in whole if addressed.issuperset(logs.ranks_on(host))),
        frozenset(host for host in whole if logs.pids.keys() >= set(logs.ranks_on(host))),
        _local(case),
    )


def _local(case: Tables) -> dict[int, int]:
    """rank -> its number on its host."""
    told = (
        case.table("ranks").filter(pl.col("rank").is_not_null()).group_by("rank").agg(pl.col("local_rank").drop_nulls().unique()).collect()
    )
    return {rank: numbers[0] for rank, numbers in told.iter_rows() if len(numbers) == 1}


def hosts_by_process(case: Tables, rows: Sequence[Mapping[str, Any]], logs: JobLogs) -> dict[str, str]:
    """evidence_id -> host of a kernel log that does not name its own, where it names a process of a rank. `rows`: of `kernel_events`."""
    found: dict[str, set[str]] = defaultdict(set)
    ties: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        rank = logs.rank_of(row["pid"]) if row["host"] is None else None
        if rank is not None and rank in logs.hosts:
            found[row["evidence_id"]].add(logs.hosts[rank])
            ties[row["evidence_id"]].append(row)
    tied = {id_: next(iter(hosts)) for id_, hosts in found.items() if len(hosts) == 1}
    if not tied:
        return {}
    read = set(case.table("host_logs").select(pl.col("host").drop_nulls().unique()).collect()["host"])
    return {id_: host for id_, host in tied.items() if host not in read or _told_too(ties[id_], host, rows)}


def _told_too(ties: Iterable[Mapping[str, Any]], host: str, rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a log that names this host tells one of the records by which another one was tied to it."""
    told = {_what(row) for row in rows if row["host"] == host}
    return any(_what(row) in told for row in ties)


def _what(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["kind"], row["code"], row["gpu"], row["pid"]
