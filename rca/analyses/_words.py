"""How findings name ranks and instants: the same words in every question."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

__all__ = ["iso", "ranks_text"]


def ranks_text(ranks: Sequence[int], limit: int = 8) -> str:
    """`rank 3`, `ranks 1, 2`, `ranks 0, 1, 2 and 9 more`: at most `limit` of them one by one."""
    shown = ", ".join(map(str, ranks[:limit]))
    more = f" and {len(ranks) - limit} more" if len(ranks) > limit else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}{more}"


def iso(at: datetime | None) -> str | None:
    """An instant as in JSON documents."""
    return at.isoformat() if at is not None else None
