"""Writes a scene down: as real files, or at once as the declared tables that reading those files would give."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from rca.drills._synthetic_job import groups_of
from rca.drills.simulated._copies import Copies
from rca.drills.simulated._rank_files import rank_files, stack_index
from rca.drills.simulated._scene import Scene
from rca.drills.simulated._text import number_frames, text_files, written_numbers
from rca.drills.simulated._timings import timing_files, timing_frames
from rca.linking import frames_of, link, read_all
from rca.parts import Parts
from rca.sources import inventory

__all__ = ["frames", "write"]


def write(scene: Scene, folder: Path) -> None:
    """All files of the scene, and truth.json beside them, below `folder` (made where it is not there)."""
    for files in rank_files(scene):
        for rank in files.ranks:
            _put(folder, files.path(rank), files.content(rank))
    for path, content in _other_files(scene):
        _put(folder, path, content)
    for path, lines in (*written_numbers(scene).items(), *timing_files(scene)):
        _put(folder, path, _text(lines))
    _put(folder, "truth.json", json.dumps(scene.truth, indent=1).encode() + b"\n")


def frames(scene: Scene) -> dict[str, pl.DataFrame]:
    """table -> rows, as `write` and a case built of it would give; where ranks leave files that say the same, one of them is read and copied."""
    with tempfile.TemporaryDirectory() as name:
        folder, copies = Path(name), Copies(scene)
        for files in rank_files(scene):
            first = files.ranks[0]
            _put(folder / "evidence", files.path(first), files.content(first))
            copies.add(files)
        for path, content in _other_files(scene):
            _put(folder / "evidence", path, content)
        (folder / "evidence").mkdir(exist_ok=True)
        parts = Parts(folder / "parts")
        read = read_all(inventory(folder / "evidence", folder / "spool"), parts)
        timed = [rows for direct in (number_frames(scene), timing_frames(scene)) for rows in direct.items()]
        for table, rows in timed:  # which logs are of this launch is told by its timings too
            parts.add(table, rows.filter(pl.col("rank") == pl.col("rank").min()))
        found = frames_of(parts, link(parts, read.readings))
    found = copies.spread(found)
    for table, rows in timed:
        known = found[table].filter(~pl.col("evidence_id").is_in(rows["evidence_id"].unique().implode()))
        found[table] = pl.concat([known, rows])
    return found


def _put(folder: Path, path: str, content: bytes) -> None:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


def _other_files(scene: Scene) -> Iterator[tuple[str, bytes]]:
    """The files that are not each rank's own."""
    if (index := stack_index(scene)) is not None:
        yield "stacks/index.json", index
    if scene.style.has_map:
        yield "topology.json", json.dumps(rank_map(scene)).encode()
    for path, lines in (text_files(scene) | scene.logs).items():
        yield path, _text(lines)
    for host, lines in scene.kernel.items():
        yield f"kernel/{host}.dmesg.log", _text(lines)
    yield from scene.files.items()


def _text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def rank_map(scene: Scene) -> dict[str, Any]:
    """The document of a launcher: ranks with their places, and process groups."""
    groups = {group.number: group for mine in groups_of(scene.job) for group in mine.values()}
    return {
        "world_size": scene.world.world_size,
        "order": scene.world.order,
        "ranks": scene.world.map().to_dicts(),
        "groups": [
            {"name": str(number), "kind": group.axis, "desc": group.desc, "ranks": list(group.members)}
            for number, group in sorted(groups.items())
        ],
    }
