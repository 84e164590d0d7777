"""Does a series of times grow little by little, for good? A leak, heat or fragmentation slows a job over hours without any one step that shows it.

1. Medians of equally long stretches: single slow steps (evaluations, checkpoints) move none of them.
2. The trend is the median of the slopes between all pairs of stretches (Theil and Sen), of the logarithm. It has to add up to GROWS or more over the
   series, and the last stretches have to lie as far above the first ones: the series is its own baseline.
3. Nearly all pairs have to rise (Kendall's tau), so that waves of day and night are no trend.
4. A straight line has to fit better than one step up: a step is a change of pace, and another question.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

__all__ = ["GROWS", "LEAST_VALUES", "Ramp", "ramp"]

GROWS: Final = 0.10  # of the first level: what GREYHOUND verifies of a change
STRETCHES: Final = 24
MIN_STRETCHES: Final = 12  # of which a trend is told
MIN_WIDTH: Final = 4  # values of a stretch
LEAST_VALUES: Final = MIN_STRETCHES * MIN_WIDTH  # of which a trend can be told
TAU: Final = 0.7  # share of rising pairs less that of falling ones: chance reaches a third of it
ENDS: Final = 4  # one in so many stretches is an end of the series
BETTER: Final = 0.7  # of the error of one step up that a line may leave


@dataclass(frozen=True)
class Ramp:
    """Level at the beginning and at the end, in the unit of the values, and the share of rising pairs of stretches less that of falling ones."""

    before: float
    after: float
    tau: float

    @property
    def ratio(self) -> float:
        """How many times as high it has become."""
        return self.after / self.before


def ramp(values: Sequence[float] | Vector, *, grows: float = GROWS) -> Ramp | None:
    """The ramp in a series of positive values, what is not finite or not positive left out; None where there is none, or too little to tell."""
    import numpy as np

    given = np.asarray(values, dtype=np.float64)
    known = given[np.isfinite(given) & (given > 0)]
    number = min(STRETCHES, len(known) // MIN_WIDTH)
    if number < MIN_STRETCHES:
        return None
    logs = np.log([np.median(part) for part in np.array_split(known, number)])
    first, second = np.triu_indices(number, 1)
    rises = logs[second] - logs[first]
    tau = float(np.mean(np.sign(rises)))
    slope = float(np.median(rises / (second - first)))
    end = max(2, number // ENDS)
    before, after = float(np.median(logs[:end])), float(np.median(logs[-end:]))
    least = math.log1p(grows)
    # The middles of first and last stretches are nearer to each other than the ends of the series.
    if tau < TAU or slope * (number - 1) < least or after - before < least * (1 - end / number) or not _is_line(logs, slope):
        return None
    middle = float(np.median(logs - slope * np.arange(number)))
    return Ramp(math.exp(middle), math.exp(middle + slope * (number - 1)), tau)


def _is_line(logs: Vector, slope: float) -> bool:
    """Whether a line leaves less error than the best single step."""
    import numpy as np

    at = np.arange(len(logs))
    line = logs - slope * at
    steps = [np.concatenate([logs[:k] - np.median(logs[:k]), logs[k:] - np.median(logs[k:])]) for k in range(2, len(logs) - 1)]
    return float(np.abs(line - np.median(line)).sum()) <= BETTER * min(float(np.abs(step).sum()) for step in steps)
