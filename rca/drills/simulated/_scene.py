"""One simulated incident: the world, what every rank did, the evidence it left, and the truth."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Literal

import numpy as np

from rca.causes import CAUSES
from rca.drills._synthetic import Dump, Recorder
from rca.drills._synthetic_job import Fault, Job
from rca.drills._synthetic_world import World
from rca.drills.simulated._frameworks import FRAMEWORKS, Framework, in_stages, recorder_stacks
from rca.drills.simulated._play import Played, played
from rca.drills.simulated._stacks import StackEvidence

__all__ = ["Class", "RecorderEvidence", "Scene", "Steps", "Style", "new_scene"]

Class = Literal["fault", "healthy", "planned", "unanswerable"]  # of a kind: what the right answer is about
EPOCH = datetime(2025, 3, 3, tzinfo=UTC)  # the incidents lie in the year after
HANG_S = (605.0, 3600.0)  # how long after the fault somebody looks: longer than a collective's time-out
SHARE_BUFFER = (64, 201)  # records a rank keeps


@dataclass
class RecorderEvidence:
    """Which recorder dumps there are: of the play of `faults`."""

    faults: list[Fault] = field(default_factory=list)
    settings: Recorder = field(default_factory=Recorder)
    is_there: bool = True
    missing: set[int] = field(default_factory=set)  # ranks that left none
    edits: dict[int, Callable[[Dump], Dump | bytes]] = field(default_factory=dict)  # what becomes of a rank's dump


@dataclass
class Steps:
    """Timings: arrays rank x step, s; `first` = number of the first step. A NaN is a value that was not written."""

    first: int
    step_s: np.ndarray
    compute_s: np.ndarray | None = None
    comm_s: np.ndarray | None = None
    data_s: np.ndarray | None = None
    checkpoint_s: np.ndarray | None = None
    has_started_at: bool = True
    ranks: Sequence[int] | None = None  # ranks that wrote theirs; None = all


@dataclass(frozen=True)
class Style:
    """How this fleet works and writes, as the seed has it."""

    framework: Framework
    backend: Literal["nccl", "gloo"]
    launcher: Literal["torchrun", "slurm"]
    python: str
    log_prefix: str  # of a trainer's line: {stamp} {rank} {level}
    has_map: bool  # a document that says which rank sits where
    folders: Literal["by_kind", "by_host"]


@dataclass
class Scene:
    """The builder of an incident. A kind of fault and the confusions change it; the emitters write down what it holds."""

    kind: str
    world: World
    seed: int
    style: Style
    rng: random.Random
    job: Job  # the steps whose calls the recorder may still hold
    step_s: float
    began_at: datetime  # when the trainers began their first step
    fault_step: int  # the step in which it happened, counted from 1
    recorder: RecorderEvidence = field(default_factory=RecorderEvidence)
    stacks: StackEvidence = field(default_factory=StackEvidence)
    steps: Steps | None = None
    logs: dict[str, list[str]] = field(default_factory=dict)  # path -> lines
    kernel: dict[str, list[str]] = field(default_factory=dict)  # host -> lines of its kernel log
    files: dict[str, bytes] = field(default_factory=dict)  # path -> what else lies there
    skew_s: dict[str, float] = field(default_factory=dict)  # host -> how far its clock is ahead
    truth: dict[str, Any] = field(default_factory=dict)
    looked_after_s: float = 900.0  # when the capture begins, after the fault
    notes: dict[str, Any] = field(default_factory=dict)  # what a kind leaves for the confusions

    def at(self, step: float) -> datetime:
        """When step `step` (counted from 1; 3.5 = half through the third) was under way, were all steps of the usual length."""
        return self.began_at + timedelta(seconds=(step - 1) * self.step_s)

    @property
    def failed_at(self) -> datetime:
        """About when it happened."""
        return self.at(self.fault_step + 0.5)

    @property
    def looked_at(self) -> datetime:
        """When the capture began."""
        return self.failed_at + timedelta(seconds=self.looked_after_s)

    def use_nccl(self) -> None:
        """The kind needs GPUs."""
        self.style = replace(self.style, backend="nccl")
        self.job = replace(self.job, backend="nccl")

    def topic(self, name: str) -> random.Random:
        """A generator of its own: what one topic draws changes nothing for the others."""
        return random.Random(f"{name}:{self.kind}:{self.seed}")

    def pid(self, rank: int) -> int:
        """Process id of a trainer on its host."""
        return self._first_pids[rank // self.world.gpus_per_host] + 7 * self.world.gpu_of(rank)

    @cached_property
    def _first_pids(self) -> list[int]:
        return [4000 + hash_of(f"{self.seed}:{host}") % 180_000 for host in self.world.host_names()]

    def skew(self, rank: int) -> float:
        """How far the clock of a rank's host is ahead, s."""
        return self.skew_s.get(self.world.host_of(rank), 0.0)

    @cached_property
    def play(self) -> Played:
        """What the ranks did: made at the first question, so the faults have to be set before."""
        return played(self.job, self.recorder.faults)

    def settings(self) -> Recorder:
        """How the recorder is set, on the clock of this job: the play ends with the fault's step."""
        window = (self.fault_step - self.job.earlier_steps) * self.step_s
        stretch = window * 1e9 / max(self.play.span_ns, 1)
        began = self.at(self.job.earlier_steps + 1)
        return replace(
            self.recorder.settings,
            began_ns=int(began.timestamp() * 1e9),
            stretch=stretch,
            gpus_per_host=self.world.gpus_per_host,
            stacks=recorder_stacks(self.style.framework),
        )

    def tell(self, cause: str | Sequence[str], ranks: Sequence[int] = (), **more: Any) -> None:
        """Set the truth: accepted causes, and what follows from the first of them unless `more` says otherwise."""
        causes = [cause] if isinstance(cause, str) else list(cause)
        known = [CAUSES[name] for name in causes]
        self.truth = {
            "fault": self.kind,
            "first_failing_ranks": sorted(ranks),
            "hosts": sorted({self.world.host_of(rank) for rank in ranks}),
            "cause": causes,
            "layer": list(dict.fromkeys(c.layer for c in known)),
            "attribution": list(dict.fromkeys(c.attribution for c in known)),
            "action": list(dict.fromkeys(c.action for c in known)),
            "group": None,
            "evict_hosts": [],
            "is_planned": known[0].attribution == "planned",
            "is_healthy": causes[0] == "healthy",
            "answerable": True,
            **more,
        }


