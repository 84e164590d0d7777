"""Which process is whose: trainers, DataLoader workers with the trainer's own environment, agents, launchers, several jobs on one host."""

from __future__ import annotations

from typing import Any

import pytest

from collectors._capture.find import Asked, Job, find_jobs
from collectors._capture.proc import Process
from collectors._capture.state import safe_command, safe_environment
from collectors._capture.withheld import withheld

ME = 9999


def process(
    pid: int, ppid: int, environ: dict[str, str] | None, command: str = "python train.py", comm: str = "python", **more: Any
) -> Process:
    is_python = more.pop("is_python", command.startswith(("python", "/usr/bin/python")))
    return Process(pid, ppid, more.pop("started", pid), 1000, comm, tuple(command.split()), environ, is_python)


def rank(number: int, size: int = 4, port: int = 29500, **more: str) -> dict[str, str]:
    return {
        "RANK": str(number),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(number),
        "MASTER_ADDR": "host-a",
        "MASTER_PORT": str(port),
        **more,
    }


def torchrun(first: int = 100, port: int = 29500, **more: str) -> list[Process]:
    """An agent with two ranks, each with a DataLoader worker that differs from its trainer by its name alone."""
    found = [process(first, 1, {}, "python -m torch.distributed.run train.py", "pt_elastic")]
    for number in range(2):
        found.append(process(first + 10 * (number + 1), first, rank(number, 2, port, **more)))
        found.append(
            process(first + 10 * (number + 1) + 1, first + 10 * (number + 1), rank(number, 2, port, **more), comm="pt_data_worker")
        )
    return found


def roles(job: Job) -> dict[int, tuple[str, int | None]]:
    return {m.process.pid: (m.role, m.rank) for m in job.members}


def test_a_worker_with_the_environment_of_its_trainer_is_no_rank() -> None:
    (job,) = find_jobs(torchrun(), own=ME)
    assert roles(job) == {100: ("agent", None), 110: ("main", 0), 111: ("worker0", 0), 120: ("main", 1), 121: ("worker0", 1)}
    assert job.world_size == 2


def test_an_orphaned_worker_is_no_rank() -> None:
    orphan = process(50, 1, rank(0, 2), comm="pt_data_worker")
    (job,) = find_jobs([orphan, *torchrun()], own=ME)
    assert 50 not in roles(job)


def test_a_left_over_of_an_earlier_launch_is_told_and_left_out() -> None:
    (job,) = find_jobs([process(50, 1, rank(0, 2)), *torchrun()], own=ME)
    assert [m.process.pid for m in job.trainers] == [110, 120]
    assert "process 50" in job.oddities[0]


def test_the_shell_that_wraps_a_trainer_is_not_it() -> None:
    shell = process(10, 1, rank(3), "bash run.sh", "bash")
    (job,) = find_jobs([shell, process(11, 10, rank(3))], own=ME)
    assert roles(job) == {11: ("main", 3)}


def test_tasks_of_slurm_are_ranks() -> None:
    def task(number: int) -> dict[str, str]:
        return {"SLURM_PROCID": str(number), "SLURM_NTASKS": "2", "SLURM_LOCALID": str(number), "SLURM_JOB_ID": "77"}

    step = process(5, 1, {}, "slurmstepd: [77.0]", "slurmstepd")
    srun = process(7, 6, task(0), "srun python train.py", "srun")
    batch = process(6, 1, task(0), "bash batch.sh", "bash")
    (job,) = find_jobs([step, batch, srun, process(8, 5, task(0)), process(9, 5, task(1))], own=ME)
    assert roles(job) == {5: ("launcher", None), 7: ("launcher", None), 8: ("main", 0), 9: ("main", 1)}
    assert (job.name, job.world_size) == ("slurm-77", 2)


def test_under_slurm_torchrun_sets_the_ranks_and_its_own_task_number_is_none() -> None:
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "77"}
    agent = process(20, 1, slurm, "python -m torch.distributed.run train.py")
    monitor = process(30, 1, slurm, "python monitor.py")
    (job,) = find_jobs([agent, process(21, 20, rank(8, 16) | slurm), process(22, 20, rank(9, 16) | slurm), monitor], own=ME)
    assert roles(job) == {20: ("agent", None), 21: ("main", 8), 22: ("main", 9)}


def test_jobs_are_told_apart_and_one_can_be_asked_for() -> None:
    both = [*torchrun(100, 29500), *torchrun(200, 29501)]
    assert [job.name for job in find_jobs(both, own=ME)] == ["port-29500", "port-29501"]
    assert [job.name for job in find_jobs(both, name="29501", own=ME)] == ["port-29501"]
    assert [job.name for job in find_jobs(both, [Asked(200)], own=ME)] == ["port-29501"]
    assert [m.rank for m in find_jobs(both, [Asked(220)], own=ME)[0].trainers] == [1]
    assert find_jobs(both, name="29502", own=ME) == []


