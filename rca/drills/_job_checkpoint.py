"""Saves the state of a rank: written beside the last one, then put in its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

__all__ = ["Checkpoint"]


class Checkpoint:
    """One rank's shard of the checkpoint."""

    def __init__(self, folder: Path, rank: int, *, stuck_at: int | None) -> None:
        folder.mkdir(exist_ok=True)
        self.path, self.stuck_at = folder / f"shard_{rank}.pt", stuck_at

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write the state after `step`; the last checkpoint stays whole until this one is."""
        part = self.path.with_suffix(".part")
        if step == self.stuck_at:
            os.mkfifo(part)  # nobody ever reads there, as on a share whose server is gone
        self._write(part, {"step": step, **state})
        part.replace(self.path)

    def _write(self, path: Path, state: dict[str, Any]) -> None:
        import torch

        with path.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
