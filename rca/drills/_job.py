"""A small real training job: tensor, data and pipeline parallel over gloo.

Runs in the workers with torch and the standard library alone. The harness copies this file into the job's folder, so
that stacks and recorded frames show a training script and nothing of this package. Its one argument is a configuration
file; what stands there under `faults` is what a drill's `inject` returned.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("train")


class CollectiveError(RuntimeError):
    """A collective or a transfer failed: some other rank may be the reason."""


class Shard(Dataset):  # type: ignore[misc]
    """Samples made from their index, so that every launch sees the same ones."""

    def __init__(self, *, seed: int, shard: int, hidden: int) -> None:
        self.seed, self.shard, self.hidden = seed, shard, hidden

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        rng = torch.Generator().manual_seed((self.seed * 1009 + self.shard) * 1_000_003 + index)
        return torch.randn(self.hidden, generator=rng)


class Comm:
    """The process groups of this rank, by kind."""

    def __init__(self, config: dict[str, Any], *, rank: int, faults: dict[str, Any]) -> None:
        self.groups: dict[str, Any] = {}
        self.members: dict[str, list[int]] = {}
        self.step, self.skipped = 0, False
        self.skip = faults.get("skip", {})
        timeout = timedelta(seconds=config["timeout_s"])
        for group in config["groups"]:
            made = None
            if group["kind"] != "world":  # every rank makes every group, in one order: the names must agree
                made = dist.new_group(group["ranks"], timeout=timeout, group_desc=group["desc"])
            if rank in group["ranks"]:
                self.groups[group["kind"]], self.members[group["kind"]] = made, group["ranks"]

    def all_reduce(self, kind: str, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over the group, in place."""
        if len(self.members[kind]) > 1 and not self._is_left_out(kind):
            with collective():
                dist.all_reduce(tensor, group=self.groups[kind])
        return tensor

    def send(self, tensor: torch.Tensor, peer: int) -> None:
        with collective():
            dist.send(tensor, peer, group=self.groups["pp"])

    def recv(self, tensor: torch.Tensor, peer: int) -> torch.Tensor:
        with collective():
            dist.recv(tensor, peer, group=self.groups["pp"])
        return tensor

    def barrier(self) -> None:
        with collective():
            dist.barrier()

    def _is_left_out(self, kind: str) -> bool:
        if self.skipped or self.skip.get("kind") != kind or self.step != self.skip["step"]:
            return False
        self.skipped = True
        return True


@contextlib.contextmanager
def collective() -> Iterator[None]:
    """Tells an error of the communication from one of this rank's own code."""
    try:
        yield
    except RuntimeError as error:
        raise CollectiveError(str(error)) from error


