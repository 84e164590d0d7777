"""Without a map of the stages: does one rank compute longer than everybody else, and does everybody else wait as much longer as it does? Pure.

A stage with more work than the others has several ranks, and stages differ among each other; of one rank alone, where all others are alike, no
layout makes a stage but a pipeline that is nothing else. Its two ends have more to do, so the first and the last rank are never told by this, and
few ranks (that may all be one pipeline) tell nothing. What others wait in communication for it is what it computes more: that both are equal in
every step shows that it holds them up, and that neither is a slip of the clock.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from rca.analyses._lasting import MIN_LENGTH, medians

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

__all__ = ["alone_and_waited_for"]

LEAST_RANKS: Final = 16  # twice the eight of a host: a pipeline of that many stages with nothing beside it is not run
LONGER: Final = 1.2  # times the slowest of the others; as `slow_rank` asks of a rank against its peers
ALIKE: Final = 0.25  # of the excess, that the others may differ among each other, and that the wait may differ from it
STEPS: Final = 0.95  # of all steps, from the first to the last


def alone_and_waited_for(compute: Matrix, comm: Matrix) -> int | None:
    """The row of the one rank, ranks x steps; None where there is none or a time is missing that it takes."""
    import numpy as np

    if len(compute) < LEAST_RANKS or compute.shape[1] <= MIN_LENGTH or min(np.mean(np.isfinite(of)) for of in (compute, comm)) < STEPS:
        return None
    usual, waits = medians(compute.T), medians(comm.T)
    row = int(np.nanargmax(usual))
    if row in (0, len(compute) - 1):
        return None
    others = np.arange(len(compute)) != row
    excess = float(usual[row] - np.nanmedian(usual[others]))
    if not math.isfinite(excess) or max(np.ptp(of[others]) for of in (usual, waits)) > ALIKE * excess:
        return None
    with np.errstate(all="ignore"):
        is_longest = compute[row] > LONGER * np.nanmax(compute[others], axis=0)
        waits_least = comm[row] < np.nanmin(comm[others], axis=0)
        more, less = compute[row] - np.nanmedian(compute[others], axis=0), np.nanmedian(comm[others], axis=0) - comm[row]
    is_mirror = np.abs(more - less) <= ALIKE * more
    return row if float(np.mean(is_longest & waits_least & is_mirror)) >= STEPS else None
