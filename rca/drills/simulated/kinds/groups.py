"""Groups of ranks that stand apart as a whole, so that nobody inside can be told apart: the group goes, innocents and all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rca.drills._synthetic_world import World
from rca.drills.simulated._calls import last_of
from rca.drills.simulated._evidence import hang_evidence
from rca.drills.simulated._frameworks import FRAMEWORKS, collective, stand
from rca.drills.simulated._run import Run
from rca.drills.simulated._scene import Scene
from rca.drills.simulated._stacks import ProcessStack, Thread

__all__ = ["NEEDS", "outlier_pipeline", "slow_machine_by_votes"]


def outlier_pipeline(scene: Scene) -> None:
    """A call inside the last stage of one replica never ends; with it waits that replica's pipeline, and all others in the joining of gradients.

    Only stacks are left. They show one replica that stands apart; a link, a GPU or a kernel of any of its hosts may be the reason.
    """
    scene.style = replace(scene.style, framework=FRAMEWORKS["megatron"])
    scene.use_nccl()
    scene.job = replace(scene.job, p2p_sync=True, microbatches=max(scene.job.microbatches, scene.world.pp))
    rng, world = scene.rng, scene.world
    last = [rank for rank in range(world.world_size) if world.coordinates(rank).p == world.pp - 1]
    rank = rng.choice(last)
    axis = "tp" if world.tp > 1 else "pp"
    scene.recorder.faults.append(last_of(scene, "stuck", [rank], axis, among=4))
    run = hang_evidence(scene, needs=["stacks"])
    scene.recorder.is_there = False
    scene.stacks.samples = max(scene.stacks.samples, 2)
    run.has_timings = run.has_numbers = run.has_kernel = False
    scene.steps = None
    replica = run.replica(rank) if world.cp == 1 else _replica(world, rank)
    hosts = sorted({world.host_of(r) for r in replica})
    scene.tell(
        ["unknown", "gpu_fault", "network_fault", "nvlink_fault"], [], action=["replace", "human"],
        layer=["unknown", "hardware", "communication"], attribution=["unknown", "platform"],
        group={"kind": "mp" if world.tp > 1 else "pp", "ranks": replica}, evict_hosts=hosts,
    )  # fmt: skip


def _replica(world: World, rank: int) -> list[int]:
    """The copy of the model that a rank belongs to, of all context-parallel places."""
    d = world.coordinates(rank).d
    return [r for r in range(world.world_size) if world.coordinates(r).d == d]


def slow_machine_by_votes(scene: Scene) -> None:
    """A host computes slower than all others; stacks of every few seconds show its ranks at work while their peers already wait for them."""
    scene.use_nccl()
    rng, world, framework = scene.rng, scene.world, scene.style.framework
    host = rng.choice(world.host_names())
    slow = set(world.ranks_on(host))
    scene.stacks.samples, scene.stacks.gap_s, scene.stacks.is_there = rng.randrange(5, 8), 10.0, True
    scene.recorder.is_there = False
    waits = ProcessStack((Thread(collective(framework, "world", "all_reduce", blocks=False), is_active=True),))
    works = [ProcessStack((Thread(stand(framework, where), is_active=True),)) for where in ("forward", "backward")]
    share = rng.uniform(0.65, 0.95)  # of the samples that meet the slow host at work while the others wait
    chances = [rng.random() < share for _ in range(scene.stacks.samples)]
    chances[rng.randrange(len(chances))] = False  # a job that makes progress is met at work now and then
    at = [
        [rng.randrange(2) for _ in chances] for _ in range(world.world_size)
    ]  # where each rank works, sample by sample: they share no beat

    def shown(rank: int) -> Callable[[int], tuple[ProcessStack, ...]]:
        def processes(sample: int) -> tuple[ProcessStack, ...]:
            is_late = chances[sample % len(chances)]
            if is_late and rank not in slow:
                return (waits,)
            return (works[at[rank][sample % len(chances)]],)

        return processes

    for rank in range(world.world_size):
        scene.stacks.instead[rank] = shown(rank)
    run = Run.of(scene, goes_on=True)
    run.plays(silent=rng.random() < 0.3)
    run.has_timings = run.has_numbers = run.has_kernel = False
    scene.steps = None
    scene.tell(
        ["slow_rank", "unknown"], [], action=["replace", "human", "degrade"],
        group={"kind": "host", "ranks": sorted(slow)}, evict_hosts=[host],
    )  # fmt: skip


_PIPELINED: Final[Callable[[World], bool]] = lambda world: world.pp > 1 and world.dp > 2 and world.num_hosts > 2  # noqa: E731
NEEDS: dict[str, Callable[[World], bool]] = {
    "outlier_pipeline": _PIPELINED,
    "slow_machine_by_votes": lambda world: 2 < world.num_hosts < 200,
}
