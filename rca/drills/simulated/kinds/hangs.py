"""Hangs of a rank's own process, in code, data, storage or on its GPU: everything else only waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from rca.drills._synthetic_world import World
from rca.drills.simulated._calls import Phase, fault_at, stop
from rca.drills.simulated._evidence import hang_evidence
from rca.drills.simulated._frameworks import Frames
from rca.drills.simulated._kernel_host import hung_tasks, lustre_lost, nfs_hangs
from rca.drills.simulated._scene import Class, Scene
from rca.drills.simulated._stacks import ProcessStack, Thread
from rca.drills.simulated._threads import IN_QUEUE, RUN, bystanders, loader_waits, reads

__all__ = [
    "CLASS",
    "NEEDS",
    "checkpoint_stuck",
    "dataloader_stuck",
    "gil_held",
    "gpu_hang_in_kernel",
    "infinite_loop",
    "lock_hang",
    "silent_rank_unseen",
    "storage_stall",
]

_ANYWHERE: Final[tuple[Phase, ...]] = ("start", "forward", "backward", "gradients", "end")
_S: Final = 1_000_000_000


def _hang(scene: Scene, rank: int, phase: Phase, threads: tuple[Thread, ...], *workers: ProcessStack) -> None:
    """A rank makes no further call from this phase on and shows these threads."""
    stop(scene, rank, phase)
    scene.stacks.show(rank, ProcessStack((*threads, *bystanders(scene.topic("bystanders")))), *workers)


def _tell(scene: Scene, cause: str, rank: int, **more: Any) -> None:
    """The truth of a rank that hangs: without stacks or a kernel's word nobody can say in what, and `unknown` is as right."""
    if scene.stacks.is_there or more.pop("is_told", False):
        scene.tell(cause, [rank], **more)
        if cause == "code_hang":
            scene.truth["action"] = ["fix_code", "human"]
        return
    scene.tell(["code_hang", "unknown"], [rank], what_it_was=cause)


def lock_hang(scene: Scene) -> None:
    """The main thread of a rank waits for a lock that another thread of its process holds, which waits for one of the main thread's."""
    rng, base = scene.rng, scene.style.framework.base
    rank = rng.randrange(scene.world.world_size)
    inner: Frames = rng.choice(
        (
            (
                ("acquire", "logging/__init__.py", 922),
                ("handle", "logging/__init__.py", 976),
                ("callHandlers", "logging/__init__.py", 1706),
            ),
            (("observe", "metrics_buffer.py", 58), ("log_step", "metrics_buffer.py", 91)),
            (("borrow", "resource_pool.py", 44), ("checkout", "resource_pool.py", 71)),
            (("wait", "threading.py", 320), ("result", "concurrent/futures/_base.py", 451), ("flush_pending", "uploader.py", 133)),
        )
    )
    other: Frames = rng.choice(
        ((("flush", "metrics_buffer.py", 77), *RUN), (("rotate", "log_rotation.py", 39), ("_loop", "log_rotation.py", 63), *RUN))
    )
    _hang(scene, rank, rng.choice(_ANYWHERE), (Thread(inner + base), Thread(other, name="flusher")))
    hang_evidence(scene, [rank])
    _tell(scene, "code_hang", rank)


def infinite_loop(scene: Scene) -> None:
    """A rank goes round in a loop of its own code that never ends; its lines change from sample to sample, its place does not."""
    rng, base = scene.rng, scene.style.framework.base
    rank = rng.randrange(scene.world.world_size)
    outer, leaves = rng.choice(
        (
            (("_plan_buckets", "packing.py", 210), (("_fits", "packing.py", 188), ("_next_open", "packing.py", 171))),
            (("wait_for_slot", "scheduler_hooks.py", 92), (("has_room", "scheduler_hooks.py", 61),)),
            (("rebalance_experts", "expert_balance.py", 140), (("_swap", "expert_balance.py", 95), ("_score", "expert_balance.py", 77))),
            (("find_divisor", "chunking.py", 33), ()),
        )
    )
    stop(scene, rank, rng.choice(_ANYWHERE))
    side = bystanders(scene.topic("bystanders"))
    turns = []
    for number in range(7):
        leaf = (leaves[number % len(leaves)],) if leaves and number % 3 else ()
        moved = tuple((name, file, line + rng.randrange(4)) for name, file, line in (*leaf, outer))
        turns.append((ProcessStack((Thread(moved + base, is_active=True, has_gil=number % 2 == 0), *side)),))
    scene.stacks.turns(rank, *turns)
    hang_evidence(scene, [rank])
    _tell(scene, "code_hang", rank)


def gil_held(scene: Scene) -> None:
    """A C function of a rank neither comes back nor lets other threads run: the recorder cannot write its dump either."""
    rng, base = scene.rng, scene.style.framework.base
    rank = rng.randrange(scene.world.world_size)
    inner: Frames = rng.choice(
        (
            (("compress_gradients", "grad_compression.py", 118), ("comm_hook", "grad_compression.py", 140)),
            (("encode_batch", "tokenizers_ext.py", 67), ("prepare", "collate.py", 41)),
            (("fullmatch", "cleaning.py", 203), ("clean", "cleaning.py", 219)),
        )
    )
    is_busy = rng.random() < 0.5
    _hang(scene, rank, rng.choice(_ANYWHERE), (Thread(inner + base, is_active=is_busy, has_gil=is_busy),))
    scene.recorder.missing.add(rank)
    hang_evidence(scene, [rank])
    _tell(scene, "code_hang", rank)


