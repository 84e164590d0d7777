"""A rank hangs on a lock while other hosts show harmless trouble of their own."""

from __future__ import annotations

from rca.drills._kernel import DAY_NS, Line, corrected_pcie, old_graphics_exception
from rca.drills._layout import Injection, Layout, Scene, pick

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject", "kernel"]

TRUTH = {
    "cause": ["code_hang"],
    "layer": ["software"],
    "attribution": ["workload"],
    "action": ["fix_code", "human"],
}
STORY = "two threads of one rank wait for each other's locks; another host corrects PCIe errors, a third had a GPU error days ago and loads slowly"
TRAP = "kernel lines about hardware and a slow loader, all on ranks that are not at fault"
ENDS = "stall"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank deadlocks; another one's loader takes longer than a step from step 3 on."""
    rank, step, rng = pick("two_faults", layout, seed=seed)
    others = [host for host in layout.hosts if host != layout.host(rank)]
    corrected, old = rng.sample(others, 2)
    slow = rng.choice([row["rank"] for row in layout.ranks() if row["host"] == old])
    lock, loader = {"lock": {"step": step}}, {"slow_loader": {"step": 3, "sleep_s": 0.045}}
    return Injection((rank,), step, {str(rank): lock, str(slow): loader}, place={"corrected_host": corrected, "old_error_host": old})


def kernel(scene: Scene) -> dict[str, list[Line]]:
    """A corrected error shortly before the hang, an old one from thirteen days ago."""
    place = scene.injection.place
    return {
        place["corrected_host"]: corrected_pcie(scene.bite_ns - 2_000_000_000),
        place["old_error_host"]: old_graphics_exception(scene.bite_ns - 13 * DAY_NS),
    }
