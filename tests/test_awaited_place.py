"""The rank that all wait for, seen once: its place tells why, where the places of the others tell nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rca.analyses._awaited_place import awaited_place
from rca.analyses._stack_views import View
from rca.types import Finding

ROOT = ("train (train.py)", "main (train.py)")
VIEW = View(
    0, 0, None, None, ("norm (clip.py)", *ROOT), "x", "clip:norm", ("norm (clip.py)",), "other", "unknown", "1", None, None, "ok", "e", "L1"
)  # fmt: skip
ACCUSED = Finding("first_silent_rank", "never_joined", "never came", ranks=(2,))
LOOP = tuple(reversed(ROOT))


def views(**own: object) -> dict[int, list[View]]:
    """Four ranks: rank 2 apart, the others at one line of their own."""
    apart = replace(VIEW, rank=2, leaf="pool:borrow", **{"frames": ("borrow (pool.py)", *ROOT), "stack_id": "own", **own})  # type: ignore[arg-type]
    return {rank: [apart if rank == 2 else replace(VIEW, rank=rank)] for rank in range(4)}


@pytest.mark.parametrize(
    ("own", "sign"),
    [
        ({}, "awaited_in_code"),
        ({"activity": "dataloader"}, "awaited_in_loader"),
        ({"activity": "checkpoint"}, "awaited_in_saver"),
        ({"wait_kind": "io"}, "awaited_in_io"),
        ({"wait_kind": "collective"}, None),  # it waits too
        ({"wait_kind": "cuda_sync"}, None),  # for its device, which may wait for others
        ({"stack_id": "x"}, None),  # where all others are
    ],
)
def test_its_place_tells_why(own: dict[str, object], sign: str | None) -> None:
    assert [f.sign for f in awaited_place([ACCUSED], views(**own), LOOP)] == ([sign] if sign else [])


def test_nothing_is_said_of_several_or_where_the_others_name_their_wait() -> None:
    assert awaited_place([replace(ACCUSED, ranks=(2, 3))], views(), LOOP) == []
    assert awaited_place([replace(ACCUSED, sign="tie", ranks=())], views(), LOOP) == []
    told = {rank: [replace(v, wait_kind="collective") if rank != 2 else v for v in each] for rank, each in views().items()}
    assert awaited_place([ACCUSED], told, LOOP) == []


@pytest.mark.parametrize(
    ("outer", "sign"), [(("train (train.py)", "run (train.py)", "main (train.py)"), "awaited_in_saver"), (("main (train.py)",), None)]
)
def test_what_is_called_beside_the_step_is_in_the_loop_too(outer: tuple[str, ...], sign: str | None) -> None:
    step = ("main (train.py)", "run (train.py)", "train (train.py)", "step (train.py)")  # where most calls are made
    others = {
        rank: [replace(v, frames=("norm (clip.py)", *reversed(step))) for v in each]
        for rank, each in views(frames=("write (save.py)", *outer), activity="checkpoint").items()
        if rank != 2
    }
    told = others | {2: views(frames=("write (save.py)", *outer), activity="checkpoint")[2]}
    assert [f.sign for f in awaited_place([ACCUSED], told, step)] == ([sign] if sign else [])
