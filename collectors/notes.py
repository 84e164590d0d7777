"""Notes on an incident: JSON lines (`rca.note/1`) that people and the tool wrote while it lasted. They say nothing of the job itself.

Each line stands for itself: one that is torn (a writer was killed) or foreign is skipped and the rest counts. Times without a zone are none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from collectors._lines import blocks
from collectors._notes import row_of
from collectors._own_records import is_lines
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "SCHEMA", "claims", "read"]

EMITS = ("notes",)
SCHEMA = "rca.note/1"  # what this reader claims is no other reader's, whatever a note quotes

BATCH_ROWS: Final = 20_000


def claims(name: str, head: bytes) -> bool:
    """Lines that are records of notes."""
    return is_lines(head, SCHEMA)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `notes` in the order of the lines."""
    rows: list[dict[str, Any]] = []
    has_any = False
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            continue
        for number, line in enumerate(block.lines, block.first):
            if not line.strip():
                continue
            found = _row(line)
            if isinstance(found, str):
                yield Skip(f"L{number}", found)
            else:
                has_any = True
                rows.append({"record": f"L{number}", **found})
        if len(rows) >= BATCH_ROWS:
            yield TABLES["notes"], TABLES["notes"].rows(rows)
            rows = []
    if not has_any:
        raise EvidenceError(source.path, None, "no note in it")
    if rows:
        yield TABLES["notes"], TABLES["notes"].rows(rows)


def _row(line: bytes) -> Mapping[str, Any] | str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"not JSON ({str(error)[:100]}): a torn line"
    if not isinstance(record, dict) or record.get("schema_version") != SCHEMA:
        return f"no record of schema {SCHEMA}"
    return row_of(record)
