"""Lines of a trainer's log as text: blocks of them are searched for words as a whole, and only lines that hold one are looked at."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from collectors._lines import Block
from collectors._log_prefix import parse

__all__ = ["holding", "holds", "texts", "unwrapped"]

MIN_WIDTH, MAX_WIDTH = 60, 400  # of a terminal, characters
MIN_BROKEN = 2  # lines of the full width that show that lines were broken
_STANDS_ALONE: Final = re.compile(  # also what is quickly seen to be a prefix: a task, a rank, a stamp
    r"(?:Traceback|terminate called|srun: |slurmstepd: |\{|=|-|\d{1,6}: |\[rank\d{1,7}\]:"
    r"|\[?\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])[ T](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d)"
)
MAX_LINE = 16384  # characters of a line that are looked at; no line of a log is meant to be longer


def texts(block: Block) -> list[str]:
    """The lines of a block as text, each cut to what is looked at, and those that a terminal broke put together again."""
    lines = block.data.removesuffix(b"\n").decode("utf-8-sig" if block.first == 1 else "utf-8", "replace").split("\n")
    return unwrapped([line if len(line) <= MAX_LINE else line[:MAX_LINE] for line in lines])


def unwrapped(lines: list[str]) -> list[str]:
    """The lines, those that a terminal broke at its width put together again; the place of the second half stays as an empty line.

    Broken are a log where no line is wider and several are just as wide, and a logger's line in it that goes on without a prefix.
    """
    width = max(map(len, lines), default=0)
    if not MIN_WIDTH <= width <= MAX_WIDTH:
        return lines
    broken = [place for place, line in enumerate(lines[:-1]) if len(line) == width]
    if len(broken) < MIN_BROKEN:
        return lines
    for place in reversed(broken):
        rest = lines[place + 1]
        if rest[:4] == lines[place][:4]:  # begins alike: a line of its own
            continue
        if rest[:1].strip() and not _STANDS_ALONE.match(rest) and parse(lines[place], 0).is_logged and parse(rest, 0).is_bare:
            lines[place] += rest
            lines[place + 1] = ""
    return lines


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
