"""The program that one host of a replay runs: a few steps of a small pipeline from a fixed seed, with the bits of each step written down.

It runs with torch and the standard library alone and imports nothing of this package. Started by torchrun it is one host (a tensor-parallel unit)
of the group, with a torchrun for each host or one for all of them; started plainly it becomes a process for each host of the group, all from one
import of torch. With GPUs a host spreads its layers over all of its own, so that a fault of any one shows in its bits. The place in the group is
the rank: stage = place % pp, replica = place // pp. What is computed at a place depends on the seed, the place and the step, on nothing else.

Its one argument is a configuration file. For every repeat and step it appends a line with the SHA-256 of the parameters, of what it hands
to the next stage, and of its gradients before they are summed over the replicas; after the last step that of the parameters alone.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

__all__ = ["main"]

LEARNING_RATE = 0.01  # small: numbers must stay finite, as all that are not look alike
PR_SET_PDEATHSIG = 1


class Replay:
    """One host's part of the model, and its steps."""

    def __init__(self, config: dict[str, Any], *, place: int, repeat: int, devices: list[str], group: Any) -> None:
        import torch

        self.config, self.place, self.repeat, self.group = config, place, repeat, group
        self.stage, self.replica = place % config["pp"], place // config["pp"]
        self.is_first, self.is_last = self.stage == 0, self.stage == config["pp"] - 1
        made = torch.Generator().manual_seed(config["seed"] * 1009 + self.stage)
        hidden = config["hidden"]
        self.layers = [
            [
                (torch.randn(shape, generator=made) / shape[1] ** 0.5).to(devices[number % len(devices)]).requires_grad_()
                for shape in ((4 * hidden, hidden), (hidden, 4 * hidden))
            ]
            for number in range(max(config["layers"], len(devices)))
        ]
        self.devices = devices

    def step(self, step: int) -> str:
        """One step; the fingerprint of what this host computed in it."""
        import torch

        digest = hashlib.sha256()
        self._flip(step, "parameter", self.parameters()[0])
        add(digest, self.parameters())
        drawn = torch.Generator().manual_seed((self.config["seed"] * 1009 + step) * 1009 + self.replica)
        shape = (self.config["batch"], self.config["hidden"])
        passes = []
        for _ in range(self.config["microbatches"]):
            sample = torch.randn(shape, generator=drawn)  # drawn by every stage alike: the last one needs it as its target
            passes.append((*self.forward(sample, step, digest), sample))
        for x, out, sample in passes:
            self.backward(x, out, sample, digest)
        grads = [parameter.grad for parameter in self.parameters()]
        self._flip(step, "gradient", grads[0])
        add(digest, grads)
        self.update(grads)
        return digest.hexdigest()

    def forward(self, sample: Any, step: int, digest: Any) -> tuple[Any, Any]:
        """Through this stage; input and output."""
        import torch

        x = sample.to(self.devices[0]) if self.is_first else self._receive(sample, self.place - 1)
        x.requires_grad_()
        out = x
        for first, second in self.layers:
            out = out.to(first.device)
            normal = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + 1e-6)  # or deep pipelines grow without bound
            out = out + torch.nn.functional.gelu(normal @ first.t()) @ second.t()
        self._flip(step, "activation", out)
        add(digest, [out])
        if not self.is_last:
            self._send(out.detach().to(self.devices[0]), self.place + 1)
        return x, out

    def backward(self, x: Any, out: Any, sample: Any, digest: Any) -> None:
        """Back through this stage; the gradient goes to the one before."""
        if self.is_last:
            (out - sample.to(out.device).roll(1, dims=-1)).square().mean().backward()
        else:
            out.backward(self._receive(sample, self.place + 1).to(out.device))
        if not self.is_first:
            add(digest, [x.grad])
            self._send(x.grad, self.place - 1)

    def update(self, grads: list[Any]) -> None:
        """Sum over the replicas in their order (an all-reduce may add in another order elsewhere), then one step of descent."""
        import torch
        import torch.distributed as dist

        with torch.no_grad():
            for parameter, grad in zip(self.parameters(), grads, strict=True):
                if self.config["k"] > 1:
                    own = grad.to(self.devices[0])
                    parts = [torch.empty_like(own) for _ in range(self.config["k"])]
                    dist.all_gather(parts, own, group=self.group)
                    total = parts[0]
                    for part in parts[1:]:
                        total = total + part
                    grad = total.to(parameter.device)
                parameter -= LEARNING_RATE / self.config["k"] * grad
                parameter.grad = None

    def parameters(self) -> list[Any]:
        return [parameter for layer in self.layers for parameter in layer]

    def _send(self, tensor: Any, peer: int) -> None:
        import torch.distributed as dist

        dist.send(tensor.contiguous(), peer)

    def _receive(self, like: Any, peer: int) -> Any:
        import torch
        import torch.distributed as dist

        tensor = torch.empty_like(like, device=self.devices[0])
        dist.recv(tensor, peer)
        return tensor

    def _flip(self, step: int, where: str, tensor: Any) -> None:
        """The faults asked for: one wrong bit, or the end of the process."""
        import torch

        for fault in self.config["inject"]:
            if (fault["place"], fault["step"], fault["where"]) != (self.place, step, where):
                continue
            dice = random.Random(f"{self.config['seed']} {self.config['run']} {self.repeat} {self.place} {step}")
            if dice.random() >= fault["probability"]:
                continue
            if fault["bit"] is None:
                os.kill(os.getpid(), signal.SIGKILL)
            words = tensor.detach().view(torch.int32).view(-1)
            words[fault["bit"] % len(words)] ^= 1 << fault["bit"] if fault["bit"] < 31 else -(1 << 31)


