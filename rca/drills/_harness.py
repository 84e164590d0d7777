"""Runs a live drill: launch the job, wait for the fault to bite, capture, write the truth, tear everything down."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rca import plugins
from rca.drills._capture import Processes, capture_logs, capture_recorder, capture_stacks, capture_timings, write_json
from rca.drills._kernel import write_kernel_logs
from rca.drills._launch import Drill, Job, stop_on_signals
from rca.drills._layout import Injection, Scene
from rca.drills._neutral import machine_prefixes, neutralise
from rca.errors import ProbeError, UsageError

__all__ = ["Drill", "Result", "run_live"]

Say = Callable[[str], object]


@dataclass(frozen=True)
class Result:
    """What came of it: the ranks that left a recorder dump, and the step of each rank at the first and last sample."""

    dumped: tuple[int, ...]
    first_steps: dict[int, int]
    last_steps: dict[int, int]


def run_live(drill: Drill, out: Path, *, say: Say = lambda _: None) -> Result:
    """Run `drill` and leave its evidence in `out`, truth.json among it; all of it or, after an error, nothing.

    1. Launch the job; wait until every rank trains. 2. Let the fault happen, or do it; wait until it shows.
    3. Stacks in rounds, then recorder dumps, then what the launchers say. 4. End every process. 5. Make up the kernel
    logs, fitted to what happened. 6. Neutralise.

    Of the fault's module: `inject` says what the job is told, `act(job, injection)` does what comes from outside of the job,
    `kernel(scene)` gives lines for the kernel logs, `spoil(folder, scene)` harms the evidence itself; the last three are optional.
    """
    module = plugins.load("rca.drills", drill.fault)
    injection: Injection = module.inject(drill.layout, seed=drill.seed)
    py_spy = _check(drill, out)
    part = out.with_name(f"{out.name}.part-{uuid.uuid4().hex[:8]}")
    part.mkdir(parents=True)
    try:
        job_dir = (drill.job_dir or Path(tempfile.mkdtemp(prefix="drill-"))).absolute()
        result = _run_job(drill, module, injection, job_dir, part, py_spy, say)
        write_json(part / "truth.json", _truth(module, drill, injection, result))
        if drill.is_neutral:
            neutralise(part, prefixes=machine_prefixes(drill.python, job_dir))
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return result


def _check(drill: Drill, out: Path) -> str:
    """What must hold before anything starts; returns the path of py-spy."""
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} is not empty: name a new folder with --out")
    if not sys.platform.startswith("linux"):
        raise ProbeError("a live drill needs Linux: it reads /proc and stops processes for py-spy")
    if drill.job_dir is not None and drill.job_dir.exists() and any(drill.job_dir.iterdir()):
        raise UsageError(f"{drill.job_dir} is not empty: the job needs a folder of its own")
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        has_torch = subprocess.run([drill.python, "-c", find], capture_output=True, check=False).returncode == 0
    except OSError as error:
        raise UsageError(f"{drill.python} does not start ({error.strerror}): name an interpreter with --python") from error
    if not has_torch:
        raise ProbeError(f"{drill.python} has no torch: install firstfault[drill] there")
    beside = Path(drill.python).parent / "py-spy"
    py_spy = str(beside) if beside.exists() else shutil.which("py-spy")
    if py_spy is None:
        raise ProbeError(f"py-spy is neither beside {drill.python} nor on PATH: install firstfault[drill]")
    return py_spy


def _run_job(drill: Drill, module: ModuleType, injection: Injection, job_dir: Path, out: Path, py_spy: str, say: Say) -> Result:
    """Steps 1 to 4: whatever happens, no process and no file of the job stays."""
    job = Job(drill, injection, job_dir, uuid.uuid4().hex)
    with stop_on_signals():
        try:
            job.launch()
            say(f"started {drill.layout.world_size} ranks on {len(drill.layout.hosts)} made-up hosts")
            processes = job.wait_for_start()
            began_ns = time.time_ns()
            say("training; waiting for the fault to bite" if injection.step and module.ENDS != "running" else "training")
            bite_ns = _bite(job, module, injection)
            result = _capture(drill, job, module, processes, out, py_spy, say)
        finally:
            job.end()
            shutil.rmtree(job_dir)
    scene = Scene(drill.layout, injection, drill.seed, processes.trainers, began_ns, bite_ns, time.time_ns())
    write_kernel_logs(out / "kernel", scene, module.kernel(scene) if hasattr(module, "kernel") else {})
    write_json(out / "topology.json", drill.layout.topology())
    if hasattr(module, "spoil"):
        module.spoil(out, scene)
    return result


def _bite(job: Job, module: ModuleType, injection: Injection) -> int:
    """Let the fault happen, or do it; wait until it shows. When it happened, in ns."""
    step, done_ns = injection.step or 0, None
    if module.ENDS != "stopped":
        job.hold_agents()
    if hasattr(module, "act"):
        job.wait_for_step(step)
        done_ns = time.time_ns()
        module.act(job, injection)
    job.wait_for_bite(step, shows_after=injection.shows_after, ends=module.ENDS)
    return done_ns or max(job.last_move_ns(rank) for rank in injection.ranks or range(job.layout.world_size))


def _capture(drill: Drill, job: Job, module: ModuleType, processes: Processes, out: Path, py_spy: str, say: Say) -> Result:
    """Of an ended job only what was written: the processes are gone."""
    first = {rank: step for rank, (_, step) in job.steps().items()}
    dumped: list[int] = []
    if module.ENDS != "stopped":
        reachable = processes.only([rank for rank in processes.trainers if drill.layout.host(rank) not in job.lost_hosts])
        _capture_stacks(drill, reachable, out, py_spy, say)
        last = {rank: step for rank, (_, step) in job.steps().items()}
        say("flight recorders")
        dumped = capture_recorder(job.run, out / "fr", reachable)
        job.let_agents_report(processes)
    else:
        last = first
    capture_logs(job.run, out / "logs", drill.layout)
    capture_timings(job.run, out / "timings")
    return Result(tuple(dumped), first, last)


def _capture_stacks(drill: Drill, processes: Processes, out: Path, py_spy: str, say: Say) -> None:
    rows: list[dict[str, Any]] = []
    for sample in range(drill.num_rounds):
        time.sleep(drill.round_gap_s if sample else 0.0)
        say(f"stacks, round {sample + 1} of {drill.num_rounds}")
        with_json = sample >= drill.num_rounds - drill.json_rounds
        rows += capture_stacks(py_spy, out / "stacks", processes, drill.layout, sample=sample, with_json=with_json)
    if all(row["rc"] for row in rows):
        raise ProbeError(f"py-spy could read no process: run as root or with CAP_SYS_PTRACE ({rows[0]['err']})")
    write_json(out / "stacks" / "index.json", rows)


def _truth(module: ModuleType, drill: Drill, injection: Injection, result: Result) -> dict[str, Any]:
    """Accepted values as lists, and under `what` the story; a deed from outside may come a step later than asked for."""
    layout = drill.layout
    step = injection.step if injection.ranks else None
    if step is not None and hasattr(module, "act"):
        step = result.last_steps[injection.ranks[0]]
    place = {"place": injection.place} if injection.place else {}
    return {
        "first_failing_ranks": list(injection.ranks),
        "hosts": sorted({layout.host(rank) for rank in injection.ranks}),
        **module.TRUTH,
        "what": {
            "kind": drill.fault,
            "story": module.STORY,
            "trap": module.TRAP,
            "fault_step": step,
            "injected": injection.faults,
            **place,
            "seed": drill.seed,
            "parallel": {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp},
        },
    }
