"""An operator stops the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rca.drills._layout import Injection, Layout, pick

if TYPE_CHECKING:
    from rca.drills._launch import Job

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "act", "inject"]

TRUTH = {
    "cause": ["planned_stop"],
    "layer": ["operator"],
    "attribution": ["planned"],
    "action": ["none"],
}
STORY = "the operator's line stands in every launcher's log, then SIGTERM ends all ranks; no process is left to ask"
TRAP = "some rank dies first, and others may log its closed connection before they end"
ENDS = "stopped"
REASONS = (
    "draining the job for a maintenance window (power feed of row 4), it is queued again afterwards",
    "stop requested by the owner of the job, to change the data mix",
    "shutting the partition down for a driver update, as announced",
)


def inject(layout: Layout, *, seed: int) -> Injection:
    """No rank is hit; the whole job is stopped in a step."""
    _, step, rng = pick("planned_stop", layout, seed=seed)
    return Injection(step=step, place={"reason": rng.choice(REASONS)})


def act(job: Job, injection: Injection) -> None:
    """Announce it, then end it."""
    for host in job.layout.hosts:
        job.say(host, f"{{now}} operator: {injection.place['reason']}")
    job.terminate()