def add(digest: Any, tensors: Iterable[Any]) -> None:
    """Every bit of the tensors into the digest."""
    for tensor in tensors:
        data = tensor.detach().cpu().contiguous()
        digest.update(ctypes.string_at(data.data_ptr(), data.numel() * data.element_size()))


def devices() -> list[str]:
    """The GPUs of this process: all of the host's, or its own where several processes share them; none where they are too few."""
    import torch

    count, processes = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if count and processes == 1:
        return [f"cuda:{number}" for number in range(count)]
    return [f"cuda:{os.environ['LOCAL_RANK']}"] if count >= processes else ["cpu"]


def be_deterministic() -> None:
    import torch

    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")  # as use_deterministic_algorithms, which loads the whole compiler for it
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False


def become_hosts(config: dict[str, Any]) -> int | None:
    """Fork a process for each host of the group: its place in each of them; in the parent, when all have ended, None.

    One that fails ends the others, as under torchrun, and the parent exits with 1.
    """
    import torch.distributed  # noqa: F401 - once, before there are any threads

    count = config["pp"] * config["k"]
    children = set()
    for place in range(count):
        if (pid := os.fork()) == 0:
            os.environ.update(LOCAL_RANK=str(place), LOCAL_WORLD_SIZE=str(count))
            return place
        children.add(pid)
    failed = None
    while children:
        pid, status = os.wait()
        children.discard(pid)
        if status and failed is None:
            failed = os.waitstatus_to_exitcode(status)
            for other in children:
                os.kill(other, signal.SIGKILL)
    if failed is not None:
        sys.exit(f"Error: a host of the group ended with exit code {failed}")
    return None


def main() -> None:
    """Run all repeats of all steps."""
    config = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    under_torchrun = "RANK" in os.environ
    place = int(os.environ["RANK"]) if under_torchrun else become_hosts(config)
    if place is None:
        return
    ctypes.CDLL(None).prctl(
        PR_SET_PDEATHSIG, signal.SIGKILL
    )  # one whose launcher is killed must not stay; before torch, which takes seconds
    import torch
    import torch.distributed as dist

    where = devices()
    be_deterministic()
    if where[0] != "cpu":
        torch.cuda.set_device(where[0])
    meeting: dict[str, Any] = {"init_method": "env://"}
    if not under_torchrun:
        meeting = {"init_method": f"file://{config['lines']}/meeting", "rank": place, "world_size": config["pp"] * config["k"]}
    dist.init_process_group("gloo" if where[0] == "cpu" else "nccl", timeout=timedelta(seconds=config["timeout_s"]), **meeting)
    groups = [dist.new_group([r * config["pp"] + stage for r in range(config["k"])]) for stage in range(config["pp"])]
    with (Path(config["lines"]) / f"place_{place}.jsonl").open("w", encoding="utf-8", buffering=1) as lines:
        for repeat in range(config["repeats"]):
            replay = Replay(config, place=place, repeat=repeat, devices=where, group=groups[place % config["pp"]])
            for step in range(config["steps"]):
                lines.write(json.dumps({"repeat": repeat, "step": step, "fingerprint": replay.step(step)}) + "\n")
            digest = hashlib.sha256()
            add(digest, replay.parameters())
            lines.write(json.dumps({"repeat": repeat, "step": config["steps"], "fingerprint": digest.hexdigest()}) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
