"""One pipeline stage never posts a send: its rank waits in a loop of its own code."""

from __future__ import annotations

from rca.drills._layout import Injection, Layout, pick
from rca.errors import UsageError

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject"]

TRUTH = {
    "cause": ["code_hang"],
    "layer": ["software"],
    "attribution": ["workload"],
    "action": ["fix_code", "human"],
}
STORY = "before the send a rank asks again and again whether the next stage has room; the answer never comes"
TRAP = "the next stage waits in recv and nobody has sent; both have few calls open, and the tensor-parallel peers run ahead"
ENDS = "stall"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank of a stage that has a next one hangs between its forward pass and the send."""
    senders = [row["rank"] for row in layout.ranks() if row["pp"] < layout.pp - 1]
    if not senders:
        raise UsageError("this fault needs two pipeline stages: make pp larger than 1")
    rank, step, _ = pick("p2p_stuck", layout, seed=seed, ranks=senders)
    return Injection((rank,), step, {str(rank): {"slot": {"step": step}}})
