"""Notes on the incidents of a piece of evidence, on disk: JSON lines in `notes/` beside it, only ever appended.

Evidence that must stay as it is (a read-only folder, an archive, a single file) has its notes in the user's data folder instead. A line is
written at once, under a lock, behind a whole line: two writers do not mix, and what a killed one left torn stays a line of its own, which the
reader skips. Evidence comes from elsewhere, so a link or a device in place of the notes is not followed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from apps.places import is_writable, notes_folders
from apps.remote import is_remote
from rca.errors import EvidenceError, UsageError
from rca.files import MAX_BYTES, is_plain
from rca.incidents.incident import merged
from rca.incidents.records import NOTE, is_id, iso

__all__ = ["MAX_LINE_BYTES", "MAX_TEXT", "AlreadyOpen", "Note", "Notebook", "append_line", "notebook"]

Note = dict[str, Any]
MAX_TEXT = 65536  # characters of a note: a page, not a log
MAX_LINE_BYTES = 1 << 19  # half of what the reader takes as one line


class AlreadyOpen(UsageError):
    """The incident is open already."""


@dataclass(frozen=True)
class Notebook:
    """The notes on one piece of evidence."""

    folders: tuple[Path, ...]  # that are read
    folder: Path  # that takes new notes
    is_beside: bool  # it lies beside the evidence
    notes: Mapping[str, Sequence[Note]]  # incident -> its notes, in the order in which they were written
    skipped: Sequence[str]  # what could not be read, in words

    def file(self, incident_id: str) -> Path:
        """Where the notes of an incident are written."""
        return self.folder / f"{incident_id}.jsonl"

    def append(self, note: Mapping[str, Any]) -> Path:
        """Write one note. An `open` note is refused with AlreadyOpen where one of the same incident was written meanwhile."""
        line = json.dumps(note).encode("ascii") + b"\n"
        if len(str(note["text"])) > MAX_TEXT or len(line) > MAX_LINE_BYTES:
            raise UsageError(
                f"that is too long for a note (more than {MAX_TEXT:,} characters): put it into the folder as a file and name it"
            )
        file = self.file(note["incident_id"])

        def check() -> None:
            if note["kind"] == "open" and any(one["kind"] == "open" for one in _read(file)[0]):
                raise AlreadyOpen(f"{note['incident_id']} is open already: {file}")

        append_line(file, line, check)
        return file


def append_line(file: Path, line: bytes, check: Callable[[], None] = lambda: None) -> None:
    """Write a line (with its end) behind what a file holds, at once and under a lock; `check` may refuse once the lock is held. Raises UsageError
    where it cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _locked(file) as handle:
            size = os.fstat(handle).st_size
            check()
            is_torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            _write(handle, b"\n" + line if is_torn else line, size)
    except OSError as error:
        raise UsageError(f"{file}: the note cannot be written ({error.strerror or error})") from None


def notebook(evidence: Path) -> Notebook:
    """The notes on this evidence, wherever they lie."""
    if not is_remote(str(evidence)) and not evidence.exists():
        raise UsageError(f"{evidence}: no such file or folder. Name the folder (or archive) with the evidence of the incident.")
    beside, aside = notes_folders(evidence)
    is_beside = evidence.is_dir() and (is_writable(beside) if _is_folder(beside) else not _exists(beside) and is_writable(evidence))
    found: dict[str, list[list[Note]]] = {}  # incident -> its notes in each file, in the order of the lines
    skipped: list[str] = []
    for folder in (beside, aside):
        for file in sorted(folder.glob("*.jsonl")) if _is_folder(folder) else ():
            notes, problems = _read(file)
            skipped += [f"{file.name} {problem}" for problem in problems]
            for incident in dict.fromkeys(note["incident_id"] for note in notes):
                found.setdefault(incident, []).append([note for note in notes if note["incident_id"] == incident])
    ordered = {incident: merged(*files) for incident, files in found.items()}
    return Notebook((beside, aside), beside if is_beside else aside, is_beside, ordered, skipped)


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _is_folder(path: Path) -> bool:
    """A folder itself, no link to one."""
    return path.is_dir() and not path.is_symlink()


def _read(file: Path) -> tuple[list[Note], list[str]]:
    """The notes of a file as the collector reads them, and what it skipped; nothing of a file that is none."""
    from rca import plugins
    from rca.types import Skip, Source

    collector = plugins.load("collectors", "notes")
    if not is_plain(file):
        is_large = file.is_file() and not file.is_symlink()
        return [], [f"is larger than {MAX_BYTES:,} bytes: no notes of people"] if is_large else []
    if not file.stat().st_size:
        return [], []
    source = Source(file.name, file, file.stat().st_size)
    notes: list[Note] = []
    problems: list[str] = []
    if not collector.claims(file.name, source.head):
        return [], []
    try:
        for item in collector.read(source):
            if isinstance(item, Skip):
                problems.append(f"{item.record or ''}: {item.why}")
                continue
            for row in item[1].iter_rows(named=True):
                if is_id(row["incident_id"]):
                    notes.append(_note(row))
                else:
                    problems.append(f"{row['record']}: {row['incident_id'][:40]!r} is no name of an incident")
    except (EvidenceError, OSError) as error:
        problems.append(str(error))
    return notes, problems


def _note(row: Mapping[str, Any]) -> Note:
    """A row of `notes` as the record that it came from."""
    noted_at: datetime = row["noted_at"].astimezone(UTC)
    return {
        "schema_version": NOTE,
        "incident_id": row["incident_id"],
        "at": iso(noted_at),
        "kind": row["kind"],
        "by": row["author"],
        "text": row["text"] or "",
        "data": json.loads(row["data"]),
    }


@contextmanager
def _locked(file: Path) -> Iterator[int]:
    """The file, made if need be, open for appending and locked against other writers until the end."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(file, flags, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "no regular file")
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)  # gives the lock back


def _write(handle: int, data: bytes, size: int) -> None:
    """All of it, on disk, or none of it."""
    written = os.write(handle, data)
    if written != len(data):
        os.ftruncate(handle, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(handle)
