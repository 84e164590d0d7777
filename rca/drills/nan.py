"""The gradients of one rank are no longer finite from one sample on."""

from __future__ import annotations

from rca.drills._layout import Injection, Layout, pick

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject"]

TRUTH = {
    "cause": ["numeric_divergence"],
    "layer": ["numeric"],
    "attribution": ["workload"],
    "action": ["rollback"],
}
STORY = "a sample overflows in the backward pass of one rank; the check before the reduction stops it, or, in odd seeds without one, the job goes on"
TRAP = "after the reduction all ranks hold NaN in the same step; where the check stops the first rank, its peers log closed connections"
ENDS = "either"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank's gradients become NaN in a step; even seeds stop there, odd ones go on."""
    rank, step, _ = pick("nan", layout, seed=seed)
    return Injection((rank,), step, {str(rank): {"overflow": {"step": step}}}, config={"check_nan": seed % 2 == 0}, shows_after=8)
