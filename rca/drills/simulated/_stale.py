"""Logs of the launch before the one that is looked at: it ended hours or days earlier, of something else."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from rca.drills.simulated import _scheduler
from rca.drills.simulated._aftermath import Teller
from rca.drills.simulated._logbook import LogBook

if TYPE_CHECKING:
    from rca.drills.simulated._run import Run

__all__ = ["launch_before"]

S: Final = 1_000_000_000
HOUR: Final = 3600 * S
STEPS: Final = 12  # on record of that launch
FOLDERS: Final = ("logs/attempt_0", "previous/logs", "logs-before-restart")


def launch_before(run: Run, rng: random.Random) -> dict[str, list[str]]:
    """Path -> lines, in a folder of its own. Its steps lie before those of this launch."""
    world, scene = run.world, run.scene
    voice = run.teller.voice
    book = LogBook(filing="ranks" if world.world_size <= 64 else "job", zone_h=run.book.zone_h, job_file="slurm-{job}.out")
    number = str(max(1, int(run.teller.job_id) - rng.randrange(1, 40)))
    teller = Teller(book=book, voice=voice, torch=run.teller.torch, launcher=run.teller.launcher, backend=scene.style.backend, world=world,
                    pid_of=lambda rank: scene.pid(rank) - 1500, job_id=number, rng=rng)  # fmt: skip
    step = round(scene.step_s * 1e9)
    first = int(run.ends_at[0]) if len(run.ends_at) else run.bite_at
    end = first - rng.randrange(2, 60) * HOUR
    place = max(1, run.first - STEPS - 5)
    teller.starts(end - (STEPS + 2) * step)
    teller.steps(
        [end - (STEPS - k) * step for k in range(STEPS)], place, times=[scene.step_s] * STEPS, losses=[3.1 - 0.002 * k for k in range(STEPS)],
        norms=[0.6] * STEPS,
    )  # fmt: skip
    rank = rng.randrange(world.world_size)
    if rng.random() < 0.5:
        teller.raises(
            rank, end, "ValueError: learning rate schedule is not defined beyond step 100000", (("utils/schedule.py", "rate", 44),)
        )
        teller.died([rank], end + 2 * S, 1)
    else:
        book.job(end, *_scheduler.cancelled(number, run.host(0)))
        teller.stopped(end)
    folder = rng.choice(FOLDERS)
    laid = book.laid_out(host_of=teller.host_of, job_id=number, skew_ns={})
    return {f"{folder}/{path.removeprefix('logs/')}": lines for path, lines in laid.items()}
