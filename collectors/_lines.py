"""The lines of a file of any size, in flat memory: blocks of whole lines, numbered, whatever the compression and wherever it breaks off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rca.types import Skip, Source

__all__ = ["LINE_BYTES", "Block", "blocks", "garbage", "is_text"]

LINE_BYTES: Final = 1 << 20  # of a line that are kept for certain; also the least size of a block
MAX_GARBAGE: Final = 20  # lines that hold no text, told one by one
# No text holds these; bell, backspace, tabs, ends of lines and pages, and escape are in logs.
_NO_TEXT: Final = bytes({*range(32)} - {7, 8, 9, 10, 11, 12, 13, 27})


@dataclass(frozen=True, slots=True)
class Block:
    """Whole consecutive lines, and the numbers (from 1) of the first and the last one. Only the end of the file may lack its newline."""

    first: int
    last: int
    data: bytes

    @property
    def lines(self) -> list[bytes]:
        """The lines without their newlines."""
        return self.data.removesuffix(b"\n").split(b"\n")


def blocks(source: Source) -> Iterator[Block | Skip]:
    """All lines of a file; a `Skip` where the stream breaks off. Raises OSError where it cannot be opened at all.

    Of a line that is longer than a block the beginning and the end are kept, the middle is dropped.
    """
    stream = source.blocks(LINE_BYTES)
    parts: list[bytes] = []  # not given out yet: a line's beginning, and small pieces, as decompression gives them
    size = num_ended = 0
    why: str | None = None
    while why is None:
        try:
            parts.append(next(stream))
        except StopIteration as end:
            why = str(end.value)
        else:
            size += len(parts[-1])
            if size < LINE_BYTES:
                continue
        data = b"".join(parts)
        cut = data.rfind(b"\n") + 1 if why is None else len(data)
        if cut:
            first, num_ended = num_ended + 1, num_ended + data.count(b"\n")
            yield Block(first, num_ended + (not data.endswith(b"\n", 0, cut)), data[:cut])
        parts = [data[cut:] if cut else data[:LINE_BYTES]]
        size = len(parts[0]) if cut else 0  # a line that goes on: room for the next part
    if why:
        yield Skip(None, f"breaks off at line {num_ended + 1}: {why}")


def is_text(head: bytes) -> bool:
    """Whether at least half of the lines are text: a log stays one when a disk or a crash left garbage in its middle."""
    lines = [line for line in head.split(b"\n") if line.strip()]
    return 2 * sum(_holds_no_garbage(line) for line in lines) >= len(lines) > 0


def garbage(block: Block) -> Iterator[Skip]:
    """A `Skip` for each run of lines with bytes that no text holds; they are read nevertheless, as far as they can be."""
    if _holds_no_garbage(block.data):
        return
    bad = [number for number, line in enumerate(block.lines, block.first) if not _holds_no_garbage(line)]
    runs: list[list[int]] = []
    for number in bad:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    for run in runs[:MAX_GARBAGE]:
        yield Skip(f"L{run[0]}", f"garbage in {f'lines {run[0]} to {run[-1]}' if len(run) > 1 else 'the line'}: bytes that no text holds")
    if len(runs) > MAX_GARBAGE:
        yield Skip(f"L{runs[MAX_GARBAGE][0]}", f"garbage in {len(runs) - MAX_GARBAGE} more places up to line {bad[-1]}")


def _holds_no_garbage(data: bytes) -> bool:
    return len(data.translate(None, _NO_TEXT)) == len(data)
