"""The quarantine list of a piece of evidence, on disk: JSON lines in `notes/quarantine.jsonl`, only ever appended, where the notes of its incidents
are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from apps.incidents.notebook import MAX_LINE_BYTES, append_line, notebook
from rca.errors import EvidenceError, UsageError
from rca.files import MAX_BYTES, is_plain

__all__ = ["Listbook", "listbook"]

NAME: Final = "quarantine.jsonl"


@dataclass(frozen=True)
class Listbook:
    """What was decided on samples of one piece of evidence."""

    file: Path  # that takes new decisions
    rows: Sequence[Mapping[str, Any]]  # of `quarantines`, in the order in which they were written
    skipped: Sequence[str]  # what could not be read, in words

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write decisions, all of them in one go. Raises UsageError where one is too long or cannot be written."""
        lines = [json.dumps(record).encode("ascii") + b"\n" for record in records]
        if any(len(line) > MAX_LINE_BYTES for line in lines):
            raise UsageError("that is too long for one decision: shorten the reason, or put it into the folder as a file and name it")
        append_line(self.file, b"".join(lines))


def listbook(evidence: Path) -> Listbook:
    """The list of this evidence, wherever it lies. Raises UsageError where there is no such evidence."""
    book = notebook(evidence)
    rows: list[Mapping[str, Any]] = []
    skipped: list[str] = []
    for folder in book.folders:
        if folder.is_dir() and not folder.is_symlink():
            _read(folder / NAME, rows, skipped)
    return Listbook(book.folder / NAME, rows, skipped)


def _read(file: Path, rows: list[Mapping[str, Any]], skipped: list[str]) -> None:
    from rca import plugins
    from rca.types import Skip, Source

    collector = plugins.load("collectors", "quarantine")
    if not is_plain(file):
        if file.is_file() and not file.is_symlink():
            skipped.append(f"{file.name}: larger than {MAX_BYTES:,} bytes")
        return
    if not file.stat().st_size:
        return
    source = Source(file.name, file, file.stat().st_size)
    try:
        for item in collector.read(source):
            if isinstance(item, Skip):
                skipped.append(f"{file.name} {item.record or ''}: {item.why}")
            else:
                rows.extend(item[1].iter_rows(named=True))
    except (EvidenceError, OSError) as error:
        skipped.append(str(error))
