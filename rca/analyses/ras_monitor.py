"""Which processes did NCCL's RAS monitor declare dead while the job ran?

1. The monitor prints an event when a process cannot be reached for a minute. Take those that tell of a death.
2. Processes end when jobs do: where the job ended well or was asked to stop, or where at least half of its ranks are declared dead, nobody is
   accused. Else the rank of that process is, where the evidence knows it; failing that only process and host are named.
3. The stamps have no zone, so an event is not ordered against other hosts' clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from rca.analyses._faults import story
from rca.analyses._job_logs import READS
from rca.analyses._nccl_ranks import ranks_of
from rca.analyses._words import ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("trainer_events",)
USES = (*READS, "host_addresses")
SIGNS = {"peer_dead": Sign("absent", ("process_killed", "host_lost", "user_exception", "unknown"))}

DEAD: Final = r"(?i)dead"
MAX_CITES: Final = 6
MAX_NAMED: Final = 4


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for all deaths; NotEnoughEvidence where the monitor did not run."""
    events = case.table("trainer_events").filter(pl.col("source") == "nccl_ras").sort("evidence_id", "record").collect()
    if events.is_empty():
        raise NotEnoughEvidence("no events of the RAS monitor are among those here")
    told = case.derive(story)
    dead = events.filter(pl.col("event").str.contains(DEAD)).rows(named=True)
    if not dead or told.stop.is_asked or (told.logs.everyone and not told.not_seen_to_end_well):
        return ()
    known = ranks_of(case, told.logs)
    members = {known.rank(row["host"], row["pid"]) if row["pid"] is not None else None: row for row in dead}
    ranks = sorted(rank for rank in members if rank is not None)
    is_whole = None not in members and 2 * len(ranks) < len(told.logs.everyone)
    words = [f"process {row['pid']} on {known.host(row['host'])}" for row in dead]
    names = (
        ranks_text(ranks)
        if is_whole
        else ", ".join(words[:MAX_NAMED]) + (f" and {len(words) - MAX_NAMED} more" if words[MAX_NAMED:] else "")
    )
    hosts = tuple(sorted({host for row in dead if (host := known.host(row["host"])) is not None}))
    cites = tuple(
        Cite("trainer_events", r["evidence_id"], "", r["record"], f"{r['event']}: process {r['pid']} on {r['host']}") for r in dead
    )
    return [
        Finding(
            "ras_monitor", "peer_dead", f"the RAS monitor declared dead: {names}", ranks=tuple(ranks) if is_whole else (), hosts=hosts,
            scope=f"dead {names}", explains=tuple(sorted(told.logs.everyone - set(ranks))) if is_whole else (),
            numbers={"candidates": [] if is_whole else ranks}, cites=cites[:MAX_CITES],
        )
    ]  # fmt: skip
