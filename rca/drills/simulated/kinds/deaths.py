"""Processes and hosts that end: exceptions, memory used up, signals, a host that is gone.

All others learn of it from closed connections, missing acknowledgements, time-outs or the rendezvous, and print more than the one that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from rca.drills._kernel import killed_for_memory
from rca.drills._synthetic_job import Fault
from rca.drills.simulated import _kernel_host, _scheduler
from rca.drills.simulated._exceptions import OWN_ERRORS
from rca.drills.simulated._run import MS, Run, S

if TYPE_CHECKING:
    from rca.drills._synthetic_world import World
    from rca.drills.simulated._scene import Scene

__all__ = [
    "dataloader_worker_killed",
    "exception_on_all",
    "gpu_oom",
    "host_gone",
    "host_oom",
    "host_panic",
    "pod_memory_limit",
    "rank_killed",
    "segfault",
    "user_exception",
]

NEEDS: Final[Mapping[str, Callable[[World], bool]]] = {
    "host_gone": lambda world: world.num_hosts > 2,
    "host_panic": lambda world: world.num_hosts > 2,
}
NO_MEMORY: Final = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {want:.2f} GiB. GPU {gpu} has a total capacity of 79.11 GiB of which "
    "{free:.2f} MiB is free. Including non-PyTorch memory, this process has 78.{rest:02d} GiB memory in use. Of the allocated memory 71.52 GiB is "
    "allocated by PyTorch, and 4.81 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


def _ends(run: Run, dead: list[int], at: int, code: int, *, for_memory: bool = False) -> None:
    """The dead are told of by their launcher; all others follow."""
    run.teller.died(dead, at, code, for_memory=for_memory)
    run.no_dumps()
    run.collapses(dead, at)


def user_exception(scene: Scene) -> None:
    """One rank raises an exception in the training code."""
    run = Run.of(scene)
    run.plays()
    rank, at = run.pick(), run.bite_at
    error, frames = run.rng.choice(OWN_ERRORS)
    run.teller.raises(rank, at, error, frames)
    _ends(run, [rank], at + 2 * S, 1)
    scene.tell("user_exception", [rank], evict_hosts=[])


def exception_on_all(scene: Scene) -> None:
    """Every rank raises the same in the same step: the code, and no rank."""
    run = Run.of(scene)
    run.plays()
    error, frames = run.rng.choice(OWN_ERRORS)
    ranks = range(scene.world.world_size)
    for rank in ranks if scene.world.world_size <= 512 else run.rng.sample(ranks, 512):
        run.teller.raises(rank, run.bite_at + run.rng.randrange(800) * MS, error, frames)
    run.no_dumps()
    for host in scene.world.host_names()[:64]:
        run.teller.died(run.teller.ranks_on(host), run.bite_at + 2 * S + run.rng.randrange(900) * MS, 1)
    run.ended_at = run.bite_at + 9 * S
    scene.tell("user_exception", hosts=[])


def gpu_oom(scene: Scene) -> None:
    """A rank asks for more GPU memory than there is; sometimes all ranks of its lanes do at once."""
    run = Run.of(scene)
    run.plays()
    rank = run.pick()
    ranks = [rank]
    for number in ranks:
        free, want = run.rng.uniform(1, 900), run.rng.choice((0.5, 1.12, 2.0, 3.91, 7.8))
        text = NO_MEMORY.format(want=want, gpu=scene.world.gpu_of(number), free=free, rest=run.rng.randrange(100))
        run.teller.raises(number, run.bite_at, text, (("{program}", "train_step", 191), ("torch/nn/modules/linear.py", "forward", 125)))
    _ends(run, ranks, run.bite_at + 2 * S, 1)
    scene.tell("gpu_out_of_memory", ranks)


def rank_killed(scene: Scene) -> None:
    """A trainer is killed, by whom nobody knows: its host's kernel did not do it for memory, or its log is not at hand."""
    run = Run.of(scene)
    run.plays()
    rank = run.pick()
    _ends(run, [rank], run.bite_at, -9)
    causes = ["process_killed", "unknown"] if run.shows(run.host(rank)) else ["process_killed", "host_out_of_memory", "unknown"]
    scene.tell(causes, [rank])


def host_oom(scene: Scene) -> None:
    """The kernel kills a trainer because its host has no memory left."""
    run = Run.of(scene)
    run.plays()
    rank = run.pick()
    asked = run.rng.choice(("node_exporter", "python", "kworker/u384:2", "containerd"))
    run.told(rank, killed_for_memory(run.bite_at, pid=scene.pid(rank), asked_by=asked))
    counted = run.teller.launcher == "srun" and run.rng.random() < 0.5
    _ends(run, [rank], run.bite_at + 200 * MS, -9, for_memory=counted)
    scene.tell(
        "host_out_of_memory" if counted or run.shows(run.host(rank)) else ["host_out_of_memory", "process_killed", "unknown"], [rank]
    )


