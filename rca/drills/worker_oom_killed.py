"""The kernel kills one trainer because its host is out of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rca.drills._kernel import Line, killed_for_memory
from rca.drills._layout import Injection, Layout, Scene, pick

if TYPE_CHECKING:
    from rca.drills._launch import Job

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "act", "inject", "kernel"]

TRUTH = {
    "cause": ["host_out_of_memory"],
    "layer": ["software"],
    "attribution": ["workload"],
    "action": ["retry"],
}
STORY = "a trainer gets SIGKILL in the middle of a step; the kernel log of its host says that memory was used up"
TRAP = "the process that `invoked oom-killer` is not the one that was killed; survivors log the first tracebacks"
ENDS = "stall"


def inject(layout: Layout, *, seed: int) -> Injection:
    """One rank dies; nothing in the job itself is changed."""
    rank, step, _ = pick("worker_oom_killed", layout, seed=seed)
    return Injection((rank,), step)


def act(job: Job, injection: Injection) -> None:
    """What the kernel does."""
    job.kill_rank(injection.ranks[0])


def kernel(scene: Scene) -> dict[str, list[Line]]:
    """What the kernel says."""
    rank = scene.injection.ranks[0]
    return {scene.layout.host(rank): killed_for_memory(scene.bite_ns, pid=scene.pids[rank], asked_by="node_exporter")}
