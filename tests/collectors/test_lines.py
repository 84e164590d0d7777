"""The lines of a file in blocks: whatever the compression, however long a line, wherever the stream breaks off."""

from __future__ import annotations

import codecs
import gzip
from pathlib import Path

import pytest

from collectors._lines import LINE_BYTES, Block, blocks, garbage, is_text
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


ENCODED = {
    "utf-16 little": codecs.BOM_UTF16_LE + TEXT.decode().encode("utf-16-le"),
    "utf-16 big": codecs.BOM_UTF16_BE + TEXT.decode().encode("utf-16-be"),
    "utf-8 with a mark": codecs.BOM_UTF8 + TEXT,
    "utf-32": TEXT.decode().encode("utf-32"),
}


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("name", ENCODED)
def test_a_byte_order_mark_says_how_a_text_is_encoded(name: str, compression: Compression, tmp_path: Path) -> None:
    data = ENCODED[name]
    found, skips = read(tmp_path, gzip.compress(data, mtime=0) if compression == "gzip" else data, compression)
    assert b"".join(block.data for block in found) == TEXT
    assert (found[-1].last, skips) == (200_000, [])


def test_a_torn_text_of_another_encoding_gives_what_precedes(tmp_path: Path) -> None:
    found, skips = read(tmp_path, ENCODED["utf-16 little"][:-3])
    assert b"".join(block.data for block in found) == TEXT[:-2] + "\ufffd".encode()
    assert skips == []
    packed = gzip.compress(ENCODED["utf-16 big"], mtime=0)
    found, skips = read(tmp_path, packed[: len(packed) // 2], "gzip")
    got = b"".join(block.data for block in found)
    assert got
    assert TEXT.startswith(got)
    assert len(skips) == 1


def test_garbage_in_a_text_is_told_and_lines_around_it_are_read(tmp_path: Path) -> None:
    found, _ = read(tmp_path, b"one\ntwo\n\x00\x01\x02three\nf\x00ur\nfive\n\x07\x08\x1b[0m six\nse\x10ven\n")
    assert [skip.record for skip in garbage(found[0])] == ["L3", "L7"]
    assert "lines 3 to 4" in next(garbage(found[0])).why
    assert is_text(found[0].data)
    assert not is_text(bytes(range(256)) * 20)
    assert not is_text(b"")
