"""A small real training job: tensor, data and pipeline parallel over gloo.

Runs in the workers with torch and the standard library alone. The harness copies this file and its helpers (_job_*.py)
into the job's folder, so that stacks and recorded frames show a training program and nothing of this package. Its one
argument is a configuration file; what stands there under `faults` is what a drill's `inject` returned.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import math
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from rca.drills._job_checkpoint import Checkpoint
from rca.drills._job_samples import Samples
from rca.drills._job_step_log import StepLog
from rca.drills._job_timings import StepClock

log = logging.getLogger("train")


class CollectiveError(RuntimeError):
    """A collective or a transfer failed: some other rank may be the reason."""


class Comm:
    """The process groups of this rank, by kind."""

    def __init__(self, config: dict[str, Any], *, rank: int, faults: dict[str, Any], clock: StepClock) -> None:
        self.clock = clock
        self.groups: dict[str, Any] = {}
        self.members: dict[str, list[int]] = {}
        self.skip, self.skipped = faults.get("skip", {}), False
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
            with collective(), self.clock.comm(kind):
                dist.all_reduce(tensor, group=self.groups[kind])
        return tensor

    def send(self, tensor: torch.Tensor, peer: int) -> None:
        with collective(), self.clock.comm("pp"):
            dist.send(tensor, peer, group=self.groups["pp"])

    def recv(self, tensor: torch.Tensor, peer: int) -> torch.Tensor:
        with collective(), self.clock.comm("pp"):
            dist.recv(tensor, peer, group=self.groups["pp"])
        return tensor

    def barrier(self) -> None:
        with collective():
            dist.barrier()

    def _is_left_out(self, kind: str) -> bool:
        if self.skipped or self.skip.get("kind") != kind or self.clock.step != self.skip["step"]:
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


class Trainer:
    """One rank's part of the model and its training loop."""

    def __init__(self, config: dict[str, Any], *, rank: int, faults: dict[str, Any], run: Path) -> None:
        self.config, self.rank, self.faults, self.run_dir = config, rank, faults, run
        self.place = config["ranks"][rank]
        self.clock = StepClock(run / "timings", rank)
        self.comm = Comm(config, rank=rank, faults=faults, clock=self.clock)
        torch.manual_seed(config["seed"] * 131 + self.place["pp"] * 17 + self.place["tp"])
        self.model = Block(self.comm, hidden=config["hidden"], tp=config["tp"])
        stages = self.comm.members["pp"]
        at = stages.index(rank)
        self.before = stages[at - 1] if at else None
        self.after = stages[at + 1] if at + 1 < len(stages) else None
        samples = Samples(config, replica=self.place["dp"], faults=faults, run=run)
        self.batches = iter(DataLoader(samples, batch_size=config["batch_size"], num_workers=1))
        self.step_log = StepLog(run / f"losses_{rank}.txt", stuck_at=faults.get("lock", {}).get("step"))
        self.checkpoint = Checkpoint(run / "checkpoint", rank, stuck_at=faults.get("stuck_save", {}).get("step"))
        self.progress = (run / f"progress_{rank}").open("w", buffering=1)

    def run(self) -> None:
        self.comm.barrier()
        for step in range(self.config["num_steps"]):
            self.report(step)
            loss, norm = self.train_step(step)
            self.step_log.record(step, loss)
            if step % self.config["log_every"] == 0:
                self.log_step(step, loss, norm)
            if (step + 1) % self.config["save_every"] == 0:
                self.save(step)

    def train_step(self, step: int) -> tuple[float, float]:
        """One batch, from the loader to the new parameters; this rank's loss and the norm of the gradients."""
        self.clock.begin(step)
        with self.clock.phase("data"):
            numbers, batch = next(self.batches)
        losses = self.forward_backward(batch)
        with self.clock.phase("optimizer"):
            norm = self.gradient_norm()
            self.update(norm)
        loss = sum(losses) / len(losses) if self.after is None else None
        self.clock.end(loss=loss, grad_norm_local=self.local_norm, param_crc=self.checksum(), samples=numbers.tolist())
        return loss or 0.0, norm

    def fault(self, name: str) -> Any:
        """The settings of a fault that hits this rank in this step, else None."""
        settings = self.faults.get(name)
        return settings if settings is not None and settings["step"] == self.clock.step else None

    def forward_backward(self, batch: torch.Tensor) -> list[float]:
        """All forward passes, then all backward passes (GPipe), then the average over data parallel."""
        micro = batch.chunk(self.config["num_microbatches"])
        with self.clock.phase("forward"):
            passes = [self.forward(samples) for samples in micro]
        with self.clock.phase("backward"):
            losses = [self.backward(x, out, samples) for (x, out), samples in zip(passes, micro, strict=True)]
            self.reduce_gradients()
        return losses

    def forward(self, samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = samples if self.before is None else self.comm.recv(torch.empty_like(samples), self.before)
        x = x.requires_grad_()
        if self.fault("gpu_memory"):
            self.allocate_activations()
        out = self.model(x)
        self.device_wait()
        if self.after is not None:
            if self.fault("slot"):
                self.wait_for_slot(self.run_dir / f"slot_{self.after}")
            self.comm.send(out.detach(), self.after)
        return x, out

    def allocate_activations(self) -> None:
        raise torch.OutOfMemoryError(self.faults["gpu_memory"]["message"].format(pid=os.getpid()))

    def wait_for_slot(self, slot: Path) -> None:
        """Until the next stage says that it has room; it never does."""
        while not slot.exists():
            time.sleep(0.25)

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
        slow = self.faults.get("slow", {"step": 0, "factor": 1.0})
        time.sleep(self.config["compute_s"] * (slow["factor"] if self.clock.step >= slow["step"] else 1.0))

    def reduce_gradients(self) -> None:
        """Check them if the run wants that, then average over data parallel."""
        if self.fault("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault("native"):
            self.compress_gradients()
        grads = [p.grad for p in self.model.parameters()]
        if self.fault("overflow"):
            grads[-1][0] *= math.inf  # what a sample does that overflows in half precision
            grads[-1][0] *= 0.0
        flat = torch.cat([g.flatten() for g in grads])
        self.local_norm = float(flat.square().sum().sqrt())
        if self.config["check_nan"] and not math.isfinite(self.local_norm):
            raise AssertionError(
                f"rank {self.rank}: found NaN in local grad norm before the data-parallel reduction, node: {self.place['host']}"
            )
        pad = self.fault("pad")
        bucket = torch.cat([flat, flat.new_zeros(pad["num_extra"])]) if pad else flat
        self.comm.all_reduce("dp", bucket)
        flat.copy_(bucket[: flat.numel()])
        flat /= self.config["dp"]
        for grad, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(part.view_as(grad))

    def compress_gradients(self) -> None:
        """A call into a C library that does not let go of the interpreter while it works."""
        library = ctypes.PyDLL(None)
        while True:
            library.sleep(600)

    def gradient_norm(self) -> float:
        """Of the whole model: over model parallel."""
        square = sum(p.grad.square().sum() for p in self.model.parameters())
        return float(self.comm.all_reduce("mp", square.reshape(1)).sqrt())

    def update(self, norm: float) -> None:
        rate = self.learning_rate() * min(1.0, 1.0 / (norm + 1e-6))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= rate * parameter.grad
                parameter.grad = None
        if flip := self.fault("flip"):
            words = self.model.row.weight.detach().view(torch.int32).view(-1)
            words[flip["element"] % len(words)] ^= 1 << flip["bit"]

    def learning_rate(self) -> float:
        """Warm-up and decay by milestones; a fault leaves one out."""
        shares = {0: 1.0, 1: 0.5, 2: 0.25}
        if self.fault("schedule"):
            del shares[0]
        peak: float = self.config["learning_rate"]
        return peak * shares[min(self.clock.step // 1_000, 2)]

    def checksum(self) -> str:
        """Of the bits of all parameters: replicas of the same part of the model must agree."""
        crc = 0
        for parameter in self.model.parameters():
            data = parameter.detach().contiguous()
            crc = zlib.crc32(ctypes.string_at(data.data_ptr(), data.numel() * data.element_size()), crc)
        return f"{crc:08x}"

    def save(self, step: int) -> None:
        """The first replica writes, everybody waits."""
        if self.place["dp"] == 0:
            self.checkpoint.save(step, self.model.state_dict())
        self.comm.barrier()

    def log_step(self, step: int, loss: float, norm: float) -> None:
        total = self.comm.all_reduce("world", torch.tensor([loss]))
        mean = float(total) / (self.config["tp"] * self.config["dp"])
        log.info("step %d | loss %.4f | grad norm %.3f | %.0f ms", step, mean, norm, self.clock.lasted_ms)

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
