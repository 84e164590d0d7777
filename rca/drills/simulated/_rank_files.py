"""The files that every rank leaves: recorder and stack dumps. Ranks whose files say the same but for rank, clock and process share one entry."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rca.drills._synthetic import dump_of, stored
from rca.drills.simulated._frameworks import collective, stand
from rca.drills.simulated._scene import Scene
from rca.drills.simulated._stacks import ProcessStack, Thread, json_of, text_of

__all__ = ["RankFiles", "late_ns", "rank_files", "stack_index"]

_STANDS = ("forward", "backward", "optimizer", "data", "forward", "backward")  # of a job that trains, about as often as samples meet it


@dataclass(frozen=True)
class RankFiles:
    """A file of each of these ranks; all say the same."""

    ranks: list[int]
    path: Callable[[int], str]
    content: Callable[[int], bytes]


def rank_files(scene: Scene) -> Iterator[RankFiles]:
    """All of them."""
    if scene.recorder.is_there:
        yield from _dumps(scene)
    if scene.stacks.is_there:
        for sample in range(scene.stacks.samples):
            yield from _stacks(scene, sample)


def late_ns(scene: Scene, rank: int) -> int:
    """How far the stamps of a rank's recorder lie behind those of its class: the clock of its host, and a watchdog that looks now and then."""
    return round(scene.skew(rank) * 1e6) * 1000 + (rank * 7919) % 500 * 1000


def _dumps(scene: Scene) -> Iterator[RankFiles]:
    evidence, play, settings = scene.recorder, scene.play, scene.settings()
    alike: dict[Any, list[int]] = defaultdict(list)
    for rank in range(scene.world.world_size):
        if rank not in evidence.missing and not play.leaves_no_dump(rank):
            alike[("own", rank) if rank in evidence.edits else int(play.of[rank])].append(rank)

    def content(rank: int) -> bytes:
        dump = dump_of(scene.job, settings, rank, play.plan(rank), play.done[play.of[rank]], late_ns=late_ns(scene, rank))
        edit = evidence.edits.get(rank)
        return stored(edit(dump) if edit else dump, settings)

    def path(rank: int) -> str:
        return f"{_folder(scene, rank, 'fr')}/{settings.name.format(rank=rank, host=scene.world.host_of(rank))}"

    for ranks in alike.values():
        yield RankFiles(ranks, path, content)


def _folder(scene: Scene, rank: int, kind: str) -> str:
    return kind if scene.style.folders == "by_kind" else f"{scene.world.host_of(rank)}/{kind}"


def _stacks(scene: Scene, sample: int) -> Iterator[RankFiles]:
    evidence = scene.stacks
    alike: dict[Any, list[int]] = defaultdict(list)
    for rank in range(scene.world.world_size):
        if rank not in evidence.missing:
            alike[("own", rank) if rank in evidence.instead else _shown(scene, rank, sample)].append(rank)
    suffix = "json" if evidence.format == "json" else "txt"
    for ranks in alike.values():
        for place, process in enumerate(_processes(scene, ranks[0], sample)):
            if process.failed and evidence.has_index:
                continue  # the index tells of it
            yield RankFiles(
                ranks,
                lambda rank, role=process.role: f"{_folder(scene, rank, 'stacks')}/round_{sample}/rank_{rank}.{role}.{suffix}",  # type: ignore[misc]
                lambda rank, place=place: _stack_text(scene, _processes(scene, rank, sample)[place], scene.pid(rank) + 1000 * place),  # type: ignore[misc]
            )


def _shown(scene: Scene, rank: int, sample: int) -> Any:
    """What tells the default stacks of two ranks apart."""
    if scene.play.is_waiting(rank):
        return int(scene.play.of[rank])
    return "runs", _STANDS[(rank * 31 + sample * 17 + scene.seed) % len(_STANDS)]


def _processes(scene: Scene, rank: int, sample: int) -> tuple[ProcessStack, ...]:
    """What the processes of a rank show: what the kind says, else what the play implies."""
    instead = scene.stacks.instead.get(rank)
    if instead is not None:
        return instead(sample)
    framework = scene.style.framework
    op = scene.play.blocks_in(rank)
    if op is None:
        where = _shown(scene, rank, sample)[1]
        return (ProcessStack((Thread(stand(framework, where), is_active=where != "data"),)),)
    frames = collective(framework, op.axis, op.name.split(" ")[0], is_backward=12 <= op.stack < 20, blocks=scene.job.backend == "gloo")
    return (ProcessStack((Thread(frames, is_active=scene.job.backend != "gloo"),)),)


def _stack_text(scene: Scene, process: ProcessStack, pid: int) -> bytes:
    if scene.stacks.format == "json" and not process.failed:
        return json_of(process, pid).encode()
    return text_of(process, pid, scene.style.python).encode()


def stack_index(scene: Scene) -> bytes | None:
    """The index of the capture, where it wrote one: a row per process and sample, failures included."""
    evidence = scene.stacks
    if not (evidence.is_there and evidence.has_index):
        return None
    rows = []
    for sample in range(evidence.samples):
        at_ns = int((scene.looked_at.timestamp() + sample * evidence.gap_s) * 1e9)
        for rank in range(scene.world.world_size):
            if rank in evidence.missing:
                continue
            for place, process in enumerate(_processes(scene, rank, sample)):
                rows.append(
                    {
                        "round": sample,
                        "rank": rank,
                        "host": scene.world.host_of(rank),
                        "role": process.role,
                        "pid": scene.pid(rank) + 1000 * place,
                        "t_ns": at_ns + rank * 2_000_000 + round(scene.skew(rank) * 1e9),
                        "format": "json" if evidence.format == "json" else "txt",
                        "rc": 1 if process.failed else 0,
                        "err": process.failed,
                    }
                )
    return json.dumps(rows, indent=1).encode()
