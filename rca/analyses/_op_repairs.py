"""Repairs of a replayed trace: the usual work on every stage, even batches, some ranks as usual. And whether batches are long at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rca.analyses._op_replay import Replay
from rca.analyses._op_trace import BACKWARD, FORWARD

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

__all__ = ["even_batches", "even_stages", "together", "usual", "workers"]


def workers(replay: Replay, places: Sequence[tuple[int, int]]) -> Any:
    """Operations x replicas that belong to these replicas and stages."""
    import numpy as np

    chosen = {*places}
    return np.array([[(dp, op.stage) in chosen for dp in replay.of.dps] for op in replay.of.ops])


def usual(replay: Replay) -> dict[tuple[str, int], Array]:
    """Name and stage of a computation -> its mean on each replica, over micro-batches and steps, s."""
    of = replay.of
    places: dict[tuple[str, int], list[int]] = {}
    for i in replay.compute:
        places.setdefault((of.ops[i].name, of.ops[i].stage), []).append(i)
    return {key: replay.work[at].mean(axis=(0, 2)) for key, at in places.items()}


def even_stages(replay: Replay) -> Array:
    """The work with every stage's computation brought to the mean of all stages; of its replicas the middle one counts."""
    import numpy as np

    work = replay.work.copy()
    middle = {key: float(np.median(means)) for key, means in usual(replay).items()}
    for i in replay.compute:
        op = replay.of.ops[i]
        same = [value for (name, _), value in middle.items() if name == op.name]
        if middle[op.name, op.stage] > 0:
            work[i] *= sum(same) / len(same) / middle[op.name, op.stage]
    return work


def even_batches(replay: Replay) -> Array:
    """The work with every computation at the mean that its rank has for its kind."""
    work, mean = replay.work.copy(), usual(replay)
    for i in replay.compute:
        work[i] = mean[replay.of.ops[i].name, replay.of.ops[i].stage][:, None]
    return work


def together(replay: Replay) -> float | None:
    """Correlation of forward and backward of the same micro-batch, each against its rank's mean; the lowest of the stages. None = not told."""
    import numpy as np

    of = replay.of
    found = []
    for stage in of.stages:
        parts: dict[str, dict[int, int]] = {"forward": {}, "backward": {}}
        for i in replay.compute:
            plain = of.ops[i].name.lower()
            way = "forward" if FORWARD.search(plain) else "backward" if BACKWARD.search(plain) else None
            if of.ops[i].stage == stage and way is not None:
                parts[way][of.batches[i] if of.batches[i] >= 0 else of.ops[i].number] = i
        shared = sorted(parts["forward"].keys() & parts["backward"].keys())
        if not shared:
            return None
        series = [np.log(replay.work[[parts[way][n] for n in shared]]) for way in ("forward", "backward")]
        one, other = ((s - s.mean(axis=(0, 2), keepdims=True)).ravel() for s in series)
        if not (one.std() > 0 and other.std() > 0):
            return None
        found.append(float(np.corrcoef(one, other)[0, 1]))
    return min(found)
