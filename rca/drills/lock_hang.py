"""The main thread of one rank waits for a lock that another thread of its process holds."""

from __future__ import annotations

from rca.drills._layout import Injection, Layout, pick

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject"]

TRUTH = {
    "cause": ["code_hang"],
    "layer": ["software"],
    "attribution": ["workload"],
    "action": ["fix_code", "human"],
}
STORY = "two threads take two locks in opposite order while the step log is rotated; the main thread never comes back"
TRAP = "every other rank waits in a collective or a transfer of its own group and looks just as stuck"
ENDS = "stall"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank deadlocks with its step-log thread after an optimizer step."""
    rank, step, _ = pick("lock_hang", layout, seed=seed)
    return Injection((rank,), step, {str(rank): {"lock": {"step": step}}})
