"""`rca capture` on real torch jobs that this project did not write: captured while they hang, diagnosed, and still hanging as before afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from _capture_jobs import (
    capture,
    children,
    diagnosis,
    end_session,
    free_port,
    have_come_to_rest,
    loaded,
    state,
    stays_running,
    torch_environment,
    torchrun,
    wait_until,
)

pytestmark = [pytest.mark.live, pytest.mark.slow]

# What anybody might write: data-parallel training, a lock around shared metrics, and one rank whose lock is never given back.
TRAIN = """
import os, threading
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

METRICS_LOCK = threading.Lock()
BAD_RANK, BAD_STEP = 2, 5

def update_metrics(step):
    with METRICS_LOCK:
        return step

def start_worker_server():
    from torch._C._distributed_c10d import _WorkerServer
    return _WorkerServer("::", 0)

def main():
    dist.init_process_group("gloo")
    server = start_worker_server()
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.randn(4000, 8), batch_size=4, num_workers=1)
    for step, batch in enumerate(loader):
        loss = model(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == BAD_RANK and step == BAD_STEP:
            METRICS_LOCK.acquire()
        update_metrics(step)
        mean = loss.detach().reshape(1)
        dist.all_reduce(mean)
        print(f"rank {rank} step {step} loss {mean.item():.4f}", flush=True)

if __name__ == "__main__":
    main()
"""
SPAWN = """
import os, threading
import torch, torch.distributed as dist, torch.multiprocessing as mp

LOCK = threading.Lock()

def take_lock():
    with LOCK:
        pass

def worker(rank, size):
    dist.init_process_group("gloo", rank=rank, world_size=size)
    if rank == 1:
        LOCK.acquire()
        print("stuck", flush=True)
    take_lock()
    dist.all_reduce(torch.ones(1))

if __name__ == "__main__":
    mp.spawn(worker, args=(4,), nprocs=4)
"""


@dataclass(frozen=True)
class Running:
    """A hanging job: its agent, and the pid of each rank."""

    agent: subprocess.Popen[bytes]
    port: int
    pids: dict[int, int]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder, port = tmp_path_factory.mktemp("job"), free_port()
    logs = [f"logs/*/attempt_0/{rank}/stdout.log" for rank in range(4)]
    with torchrun(TRAIN, folder, port, lambda: all(any(" step 4 " in p.read_text() for p in folder.glob(g)) for g in logs)) as agent:
        ranks = children(agent.pid)
        by_rank = {int(_variable(pid, "RANK")): pid for pid in ranks}
        wait_until(lambda: have_come_to_rest(ranks))
        yield Running(agent, port, by_rank)


def _variable(pid: int, name: str) -> str:
    pairs = (pair.partition("=") for pair in Path(f"/proc/{pid}/environ").read_text().split("\0"))
    return next(value for key, _, value in pairs if key == name)


def _everybody(job: Running) -> list[int]:
    return [job.agent.pid, *job.pids.values(), *(child for pid in job.pids.values() for child in children(pid))]


def test_the_rank_that_hangs_in_a_lock_is_found_by_its_stacks_alone(job: Running, tmp_path: Path) -> None:
    before = {pid: state(pid) for pid in _everybody(job)}
    done = capture("--out", tmp_path / "out", "--gap", 1, "--job", job.port, "--host", "host-a", "--no-trigger")
    assert done.returncode == 0, done.stderr
    assert {pid: state(pid) for pid in _everybody(job)} == before
    assert stays_running(_everybody(job))
    assert job.agent.poll() is None
    root = tmp_path / "out" / "host-a"
    rows = loaded(root / "stacks" / "index.json")
    assert {(row["role"], row["rank"]) for row in rows} == {(role, r) for role in ("main", "worker0") for r in range(4)} | {("agent", None)}
    assert all(row["rc"] == 0 for row in rows)
    assert sorted(path.name for path in (root / "logs").iterdir() if path.name.endswith("stdout.log")) == [
        f"rank_{r}.stdout.log" for r in range(4)
    ]
    said = diagnosis(tmp_path / "out")
    assert (said["verdict"]["cause"], said["verdict"]["first_failing"]["ranks"]) == ("code_hang", [2])
    assert said["verdict"]["first_failing"]["hosts"] == ["host-a"]
    assert said["skipped"] == []


def test_captures_of_several_hosts_lie_side_by_side(job: Running, tmp_path: Path) -> None:
    for host, ranks in (("host-a", (0, 1)), ("host-b", (2, 3))):
        words = [word for rank in ranks for word in ("--pid", job.pids[rank])]
        assert capture("--out", tmp_path / "out", "--gap", 1, "--host", host, *words, "--no-trigger").returncode == 0
    verdict = diagnosis(tmp_path / "out")["verdict"]
    assert (verdict["cause"], verdict["first_failing"]["ranks"], verdict["first_failing"]["hosts"]) == ("code_hang", [2], ["host-b"])


def test_the_worker_server_of_torch_gives_its_recorder(job: Running, tmp_path: Path) -> None:
    done = capture("--out", tmp_path / "out", "--rounds", 1, "--job", job.port, "--host", "host-a", "--json")
    assert done.returncode == 0, done.stderr
    (one,) = json.loads(done.stdout)["jobs"]
    assert one["recorders"] == [0, 1, 2, 3]
    said = diagnosis(tmp_path / "out")
    assert said["coverage"]["ranks_with"]["dumps"] == 4
    assert said["verdict"]["first_failing"]["ranks"] == [2]
    assert stays_running(_everybody(job))


def test_ranks_of_torch_spawn_are_captured_by_their_parent(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWN)
    environment = torch_environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    with (tmp_path / "out.txt").open("wb") as log:
        parent = subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: parent.poll() is not None or "stuck" in (tmp_path / "out.txt").read_text())
        assert parent.poll() is None, (tmp_path / "out.txt").read_text()
        done = capture("--out", tmp_path / "out", "--gap", 1, "--pid", parent.pid, "--host", "host-a", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["jobs"][0]["ranks"] == [0, 1, 2, 3]
        verdict = diagnosis(tmp_path / "out")["verdict"]
        assert (verdict["cause"], verdict["first_failing"]["ranks"]) == ("code_hang", [1])
    finally:
        end_session(parent)
