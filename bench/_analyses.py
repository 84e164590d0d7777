"""How long all analyses take on a simulated hang whose tables are written directly, at 1,024 to 16,384 ranks.

Run as a program, it judges one: `python bench/_analyses.py RANKS` and prints what it cost, as JSON.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

__all__ = ["HEAD", "SIZES", "Judged", "measure_analyses"]

HEAD: Final = ("ranks", "rows", "CPU s", "wall s", "peak MB", "slowest", "its answer")
SIZES: Final = (1024, 4096, 16_384)
KIND, SEED = "lock_hang", 2  # recorder, stacks, timings and logs of all ranks are there
SHOWN: Final = 3  # analyses told by name
KIB: Final = 1024


@dataclass(frozen=True)
class Judged:
    """One case. CPU and wall seconds are of the analyses alone; the peak is that of the whole process, the making of the tables included."""

    ranks: int
    rows: int
    cpu_s: float
    wall_s: float
    peak_bytes: int
    slowest: list[tuple[str, float]]  # analyses that took longest, CPU s
    answer: str

    @property
    def cells(self) -> tuple[str, ...]:
        """What a table shows, as HEAD names it."""
        slowest = ", ".join(f"{name} {cpu_s:.1f}" for name, cpu_s in self.slowest)
        return (
            f"{self.ranks:,}", f"{self.rows:,}", f"{self.cpu_s:.1f}", f"{self.wall_s:.1f}", f"{self.peak_bytes / 1e6:,.0f}", slowest, self.answer,
        )  # fmt: skip


def measure_analyses(ranks: int) -> Judged:
    """Measure in a process of its own."""
    done = subprocess.run([sys.executable, __file__, str(ranks)], capture_output=True, text=True, check=True)
    return Judged(**json.loads(done.stdout))


def _judge(ranks: int) -> dict[str, object]:
    from rca.case import MemoryCase
    from rca.drills.simulated import frames, layouts, simulate
    from rca.judge import judge
    from rca.questions import ask, questions

    world = [world for world in layouts(KIND) if world.world_size == ranks][-1]
    scene = simulate(KIND, world, SEED)
    tables = frames(scene)
    case, costs = MemoryCase(tables), []
    cpu, wall = time.process_time(), time.monotonic()
    for name in questions():
        before = time.process_time()
        ask(case, name)
        costs.append((name, round(time.process_time() - before, 3)))
    cpu_s, wall_s = time.process_time() - cpu, time.monotonic() - wall
    verdict = judge(case).verdict  # derived tables are there by now: what is added is weighing
    is_right = list(verdict.ranks) == scene.truth["first_failing_ranks"]
    return {
        "ranks": ranks, "rows": sum(frame.height for frame in tables.values()), "cpu_s": cpu_s, "wall_s": wall_s,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
        "slowest": sorted(costs, key=lambda cost: -cost[1])[:SHOWN],
        "answer": "right rank" if is_right else f"ranks {list(verdict.ranks)[:4]}, truth {scene.truth['first_failing_ranks']}",
    }  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_judge(int(sys.argv[1]))))
