"""How many ranks the job has, and what says so: the ranks that were seen are the least that it can be. Pure.

In this order: process groups or a full rank map; a setting of the process (WORLD_SIZE); the record of the launch; a log line that says the world's
size; the accounting's GPUs, one a rank; RAS's largest communicator; the newest checkpoint, by its number of savers. A number below the highest rank
that was seen is of another job or launch, and is passed over. Where nothing tells, the highest rank + 1 is the least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl

from rca.roster import Roster
from rca.types import Tables

__all__ = ["MAPPED", "UNKNOWN_SIZE", "JobSize", "job_size", "ranks_per_host", "seen_size"]


@dataclass(frozen=True)
class JobSize:
    """`num_ranks` = None where no rank was seen and nothing tells; `is_least`: there may be more."""

    num_ranks: int | None
    told_by: str
    is_least: bool

    @property
    def says(self) -> str:
        """`64 ranks (a setting of the job)`, `at least 16 ranks (the highest that was seen)`."""
        if self.num_ranks is None:
            return "a number of ranks that nothing tells"
        return f"{'at least ' if self.is_least else ''}{self.num_ranks:,} rank{'' if self.num_ranks == 1 else 's'} ({self.told_by})"


MAPPED: Final = "process groups or a rank map"
UNKNOWN_SIZE: Final = JobSize(None, "nothing", is_least=True)
_WORLD: Final = r"(?i)\b(?:global_)?world[_ ]sizes?\b[\"']?\s{0,2}[=:(\[ ]{1,3}([0-9]{1,7})\b"
_SETTING: Final = r"(?i)(?:^|[:./ ])(?:global_)?world_?size$"  # not LOCAL_WORLD_SIZE, which is that of a host


def job_size(case: Tables, who: Roster) -> JobSize:
    """The size of the job of a case."""
    if who.world_size is not None:
        return JobSize(who.world_size, MAPPED, is_least=False)
    least = max(who.everyone, default=-1) + 1
    for read, told_by in _SOURCES:
        if (found := [size for size in read(case) if size >= max(least, 1)]) and min(found) == max(found):
            return JobSize(found[0], told_by, is_least=False)
    return seen_size(who)


def seen_size(who: Roster) -> JobSize:
    """By the ranks that were seen alone."""
    if who.world_size is not None:
        return JobSize(who.world_size, MAPPED, is_least=False)
    least = max(who.everyone, default=-1) + 1
    if not least:
        return UNKNOWN_SIZE
    return JobSize(least, "the ranks that were seen" if least == len(who.everyone) else "the highest rank that was seen", is_least=True)


def ranks_per_host(who: Roster) -> int | None:
    """Ranks on each host, where all that are placed are spread evenly; None where not, none is, or one of each host was seen of a job that has more:
    that is not how many it has."""
    counts = set(Counter(who.hosts.values()).values())
    is_all = len(who.hosts) > max([*who.hosts, *who.everyone], default=0)
    return counts.pop() if len(counts) == 1 and (is_all or counts != {1}) else None


def _settings(case: Tables) -> Iterator[int]:
    rows = (
        case.table("configs")
        .filter(pl.col("component").str.contains(_SETTING))
        .select(pl.col("value").str.extract(r"^\s*([0-9]{1,7})\s*$"))
    )
    yield from (int(value) for value in rows.drop_nulls().unique().collect()["value"])


def _launches(case: Tables) -> Iterator[int]:
    rows = case.table("attempts").select("started_at", "world_size").drop_nulls("world_size").sort("started_at", nulls_last=False).collect()
    yield from rows["world_size"].tail(1)


def _log_lines(case: Tables) -> Iterator[int]:
    rows = case.table("log_events").select(size=pl.col("message").str.extract(_WORLD)).drop_nulls().unique()
    yield from (int(value) for value in rows.collect()["size"])


def _accounting(case: Tables) -> Iterator[int]:
    rows = case.table("job_records").filter(~pl.col("is_step").fill_null(value=False)).select("num_gpus").drop_nulls().unique()
    yield from rows.collect()["num_gpus"]


def _ras(case: Tables) -> Iterator[int]:
    largest = case.table("nccl_ras").select(pl.col("ranks_per_comm").max()).collect().item()
    if largest is not None:
        yield int(largest)


def _savers(case: Tables) -> Iterator[int]:
    rows = case.table("checkpoints").select("step", "world_size").drop_nulls("world_size").sort("step", nulls_last=False).collect()
    yield from rows["world_size"].tail(1)


_SOURCES: Final[tuple[tuple[Callable[[Tables], Iterator[int]], str], ...]] = (
    (_settings, "a setting of the job"),
    (_launches, "the record of its launch"),
    (_log_lines, "a log line"),
    (_accounting, "the accounting's GPUs, one a rank"),
    (_ras, "the largest communicator"),
    (_savers, "the savers of its newest checkpoint"),
)