class CopyToTensorParallel(torch.autograd.Function):  # type: ignore[misc]
    """Identity forward, all_reduce backward (Megatron's f)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, comm: Comm) -> torch.Tensor:
        ctx.comm = comm
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.comm.all_reduce("tp", grad.contiguous().clone()), None


class ReduceFromTensorParallel(torch.autograd.Function):  # type: ignore[misc]
    """all_reduce forward, identity backward (Megatron's g)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, comm: Comm) -> torch.Tensor:
        return comm.all_reduce("tp", x.clone())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class Block(torch.nn.Module):  # type: ignore[misc]
    """A column- and a row-parallel linear layer."""

    def __init__(self, comm: Comm, *, hidden: int, tp: int) -> None:
        super().__init__()
        self.comm = comm
        self.column = torch.nn.Linear(hidden, 4 * hidden // tp)
        self.row = torch.nn.Linear(4 * hidden // tp, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.nn.functional.gelu(self.column(CopyToTensorParallel.apply(x, self.comm)))
        return x + ReduceFromTensorParallel.apply(self.row(wide), self.comm)


class StepLog:
    """Keeps the last losses in memory and writes them out from a thread of its own."""

    def __init__(self, path: Path, *, stuck_at: int | None) -> None:
        self.path, self.stuck_at, self.num_recorded = path, stuck_at, 0
        self._buffer: deque[str] = deque(maxlen=1000)
        self._buffer_lock, self._file_lock = threading.Lock(), threading.Lock()
        self._wake, self._both_hold = threading.Event(), threading.Barrier(2)
        threading.Thread(target=self._write_loop, name="step-log", daemon=True).start()

    def record(self, step: int, loss: float) -> None:
        self._wake.set()
        if step == self.stuck_at:
            return self._rotate()
        with self._buffer_lock:
            self._buffer.append(f"{step} {loss:.5f}")
        self.num_recorded = step
        return None

    def _rotate(self) -> None:
        with self._buffer_lock:
            self._both_hold.wait()
            with self._file_lock:
                self.path.replace(self.path.with_suffix(".1"))

    def _write_loop(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self.stuck_at is not None and self.num_recorded + 1 == self.stuck_at:
                self._flush_all()
            with self._buffer_lock:
                lines = [self._buffer.popleft() for _ in range(len(self._buffer))]
            with self._file_lock, self.path.open("a") as file:
                file.writelines(f"{line}\n" for line in lines)

    def _flush_all(self) -> None:
        with self._file_lock:
            self._both_hold.wait()
            with self._buffer_lock:
                self._buffer.clear()


class Trainer:
    """One rank's part of the model and its training loop."""

    def __init__(self, config: dict[str, Any], *, rank: int, faults: dict[str, Any], run: Path) -> None:
        self.config, self.rank, self.faults = config, rank, faults
        self.place = config["ranks"][rank]
        self.comm = Comm(config, rank=rank, faults=faults)
        torch.manual_seed(config["seed"] * 131 + self.place["pp"] * 17 + self.place["tp"])
        hidden = config["hidden"]
        self.model = Block(self.comm, hidden=hidden, tp=config["tp"])
        stages = self.comm.members["pp"]
        at = stages.index(rank)
        self.before = stages[at - 1] if at else None
        self.after = stages[at + 1] if at + 1 < len(stages) else None
        shard = Shard(seed=config["seed"], shard=self.place["dp"], hidden=hidden)
        self.batches = iter(DataLoader(shard, batch_size=config["num_microbatches"] * 4, num_workers=1))
        self.step_log = StepLog(run / f"losses_{rank}.txt", stuck_at=faults.get("lock", {}).get("step"))
        self.progress = (run / f"progress_{rank}").open("w", buffering=1)

    def run(self) -> None:
        self.comm.barrier()
        for step in range(self.config["num_steps"]):
            self.comm.step = step
            self.report(step)
            began = time.monotonic()
            losses = self.forward_backward()
            if step == self.faults.get("kill", {}).get("step"):
                os.kill(os.getpid(), signal.SIGKILL)
            norm = self.reduce_gradients(step)
            self.update(norm)
            loss = sum(losses) / max(len(losses), 1)
            self.step_log.record(step, loss)
            if step % self.config["log_every"] == 0:
                self.log_step(step, loss, norm, time.monotonic() - began)

    def forward_backward(self) -> list[float]:
        """All forward passes, then all backward passes (GPipe)."""
        batch = next(self.batches)
        micro = batch.chunk(self.config["num_microbatches"])
        passes = [self.forward(samples) for samples in micro]
        return [self.backward(x, out, samples) for (x, out), samples in zip(passes, micro, strict=True)]

    def forward(self, samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = samples if self.before is None else self.comm.recv(torch.empty_like(samples), self.before)
        x = x.requires_grad_()
        out = self.model(x)
        self.device_wait()
        if self.after is not None:
            self.comm.send(out.detach(), self.after)
        return x, out

    def backward(self, x: torch.Tensor, out: torch.Tensor, samples: torch.Tensor) -> float:
        loss = 0.0
        if self.after is None:
            error = (out - samples.detach().roll(1, dims=-1)).square().mean()
            error.backward()
            loss = float(error.detach())
        else:
            out.backward(self.comm.recv(torch.empty_like(out), self.after))
        self.device_wait()
        if self.before is not None:
            self.comm.send(x.grad, self.before)
        return loss

    def device_wait(self) -> None:
        """Stands in for the accelerator: a step must take long enough to be seen."""
        time.sleep(self.config["compute_s"])

    def reduce_gradients(self, step: int) -> float:
        """Average over data parallel, then the norm over model parallel."""
        grads = [p.grad for p in self.model.parameters()]
        flat = torch.cat([g.flatten() for g in grads])
        pad = self.faults.get("pad", {})
        bucket = flat
        if step == pad.get("step"):
            bucket = torch.cat([flat, flat.new_zeros(pad["num_extra"])])
        self.comm.all_reduce("dp", bucket)
        flat.copy_(bucket[: flat.numel()])
        flat /= self.config["dp"]
        for grad, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(part.view_as(grad))
        square = self.comm.all_reduce("mp", flat.square().sum().reshape(1))
        return float(square.sqrt())

    def update(self, norm: float) -> None:
        rate = self.config["learning_rate"] * min(1.0, 1.0 / (norm + 1e-6))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= rate * parameter.grad
                parameter.grad = None

    def log_step(self, step: int, loss: float, norm: float, step_s: float) -> None:
        total = self.comm.all_reduce("world", torch.tensor([loss]))
        mean = float(total) / (self.config["tp"] * self.config["dp"])
        log.info("step %d | loss %.4f | grad norm %.3f | %.0f ms", step, mean, norm, step_s * 1e3)

    def report(self, step: int) -> None:
        self.progress.seek(0)
        self.progress.write(f"{os.getpid()} {step:8d}\n")


def serve_recorder(path: Path, owner: int) -> None:
    """Write the flight recorder at each SIGUSR1, as gloo has no watchdog; end the rank when the job's owner is gone."""
    while Path(f"/proc/{owner}").exists():
        if signal.sigtimedwait({signal.SIGUSR1}, 2.0) is None:
            continue
        part = path.with_name(path.name + ".part")
        part.write_bytes(torch._C._distributed_c10d._dump_fr_trace())
        part.replace(path)
    os._exit(1)


def start_thread(target: Callable[..., None], *args: Any, name: str) -> None:
    threading.Thread(target=target, args=args, name=name, daemon=True).start()


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    rank, run = int(os.environ["RANK"]), Path(config["run"])
    host = config["ranks"][rank]["host"]
    layout = f"%(asctime)s [{host}][rank{rank}] %(levelname)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=layout)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # before any thread exists: all inherit it
    start_thread(serve_recorder, run / f"nccl_trace_rank_{rank}", config["owner"], name="recorder")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=config["timeout_s"]))
    log.info("rank %d of %d, pid %d", rank, dist.get_world_size(), os.getpid())
    try:
        Trainer(config, rank=rank, faults=config["faults"].get(str(rank), {}), run=run).run()
    except CollectiveError:
        log.exception("collective failed; staying up for diagnosis")
        threading.Event().wait()


if __name__ == "__main__":
    main()
