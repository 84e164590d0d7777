"""Lines that a terminal broke at its width, put together again: what was copied out of a window has tokens cut in two."""

from __future__ import annotations

import re
from typing import Final

from collectors._log_forms import peel
from collectors._log_prefix import parse

__all__ = ["unwrapped"]

MIN_WIDTH, MAX_WIDTH = 60, 400  # of a terminal, characters
MIN_BROKEN = 2  # lines of the full width that show that lines were broken
MAX_PARTS = 64  # of one line
_STANDS_ALONE: Final = re.compile(  # also what is quickly seen to be a prefix: a task, a rank, NCCL's, a stamp
    r"(?:Traceback|terminate called|srun: |slurmstepd: |\{|=|-| ?(?:iteration|steps?|epoch|Epoch)\b|[0-9]{1,6}: |\[rank[0-9]{1,7}\]:"
    r"|[A-Za-z][\w.-]{0,62}:[0-9]{1,9}:[0-9]{1,9} \[[0-9]{1,4}\]|(?:[a-z_]\w{0,60}\.){1,6}[A-Z]\w{0,80}(?:Error|Exception): "
    r"|\[?[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])[ T](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])"
)
_QUOTED: Final = re.compile(r"(?:> ?){1,8}")


def unwrapped(lines: list[str]) -> list[str]:
    """The lines, broken ones put together again; the places of their further parts stay as empty lines.

    Broken are a log where no line is wider, several are just as wide and most of those go on, and a logger's line in it that goes on without a
    prefix. A blank at the very end of a part may have been lost, then it is one narrower.
    """
    if lines and lines[0].endswith("\r"):
        lines = [line.rstrip("\r") for line in lines]
    lengths = [len(line) for line in lines]
    width = max(lengths, default=0)
    if not MIN_WIDTH <= width <= MAX_WIDTH or lengths[:-1].count(width) < MIN_BROKEN:
        return lines
    if len({line for line in lines[:-1] if len(line) == width}) < MIN_BROKEN:  # one line again and again is as wide each time
        return lines
    full = [  # most lines, where all are of one width: what begins alike, or with a prefix, is a line of its own
        place
        for place, (length, head, rest) in enumerate(zip(lengths, lines, lines[1:], strict=False))
        if length >= width - 1 and rest[:4] != head[:4] and not _STANDS_ALONE.match(rest)
    ]
    if 2 * sum(lengths[place] == width for place in full) < lengths[:-1].count(width):
        return lines  # a broken line goes on: these are of one width because their program prints them so
    for place in full:
        head = lines[place]
        if not head:
            continue
        quote = _QUOTED.match(head)
        mark = quote[0] if quote else ""
        whole, narrower, number = head, len(head) < width, place + 1
        while number < min(len(lines), place + MAX_PARTS):
            rest = lines[number]
            part = rest.removeprefix(mark)
            if len(rest) - len(part) != len(mark) or not _goes_on(head, part, is_sure=not narrower):
                break
            whole += (" " if narrower and part[:1] != " " else "") + part
            lines[number] = ""
            number += 1
            if len(rest) < width - 1:
                break
            narrower = len(rest) < width
        lines[place] = whole
    return lines


def _goes_on(head: str, part: str, *, is_sure: bool) -> bool:
    """Whether a line is a further part of the logger's line `head`. `is_sure`: the part before it has the full width."""
    if not part or part[:2] == "  " or (part[0] in " \t" and not (is_sure and part[1:2].isalnum())) or _STANDS_ALONE.match(part):
        return False
    return part[:4] != head[:4] and _is_bare(part) and parse(head, 0).is_logged


def _is_bare(part: str) -> bool:
    """As `Line.is_bare`, without reading all of the prefix."""
    if "\x1b" in part:
        return parse(part, 0).is_bare
    begin = len(part) - len(part.lstrip(" \t"))
    return begin == len(part) or peel(part, begin, is_first=True, is_logged=False) is None