def dataloader_stuck(scene: Scene) -> None:
    """A rank waits for a batch that its data loader does not deliver: the worker stands in a read, or the trainer reads itself."""
    rng, framework = scene.rng, scene.style.framework
    firsts = [rank for rank in range(scene.world.world_size) if scene.world.coordinates(rank).p == 0]
    rank = rng.choice(firsts)
    if rng.random() < 0.7:
        count = rng.randrange(1, 5)
        stuck = rng.randrange(count)
        workers = [ProcessStack((Thread(reads(rng)),), role=f"worker{n}") if n == stuck else loader_waits(n) for n in range(count)]
        threads = (Thread(IN_QUEUE + framework.data + framework.base),)
    else:
        inner: Frames = rng.choice(
            (
                (("read", "fsspec/spec.py", 1960), ("read_block", "fsspec/utils.py", 310), ("__next__", "stream_dataset.py", 90)),
                (
                    ("readinto", "socket.py", 706),
                    ("_read_status", "http/client.py", 280),
                    ("getresponse", "http/client.py", 1395),
                    ("fetch_chunk", "stream_dataset.py", 71),
                ),
            )
        )
        workers, threads = [], (Thread(inner + framework.data + framework.base),)
    _hang(scene, rank, "start", threads, *workers)
    hang_evidence(scene, [rank])
    _tell(scene, "data_stall", rank)


def checkpoint_stuck(scene: Scene) -> None:
    """A rank does not come back from writing its shard of a checkpoint; the others have gone on into the next step."""
    rng, framework = scene.rng, scene.style.framework
    rank = rng.randrange(scene.world.world_size)
    inner: Frames = rng.choice(
        (
            (("fsync", "checkpoint_io.py", 58), ("write_shard", "checkpoint_io.py", 81)),
            (("open", "pathlib.py", 1044), ("_write", "checkpoint_io.py", 30)),
            (
                ("_write_item", "torch/distributed/checkpoint/filesystem.py", 360),
                ("_write_files_from_queue", "torch/distributed/checkpoint/filesystem.py", 430),
                ("write_data", "torch/distributed/checkpoint/filesystem.py", 680),
            ),
            (("write", "fsspec/implementations/local.py", 366), ("_save", "torch/serialization.py", 1148)),
        )
    )
    _hang(scene, rank, "start", (Thread(inner + framework.save),))
    run = hang_evidence(scene, [rank])
    is_told = rng.random() < 0.5
    if is_told and run.has_kernel:
        run.told(rank, nfs_hangs(run.bite_at + 30 * _S, rng, server="192.0.2.31"))
        run.told(rank, hung_tasks(run.bite_at + 125 * _S, rng, pids=[scene.pid(rank)], where="nfs"))
    _tell(scene, "storage_stall", rank, is_told=is_told and run.has_kernel)


def storage_stall(scene: Scene) -> None:
    """The shared file system stops to answer one host: all its ranks stand in a read or a write, in the state that no signal ends."""
    rng, framework, world = scene.rng, scene.style.framework, scene.world
    host = rng.choice(world.host_names())
    ranks = world.ranks_on(host)
    is_saving = rng.random() < 0.5
    inner: Frames = (
        (("fsync", "checkpoint_io.py", 58), ("write_shard", "checkpoint_io.py", 81))
        if is_saving
        else (("read", "mmap_store.py", 44), ("__getitem__", "mmap_store.py", 70))
    )
    outer = framework.save if is_saving else framework.data + framework.base
    for stage in sorted({world.coordinates(rank).p for rank in ranks}):
        mine = [rank for rank in ranks if world.coordinates(rank).p == stage]
        scene.recorder.faults.append(fault_at(scene, "stop", mine, "start"))
    for rank in ranks:
        scene.stacks.show(rank, ProcessStack((Thread(inner + outer),)))
    run = hang_evidence(scene, ranks)
    run.has_kernel = True
    form: Callable[..., Any] = rng.choice((nfs_hangs, lustre_lost))
    run.kernel[host] += form(run.bite_at + 20 * _S, rng, server="192.0.2.31")
    run.kernel[host] += hung_tasks(
        run.bite_at + 125 * _S, rng, pids=[scene.pid(rank) for rank in ranks], where="nfs" if form is nfs_hangs else "lustre"
    )
    scene.tell("storage_stall", ranks)


def gpu_hang_in_kernel(scene: Scene) -> None:
    """A kernel on one GPU never ends: its process enqueues on as all do, but its GPU never starts the call in which the others wait."""
    rng = scene.rng
    rank = rng.randrange(scene.world.world_size)
    scene.use_nccl()
    scene.recorder.settings = replace(scene.recorder.settings, timing=True)
    scene.recorder.faults.append(fault_at(scene, "kernel", [rank], rng.choice(("forward", "backward", "gradients"))))
    hang_evidence(scene, needs=["recorder"])
    scene.tell(
        ["gpu_fault", "unknown"], [rank], action=["replace", "human"], layer=["hardware", "unknown"], attribution=["platform", "unknown"]
    )


def silent_rank_unseen(scene: Scene) -> None:
    """A rank hangs, and nothing but the logs of the others is left: who it was cannot be told."""
    rank = scene.rng.randrange(scene.world.world_size)
    stop(scene, rank, scene.rng.choice(_ANYWHERE))
    run = hang_evidence(scene, [rank], needs=["stacks"])
    scene.stacks.is_there = scene.recorder.is_there = False
    run.has_timings = run.has_numbers = False
    scene.steps = None
    scene.tell("unknown", [], answerable=False)


NEEDS: dict[str, Callable[[World], bool]] = {"storage_stall": lambda world: world.num_hosts > 1}
CLASS: dict[str, Class] = {"silent_rank_unseen": "unanswerable"}
