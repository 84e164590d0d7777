"""The loader worker of one rank blocks while it reads a part of the data set."""

from __future__ import annotations

from rca.drills._layout import Injection, Layout, pick

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject"]

TRUTH = {
    "cause": ["data_stall"],
    "layer": ["storage_data"],
    "attribution": ["platform"],
    "action": ["retry"],
}
STORY = "a part file is a pipe that nobody writes to; the worker waits in open() and the trainer for the next batch"
TRAP = "the trainer itself sits in a queue of its loader and has no collective open; its pipeline neighbours wait for it"
ENDS = "stall"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank's loader gets stuck at a sample of the batch of a step."""
    rank, step, rng = pick("data_stall", layout, seed=seed)
    return Injection((rank,), step, {str(rank): {"stuck_part": {"step": step, "at": rng.randrange(8)}}})
