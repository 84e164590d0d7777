"""Simulated incidents: worlds of 8 to 16,384 ranks, what physically happens in them, the evidence it leaves, and the truth.

`simulate` makes a scene, `write` its files, `frames` its tables; the kinds of incidents are the functions of the modules in `kinds`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rca.drills._synthetic_world import World
from rca.drills.simulated._confusions import CONFUSIONS
from rca.drills.simulated._emit import frames, write
from rca.drills.simulated._kinds import KINDS, Kind, class_of, layouts
from rca.drills.simulated._scene import Scene, Steps, new_scene
from rca.drills.simulated._thinning import thin

__all__ = ["CONFUSIONS", "KINDS", "Kind", "Scene", "Steps", "World", "class_of", "frames", "layouts", "simulate", "write"]


def simulate(kind: str, world: World, seed: int, confusions: Sequence[Callable[[Scene], None]] = (), *, is_thinned: bool = False) -> Scene:
    """The incident of that kind in that world; the same seed makes the same. Confusions are applied in order after it, the zone of all logs before
    those that write some; `is_thinned`: then evidence is taken away."""
    scene = new_scene(kind, world, seed)
    KINDS[kind].make(scene)
    for confuse in sorted(confusions, key=lambda confuse: confuse is not CONFUSIONS["local_time"]):
        confuse(scene)
    if scene.truth["hosts"] and not (scene.style.has_map or (scene.stacks.is_there and scene.stacks.has_index)):
        scene.style = replace(scene.style, has_map=True)  # else nothing says where a rank sits, and its host is no fair question
    if is_thinned:
        thin(scene)
    return scene
