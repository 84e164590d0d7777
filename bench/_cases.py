"""The dumps that are measured: simulated jobs in which one rank stops before a tensor-parallel call.

Run as a program, it writes one case: `python bench/_cases.py NAME FOLDER`.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rca.drills._synthetic import Fault, Job, Recorder, write

__all__ = ["CASES", "Case", "prepare"]


@dataclass(frozen=True)
class Case:
    """A job, what goes wrong in it, and what is special about it."""

    name: str
    about: str
    job: Job
    fault: Fault

    @property
    def key(self) -> str:
        """Changes when the dumps would: tells whether written ones still fit."""
        return repr((self.job, self.fault, Recorder()))


def _tensor_data(ranks: int) -> Case:
    job = Job(tp=8, dp=ranks // 8, steps=20, microbatches=8, tp_ops=10, dp_ops=16, world_ops=4)
    about = f"tp 8 x dp {ranks // 8}, 2,000 records a rank"
    return Case(f"tpdp_{ranks}", about, job, Fault("stop", (ranks // 2 + 3,), "tp", -30))


def _pipeline() -> Case:
    job = Job(tp=8, pp=4, dp=8, steps=25, microbatches=8, tp_ops=10, dp_ops=16, world_ops=4, extra=3)
    about = "tp 8 x pp 4 x dp 8, ring of 2,000 records wrapped, last stage makes more calls"
    return Case("pp4_256", about, job, Fault("stop", (131,), "tp", -30))


CASES = {
    case.name: case
    for case in (_tensor_data(64), _tensor_data(256), _tensor_data(1024), _pipeline(), _tensor_data(4096), _tensor_data(16384))
}


def prepare(case: Case, folder: Path) -> None:
    """Write the dumps to `folder` and the truth beside it, unless they are there."""
    beside = folder.with_suffix(".truth.json")
    if beside.exists() and json.loads(beside.read_text())["key"] == case.key:
        return
    shutil.rmtree(folder, ignore_errors=True)
    beside.unlink(missing_ok=True)
    truth: dict[str, Any] = asdict(write(case.job, case.fault, folder))
    beside.write_text(json.dumps({"key": case.key, "truth": truth}))


if __name__ == "__main__":
    prepare(CASES[sys.argv[1]], Path(sys.argv[2]))
