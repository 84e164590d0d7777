"""Where the time of every step goes, and what a rank alone knows of it: two files of lines, each written at once."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["StepClock"]

PHASES = ("data", "forward", "backward", "optimizer")
KINDS = ("tp", "pp", "dp", "mp")


class StepClock:
    """Times the phases of a step and the communication inside them. A rank that is killed keeps the lines it wrote."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(exist_ok=True)
        self.rank, self.lasted_ms = rank, 0.0
        self._steps = (folder / f"rank_{rank}.jsonl").open("w", buffering=1)
        self._local = (folder / f"local_rank_{rank}.jsonl").open("w", buffering=1)
        self.begin(0)

    def begin(self, step: int) -> None:
        """A step starts now."""
        self.step, self._began_ns, self._began = step, time.time_ns(), time.perf_counter()
        self._phase = ""
        self._phases = dict.fromkeys(PHASES, 0.0)
        self._waits: dict[tuple[str, str], float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """All that runs inside belongs to this phase."""
        began, self._phase = time.perf_counter(), name
        yield
        self._phases[name] += time.perf_counter() - began
        self._phase = ""

    @contextlib.contextmanager
    def comm(self, kind: str) -> Iterator[None]:
        """A collective or a transfer, waiting included."""
        began = time.perf_counter()
        yield
        key = (self._phase, kind)
        self._waits[key] = self._waits.get(key, 0.0) + time.perf_counter() - began

    def end(self, **local: Any) -> None:
        """The step is done; `local` is what this rank alone knows: loss, grad_norm_local, param_crc, samples."""
        self.lasted_ms = round(1e3 * (time.perf_counter() - self._began), 3)
        detail = {f"{short}_compute": self._compute(phase) for short, phase in (("fwd", "forward"), ("bwd", "backward"))}
        detail |= {f"{kind}_comm": sum(s for (phase, k), s in self._waits.items() if phase and k == kind) for kind in KINDS}
        place = {"rank": self.rank, "step": self.step}
        times = {"t_start_ns": self._began_ns, "dur_ms": self.lasted_ms, "phases": _in_ms(self._phases), "detail": _in_ms(detail)}
        self._steps.write(json.dumps(place | times) + "\n")
        self._local.write(json.dumps(place | local) + "\n")

    def _compute(self, phase: str) -> float:
        """The phase without its communication."""
        return self._phases[phase] - sum(s for (inside, _), s in self._waits.items() if inside == phase)


def _in_ms(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(1e3 * value, 3) for name, value in seconds.items()}
