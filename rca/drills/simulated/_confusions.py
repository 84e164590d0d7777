"""What lies around an incident and is not its cause: old and corrected errors, wrong clocks, lost and torn files, loud symptoms, stale logs.

A confusion is laid over a scene after its kind. None may make the truth false: it keeps away from ranks and hosts that the truth names, from the
evidence that tells, and does nothing where it does not fit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from rca.drills._kernel import corrected_pcie, killed_for_memory, old_graphics_exception
from rca.drills._synthetic import stored
from rca.drills.simulated import _kernel_gpu, _kernel_host, _scheduler, _symptoms
from rca.drills.simulated._aftermath import LOUD
from rca.drills.simulated._run import MS, Run, S
from rca.drills.simulated._stale import launch_before

if TYPE_CHECKING:
    from rca.drills._synthetic import Dump
    from rca.drills.simulated._scene import Scene

__all__ = ["CONFUSIONS"]

DAY: Final = 86_400 * S
BY_CLOCK: Final = frozenset({"exception_then_lost_gpu", "oom_then_exception"})  # only clocks tell which of two faults was first
ABOUT_OTHERS: Final = frozenset({"only_symptoms"})  # what is left of it was chosen so that it names nobody
LOST_SHARE, TORN_SHARE = 0.25, 0.1


def _parts(scene: Scene) -> tuple[Run, random.Random] | None:
    run = scene.notes.get("run")
    return (run, scene.topic("confusions")) if isinstance(run, Run) else None


def _guilty(scene: Scene, run: Run) -> set[int]:
    """Ranks whose evidence tells: those of the truth, all on their hosts, and who prints progress."""
    named = set(scene.truth["first_failing_ranks"])
    return named | {mate for rank in named for mate in run.mates(rank)} | set(run.teller.voice.speakers)


def _innocent_host(scene: Scene, rng: random.Random) -> str | None:
    """A host that the truth does not name and that the kind has said nothing of."""
    run = scene.notes["run"]
    free = [host for host in scene.world.host_names() if host not in scene.truth["hosts"] and not run.kernel.get(host)]
    return rng.choice(free) if free else None


def old_xid(scene: Scene) -> None:
    """Days before, some program of somebody had an Xid on a host."""
    if (parts := _parts(scene)) is None:
        return
    run, rng = parts
    host = _innocent_host(scene, rng) or scene.world.host_names()[0]
    at = run.bite_at - rng.randrange(2, 13) * DAY - rng.randrange(3600) * S
    run.kernel[host] += old_graphics_exception(at)
    address = _kernel_gpu.drawn_address(rng.randrange(scene.world.gpus_per_host))
    run.kernel[host] += _kernel_gpu.process_teardown(at + 2 * S, rng, address=address, pid=rng.randrange(2000, 90_000), cause=13)


def old_lost_gpu(scene: Scene) -> None:
    """Days before, a GPU of a host fell off the bus, and was seen to."""
    if (parts := _parts(scene)) is None:
        return
    run, rng = parts
    if (host := _innocent_host(scene, rng)) is not None:
        address = _kernel_gpu.drawn_address(rng.randrange(scene.world.gpus_per_host))
        run.kernel[host] += _kernel_gpu.lost_gpu(run.bite_at - rng.randrange(2, 13) * DAY, rng, address=address, pid=None, switches=False)


def corrected_errors(scene: Scene) -> None:
    """Bus and memory of a host correct errors just before the fault."""
    if (parts := _parts(scene)) is None:
        return
    run, rng = parts
    if (host := _innocent_host(scene, rng)) is not None:
        run.kernel[host] += corrected_pcie(run.bite_at - rng.randrange(1, 90) * S)
        run.kernel[host] += _kernel_host.corrected_memory(run.bite_at - rng.randrange(1, 900) * S, rng)


def other_program_killed(scene: Scene) -> None:
    """The kernel of a host kills a program that is no part of the job for its own limit."""
    if (parts := _parts(scene)) is None:
        return
    run, rng = parts
    if (host := _innocent_host(scene, rng)) is not None:
        at, pid = run.bite_at - rng.randrange(600, 3000) * S, rng.randrange(200_000, 400_000)
        run.kernel[host] += [
            (when, text.replace("python", "backup-agent")) for when, text in killed_for_memory(at, pid=pid, asked_by="backup-agent")
        ]


def hot_gpu_reported(scene: Scene) -> None:
    """A health service reports a GPU that was warm, and asks for nothing."""
    if (parts := _parts(scene)) is None:
        return
    run, rng = parts
    if (host := _innocent_host(scene, rng)) is not None:
        text = "[DCGM_FR_CLOCK_THROTTLE_THERMAL] GPU thermal throttling detected - RecommendedAction: NONE"
        scene.files["cluster/health.json"] = _scheduler.kube_events(
            [(host, "GpuThermalWatch", text, run.bite_at - rng.randrange(60, 7000) * S)]
        )


def wrong_clocks(scene: Scene) -> None:
    """Some hosts' clocks are off, by more than a step takes."""
    if (parts := _parts(scene)) is None or scene.kind in BY_CLOCK:
        return
    _run, rng = parts
    hosts = scene.world.host_names()
    for host in rng.sample(hosts, min(len(hosts), rng.randrange(1, 4))):
        scene.skew_s[host] = rng.choice((-1, 1)) * rng.choice((2.0, 17.0, 95.0, 380.0)) * rng.uniform(0.8, 1.2)


