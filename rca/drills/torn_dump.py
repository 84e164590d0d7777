"""A rank hangs on a lock, and the recorder dump of a healthy one is cut off."""

from __future__ import annotations

from pathlib import Path

from rca.drills._layout import Injection, Layout, Scene, pick
from rca.drills._spoil import cut

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject", "spoil"]

TRUTH = {
    "cause": ["code_hang"],
    "layer": ["software"],
    "attribution": ["workload"],
    "action": ["fix_code", "human"],
}
STORY = "two threads of one rank wait for each other's locks; the copy of another rank's dump ends in the middle of an entry"
TRAP = "the torn dump ends long before the others, as if its rank had stopped first"
ENDS = "stall"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank deadlocks; of another one only the first part of the dump is left."""
    rank, step, rng = pick("torn_dump", layout, seed=seed)
    torn = rng.choice([other for other in range(layout.world_size) if other != rank])
    place = {"torn_rank": torn, "share_kept": round(rng.uniform(0.3, 0.7), 2)}
    return Injection((rank,), step, {str(rank): {"lock": {"step": step}}}, place=place)


def spoil(folder: Path, scene: Scene) -> None:
    """Cut the dump."""
    place = scene.injection.place
    cut(folder / "fr" / f"nccl_trace_rank_{place['torn_rank']}", place["share_kept"])
