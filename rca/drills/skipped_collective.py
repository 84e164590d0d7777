"""One rank leaves out one collective of one group and runs on."""

from __future__ import annotations

from rca.drills._layout import Injection, Layout, pick, shared_kind

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject"]

TRUTH = {
    "cause": ["collective_mismatch"],
    "layer": ["software"],
    "attribution": ["workload"],
    "action": ["fix_code", "human"],
}
STORY = "a branch in the code skips one all_reduce on one rank; the job stops where the two orders of calls cross"
TRAP = "the rank that skipped is ahead of the others and waits in an innocent group; its peer there looks late"
ENDS = "stall"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank skips its first tp, dp or mp all_reduce of a step.

    A skipped dp call bites late: calls pair up one off, with wrong sums, until the next call of the whole world.
    """
    rank, step, rng = pick("skipped_collective", layout, seed=seed)
    kind = shared_kind(layout, ("tp", "mp", "dp"), rng)
    return Injection((rank,), step, {str(rank): {"skip": {"kind": kind, "step": step}}})
