"""What each rank computed in each step, which ranks do the same work, and what the tokens of their batches let expect.

ResiHP's model of a batch: a x tokens + b x squared lengths of its sequences + c (attention is quadratic). What a rank takes beyond that is its own.
It is fitted where batches change from step to step. Where a rank has more tokens than its peers in every step alike, nothing can be fitted: then
twice the tokens may take twice as long, and, of sequences whose lengths are not told, up to four times.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from rca.analyses._guessed_stages import guessed_stages
from rca.analyses._lasting import MIN_LENGTH, medians, over_peers
from rca.analyses._layout import hosts, stages
from rca.analyses._step_times import Times, step_rows, times
from rca.analyses._time_units import OddTimes, odd_times
from rca.types import Tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Matrix = NDArray[np.float64]

__all__ = ["MIN_PEERS", "TRIM", "WARM_UP", "Load", "Work", "aligned", "by_stage", "loads", "rest_of", "work", "workload"]

WARM_UP: Final = 2  # first steps: compilation, allocation, first touch of the data
MIN_PEERS: Final = 3  # ranks of a stage, of which a middle can be told
FITS: Final = 0.5  # of the variance of the times, that the tokens have to explain
TRIM: Final = 3.0  # widths of the rest of the fit, beyond which a time is left out of it
TOLD: Final = 0.9  # of the times, that need tokens
LADEN: Final = math.log(1.05)  # times the tokens of its peers, in the usual step: what is cut off or padded differs by less
SQUARE: Final = 2.0  # power of the tokens that a step takes at most: attention over one sequence
QUICK: Final = 0.25  # of a rank's steps that are taken for its work alone; it may have become slow in the others


@dataclass(frozen=True)
class Work:
    """What each rank computed in each step, and which ranks do the same work."""

    compute: Times
    stage: Mapping[int, Hashable]
    rows: pl.DataFrame
    odd: list[OddTimes]  # ranks whose times cannot be in the unit that they are said to be in
    is_guessed: bool = False  # no layout is told, and heavier ranks lie as a stage does

    @property
    def groups(self) -> list[list[int]]:
        """Rows of the matrix by stage; all of them where no stage is told."""
        return by_stage(self.compute.ranks, self.stage) if self.stage else [list(range(len(self.compute.ranks)))]


@dataclass(frozen=True)
class Load:
    """A rank with more tokens than its peers, always; all as logarithms of times the peers."""

    tokens: float
    most: float  # that its work may be longer
    expected: float  # that its work is taken to be longer: what its quick steps are, between the two
    longer: float  # that it computes, in the usual step


def by_stage(ranks: Sequence[int], stage: Mapping[int, Hashable]) -> list[list[int]]:
    """Places by pipeline stage; a rank whose stage is not known stands alone."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for row, rank in enumerate(ranks):
        found[("of", stage[rank]) if rank in stage else ("alone", rank)].append(row)
    return list(found.values())


def work(case: Tables) -> Work:
    """Computation of all ranks whose times can be compared, first steps left out. For `case.derive`."""
    rows = step_rows(case, warm_up=WARM_UP)
    odd = odd_times(rows)
    rows = rows.filter(~pl.col("rank").is_in([rank.rank for rank in odd]))
    compute = times(rows.filter(pl.col("compute_s") > 0), "compute_s")  # a step without any computation is none
    told = stages(case)
    guessed = {} if told else guessed_stages(compute, hosts(case))
    return Work(compute, told or guessed, rows, odd, bool(guessed))


def rest_of(logs: Matrix, groups: Sequence[Sequence[int]]) -> Matrix:
    """What each rank has more in each step than its stage in that step and itself in all; NaN where a stage has too few ranks."""
    import numpy as np

    rest = np.full_like(logs, np.nan)
    for members in groups:
        if len(members) >= MIN_PEERS:
            excess = logs[members] - medians(logs[members])
            rest[members] = excess - medians(excess.T)[:, None]
    return rest


