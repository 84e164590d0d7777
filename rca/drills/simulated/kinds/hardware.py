"""GPUs, their memory, links and firmware, and hosts that fail: the kernel's record tells, where somebody kept it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from rca.drills.simulated import _kernel_gpu, _kernel_host
from rca.drills.simulated._aftermath import LOUD
from rca.drills.simulated._run import MS, Run, S
from rca.drills.simulated._symptoms import cuda_error

if TYPE_CHECKING:
    from rca.drills._synthetic_world import World
    from rca.drills.simulated._scene import Scene

__all__ = [
    "gpu_fault_in_job_after_job",
    "gpu_firmware_timeout",
    "gpu_lost",
    "gpu_memory",
    "host_machine_check",
    "host_stuck_in_driver",
    "illegal_access_everywhere",
    "illegal_access_once",
    "local_disk_failed",
    "nvlink_broken",
]

MANY_HOSTS = {"illegal_access_everywhere", "host_stuck_in_driver", "host_machine_check"}
NEEDS: Final[Mapping[str, Callable[[World], bool]]] = {
    **{kind: (lambda world: world.num_hosts > 1) for kind in MANY_HOSTS},
    "nvlink_broken": lambda world: world.world_size >= 8 and world.gpus_per_host >= 4,
}
DAY: Final = 86_400 * S
FRAMES: Final = (("{program}", "train_step", 191), ("torch/autograd/graph.py", "_engine_run_backward", 824))
WITHOUT_KERNEL: Final = {"action": ["replace", "human", "retry"]}


def _raises(run: Run, rank: int, at: int, what: str) -> None:
    """What the process of a failed device prints: the first call after the fault fails."""
    run.teller.raises(rank, at, cuda_error(what), FRAMES)


def _ends(run: Run, rank: int, at: int, code: int = 1) -> None:
    run.teller.died([rank], at, code)
    run.no_dumps()
    run.collapses([rank], at)


def _of_device(run: Run, cause: str, rank: int) -> None:
    """The truth where the kernel names a device by its address and all processes of the host say the same: whose it is only a log can tell."""
    tells = run.teller.tells_places and run.world.world_size <= LOUD
    host = run.host(rank)
    run.scene.tell(cause, [rank], evict_hosts=[host], **({} if tells else {"or_nobody": True}))
    if not tells:
        run.scene.truth |= {"any_of_ranks": True, "tie": True}


def gpu_lost(scene: Scene) -> None:
    """A GPU falls off the bus (79); its process fails at the next call to it."""
    run = Run.of(scene)
    run.plays()
    rank, at = run.pick(), run.bite_at
    run.told(rank, _kernel_gpu.lost_gpu(at, run.rng, address=run.address(rank), pid=scene.pid(rank)))
    _raises(run, rank, at + 3 * S, run.rng.choice(("unknown error", "unspecified launch failure", "GPU has fallen off the bus")))
    _ends(run, rank, at + 5 * S, run.rng.choice((1, -6)))
    host = run.host(rank)
    if run.shows(host):
        scene.tell("gpu_fault", [rank], evict_hosts=[host])
    else:
        scene.tell(
            ["gpu_fault", "gpu_memory_fault", "nvlink_fault", "user_exception", "unknown"],
            [rank],
            evict_hosts=[host],
            action=["replace", "human", "fix_code", "retry"],
        )


def gpu_memory(scene: Scene) -> None:
    """Memory of a GPU fails beyond correction: the process gets an ECC error, the kernel tells of 48, 63, 64, 94 or 95."""
    run = Run.of(scene)
    run.plays()
    rank, at = run.pick(), run.bite_at
    variant = run.rng.choice(("dbe", "remap_failed", "uncontained", "contained"))
    run.told(rank, _kernel_gpu.bad_memory(at, run.rng, address=run.address(rank), pid=scene.pid(rank), variant=variant))
    _raises(run, rank, at + S, "uncorrectable ECC error encountered")
    _ends(run, rank, at + 3 * S)
    # A contained error whose row was remapped needs a reset of the GPU, which a restart on the host does; one that could not be needs another GPU.
    scene.tell(
        "gpu_memory_fault",
        [rank],
        evict_hosts=[run.host(rank)],
        action=["replace"] if variant in ("remap_failed", "uncontained") else ["replace", "retry"],
    )
    run.note(variant=variant)


def nvlink_broken(scene: Scene) -> None:
    """A link of one GPU breaks; the GPUs at its other ends only lose packets or channels."""
    run = Run.of(scene)
    run.has_kernel = True
    run.plays()
    rank, at = run.pick(), run.bite_at
    variant = run.rng.choice(("hopper", "blackwell", "blackwell"))
    run.told(rank, _kernel_gpu.broken_link(at, run.rng, address=run.address(rank), pid=scene.pid(rank), variant=variant))
    mates = [mate for mate in run.mates(rank) if mate != rank]
    for mate in mates:
        if variant == "blackwell":
            run.told(
                mate, _kernel_gpu.remote_packet_loss(at + 15 * MS + mate * MS, run.rng, address=run.address(mate), pid=scene.pid(mate))
            )
        else:
            run.told(
                mate,
                _kernel_gpu.process_teardown(
                    at + 400 * MS + mate * MS, run.rng, address=run.address(mate), pid=scene.pid(mate), cause=None
                ),
            )
    what = (
        "CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink or a hardware error"
        if variant == "blackwell"
        else "unspecified launch failure"
    )
    for mate in [rank, *mates]:  # all processes of the host see it at the same moment: their clock tells nobody apart
        _raises(run, mate, at + S + run.rng.randrange(400) * MS, what)
    run.teller.died([rank], at + 4 * S, 1)
    run.no_dumps()
    run.collapses(run.mates(rank), at + 4 * S)
    _of_device(run, "nvlink_fault", rank)
    run.note(variant=variant)


def gpu_firmware_timeout(scene: Scene) -> None:
    """The firmware of a GPU stops answering (119): the rank hangs inside the driver, later callers get the same Xid with their own pid."""
    run = Run.of(scene)
    run.has_kernel = True
    run.plays()
    rank, at = run.pick(), run.bite_at
    callers = [
        (scene.pid(rank), "pt_main_thread"),
        *((190_000 + 211 * k, run.rng.choice(("nvidia-smi", "dcgm-exporter", "nv-hostengine"))) for k in range(run.rng.randrange(1, 4))),
    ]
    run.told(rank, _kernel_gpu.firmware_timeout(at, run.rng, address=run.address(rank), index=scene.world.gpu_of(rank), callers=callers))
    run.no_dumps()
    others = [number for number in range(scene.world.world_size) if number != rank]
    if scene.style.backend == "nccl":
        run.teller.time_outs(at, others, run.call_of, told=[rank])
    run.ended_at = at + (run.teller.torch.timeout_s + 60) * S
    scene.looked_after_s = run.teller.torch.timeout_s + 300.0
    _of_device(run, "gpu_fault", rank)


def illegal_access_everywhere(scene: Scene) -> None:
    """A wrong kernel of the program touches memory that is not mapped, on GPUs of several hosts in the same step (31)."""
    run = Run.of(scene)
    run.has_kernel = True
    run.plays()
    world, at = scene.world, run.bite_at
    hosts = run.rng.sample(world.host_names(), min(world.num_hosts, run.rng.randrange(2, 9)))
    ranks = sorted(rank for host in hosts for rank in run.teller.ranks_on(host))
    for rank in ranks:
        when, place = at + run.rng.randrange(900) * MS, f"{run.rng.getrandbits(12):x}_{run.rng.getrandbits(20):x}000"
        run.told(rank, _kernel_gpu.mmu_fault(when, run.rng, address=run.address(rank), pid=scene.pid(rank), place=place))
        _raises(run, rank, when + 300 * MS, "an illegal memory access was encountered")
    for host in hosts[:64]:
        run.teller.died(run.teller.ranks_on(host), at + 3 * S + run.rng.randrange(700) * MS, -6)
    run.no_dumps()
    rest = [host for host in world.host_names() if host not in hosts]
    if rest:
        run.collapses(ranks, at + 3 * S)
    else:
        run.ended_at = at + 12 * S
    scene.tell("user_exception", hosts=[], action=["fix_code"])


def illegal_access_once(scene: Scene) -> None:
    """One GPU reports an access to memory that is not mapped, for the first time: the program, more likely than the chip."""
    run = Run.of(scene)
    run.has_kernel = True
    run.plays()
    rank, at = run.pick(), run.bite_at
    place = f"{run.rng.getrandbits(12):x}_{run.rng.getrandbits(20):x}000"
    run.told(rank, _kernel_gpu.mmu_fault(at, run.rng, address=run.address(rank), pid=scene.pid(rank), place=place))
    _raises(run, rank, at + 300 * MS, "an illegal memory access was encountered")
    _ends(run, rank, at + 2 * S, -6)
    scene.tell(["user_exception", "gpu_fault", "unknown"], [rank], action=["fix_code", "human", "replace"], evict_hosts=[run.host(rank)])


def gpu_fault_in_job_after_job(scene: Scene) -> None:
    """The same GPU shows 31 or 13 in one job after the other, with other programs: the chip, not the program."""
    run = Run.of(scene)
    run.has_kernel = True
    run.plays()
    rank, at = run.pick(), run.bite_at
    for days in (run.rng.randrange(2, 5), run.rng.randrange(6, 10), run.rng.randrange(11, 15)):
        when, pid = at - days * DAY + run.rng.randrange(DAY // S) * S, run.rng.randrange(5000, 190_000)
        place = f"{run.rng.getrandbits(12):x}_{run.rng.getrandbits(20):x}000"
        run.told(rank, _kernel_gpu.mmu_fault(when, run.rng, address=run.address(rank), pid=pid, place=place))
    place = f"{run.rng.getrandbits(12):x}_{run.rng.getrandbits(20):x}000"
    run.told(rank, _kernel_gpu.mmu_fault(at, run.rng, address=run.address(rank), pid=scene.pid(rank), place=place))
    _raises(run, rank, at + 300 * MS, "an illegal memory access was encountered")
    _ends(run, rank, at + 2 * S, -6)
    scene.tell(["gpu_fault", "gpu_memory_fault"], [rank], evict_hosts=[run.host(rank)])


def host_machine_check(scene: Scene) -> None:
    """Memory of a host fails beyond correction and the kernel stops."""
    run = Run.of(scene)
    run.has_kernel = True
    run.plays()
    host = run.host(run.pick())
    run.kernel[host] += _kernel_host.machine_check(run.bite_at, run.rng, is_fatal=True)
    dead = run.teller.ranks_on(host)
    run.book.silence(dead, run.bite_at + MS)
    run.book.agents[host] = [entry for entry in run.book.agents[host] if entry[0] < run.bite_at]
    run.kernel_ends[host] = run.bite_at + 2 * MS
    run.no_dumps()
    run.collapses(dead, run.bite_at, how="retry" if scene.style.backend == "nccl" else "time_out")
    scene.tell(["host_fault", "host_lost"], dead, evict_hosts=[host])


def host_stuck_in_driver(scene: Scene) -> None:
    """The trainers of a host hang inside the driver: soft lockups and tasks that do not run for minutes."""
    run = Run.of(scene)
    run.has_kernel = True
    run.plays()
    host = run.host(run.pick())
    mates = run.teller.ranks_on(host)
    at = run.bite_at
    run.kernel[host] += _kernel_host.soft_lockup(at + 22 * S, run.rng, pid=scene.pid(mates[0]))
    run.kernel[host] += _kernel_host.hung_tasks(at + 120 * S, run.rng, pids=[scene.pid(rank) for rank in mates], where="nvidia")
    run.no_dumps()
    rest = [rank for rank in range(scene.world.world_size) if rank not in mates]
    if scene.style.backend == "nccl":
        run.teller.time_outs(at, rest, run.call_of)
    run.ended_at = at + (run.teller.torch.timeout_s + 120) * S
    scene.looked_after_s = run.teller.torch.timeout_s + 300.0
    scene.tell(["host_fault", "gpu_fault"], mates, evict_hosts=[host])


def local_disk_failed(scene: Scene) -> None:
    """A local disk of a host goes away; a rank that writes there raises."""
    run = Run.of(scene)
    run.has_kernel = True
    run.plays()
    rank, at = run.pick(), run.bite_at
    run.told(rank, _kernel_host.disk_failed(at - 70 * S, run.rng))
    frames = (("{program}", "train_step", 191), ("data/cache.py", "put", 66))
    run.teller.raises(rank, at, "OSError: [Errno 5] Input/output error: '/local/nvme/cache/shard_00231.bin'", frames)
    _ends(run, rank, at + 2 * S)
    scene.tell(["host_fault", "storage_stall"], [rank], evict_hosts=[run.host(rank)], action=["replace", "retry"])
