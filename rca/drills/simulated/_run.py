"""The course of a simulated job in text and numbers: how its steps went, what its processes, kernels and scheduler wrote.

A kind of fault takes a `Run` of its scene, sets what is wrong with pace or numbers, plays it up to the fault, and says who prints what then.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rca.drills._kernel import Line
from rca.drills.simulated._aftermath import Learns, Teller
from rca.drills.simulated._kernel_gpu import drawn_address
from rca.drills.simulated._kernel_text import FORMS, Form
from rca.drills.simulated._logbook import LogBook, drawn_filing
from rca.drills.simulated._metrics import MAX_HOSTS, gpu_metrics
from rca.drills.simulated._numbers import Numbers, Trouble, run_numbers
from rca.drills.simulated._op_trace import MAX_RANKS, op_trace
from rca.drills.simulated._scene import Scene, Steps
from rca.drills.simulated._steps import Pace, Times, run_steps
from rca.drills.simulated._symptoms import Call, drawn_torch
from rca.drills.simulated._voices import drawn_voice

if TYPE_CHECKING:
    from rca.drills._synthetic_world import World

__all__ = ["MS", "Run", "S"]

S: Final = 1_000_000_000
MS: Final = 1_000_000
FAMILIES: Final = {
    "megatron": ("megatron",),
    "deepspeed": ("deepspeed", "hf"),
    "torchtitan": ("torchtitan",),
    "fsdp": ("house", "house", "hf"),
}
BEFORE: Final = (14, 40)  # steps on record before the fault
AFTER: Final = (14, 40)  # and after it, of a job that goes on
TRACED: Final = 0.3  # of jobs small enough
ROOTS: Final = ("/workspace", "/opt/train", "/mnt/code/llm", "/app")


@dataclass
class Run:
    """A job of a scene. Steps are counted as the trainer does; `bite` is the place of the fault's step among those on record."""

    scene: Scene
    rng: random.Random
    first: int
    bite: int
    num_steps: int
    pace: Pace
    trouble: Trouble
    teller: Teller
    form: Form
    has_kernel: bool
    has_timings: bool
    has_numbers: bool
    has_scheduler: bool
    kernel: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    kernel_lost: set[str] = field(default_factory=set)  # hosts whose kernel log nobody has
    kernel_ends: dict[str, int] = field(default_factory=dict)  # hosts that wrote nothing after an instant, ns
    times: Times | None = None
    numbers: Numbers | None = None
    ends_at: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    reached: list[int] = field(default_factory=list)  # steps on record that each rank wrote
    ended_at: int | None = None  # ns; None = it was still there at the capture

    @classmethod
    def of(cls, scene: Scene, *, goes_on: bool = False) -> Run:
        """A run in the scene's style. `goes_on`: the job makes steps after the fault as well."""
        rng, world, style = scene.topic("run"), scene.world, scene.style
        bite = min(rng.randrange(*BEFORE), scene.fault_step - 1)
        num_steps = bite + 1 + (rng.randrange(*AFTER) if goes_on else 0)
        family = rng.choice(FAMILIES[style.framework.name])
        voice = drawn_voice(rng, world_size=world.world_size, job_root=rng.choice(ROOTS), family=family)
        book = LogBook(filing=drawn_filing(rng, world.world_size), job_file=rng.choice(("slurm-{job}.out", "{job}.log", "train-{job}.out")))
        teller = Teller(
            book=book, voice=voice, torch=drawn_torch(rng), launcher="torchrun" if style.launcher == "torchrun" else "srun",
            backend=style.backend, world=world, pid_of=scene.pid, job_id=str(rng.randrange(10_000, 3_000_000)), rng=rng,
            tells_places=not style.has_map or rng.random() < 0.4,
        )  # fmt: skip
        jitter = rng.choice((0.004, 0.01, 0.02, 0.04))
        pace = Pace(
            scene.step_s,
            num_steps,
            scene.job.microbatches * max(1, 2 if world.pp > 1 else 1),
            jitter=jitter,
            data_s=rng.choice((0.001, 0.003, 0.01)),
        )
        run = cls(
            scene, rng, scene.fault_step - bite, bite, num_steps, pace, Trouble(), teller, rng.choice(FORMS),
            has_kernel=rng.random() < 0.85, has_timings=rng.random() < 0.6, has_numbers=rng.random() < 0.4,
            has_scheduler=style.launcher == "slurm" and rng.random() < 0.7,
        )  # fmt: skip
        if goes_on:
            scene.looked_after_s = (num_steps - bite - 0.5) * scene.step_s
        scene.notes["run"] = run
        return run

    # Places and instants

    @property
    def world(self) -> World:
        return self.scene.world

    @property
    def book(self) -> LogBook:
        return self.teller.book

    @property
    def bite_at(self) -> int:
        """When the step of the fault was half over, ns."""
        return round(self.scene.failed_at.timestamp() * 1e9)

    @property
    def captured_at(self) -> int:
        """When the evidence was collected, ns."""
        looked = round(self.scene.looked_at.timestamp() * 1e9)
        return looked if self.ended_at is None else max(self.ended_at + 60 * S, min(looked, self.ended_at + 3600 * S))

    def pick(self) -> int:
        """Some rank."""
        return self.rng.randrange(self.world.world_size)

    def host(self, rank: int) -> str:
        return self.world.host_of(rank)

    def mates(self, rank: int) -> list[int]:
        """All ranks on the host of a rank."""
        return self.teller.ranks_on(self.host(rank))

    def address(self, rank: int) -> str:
        """PCI address of the GPU of a rank."""
        return drawn_address(self.world.gpu_of(rank))

    def replica(self, rank: int) -> list[int]:
        """All ranks of the model copy of a rank."""
        places = self.world.places
        return [int(number) for number in np.flatnonzero(places[:, 2] == places[rank, 2])]

    def call_of(self, rank: int) -> Call:
        """The collective in which a rank waits once another one is gone: the joining of gradients, or its neighbours' in the same stage."""
        per_step = 40 + self.scene.seed % 60
        number = (self.first + self.bite) * per_step + 17
        if self.world.dp > 1:
            return Call(1, "DATA_PARALLEL_GROUP_WITH_CP", int(self.world.places[rank, 2]), number, "ALLREDUCE", 28_311_552)
        return Call(0, "default_pg", rank, number, "ALLREDUCE", 1)

    def may_trace(self) -> None:
        """Sometimes a tracer of operations runs along, in a job that is small enough."""
        self.pace.is_traced = self.world.world_size <= MAX_RANKS and self.world.pp > 1 and self.rng.random() < TRACED

    # The course of steps

    def plays(self, *, until: int | None = None, resumed: int | None = None, silent: bool = False) -> None:
        """Play and print all steps that ended: up to the fault's step, or `until` (a place among those on record)."""
        lane = self.world.places[:, 0] + self.world.tp * self.world.places[:, 1]
        replica, stage = self.world.places[:, 2], self.world.places[:, 3]
        seed = self.rng.getrandbits(30)
        whole = run_steps(self.pace, lane=lane, replica=replica, stage=stage, seed=seed)
        numbers = run_numbers(
            self.trouble, lane=lane, replica=replica, stage=stage, num_steps=self.num_steps, first_step=self.first,
            batch=max(1, min(8, self.teller.voice.batch // self.world.dp)), seed=seed,
        )  # fmt: skip
        done = self.bite if until is None else until
        spans = np.round(whole.step.mean(axis=0) * 1e9).astype(np.int64)
        begins = round(self.scene.at(self.scene.fault_step).timestamp() * 1e9)  # of the step of the fault
        self.ends_at = begins + np.cumsum(spans) - spans[: self.bite].sum()
        self.times, self.numbers = whole, numbers
        self.reached = [done] * self.world.world_size
        start = int(self.ends_at[0] - spans[0]) if done else begins
        if not silent:
            self.teller.starts(start - self.rng.randrange(2, 90) * S, resumed=resumed)
            self.teller.steps(
                [int(end) for end in self.ends_at[:done]], self.first, times=whole.step[0, :done].tolist(),
                losses=numbers.loss_all[:done].tolist(), norms=numbers.norm_all[:done].tolist(),
            )  # fmt: skip
        if self.has_timings and done:
            self.scene.steps = Steps(
                self.first, whole.step[:, :done].copy(), whole.compute[:, :done].copy(), whole.comm[:, :done].copy(), whole.data[:, :done].copy(),
                has_started_at=True,
            )  # fmt: skip

    def end_of(self, place: int) -> int:
        """When a step on record ended, ns."""
        return int(self.ends_at[place])

    def ramp_up(self, factor: float) -> np.ndarray:
        """1 before the fault's step, `factor` from there on."""
        return np.where(np.arange(self.num_steps) < self.bite, 1.0, factor)

    # What there is besides

    def no_dumps(self) -> None:
        """The job ended: no recorder dumps, no stacks."""
        self.scene.recorder.is_there = False
        self.scene.stacks.is_there = False

    def told(self, rank: int, lines: Sequence[Line]) -> None:
        """The kernel of a rank's host says something."""
        self.kernel[self.host(rank)] += lines

    def metrics(self, throttled: Mapping[int, float] | None = None) -> None:
        """An exporter's metrics of hosts over the steps on record; `throttled`: rank -> factor by which its clock is lower since the fault."""
        hosts = self.world.host_names()
        slow = {(self.host(rank), self.world.gpu_of(rank)): (self.bite_at, factor) for rank, factor in (throttled or {}).items()}
        kept = sorted({host for host, _ in slow} | set(hosts[:MAX_HOSTS]))[:MAX_HOSTS]
        last = self.end_of(max(0, max(self.reached, default=1) - 1))
        first = max(int(self.ends_at[0]), last - 40 * 60 * S)
        self.scene.files |= gpu_metrics(
            kept,
            gpus=lambda host: len(self.teller.ranks_on(host)),
            first_at=first,
            last_at=last + 45 * S,
            seed=self.scene.seed,
            throttled=slow,
        )

    def traces(self) -> None:
        """A table of the timed operations of the last steps, where the pace was traced."""
        if self.times is not None and self.times.passes:
            table = op_trace(
                self.times,
                rank_of=lambda d, p: self.world.rank(0, d, p),
                first_step=self.first,
                step_s=self.scene.step_s,
                reached=self.reached[0],
            )
            self.scene.files["timings/ops.csv"] = table

    def shows(self, host: str) -> bool:
        """Whether the kernel log of a host is at hand."""
        return self.has_kernel and host not in self.kernel_lost

    def collapses(self, dead: Collection[int], at: int, *, how: Learns | None = None) -> Learns:
        """All others find out that `dead` are gone, and end. Gives how they found out."""
        kinds: tuple[Learns, ...] = ("closed", "rendezvous")
        if self.scene.style.backend == "nccl":
            kinds = ("closed", "retry", "time_out", "rendezvous")
        if self.teller.launcher == "srun":
            kinds = (*(kind for kind in kinds if kind != "rendezvous"), "killed", "killed")  # srun ends the step for a task that failed
        learns: Learns = self.rng.choice(kinds) if how is None else how
        last = self.teller.others_learn(at, dead, learns, self.call_of)
        self.teller.rest_ends(last, dead, learns)
        self.ended_at = last + 5 * S
        self.scene.looked_after_s = max(self.scene.looked_after_s, (self.ended_at - self.bite_at) / S + 60)
        return learns

    def note(self, **more: Any) -> None:
        """Beside the truth, for people: what was drawn."""
        self.scene.truth.setdefault("what", {}).update(more)
