"""Which hosts are of this job, as far as the evidence tells: where its ranks were seen, and whether that is all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import polars as pl

from rca.types import Tables

__all__ = ["READS", "JobHosts", "job_hosts"]

_NAMING = ("ranks", "stacks", "dump_index", "log_events", "steps")  # tables that name the host of a rank
_MACHINES = ("hosts", "host_logs")  # and those of machines, whichever ranks they carry
READS = (*_NAMING, *_MACHINES, "groups", "memberships")


@dataclass(frozen=True)
class JobHosts:
    """The hosts of the job by name."""

    of_ranks: Mapping[int, frozenset[str]]  # of every known rank all that name it; empty = none does
    machines: frozenset[str]  # named without a rank
    is_whole: bool  # every rank of the job is placed, so a host that carries none is not of it

    @property
    def named(self) -> frozenset[str]:
        """Every host that the job may have run on; empty = the evidence names none."""
        placed = frozenset[str]().union(*self.of_ranks.values())
        return placed if self.is_whole else placed | self.machines

    def covered_by(self, hosts: Collection[str]) -> list[int]:
        """Ranks that ran on these hosts, whichever of the names that stand for a rank is right."""
        return sorted(rank for rank, names in self.of_ranks.items() if names and names <= set(hosts))


def job_hosts(case: Tables) -> JobHosts:
    """Ranks and machines as all tables name them, replays left out: these run on what they are given."""
    of_ranks: dict[int, set[str]] = defaultdict(set)
    machines: set[str] = set()
    for table in _NAMING:
        for rank, host in case.table(table).select("rank", "host").unique().collect().iter_rows():
            if rank is None:
                machines |= {host} - {None}
            else:
                of_ranks[rank] |= {host} - {None}
    for table in _MACHINES:
        machines |= set(case.table(table).select(pl.col("host").drop_nulls().unique()).collect()["host"])
    for rank in case.table("memberships").select(pl.col("rank").drop_nulls().unique()).collect()["rank"]:
        of_ranks[rank] |= set()
    size = case.table("groups").filter(pl.col("kind") == "world").select(pl.col("size").max()).collect().item()
    is_whole = bool(of_ranks) and all(of_ranks.values()) and (size is None or len(of_ranks) >= size)
    return JobHosts({rank: frozenset(names) for rank, names in sorted(of_ranks.items())}, frozenset(machines), is_whole)
