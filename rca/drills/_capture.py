"""What a drill collects from a running, hung or ended job: recorder dumps, stacks of the process tree, logs, step timings."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rca.drills._layout import Layout

__all__ = ["Processes", "capture_logs", "capture_recorder", "capture_stacks", "capture_timings", "is_alive", "write_json"]

DUMP_WAIT_S = 60.0  # the first dump with frames took 3-6 s on an idle machine
DUMP_GAP_S = 10.0  # the others follow close; whoever doesn't will not
_PY_SPY_ENV = {"PATH": os.environ.get("PATH", os.defpath), "RUST_BACKTRACE": "0"}
PY_SPY_WAIT_S = 30.0  # a dump takes 0.1 s; one that hangs must not keep its target stopped


@dataclass(frozen=True)
class Processes:
    """Pids of one job: {rank: trainer} and {rank: its DataLoader workers}."""

    trainers: Mapping[int, int]
    workers: Mapping[int, tuple[int, ...]]

    def only(self, ranks: Collection[int]) -> Processes:
        """Those of some ranks."""
        return Processes({rank: self.trainers[rank] for rank in ranks}, {rank: self.workers[rank] for rank in ranks})


def is_alive(pid: int) -> bool:
    """True for a process that still runs, hangs included; a zombie is dead."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def capture_recorder(run: Path, out: Path, processes: Processes) -> list[int]:
    """Ask every living rank for its flight recorder; the ranks that answered."""
    living = {rank: pid for rank, pid in processes.trainers.items() if is_alive(pid)}
    for pid in living.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    found: list[int] = []
    deadline = time.monotonic() + DUMP_WAIT_S
    while time.monotonic() < deadline and any(is_alive(pid) for rank, pid in living.items() if rank not in found):
        before, found = found, sorted(rank for rank in living if (run / f"nccl_trace_rank_{rank}").exists())
        if found != before:
            deadline = time.monotonic() + DUMP_GAP_S
        time.sleep(0.1)
    out.mkdir(parents=True, exist_ok=True)
    for rank in found:
        shutil.copyfile(run / f"nccl_trace_rank_{rank}", out / f"nccl_trace_rank_{rank}")
    return found


def capture_stacks(py_spy: str, out: Path, processes: Processes, layout: Layout, *, sample: int, with_json: bool) -> list[dict[str, Any]]:
    """One round over the process tree; rows of the index, failures included: they are evidence too."""
    folder = out / f"round_{sample}"
    folder.mkdir(parents=True)
    rows = []
    for rank, pid in sorted(processes.trainers.items()):
        targets = [("main", pid, ("json", "txt") if with_json else ("txt",))]
        targets += [(f"worker{n}", worker, ("txt",)) for n, worker in enumerate(processes.workers.get(rank, ()))]
        for role, target, formats in targets:
            place = {"round": sample, "rank": rank, "host": layout.host(rank), "role": role, "pid": target}
            for form in formats:
                path = folder / f"rank_{rank}.{role}.{form}"
                rows.append({**place, "t_ns": time.time_ns(), "format": form, **_dump(py_spy, target, path)})
    return rows


def _dump(py_spy: str, pid: int, path: Path) -> dict[str, Any]:
    """One py-spy dump into `path`; its return code and what it complained of."""
    command = [py_spy, "dump", "--pid", str(pid), *(["--json"] if path.suffix == ".json" else [])]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PY_SPY_WAIT_S, check=False, env=_PY_SPY_ENV)
    except subprocess.TimeoutExpired:
        _let_go(pid)
        return {"rc": 124, "err": f"no answer in {PY_SPY_WAIT_S:.0f} s"}
    if done.returncode == 0:
        path.write_bytes(done.stdout)
    return {"rc": done.returncode, "err": done.stderr.decode(errors="replace").strip()[:400]}


def _let_go(pid: int) -> None:
    """A killed py-spy may leave its target stopped."""
    if is_alive(pid):
        os.kill(pid, signal.SIGCONT)


def capture_logs(run: Path, out: Path, layout: Layout) -> None:
    """The standard error of every rank and of every agent, with the made-up host in the place of the real one."""
    out.mkdir(parents=True, exist_ok=True)
    for host in layout.hosts:
        text = (run / f"{host}.agent.log").read_text(errors="replace")
        (out / f"{host}.agent.log").write_text(_rename_host(text, host))
    for row in layout.ranks():
        for path in (run / "workers" / row["host"]).glob(f"*/attempt_0/{row['local_rank']}/stderr.log"):
            text = _rename_host(path.read_text(errors="replace"), row["host"])
            (out / f"rank_{row['rank']}.stderr.log").write_text(text)


def capture_timings(run: Path, out: Path) -> None:
    """The lines that every rank wrote of its steps, as far as it came."""
    shutil.copytree(run / "timings", out)


def _rename_host(text: str, host: str) -> str:
    """The real host's name, and whatever name an agent's report gives its own host, become `host`."""
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", host, text)
    return re.sub(r"(?m)^(  host      : ).*$", rf"\g<1>{host}", text)


def write_json(path: Path, value: object) -> None:
    """One document, indented by one: small, and still readable in a diff."""
    path.write_text(json.dumps(value, indent=1) + "\n")
