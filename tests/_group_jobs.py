"""Jobs with a layout, and what a hang of one rank leaves in the stacks of all: for the tests of outlier groups.

A hang spreads as waits do: the tensor-parallel peers of the hung rank wait for it in their call, the other stages of its copy of the model wait
for a transfer, and every other copy waits in the gradient sync, for the copy that does not come.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import polars as pl

from rca.case import MemoryCase
from rca.tables import TABLES

AXES = ("tp", "cp", "pp", "dp")
ORDERS = {"tp-pp-dp": ("tp", "cp", "pp", "dp"), "tp-dp-pp": ("tp", "cp", "dp", "pp")}  # fastest first; the second is Megatron's default
WRAPPER = ("train:train_step", "train:main", "train:<module>")
PLACES: dict[str, tuple[tuple[str, ...], str, str]] = {  # name -> (frames, innermost first; activity; wait kind)
    "grad_sync": (("torch/distributed/distributed_c10d:all_reduce", "train:sync"), "train_step", "collective"),
    "all_gather": (("torch/distributed/distributed_c10d:all_gather_into_tensor", "layers:forward"), "train_step", "collective"),
    "isend": (("torch/distributed/distributed_c10d:isend", "pipe:send_forward"), "train_step", "p2p"),
    "irecv": (("torch/distributed/distributed_c10d:irecv", "pipe:recv_backward"), "train_step", "p2p"),
    "broadcast": (("torch/distributed/distributed_c10d:broadcast", "data:broadcast_data"), "train_step", "collective"),
    "loader": (("threading:wait", "queue:get", "torch/utils/data/dataloader:_get_data", "data:_next_batch"), "dataloader", "queue"),
    "code": (("metrics:update", "train:log"), "train_step", "unknown"),
    "compute": (("torch/nn/functional:linear", "layers:forward"), "train_step", "none"),
    "device": (("torch/cuda/__init__:synchronize", "train:step_end"), "train_step", "cuda_sync"),
}


@dataclass(frozen=True)
class Job:
    """Ranks on hosts, placed by an order of axes (fastest first)."""

    sizes: Mapping[str, int]
    order: Sequence[str] = ORDERS["tp-pp-dp"]
    per_host: int = 8
    at: list[dict[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        axes = list(reversed(self.order))
        places = product(*(range(self.sizes.get(axis, 1)) for axis in axes))
        object.__setattr__(self, "at", [dict(zip(axes, place, strict=True)) for place in places])

    @property
    def size(self) -> int:
        return len(self.at)

    def host(self, rank: int) -> str:
        return f"m{rank // self.per_host}"

    def groups(self, axes: Sequence[str]) -> list[list[int]]:
        """Ranks that differ along these axes only."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, at in enumerate(self.at):
            found.setdefault(tuple(v for axis, v in at.items() if axis not in axes), []).append(rank)
        return sorted(found.values())


def tables(job: Job, samples: Sequence[Mapping[int, str]], *, told: str = "coordinates", hosts: bool = True) -> MemoryCase:
    """A case of the places of ranks in each sample. `told`: coordinates, groups or nothing of the layout."""
    rows = [
        {
            "evidence_id": f"e{n}", "record": f"E{rank}", "rank": rank, "host": job.host(rank) if hosts else None, "pid": 1000 + rank,
            "role": "trainer", "thread_name": "MainThread", "is_active": False, "sample": n, "lines": "1,2,3", "stack_id": place,
            "dump_status": "ok", "format": "py_spy_json",
        }
        for n, sample in enumerate(samples)
        for rank, place in sample.items()
    ]  # fmt: skip
    frames = [
        {
            "evidence_id": "f",
            "record": name,
            "stack_id": name,
            "frames": [*own, *WRAPPER],
            "leaf": own[0],
            "activity": activity,
            "wait_kind": wait,
        }
        for name, (own, activity, wait) in PLACES.items()
    ]
    ranks = [
        {"evidence_id": "map", "record": f"E{rank}", "rank": rank, "host": job.host(rank) if hosts else None}
        | {axis: at.get(axis) for axis in AXES if told == "coordinates"}
        for rank, at in enumerate(job.at)
    ]
    groups, memberships = [], []
    for axis in AXES if told == "groups" else ():
        for number, members in enumerate(job.groups([axis])):
            if len(members) > 1:
                name = f"{axis}:{number:08x}"
                groups.append({"evidence_id": "g", "record": name, "group_id": name, "kind": axis, "size": len(members)})
                memberships += [{"evidence_id": "g", "record": name, "group_id": name, "rank": rank} for rank in members]
    found = {"stacks": rows, "stack_frames": frames, "ranks": ranks, "groups": groups, "memberships": memberships}
    return MemoryCase({name: _frame(name, of) for name, of in found.items()})


def _frame(name: str, rows: Sequence[Mapping[str, object]]) -> pl.DataFrame:
    schema = TABLES[name].schema
    return pl.DataFrame([{column: row.get(column) for column in schema} for row in rows], schema=schema, orient="row")


def hung(job: Job, culprit: int, *, place: str = "code", shows: bool = True) -> dict[int, str]:
    """Where each rank stands when one hangs. `shows`: its own stack tells; else it stands in its tensor group's call, as a GPU that hangs does."""
    own = job.at[culprit]
    found = {}
    for rank, at in enumerate(job.at):
        if rank == culprit and shows:
            found[rank] = place
        elif at["dp"] != own["dp"]:
            found[rank] = "grad_sync"
        elif at["pp"] != own["pp"]:
            found[rank] = "isend" if at["pp"] == own["pp"] - 1 else "irecv"
        else:
            found[rank] = "broadcast" if place == "loader" else "all_gather"
    return found


def lost(places: Mapping[int, str], share: float, rng: random.Random, keeping: Collection[int] = ()) -> dict[int, str]:
    """Without the dumps of a share of the ranks; `keeping` lose none."""
    return {rank: place for rank, place in places.items() if rank in keeping or rng.random() >= share}


def jittered(
    places: Mapping[int, str],
    share: float,
    rng: random.Random,
    choose: Callable[[random.Random], str] = lambda r: r.choice(["compute", "device"]),
) -> dict[int, str]:
    """A share of the ranks caught elsewhere in a sample."""
    return {rank: choose(rng) if rng.random() < share else place for rank, place in places.items()}
