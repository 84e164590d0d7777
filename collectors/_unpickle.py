"""Pickles from a shared folder, read without running anything.

A recorder dump needs no global at all, so the unpickler refuses every one: what is left of the format can build lists, dicts, texts and
numbers, nothing else. What remains: memory and the time to fill it (a number in the memo is a place in an array that is as long, so unpickling
runs under a limit on the address space), endless nesting (checked by the reader of the result, and what kills the process outright is met by a
second one, apps/supervise.py), and a file that breaks off: its good prefix is closed and read here.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
from typing import IO, Any

from rca.memory import PER_BYTE, memory_limit

__all__ = ["PickleRefused", "cut_header", "load", "salvage"]

MAX_FILE_BYTES = 2 << 30  # a dump of 2,000 calls is 0.5 MB, of 100,000 calls 25 MB
MEMORY_FLOOR_BYTES = 256 << 20  # that unpickling may take whatever the size of the file: a GB takes seconds to fill
_ENTRIES_KEYS = (b"X\x07\x00\x00\x00entries", b"\x8c\x07entries", b"U\x07entries")


class PickleRefused(Exception):
    """The pickle asks for something a dump never needs, or is no pickle."""


class _Refusing(pickle.Unpickler):
    """Builds containers, texts and numbers only."""

    def find_class(self, module: str, name: str, /) -> Any:
        raise PickleRefused(f"asks to import {module}.{name}; a recorder dump never does: refused, nothing was run")

    def persistent_load(self, pid: Any, /) -> Any:
        raise PickleRefused("asks for an outside object; a recorder dump never does: refused")


def load(file: IO[bytes], size_bytes: int, *, unpickler: type[pickle.Unpickler] = _Refusing) -> Any:
    """The object in a pickle that needs no globals. Raises PickleRefused with the reason, EOFError or pickle.UnpicklingError when torn.

    Another `unpickler` must import nothing either (`collectors._inert`).
    """
    if size_bytes > MAX_FILE_BYTES:
        raise PickleRefused(f"{size_bytes:,} bytes; more than {MAX_FILE_BYTES:,} are not read")
    try:
        with memory_limit(MEMORY_FLOOR_BYTES + PER_BYTE * size_bytes):
            return unpickler(file, encoding="utf-8", errors="replace").load()
    except MemoryError:
        raise PickleRefused("needs far more memory than a dump of its size: refused") from None
    except (OverflowError, ValueError, AttributeError, TypeError, IndexError, KeyError, struct.error) as error:
        raise PickleRefused(f"no valid pickle: {error}") from None


def _load_bytes(data: bytes) -> Any:
    return load(io.BytesIO(data), len(data))


def cut_header(head: bytes) -> dict[str, Any] | None:
    """What precedes `entries` in a dump, from its first bytes alone; None when `entries` does not come last or lies further on.

    A dump is one dict written key by key, so the bytes before the key `entries` closed by SETITEMS and STOP are a valid pickle.
    """
    for key in _ENTRIES_KEYS:
        at = head.find(key)
        if at > 0:
            try:
                header = _load_bytes(head[:at] + b"u.")
            except (PickleRefused, pickle.UnpicklingError, EOFError):
                continue
            if isinstance(header, dict):
                return header
    return None


def salvage(data: bytes) -> Any | None:
    """The good prefix of a dump that breaks off: all whole entries. None when there is none.

    The opcodes are walked (never executed) to the end of the last whole entry; there the open list and dict are closed.
    """
    depth = 0
    cuts: list[tuple[int, bytes]] = []
    try:
        for opcode, _argument, position in pickletools.genops(data):
            if opcode.name == "MARK":
                depth += 1
            elif opcode.name in ("SETITEMS", "APPENDS", "TUPLE", "LIST", "DICT", "POP_MARK"):
                depth -= 1
                end = (position or 0) + 1
                if opcode.name == "SETITEMS" and depth == 2:
                    cuts.append((end, b"eu."))
                elif opcode.name == "APPENDS" and depth == 1:
                    cuts.append((end, b"u."))
    except (ValueError, struct.error, EOFError, OverflowError, MemoryError, UnicodeDecodeError):
        pass  # the end of what is whole
    for end, closing in reversed(cuts[-3:]):
        try:
            return _load_bytes(data[:end] + closing)
        except (PickleRefused, pickle.UnpicklingError, EOFError):
            continue
    return cut_header(data)