def aligned(of: Work, column: str) -> Matrix:
    """Another column of the same ranks and steps; NaN where it is not told."""
    import numpy as np

    ranks, steps = of.compute.ranks, of.compute.steps
    values = np.full(of.compute.values.shape, np.nan)
    known = of.rows.filter(pl.col(column).is_not_null() & pl.col("rank").is_in(ranks) & pl.col("step").is_in(steps))
    values[np.searchsorted(ranks, known["rank"]), np.searchsorted(steps, known["step"])] = known[column].cast(pl.Float64)
    return values


def loads(of: Work) -> dict[int, Load]:
    """Row -> load of ranks that have more tokens than the others of their stage in the usual step; none where tokens are not told."""
    import numpy as np

    usual, squares = (_usual(aligned(of, column)) for column in ("num_tokens", "squared_tokens"))
    logs, found = np.log(of.compute.values), {}
    for members in of.groups:
        if len(members) < MIN_PEERS or not np.isfinite(usual[members]).all():
            continue
        excess = over_peers(logs[members])
        more, longer = over_peers(usual[members][:, None])[:, 0], medians(excess.T)
        square = over_peers(squares[members][:, None])[:, 0] if np.isfinite(squares[members]).all() else SQUARE * more
        for place in np.flatnonzero(more >= LADEN).tolist():
            low, high = sorted((float(more[place]), float(square[place])))
            known = excess[place][np.isfinite(excess[place])]
            quick = float(np.quantile(known, QUICK)) if known.size else 0.0
            found[members[place]] = Load(float(more[place]), high, min(max(quick, low), high), float(longer[place]))
    return found


def _usual(counts: Matrix) -> Vector:
    """The logarithm of what each row counts in the usual step; NaN where it is not told, or nothing."""
    import numpy as np

    if counts.shape[1] > 1 and np.all(np.diff(counts, axis=1) > 0):
        counts = np.diff(counts, axis=1)  # counted up from the beginning
    usual = medians(np.where(counts > 0, counts, np.nan).T)
    return np.log(np.where(np.mean(np.isfinite(counts), axis=1) >= TOLD, usual, np.nan))


def workload(of: Work, *, least: float = FITS) -> Matrix | None:
    """The logarithm of what the tokens of each batch let expect, by the ranks of its stage; None where they are not told, or explain too little."""
    import numpy as np

    tokens, squared = (aligned(of, column) for column in ("num_tokens", "squared_tokens"))
    values = of.compute.values
    if np.mean(np.isfinite(tokens)[np.isfinite(values)]) < TOLD or np.nanstd(tokens) <= 0:
        return None
    if np.all(np.diff(tokens, axis=1) > 0):
        return None  # counted up from the beginning: not those of a step
    expected = np.full_like(values, np.nan)
    for members in of.groups:
        parts = [tokens[members].ravel(), *([squared[members].ravel()] if np.isfinite(squared[members]).all() else [])]
        sides, took = np.column_stack([np.ones(parts[0].size), *parts]), values[members].ravel()
        known = np.isfinite(sides).all(axis=1) & np.isfinite(took)
        kept = known
        for _ in range(3):
            if np.sum(kept) <= MIN_LENGTH:
                return None
            scale = np.abs(sides[kept]).max(axis=0)
            scale[scale == 0] = 1.0
            solved = np.linalg.lstsq(sides[kept] / scale, took[kept], rcond=None)[0]
            off = np.log(np.maximum(took, 1e-300)) - np.log(np.maximum(sides / scale @ solved, 1e-9))
            width = float(np.median(np.abs(off[known] - np.median(off[known])))) * 1.4826
            kept = known & (np.abs(off - np.median(off[known])) <= TRIM * max(width, 1e-3))
        expected[members] = np.log(np.maximum(sides / scale @ solved, 1e-9)).reshape(len(members), -1)
    own, left = (rest_of(logs, of.groups) for logs in (np.log(values), np.log(values) - expected))
    explained = 1 - float(np.nanmedian(np.abs(left))) ** 2 / max(float(np.nanmedian(np.abs(own))) ** 2, 1e-12)
    return expected if explained >= least else None
