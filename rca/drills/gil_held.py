"""A call into a C library keeps the interpreter lock on one rank: no thread of its Python runs any more."""

from __future__ import annotations

from rca.drills._layout import Injection, Layout, pick

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject"]

TRUTH = {
    "cause": ["code_hang"],
    "layer": ["software"],
    "attribution": ["workload"],
    "action": ["fix_code", "human"],
}
STORY = "the gradients of a rank go through a C function that neither comes back nor lets other threads run"
TRAP = "the rank leaves no recorder dump, as a dead one would, but its process lives; its peers wait in their collectives"
ENDS = "stall"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank hangs between the backward pass and the data-parallel reduction."""
    rank, step, _ = pick("gil_held", layout, seed=seed)
    return Injection((rank,), step, {str(rank): {"native": {"step": step}}})
