"""Do two sources say things that cannot both be true? Shown to a person, never averaged, and nobody is accused by it.

1. A rank on two hosts: a map, stacks and their index, logs and step timings each name the host of a rank.
2. A rank that was seen after its death: a launcher or the kernel says that it ended, and a stack of the same process, a recorded call or a
   step is later than that, by more than the clocks can be off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime

import polars as pl

from rca.analyses._job_logs import READS, JobLogs, Line, cite_line, job_logs
from rca.analyses._words import ranks_text
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("ranks",)
USES = tuple(sorted({*READS, "stacks", "steps", "dumps", "dump_index", "log_events"} - {"ranks"}))
SIGNS = {"host_disagrees": Sign("contradiction", ()), "seen_after_death": Sign("contradiction", ())}

NAMING = ("ranks", "stacks", "dump_index", "log_events", "steps")  # tables that name the host of a rank
SIGNS_OF_LIFE = (("stacks", "sampled_at"), ("collectives", "created_at"), ("steps", "started_at"))
LIFE = {"stacks": "a stack", "collectives": "a call", "steps": "a step"}
MAX_CITES = 6


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for ranks on two hosts, one for each rank seen after its death."""
    return [*_hosts(case), *_alive(case)]


def _hosts(case: Tables) -> list[Finding]:
    named: dict[int, dict[str, Cite]] = defaultdict(dict)
    for table in NAMING:
        rows = case.table(table).filter(pl.col("rank").is_not_null() & pl.col("host").is_not_null())
        first = rows.group_by("rank", "host").agg(pl.col("evidence_id", "record").sort_by("evidence_id", "record").first())
        for rank, host, evidence_id, record in first.sort("rank", "host").collect().iter_rows():
            named[rank].setdefault(host, Cite(table, evidence_id, "", record, f"rank {rank} on {host}"))
    torn = {rank: cites for rank, cites in sorted(named.items()) if len(cites) > 1}
    if not torn:
        return []
    rank, cites = next(iter(torn.items()))
    says = f"{ranks_text(list(torn))} stand on two hosts at once: rank {rank} on {' and on '.join(sorted(cites))}"
    shown = [cite for cites in torn.values() for _, cite in sorted(cites.items())]
    numbers = {"candidates": list(torn), "hosts": {str(r): sorted(c) for r, c in torn.items()}}
    return [Finding("sources_disagree", "host_disagrees", says, scope="hosts", numbers=numbers, cites=tuple(shown[:MAX_CITES]))]


def _alive(case: Tables) -> Iterator[Finding]:
    logs = case.derive(job_logs)
    deaths: dict[int, Line] = {}
    for line in logs.lines:
        if line.rank is not None and line.at is not None and (line.signal or (line.exit_code or 0) != 0):
            deaths.setdefault(line.rank, line)
    for rank, death in sorted(deaths.items()):
        for table, moment in SIGNS_OF_LIFE:
            if (found := _later(case, logs, death, table, moment)) is not None:
                at, cite = found
                says = (
                    f"one source says that rank {rank} ended at {death.at:%H:%M:%S} UTC, another has {LIFE[table]} of it at {at:%H:%M:%S} UTC: "
                    "one of the two is of another launch, or its clock is wrong"
                )
                numbers = {"candidates": [rank]}
                yield Finding(
                    "sources_disagree", "seen_after_death", says, scope=f"rank {rank}", numbers=numbers, cites=(cite_line(death), cite)
                )
                break


def _later(case: Tables, logs: JobLogs, death: Line, table: str, moment: str) -> tuple[datetime, Cite] | None:
    """The last sign of life of the rank, where it is later than its death for certain."""
    rows = case.table(table).filter((pl.col("rank") == death.rank) & pl.col(moment).is_not_null())
    if table == "stacks" and death.pid is not None:
        rows = rows.filter((pl.col("pid") == death.pid) & (pl.col("dump_status") == "ok"))
    last = rows.sort(moment, "evidence_id", "record").tail(1).select(moment, "evidence_id", "record").collect().rows()
    if not last:
        return None
    at, evidence_id, record = last[0]
    host = logs.hosts.get(death.rank) if death.rank is not None else None
    if logs.clocks.order((at, host), (death.at, death.clock)) != 1:
        return None
    return at, Cite(table, evidence_id, "", record, f"rank {death.rank} at {at:%H:%M:%S.%f} UTC")
