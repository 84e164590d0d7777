"""One rank computes at half its speed from a step on."""

from __future__ import annotations

from rca.drills._layout import Injection, Layout, pick

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject"]

TRUTH = {
    "cause": ["slow_rank"],
    "layer": ["hardware"],
    "attribution": ["platform"],
    "action": ["replace", "degrade"],
}
STORY = "forward and backward passes of one rank take about twice as long; every step of the job takes longer, nothing stops"
TRAP = "the step time rises on all ranks alike; the others only wait longer, each in its own group"
ENDS = "running"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank's computation takes 1.8 to 2.4 times as long."""
    rank, step, rng = pick("slow_rank", layout, seed=seed)
    slow = {"step": step, "factor": round(rng.uniform(1.8, 2.4), 2)}
    return Injection((rank,), step, {str(rank): {"slow": slow}}, shows_after=15)
