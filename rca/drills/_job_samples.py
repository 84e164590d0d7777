"""The training samples, made from their numbers, so that every launch sees the same ones."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Samples"]

PER_PART = 64  # samples in one part file


class Samples:
    """What one data-parallel replica reads: every dp-th sample, with its number in the whole data set."""

    def __init__(self, config: Mapping[str, Any], *, replica: int, faults: Mapping[str, Any], run: Path) -> None:
        self.seed, self.hidden = config["seed"], config["hidden"]
        self.replica, self.num_replicas = replica, config["dp"]
        self.bad_index = _index(config, faults.get("bad_sample"))
        self.stuck_index = _index(config, faults.get("stuck_part"))
        self.slow = faults.get("slow_loader", {"sleep_s": 0.0, "step": 0})
        self.slow_index = self.slow["step"] * config["batch_size"]
        self.parts = run / f"parts_{replica}"
        if self.stuck_index is not None:
            self.parts.mkdir(exist_ok=True)
            os.mkfifo(self._part(self.stuck_index))  # nobody ever writes there, as on a share whose server is gone

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[int, Any]:
        """A sample's number and its values."""
        import torch

        number = index * self.num_replicas + self.replica
        if index == self.stuck_index:
            self._load_part(index)
        if index == self.bad_index:
            raise ValueError(f"sample {number}: {self.hidden - 5} values where {self.hidden} are expected")
        if index >= self.slow_index:
            time.sleep(self.slow["sleep_s"])
        rng = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        return number, torch.randn(self.hidden, generator=rng)

    def _load_part(self, index: int) -> bytes:
        with self._part(index).open("rb") as file:
            return file.read()

    def _part(self, index: int) -> Path:
        return self.parts / f"part_{index // PER_PART:05d}.bin"


def _index(config: Mapping[str, Any], fault: Mapping[str, Any] | None) -> int | None:
    """The replica's own index of the sample that a fault hits."""
    return None if fault is None else fault["step"] * config["batch_size"] + fault.get("at", 0)
