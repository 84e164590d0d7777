"""Ranks that follow each other, told as one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["in_rows", "rows_text"]


def in_rows(ranks: Sequence[int]) -> list[list[int]]:
    """Ranks in order, cut where one is left out: [0, 1, 2, 7] -> [[0, 1, 2], [7]]."""
    rows: list[list[int]] = []
    for rank in ranks:
        if rows and rank == rows[-1][-1] + 1:
            rows[-1].append(rank)
        else:
            rows.append([rank])
    return rows


def rows_text(ranks: Sequence[int], shown: int | None = None) -> str:
    """`0-7, 12` of ranks in order; of the first `shown` rows alone."""
    return ", ".join(str(row[0]) if len(row) == 1 else f"{row[0]}-{row[-1]}" for row in in_rows(ranks)[:shown])