def local_time(scene: Scene) -> None:
    """Trainers and launchers stamp in local time; what tells of the hosts says the zone."""
    if (parts := _parts(scene)) is None or scene.kind in BY_CLOCK:
        return
    run, rng = parts
    run.book.zone_h = rng.choice((-7, -4, 1, 2, 8, 9))


def _is_small(scene: Scene) -> bool:
    """Whether every rank is needed to compare with: numbers and timings of few replicas."""
    return scene.world.dp * scene.world.cp < 8


def logs_lost(scene: Scene) -> None:
    """Logs of some ranks that did nothing wrong were not collected."""
    if (parts := _parts(scene)) is None or scene.kind in ABOUT_OTHERS or _is_small(scene):
        return
    run, rng = parts
    free = [rank for rank in range(scene.world.world_size) if rank not in _guilty(scene, run)]
    if scene.truth["first_failing_ranks"]:
        run.book.lost |= set(rng.sample(free, round(LOST_SHARE * len(free))))


def kernel_logs_lost(scene: Scene) -> None:
    """Kernel logs of some hosts that had nothing to say were not collected."""
    if (parts := _parts(scene)) is None:
        return
    run, rng = parts
    told = {host for host, lines in run.kernel.items() if lines} | set(run.kernel_ends) | set(scene.truth["hosts"])
    free = [host for host in scene.world.host_names() if host not in told]
    if scene.truth["first_failing_ranks"] and len(free) > 1:
        run.kernel_lost |= set(rng.sample(free, len(free) // 2))


def loud_symptoms(scene: Scene) -> None:
    """All other ranks print long tracebacks of aborted communicators, with errors in them that are none of their own."""
    if (parts := _parts(scene)) is None:
        return
    run, rng = parts
    if run.ended_at is None or scene.style.backend != "nccl" or not scene.truth["first_failing_ranks"] or scene.kind in ABOUT_OTHERS:
        return
    gone = _guilty(scene, run) if run.teller.launcher == "torchrun" else set(scene.truth["first_failing_ranks"])
    rest = [rank for rank in range(scene.world.world_size) if rank not in gone]
    last = max((at for rank in rest for at, _, _ in run.book.ranks[rank]), default=run.bite_at)
    if last <= run.bite_at:
        return  # they ended without a word of their own
    for rank in rest if len(rest) <= LOUD else sorted(rng.sample(rest, LOUD)):
        text = f"torch.distributed.DistBackendError: NCCL communicator was aborted on rank {rank}. "
        frames = (("torch/distributed/c10d_logger.py", "wrapper", 83), ("torch/distributed/distributed_c10d.py", "all_reduce", 2810))
        run.teller.raises(rank, last + rng.randrange(900) * MS, text, frames)
        run.book.say(rank, last + S, *run.teller.torch.store_gone(rank, run.host(0)))


def ordinary_noise(scene: Scene) -> None:
    """Warnings and errors that trainers get over every day."""
    if (parts := _parts(scene)) is None:
        return
    run, rng = parts
    speakers = [rank for rank, entries in run.book.ranks.items() if entries]
    early = int(run.ends_at[0]) if len(run.ends_at) else run.bite_at - 300 * S
    noise = (
        "<<py>> WARNING storage: GET s3://tokens/part-00217 failed (503 Slow Down), retry 1 of 5",
        "/usr/lib/python3/dist-packages/torch/utils/checkpoint.py:86: UserWarning: None of the inputs have requires_grad=True",
        "wandb: Network error (ReadTimeout), entering retry loop.",
        "<<py>> ERROR metrics: push to gateway failed: HTTPConnectionPool(host='pushgateway', port=9091): Read timed out.",
        "[W<<glog>> socket.cpp:759] [c10d] The client socket has failed to connect to [node-0]:29500 (errno: 111 - Connection refused).",
    )
    for line in rng.sample(noise, 3):
        if speakers:
            run.book.say(rng.choice(speakers), early - rng.randrange(5, 40) * S, line)


def port_flap(scene: Scene) -> None:
    """A port of a host goes down and up again, long before the fault."""
    if (parts := _parts(scene)) is None:
        return
    run, rng = parts
    if (host := _innocent_host(scene, rng)) is not None:
        at, state = run.bite_at - rng.randrange(3, 40) * 3600 * S, rng.getstate()
        down = _kernel_host.link_down(at, rng)
        rng.setstate(state)
        run.kernel[host] += [*down, *_kernel_host.link_up(at + 3 * S, rng)]


def launch_before_in_logs(scene: Scene) -> None:
    """The logs of the launch before, which failed for another reason, lie beside what this one wrote with a date."""
    if (parts := _parts(scene)) is None:
        return
    run, rng = parts
    if not (
        run.book.jobs or any(run.book.ranks.values()) or any(run.book.agents.values()) or scene.recorder.is_there or scene.steps is not None
    ):
        return  # stacks alone bear no date: nobody could tell that these logs are not theirs
    scene.files |= {path: "".join(f"{line}\n" for line in lines).encode() for path, lines in launch_before(run, rng).items()}


def _seen_twice(scene: Scene) -> bool:
    return scene.recorder.is_there and scene.stacks.is_there


def dumps_lost(scene: Scene) -> None:
    """Dumps of some ranks whose stacks are there were not collected."""
    if (parts := _parts(scene)) is None or not _seen_twice(scene) or not scene.truth["first_failing_ranks"]:
        return
    run, rng = parts
    free = [rank for rank in range(scene.world.world_size) if rank not in _guilty(scene, run) and rank not in scene.stacks.missing]
    scene.recorder.missing |= set(rng.sample(free, round(TORN_SHARE * len(free))))


def dumps_torn(scene: Scene) -> None:
    """Dumps of some ranks whose stacks are there break off."""
    if (parts := _parts(scene)) is None or not _seen_twice(scene) or not scene.truth["first_failing_ranks"]:
        return
    run, rng = parts
    free = [rank for rank in range(scene.world.world_size) if rank not in _guilty(scene, run) and rank not in scene.recorder.edits]
    for rank in rng.sample(free, min(8, round(TORN_SHARE * len(free)))):
        share = rng.uniform(0.1, 0.9)

        def cut(dump: Dump, share: float = share) -> bytes:
            whole = stored(dump, scene.settings())
            return whole[: int(len(whole) * share)]

        scene.recorder.edits[rank] = cut


def link_errors_in_logs(scene: Scene) -> None:
    """Minutes before the fault an adapter of a host reported an event, and that it was over."""
    if (parts := _parts(scene)) is None or scene.style.backend != "nccl":
        return
    run, rng = parts
    free = [rank for rank in run.book.ranks if rank not in _guilty(scene, run)]
    if free and len(run.ends_at) and run.bite > 3:
        rank, at = rng.choice(sorted(free)), int(run.ends_at[1])
        for kind, wait in (("async", 0), ("back", 1)):
            lines = _symptoms.network_error(
                kind, rng, host=run.host(rank), pid=scene.pid(rank), local=scene.world.gpu_of(rank), peer="", port=0
            )
            run.book.say(rank, at + wait * S, *lines)


CONFUSIONS: Final[Mapping[str, Callable[[Scene], None]]] = {
    confuse.__name__: confuse
    for confuse in (
        corrected_errors,
        dumps_lost,
        dumps_torn,
        hot_gpu_reported,
        kernel_logs_lost,
        launch_before_in_logs,
        link_errors_in_logs,
        local_time,
        logs_lost,
        loud_symptoms,
        old_lost_gpu,
        old_xid,
        ordinary_noise,
        other_program_killed,
        port_flap,
        wrong_clocks,
    )
}
