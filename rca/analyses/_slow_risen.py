"""Which rank's own time rose at some step and stayed there? Its mean after against its mean before, against the same of all others.

Work that is dealt out anew in each step hides a rank that became slow: single steps say little, and the first few steps are no sure measure of what
it took before. All steps before against all steps after tell it, however much each varies, as long as the rank is compared with itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from rca.analyses._change_points import change_points
from rca.analyses._lasting import MIN_LENGTH, Rise, medians, over_peers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

__all__ = ["risen"]

LEAST: Final = math.log(1.1)  # times as long as before: GREYHOUND's smallest slow-down
SURE: Final = 3.0  # noise widths beyond the most that noise reaches at so many places looked at
CLIP: Final = 3.0  # noise widths beyond which a value says no more


def risen(logs: Matrix) -> list[Rise]:
    """Rows of `logs` (logarithms of times, ranks x steps) that rise against all others and stay so to the last step; in the order of the rows."""
    import numpy as np

    number = logs.shape[1]
    if len(logs) < 2 or number < 2 * MIN_LENGTH:
        return []
    change = over_peers(logs - medians(logs.T)[:, None])
    middle = medians(change.T)[:, None]
    width = np.fmax(medians(np.abs(np.diff(change, axis=1)).T)[:, None] * 1.4826 / math.sqrt(2), 1e-3)
    plain = np.nan_to_num(np.clip(change - middle, -LEAST - CLIP * width, LEAST + CLIP * width))
    total = np.cumsum(plain, axis=1)
    before = np.arange(MIN_LENGTH, number - MIN_LENGTH + 1)
    after = number - before
    higher = (total[:, -1:] - total[:, before - 1]) / after - total[:, before - 1] / before
    strength = higher * np.sqrt(before * after / number) / width
    least = math.sqrt(2 * math.log(plain.size)) + SURE
    found = []
    for row in np.flatnonzero(((higher >= LEAST) & (strength >= least)).any(axis=1)).tolist():  # few: only these are looked at closely
        changes = change_points(np.exp(change[row]))
        ups = [n for n, one in enumerate(changes) if one.ratio > 1]
        stays = next((n for n in ups if all(math.log(one.after / changes[n].before) >= LEAST for one in changes[n:])), None)
        if stays is not None:
            up = changes[stays]
            height = float(np.nanmedian(change[row, up.index :])) - math.log(up.before)
            found.append(Rise(row, up.index, number - 1, height, up.score))
    return found
