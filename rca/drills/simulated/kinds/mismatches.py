"""Ranks that make other calls than their peers: the code lets one of them leave out, double, swap or alter a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rca.drills._synthetic_job import Axis, Kind
from rca.drills._synthetic_world import World
from rca.drills.simulated._calls import last_of, swap_in
from rca.drills.simulated._evidence import hang_evidence
from rca.drills.simulated._scene import Scene

__all__ = [
    "NEEDS",
    "barrier_skipped",
    "extra_collective",
    "mismatched_dtype",
    "mismatched_op",
    "mismatched_size",
    "p2p_skipped",
    "skipped_collective",
    "wrong_order",
]

_SHARED: Final[tuple[Axis, ...]] = ("tp", "dp", "world")


def _one(scene: Scene, kind: Kind, axes: tuple[Axis, ...], *, back: int = 0) -> None:
    """One rank's call differs on an axis along which it has peers; `back`: in which step before the last, where the rank runs on after it."""
    rng, world = scene.rng, scene.world
    shared = [axis for axis in axes if axis == "world" or world.size(axis) > 1]
    rank = rng.randrange(world.world_size)
    scene.recorder.faults.append(last_of(scene, kind, [rank], rng.choice(shared), back=back, among=6))
    _end(scene, rank)


def _end(scene: Scene, rank: int) -> None:
    hang_evidence(scene, needs=["recorder"])
    scene.tell("collective_mismatch", [rank])


def barrier_skipped(scene: Scene) -> None:
    """A rank leaves out the barrier at the end of a step and runs on into the next one."""
    scene.job = replace(scene.job, world_name=scene.rng.choice(("barrier", "all_reduce_barrier")), world_ops=1)
    _one(scene, "skip", ("world",), back=1)


def skipped_collective(scene: Scene) -> None:
    """A branch of the code lets one rank leave out one call of a group; the job stops where the two orders of calls cross."""
    _one(scene, "skip", ("tp", "dp"), back=1)


def extra_collective(scene: Scene) -> None:
    """One rank makes a call twice."""
    _one(scene, "extra", _SHARED, back=1)


def wrong_order(scene: Scene) -> None:
    """One rank makes two calls of a group in the opposite order."""
    rng, world = scene.rng, scene.world
    rank = rng.randrange(world.world_size)
    scene.job = replace(scene.job, dp_ops=max(scene.job.dp_ops, 2), tp_ops=max(scene.job.tp_ops, 4))
    scene.recorder.faults.append(swap_in(scene, rank, [axis for axis in ("dp", "tp") if world.size(axis) > 1]))
    _end(scene, rank)


def mismatched_size(scene: Scene) -> None:
    """One rank calls with a tensor of another size."""
    _one(scene, "size", _SHARED)


def mismatched_dtype(scene: Scene) -> None:
    """One rank calls with a tensor of another type."""
    _one(scene, "dtype", _SHARED)


def mismatched_op(scene: Scene) -> None:
    """One rank calls another operation than its peers."""
    _one(scene, "op", _SHARED)


def p2p_skipped(scene: Scene) -> None:
    """One rank leaves out a transfer to or from the next stage and runs on."""
    scene.use_nccl()
    _one(scene, "p2p_skip", ("pp",))


NEEDS: dict[str, Callable[[World], bool]] = {"p2p_skipped": lambda world: world.pp > 1}
