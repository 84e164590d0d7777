"""Ranks that follow each other, told as one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["in_rows"]


def in_rows(ranks: Sequence[int]) -> list[list[int]]:
    """Ranks in order, cut where one is left out: [0, 1, 2, 7] -> [[0, 1, 2], [7]]."""
    rows: list[list[int]] = []
    for rank in ranks:
        if rows and rank == rows[-1][-1] + 1:
            rows[-1].append(rank)
        else:
            rows.append([rank])
    return rows
