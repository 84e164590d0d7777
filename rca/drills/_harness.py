"""Runs a live drill: launch the job, wait for the fault to bite, capture, write the truth, tear everything down."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rca import plugins
from rca.drills._capture import Processes, capture_logs, capture_recorder, capture_stacks, is_alive, write_json
from rca.drills._layout import RANKS_PER_HOST, Injection, Layout
from rca.drills._neutral import machine_prefixes, neutralise
from rca.errors import ProbeError, UsageError

__all__ = ["Drill", "Result", "run_live", "strays"]

START_WAIT_S = 300.0  # eight imports of torch on a loaded two-core machine take a minute
BITE_WAIT_S = 300.0
STALL_S = 5.0  # twenty times a step: nobody moves any more
AGENT_WAIT_S = 60.0  # an agent gives its workers 30 s to go
TOKEN = "FIRSTFAULT_DRILL"  # every process of a job carries it in its environment, orphans too


@dataclass(frozen=True)
class Drill:
    """How to run one: the fault by name, the layout, and how much to keep."""

    fault: str
    layout: Layout
    seed: int = 0
    python: str = sys.executable  # of the job; torch and py-spy must be installed there
    job_dir: Path | None = None  # where the training script lies; shows in the stacks. None: a temporary folder
    num_rounds: int = 3
    round_gap_s: float = 3.0
    buffer_entries: int = 2000  # of the flight recorder
    json_rounds: int = 3  # JSON stacks in the last so many rounds
    is_neutral: bool = False  # take this machine's paths out


@dataclass(frozen=True)
class Result:
    """What came of it: the folder, and the step of each rank at the first and at the last sample."""

    out: Path
    dumped: tuple[int, ...]
    first_steps: dict[int, int]
    last_steps: dict[int, int]


def run_live(drill: Drill, out: Path, *, say: Callable[[str], object] = lambda _: None) -> Result:
    """Run `drill` and leave its evidence in `out`, with truth.json beside it."""
    module = plugins.load("rca.drills", drill.fault)
    injection: Injection = module.inject(drill.layout, seed=drill.seed)
    py_spy = _check(drill, out)
    token = uuid.uuid4().hex
    made = drill.job_dir is None
    job_dir = Path(tempfile.mkdtemp(prefix="drill-")) if drill.job_dir is None else drill.job_dir.absolute()
    try:
        with _stop_on_signals():
            job = _Job(drill, injection, job_dir, token)
            job.launch()
            say(f"started {drill.layout.world_size} ranks on {len(drill.layout.hosts)} made-up hosts")
            processes = job.wait_until(module.ENDS, injection, say)
            result = _capture(drill, job, processes, out, py_spy, say)
    finally:
        _end_all(token)
        shutil.rmtree(job_dir if made else job_dir / "run", ignore_errors=True)
        for name in ("train.py", "config.json"):
            (job_dir / name).unlink(missing_ok=True)
    write_json(out / "topology.json", drill.layout.topology())
    write_json(out / "truth.json", _truth(module, drill, injection))
    if drill.is_neutral:
        neutralise(out, prefixes=machine_prefixes(drill.python, job_dir))
    return result


def _check(drill: Drill, out: Path) -> str:
    """What must hold before anything starts; returns the path of py-spy."""
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} is not empty: name a new folder with --out")
    if not sys.platform.startswith("linux"):
        raise ProbeError("a live drill needs Linux (it reads /proc and stops processes for py-spy)")
    if drill.job_dir is not None and drill.job_dir.exists() and any(drill.job_dir.iterdir()):
        raise UsageError(f"{drill.job_dir} is not empty: the job needs a folder of its own")
    probe = subprocess.run([drill.python, "-c", "import torch.distributed.run"], capture_output=True, check=False)
    if probe.returncode != 0:
        raise ProbeError(f"{drill.python} cannot import torch: install firstfault[drill] there")
    beside = Path(drill.python).parent / "py-spy"
    py_spy = str(beside) if beside.exists() else shutil.which("py-spy")
    if py_spy is None:
        raise ProbeError(f"py-spy is neither beside {drill.python} nor on PATH: install firstfault[drill]")
    return py_spy


class _Job:
    """The processes of one launch and the folder they share."""

    def __init__(self, drill: Drill, injection: Injection, folder: Path, token: str) -> None:
        self.drill, self.layout, self.folder, self.token = drill, drill.layout, folder, token
        self.run = folder / "run"
        self.run.mkdir(parents=True)
        self.agents: list[subprocess.Popen[bytes]] = []
        shutil.copyfile(Path(__file__).with_name("_job.py"), folder / "train.py")
        write_json(folder / "config.json", self._config(injection))

    def _config(self, injection: Injection) -> dict[str, Any]:
        layout = self.layout
        return {
            "run": str(self.run),
            "owner": os.getpid(),
            "seed": self.drill.seed,
            "tp": layout.tp,
            "pp": layout.pp,
            "dp": layout.dp,
            "ranks": layout.ranks(),
            "groups": layout.groups(),
            "faults": injection.faults,
            "hidden": 64,
            "num_microbatches": 2,
            "compute_s": 0.2 / (2 * (layout.pp + 1)),  # two microbatches, forward and backward: a step of about 0.25 s
            "num_steps": 1_000_000,
            "log_every": 5,
            "learning_rate": 0.05,
            "timeout_s": 600,
        }

    def launch(self) -> None:
        """One agent per made-up host, as a scheduler would start them."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH_", "TORCHELASTIC_", "PYTHON"))}
        env |= {
            TOKEN: self.token,
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore:Failed to initialize NumPy",  # the job needs none
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCH_FR_BUFFER_SIZE": str(self.drill.buffer_entries),
            "TORCH_FR_CPP_STACK": "false",
            "TORCH_INCLUDE_STACK_TRACE": "true",
            "TORCH_INCLUDE_ONLY_ACTIVE": "false",
        }
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for number, host in enumerate(self.layout.hosts):
            with (self.run / f"{host}.agent.log").open("wb") as log:
                command = self._command(number, host, port)
                agent = subprocess.Popen(
                    command,
                    env=env,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=_end_with_parent(),
                )
            self.agents.append(agent)

    def _command(self, number: int, host: str, port: int) -> list[str]:
        num_local = min(RANKS_PER_HOST, self.layout.world_size - number * RANKS_PER_HOST)
        options = {
            "nnodes": len(self.layout.hosts),
            "node-rank": number,
            "nproc-per-node": num_local,
            "master-addr": "127.0.0.1",
            "master-port": port,
            "max-restarts": 0,
            "redirects": 3,
            "log-dir": self.run / "workers" / host,
        }
        flags = [f"--{name}={value}" for name, value in options.items()]
        script = [str(self.folder / "train.py"), str(self.folder / "config.json")]
        return [self.drill.python, "-m", "torch.distributed.run", *flags, *script]

    def steps(self) -> dict[int, tuple[int, int]]:
        """{rank: (pid, step)} of the ranks that have begun a step."""
        found = {}
        for rank in range(self.layout.world_size):
            with contextlib.suppress(OSError, ValueError):
                pid, step = (self.run / f"progress_{rank}").read_text().split()
                found[rank] = (int(pid), int(step))
        return found

    def wait_until(self, ends: str, injection: Injection, say: Callable[[str], object]) -> Processes:
        """Wait until every rank trains, then until the job stands still (`stall`) or has got far enough (`running`)."""
        processes = self._wait_for_start()
        say("training; waiting for the fault to bite" if injection.ranks else "training")
        self.hold_agents()
        last: dict[int, int] = {}
        deadline, moved_at = time.monotonic() + BITE_WAIT_S, time.monotonic()
        while time.monotonic() < deadline:
            steps = {rank: step for rank, (_, step) in self.steps().items()}
            if steps != last:
                last, moved_at = steps, time.monotonic()
            has_come = max(steps.values()) >= (injection.step or 0)
            if has_come and (ends == "running" or time.monotonic() - moved_at > STALL_S):
                return processes
            time.sleep(0.1)
        raise ProbeError(f"the fault did not bite in {BITE_WAIT_S:.0f} s; last steps {last}")

    def _wait_for_start(self) -> Processes:
        deadline = time.monotonic() + START_WAIT_S
        while time.monotonic() < deadline:
            steps = self.steps()
            if len(steps) == self.layout.world_size:
                pids = {rank: pid for rank, (pid, _) in steps.items()}
                return Processes(pids, {rank: _children(pid) for rank, pid in pids.items()})
            ended = [agent for agent in self.agents if agent.poll() is not None]
            if ended:
                raise ProbeError(f"the job ended before its first step:\n{self._last_words()}")
            time.sleep(0.1)
        raise ProbeError(f"the job did not start in {START_WAIT_S:.0f} s:\n{self._last_words()}")

    def _last_words(self) -> str:
        logs = [*self.run.glob("*.agent.log"), *self.run.glob("workers/*/*/attempt_0/*/stderr.log")]
        return "\n".join(path.read_text(errors="replace")[-800:] for path in sorted(logs))

    def hold_agents(self) -> None:
        """Stop the launchers: they would end the ranks beside a dead one before these could be captured."""
        for agent in self.agents:
            agent.send_signal(signal.SIGSTOP)

    def let_agents_report(self, processes: Processes) -> None:
        """Let the launchers see what became of their ranks, and wait for those that have a death to report."""
        for agent in self.agents:
            agent.send_signal(signal.SIGCONT)
        dead = {rank for rank, pid in processes.trainers.items() if not is_alive(pid)}
        deadline = time.monotonic() + AGENT_WAIT_S
        for number in {rank // RANKS_PER_HOST for rank in dead}:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.agents[number].wait(max(1.0, deadline - time.monotonic()))


def _end_with_parent() -> Callable[[], object]:
    """For a new process: SIGKILL when the harness dies, however it dies; a stopped agent would stay for ever."""
    prctl, set_pdeathsig = ctypes.CDLL(None).prctl, 1
    return lambda: prctl(set_pdeathsig, signal.SIGKILL)


def _children(pid: int) -> tuple[int, ...]:
    """Direct children of a trainer: its DataLoader workers."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in path.read_text().split()]
    return tuple(sorted(found))


def _capture(
    drill: Drill, job: _Job, processes: Processes, out: Path, py_spy: str, say: Callable[[str], object]
) -> Result:
    out.mkdir(parents=True, exist_ok=True)
    first = {rank: step for rank, (_, step) in job.steps().items()}
    rows: list[dict[str, Any]] = []
    for sample in range(drill.num_rounds):
        say(f"stacks, round {sample + 1} of {drill.num_rounds}")
        with_json = sample >= drill.num_rounds - drill.json_rounds
        rows += capture_stacks(py_spy, out / "stacks", processes, drill.layout, sample=sample, with_json=with_json)
        time.sleep(drill.round_gap_s if sample + 1 < drill.num_rounds else 0.0)
    write_json(out / "stacks" / "index.json", rows)
    last = {rank: step for rank, (_, step) in job.steps().items()}
    say("flight recorders")
    dumped = capture_recorder(job.run, out / "fr", processes)
    job.let_agents_report(processes)
    capture_logs(job.run, out / "logs", drill.layout)
    return Result(out, tuple(dumped), first, last)


def _truth(module: Any, drill: Drill, injection: Injection) -> dict[str, Any]:
    layout = drill.layout
    return {
        "first_failing_ranks": list(injection.ranks),
        "hosts": sorted({layout.host(rank) for rank in injection.ranks}),
        **module.TRUTH,
        "what": {
            "kind": drill.fault,
            "story": module.STORY,
            "trap": module.TRAP,
            "fault_step": injection.step,
            "seed": drill.seed,
            "parallel": {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp},
        },
    }


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[None]:
    """A terminated drill unwinds as an interrupted one does, so that its job ends with it."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {}
    with contextlib.suppress(ValueError):  # only the main thread may set handlers
        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def strays(token: str) -> list[int]:
    """Pids of the processes that carry `token`."""
    mark = f"{TOKEN}={token}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def _end_all(token: str) -> None:
    """Kill until nothing is left: a worker may be forked between two looks."""
    deadline = time.monotonic() + 30.0
    while pids := strays(token):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ProbeError(f"processes {pids} of the drill do not end: kill them by hand")
        time.sleep(0.05)
