"""A rank hangs on a lock, and the clock of another host is minutes behind."""

from __future__ import annotations

from pathlib import Path

from rca.drills._layout import Injection, Layout, Scene, pick
from rca.drills._spoil import shift_clock

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject", "spoil"]

TRUTH = {
    "cause": ["code_hang"],
    "layer": ["software"],
    "attribution": ["workload"],
    "action": ["fix_code", "human"],
}
STORY = "two threads of one rank wait for each other's locks; every stamp that another host wrote is 3 to 9 minutes too early"
TRAP = "by the clock that other host's ranks made their last call and wrote their last step minutes before the rest"
ENDS = "stall"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank deadlocks; a host without it has the wrong time."""
    rank, step, rng = pick("clock_skew", layout, seed=seed)
    host = rng.choice([host for host in layout.hosts if host != layout.host(rank)])
    return Injection((rank,), step, {str(rank): {"lock": {"step": step}}}, place={"host": host, "behind_s": rng.randrange(180, 540)})


def spoil(folder: Path, scene: Scene) -> None:
    """Set that host's stamps back."""
    place = scene.injection.place
    shift_clock(folder, scene, host=place["host"], by_s=-place["behind_s"])
