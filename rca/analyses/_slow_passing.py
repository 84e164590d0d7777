"""Which ranks became slower than all others, and recovered? Told, and nobody is accused: what passed is no reason to replace anybody."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import polars as pl

from rca.analyses._change_points import change_points
from rca.analyses._lasting import medians, over_peers
from rca.analyses._step_times import Times, cite_step
from rca.analyses._words import ranks_text
from rca.analyses._workload import MIN_PEERS
from rca.types import Finding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

__all__ = ["for_a_while", "passed"]

WHILE: Final = 11  # steps: longer than the changes of pace that verification drops
FEW: Final = 1 / 8  # of the ranks, that were slow for a while: more are no exception


def for_a_while(compute: Times, slow: set[int], expected: Matrix | None, *, least: float) -> list[tuple[int, int, int, float]]:
    """Row, first and last column and how many times as slow, of ranks that became slower than the others and recovered."""
    import numpy as np

    logs = np.log(compute.values) - (0.0 if expected is None else expected)
    if logs.shape[1] < 2 * WHILE or len(logs) < MIN_PEERS:
        return []
    excess = over_peers(logs)
    excess = np.nan_to_num(excess - medians(excess.T)[:, None])
    total = np.cumsum(np.pad(np.clip(excess, -1.0, 1.0), ((0, 0), (1, 0))), axis=1)
    high = (total[:, WHILE:] - total[:, :-WHILE]).max(axis=1) / WHILE  # a quick look, so that few are looked at closely
    rows = [row for row in np.argsort(-high, kind="stable").tolist() if high[row] >= least / 2 and row not in slow]
    most = max(1, int(FEW * len(logs)))
    found = []
    for row in rows[: 2 * most]:
        changes = change_points(np.exp(excess[row]))
        up = next((change for change in changes if change.ratio >= math.exp(least)), None)
        if up is None:
            continue
        over = [change.index for change in changes if change.index > up.index and change.after <= up.before * math.exp(least / 2)]
        if over:
            found.append((row, up.index, over[0] - 1, math.exp(float(np.median(excess[row, up.index : over[0]])))))
    return found if len(found) <= most else []


def passed(found: Sequence[tuple[int, int, int, float]], compute: Times, rows: pl.DataFrame, *, is_open: bool) -> Finding:
    """Told, and nobody is accused: what passed is no reason to replace anybody. A note where nothing else is open."""
    ranks = [compute.ranks[row] for row, *_ in found]
    row, first, last, ratio = max(found, key=lambda one: (one[3], -one[0]))
    rank, steps = compute.ranks[row], compute.steps
    says = (
        f"{ranks_text(sorted(ranks))} became slower and recovered: computation of rank {rank} took {ratio:.2f} times as long, against all others, "
        f"from step {steps[first]} to {steps[last]}"
    )
    numbers = {"candidates": sorted(ranks), "step": steps[first], "last_step": steps[last], "ratio": round(ratio, 3)}
    cites = tuple(cite for at in (first, last) for cite in cite_step(rows, rank, steps[at], "compute_s"))
    sign = "was_slow" if is_open else "was_slow_once"
    return Finding("slow_rank", sign, says, scope=f"passed {sorted(ranks)}", numbers=numbers, cites=cites)
