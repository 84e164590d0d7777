"""Runs a collector over bytes, as the runner does."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from rca.types import Skip, Source

FIXTURES = Path(__file__).parent / "fixtures"


def source_of(folder: Path, data: bytes, name: str = "dump.txt") -> Source:
    file = folder / name
    file.write_bytes(data)
    return Source(name, file, len(data))


def rows_of(collector: ModuleType, source: Source) -> tuple[dict[str, list[dict[str, Any]]], list[Skip]]:
    """Rows by table, and what was skipped."""
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in collector.EMITS}
    skips = []
    for item in collector.read(source):
        if isinstance(item, Skip):
            skips.append(item)
        else:
            table, frame = item
            assert dict(frame.schema) == dict(table.schema)
            tables[table.name] += frame.to_dicts()
    return tables, skips
