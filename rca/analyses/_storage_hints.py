"""Whether the job itself speaks of storage: its logs, or what its processes do when they were last seen.

Every machine has disks and mounts that no job needs, and their errors stand in the same kernel log. One of them explains the end of a job only
where the job had to do with storage then.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from rca.analyses._faults import Story
from rca.analyses._stack_views import main_views
from rca.types import Tables

__all__ = ["in_storage", "speaks_of_storage"]

FAULTS: Final = frozenset({"storage_error", "loader_timed_out", "checkpoint_unreadable"})
SIGNATURES: Final = frozenset({"storage_timeout", "shm_full"})
ACTIVITIES: Final = frozenset({"checkpoint", "dataloader"})  # waits for files, or for workers that do


def speaks_of_storage(case: Tables, told: Story) -> bool:
    """Whether a fault or line of the logs is about storage, or a rank's last stack waits for it (or cannot be taken, as in a stuck read)."""
    if any(fault.kind in FAULTS for fault in (*told.first, *told.others, *told.unplaced)):
        return True
    if case.table("log_events").filter(pl.col("signature").is_in(sorted(SIGNATURES))).head(1).collect().height:
        return True
    last = [views[-1] for views in case.derive(main_views).values() if views]
    return bool(case.derive(in_storage)) or any(v.dump_status == "suspend_failed" for v in last)


def in_storage(case: Tables) -> frozenset[int]:
    """Ranks whose last stack waits for storage, or for what reads and writes it. Use it as `case.derive(in_storage)`."""
    last = {rank: views[-1] for rank, views in case.derive(main_views).items() if views}
    return frozenset(rank for rank, v in last.items() if v.activity in ACTIVITIES or v.wait_kind == "io")
