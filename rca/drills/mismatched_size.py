"""One rank calls a collective with another size than its peers."""

from __future__ import annotations

from rca.drills._layout import Injection, Layout, pick, shared_kind

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject"]

TRUTH = {
    "cause": ["collective_mismatch"],
    "layer": ["software"],
    "attribution": ["workload"],
    "action": ["fix_code", "human"],
}
STORY = "the gradient bucket of one rank is padded, so that its all_reduce is larger than that of its data-parallel peers"
TRAP = "the peers report the error, or their neighbours do when connections close"
ENDS = "stall"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank's data-parallel all_reduce has 64 to 512 elements too many."""
    rank, step, rng = pick("mismatched_size", layout, seed=seed)
    shared_kind(layout, ("dp",), rng)
    return Injection((rank,), step, {str(rank): {"pad": {"step": step, "num_extra": 64 * rng.randint(1, 8)}}})
