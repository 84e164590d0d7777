"""One rank hangs inside the write of a checkpoint."""

from __future__ import annotations

from rca.drills._kernel import Line, share_gone
from rca.drills._launch import SAVE_EVERY
from rca.drills._layout import Injection, Layout, Scene, pick

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject", "kernel"]

TRUTH = {
    "cause": ["storage_stall"],
    "layer": ["storage_data"],
    "attribution": ["platform"],
    "action": ["retry"],
}
STORY = "the file of one shard is a pipe that nobody reads; every second seed the kernel already says that its server is gone"
TRAP = "all others wait in the barrier after the save, the ranks that had nothing to write first of all"
ENDS = "stall"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank of the first replica, which writes the checkpoint, gets stuck at a save."""
    writers = [row["rank"] for row in layout.ranks() if row["dp"] == 0]
    rank, _, _ = pick("checkpoint_stuck", layout, seed=seed, ranks=writers)
    step = SAVE_EVERY - 1
    return Injection((rank,), step, {str(rank): {"stuck_save": {"step": step}}})


def kernel(scene: Scene) -> dict[str, list[Line]]:
    """The share's client complains, but not always in time."""
    host = scene.layout.host(scene.injection.ranks[0])
    return {host: share_gone(scene.bite_ns + 4_000_000_000)} if scene.seed % 2 else {}
