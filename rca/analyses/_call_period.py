"""How many calls make an iteration, and how long each iteration took: from the order of a rank's recorded calls alone, without any log.

1. A call's id is its kind of group, operation and sizes. For each lag up to MAX_LAG the share of calls that equal the one `lag` later, corrected
   for chance, is the autocorrelation of the ids; a lag of at least HEIGHT is a candidate (LOW_HEIGHT where evaluations or saves lie between).
2. A candidate counts where the pattern repeats call by call. Loops inside an iteration (layers, micro-batches) repeat as well, and break off once
   an iteration: so the lag whose repetition breaks off least often is the period, and of equals the shortest.
3. Where that leaves fewer than ENOUGH iterations, the rarest ids are left out, one after the other: calls of every tenth step hide that each step
   repeats. The time that they take stays in the series, between the calls that are kept.
4. The time of an iteration is that from each call to the same call of the next one, the median over the calls of the iteration.

After GREYHOUND (ATC'25), section 4: period by autocorrelation, lags up to 200.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Iteration", "Period", "iterations", "period"]

MAX_LAG: Final = 200  # calls of an iteration (GREYHOUND)
HEIGHT: Final = 0.95  # autocorrelation of the period (GREYHOUND)
LOW_HEIGHT: Final = 0.8  # the same where other calls lie between iterations (GREYHOUND, while it profiles)
MIN_REPEATS: Final = 3  # iterations on record: twice may be chance
COVERED: Final = 0.5  # of the calls that exact repetitions must hold
ENOUGH: Final = 20  # iterations, of which a lasting change can be told from noise
RARE: Final = 0.1  # of the calls that may be left out


@dataclass(frozen=True)
class Period:
    """Calls of an iteration, the height of the autocorrelation, the places of the calls that count, and where among these the pattern repeats."""

    length: int
    height: float
    kept: NDArray[np.int64]
    runs: tuple[tuple[int, int], ...]  # first call, first call behind it


@dataclass(frozen=True)
class Iteration:
    """Place of its first call in the series, and how long it took, s."""

    place: int
    seconds: float


def period(ids: NDArray[np.int64]) -> Period | None:
    """The period of a series of call ids; None where none repeats."""
    import numpy as np

    values, counts = np.unique(ids, return_counts=True)
    by_count = sorted(zip(counts.tolist(), values.tolist(), strict=True))
    kept, left_out = np.arange(len(ids)), 0
    best: Period | None = None
    for count, rarest in [(0, -1), *by_count]:
        left_out += count
        if left_out > RARE * len(ids):
            break
        kept = kept[ids[kept] != rarest] if count else kept
        found = _period(ids[kept], kept)
        if found is not None and (best is None or found.length < best.length):
            best = found
        if best is not None and len(ids) >= ENOUGH * best.length:
            break
    return best


def _period(ids: NDArray[np.int64], kept: NDArray[np.int64]) -> Period | None:
    import numpy as np

    if len(ids) < 2 * MIN_REPEATS:
        return None
    chance = float(((np.unique(ids, return_counts=True)[1] / len(ids)) ** 2).sum())
    found: list[Period] = []
    for lag in range(1, min(MAX_LAG, len(ids) // MIN_REPEATS) + 1):
        same = ids[:-lag] == ids[lag:]
        share = float(same.mean())
        height = (share - chance) / (1 - chance) if chance < 1 else share
        if height >= LOW_HEIGHT:
            runs = _runs(same, lag)
            if sum(end - first for first, end in runs) >= COVERED * len(ids):
                found.append(Period(lag, height, kept, runs))
    sure = [one for one in found if one.height >= HEIGHT] or found
    return min(sure, key=lambda one: (len(one.runs), one.length), default=None)


def _runs(same: NDArray[np.bool_], lag: int) -> tuple[tuple[int, int], ...]:
    """Stretches in which the pattern repeats at least once, whole: (first call, first call behind the last repetition)."""
    import numpy as np

    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    return tuple((int(a), int(b) + lag) for a, b in zip(edges[::2], edges[1::2], strict=True) if b - a >= lag)


def iterations(at: NDArray[np.float64], of: Period) -> list[Iteration]:
    """The iterations of a series of times, s, in order; those around a break of the pattern (evaluation, save) are left out."""
    import numpy as np

    times = at[of.kept]
    found = []
    for first, end in of.runs:
        for place in range(first, end - of.length, of.length):
            calls = slice(place, min(place + of.length, end - of.length))
            took = times[calls.start + of.length : calls.stop + of.length] - times[calls]
            if (known := took[np.isfinite(took)]).size:
                found.append(Iteration(int(of.kept[place]), float(np.median(known))))
    return found
