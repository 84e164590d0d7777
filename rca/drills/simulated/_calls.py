"""Which call of a rank's step a fault falls on, told by the phase of the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rca.drills._synthetic_job import Fault, Kind, Op, program_of
from rca.drills.simulated._scene import Scene

__all__ = ["Phase", "fault_at", "last_of", "stop", "swap_in"]

Phase = Literal["start", "forward", "backward", "gradients", "end"]


def stop(scene: Scene, rank: int, phase: Phase) -> None:
    """A rank goes no further than this phase of the step of the fault."""
    scene.recorder.faults.append(fault_at(scene, "stop", [rank], phase))


def fault_at(scene: Scene, kind: Kind, ranks: list[int], phase: Phase, *, back: int = 0) -> Fault:
    """A fault of ranks of one stage at their first call of a phase, `back` steps before the last one that is played."""
    ops, per_step = _ops(scene, ranks[0])
    begin = len(ops) - (back + 1) * per_step
    place = begin + _place(ops[begin : begin + per_step], phase, scene)
    return _as_fault(kind, ranks, ops, place)


def last_of(scene: Scene, kind: Kind, ranks: list[int], axis: str, *, back: int = 0, among: int = 1) -> Fault:
    """A fault at one of the last `among` calls on an axis in the step that lies `back` steps before the last one."""
    ops, per_step = _ops(scene, ranks[0])
    end = len(ops) - back * per_step
    places = [place for place in range(end - per_step, end) if ops[place].axis == axis][-among:]
    return _as_fault(kind, ranks, ops, scene.rng.choice(places))


def swap_in(scene: Scene, rank: int, axes: Sequence[str]) -> Fault:
    """A rank makes two neighbouring calls of one group, which differ, in the opposite order."""
    ops, per_step = _ops(scene, rank)
    begin = len(ops) - per_step
    places = [
        p for p in range(begin, len(ops) - 1) if ops[p].axis in axes and ops[p].axis == ops[p + 1].axis and ops[p].name != ops[p + 1].name
    ]
    return _as_fault("swap", [rank], ops, scene.rng.choice(places))


def _ops(scene: Scene, rank: int) -> tuple[tuple[Op, ...], int]:
    ops = program_of(scene.job, scene.job.coordinates(rank).p).ops
    return ops, len(ops) // scene.job.steps


def _as_fault(kind: Kind, ranks: list[int], ops: tuple[Op, ...], place: int) -> Fault:
    axis = ops[place].axis
    return Fault(kind, tuple(ranks), axis, -sum(op.axis == axis for op in ops[place:]))


def _place(ops: tuple[Op, ...], phase: Phase, scene: Scene) -> int:
    if phase == "start":
        return 0
    if phase == "end":
        return next(place for place, op in enumerate(ops) if op.axis == "world")
    if phase == "gradients":
        return next(place for place, op in enumerate(ops) if op.axis == "dp")
    wanted = [place for place, op in enumerate(ops) if op.axis in ("tp", "cp", "ep") and (12 <= op.stack < 20) == (phase == "backward")]
    return scene.rng.choice(wanted)
