"""Do the times of a job vary as work does that is dealt out anew in each step? For jobs that tell neither tokens nor forward and backward.

What disturbs a machine only adds to a time: there is a shortest one, near the usual one, and a long tail above it. Work that is dealt out is as
often and as far shorter than usual as longer, on the logarithm. It is also dealt alike: every rank varies as widely as the others, where a busy
host's ranks vary more than those of a quiet one; and what a rank got in one step says nothing of the next. All of that has to hold, and what a GPU
computes has to vary by more than GPUs do for the same work (some per cent).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from rca.analyses._lasting import medians

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Matrix = NDArray[np.float64]

__all__ = ["why_not_drawn"]

STEPS: Final = 16  # at least, to know how wide a rank varies
VALUES: Final = 128  # of all ranks together at least, to know the lowest and highest twentieth
EDGE: Final = 0.05  # of the values, that lie beyond the lower and beyond the upper edge
BOTH_WAYS: Final = (
    0.65  # the way down to the lower edge, of that up to the upper one: 1 of drawn work, 0.8 of few long samples among many short
)
# ones, about a half of noise that only adds
ERROR: Final = 2.0  # the same, times the root of the number of values: how far noise of so few gets above its half
WIDE: Final = 0.05  # standard deviation of the logarithm: a GPU takes the same time for the same work within some per cent
ALIKE: Final = 2.0  # times as wide, or as narrow, as the usual rank
RENEWED: Final = 0.3  # correlation with the step before


def why_not_drawn(logs: Matrix, rest: Matrix) -> str:
    """What speaks against work that is dealt out anew in each step; "" = nothing does.

    `logs`: logarithms of computation, ranks x steps; `rest`: what each is above its peers in the step and above itself in all steps, zero or NaN
    where a rank has no peers.
    """
    import numpy as np

    varies = np.any(np.nan_to_num(rest) != 0, axis=1)
    rest, own = rest[varies], (logs - medians(logs.T)[:, None])[varies]
    known = np.isfinite(rest) & np.isfinite(own)
    if rest.shape[1] < STEPS or np.sum(known) < VALUES:
        return f"too few steps ({rest.shape[1]}) to tell by their shape whether work or noise varies"
    widths = np.nanstd(rest, axis=1)
    usual = float(np.median(widths))
    if usual < WIDE:
        return "computation varies hardly more than that of any machine"
    if widths.max() > ALIKE * usual or widths.min() * ALIKE < usual:
        return "some ranks vary much more than others: noise of their hosts"
    pair = np.clip(rest[:, 1:], -2 * usual, 2 * usual), np.clip(rest[:, :-1], -2 * usual, 2 * usual)
    both = known[:, 1:] & known[:, :-1]
    if float(np.corrcoef(pair[0][both], pair[1][both])[0, 1]) > RENEWED:
        return "a rank that is long in one step is so in the next: of the host, or of its share of the data"
    if min(_both_ways(rest[known]), _both_ways(own[known])) < BOTH_WAYS + ERROR / math.sqrt(np.sum(known)):
        return "times are longer than usual by more than they are shorter, as of noise, which only adds"
    return ""


def _both_ways(values: Vector) -> float:
    """How far the lower edge is from the middle, of how far the upper one is."""
    import numpy as np

    low, middle, high = np.quantile(values, (EDGE, 0.5, 1 - EDGE))
    return float((middle - low) / max(high - middle, 1e-12))
