"""Writes values as torch's recorder does: pickle protocol 2, strings and stack frames memoised, nothing else.

Python's own pickler memoises every container too, which makes files larger than real ones and reading them slower.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from typing import Any

__all__ = ["Pickler"]


class Pickler:
    """Good for one dump: the memo is its state."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._memo: dict[str | int, bytes] = {}  # a string, or the id of a frame -> the opcode that fetches it

    def dump(self, value: dict[str, Any]) -> bytes:
        """The pickle of a dump."""
        self._parts.append(pickle.PROTO + b"\x02")
        self._put(value)
        self._parts.append(pickle.STOP)
        return b"".join(self._parts)

    def _put(self, value: Any) -> None:
        if isinstance(value, str):
            self._string(value)
        elif value is None or isinstance(value, bool):
            self._parts.append({None: pickle.NONE, True: pickle.NEWTRUE, False: pickle.NEWFALSE}[value])
        elif isinstance(value, int):
            self._parts.append(_integer(value))
        elif isinstance(value, float):
            self._parts.append(pickle.BINFLOAT + struct.pack(">d", value))
        elif isinstance(value, dict):
            self._dict(value)
        elif isinstance(value, list):
            self._list(value)
        elif isinstance(value, tuple) and len(value) == 2:
            self._put(value[0])
            self._put(value[1])
            self._parts.append(pickle.TUPLE2)
        else:
            raise TypeError(f"a dump holds no {type(value).__name__}")

    def _string(self, value: str) -> None:
        fetch = self._memo.get(value)
        if fetch is not None:
            self._parts.append(fetch)
            return
        raw = value.encode()
        self._parts += (pickle.BINUNICODE, struct.pack("<I", len(raw)), raw, self._remember(value))

    def _dict(self, value: dict[str, Any]) -> None:
        parts = self._parts
        parts.append(pickle.EMPTY_DICT + pickle.MARK)
        for key, item in value.items():
            self._string(key)
            if key == "frames":
                self._frames(item)
            else:
                self._put(item)
        parts.append(pickle.SETITEMS)

    def _list(self, value: Sequence[Any]) -> None:
        self._parts.append(pickle.EMPTY_LIST + pickle.MARK)
        for item in value:
            self._put(item)
        self._parts.append(pickle.APPENDS)

    def _frames(self, frames: list[dict[str, Any]]) -> None:
        self._parts.append(pickle.EMPTY_LIST + pickle.MARK)
        for frame in frames:
            fetch = self._memo.get(id(frame))
            if fetch is None:
                self._dict(frame)
                fetch = self._remember(id(frame))
            self._parts.append(fetch)
        self._parts.append(pickle.APPENDS)

    def _remember(self, key: str | int) -> bytes:
        """Note a value under the next number; the opcode that stores it there."""
        number = len(self._memo)
        packed = struct.pack("<B", number) if number < 256 else struct.pack("<I", number)
        self._memo[key] = (pickle.BINGET if number < 256 else pickle.LONG_BINGET) + packed
        return (pickle.BINPUT if number < 256 else pickle.LONG_BINPUT) + packed


def _integer(value: int) -> bytes:
    if 0 <= value < 256:
        return pickle.BININT1 + struct.pack("<B", value)
    if 0 <= value < 65536:
        return pickle.BININT2 + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return pickle.BININT + struct.pack("<i", value)
    return pickle.LONG1 + b"\x08" + struct.pack("<q", value)
