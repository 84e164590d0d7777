"""Pipeline stages of a job that tells no layout, where heavier ranks lie in it as one stage does.

Ranks are numbered along the axes of the layout, so those of one pipeline stage recur at equal distances: blocks of k ranks, each p blocks apart.
Where just such ranks compute longer from the first steps on, that is what they have in common: a sick or older machine has all ranks of its hosts,
or neighbours, but not the same places of one host after the other. The first and the last stage carry more, as a rule (embedding, loss), so only
these are believed. Ranks of one replica may recur in the same way, and longer batches make them heavy: which of the two it is stays open.
One rank of every host, always at the same place, is as likely what that local rank does besides (rca/analyses/_slow_places.py), and left alone.
One unbroken block of ranks is left alone: the last quarter of the ranks may as well be another kind of machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from rca.analyses._lasting import MIN_LENGTH, medians
from rca.analyses._step_times import Times

__all__ = ["guessed_stages", "two_levels"]

HEAVIER: Final = math.log(1.25)  # from the middle of one level to that of the other; first and last stages are always a little heavier
APART: Final = 0.5  # of the way between their middles, that the levels are apart at least
LEAST: Final = 4  # heavy ranks
RECURS: Final = 3  # times that the block is seen; whole hosts one time more
END: Final = 4  # parts of the run, of which the first and the last one have to show the levels


def two_levels(compute: Times) -> tuple[list[int], float]:
    """The ranks of the higher one of two levels that hold from the first steps to the last, and how many times as long; ([], 1.0) = no such two."""
    import numpy as np

    if len(compute.ranks) < 2 or len(compute.steps) <= MIN_LENGTH:
        return [], 1.0
    logs, part = np.log(compute.values), max(len(compute.steps) // END, MIN_LENGTH // 2)
    found: tuple[list[int], float] = [], 1.0
    for columns in (slice(None), slice(0, part), slice(-part, None)):
        usual = medians(logs[:, columns].T)
        if not np.isfinite(usual).all():
            return [], 1.0
        order = np.argsort(usual)
        between = np.diff(usual[order])
        at = int(np.argmax(between)) + 1
        higher = float(np.median(usual[order[at:]]) - np.median(usual[order[:at]]))
        high = sorted(compute.ranks[row] for row in order[at:].tolist())
        if higher < HEAVIER or between[at - 1] < APART * higher or (found[0] and high != found[0]):
            return [], 1.0
        found = found if found[0] else (high, math.exp(higher))
    return found


def guessed_stages(compute: Times, where: Mapping[int, str]) -> dict[int, int]:
    """rank -> stage, where the ranks of the higher level lie as the first or last stage does; empty otherwise. `where`: rank -> host."""
    number = len(compute.ranks)
    if compute.ranks != list(range(number)) or any(rank not in where for rank in compute.ranks):
        return {}
    heavy, _ = two_levels(compute)
    if len(heavy) < LEAST or number % len(heavy):
        return {}
    num_stages, first = number // len(heavy), heavy[0]
    block = next((n for n, rank in enumerate(heavy) if rank != first + n), len(heavy))
    recurs = len(heavy) // block
    stage = {rank: rank // block % num_stages for rank in compute.ranks}
    place = stage[first]
    if place not in {0, num_stages - 1} or heavy != [rank for rank in compute.ranks if stage[rank] == place]:
        return {}
    others = {where[rank] for rank in compute.ranks if stage[rank] != place}
    on = {where[rank] for rank in heavy}
    is_inside = on <= others  # no host has heavy ranks alone
    if block == 1 and is_inside and recurs == len(on) == len(set(where.values())):
        return {}  # one place of every host: as likely what that local rank does besides
    return stage if len(on) > 1 and (recurs >= RECURS if is_inside else not on & others and recurs > RECURS) else {}
