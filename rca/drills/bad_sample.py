"""The data set of one rank raises an exception at one sample."""

from __future__ import annotations

from rca.drills._layout import Injection, Layout, pick

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject"]

TRUTH = {
    "cause": ["bad_sample"],
    "layer": ["storage_data"],
    "attribution": ["workload"],
    "action": ["quarantine_data"],
}
STORY = "one sample of the host's copy of the data is cut short; the loader names it, the rank ends with exit code 1"
TRAP = "the ranks beside it log a closed connection, some of them several times over"
ENDS = "stall"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank's loader worker raises at a sample of the batch of a step."""
    rank, step, rng = pick("bad_sample", layout, seed=seed)
    return Injection((rank,), step, {str(rank): {"bad_sample": {"step": step, "at": rng.randrange(8)}}})
