"""What all stacks of a case show together: the training loop, whether the job moves, and where each rank stands in the end. Made once a case."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rca.analyses._stack_views import BACKWARD, UNTOLD, Loop, Motion, View, in_loop, main_motion, main_views, seen, steps_meanwhile
from rca.types import Cite, Tables

__all__ = ["SCENE_USES", "Scene", "ends_by_itself", "hidden_wait", "moves", "scene", "stays"]

SCENE_USES = ("stack_frames", "collectives", "steps", "progress", "dump_index")  # tables that it asks for beside stacks
TELLING = ("suspend_failed", "process_gone")  # failures of a dump that say something of the process
_OWN = ("train_step", "eval", "inference", "unknown")  # activities in which a place that names no wait may be one for other ranks


_LONG_WORK = re.compile(
    r"torch/_(?:inductor|dynamo|functorch)\b|\btriton/|:_?build\w*(?:index|idx|dataset)|:_?(?:evaluate|validate|validation|run_eval|compile|warm_?up)\w*$"
)


@dataclass(frozen=True)
class Scene:
    """The main threads of all ranks, over all samples."""

    views: Mapping[int, Sequence[View]]
    loop: Loop
    motion: Motion
    steps: tuple[Cite, ...]  # first and last step that logs or timings tell of between the samples
    last: Mapping[int, View]  # rank -> its last view inside the loop (one that left it after a failed call still shows where it waited)
    failed: Mapping[int, View]  # rank -> its last view, where no sample gave a stack and the failure says something of the process

    @property
    def runs(self) -> bool:
        """Whether the job moved between the samples, by its stacks or its steps."""
        return self.motion.job_moves or bool(self.steps)


def scene(case: Tables) -> Scene:
    """The scene of a case; to be derived."""
    views = case.derive(main_views)
    loop, motion = case.derive(main_motion)
    return Scene(views, loop, motion, steps_meanwhile(case, views), _last_inside(views, loop), _failed(views))


def _last_inside(views: Mapping[int, Sequence[View]], loop: Loop) -> dict[int, View]:
    found = {}
    for rank, all_views in views.items():
        shown = seen(all_views)
        inside = [v for v in shown if in_loop(v, loop)]
        if inside or (shown and len(shown) == len(all_views)):
            found[rank] = (inside or shown)[-1]
    return found


def _failed(views: Mapping[int, Sequence[View]]) -> dict[int, View]:
    return {rank: v[-1] for rank, v in views.items() if v and not seen(v) and v[-1].dump_status in TELLING}


def stays(views: Sequence[View], view: View) -> bool:
    """Whether every sample shows the rank at the same thing (a loader that polls changes its leaf, not its activity)."""
    return all(
        v.stack_id == view.stack_id or (v.activity == view.activity and v.activity in ("dataloader", "checkpoint")) for v in seen(views)
    )


def moves(views: Sequence[View]) -> bool:
    """Whether its samples show it at more than one line."""
    return len({(v.stack_id, v.lines) for v in seen(views)}) > 1


def ends_by_itself(views: Sequence[View], view: View) -> bool:
    """Whether it gets on with work that is long in sound jobs: the first rank's own (logs, indexes), an evaluation, a save, a compiler's."""
    known = view.rank == 0 or view.activity in ("eval", "checkpoint") or any(map(_LONG_WORK.search, view.frames))
    return known and moves(views)


def hidden_wait(view: View) -> str | None:
    """The sort of wait for others that a stack may be in without naming it: backward, device, place; None = none."""
    if view.leaf in BACKWARD and view.wait_kind == UNTOLD:
        return "backward"
    if view.wait_kind == "cuda_sync":
        return "device"
    return "place" if view.wait_kind == UNTOLD and view.activity in _OWN else None
