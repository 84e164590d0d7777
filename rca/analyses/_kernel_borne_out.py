"""Is a kernel record that bears no instant of the job's end? By itself it is not: a GPU may have been lost days before, or after the job stood.

It is where something beside its time says so: the record, or another one of its host, names a process of a rank; a rank of that host failed by its
log, or is the one that calls wait for; all other hosts gave up waiting, and a rank of this one did not; a log that names no rank tells of a broken
GPU. Where no log of the job is at hand, the kernels' are all that tells of it, and they were kept for a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rca.analyses._faults import Story, complains
from rca.analyses._kernel_events import Record
from rca.analyses._kernel_roots import Scene
from rca.analyses._waits import build_waits
from rca.types import Tables

__all__ = ["is_borne_out"]

OF_DEVICES: Final = frozenset({"gpu_memory_error", "gpu_error", "unspecified_failure"})  # kinds of faults by which a program names its GPU


def is_borne_out(case: Tables, told: Story, seen: Scene, roots: Sequence[Record]) -> bool:
    """Whether the time of one of these roots, or something beside it, says that it is of the job."""
    if any(r.line.at is not None for r in roots) or not told.logs.lines:
        return True
    hosts = {r.host for r in roots}
    on_hosts = {rank for host in hosts for rank in told.logs.ranks_on(host)}
    if any(r.line.rank is not None for r in seen.live if r.host in hosts):
        return True
    failed = {rank for fault in told.first for rank in fault.ranks}
    if failed & on_hosts or any(fault.kind in OF_DEVICES for fault in told.unplaced):
        return True
    waits = case.derive(build_waits)
    gave_up = {line.rank for line in told.logs.lines if line.rank is not None and complains(line)}
    is_quiet = bool(gave_up) and told.logs.everyone - on_hosts <= gave_up and not on_hosts <= gave_up
    return is_quiet or bool(on_hosts & set(waits.awaited) - set(waits.first) - waits.held)