def pod_memory_limit(scene: Scene) -> None:
    """The memory limit of a container kills a trainer in it."""
    run = Run.of(scene)
    run.has_kernel = True
    run.plays()
    rank = run.pick()
    limit = run.rng.choice((512, 900, 1500)) << 20
    run.told(
        rank, _kernel_host.cgroup_kill(run.bite_at, run.rng, pid=scene.pid(rank), limit_kb=limit, pod=run.teller.launcher == "torchrun")
    )
    _ends(run, [rank], run.bite_at + 200 * MS, -9, for_memory=True)
    if run.teller.launcher == "torchrun" and run.rng.random() < 0.5:
        host = run.host(rank)
        pod = f"trainer-{scene.world.host_names().index(host)}"
        scene.files["cluster/pods.json"] = _scheduler.kube_pod_killed(
            pod, host, reason="OOMKilled", code=137, start=int(run.ends_at[0]) - 600 * S, end=run.bite_at + 2 * S
        )
    scene.tell("host_out_of_memory", [rank])


def dataloader_worker_killed(scene: Scene) -> None:
    """The kernel kills a worker of a data loader for memory, and its trainer raises for it."""
    run = Run.of(scene)
    run.plays()
    rank = run.pick()
    worker = scene.pid(rank) + 300 + run.rng.randrange(60)
    run.told(rank, killed_for_memory(run.bite_at, pid=worker, asked_by="python"))
    error = f"RuntimeError: DataLoader worker (pid {worker}) is killed by signal: Killed. "
    frames = (
        ("{program}", "next_batch", 95),
        ("torch/utils/data/dataloader.py", "__next__", 708),
        ("torch/utils/data/dataloader.py", "_try_get_data", 1284),
        ("torch/utils/data/_utils/signal_handling.py", "handler", 73),
    )
    run.teller.raises(rank, run.bite_at + S, error, frames)
    _ends(run, [rank], run.bite_at + 3 * S, 1)
    scene.tell("host_out_of_memory" if run.shows(run.host(rank)) else ["host_out_of_memory", "process_killed", "unknown"], [rank])


def segfault(scene: Scene) -> None:
    """A trainer dies of a segmentation fault in native code."""
    run = Run.of(scene)
    run.plays()
    rank = run.pick()
    library = run.rng.choice(("libtorch_cpu.so", "libnccl.so.2", "_C.cpython-311-x86_64-linux-gnu.so", "libcudart.so.12"))
    run.told(rank, _kernel_host.segfault(run.bite_at, run.rng, pid=scene.pid(rank), library=library))
    if run.rng.random() < 0.6:
        head = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f3a4c7fe700 (most recent call first):"
        lines = [
            *head.split("\n"),
            f'  File "{run.teller.voice.program}", line 191 in train_step',
            f'  File "{run.teller.voice.program}", line 412 in <module>',
        ]
        run.book.say(rank, run.bite_at, *lines)
    _ends(run, [rank], run.bite_at + 300 * MS, -11)
    scene.tell(["user_exception", "process_killed", "unknown"], [rank], action=["fix_code", "human", "retry"])


def _host_goes(run: Run, host: str, at: int) -> list[int]:
    """A host ends with all that runs on it; nothing there writes another word."""
    dead = run.teller.ranks_on(host)
    run.book.silence(dead, at)
    run.book.agents[host] = [entry for entry in run.book.agents[host] if entry[0] < at]
    run.kernel_ends[host] = at
    how = run.collapses(dead, at, how=run.rng.choice(("retry", "time_out")) if run.scene.style.backend == "nccl" else "time_out")
    if how == "time_out":
        run.scene.recorder.faults = [Fault("no_dump", tuple(dead), "world" if run.world.dp == 1 else "dp", -2)]
        run.scene.stacks.is_there = False
    else:
        run.no_dumps()
    return dead


def host_gone(scene: Scene) -> None:
    """A host is gone in one moment, without a word."""
    run = Run.of(scene)
    run.plays()
    host = run.host(run.pick())
    dead = _host_goes(run, host, run.bite_at)
    names, is_told = scene.world.host_names(), run.has_scheduler
    if run.teller.launcher == "srun" and run.rng.random() < 0.7:
        batch = names[0] if names[0] != host else names[1]
        run.book.job(run.bite_at + 300 * S, *_scheduler.node_failed(run.teller.job_id, host, batch))
        is_told = True
    if run.has_scheduler:
        states = dict.fromkeys(names[:64], ("ALLOCATED", "")) | {host: ("DOWN*", "Not responding")}
        scene.files["slurm/nodes.txt"] = _scheduler.nodes(states, run.bite_at + 310 * S)
    # Without a word of the scheduler a host that was cut off and one that is gone look alike from outside.
    scene.tell(["host_lost", "host_fault", *([] if is_told else ["network_fault"])], dead, evict_hosts=[host])


def host_panic(scene: Scene) -> None:
    """The kernel of a host stops; its console has the last words."""
    run = Run.of(scene)
    run.has_kernel = True
    run.plays()
    host = run.host(run.pick())
    why = run.rng.choice(
        ("Fatal exception in interrupt", "hung_task: blocked tasks", "NMI: IOCK error: Not continuing", "Fatal hardware error!")
    )
    run.kernel[host] += _kernel_host.panic(run.bite_at, run.rng, why=why)
    dead = _host_goes(run, host, run.bite_at + MS)
    scene.tell(["host_fault", "host_lost"], dead, evict_hosts=[host])
