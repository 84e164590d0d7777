"""One rank raises an exception in the training code and ends."""

from __future__ import annotations

from rca.drills._layout import Injection, Layout, pick

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject"]

TRUTH = {
    "cause": ["user_exception"],
    "layer": ["software"],
    "attribution": ["workload"],
    "action": ["fix_code", "human"],
}
STORY = "the learning rate schedule of one rank lacks its first entry: KeyError in the optimizer step, exit code 1"
TRAP = "its peers log a closed connection with longer tracebacks than its own"
ENDS = "stall"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank looks up a learning rate that isn't there."""
    rank, step, _ = pick("user_exception", layout, seed=seed)
    return Injection((rank,), step, {str(rank): {"schedule": {"step": step}}})
