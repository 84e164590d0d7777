"""What each rank's own numbers are: loss, gradient norm, checksum of its parameters, samples of its batch. All ranks and steps at once.

Gradients are averaged over the replicas, so what one rank's own gradients hold is in everybody's parameters after the step: the rank is to be
seen in the step itself, in what it wrote before averaging, and nowhere later. What only one replica's parameters hold stays there.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Jump", "Numbers", "Trouble", "run_numbers", "sample_ids"]

Floats = npt.NDArray[np.float64]
START_LOSS, END_LOSS = 9.5, 2.4  # of a language model's training
NORM: Final = 0.6


@dataclass(frozen=True)
class Jump:
    """Loss and gradient norm jump at step `first` for `steps`, and come down little by little."""

    first: int
    steps: int
    loss: float  # added to the loss at first
    norm: float  # factor on the gradient norm at first


@dataclass
class Trouble:
    """What goes wrong with numbers. Steps are counted from the first one on record."""

    nan_at: dict[int, int] = field(default_factory=dict)  # rank -> step: its own gradients hold NaN
    spike: dict[int, Jump] = field(default_factory=dict)  # rank -> on its own loss and norm
    global_spike: Jump | None = None  # the same on every rank: learning rate, data of all
    all_nan_at: int | None = None  # every rank at once
    parted: dict[int, int] = field(default_factory=dict)  # rank -> step: its parameters are others from there on


@dataclass(frozen=True)
class Numbers:
    """Ranks x steps, but for `loss_all` and `norm_all` (steps), which the trainer prints. Loss is NaN where the stage computes none."""

    loss: Floats
    norm: Floats
    checksum: npt.NDArray[np.uint32]
    first_sample: npt.NDArray[np.int64]
    samples: int  # of a rank's batch: first_sample, first_sample + stride, ...
    stride: int
    loss_all: Floats
    norm_all: Floats
    has_loss: npt.NDArray[np.bool_]


def run_numbers(
    trouble: Trouble,
    *,
    lane: npt.NDArray[np.int64],
    replica: npt.NDArray[np.int64],
    stage: npt.NDArray[np.int64],
    num_steps: int,
    first_step: int,
    batch: int,
    seed: int,
) -> Numbers:
    """Play all steps. `lane`, `replica`, `stage`: place of each rank; `first_step`: number of the first step on record."""
    rng = np.random.default_rng(seed + 77)
    ranks, replicas, stages = len(lane), int(replica.max()) + 1, int(stage.max()) + 1
    steps = np.arange(num_steps)
    curve = END_LOSS + (START_LOSS - END_LOSS) * (1 + (first_step + steps) / 20.0) ** -0.6
    own = curve[None] * (1 + 0.012 * rng.standard_normal((replicas, num_steps)))
    shard = rng.uniform(0.3, 1.0, ranks)[:, None] * NORM * (1 + 0.05 * rng.standard_normal((ranks, num_steps)))
    norm_all = NORM * (1 + 0.05 * rng.standard_normal(num_steps))
    for rank, jump in trouble.spike.items():
        there, down = slice(jump.first, jump.first + jump.steps), _fade(jump, num_steps)
        own[replica[rank], there] += jump.loss * down
        shard[rank, there] *= 1 + (jump.norm - 1) * down
        norm_all[there] *= 1 + (jump.norm - 1) * down / replicas**0.5
    if trouble.global_spike is not None:
        whole = trouble.global_spike
        there, down = slice(whole.first, whole.first + whole.steps), _fade(whole, num_steps)
        own[:, there] += whole.loss * down
        shard[:, there] *= 1 + (whole.norm - 1) * down
        norm_all[there] *= 1 + (whole.norm - 1) * down
    loss_all = own.mean(axis=0)
    last_finite = num_steps if trouble.all_nan_at is None else trouble.all_nan_at
    for rank, step in trouble.nan_at.items():
        # A value that is not finite spreads over the lanes of its replica and up the pipeline before gradients are averaged.
        mates = replica == replica[rank]
        own[replica[rank], step] = np.nan
        shard[mates, step] = np.nan
        norm_all[step] = np.nan
        loss_all[step] = np.nan
        last_finite = min(last_finite, step + 1)
    own[:, last_finite:] = np.nan
    shard[:, last_finite:] = np.nan
    norm_all[last_finite:] = loss_all[last_finite:] = np.nan
    return Numbers(
        own[replica], shard, _checksums(trouble, lane=lane, stage=stage, num_steps=num_steps, first_step=first_step, seed=seed),
        first_sample=replica[:, None] + (first_step + steps)[None] * batch * replicas, samples=batch, stride=replicas,
        loss_all=loss_all, norm_all=norm_all, has_loss=stage == stages - 1,
    )  # fmt: skip


def _fade(jump: Jump, num_steps: int) -> Floats:
    """1 at first, half of it after a third of the steps it lasts."""
    steps = np.arange(min(jump.steps, num_steps - jump.first))
    return np.asarray(2.0 ** (-3 * steps / jump.steps))


def _checksums(
    trouble: Trouble, *, lane: npt.NDArray[np.int64], stage: npt.NDArray[np.int64], num_steps: int, first_step: int, seed: int
) -> npt.NDArray[np.uint32]:
    """Equal on all replicas of a shard, but for those whose parameters went apart."""
    found = np.zeros((len(lane), num_steps), np.uint32)
    shards = sorted({(int(a), int(b)) for a, b in zip(lane, stage, strict=True)})
    for place in shards:
        row = [zlib.crc32(f"{seed} {place} {first_step + k}".encode()) for k in range(num_steps)]
        found[(lane == place[0]) & (stage == place[1])] = row
    for rank, step in trouble.parted.items():
        found[rank, step:] = [zlib.crc32(f"{seed} {rank} apart {first_step + k}".encode()) for k in range(step, num_steps)]
    return found


def sample_ids(numbers: Numbers, rank: int, step: int) -> Iterable[int]:
    """Numbers of the samples in a rank's batch."""
    first = int(numbers.first_sample[rank, step])
    return range(first, first + numbers.samples * numbers.stride, numbers.stride)
