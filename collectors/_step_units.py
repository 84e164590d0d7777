"""In which unit are times whose names do not say it? Told by the same rank's other records or by the clock, never by its peers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

__all__ = ["Seen", "units"]

Key = tuple[str, str | None]  # key, key inside its object

PER_SECOND: Final = (1, 10**3, 10**6, 10**9)
PART_OF_A_STEP: Final = (
    0.02,
    2.0,
)  # times of a step together, of the time to the next one; parts may overlap. Narrower than the 1,000 between units


@dataclass(frozen=True)
class Seen:
    """What one record says: the units that it states, and the sum of the largest group of times without any."""

    rank: int | None
    step: int
    started_us: int | None  # since 1970
    stated: Mapping[Key, int]  # units per second
    unstated: frozenset[Key]
    unstated_sum: float


def units(records: Iterable[Seen]) -> dict[tuple[int | None, Key], int]:
    """(rank, name) -> units per second of names without unit; left out where nothing tells.

    1. What all other records of the rank state for that name. 2. The one unit with which the times of a step fill the time to the start of
    the next one, as far as times do.
    """
    stated: dict[tuple[int | None, Key], set[int]] = defaultdict(set)
    unstated: dict[int | None, set[Key]] = defaultdict(set)
    started: dict[tuple[int | None, int], int] = {}
    sums: dict[tuple[int | None, int], float] = {}
    for seen in records:
        for key, unit in seen.stated.items():
            stated[seen.rank, key].add(unit)
        unstated[seen.rank] |= seen.unstated
        if seen.started_us is not None:
            started[seen.rank, seen.step] = seen.started_us
            if seen.unstated_sum > 0:
                sums[seen.rank, seen.step] = seen.unstated_sum
    found = {}
    for rank, keys in unstated.items():
        clock = _by_clock(started, sums, rank)
        for key in keys:
            told = stated[rank, key]
            if len(told) == 1:
                found[rank, key] = next(iter(told))
            elif not told and clock is not None:
                found[rank, key] = clock
    return found


def _by_clock(started: Mapping[tuple[int | None, int], int], sums: Mapping[tuple[int | None, int], float], rank: int | None) -> int | None:
    """Units per second by which a step of this rank lasts as long as the clock says; None when no unit fits."""
    ratios = [
        value / (after - started[rank, step]) * 1e6
        for (of, step), value in sums.items()
        if of == rank and (after := started.get((rank, step + 1))) is not None and after > started[rank, step]
    ]
    if not ratios:
        return None
    low, high = PART_OF_A_STEP
    return next((unit for unit in PER_SECOND if low <= median(ratios) / unit <= high), None)
