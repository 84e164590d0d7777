"""A host is gone, with its ranks and its launcher, in one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rca.drills._layout import Injection, Layout, pick

if TYPE_CHECKING:
    from rca.drills._launch import Job

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "act", "inject"]

TRUTH = {
    "cause": ["host_lost"],
    "layer": ["hardware"],
    "attribution": ["platform"],
    "action": ["replace"],
}
STORY = "every process of one host gets SIGKILL at once, the launcher too; what its logs held until then is all there is of it"
TRAP = "no launcher reports a death; survivors on other hosts log closed connections, and nothing says that they are not the cause"
ENDS = "stall"


def inject(layout: Layout, *, seed: int) -> Injection:
    """All ranks of a host end during a step; nothing in the job itself is changed."""
    rank, step, _ = pick("host_lost", layout, seed=seed)
    host = layout.host(rank)
    return Injection(tuple(row["rank"] for row in layout.ranks() if row["host"] == host), step, place={"host": host})


def act(job: Job, injection: Injection) -> None:
    """Pull the plug."""
    job.lose_host(injection.place["host"])
