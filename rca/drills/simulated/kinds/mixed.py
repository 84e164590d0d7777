"""Two faults at once, a host that differs from its peers, a group that is slow as a whole, and incidents whose telling evidence is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from rca.drills._kernel import killed_for_memory
from rca.drills.simulated import _kernel_gpu
from rca.drills.simulated._exceptions import OWN_ERRORS
from rca.drills.simulated._run import MS, Run, S
from rca.drills.simulated._symptoms import cuda_error

if TYPE_CHECKING:
    from rca.drills._synthetic_world import World
    from rca.drills.simulated._scene import Scene

__all__ = [
    "config_drift",
    "exception_then_lost_gpu",
    "only_symptoms",
    "oom_then_exception",
    "slow_group",
    "slow_rank_then_killed",
    "two_slow_ranks",
]

NEEDS: Final[Mapping[str, Callable[[World], bool]]] = {
    "exception_then_lost_gpu": lambda world: world.num_hosts > 1,
    "oom_then_exception": lambda world: world.num_hosts > 1,
    "config_drift": lambda world: world.num_hosts > 3,
    "slow_group": lambda world: world.dp > 3 and world.pp > 1,
    "only_symptoms": lambda world: world.num_hosts > 1,
    "two_slow_ranks": lambda world: world.dp > 3,
}
CLASS: Final[Mapping[str, str]] = {"only_symptoms": "unanswerable"}


def _elsewhere(run: Run, rank: int) -> int:
    """A rank on another host."""
    return run.rng.choice([number for number in range(run.world.world_size) if run.host(number) != run.host(rank)])


def exception_then_lost_gpu(scene: Scene) -> None:
    """A rank raises; while the job ends, a GPU of another host falls off the bus. The exception was first."""
    run = Run.of(scene)
    run.has_kernel = True
    run.plays()
    rank = run.pick()
    other = _elsewhere(run, rank)
    error, frames = run.rng.choice(OWN_ERRORS)
    run.teller.raises(rank, run.bite_at, error, frames)
    run.teller.died([rank], run.bite_at + 2 * S, 1)
    run.no_dumps()
    run.collapses([rank], run.bite_at + 2 * S)
    late = (run.ended_at or run.bite_at) + run.rng.randrange(60, 900) * S
    run.told(other, _kernel_gpu.lost_gpu(late, run.rng, address=run.address(other), pid=None))
    run.ended_at = late
    scene.tell("user_exception", [rank], evict_hosts=[run.host(other)])


def oom_then_exception(scene: Scene) -> None:
    """The kernel kills a rank for memory; a rank elsewhere raises an exception of its own over what it then lacks."""
    run = Run.of(scene)
    run.has_kernel = True
    run.plays()
    rank = run.pick()
    other = _elsewhere(run, rank)
    run.told(rank, killed_for_memory(run.bite_at, pid=scene.pid(rank), asked_by="python"))
    run.teller.died([rank], run.bite_at + 200 * MS, -9)
    run.no_dumps()
    run.teller.raises(
        other, run.bite_at + 6 * S, "AttributeError: 'NoneType' object has no attribute 'item'", (("{program}", "log_metrics", 301),)
    )
    run.collapses([rank], run.bite_at + 200 * MS)
    scene.tell("host_out_of_memory", [rank])


def slow_rank_then_killed(scene: Scene) -> None:
    """A rank has been slow for long; then another one is killed, and that ends the job."""
    run = Run.of(scene)
    run.has_timings = True
    slow, rank = run.rng.sample(range(scene.world.world_size), 2)
    run.pace.slow[slow] = np.full(run.num_steps, 1.5)
    run.plays()
    run.teller.died([rank], run.bite_at, -9)
    run.no_dumps()
    run.collapses([rank], run.bite_at)
    causes = ["process_killed", "unknown"] if run.shows(run.host(rank)) else ["process_killed", "host_out_of_memory", "unknown"]
    scene.tell(causes, [rank])


def two_slow_ranks(scene: Scene) -> None:
    """Two GPUs of different hosts or replicas compute slower than all others."""
    run = Run.of(scene, goes_on=True)
    pair = run.rng.sample(range(scene.world.world_size), 2)
    for rank, factor in zip(pair, run.rng.sample((1.4, 1.6, 2.0), 2), strict=True):
        run.pace.slow[rank] = run.ramp_up(factor)
    run.has_timings = True
    run.plays(until=run.num_steps)
    run.scene.recorder.is_there = run.scene.stacks.is_there = False
    scene.tell("slow_rank", pair, any_of_ranks=True, action=["replace", "degrade"], evict_hosts=sorted({run.host(rank) for rank in pair}))


def slow_group(scene: Scene) -> None:
    """All ranks of one replica compute slower by the same: what they share is slow, and no one of them can be told apart."""
    run = Run.of(scene, goes_on=True)
    group = run.replica(run.pick())
    factor = run.rng.choice((1.3, 1.6, 2.0))
    for rank in group:
        run.pace.slow[rank] = run.ramp_up(factor)
    run.has_timings = True
    run.plays(until=run.num_steps)
    run.scene.recorder.is_there = run.scene.stacks.is_there = False
    hosts = sorted({run.host(rank) for rank in group})
    scene.tell(
        ["slow_rank", "host_fault", "data_imbalance"],
        group,
        any_of_ranks=True,
        or_nobody=True,
        group={"kind": "mp", "ranks": group},
        evict_hosts=hosts,
        action=["replace", "shrink", "degrade", "fix_code"],
    )


def config_drift(scene: Scene) -> None:
    """The library of one host is of another version, and its ranks crash in native code in the first step."""
    run = Run.of(scene)
    run.plays(until=0)
    rank = run.pick()
    host, at = run.host(rank), int(run.ends_at[0])
    component, usual, odd = run.rng.choice(
        (
            ("nccl", "2.21.5", "2.18.3"),
            ("nvidia_driver", "550.90.07", "535.161.08"),
            ("torch", "2.5.1", "2.4.0"),
            ("image:trainer", "sha256:9f2c51", "sha256:77ab02"),
        )
    )
    rows = ["host,component,value"]
    for name in scene.world.host_names():
        rows += [f"{name},{component},{odd if name == host else usual}", f"{name},kernel,5.15.0-1064-nvidia"]
    scene.files["inventory/versions.csv"] = ("\n".join(rows) + "\n").encode()
    dead = run.teller.ranks_on(host)
    error = f"ImportError: libtorch_nccl.so: undefined symbol: ncclCommInitRankScalable ({component} {odd})"
    if component == "nvidia_driver":
        error = cuda_error("unspecified launch failure")
    for number in dead:
        run.teller.raises(number, at + number % 7 * 10 * MS, error, (("{program}", "setup", 61),))
    run.teller.died(dead, at + 2 * S, 1)
    run.no_dumps()
    run.collapses(dead, at + 2 * S)
    scene.steps = None
    run.has_numbers = False
    scene.tell("config_drift", dead, evict_hosts=[host], action=["human", "replace"])


def only_symptoms(scene: Scene) -> None:
    """A rank died, but its log, its launcher's and the kernel's of its host are lost: time-outs of all others are left, which name nobody."""
    run = Run.of(scene)
    run.has_scheduler = False
    run.plays()
    rank = run.pick()
    host, mates = run.host(rank), run.mates(rank)
    run.book.filing = "ranks"
    run.teller.died([rank], run.bite_at, run.rng.choice((1, -9, -11)))
    run.no_dumps()
    # Half of all ranks' files are lost, so that the missing ones do not tell who is missing.
    rest = [number for number in range(scene.world.world_size) if number not in mates]
    run.book.lost |= set(mates) | set(run.rng.sample(rest, len(rest) // 2))
    run.book.lost_hosts |= set(scene.world.host_names())
    run.kernel_lost |= {host, *run.rng.sample(scene.world.host_names(), scene.world.num_hosts // 2)}
    run.collapses([rank], run.bite_at, how="time_out" if scene.style.backend == "nccl" else "closed")
    run.book.jobs.clear()
    scene.steps, run.has_numbers = None, False
    scene.tell("unknown", hosts=[], answerable=False)