def test_a_program_that_uses_the_word_rank_for_itself_is_no_trainer() -> None:
    assert find_jobs([process(10, 1, {"RANK": "1"})], own=ME) == []
    assert find_jobs([process(10, 1, {"RANK": "captain", "WORLD_SIZE": "2"})], own=ME) == []


def test_what_was_started_by_us_is_not_captured_but_a_trainer_that_started_us_is() -> None:
    trainer, us = process(100, 1, rank(0)), process(ME, 100, rank(0), "python -m apps.cli capture")
    helper = process(ME + 1, ME, rank(0), "python helper.py")
    (job,) = find_jobs([trainer, us, helper], own=ME)
    assert roles(job) == {100: ("main", 0)}


SPAWN = "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7) --multiprocessing-fork"
TRACKER = "python -c from multiprocessing.resource_tracker import main;main(4)"


@pytest.mark.parametrize(
    ("environ", "asked", "ranks", "size"),
    [
        ({"MASTER_ADDR": "127.0.0.1"}, Asked(10), [0, 1], 2),  # all on this host: their order is their rank
        ({}, Asked(10), [None, None], None),
        ({"MASTER_ADDR": "host-b"}, Asked(10), [None, None], None),
        ({"MASTER_ADDR": "host-b"}, Asked(10, 8), [8, 9], None),
    ],
)
def test_spawned_processes_are_ranks_in_the_order_of_their_start(
    environ: dict[str, str], asked: Asked, ranks: list[int | None], size: int | None
) -> None:
    parent, tracker = process(10, 1, environ), process(11, 10, environ, TRACKER)
    spawned = [process(30, 10, environ, SPAWN, started=12), process(13, 10, environ, SPAWN, started=13)]  # pids have wrapped
    (job,) = find_jobs([parent, tracker, *spawned], [asked], own=ME)
    assert [(m.process.pid, m.rank) for m in sorted(job.trainers, key=lambda m: m.process.started)] == list(
        zip([30, 13], ranks, strict=True)
    )
    assert job.world_size == size
    assert roles(job)[10] == ("agent", None)


def test_a_process_whose_environment_may_not_be_read_can_be_named_with_its_rank() -> None:
    (job,) = find_jobs([process(10, 1, None), process(11, 10, None, comm="pt_data_worker")], [Asked(10, 5)], own=ME)
    assert roles(job) == {10: ("main", 5), 11: ("worker0", 5)}


def test_a_checkpoint_process_is_told_by_its_own_command_line_not_by_its_trainers() -> None:
    trainer = process(10, 1, rank(0), "python train.py --checkpoint-dir x")
    fork = process(11, 10, rank(0), "python train.py --checkpoint-dir x")
    saver = process(12, 10, rank(0), "python -m async_checkpoint_saver")
    (job,) = find_jobs([trainer, fork, saver], own=ME)
    assert roles(job) == {10: ("main", 0), 11: ("other0", 0), 12: ("checkpoint0", 0)}


def test_names_of_jobs_are_names_of_folders() -> None:
    (job,) = find_jobs(torchrun(100, 29500, TORCHELASTIC_RUN_ID="../../etc/x y"), own=ME)
    assert job.name == "run-.._.._etc_x_y"


def test_only_settings_of_the_job_are_kept_and_no_secret() -> None:
    kept_ones = {"RANK": "0", "NCCL_DEBUG": "INFO", "TORCH_FR_BUFFER_SIZE": "2000", "SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0"}
    others = (
        "HOME",
        "PATH",
        "PYTHONPATH",
        "WANDB_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "NCCL_AUTH_TOKEN",
        "SLURM_JWT_KEY",
        "TORCH_PASSWORD",
    )
    environ = {**kept_ones, **dict.fromkeys(others, "s1"), "TORCH_STORE": "tcp://user:s7@host-a:1"}
    kept = safe_environment(environ)
    assert kept is not None
    assert kept == {**kept_ones, "TORCH_STORE": withheld("env:TORCH_STORE", environ["TORCH_STORE"])}
    assert safe_environment(None) is None


def test_secrets_of_a_command_line_are_blotted_out() -> None:
    words = [
        "train.py",
        "--api-key=s1",
        "--token",
        "s2",
        "--lr",
        "0.1",
        "WANDB_API_KEY=s3",
        "--store",
        "http://u:s4@h/x",
        "--use-keys",
        "--next",
    ]
    assert safe_command(words) == [
        *("train.py", "--api-key=***", "--token", "***", "--lr", "0.1", "WANDB_API_KEY=***"),
        *("--store", "http://***@h/x", "--use-keys", "--next"),
    ]
