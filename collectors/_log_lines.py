"""Lines of a trainer's log as text: blocks of them are searched for words as a whole, and only lines that hold one are looked at."""

from __future__ import annotations

from collections.abc import Sequence

from collectors._lines import Block
from collectors._log_wrapped import unwrapped

__all__ = ["holding", "holds", "texts"]

MAX_LINE = 16384  # characters of a line that are looked at; no line of a log is meant to be longer


def texts(block: Block) -> list[str]:
    """The lines of a block as text, each cut to what is looked at, and those that a terminal broke put together again."""
    lines = block.data.removesuffix(b"\n").decode("utf-8-sig" if block.first == 1 else "utf-8", "replace").split("\n")
    return unwrapped([line if len(line) <= MAX_LINE else line[:MAX_LINE] for line in lines])


def holding(lines: Sequence[str], words: Sequence[str]) -> list[int]:
    """Places of the lines that hold one of the words (lower case; the case of the lines does not matter)."""
    import polars as pl

    held = pl.Series(lines, dtype=pl.String).str.contains_any(pl.Series(words, dtype=pl.String).implode(), ascii_case_insensitive=True)
    places: list[int] = held.arg_true().to_list()
    return places


def holds(text: str, words: Sequence[str]) -> bool:
    """The same of one text: spares the patterns of a kind of line where none of its words is there."""
    lowered = text.lower()
    return any(word in lowered for word in words)
