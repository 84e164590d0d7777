"""Numbers that go wrong: not finite, jumping, or bits that differ between replicas. Whose they are is to be seen only before they are averaged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from rca.drills.simulated._numbers import Jump
from rca.drills.simulated._run import Run, S

if TYPE_CHECKING:
    from rca.drills._synthetic_world import World
    from rca.drills.simulated._scene import Scene

__all__ = [
    "loss_not_finite_everywhere",
    "loss_spike_everywhere",
    "loss_spike_one_rank",
    "nan_check_raises",
    "nan_in_replica",
    "nan_one_rank",
    "silent_corruption",
    "silent_corruption_of_two",
    "silent_corruption_unseen",
]


def _num_equal(world: World) -> int:
    """Ranks that hold the same parameters: replicas with other experts hold others."""
    return world.dp // world.ep * world.cp


NEEDS: Final[Mapping[str, Callable[[World], bool]]] = {
    "nan_one_rank": lambda world: world.tp * world.pp * world.cp == 1,
    "nan_in_replica": lambda world: world.tp * world.pp * world.cp > 1 and world.dp > 1,
    "loss_spike_one_rank": lambda world: world.tp * world.pp * world.cp == 1 and world.dp > 3,
    "silent_corruption": lambda world: world.dp > 2 and _num_equal(world) > 2,  # fewer outvote nobody
    "silent_corruption_of_two": lambda world: world.dp > 1 and _num_equal(world) == 2,
    "silent_corruption_unseen": lambda world: world.dp > 2,
}
CLASS: Final[Mapping[str, str]] = {"silent_corruption_unseen": "unanswerable"}
NUMERIC_CAUSES: Final = ("numeric_divergence", "bad_sample", "silent_data_corruption")


def _goes_on(run: Run, *, numbers: bool = True) -> None:
    run.has_numbers = numbers
    run.plays(until=run.num_steps)
    run.scene.recorder.is_there = False
    run.scene.stacks.is_there = False


def _sample_or_chip(scene: Scene, run: Run, rank: int) -> None:
    """One step on record does not tell a sample from a chip or the model; rolling back before it is right for all of them."""
    scene.tell(
        list(NUMERIC_CAUSES),
        [rank],
        action=["rollback", "quarantine_data", "human"],
        evict_hosts=[run.host(rank)],
        attribution=["workload", "platform", "unknown"],
    )


def nan_one_rank(scene: Scene) -> None:
    """The gradients of one rank are not finite in one step, and after it everybody's are."""
    run = Run.of(scene, goes_on=True)
    rank = run.pick()
    run.trouble.nan_at[rank] = run.bite
    _goes_on(run)
    _sample_or_chip(scene, run, rank)


def nan_in_replica(scene: Scene) -> None:
    """A value that is not finite spreads over the lanes and stages of its replica within the step: which rank made it is lost."""
    run = Run.of(scene, goes_on=True)
    rank = run.pick()
    run.trouble.nan_at[rank] = run.bite
    _goes_on(run)
    replica = run.replica(rank)
    scene.tell(
        list(NUMERIC_CAUSES),
        replica,
        any_of_ranks=True,
        tie=True,
        or_nobody=True,
        action=["rollback", "quarantine_data", "human"],
        attribution=["workload", "platform", "unknown"],
    )


def loss_not_finite_everywhere(scene: Scene) -> None:
    """Loss and gradients of all ranks are not finite from one step on: nobody was first."""
    run = Run.of(scene, goes_on=True)
    run.trouble.all_nan_at = run.bite
    _goes_on(run, numbers=run.rng.random() < 0.5)
    scene.tell("numeric_divergence", hosts=[], action=["rollback", "human"])


def loss_spike_everywhere(scene: Scene) -> None:
    """Loss and gradient norm of all ranks jump in one step and stay up."""
    run = Run.of(scene, goes_on=True)
    run.trouble.global_spike = Jump(
        run.bite, 4 * run.num_steps, run.rng.choice((2.5, 4.0, 6.0)), run.rng.choice((8.0, 20.0, 60.0))
    )  # it stays up
    is_kept = run.rng.random() < 0.5
    _goes_on(run, numbers=is_kept or run.teller.voice.every > 1)  # of every fifth loss too few are printed to show a jump
    scene.tell(["numeric_divergence", "bad_sample"], hosts=[], action=["rollback", "quarantine_data", "human"], attribution=["workload"])


def loss_spike_one_rank(scene: Scene) -> None:
    """Loss and gradients of one rank jump and stay up: its shard of the data is damaged from there on."""
    run = Run.of(scene, goes_on=True)
    rank = run.pick()
    run.trouble.spike[rank] = Jump(run.bite, 4 * run.num_steps, run.rng.choice((3.0, 5.0, 8.0)), run.rng.choice((8.0, 20.0, 60.0)))
    _goes_on(run)
    _sample_or_chip(scene, run, rank)


def nan_check_raises(scene: Scene) -> None:
    """A trainer that checks its gradients raises when they are not finite, on the rank that has them."""
    run = Run.of(scene)
    rank = run.pick()
    run.plays()
    at = run.bite_at
    text = run.rng.choice(
        (
            f"AssertionError: Rank {rank}: found NaN in local grad norm for bucket #0 in backward pass "
            f"before data-parallel communication collective. Device: {scene.world.gpu_of(rank)}, node: {run.host(rank)}",
            "FloatingPointError: gradients are not finite (nan)",
            "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        )
    )
    run.teller.raises(
        rank, at, text, (("{program}", "train_step", 191), ("megatron/core/distributed/param_and_grad_buffer.py", "check_grads", 170))
    )
    run.teller.died([rank], at + 2 * S, 1)
    run.no_dumps()
    run.collapses([rank], at + 2 * S)
    _sample_or_chip(scene, run, rank)


def _corrupts(scene: Scene) -> tuple[Run, int]:
    run = Run.of(scene, goes_on=True)
    rank = run.pick()
    run.trouble.parted[rank] = run.bite
    return run, rank


def silent_corruption(scene: Scene) -> None:
    """The parameters of one replica are others from one step on, bit by bit; nothing else shows."""
    run, rank = _corrupts(scene)
    _goes_on(run)
    scene.tell("silent_data_corruption", [rank], evict_hosts=[run.host(rank)])


def silent_corruption_of_two(scene: Scene) -> None:
    """As above, of two replicas: that they differ is seen, which one is wrong is not."""
    run, rank = _corrupts(scene)
    _goes_on(run)
    place = scene.world.coordinates(rank)
    ep = scene.world.ep
    pair = [scene.world.rank(place.t, d, place.p, place.c) for d in range(place.d % ep, scene.world.dp, ep)]
    scene.tell("silent_data_corruption", pair, any_of_ranks=True, tie=True, or_nobody=True, action=["rollback", "human"])


def silent_corruption_unseen(scene: Scene) -> None:
    """As above, but nobody writes checksums: loss and pace are those of a sound job, and nothing at hand tells."""
    run, _rank = _corrupts(scene)
    _goes_on(run, numbers=False)
    scene.tell(["unknown", "healthy"], hosts=[], answerable=False, action=["human", "none"])
