"""A healthy job, captured while it runs."""

from __future__ import annotations

from rca.drills._layout import Injection, Layout, pick

__all__ = ["ENDS", "STORY", "TRAP", "TRUTH", "inject"]

TRUTH = {
    "cause": ["healthy"],
    "layer": ["none"],
    "attribution": ["none"],
    "action": ["none"],
}
STORY = "nothing is wrong; the ranks are seen at different places of a step because they are at different places"
TRAP = "dumps taken moments apart end at different sequence numbers, and someone is always the last to arrive"
ENDS = "running"


def inject(layout: Layout, *, seed: int) -> Injection:
    """No rank is hit; the step is the first at which the job counts as running."""
    _, step, _ = pick("none", layout, seed=seed)
    return Injection(step=step)
