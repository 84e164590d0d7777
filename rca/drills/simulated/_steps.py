"""Where the time of each rank's steps goes: a 1F1B pipeline per replica, its replicas joined once a step. All ranks and steps at once.

A micro-batch runs in lock-step over the lanes of a stage (tensor and context parallel), then goes to the next stage; gradients are joined over
the replicas, and the whole job once more for their norm. So a rank's own computation is its own, and the waits of all others follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["OPTIMIZER_SHARE", "Pace", "Pass", "Times", "run_steps"]

Floats = npt.NDArray[np.float64]
BACKWARD: Final = 2.0  # a backward pass costs about twice a forward pass
SYNC_SHARE: Final = 0.06  # of a step without waits: joining the gradients
P2P_SHARE: Final = 0.01  # of a forward pass: handing a micro-batch to the next stage
OPTIMIZER_SHARE: Final = 0.03


@dataclass
class Pace:
    """How fast a sound job runs, and what is wrong with it. Factors are 1 where nothing is."""

    step_s: float  # a usual step
    num_steps: int
    microbatches: int
    jitter: float = 0.01  # spread of a rank's own computation from step to step, relative
    data_s: float = 0.003  # usual wait for a batch, relative to a step
    stage_weight: Floats | None = None  # pp: work of each stage, mean 1
    length_spread: float = 0.0  # spread of the work of micro-batches by their sequence lengths, the same forward and backward
    slow: dict[int, Floats] = field(default_factory=dict)  # rank -> steps: factor on its own computation
    data_wait: dict[int, Floats] = field(default_factory=dict)  # rank -> steps: further seconds until its batch comes
    heavy: dict[int, Floats] = field(default_factory=dict)  # replica -> steps: factor on the work of its micro-batches
    sync: dict[tuple[int, int], Floats] = field(default_factory=dict)  # (lane, stage) -> steps: factor on joining its gradients
    is_traced: bool = False  # the passes of every micro-batch are kept
    extra: Floats | None = None  # steps: seconds that the whole job spends besides (saving, compiling)


class Pass(NamedTuple):
    """A forward or backward pass of a micro-batch through a stage. Seconds since the step began, replicas x steps."""

    stage: int
    batch: int
    is_backward: bool
    waits_from: Floats  # the stage was free
    start: Floats
    end: Floats


@dataclass(frozen=True)
class Times:
    """Seconds, ranks x steps. `forward` and `backward` are a rank's own computation; `comm` holds all waiting for others."""

    step: Floats
    compute: Floats
    forward: Floats
    backward: Floats
    comm: Floats
    data: Floats
    checkpoint: Floats
    passes: tuple[Pass, ...] = ()
    synced: Floats | None = None  # replicas x stages x 2 x steps: begin and end of joining the gradients of lane 0


@cache
def _order(stages: int, batches: int) -> tuple[tuple[int, int, bool], ...]:
    """(stage, micro-batch, backward?) of Megatron's 1F1B schedule, in an order in which every one comes after what it waits for."""
    queues: list[list[tuple[int, bool]]] = []
    for stage in range(stages):
        warm = min(stages - 1 - stage, batches)
        queue = [(k, False) for k in range(warm)]
        for k in range(batches - warm):
            queue += [(warm + k, False), (k, True)]
        queues.append(queue + [(k, True) for k in range(batches - warm, batches)])
    done: set[tuple[int, int, bool]] = set()
    found: list[tuple[int, int, bool]] = []
    places = [0] * stages
    while len(found) < 2 * stages * batches:
        for stage in range(stages):
            while places[stage] < len(queues[stage]):
                batch, back = queues[stage][places[stage]]
                before = (stage + 1, batch, True) if back else (stage - 1, batch, False)
                if 0 <= before[0] < stages and before not in done:
                    break
                found.append((stage, batch, back))
                done.add((stage, batch, back))
                places[stage] += 1
    return tuple(found)


def run_steps(pace: Pace, *, lane: npt.NDArray[np.int64], replica: npt.NDArray[np.int64], stage: npt.NDArray[np.int64], seed: int) -> Times:
    """Play all steps. `lane`, `replica`, `stage`: place of each rank, from 0."""
    rng = np.random.default_rng(seed)
    ranks, steps, batches = len(lane), pace.num_steps, pace.microbatches
    lanes, replicas, stages = (int(axis.max()) + 1 for axis in (lane, replica, stage))
    weight = np.ones(stages) if pace.stage_weight is None else pace.stage_weight
    # A step of (batches + stages - 1) slots of one forward and one backward pass each, beside what is joined at its end.
    slot = pace.step_s * (1 - SYNC_SHARE - OPTIMIZER_SHARE - pace.data_s) / ((batches + stages - 1) * max(weight.max(), 1.0))
    own = 1 + pace.jitter * np.abs(rng.standard_normal((ranks, steps)))
    for rank, factor in pace.slow.items():
        own[rank] *= factor
    work = np.ones((replicas, steps, batches))
    if pace.length_spread:
        work = rng.lognormal(-(pace.length_spread**2) / 2, pace.length_spread, (replicas, steps, batches))
    for number, factor in pace.heavy.items():
        work[number] *= factor[:, None]
    unit = slot / (1 + BACKWARD)
    total = work.sum(axis=2)[replica] * weight[stage][:, None] * unit  # ranks x steps: forward work without its own factor
    forward, backward = total * own, total * own * BACKWARD
    data = np.abs(pace.data_s * pace.step_s * (1 + 0.2 * rng.standard_normal((ranks, steps))))
    for rank, seconds in pace.data_wait.items():
        data[rank] += seconds
    # Lanes of a stage go in lock-step: the slowest of them sets the pace, and the latest batch the start.
    pacing = np.zeros((replicas, stages, steps))
    begin = np.zeros((replicas, stages, steps))
    np.maximum.at(pacing, (replica, stage), own)
    np.maximum.at(begin, (replica, stage), data)
    ends = begin.copy()
    passed: dict[tuple[int, int, bool], Floats] = {}
    passes = []
    hop = P2P_SHARE * unit
    for place, batch, back in _order(stages, batches):
        takes = work[:, :, batch] * weight[place] * unit * (BACKWARD if back else 1.0) * pacing[:, place]
        before = passed.get((place + 1, batch, True) if back else (place - 1, batch, False))
        start = ends[:, place] if before is None else np.maximum(ends[:, place], before + hop)
        if pace.is_traced:
            passes.append(Pass(place, batch, back, ends[:, place].copy(), start.copy(), start + takes))
        ends[:, place] = passed[place, batch, back] = start + takes
    joined = np.full((lanes, stages, steps), SYNC_SHARE * pace.step_s)
    for (number, place), factor in pace.sync.items():
        joined[number, place] *= factor
    joined = joined * (1 + 0.02 * np.abs(rng.standard_normal(joined.shape))) + ends.max(axis=0)[None]
    synced = np.stack((ends, np.broadcast_to(joined[0], ends.shape)), axis=2) if pace.is_traced else None
    whole = joined.max(axis=(0, 1)) + OPTIMIZER_SHARE * pace.step_s  # steps
    extra = np.zeros(steps) if pace.extra is None else pace.extra
    step = np.broadcast_to(whole + extra, (ranks, steps)) * (1 + 1e-4 * rng.standard_normal((ranks, steps)))
    compute = forward + backward
    spent = OPTIMIZER_SHARE * pace.step_s + extra
    comm = np.maximum(step - compute - data - spent, 0.0)
    return Times(step, compute, forward, backward, comm, data, np.broadcast_to(extra, (ranks, steps)), tuple(passes), synced)
