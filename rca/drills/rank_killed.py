"""One rank is killed by SIGKILL in the middle of a step."""

from __future__ import annotations

from rca.drills._layout import Injection, Layout, pick

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject"]

TRUTH = {
    "cause": ["process_killed"],
    "layer": ["unknown"],
    "attribution": ["unknown"],
    "action": ["retry"],
}
STORY = "one process gets SIGKILL between the backward pass and the gradient reduction; by whom is not recorded"
TRAP = "the survivors whose connection closed log the first tracebacks; the dead rank logs nothing and leaves no dump"
ENDS = "stall"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank dies; its dump and its stacks are missing, its agent reports exit code -9."""
    rank, step, _ = pick("rank_killed", layout, seed=seed)
    return Injection((rank,), step, {str(rank): {"kill": {"step": step}}})
