"""The lines of a file in blocks: whatever the compression, however long a line, wherever the stream breaks off."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from collectors._lines import LINE_BYTES, Block, blocks
from rca.types import Compression, Skip, Source

NEWLINE = b"\n"
TEXT = b"".join(b"line %d\n" % n for n in range(1, 200_001))


def read(folder: Path, data: bytes, compression: Compression = "none") -> tuple[list[Block], list[Skip]]:
    path = folder / "log"
    path.write_bytes(data)
    found = list(blocks(Source("log", path, len(data), compression)))
    return [b for b in found if isinstance(b, Block)], [s for s in found if isinstance(s, Skip)]


@pytest.mark.parametrize("text", [TEXT, TEXT.rstrip(b"\n"), b"one", b"one\n", b"\n\n"])
def test_blocks_hold_every_line_once_with_its_number(text: bytes, tmp_path: Path) -> None:
    found, skips = read(tmp_path, text)
    assert b"".join(block.data for block in found) == text
    assert not skips
    number = 0
    for block in found:
        assert block.first == number + 1
        number = block.last
        assert len(block.lines) == block.last - block.first + 1
    assert number == len(text.removesuffix(b"\n").split(b"\n"))


def test_small_compressed_pieces_are_joined(tmp_path: Path) -> None:
    members = b"".join(gzip.compress(TEXT[at : at + 997], mtime=0) for at in range(0, len(TEXT), 997))
    found, skips = read(tmp_path, members, "gzip")
    assert (b"".join(block.data for block in found), skips) == (TEXT, [])
    assert len(found) <= len(TEXT) // LINE_BYTES + 2


def test_a_torn_stream_gives_what_precedes_and_says_where_it_broke(tmp_path: Path) -> None:
    packed = gzip.compress(TEXT, mtime=0)
    found, skips = read(tmp_path, packed[: len(packed) // 2], "gzip")
    got = b"".join(block.data for block in found)
    assert got
    assert TEXT.startswith(got)
    assert len(skips) == 1
    assert f"line {got.count(NEWLINE) + 1}" in skips[0].why


def test_an_endless_line_costs_its_middle_not_the_lines_after_it(tmp_path: Path) -> None:
    found, skips = read(tmp_path, b"first\n" + b"x" * (5 * LINE_BYTES) + b"END\nlast\n")
    lines = [line for block in found for line in block.lines]
    assert (lines[0], lines[-1], skips) == (b"first", b"last", [])
    assert lines[-2].endswith(b"END")
    assert max(map(len, lines)) <= 3 * LINE_BYTES
