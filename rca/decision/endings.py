"""What shows how a job has ended, besides the fault itself: time-outs that took ranks down, the scheduler's books, a stop after a stall. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rca.types import Finding

__all__ = ["AFTER_STALL", "booked_end", "timed_out"]

PLACED: Final = frozenset(
    {"node_failed", "out_of_memory", "preempted_on_record", "stopped_on_record", "ended_as"}
)  # signs of the launch's own row
OVER: Final = frozenset(  # states of Slurm in which nothing of a job runs any more (manual page of sacct)
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
)


def timed_out(findings: Iterable[Finding]) -> tuple[int, ...]:
    """Ranks that waited for others until a time-out ended them, sorted."""
    return tuple(sorted({rank for f in findings if f.analysis == "quiet_log" for rank in f.numbers.get("timed_out", ())}))


def booked_end(findings: Iterable[Finding]) -> str | None:
    """The state in which the scheduler's books say this launch ended; None where they tell no end, or not of which launch."""
    told = (str(f.numbers["state"]) for f in findings if f.analysis == "scheduler_record" and f.sign in PLACED)
    return next((state for state in told if state in OVER), None)


AFTER_STALL: Final = (  # what to look at where a job was stopped after it had stood still, and nothing tells why it did
    "the stall is the fault, the stop only ended it: look at the minute of the last step that ended, in the logs of all ranks, the kernel logs of "
    "all hosts, and what storage and network say; if it stands still again, run `rca capture --out DIR` on each host before anybody stops it"
)
