"""Plain jobs of torch that left no recorder dump: captured by their stacks, the rank that hangs is named; of one that runs nobody is accused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from _capture_jobs import capture, children, diagnosis, free_port, have_come_to_rest, loaded, torchrun, wait_until

pytestmark = [pytest.mark.live, pytest.mark.slow]
BAD_RANK = 1
# Gradients of several buckets are awaited inside the backward pass: nothing here calls a collective by name.
BUCKETS = """
import os, queue, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

tokens = queue.Queue()

def next_tokens(rank, step):
    if os.environ["FAULT"] == "queue" and rank == 1 and step == 6:
        return tokens.get()
    if os.environ["FAULT"] == "slow" and rank == 1 and step > 3:
        time.sleep(0.8)
    if os.environ["FAULT"] == "long":
        time.sleep(2.5)

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)]), bucket_cap_mb=0.3)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(1_000_000):
        next_tokens(rank, step)
        loss = model(torch.randn(32, 256)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == (0 if os.environ["FAULT"] == "long" else 5):
            open(f"under_way.{rank}", "w").close()

main()
"""
# Four micro-batches to a step, of which the last one synchronises; one loader worker opens a pipe that nobody writes to.
ACCUMULATES = """
import contextlib
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

class Words(Dataset):
    def __init__(self, rank):
        self.rank, self.num_read = rank, 0

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        self.num_read += 1
        if self.rank == 1 and self.num_read == 60:
            with open("pipe", "rb") as shard:
                return shard.read(16)
        return torch.randn(64)

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(DataLoader(Words(rank), batch_size=2, num_workers=1)):
        is_last = number % 4 == 3
        with contextlib.nullcontext() if is_last else model.no_sync():
            (model(batch).pow(2).mean() / 4).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
        if number == 12:
            open(f"under_way.{rank}", "w").close()

if __name__ == "__main__":
    main()
"""
# A wrapper of its own around asynchronous calls: `work.wait()` is C code, and leaves the line of the wrapper as the last frame.
WRAPPED = """
import threading
import torch, torch.distributed as dist
from torch import nn

class GradSync:
    def __init__(self, module):
        self.parameters = list(module.parameters())

    def __call__(self):
        works = [dist.all_reduce(parameter.grad, async_op=True) for parameter in self.parameters]
        for work in works:
            work.wait()

class Cache:
    def __init__(self):
        self.guard = threading.Lock()

    def look_up(self, rank, step):
        if rank == 1 and step == 6:
            self.guard.acquire()
        with self.guard:
            return step

def main():
    dist.init_process_group("gloo")
    rank, model, cache = dist.get_rank(), nn.Linear(64, 64), Cache()
    sync, optimizer = GradSync(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1_000_000):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).pow(2).mean().backward()
        cache.look_up(rank, step)
        sync()
        optimizer.step()
        if step == 5:
            open(f"under_way.{rank}", "w").close()

main()
"""


def _switches(folder: Path) -> dict[int, list[int]]:
    """rank -> how often its main thread had gone to wait, round by round."""
    found: dict[int, list[int]] = {}
    for row in loaded(next(folder.glob("out/**/stacks/index.json"))):
        if row["role"] == "main":
            found.setdefault(row["rank"], []).append(row["voluntary_switches"])
    return found


def _said(program: str, folder: Path, fault: str = "none") -> dict[str, Any]:
    """The diagnosis of a capture that begins when all ranks have passed the last step before the fault, and the peers wait, if they will."""
    os.mkfifo(folder / "pipe")
    port = free_port()
    with torchrun(program, folder, port, lambda: len(list(folder.glob("under_way.*"))) == 4, FAULT=fault) as agent:
        if fault in ("queue", "pipe", "lock"):
            wait_until(lambda: have_come_to_rest(children(agent.pid)))
        done = capture("--out", folder / "out", "--gap", 1, "--job", port, "--host", "host-a", "--no-trigger")
        assert done.returncode == 0, done.stderr
    return diagnosis(folder / "out")


@pytest.mark.parametrize(
    ("program", "fault", "causes"),
    [
        pytest.param(BUCKETS, "queue", {"code_hang"}, id="queue"),
        pytest.param(ACCUMULATES, "pipe", {"data_stall", "storage_stall"}, id="pipe"),
        pytest.param(WRAPPED, "lock", {"code_hang"}, id="lock"),
    ],
)
def test_the_rank_that_hangs_is_named(program: str, fault: str, causes: set[str], tmp_path: Path) -> None:
    verdict = _said(program, tmp_path, fault)["verdict"]
    assert verdict["first_failing"]["ranks"] == [BAD_RANK]
    assert verdict["cause"] in causes
    waits = [counts for rank, counts in _switches(tmp_path).items() if rank != BAD_RANK]
    assert len(waits) == 3
    assert all(counts[-1] - counts[0] <= 3 * (len(counts) - 1) for counts in waits)  # what the dumps themselves add


def test_nobody_is_accused_of_a_job_that_runs(tmp_path: Path) -> None:
    verdict = _said(BUCKETS, tmp_path)["verdict"]
    assert verdict["first_failing"]["ranks"] == []
    assert verdict["cause"] in ("unknown", "healthy")


def test_a_rank_that_all_wait_for_again_and_again_does_not_hang(tmp_path: Path) -> None:
    said = _said(BUCKETS, tmp_path, "slow")
    assert "job_runs" in {finding["sign"] for finding in said["findings"]}
    assert said["verdict"]["cause"] in ("slow_rank", "unknown")
    assert set(said["verdict"]["first_failing"]["ranks"]) <= {BAD_RANK}  # a sample may show it waiting too: then nobody is named


def test_ranks_that_are_in_the_midst_of_a_long_step_do_not_stand_still(tmp_path: Path) -> None:
    said = _said(BUCKETS, tmp_path, "long")
    assert said["verdict"]["first_failing"]["ranks"] == []
    assert "job_hangs" not in {finding["sign"] for finding in said["findings"]}
