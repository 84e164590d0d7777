"""Finished parts of a case beside it: what was read of a batch of files, under their names, sizes, times and bytes, by the readers of this version.

A build that was killed leaves the batches that were finished, and the next one goes on from there; one of files that were added reads only these.
A folder bears its final name only when all of it is written.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rca import __version__, catalogues
from rca.errors import UnwritableCase
from rca.parts import PartFile, Parts
from rca.reading import Reading
from rca.sources import PARTS
from rca.types import Skip, Source

__all__ = ["Finished", "Store", "parts_folder"]

MANIFEST = "files.json"
UNFINISHED = ".unfinished-"
CODE = (
    "collectors",
    "rca/tables",
    "rca/catalogue",
    "rca/reading.py",
    "rca/parts.py",
    "rca/types.py",
    "rca/host_names.py",
    "rca/line_adapters.py",
)


def parts_folder(case: Path) -> Path:
    """The folder of the parts of a case file."""
    return case.with_name(f"{case.name}{PARTS}")


@dataclass(frozen=True)
class Finished:
    """A batch of files that was read."""

    folder: Path
    readings: tuple[Reading, ...]  # with sources as they were
    tables: Mapping[str, tuple[PartFile, ...]]


class Store:
    """The folder of finished parts of one case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.used: list[Path] = []  # batches that the present build is made of
        self._seen: set[Path] = set()  # that were there when it began

    def finished(self) -> list[Finished]:
        """Batches that this version read. Raises nothing: one that cannot be used is as good as none."""
        folders = sorted(path for path in self.folder.iterdir() if path.is_dir()) if self.folder.is_dir() else []
        folders = [folder for folder in folders if not folder.name.startswith(".")]  # another build may be writing those
        self._seen.update(folders)
        return [found for folder in folders if (found := _loaded(folder)) is not None]

    def write(self, readings: Sequence[Reading], parts: Parts) -> Finished:
        """Give what was read its place. `parts` lies in a folder that `room` gave."""
        parts.flush()
        room = next(file.path.parent for files in parts.files.values() for file in files) if any(parts.files.values()) else self.room()
        room.mkdir(parents=True, exist_ok=True)
        tables = {
            name: [[file.path.name, file.path.stat().st_size, file.num_rows] for file in files]
            for name, files in parts.files.items()
            if files
        }
        told = {"version": _version(), "files": [_told(reading) for reading in readings], "tables": tables}
        (room / MANIFEST).write_text(json.dumps(told))
        final = self.folder / hashlib.sha256(json.dumps([_key(reading.source) for reading in readings]).encode()).hexdigest()[:16]
        found = _loaded(final)
        if found is not None:  # another build of the same files was first
            shutil.rmtree(room, ignore_errors=True)
            return found
        shutil.rmtree(final, ignore_errors=True)  # of another version
        room.rename(final)
        found = _loaded(final)
        if found is None:
            raise UnwritableCase(str(final), "what was just written cannot be read back")
        return found

    def room(self) -> Path:
        """A new folder, not yet there, for a batch that is being read."""
        return self.folder / f"{UNFINISHED}{os.getpid()}-{secrets.token_hex(8)}"

    def drop_unused(self) -> None:
        """Remove batches that were there when this build began and that it did not need: of files that are gone or changed, or of another version."""
        for path in self._seen - set(self.used):
            shutil.rmtree(path, ignore_errors=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def clear_unfinished(self) -> None:
        """Remove what a killed build was writing."""
        for path in self.folder.glob(f"{UNFINISHED}*"):
            number = path.name.removeprefix(UNFINISHED).partition("-")[0]
            if number.isdigit() and not Path(f"/proc/{number}").exists():
                shutil.rmtree(path, ignore_errors=True)


@lru_cache(maxsize=1)
def _version() -> str:
    """Another one when any reader, table or rule of the site changes."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256(f"{__version__} {catalogues.site_fingerprint()}".encode())
    for name in CODE:
        place = root / name
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.suffix in (".py", ".csv"):
                digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _key(source: Source) -> list[Any]:
    """What must be the same for the rows of a file to be."""
    return [
        source.path,
        source.size_bytes,
        source.modified_at.isoformat() if source.modified_at else None,
        source.bytes_id,
        source.evidence_id,
    ]


def _told(reading: Reading) -> dict[str, Any]:
    source = reading.source
    return {
        "key": _key(source),
        "sha256": source.__dict__.get("sha256"),
        "is_known_by_ends": source.is_known_by_ends,
        "collectors": reading.collectors,
        "num_rows": reading.num_rows,
        "skips": [[skip.record, skip.why] for skip in reading.skips],
        "num_skipped": reading.num_skipped,
        "problem": reading.problem,
        "guess": reading.guess,
        "is_unique": reading.is_unique,
    }


def _loaded(folder: Path) -> Finished | None:
    """A batch from its folder; None where it is of another version, or not whole."""
    try:
        told = json.loads((folder / MANIFEST).read_text())
        if told["version"] != _version():
            return None
        tables: dict[str, tuple[PartFile, ...]] = {}
        for name, files in told["tables"].items():
            tables[name] = tuple(PartFile(folder / Path(file).name, int(num_rows)) for file, _, num_rows in files)
            if any((folder / Path(file).name).stat().st_size != size for file, size, _ in files):
                return None
        return Finished(folder, tuple(_reading(one) for one in told["files"]), tables)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _reading(told: Mapping[str, Any]) -> Reading:
    from datetime import datetime

    path, size, modified, bytes_id, evidence_id = told["key"]
    source = Source(path, Path(path), size, modified_at=datetime.fromisoformat(modified) if modified else None)
    source.__dict__.update(bytes_id=bytes_id, evidence_id=evidence_id, is_known_by_ends=told["is_known_by_ends"])
    if told["sha256"]:
        source.__dict__["sha256"] = told["sha256"]
    return Reading(
        source, list(told["collectors"]), told["num_rows"], [Skip(record, why) for record, why in told["skips"]], told["num_skipped"],
        told["problem"], told["guess"], is_unique=told["is_unique"],
    )  # fmt: skip
