"""Evidence as it is found when nobody had prepared for the day: of every source all, a part, or nothing.

Unlike a confusion it may take away what tells. Where an answer is given all the same, it has to be as sure as what is left allows: that is what
stated probabilities are measured on, since of whole evidence hardly an answer is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from rca.drills.simulated._run import Run

if TYPE_CHECKING:
    from rca.drills.simulated._scene import Scene

__all__ = ["thin"]

GONE, PART = 0.3, 0.3  # how often a source is not there at all, and there in part
SHARES: Final = (0.2, 0.9)  # of its files that are there then
FILE_GONE: Final = 0.4  # how often each file of the cluster's services is not there

Item = TypeVar("Item", int, str)


def thin(scene: Scene) -> None:
    """Take evidence of a scene away, each source by a draw of its own; ranks, hosts and files alike, whether they tell or not."""
    rng, world = scene.topic("thinned"), scene.world
    ranks, hosts = range(world.world_size), world.host_names()
    for source in (scene.recorder, scene.stacks):
        if source.is_there:
            lost = _lost(rng, ranks)
            source.missing |= lost
            source.is_there = len(lost) < world.world_size
    if isinstance(run := scene.notes.get("run"), Run):
        _thin_texts(run, rng, ranks, hosts)
    if scene.steps is not None and rng.random() < GONE:
        scene.steps = None
    for path in sorted(scene.files):
        if rng.random() < FILE_GONE:
            del scene.files[path]
    if rng.random() < GONE:
        scene.style = replace(scene.style, has_map=False)


def _thin_texts(run: Run, rng: random.Random, ranks: range, hosts: list[str]) -> None:
    """Logs go as their files do: of a rank, of a host, or all in one."""
    book = run.book
    if book.filing == "hosts":
        gone = _lost(rng, hosts)
        book.lost |= {rank for rank in ranks if run.host(rank) in gone}
    elif book.filing == "ranks":
        book.lost |= _lost(rng, ranks)
    elif rng.random() < GONE:
        book.lost |= set(ranks)
    book.lost_hosts |= _lost(rng, hosts)
    if rng.random() < GONE:
        book.jobs.clear()
    run.kernel_lost |= _lost(rng, hosts)
    truth = run.scene.truth
    if "host_out_of_memory" in truth["cause"] and not all(run.shows(host) for host in truth["hosts"]):
        truth["cause"] = list(dict.fromkeys((*truth["cause"], "process_killed")))  # only the kernel's log says that memory was why


def _lost(rng: random.Random, items: Collection[Item]) -> set[Item]:
    """Which of them are not there."""
    drawn = rng.random()
    if drawn < GONE:
        return set(items)
    if drawn < GONE + PART:
        share = rng.uniform(*SHARES)
        return {item for item in items if rng.random() >= share}
    return set()
