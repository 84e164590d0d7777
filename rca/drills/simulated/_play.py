"""How far every rank of a large job comes, found by playing a small one.

Ranks that differ only along an axis on which no fault tells them apart do the same. So of all places along an axis that look alike one is
played, and a job of 16,384 ranks needs a hundred or so. What is the same for all of them is a class; a rank keeps its own groups and clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rca.drills._synthetic_job import Fault, Group, Job, Op, Plan, Truth, groups_of, plan
from rca.drills._synthetic_run import START_NS, enqueued, play

__all__ = ["Played", "played"]


@dataclass(frozen=True)
class Played:
    """A job after its play. `of` = the class of each rank; `plans` and `done` are by class."""

    job: Job
    of: np.ndarray
    plans: tuple[Plan, ...]
    done: tuple[array[int], ...]
    truth: Truth  # of the small job: whose ranks are classes

    @cached_property
    def groups(self) -> list[dict[str, Group]]:
        """Per rank the group of each axis."""
        return groups_of(self.job)

    def plan(self, rank: int) -> Plan:
        """What a rank does, in its own groups."""
        return self.plans[int(self.of[rank])]._replace(groups=self.groups[rank])

    def finished(self, rank: int) -> int:
        """Calls that ended on this rank."""
        return len(self.done[self.of[rank]])

    def leaves_no_dump(self, rank: int) -> bool:
        """A fault took the rank away before it could write one."""
        return int(self.of[rank]) in self.truth.without_dump

    def is_waiting(self, rank: int) -> bool:
        """True where a rank has arrived at a call that never ended."""
        mine = int(self.of[rank])
        return len(self.done[mine]) < self.plans[mine].limit

    def waits_in(self, rank: int) -> Op | None:
        """The call that never ended and that the rank's GPU stands in; None where it waits for none."""
        mine = int(self.of[rank])
        return self.plans[mine].program.ops[len(self.done[mine])] if self.is_waiting(rank) else None

    def blocks_in(self, rank: int) -> Op | None:
        """The call that the rank's CPU stands in: with NCCL often a later one, as calls return before they end."""
        mine = int(self.of[rank])
        if not self.is_waiting(rank):
            return None
        made = enqueued(self.plans[mine], len(self.done[mine]), blocking=self.job.backend == "gloo")
        return self.plans[mine].program.ops[made - 1]

    @cached_property
    def span_ns(self) -> int:
        """From the first call to the last end of one, in played time."""
        return max((mine[-1] for mine in self.done if mine), default=START_NS) - START_NS


def played(job: Job, faults: Sequence[Fault]) -> Played:
    """Play a job with these faults. Raises ValueError where a rank is to stop that by then waits for another one."""
    axes = _alike(job, faults)
    small = replace(
        job, tp=len(axes["tp"].shown), cp=len(axes["cp"].shown), ep=len(axes["ep"].shown),
        dp=len(axes["ep"].shown) * len(axes["dp"].shown), order="tp-cp-dp-pp",
    )  # fmt: skip
    shown = _shown(job, small, axes)
    told = [replace(fault, ranks=tuple(np.flatnonzero(np.isin(shown, fault.ranks)).tolist())) for fault in faults]
    plans, truth, stuck = plan(small, told)
    done = play(plans, stuck, blocking=job.backend == "gloo")
    if any(len(done[rank]) < plans[rank].limit for f in told if f.kind in ("stop", "no_dump") for rank in f.ranks):
        raise ValueError("a rank that was to stop already waits for another one: choose its call or the other fault anew")
    return Played(job, _classes(job, small, axes), tuple(plans), tuple(done), truth)


class _Alike(NamedTuple):
    """Along an axis: a place of each kind that is played, and the kind of every place."""

    shown: list[int]
    of: np.ndarray


def _alike(job: Job, faults: Sequence[Fault]) -> dict[str, _Alike]:
    """What looks alike along each axis: no fault tells such places apart. dp counts blocks of ep ranks; a group of several stays one of two."""
    marks = np.zeros(job.world_size, dtype=np.int64)
    for number, fault in enumerate(faults):
        marks[list(fault.ranks)] += 1 << number
    shape = (job.tp, job.cp, job.dp // job.ep, job.ep, job.pp)
    marked = marks[job.grid].reshape(shape)
    found = {}
    for place, axis in enumerate(("tp", "cp", "dp", "ep")):
        slices = np.moveaxis(marked, place, 0).reshape(shape[place], -1)
        _, first, of = np.unique(slices, axis=0, return_index=True, return_inverse=True)
        shown = first.tolist()
        found[axis] = _Alike(shown * 2 if len(shown) == 1 and shape[place] > 1 else shown, of.reshape(-1))
    return found


def _shown(job: Job, small: Job, axes: Mapping[str, _Alike]) -> np.ndarray:
    """Per rank of the small job the rank of the large one that it plays."""
    t, c, d, p = small.places.T
    big_d = np.array(axes["ep"].shown)[d % small.ep] + job.ep * np.array(axes["dp"].shown)[d // small.ep]
    shown: np.ndarray = job.grid[np.array(axes["tp"].shown)[t], np.array(axes["cp"].shown)[c], big_d, p]
    return shown


def _classes(job: Job, small: Job, axes: Mapping[str, _Alike]) -> np.ndarray:
    """Per rank of the large job the rank of the small one that stands for it."""
    t, c, d, p = job.places.T
    small_d = axes["ep"].of[d % job.ep] + small.ep * axes["dp"].of[d // job.ep]
    classes: np.ndarray = small.grid[axes["tp"].of[t], axes["cp"].of[c], small_d, p]
    return classes
