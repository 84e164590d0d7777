"""Notes on an incident: JSON lines (`rca.note/1`) that people and the tool wrote while it lasted. They say nothing of the job itself.

Each line stands for itself: one that is torn (a writer was killed) or foreign is skipped and the rest counts. Times without a zone are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from collectors._batches import batches
from collectors._notes import row_of
from collectors._own_records import is_lines, lines_of
from rca.errors import EvidenceError
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "SCHEMA", "claims", "read"]

EMITS = ("notes",)
SCHEMA = "rca.note/1"  # what this reader claims is no other reader's, whatever a note quotes


def claims(name: str, head: bytes) -> bool:
    """Lines that are records of notes."""
    return is_lines(head, SCHEMA)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `notes` in the order of the lines."""
    num_rows, _ = yield from batches("notes", lines_of(source, SCHEMA, _rows))
    if not num_rows:
        raise EvidenceError(source.path, None, "no note in it")


def _rows(record: Mapping[str, Any]) -> list[Mapping[str, Any]] | str:
    row = row_of(record)
    return row if isinstance(row, str) else [row]
