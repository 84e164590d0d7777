"""The processes of one live drill: started as a scheduler would, watched, and ended without exception."""

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from rca.drills._capture import Processes, is_alive, write_json
from rca.drills._layout import RANKS_PER_HOST, Injection, Layout
from rca.errors import ProbeError

__all__ = ["SAVE_EVERY", "Drill", "Ends", "Job", "end_all", "stop_on_signals", "strays"]

Ends = Literal["stall", "running", "either", "stopped"]  # nobody moves; it goes on; one of the two; the launchers have ended

START_WAIT_S = 300.0  # eight imports of torch on a loaded two-core machine take a minute
BITE_WAIT_S = 300.0
STALL_S = 5.0  # twenty times a step: nobody moves any more
AGENT_WAIT_S = 60.0  # an agent gives its workers 30 s to go
STEP_S = 0.2  # of waiting, beside some 0.05 s of work: a healthy job moves visibly between two samples
POLL_S = 0.1
SAVE_EVERY = 10  # steps
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


class Job:
    """The processes of one launch and the folder they share."""

    def __init__(self, drill: Drill, injection: Injection, folder: Path, token: str) -> None:
        self.drill, self.layout, self.folder, self.token = drill, drill.layout, folder, token
        self.run = folder / "run"
        self.run.mkdir(parents=True)
        self.agents: list[subprocess.Popen[bytes]] = []
        self.lost_hosts: set[str] = set()
        _copy_program(folder)
        write_json(folder / "config.json", {**self._config(injection), **injection.config})
        self.scratch = Path(tempfile.mkdtemp(prefix="drill-"))  # killed workers leave sockets there, whose paths must be short

    def _config(self, injection: Injection) -> dict[str, Any]:
        layout, num_microbatches = self.layout, 2
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
            "num_microbatches": num_microbatches,
            "batch_size": 4 * num_microbatches,
            "compute_s": STEP_S / (2 * (layout.pp + num_microbatches - 1)),  # GPipe, forward and backward
            "num_steps": 1_000_000,
            "log_every": 5,
            "save_every": SAVE_EVERY,
            "check_nan": True,
            "learning_rate": 0.05,
            "timeout_s": 600,
        }

    def launch(self) -> None:
        """One agent per made-up host, as a scheduler would start them."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for number, host in enumerate(self.layout.hosts):
            with self._log_of(host).open("ab") as log:
                agent = subprocess.Popen(
                    self._command(number, host, port),
                    env=self._environment(),
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=_end_with_parent(),
                )
            self.agents.append(agent)

    def _environment(self) -> dict[str, str]:
        """Ours without what would change the job, with the recorder's settings stated and not left to defaults."""
        return {k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "PYTHON", "GLOO_", "NCCL_"))} | {
            TOKEN: self.token,
            "TMPDIR": str(self.scratch),
            "LOGLEVEL": "INFO",  # of the agents
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore:Failed to initialize NumPy",  # the job needs none
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCH_FR_BUFFER_SIZE": str(self.drill.buffer_entries),
            "TORCH_FR_CPP_STACK": "false",
            "TORCH_INCLUDE_STACK_TRACE": "true",
            "TORCH_INCLUDE_ONLY_ACTIVE": "false",
        }

    def _command(self, number: int, host: str, port: int) -> list[str]:
        options = {
            "nnodes": len(self.layout.hosts),
            "node-rank": number,
            "nproc-per-node": min(RANKS_PER_HOST, self.layout.world_size - number * RANKS_PER_HOST),
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

    def wait_for_start(self) -> Processes:
        """Wait until every rank has begun a step."""
        deadline = time.monotonic() + START_WAIT_S
        while time.monotonic() < deadline:
            steps = self.steps()
            if len(steps) == self.layout.world_size:
                pids = {rank: pid for rank, (pid, _) in steps.items()}
                return Processes(pids, {rank: _children(pid) for rank, pid in pids.items()})
            if any(agent.poll() is not None for agent in self.agents):
                raise ProbeError(f"the job ended before its first step:\n{self._last_words()}")
            time.sleep(POLL_S)
        raise ProbeError(f"the job did not start in {START_WAIT_S:.0f} s:\n{self._last_words()}")

    def wait_for_bite(self, step: int, *, shows_after: int, ends: Ends) -> None:
        """Wait until the job has got to `step` and then ends as it must: a job that goes on has gone `shows_after` steps on."""
        last: dict[int, int] = {}
        deadline, moved_at = time.monotonic() + BITE_WAIT_S, time.monotonic()
        while time.monotonic() < deadline:
            steps = {rank: step for rank, (_, step) in self.steps().items()}
            if steps != last:
                last, moved_at = steps, time.monotonic()
            goes_on = max(steps.values()) >= step + shows_after
            stalls = max(steps.values()) >= step and time.monotonic() - moved_at > STALL_S
            if {"stall": stalls, "running": goes_on, "either": stalls or goes_on, "stopped": self._has_ended()}[ends]:
                return
            time.sleep(POLL_S)
        raise ProbeError(f"the fault did not bite in {BITE_WAIT_S:.0f} s; last steps {last}:\n{self._last_words()}")

    def _has_ended(self) -> bool:
        return all(agent.poll() is not None for agent in self.agents)

    def wait_for_step(self, step: int) -> None:
        """Wait until every rank has got to `step`, so that one more is under way."""
        deadline = time.monotonic() + BITE_WAIT_S
        while min(at for _, at in self.steps().values()) < step:
            if time.monotonic() > deadline:
                raise ProbeError(f"the job did not get to step {step} in {BITE_WAIT_S:.0f} s:\n{self._last_words()}")
            time.sleep(POLL_S / 2)

    def last_move_ns(self, rank: int) -> int:
        """When `rank` began the step it is in."""
        return (self.run / f"progress_{rank}").stat().st_mtime_ns

    def _log_of(self, host: str) -> Path:
        return self.run / f"{host}.agent.log"

    def say(self, host: str, line: str) -> None:
        """A line of an operator or a scheduler in the log of a host's launcher; `{now}` in it becomes the time."""
        with self._log_of(host).open("a") as log:
            log.write(line.format(now=time.strftime("%Y-%m-%dT%H:%M:%S")) + "\n")

    def kill_rank(self, rank: int) -> None:
        """SIGKILL, as from the kernel."""
        os.kill(self.steps()[rank][0], signal.SIGKILL)

    def lose_host(self, host: str) -> None:
        """The host is gone with all that ran on it: no process there gets to say a word."""
        self.lost_hosts.add(host)
        number = self.layout.hosts.index(host)
        trainers = [pid for rank, (pid, _) in self.steps().items() if self.layout.host(rank) == host]
        workers = [worker for pid in trainers for worker in _children(pid)]
        for pid in (self.agents[number].pid, *trainers, *workers):
            os.kill(pid, signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM to every launcher, as a scheduler ends a job."""
        for agent in self.agents:
            agent.send_signal(signal.SIGTERM)

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
        for number in sorted({rank // RANKS_PER_HOST for rank in dead}):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.agents[number].wait(max(1.0, deadline - time.monotonic()))

    def end(self) -> None:
        """Kill everything, collect the agents, and clear away what the killed could not."""
        end_all(self.token)
        for agent in self.agents:
            agent.wait()
        shutil.rmtree(self.scratch, ignore_errors=True)


def _copy_program(folder: Path) -> None:
    """The training program: train.py and, under names of their own, the helpers it imports."""
    here = Path(__file__).parent
    names = {"_job.py": "train.py"} | {path.name: path.name.removeprefix("_job_") for path in here.glob("_job_*.py")}
    for source, name in names.items():
        (folder / name).write_text((here / source).read_text().replace("rca.drills._job_", ""))


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


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """A terminated drill unwinds as an interrupted one does, so that its job ends with it."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    wanted = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {}
    with contextlib.suppress(ValueError):  # only the main thread may set handlers
        before = {number: signal.signal(number, stop) for number in wanted}
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


def end_all(token: str) -> None:
    """Kill until nothing is left: a worker may be forked between two looks."""
    deadline = time.monotonic() + 30.0
    while pids := strays(token):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ProbeError(f"processes {pids} of the drill do not end: kill them by hand")
        time.sleep(0.05)
