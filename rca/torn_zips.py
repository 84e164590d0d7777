"""The whole members of a zip that has no directory: it was still being written, or was cut off. Pure."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Final

__all__ = ["LOCAL", "members", "names_in"]

LOCAL: Final = b"PK\x03\x04"  # begins what stands in front of each member
_SIZE: Final = 30  # of its fixed part
_DIRECTORY, _DESCRIPTOR = b"PK\x01\x02", b"PK\x07\x08"


def names_in(head: bytes) -> Iterator[str]:
    """Names of the members that begin in the first bytes."""
    at = head.find(LOCAL)
    while at >= 0:
        length = int.from_bytes(head[at + 26 : at + 28], "little")
        yield head[at + _SIZE : at + _SIZE + length].decode("utf-8", "replace")
        at = head.find(LOCAL, at + _SIZE)


def members(raw: IO[bytes]) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Name and content of each member; to be used up before the next. Raises EOFError, ValueError or zlib.error where it breaks off."""
    while True:
        start = raw.read(_SIZE)
        if start[:4] != LOCAL or len(start) < _SIZE:
            return
        flags, method = int.from_bytes(start[6:8], "little"), int.from_bytes(start[8:10], "little")
        size, length, extra = (int.from_bytes(start[a:b], "little") for a, b in ((18, 22), (26, 28), (28, 30)))
        name = raw.read(length).decode("utf-8", "replace")
        more = raw.read(extra)
        if flags & 1:
            raise ValueError(f"{name} is encrypted: unpack it with its password first")
        if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or (flags & 8 and method == zipfile.ZIP_STORED):
            raise ValueError(f"where {name} ends stands only in the directory")
        size = _long_size(more) if size == 0xFFFFFFFF else size
        yield name, _inflated(raw, None if flags & 8 else size) if method else _stored(raw, size)
        if flags & 8:
            _skip_descriptor(raw)


def _long_size(extra: bytes) -> int:
    """The packed size in a zip64 field: the second of its two numbers."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = int.from_bytes(extra[at : at + 2], "little"), int.from_bytes(extra[at + 2 : at + 4], "little")
        if kind == 1 and length >= 16:
            return int.from_bytes(extra[at + 12 : at + 20], "little")
        at += 4 + length
    return 0xFFFFFFFF


def _stored(raw: IO[bytes], size: int) -> Iterator[bytes]:
    while size > 0:
        part = raw.read(min(size, 1 << 20))
        if not part:
            raise EOFError("a member is cut off")
        size -= len(part)
        yield part


def _inflated(raw: IO[bytes], size: int | None) -> Iterator[bytes]:
    """A deflated member; one of unknown size tells its own end, and the file is then left right behind it."""
    inflate, left = zlib.decompressobj(-15), size
    while not inflate.eof:
        part = inflate.unconsumed_tail
        if not part:
            part = raw.read(1 << 16 if left is None else min(1 << 16, left))
            left = None if left is None else left - len(part)
        if not part:
            raise EOFError("a member is cut off")
        yield inflate.decompress(part, 1 << 20)
    raw.seek((left or 0) - len(inflate.unused_data), os.SEEK_CUR)


def _skip_descriptor(raw: IO[bytes]) -> None:
    """The sum and the sizes behind a member: with or without a mark, of 4 or of 8 bytes each. The next member begins right after them."""
    at = raw.tell()
    start = raw.read(28)
    for length in (16, 12, 24, 20):
        if start[length : length + 4] in (LOCAL, _DIRECTORY) and (length in (12, 20) or start[:4] == _DESCRIPTOR):
            raw.seek(at + length)
            return
    raw.seek(at + 16)
