"""Which of many noisy series rises above its peers and stays there? A likelihood test that is fooled neither by spikes nor by noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

__all__ = ["MIN_LENGTH", "Rise", "medians", "over_peers", "rises"]

MIN_LENGTH = 8  # steps; a busy host disturbs its ranks for a few at a time
LONG_SHARE = 0.5  # of all steps: a rise that long counts even when it is over
FAR = 8  # steps apart, at which the waves of noise have passed
TAIL = 2  # last steps that may look normal although the rise goes on
MIN_NOISE = 0.03  # in the units of the series; the test would trust quieter ones too much
SPIKE = 2.5  # noise widths beyond which a value says no more: spikes reach 15 times the median
MAX_GAIN = 3.0  # nats that one step can add, so that no rise is shown by fewer than some five steps
FALSE_ALARM = 7.0  # nats beyond the number of places looked at: one false rise in about 1,000 jobs
STANDS_OUT = 1.5  # times the best sum of any stretch that does not last: how far noise of kinds the test does not know (waves, bursts) gets


@dataclass(frozen=True)
class Rise:
    """Row and column range (last one included) of a lasting rise, and its median height."""

    row: int
    first: int
    last: int
    height: float
    score: float


def over_peers(values: Matrix) -> Matrix:
    """Each value less the median of the others in its column, never of the best one; NaN where there are no others. Same shape."""
    import numpy as np

    order = np.argsort(values, axis=0)  # NaN last
    place = np.argsort(order, axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    others = np.sum(~np.isnan(values), axis=0) - 1

    def of_others(index: Any) -> Any:  # the index-th of the column without the value itself
        index = np.broadcast_to(np.maximum(index, 0), values.shape)
        return np.take_along_axis(ordered, np.minimum(index + (place <= index), len(values) - 1), axis=0)

    middle = (of_others((others - 1) // 2) + of_others(others // 2)) / 2
    return np.where(others > 0, values - middle, np.nan)


def medians(values: Matrix) -> Matrix:
    """Median of each column; NaN where it holds none."""
    import numpy as np

    ordered = np.sort(values, axis=0)  # NaN last
    known = np.sum(~np.isnan(values), axis=0)
    low, high = (np.take_along_axis(ordered, np.maximum(at, 0)[None], axis=0)[0] for at in ((known - 1) // 2, known // 2))
    return np.where(known > 0, (low + high) / 2, np.nan)


def rises(excess: Matrix, *, least: float, margin: float = 0.0) -> list[Rise]:
    """Rows of `excess` (series x steps, what a series is above its peers, NaN = missing) that rise by at least `least` and stay there.

    1. Noise of a series: from the differences of steps near and far, which a lasting shift hardly touches; at least that of all.
    2. Each step adds its log-likelihood ratio of "risen by `least`" against "not risen", limited, so that a spike counts little,
       and reduced as far as neighbouring steps resemble each other (for a first-order process that is exact).
    """
    import numpy as np

    rows, steps = excess.shape
    if not rows or steps <= MIN_LENGTH:
        return []
    near, far = (np.abs(excess[:, lag:] - excess[:, :-lag]) for lag in (1, min(FAR, steps // 2)))
    spread = np.fmax(_median(near), _median(far))
    noise = np.fmax(MIN_NOISE, np.fmax(spread, medians(near.T)) * 1.4826 / math.sqrt(2))[:, None]
    fresh = (
        (_median(near) / spread) ** 2 if spread > 0 else 1.0
    )  # what a step tells that the one before did not: less where noise comes in waves
    limit = np.minimum(MAX_GAIN, SPIKE * least / noise)
    gain = np.nan_to_num(np.clip((excess - least / 2) * least / noise**2, -limit, limit)) * fresh / (2 - fresh)
    total = np.concatenate([np.zeros((rows, 1)), np.cumsum(gain, axis=1)], axis=1)
    climbed = total - np.minimum.accumulate(total, axis=1)
    ends = np.argmax(climbed, axis=1)
    found = []
    scores, known = climbed[np.arange(rows), ends], np.any(~np.isnan(excess), axis=1)
    is_high = scores >= math.log(rows * steps) + FALSE_ALARM  # few: only these are looked at closely
    passing: list[float] = scores[known & ~is_high].tolist()  # what stretches that do not last add up to
    for row in np.flatnonzero(known & is_high).tolist():
        end = int(ends[row])
        score = float(scores[row])
        first = end - int(np.argmin(total[row, end::-1]))
        present = np.flatnonzero(~np.isnan(excess[row]))
        length = int(np.sum((present >= first) & (present < end)))
        height = _median(excess[row, first:end])
        lasts = length >= MIN_LENGTH and (end > present[-1] - TAIL or length >= LONG_SHARE * len(present))
        if lasts and height >= least + margin * float(noise[row, 0]):
            found.append(Rise(row, first, end - 1, height, score))
            score = float(climbed[row, : first + 1].max())
        passing.append(score)
    return [rise for rise in found if rise.score >= STANDS_OUT * max(passing)]


def _median(values: Matrix) -> float:
    import numpy as np

    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else 0.0
