"""Lines of a log of any size, in flat memory: blocks are searched for words as a whole, and only lines that hold one are looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rca.types import Skip, Source

__all__ = ["Block", "blocks", "holding", "holds"]

BLOCK_BYTES = 1 << 20
MAX_LINE = 16384  # characters of a line that are looked at; no line of a log is meant to be longer


@dataclass(frozen=True)
class Block:
    """Whole consecutive lines and the number (from 1) of the first."""

    first: int
    lines: list[str]


def blocks(source: Source) -> Iterator[Block | Skip]:
    """All lines of a file, block by block; a `Skip` where the stream breaks off. Raises OSError where it cannot be opened at all.

    A line longer than a block is cut: its beginning is kept, the rest of it dropped.
    """
    first, rest = 1, b""
    parts = source.blocks(BLOCK_BYTES)
    while True:
        try:
            part = next(parts)
        except StopIteration as end:
            why = end.value
            break
        cut = part.rfind(b"\n") + 1
        if not cut:  # no line ends here
            rest = rest + part if len(rest) < BLOCK_BYTES else rest
            continue
        block = _block(first, rest + part[: cut - 1])
        yield block
        first, rest = first + len(block.lines), part[cut:]
    if rest:
        yield _block(first, rest)
    if why:
        yield Skip(None, f"breaks off at line {first}: {why}")


def _block(first: int, data: bytes) -> Block:
    lines = data.decode("utf-8-sig" if first == 1 else "utf-8", "replace").split("\n")
    return Block(first, [line if len(line) <= MAX_LINE else line[:MAX_LINE] for line in lines])


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
