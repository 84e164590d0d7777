"""The records of a fleet on disk: one JSON file for each incident and each launch, written whole or not at all, read back through the readers."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from apps.document import to_json
from rca.errors import EvidenceError, UsageError
from rca.files import is_plain, plain_bytes, put
from rca.incidents.incident import RECURS_WITHIN
from rca.incidents.records import attempt_path, incident_path, week_of
from rca.sources import WORKSPACE

__all__ = ["earlier", "free_attempt", "locked", "prepare", "stored", "stored_attempt", "write_attempt", "write_incident"]


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
            if not is_plain(file):
                continue
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
    """The record of the launch of that number of the job, if one lies in the fleet, in whatever week."""
    return next((found for file in _attempts(fleet, record) if (found := _object(file)) is not None), None)


def _attempts(fleet: Path, record: Mapping[str, Any]) -> Sequence[Path]:
    return sorted(fleet.glob(f"attempts/*/{Path(attempt_path(record)).name}"))


def free_attempt(fleet: Path, record: Mapping[str, Any]) -> int:
    """The first number above this launch's that no recorded launch of the job has."""
    number = int(record["attempt"]) + 1
    while _attempts(fleet, {**record, "attempt": number}):
        number += 1
    return number


def _object(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(plain_bytes(file))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def write_incident(fleet: Path, record: Mapping[str, Any]) -> Path:
    """Put the record of an incident in its place, and take away what lies of it elsewhere (another week, from an earlier closing)."""
    older: Sequence[Path] = [file for file, _ in stored(fleet, record["incident_id"])]
    return _only(_put(fleet / incident_path(record), record), older)


def write_attempt(fleet: Path, record: Mapping[str, Any]) -> Path:
    """Put the record of a launch in its place, and take away what lies of it elsewhere (evidence added since tells an earlier start)."""
    return _only(_put(fleet / attempt_path(record), record), _attempts(fleet, record))


def _only(target: Path, files: Sequence[Path]) -> Path:
    for file in files:
        if file != target:
            file.unlink(missing_ok=True)
    return target


@contextmanager
def locked(fleet: Path) -> Iterator[None]:
    """Until the end no other closing writes into this fleet. The lock goes with the process that holds it."""
    file = fleet / f".{WORKSPACE}lock"
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(file, flags, 0o644)
    except OSError as error:
        raise UsageError(f"{file}: the fleet cannot be locked ({error.strerror or error})") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            raise UsageError(f"{file}: the fleet cannot be locked ({error.strerror or error})") from None
        yield
    finally:
        os.close(handle)  # gives the lock back


def _put(target: Path, record: Mapping[str, Any]) -> Path:
    return put(target, to_json(record) + "\n", else_="The record is not in the fleet; its notes are kept: close again.")
