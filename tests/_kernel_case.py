"""Kernel logs as a case: texts in, the tables that their reader makes of them out, with what else a test says of hosts and jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from collectors import xid
from rca.case import MemoryCase
from rca.tables import TABLES
from rca.types import Skip, Source

__all__ = ["kernel_case"]


def kernel_case(
    folder: Path, files: Mapping[str, str], whose: Mapping[str, str] | None = None, **rows: Sequence[Mapping[str, Any]]
) -> MemoryCase:
    """A case of kernel logs (name -> text); `whose`: name -> host of files that name none; `rows`: those of other tables."""
    frames: dict[str, list[pl.DataFrame]] = {}
    for name, text in files.items():
        file = folder / name
        file.write_text(text, "utf-8")
        for item in xid.read(Source(name, file, file.stat().st_size)):
            assert not isinstance(item, Skip), item
            table, frame = item
            with_file = frame.with_columns(
                evidence_id=pl.lit(name), host=pl.col("host").fill_null(pl.lit((whose or {}).get(name), pl.String))
            )
            frames.setdefault(table.name, []).append(with_file.select(table.schema.names()))
    made = {name: pl.concat(parts) for name, parts in frames.items()}
    return MemoryCase(
        made | {name: TABLES[name].rows([{"record": f"L{n + 1}", **row} for n, row in enumerate(found)]) for name, found in rows.items()}
    )
