"""How findings name ranks and instants: the same words in every question."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

__all__ = ["iso", "quoted", "ranks_text"]


def ranks_text(ranks: Sequence[int], limit: int = 8) -> str:
    """`rank 3`, `ranks 1, 2`, `ranks 0, 1, 2 and 9 more`: at most `limit` of them one by one."""
    shown = ", ".join(map(str, ranks[:limit]))
    more = f" and {len(ranks) - limit} more" if len(ranks) > limit else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}{more}"


def quoted(text: str, most: int = 160) -> str:
    """What evidence says, on `most` letters: cut behind a word, and the cut is shown. A word that is longer than half of that is cut itself."""
    text = text.strip()
    if len(text) <= most:
        return text
    end = text.rfind(" ", most // 2, most)
    return f"{text[: end if end > 0 else most - 1].rstrip(' ,;:(')}\N{HORIZONTAL ELLIPSIS}"


def iso(at: datetime | None) -> str | None:
    """An instant as in JSON documents."""
    return at.isoformat() if at is not None else None
