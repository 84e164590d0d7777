"""Where does a series of step times change its level for good? Change points, and which of them are verified.

1. Spikes: a value further than CLIP noise widths from the running median of its WINDOW counts as CLIP widths: single slow steps (an evaluation,
   a checkpoint, a busy file system) shift no mean. It stands for GREYHOUND's "drop |z| > 3", whose z a spike of 15 times the median blinds.
2. Candidates: the best split of each of the intervals that cover the series at every scale (seeded binary segmentation: Kovacs et al.,
   Biometrika 2023). It counts where the means differ by more than noise reaches in a series of this length. The strongest goes first, and
   each is fitted again between its neighbours.
3. Verified (GREYHOUND, ATC'25): not within MIN_GAP values after the change before, and the levels differ by more than MIN_SHIFT of the higher
   one; the smallest goes first, and its neighbours are compared anew. And it is a step: where the values drift at that place, the step that
   is left beside the drift has to be as large. A young mixture of experts slows down and recovers by 12 % over 30 steps without any fault.

Noise is measured by differences of values near and far: a change of level touches few of them. All by logarithms: slow-downs are ratios.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

__all__ = ["MIN_GAP", "MIN_SHIFT", "ChangePoint", "change_points"]

MIN_SHIFT = 0.10  # of the higher level: GREYHOUND discards smaller changes
MIN_GAP = 10  # values after a change within which no other one counts: GREYHOUND
CLIP = 3.0  # noise widths beyond which a value says no more
WINDOW = 9  # values of the running median: up to four slow steps in a row are spikes
MIN_SIDE = 4  # values on each side of a change: as many as spikes can fill, were they at the end
MIN_NOISE = 0.01  # of the logarithm: steps repeat no better than to a hundredth
FAR = 8  # values apart, at which the waves of noise have passed
DRIFTS = 4.0  # noise widths that the slope at a change is more than none
SURE = 3.0  # noise widths beyond the most that noise reaches in a series of this length


@dataclass(frozen=True)
class ChangePoint:
    """From `index` on (a place in the values given) the level is `after` and no longer `before`, in the unit of the values."""

    index: int
    before: float
    after: float
    score: float  # difference of the levels in noise widths of their means

    @property
    def ratio(self) -> float:
        """How many times as high; above 1 = slower, where the values are times."""
        return self.after / self.before


def change_points(values: Sequence[float] | Vector, *, min_shift: float = MIN_SHIFT) -> list[ChangePoint]:
    """Verified changes of level in the order of the values; what is not finite or not positive is left out, and counts for no place.

    A level is the median of the values between two changes. Linear but for a logarithm in the number of values: 100,000 take a second.
    """
    import numpy as np

    given = np.asarray(values, dtype=np.float64)
    places = np.flatnonzero(np.isfinite(given) & (given > 0))
    if len(places) < 2 * MIN_SIDE:
        return []
    logs = np.log(given[places])
    width, waves = _noise(logs)
    plain, noise = _clipped(logs, width), width * waves
    total = np.concatenate([[0.0], np.cumsum(plain - plain[0])])
    least = math.sqrt(2 * math.log(len(plain))) + SURE
    splits: list[int] = []
    for at in _fitted(_splits(total, least * noise), total):
        if not splits or at - splits[-1] > MIN_GAP:
            splits.append(at)
    splits = _fitted(splits, total)
    while splits:  # a change too small to count joins its two stretches, which may bring out the next one
        ends = [0, *splits, len(logs)]
        level = np.exp([np.median(logs[a:b]) for a, b in pairwise(ends)])
        shift = np.abs(np.diff(level)) / np.maximum(level[1:], level[:-1])
        score = [_score(total, *ends[i : i + 3]) / noise for i in range(len(splits))]
        shift = np.where(np.array(score) < least, 0.0, np.minimum(shift, [_step(plain, *ends[i : i + 3]) for i in range(len(splits))]))
        small = int(np.argmin(shift))
        if shift[small] > min_shift:
            rows = zip(splits, level, level[1:], score, strict=False)
            return [ChangePoint(int(places[at]), float(before), float(after), float(s)) for at, before, after, s in rows]
        splits.pop(small)
    return []


def _noise(logs: Vector) -> tuple[float, float]:
    """Width of the noise, of the logarithm, at least MIN_NOISE; and how many times less sure means are than of independent values.

    Noise that comes in waves differs less from one value to the next than far apart; for a first-order process the second figure is exact.
    """
    near, far = _width(logs, 1), _width(logs, max(min(FAR, len(logs) // 5), 1))
    fresh = min((near / far) ** 2, 1.0) if far > 0 else 1.0
    return max(MIN_NOISE, near, far), math.sqrt((2 - fresh) / max(fresh, 0.01))


def _width(logs: Vector, lag: int) -> float:
    """Width of the noise by differences so many values apart."""
    import numpy as np

    return float(np.median(np.abs(logs[lag:] - logs[:-lag]))) * 1.4826 / math.sqrt(2)


def _clipped(logs: Vector, noise: float) -> Vector:
    """The values, spikes brought to CLIP widths from the running median; at the ends of what there is of its window."""
    import numpy as np

    half = WINDOW // 2
    padded = np.concatenate([np.full(half, np.nan), logs, np.full(half, np.nan)])
    middle = np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, WINDOW), axis=1)
    return np.clip(logs, middle - CLIP * noise, middle + CLIP * noise)


def _splits(total: Vector, least: float) -> list[int]:
    """Places of splits that differ by more than `least` (in units of a value), the strongest of each stretch; sorted."""
    import numpy as np

    number = len(total) - 1
    found: list[tuple[float, int, int, int]] = []  # strength, place, interval
    length = float(number)
    while (width := max(math.ceil(length), 2 * MIN_SIDE)) >= 2 * MIN_SIDE:
        begins = np.unique(np.append(np.arange(0, number - width, max(width // 2, 1)), number - width))
        left = np.arange(MIN_SIDE, width - MIN_SIDE + 1)
        first, last = total[begins][:, None], total[begins + width][:, None]
        middle = total[begins[:, None] + left]
        strength = np.abs((middle - first) / left - (last - middle) / (width - left)) * np.sqrt(left * (width - left) / width)
        best = np.argmax(strength, axis=1)
        high = strength[np.arange(len(begins)), best]
        found += [
            (float(high[i]), int(begins[i] + left[best[i]]), int(begins[i]), int(begins[i]) + width) for i in np.flatnonzero(high > least)
        ]
        if width == 2 * MIN_SIDE:
            break
        length /= math.sqrt(2)
    taken: list[int] = []
    for _, at, first_of, last_of in sorted(found, reverse=True):
        if not any(first_of < other < last_of for other in taken):
            taken.append(at)
    return sorted(taken)


def _fitted(splits: Sequence[int], total: Vector) -> list[int]:
    """Each split where it parts the stretch between its neighbours best."""
    import numpy as np

    fitted = list(splits)
    for i in range(len(fitted)):
        begin, end = ([0, *fitted][i], [*fitted, len(total) - 1][i + 1])
        if end - begin < 2 * MIN_SIDE:
            continue
        at = np.arange(begin + MIN_SIDE, end - MIN_SIDE + 1)
        left, right = at - begin, end - at
        strength = np.abs((total[at] - total[begin]) / left - (total[end] - total[at]) / right) * np.sqrt(left * right / (end - begin))
        fitted[i] = int(at[np.argmax(strength)])
    return fitted


def _step(plain: Vector, begin: int, at: int, end: int) -> float:
    """How large the change at `at` is, of the higher level, beside the drift of the values about it; infinite where they do not drift."""
    import numpy as np

    near = np.arange(max(begin, at - MIN_GAP), min(end, at + MIN_GAP))
    sides = np.column_stack([np.ones(len(near)), near >= at, near - at])
    inverse = np.linalg.inv(sides.T @ sides)
    _, step, slope = inverse @ sides.T @ plain[near]
    if abs(slope) < DRIFTS * _width(plain[near], 1) * math.sqrt(inverse[2, 2]):
        return math.inf
    return 1 - math.exp(-abs(step)) if step * (plain[at : near[-1] + 1].mean() - plain[near[0] : at].mean()) > 0 else 0.0


def _score(total: Vector, begin: int, at: int, end: int) -> float:
    left, right = at - begin, end - at
    return float(abs((total[at] - total[begin]) / left - (total[end] - total[at]) / right) * math.sqrt(left * right / (end - begin)))
