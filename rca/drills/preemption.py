"""The scheduler takes the nodes for another job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rca.drills._layout import Injection, Layout, pick

if TYPE_CHECKING:
    from rca.drills._launch import Job

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "act", "inject"]

TRUTH = {
    "cause": ["preemption"],
    "layer": ["operator"],
    "attribution": ["planned"],
    "action": ["none"],
}
STORY = "the scheduler's line names the reason in the log of the first host, then SIGTERM ends all ranks"
TRAP = "the launchers only report signal 15; without that one line it looks like a stop by nobody"
ENDS = "stopped"


def inject(layout: Layout, *, seed: int) -> Injection:
    """No rank is hit; the whole job is stopped in a step."""
    _, step, rng = pick("preemption", layout, seed=seed)
    return Injection(step=step, place={"job_id": rng.randrange(10_000, 99_999)})


def act(job: Job, injection: Injection) -> None:
    """What the scheduler prints, then what it does."""
    host, number = job.layout.hosts[0], injection.place["job_id"]
    job.say(host, f"slurmstepd: error: *** STEP {number}.0 ON {host} CANCELLED AT {{now}} DUE TO PREEMPTION ***")
    job.terminate()
