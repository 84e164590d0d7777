"""One bit of one parameter flips on one of three replicas."""

from __future__ import annotations

from rca.drills._layout import Injection, Layout, pick
from rca.errors import UsageError

__all__ = ["ENDS", "LAYOUT", "STORY", "TRAP", "TRUTH", "inject"]

LAYOUT = Layout(tp=2, pp=1, dp=3)  # two replicas only show that they differ, not which of them is wrong
TRUTH = {
    "cause": ["silent_data_corruption"],
    "layer": ["numeric"],
    "attribution": ["platform"],
    "action": ["rollback"],
}
STORY = "after an optimizer step one bit of a weight is another on one rank; the loss stays finite and the job goes on"
TRAP = "no error anywhere; all ranks move, and the checksum of a rank's parameters differs from that of other parts of the model anyway"
ENDS = "running"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One bit, from the middle of the mantissa to the lowest of the exponent."""
    if layout.dp < 3:
        raise UsageError("this fault needs three replicas to tell which one is wrong: make dp 3 or more")
    rank, step, rng = pick("bit_flip", layout, seed=seed)
    flip = {"step": step, "element": rng.randrange(4096), "bit": rng.randrange(15, 24)}
    return Injection((rank,), step, {str(rank): {"flip": flip}}, shows_after=8)
