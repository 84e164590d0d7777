"""Rows one by one, as frames of a table: a file of any size is held a batch at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Final

import polars as pl

from rca.tables import TABLES, Table
from rca.types import Skip

__all__ = ["BATCH_ROWS", "batches"]

BATCH_ROWS: Final = 5_000


def batches(table: str, items: Iterable[dict[str, Any] | Skip]) -> Generator[tuple[Table, pl.DataFrame] | Skip, None, tuple[int, int]]:
    """Frames of a table in the order of the rows, skips where they come. The generator's value: how many rows there were, and how many skips."""
    batch: list[dict[str, Any]] = []
    num_rows = num_skips = 0
    for item in items:
        if isinstance(item, Skip):
            num_skips += 1
            yield item
            continue
        num_rows += 1
        batch.append(item)
        if len(batch) >= BATCH_ROWS:
            yield TABLES[table], TABLES[table].rows(batch)
            batch = []
    if batch:
        yield TABLES[table], TABLES[table].rows(batch)
    return num_rows, num_skips
