"""Jobs that go on, slower than they should: a rank, a host, the data, a stage, the network of a group. Nobody stops; all wait for the slow one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from rca.drills.simulated import _kernel_host
from rca.drills.simulated._run import Run

if TYPE_CHECKING:
    from rca.drills._synthetic_world import World
    from rca.drills.simulated._scene import Scene

__all__ = [
    "data_imbalance",
    "slow_data_all",
    "slow_data_one_rank",
    "slow_gpu",
    "slow_gpu_ramp",
    "slow_host",
    "slow_network_group",
    "slow_of_unknown_rank",
    "stage_imbalance",
]

NEEDS: Final[Mapping[str, Callable[[World], bool]]] = {
    "stage_imbalance": lambda world: world.pp > 1,
    "slow_host": lambda world: world.num_hosts > 2,
    "data_imbalance": lambda world: world.dp > 3,
    "slow_network_group": lambda world: world.dp > 1 and world.num_hosts > 2,
    "slow_gpu": lambda world: world.dp > 2,
    "slow_gpu_ramp": lambda world: world.dp > 2,
}


CLASS: Final[Mapping[str, str]] = {"slow_of_unknown_rank": "unanswerable"}


def _goes_on(run: Run) -> None:
    """All steps are made; somebody looks while it trains. Timings are what tells."""
    run.has_timings = True
    run.may_trace()
    run.plays(until=run.num_steps)
    run.traces()
    run.scene.recorder.is_there = False
    run.scene.stacks.is_there = False


def slow_gpu(scene: Scene) -> None:
    """One GPU computes slower from some step on: it runs hot, or at a lower clock."""
    run = Run.of(scene, goes_on=True)
    rank, factor = run.pick(), run.rng.choice((1.15, 1.3, 1.6, 2.2))
    run.pace.slow[rank] = run.ramp_up(factor)
    _goes_on(run)
    if run.rng.random() < 0.4:
        run.metrics({rank: factor})
    scene.tell("slow_rank", [rank], evict_hosts=[run.host(rank)], action=["replace", "degrade"])
    run.note(factor=factor)


def slow_gpu_ramp(scene: Scene) -> None:
    """One GPU gets slower little by little."""
    run = Run.of(scene, goes_on=True)
    rank, last = run.pick(), run.rng.choice((1.5, 2.0, 2.5))
    steps = np.arange(run.num_steps)
    run.pace.slow[rank] = 1 + (last - 1) * np.clip((steps - run.bite / 2) / (run.num_steps - run.bite / 2), 0, 1)
    _goes_on(run)
    scene.tell("slow_rank", [rank], evict_hosts=[run.host(rank)], action=["replace", "degrade"])
    run.note(factor=last)


def slow_host(scene: Scene) -> None:
    """All GPUs of one host compute slower: its power is capped, or its processors run hot."""
    run = Run.of(scene, goes_on=True)
    mates, factor = run.mates(run.pick()), run.rng.choice((1.2, 1.4, 1.8))
    for rank in mates:
        run.pace.slow[rank] = run.ramp_up(factor)
    if run.rng.random() < 0.5:
        run.kernel[run.host(mates[0])] += _kernel_host.throttled(run.bite_at, run.rng)
    _goes_on(run)
    if run.rng.random() < 0.4:
        run.metrics(dict.fromkeys(mates, factor))
    scene.tell(["slow_rank", "host_fault"], mates, evict_hosts=[run.host(mates[0])], action=["replace", "degrade"])
    run.note(factor=factor)


def slow_data_one_rank(scene: Scene) -> None:
    """The loader of one rank delivers late, step after step."""
    run = Run.of(scene, goes_on=True)
    rank, share = run.pick(), run.rng.choice((0.3, 0.6, 1.2))
    run.pace.data_wait[rank] = share * scene.step_s * (run.ramp_up(2.0) - 1)
    _goes_on(run)
    scene.tell(["data_stall", "storage_stall"], [rank], action=["retry", "replace", "fix_code", "degrade"], evict_hosts=[run.host(rank)])
    run.note(share=share)


def slow_data_all(scene: Scene) -> None:
    """All ranks wait for their batches: the shared storage is slow."""
    run = Run.of(scene, goes_on=True)
    share = run.rng.choice((0.4, 0.8, 1.5))
    wave = run.rng.choices((0.7, 1.0, 1.3), k=run.num_steps)
    for rank in range(scene.world.world_size):
        run.pace.data_wait[rank] = share * scene.step_s * (run.ramp_up(2.0) - 1) * np.array(wave)
    _goes_on(run)
    scene.tell(["data_stall", "storage_stall"], hosts=[])
    run.note(share=share)


def stage_imbalance(scene: Scene) -> None:
    """One pipeline stage has more work than the others, from the first step on."""
    run = Run.of(scene, goes_on=True)
    weight = np.ones(scene.world.pp)
    stage = run.rng.choice((scene.world.pp - 1, scene.world.pp - 1, 0))
    weight[stage] = run.rng.choice((1.3, 1.6, 2.0))
    run.pace.stage_weight = weight * scene.world.pp / weight.sum()
    _goes_on(run)
    scene.tell("stage_imbalance", hosts=[])
    run.note(stage=int(stage), weight=float(weight[stage]))


def data_imbalance(scene: Scene) -> None:
    """Micro-batches differ in length, so the slowest replica is another one in each step."""
    run = Run.of(scene, goes_on=True)
    run.pace.length_spread = run.rng.choice((0.35, 0.5, 0.7))
    _goes_on(run)
    scene.tell("data_imbalance", hosts=[])
    run.note(spread=run.pace.length_spread)


def slow_network_group(scene: Scene) -> None:
    """The joining of gradients of one group takes several times as long: a path between its hosts is slow."""
    run = Run.of(scene, goes_on=True)
    place = scene.world.places[run.pick()]
    lane = int(place[0] + scene.world.tp * place[1])
    factor = run.rng.choice((6.0, 12.0))
    run.pace.sync[lane, int(place[3])] = run.ramp_up(factor)
    _goes_on(run)
    scene.tell(["network_fault", "network_transient", "unknown"], hosts=[], action=["replace", "retry", "degrade", "human"])
    run.note(factor=factor)


def slow_of_unknown_rank(scene: Scene) -> None:
    """One rank gets slow and all wait for it; nobody timed the ranks, so only the pace of the whole job is to be seen."""
    run = Run.of(scene, goes_on=True)
    run.pace.slow[run.pick()] = run.ramp_up(run.rng.choice((1.5, 2.0, 3.0)))
    run.has_timings = run.has_numbers = False
    run.plays(until=run.num_steps)
    scene.recorder.is_there = scene.stacks.is_there = False
    causes = ["unknown", "slow_rank", "data_stall", "network_fault", "network_transient", "storage_stall"]
    scene.tell(causes, hosts=[], answerable=False, action=["human", "retry", "replace", "degrade"])
