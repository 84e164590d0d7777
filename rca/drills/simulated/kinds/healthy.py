"""Jobs with nothing wrong: running, finished, noisy. Whoever is accused here is innocent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from rca.drills import _kernel
from rca.drills.simulated import _kernel_gpu, _kernel_host, _scheduler, _symptoms
from rca.drills.simulated._numbers import Jump
from rca.drills.simulated._run import MS, Run, S

if TYPE_CHECKING:
    from rca.drills._synthetic_world import World
    from rca.drills.simulated._scene import Scene

__all__ = [
    "healthy_compiles_first",
    "healthy_evaluates",
    "healthy_finished",
    "healthy_link_flap",
    "healthy_long_save",
    "healthy_loss_noise",
    "healthy_odd_version",
    "healthy_old_errors",
    "healthy_resumed",
    "healthy_retries",
    "healthy_running",
    "healthy_skipped_iterations",
    "healthy_uneven_stages",
    "healthy_uneven_steps",
]

NEEDS: Final[Mapping[str, Callable[[World], bool]]] = {"healthy_uneven_stages": lambda world: world.pp > 1}
CLASS: Final[Mapping[str, str]] = dict.fromkeys(__all__, "healthy")
DAY: Final = 86_400 * S
METRICS: Final = 0.2  # how often an exporter's metrics are at hand


def _runs(run: Run, *, dumps: bool | None = None) -> None:
    """It trains; somebody looks, with or without asking for dumps and stacks."""
    run.plays(until=run.num_steps)
    looks = run.rng.random() < 0.4 if dumps is None else dumps
    run.scene.recorder.is_there = looks
    run.scene.stacks.is_there = looks
    if run.rng.random() < METRICS:
        run.metrics()
    stacks = run.scene.stacks
    is_long = (stacks.samples - 1) * stacks.gap_s > run.scene.step_s  # of a shorter look nobody can tell a step in progress from a hang
    _sound(run, seen=looks and is_long and run.has_timings)


def _sound(run: Run, *, seen: bool = True) -> None:
    """The truth. Logs and timings alone end somewhere: whether it still trained when they were copied, only stacks taken twice show; and whether
    all ranks are as fast as their peers, only timings of every rank. Without them "unknown" is right as well."""
    run.scene.tell("healthy" if seen else ["healthy", "unknown"], hosts=[], action=["none"] if seen else ["none", "human"])


def healthy_running(scene: Scene) -> None:
    """It trains at its pace."""
    _runs(Run.of(scene, goes_on=True))


def healthy_evaluates(scene: Scene) -> None:
    """Every so many steps it evaluates, prints nothing else meanwhile, and goes on."""
    run = Run.of(scene, goes_on=True)
    every = run.rng.choice((7, 12))
    extra = np.where(np.arange(run.num_steps) % every == every - 1, run.rng.uniform(5.0, 30.0) * scene.step_s, 0.0)
    run.pace.extra = extra
    _runs(run)
    speaker = run.teller.voice.speakers[0]
    for place in np.flatnonzero(extra):
        begins = run.end_of(int(place)) - round(float(extra[place]) * 1e9)
        run.book.say(speaker, begins, f"<<py>> INFO evaluating at step {run.first + int(place)} on 512 batches")
        run.book.say(speaker, run.end_of(int(place)) - 30 * MS, "<<py>> INFO validation loss 2.6121 | perplexity 13.63")


def healthy_finished(scene: Scene) -> None:
    """It came to its last step and said so."""
    run = Run.of(scene, goes_on=True)
    _runs(run, dumps=False)
    last = run.end_of(run.num_steps - 1)
    run.teller.saves(run.first + run.num_steps - 1, last + S, last + 9 * S)
    run.teller.ends_well(last + 12 * S, run.first + run.num_steps - 1, float(run.num_steps * scene.step_s))
    run.ended_at = last + 20 * S
    if run.has_scheduler:
        hosts = scene.world.host_names()
        start = int(run.ends_at[0]) - 900 * S
        scene.files["slurm/sacct.txt"] = _scheduler.sacct(
            run.teller.job_id, "pretrain", state="COMPLETED", exit_code="0:0", start=start, end=run.ended_at, hosts=hosts
        )


def healthy_uneven_steps(scene: Scene) -> None:
    """Steps differ by a tenth or two, and now and then a rank takes longer once."""
    run = Run.of(scene, goes_on=True)
    run.has_timings = True
    run.pace.jitter = run.rng.choice((0.05, 0.08, 0.12))
    for _ in range(run.rng.randrange(1, 6)):
        once = np.ones(run.num_steps)
        once[run.rng.randrange(run.num_steps)] = run.rng.uniform(1.3, 2.5)
        run.pace.slow[run.pick()] = once
    _runs(run)


def healthy_long_save(scene: Scene) -> None:
    """Every so many steps a checkpoint is written, and that step takes much longer."""
    run = Run.of(scene, goes_on=True)
    run.has_timings = True
    every = run.rng.choice((5, 8, 10))
    extra = np.where(np.arange(run.num_steps) % every == every - 1, run.rng.uniform(3.0, 12.0) * scene.step_s, 0.0)
    run.pace.extra = extra
    _runs(run)
    for place in np.flatnonzero(extra):
        end = run.end_of(int(place))
        run.teller.saves(run.first + int(place), end - round(float(extra[place]) * 1e9), end - 20 * MS)


def healthy_compiles_first(scene: Scene) -> None:
    """The first steps compile and warm up: many times as long as the others."""
    run = Run.of(scene, goes_on=True)
    run.has_timings = True
    extra = np.zeros(run.num_steps)
    extra[:3] = np.array((40.0, 8.0, 2.0)) * min(scene.step_s, 6.0)
    run.pace.extra = extra
    scene.fault_step = run.bite + 1  # the record begins with the first step
    run.first = 1
    _runs(run, dumps=False)


def healthy_uneven_stages(scene: Scene) -> None:
    """The last stage has the loss and the first the embedding: a few percent more work, as planned."""
    run = Run.of(scene, goes_on=True)
    run.has_timings = True
    weight = np.ones(scene.world.pp)
    weight[-1], weight[0] = run.rng.uniform(1.02, 1.08), run.rng.uniform(1.0, 1.04)
    run.pace.stage_weight = weight * scene.world.pp / weight.sum()
    _runs(run)


def healthy_old_errors(scene: Scene) -> None:
    """Kernel logs hold errors of earlier days and of programs that are no part of the job, and corrected ones of today."""
    run = Run.of(scene, goes_on=True)
    run.has_kernel = True
    _runs(run)
    began = int(run.ends_at[0])
    old = began - run.rng.randrange(2, 12) * DAY
    host = run.host(run.pick())
    rank = run.mates(run.pick())[0]
    run.kernel[host] += _kernel.old_graphics_exception(old)
    run.kernel[host] += _kernel_gpu.process_teardown(old + 3 * S, run.rng, address=run.address(rank), pid=9911, cause=None)
    other = run.host(run.pick())
    run.kernel[other] += _kernel.corrected_pcie(run.bite_at)
    run.kernel[other] += _kernel_host.corrected_memory(run.bite_at + 5 * S, run.rng)
    run.kernel[run.host(run.pick())] += _kernel_host.throttled(run.bite_at + 9 * S, run.rng)
    if run.rng.random() < 0.5:
        far = began - run.rng.randrange(3, 12) * DAY
        run.told(rank, _kernel_gpu.lost_gpu(far, run.rng, address=run.address(rank), pid=None, switches=False))


def healthy_link_flap(scene: Scene) -> None:
    """A port goes down for a second and comes back; retries carry the job over it."""
    run = Run.of(scene, goes_on=True)
    run.has_kernel = True
    _runs(run)
    rank, state = run.pick(), run.rng.getstate()
    down = _kernel_host.link_down(run.bite_at, run.rng)
    wait_s = run.rng.randrange(1, 9)
    run.rng.setstate(state)
    run.told(rank, [*down, *_kernel_host.link_up(run.bite_at + wait_s * S, run.rng)])
    if scene.style.backend == "nccl":
        local = scene.world.gpu_of(rank)
        for kind, wait in (("async", 0), ("back", 2)):
            lines = _symptoms.network_error(kind, run.rng, host=run.host(rank), pid=scene.pid(rank), local=local, peer="", port=0)
            run.book.say(rank, run.bite_at + wait * S, *lines)


def healthy_retries(scene: Scene) -> None:
    """Warnings and errors that the trainer got over: retried reads, a monitor that was not reached, a deprecated call."""
    run = Run.of(scene, goes_on=True)
    _runs(run)
    stamp = "<<py>> WARNING "
    noise = (
        [stamp + "storage: GET s3://tokens/part-00217 failed (503 Slow Down), retry 1 of 5", stamp + "storage: retry 2 of 5 succeeded"],
        ["/usr/lib/python3/dist-packages/torch/utils/checkpoint.py:86: UserWarning: None of the inputs have requires_grad=True"],
        ["wandb: Network error (ReadTimeout), entering retry loop."],
        [stamp + "tokenizer: sequence length is longer than the specified maximum (9311 > 8192), truncated"],
        ["[W<<glog>> socket.cpp:759] [c10d] The client socket has failed to connect to [node-0]:29500 (errno: 111 - Connection refused)."],
        ["<<py>> ERROR metrics: push to gateway failed: HTTPConnectionPool(host='pushgateway', port=9091): Read timed out."],
        [stamp + "grad scaler: skipped step, loss scale lowered to 32768.0"],
    )
    for number, lines in enumerate(run.rng.sample(noise, run.rng.randrange(2, len(noise)))):
        run.book.say(run.pick(), run.bite_at - number * 7 * S, *lines)


def healthy_loss_noise(scene: Scene) -> None:
    """The loss jumps for one step and comes back at once."""
    run = Run.of(scene, goes_on=True)
    run.trouble.global_spike = Jump(run.bite, 2, run.rng.choice((0.3, 0.6, 1.0)), run.rng.choice((1.5, 2.5, 4.0)))
    _runs(run)


def healthy_skipped_iterations(scene: Scene) -> None:
    """A scaler of losses finds its range in the first steps and skips some updates, as it should."""
    run = Run.of(scene, goes_on=True)
    _runs(run, dumps=False)
    speaker = run.teller.voice.speakers[0]
    for place in range(3):
        scale = 2 ** (32 - place)
        run.book.say(
            speaker,
            int(run.ends_at[0]) - (9 - place) * S,
            "[<<py>>] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. "
            f"Attempted loss scale: {scale}, reducing to {scale // 2}",
        )


def healthy_resumed(scene: Scene) -> None:
    """It was started anew from a checkpoint after a stop, and trains; the log of the launch before lies beside."""
    run = Run.of(scene, goes_on=True)
    run.plays(until=run.num_steps, resumed=run.first - 1)
    run.scene.recorder.is_there = False
    run.scene.stacks.is_there = False
    _sound(run, seen=False)


def healthy_odd_version(scene: Scene) -> None:
    """One host runs another kernel and firmware than its peers, and trains as well as they do."""
    run = Run.of(scene, goes_on=True)
    _runs(run)
    odd = run.host(run.pick())
    rows = ["host,component,value"]
    for host in scene.world.host_names():
        rows += [f"{host},kernel,{'5.15.0-1071-nvidia' if host == odd else '5.15.0-1064-nvidia'}", f"{host},nccl,2.21.5"]
        rows.append(f"{host},firmware:mlx5_0,{'28.39.1002' if host == odd else '28.41.1000'}")
    scene.files["inventory/versions.csv"] = ("\n".join(rows) + "\n").encode()
