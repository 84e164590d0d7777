"""Runs the groups of a replay plan and writes what each host computed: `rca.replay/1`, one file for each run of a group.

Each group is one small torch job (`_replay_job.py`). Without a launcher every host is a process on this machine, forked from one import of torch or
started by torchrun, and as many groups run side by side as there are cores; with one (`ssh {host}`, `srun -w {host} -N 1`) torchrun starts it on
every host, and the folder must be shared between them. The plan lies in the folder before anything runs: what is killed later is missing,
never equal.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rca.errors import UsageError
from rca.probes._replay_order import RunOptions, check_launcher, check_numbers, check_torch, checked, parse_injection
from rca.probes._replay_record import Running, fill_in_expected, iso, record, write_json
from rca.replay import DOUBLE_RUN
from rca.sources import WORKSPACE

__all__ = ["run_plan"]

POLL_S: Final = 0.1
BASE_PORT: Final = 29_511
Say = Callable[[str], object]


def run_plan(plan: Mapping[str, Any], out: Path, options: RunOptions, *, say: Say = lambda _: None) -> str:
    """Run every group of every phase; the replay's id. What was written stays, also when it is stopped on the way.

    Raises UsageError before anything is started, ProbeError where torch is not there.
    """
    plan = checked(dict(plan), "plan")
    repeats = plan["repeats"] if options.repeats is None else options.repeats
    check_numbers(options)
    faults = [parse_injection(text, plan["hosts"], options.steps) for text in options.inject]
    check_launcher(options, plan["hosts"])
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not an empty folder: name a new one")
    check_torch(options)
    out.mkdir(parents=True, exist_ok=True)
    began = datetime.now(UTC)
    replay_id = f"{hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:8]}-{began:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:4]}"
    named = {**plan, "replay_id": replay_id, "repeats": repeats, "steps": options.steps, "started_at": iso(began)}
    write_json(out / "plan.json", named)
    with _work_folder(out) as work:
        for phase in plan["phases"]:
            _run_phase(phase, named, out, work, options, faults, say)
    fill_in_expected(out)
    return replay_id


def _run_phase(
    phase: Mapping[str, Any],
    plan: Mapping[str, Any],
    out: Path,
    work: Path,
    options: RunOptions,
    faults: Sequence[Mapping[str, Any]],
    say: Say,
) -> None:
    """All groups of a phase, as many at once as the cores carry."""
    waiting = list(phase["order"])
    size = len(phase["groups"][0])
    limit = options.parallel or (len(waiting) if options.launcher else _side_by_side(size))
    running: list[Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < limit:
                number = waiting.pop(0)
                running.append(_start(phase["name"], number, phase["groups"][number], plan, work, options, faults))
            time.sleep(POLL_S)
            for group in list(running):
                is_late = time.monotonic() > group.deadline
                if is_late:
                    _end(group)
                if all(agent.poll() is not None for agent in group.agents):
                    running.remove(group)
                    whole = record(group, plan, out, options, timed_out=is_late)
                    say(f"{group.phase.replace('_', ' ')} group {group.number}: {whole} of {plan['repeats']} repeats whole")
    finally:
        for group in running:
            _end(group)


def _side_by_side(size: int) -> int:
    """Groups of `size` hosts that this machine runs at once: the stages of a pipeline mostly wait for each other."""
    cores = os.cpu_count() or 1
    return max(1, min(cores, 4 * cores // size))


def _start(
    phase: str,
    number: int,
    members: Sequence[int],
    plan: Mapping[str, Any],
    work: Path,
    options: RunOptions,
    faults: Sequence[Mapping[str, Any]],
) -> Running:
    folder = work / f"{phase}-{number}"
    folder.mkdir()
    pp = 1 if phase == DOUBLE_RUN else int(plan["pp"])
    write_json(
        folder / "config.json",
        {
            "lines": str(folder), "run": f"{phase} {number}", "seed": options.seed, "steps": options.steps, "repeats": plan["repeats"],
            "pp": pp, "k": len(members) // pp, "hidden": options.hidden, "layers": options.layers, "batch": options.batch,
            "microbatches": options.microbatches, "timeout_s": options.timeout_s,
            "inject": [{**fault, "place": members.index(fault["host"])} for fault in faults if fault["host"] in members],
        },
    )  # fmt: skip
    names = [plan["hosts"][host] for host in members]
    with (folder / "log").open("wb") as log:
        agents = [
            subprocess.Popen(
                command, env=_environment(folder, is_local=options.launcher is None), cwd=folder, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True, preexec_fn=_end_with_parent(),
            )
            for command in _commands(names, number, folder / "config.json", options)
        ]  # fmt: skip
    return Running(phase, number, members, folder, agents, datetime.now(UTC), time.monotonic() + options.timeout_s)


def _commands(names: Sequence[str], number: int, config: Path, options: RunOptions) -> list[list[str]]:
    """One program that becomes all hosts of the group, one torchrun that starts them all here, or torchrun on each host."""
    job = [str(Path(__file__).with_name("_replay_job.py")), str(config)]
    torchrun = [options.python, "-m", "torch.distributed.run", "--max-restarts=0"]
    if options.launcher is None and options.with_torchrun:
        here = "127.0.0.1"  # and a port that torchrun picks
        meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint={here}:0", f"--local-addr={here}")
        return [[*torchrun, "--nnodes=1", f"--nproc-per-node={len(names)}", *meeting, *job]]
    if options.launcher is None:
        return [[options.python, *job]]
    port = BASE_PORT + number % 1000  # groups of a phase share no host; a port of its own keeps a slow end apart from the next start
    return [
        [
            *(word.replace("{host}", name) for word in shlex.split(options.launcher)),
            *torchrun,
            *(f"--nnodes={len(names)}", f"--node-rank={at}", "--nproc-per-node=1", f"--master-addr={names[0]}", f"--master-port={port}"),
            *job,
        ]
        for at, name in enumerate(names)
    ]


def _environment(folder: Path, *, is_local: bool) -> dict[str, str]:
    """Ours without what would change the job; sums in one order on CPUs and GPUs."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("TORCH", "PYTHON", "GLOO_")) and key != "RANK"}
    own = {
        "OMP_NUM_THREADS": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "NCCL_ALGO": "Ring",
        "PYTHONWARNINGS": "ignore:Failed to initialize NumPy",  # the job needs none
    }
    return kept | own | ({"GLOO_SOCKET_IFNAME": "lo"} if is_local else {})


def _end_with_parent() -> Callable[[], object]:
    """For a launcher: SIGKILL when this process dies, however it dies."""
    prctl, set_pdeathsig = ctypes.CDLL(None).prctl, 1
    return lambda: prctl(set_pdeathsig, signal.SIGKILL)


def _end(group: Running) -> None:
    """Kill the launchers of a group; their workers end with them."""
    for agent in group.agents:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()


@contextlib.contextmanager
def _work_folder(out: Path) -> Iterator[Path]:
    """Room for the groups' lines and logs, in the shared folder; gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"work{WORKSPACE}{os.getpid()}-", dir=out.resolve()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
