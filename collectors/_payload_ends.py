"""The two ends of a checkpoint's shard, and what a zip of torch's or a safetensors file says of its own wholeness there.

A shard may have hundreds of GB: its head and the last bytes tell its kind, its size and whether it was written to the end. A compressed one is
decompressed only where that is cheap; beyond, its end is not known.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, Final

from collectors._own_records import whole
from rca.types import HEAD_BYTES, Source

__all__ = ["LEGACY", "Ends", "Header", "ends_of", "is_safetensors", "is_torch_zip", "safetensors_header", "zip_problem"]

TAIL_BYTES: Final = 1 << 20  # of a zip's end: its table of contents, 100 bytes a tensor
MAX_UNPACKED: Final = 64 << 20  # that is decompressed to see the end of a compressed shard
MAX_HEADER: Final = 100_000_000  # bytes; a longer one is refused by safetensors too
LEGACY: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch.save before 1.6: the pickle of its magic number
_LOCAL, _ENTRY, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_END_BYTES: Final = 22
_END_64_BYTES: Final = 76  # the end of a zip64 and what points at it


@dataclass(frozen=True)
class Ends:
    """How large a file is once decompressed, and its last bytes."""

    size: int
    tail: bytes


@dataclass(frozen=True)
class Header:
    """What the header of a safetensors file says: how large the file must be, which tensors it has, or why it is none."""

    exact_bytes: int | None
    names: tuple[str, ...] = ()
    problem: str | None = None


def ends_of(source: Source) -> Ends | None:
    """The end of a file without reading what lies before; None where that would take decompressing much."""
    if source.compression == "none":
        with source.file.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            return Ends(size, file.read(TAIL_BYTES))
    data, torn = source.read(MAX_UNPACKED + 1)
    return None if torn or len(data) > MAX_UNPACKED else Ends(len(data), data[-TAIL_BYTES:])


def is_torch_zip(head: bytes) -> bool:
    """A zip whose first member is the pickle that torch.save writes first, stored as it is."""
    return head[:4] == _LOCAL and len(head) >= 30 and _first_name(head).endswith(b"data.pkl")


def _first_name(head: bytes) -> bytes:
    (length,) = struct.unpack_from("<H", head, 26)
    return head[30 : 30 + length] if length < 1024 else b""


def zip_problem(ends: Ends) -> str | None:
    """Why a zip is not whole; None where its table of contents stands at its end and fits."""
    at = ends.tail.rfind(_END, max(0, len(ends.tail) - _END_BYTES - (1 << 16)))
    if at < 0 or at + _END_BYTES > len(ends.tail):
        if len(ends.tail) > _END_BYTES and not ends.tail[-4096:].strip(b"\0"):
            return "torn: it ends in zeros where its table of contents should be: room was taken for it that was never written"
        return "torn: its table of contents, which is written last, is missing"
    num_entries, size, _, comment = struct.unpack_from("<HIIH", ends.tail, at + 10)
    if at + _END_BYTES + comment != len(ends.tail):
        return "torn: its end does not fit"
    if size == 0xFFFFFFFF or num_entries == 0xFFFF or size > at:
        return None  # a table too long to be looked at
    starts = [at - size, at - _END_64_BYTES - size]
    if num_entries and not any(start >= 0 and ends.tail[start : start + 4] == _ENTRY for start in starts):
        return "torn: its table of contents is damaged"
    return None


def is_safetensors(head: bytes) -> bool:
    """A length, then a JSON header that speaks of tensors."""
    start = head[8:4096]
    return start[:1] == b"{" and start[1:].lstrip()[:1] in (b'"', b"}") and (b'"data_offsets"' in start or b'"__metadata__"' in start)


def safetensors_header(source: Source, size: int | None) -> Header:
    """The header of a safetensors file of this size (None = not known)."""
    (length,) = struct.unpack_from("<Q", source.head)
    if length > MAX_HEADER:
        return Header(None, problem=f"damaged: its header would be {length:,} bytes long, and none may be longer than {MAX_HEADER:,}")
    if size is not None and 8 + length > size:
        return Header(8 + length, problem=f"torn: its header alone would end {8 + length - size:,} bytes behind the end of the file")
    data = source.head if 8 + length <= HEAD_BYTES else source.read(8 + length)[0]
    try:
        found: Any = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        return Header(None, problem="damaged: its header is no JSON")
    tensors = {name: held for name, held in found.items() if name != "__metadata__"} if isinstance(found, dict) else {}
    ends: list[int] = []
    for held in tensors.values():
        offsets = held.get("data_offsets") if isinstance(held, dict) else None
        both = [whole(item) for item in offsets] if isinstance(offsets, list) and len(offsets) == 2 else []
        if len(both) != 2 or (start := both[0]) is None or (end := both[1]) is None or not 0 <= start <= end < 1 << 62:
            return Header(None, problem="damaged: its header does not say where each tensor lies")
        ends.append(end)
    exact = 8 + length + max(ends, default=0)
    problem = None
    if size is not None and size != exact:
        problem = (
            f"torn: it ends {exact - size:,} bytes before its last tensor does"
            if size < exact
            else f"{size - exact:,} bytes more than its header tells"
        )
    return Header(exact, tuple(tensors), problem)