def hash_of(text: str) -> int:
    """A number that depends on the text alone, from run to run."""
    return int.from_bytes(random.Random(text).randbytes(4), "big")


def new_scene(kind: str, world: World, seed: int) -> Scene:
    """A job that trains, its style and pace drawn from the seed; nothing has happened yet."""
    rng = random.Random(f"{kind}:{seed}:{world}")
    style = _style(rng, world)
    step_s = round(rng.choice((0.35, 0.8, 1.6, 3.2, 6.0, 12.0, 28.0, 55.0)) * rng.uniform(0.8, 1.25), 3)
    fault_step = rng.randrange(30, 4000)
    buffer = rng.randrange(*SHARE_BUFFER)
    names = [f.name for f in fields(World)]
    layout = {name: getattr(world, name) for name in names}
    microbatches = rng.choice((2, 4, 4, 8)) if world.pp == 1 else rng.choice((1, 2)) * min(world.pp, 8)
    tp_ops = rng.choice((2, 4, 6))
    one = Job(
        **layout,
        steps=1,
        microbatches=microbatches,
        tp_ops=tp_ops,
        dp_ops=rng.choice((2, 4, 6)),
        world_ops=rng.choice((1, 2, 3)),
        backend=style.backend,
    )
    if world.pp > 1:
        one = replace(
            one, p2p=rng.choice(("plain", "coalesced")), p2p_sync=style.framework.name == "megatron", embedding=rng.random() < 0.5
        )
    least = min(len(plan.program.ops) for plan in played(one, ()).plans)
    job = replace(one, steps=min(-(-buffer // least) + 2, fault_step))
    job = replace(job, earlier_steps=fault_step - job.steps)
    scene = Scene(kind, world, seed, style, rng, job, step_s, EPOCH + timedelta(seconds=rng.randrange(360 * 86400)), fault_step)
    scene.recorder.settings = Recorder(
        version=rng.choice(("2.9", "2.10") if style.backend == "nccl" else ("2.10",)), buffer=buffer, timing=rng.random() < 0.5,
        group_names=rng.choice(("number", "number", "axis")) if world.pp > 1 else "number",
    )  # fmt: skip
    scene.stacks = StackEvidence(
        samples=rng.randrange(1, 6),
        gap_s=float(rng.choice((5, 10, 30))),
        format=rng.choice(("text", "text", "json")),
        has_index=rng.random() < 0.5,
    )
    scene.looked_after_s = rng.uniform(*HANG_S)
    return scene


def _style(rng: random.Random, world: World) -> Style:
    frameworks = ["megatron", "megatron", "torchtitan", "deepspeed", "fsdp"] if world.tp * world.pp > 1 else list(FRAMEWORKS)
    prefix = rng.choice(("{stamp} [rank{rank}] {level} ", "[rank{rank}]: ", "{rank}: ", "[{stamp}][{level}][rank {rank}] "))
    return Style(
        framework=in_stages(FRAMEWORKS[rng.choice(frameworks)]) if world.pp > 1 else FRAMEWORKS[rng.choice(frameworks)],
        backend="nccl" if world.world_size > 64 or rng.random() < 0.75 else "gloo",
        launcher=rng.choice(("torchrun", "slurm")),
        python=rng.choice(("3.10", "3.11", "3.12")),
        log_prefix=prefix,
        has_map=rng.random() < 0.8,
        folders=rng.choice(("by_kind", "by_kind", "by_host")),
    )
