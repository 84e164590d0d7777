"""The records of a fleet on disk: one JSON file for each incident and each launch, written whole or not at all, read back through the readers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from apps.document import to_json
from rca.errors import EvidenceError, UsageError
from rca.incidents.incident import RECURS_WITHIN
from rca.incidents.records import attempt_path, incident_path, week_of
from rca.sources import WORKSPACE

__all__ = ["earlier", "prepare", "stored", "stored_attempt", "write_attempt", "write_incident"]


def prepare(fleet: Path) -> None:
    """Make sure that the fleet takes records, before anything is closed."""
    try:
        for name in ("incidents", "attempts"):
            (fleet / name).mkdir(parents=True, exist_ok=True)
        probe = fleet / f".{WORKSPACE}{uuid4().hex}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"{fleet}: the fleet takes no records ({error.strerror or error}). Name a folder that can be written with --fleet or RCA_FLEET."
        ) from None


def earlier(fleet: Path, began_at: datetime) -> list[dict[str, Any]]:
    """Rows of `incidents` of the weeks in which an incident may lie that one beginning then repeats."""
    weeks = sorted({week_of(began_at - timedelta(days=back)) for back in range(RECURS_WITHIN.days + 1)})
    return [row for week in weeks for row in _incidents(fleet / "incidents" / week)]


def _incidents(folder: Path) -> Iterator[dict[str, Any]]:
    from rca import plugins
    from rca.types import Skip, Source

    collector = plugins.load("collectors", "incident_record")
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            source = Source(file.name, file, file.stat().st_size)
            for item in collector.read(source) if collector.claims(file.name, source.head) else ():
                if not isinstance(item, Skip) and item[0].name == "incidents":
                    yield from (row for row in item[1].iter_rows(named=True) if row["began_at"] or row["opened_at"])
        except (EvidenceError, OSError):
            continue  # damaged, or moved meanwhile: `rca inspect` on the fleet names it


def stored(fleet: Path, incident_id: str) -> list[tuple[Path, dict[str, Any]]]:
    """Records of this incident that lie in the fleet, with their files: one, or several if its week changed while somebody was stopped."""
    return [(file, found) for file in sorted(fleet.glob(f"incidents/*/{incident_id}.json")) if (found := _object(file)) is not None]


def stored_attempt(fleet: Path, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of the same launch, if one lies in the fleet."""
    return _object(fleet / attempt_path(record))


def _object(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def write_incident(fleet: Path, record: Mapping[str, Any]) -> Path:
    """Put the record of an incident in its place, and take away what lies of it elsewhere (another week, from an earlier closing)."""
    older: Sequence[Path] = [file for file, _ in stored(fleet, record["incident_id"])]
    target = _put(fleet / incident_path(record), record)
    for file in older:
        if file != target:
            file.unlink(missing_ok=True)
    return target


def write_attempt(fleet: Path, record: Mapping[str, Any]) -> Path:
    """Put the record of a launch in its place."""
    return _put(fleet / attempt_path(record), record)


def _put(target: Path, record: Mapping[str, Any]) -> Path:
    """Write beside, flush to the disk, move in: whoever reads meanwhile sees the old record or the new one."""
    draft = target.with_name(f".{target.name}{WORKSPACE}{uuid4().hex}")  # left behind by a kill, it is no evidence
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("w", encoding="utf-8") as file:
            file.write(to_json(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise UsageError(f"{target}: the record cannot be written ({error.strerror or error}). Its notes are kept: close again.") from None
    return target
