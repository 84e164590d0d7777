"""A recorder's pickle straight to columns, without building the calls: the compiled way (`_dump_kernels`), where Numba is installed.

It reads what recorders usually write and tells nothing of all else: then the plain reader decides, so both say the same of every file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectors._dump_calls import FLAGS, MAX_FRAMES, NUMBERS, Calls, Coded, Known
from collectors._dump_fields import FIELDS, MAX_DIMS

__all__ = ["Walked", "is_there", "walked"]

PICKED = (*FIELDS, "frames")
_NAMES = np.frombuffer("".join(PICKED).encode(), np.uint8)
_STARTS = np.cumsum([0, *map(len, PICKED)]).astype(np.int64)
_FRAME_NAMES, _FRAME_STARTS = np.frombuffer(b"namefilename", np.uint8), np.array([0, 4, 12])
_UNSET = -2  # key of a call not looked at yet
MAX_DEPTH = 64  # of what is built: a header is five deep
MAX_MEMO = 1 << 22  # objects that a pickle may refer to
STACK = 1 << 20  # objects on the stack at a time: 100,000 calls are handed over by the thousand
MARKS = 4096
SPELLED = 4 << 20  # bytes of the texts of all distinct stacks
TEXTS = 1 << 16  # distinct texts of a dump


class _Refused(Exception):
    """Not as usual: the plain reader decides."""


@dataclass(frozen=True)
class Walked:
    """A dump without its calls, and the calls."""

    document: dict[str, Any]
    calls: Calls


def walked(dump: bytes) -> Walked | None:
    """The dump in these bytes; None where anything in it is not as usual."""
    try:
        arena = _Arena(np.frombuffer(dump, np.uint8))
        document = arena.header()
        calls = _calls(arena)
    except _Refused:
        return None
    return Walked(document, calls)


class _Room:
    """Arrays that are filled anew for every file; they only grow."""

    def __init__(self, size: int) -> None:
        objects = size // 2 + 64  # the shortest object takes two bytes, with what puts it somewhere
        self.size = size
        self.tag, self.first = np.empty(objects, np.uint8), np.empty(objects, np.int64)
        self.count, self.field = np.zeros(objects, np.int32), np.empty(objects, np.int8)
        self.leaf, self.kids = np.empty(objects, np.int64), np.empty(size + 64, np.int32)
        self.stack, self.marks = np.empty(min(STACK, size + 64), np.int32), np.empty(MARKS, np.int32)
        self.spelled = np.empty(SPELLED, np.uint8)
        self.memo, self.texts = np.full(min(MAX_MEMO, size), -1, np.int32), np.empty(TEXTS, np.int32)


_room: list[_Room] = []


def _room_for(size: int) -> _Room:
    if not _room or _room[0].size < size:
        _room[:] = [_Room(size + size // 4)]
    return _room[0]


class _Arena:
    """The objects of one pickle."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        from collectors import _dump_kernels as kernels

        self.kernels: Any = kernels  # compiled functions have no types that a checker knows
        self.data, room = data, _room_for(data.size)
        self.room, self.tag, self.first, self.count, self.kids = room, room.tag, room.first, room.count, room.kids
        code, self.root, self.objects, highest = kernels.walk(
            data, room.tag, room.first, room.count, room.kids, room.stack, room.marks, room.memo
        )
        room.memo[: highest + 1] = -1
        if code != kernels.WALKED or self.tag[self.root] != kernels.DICT:
            raise _Refused
        self.entries = -1
        self._built: dict[int, Any] = {}

    def header(self) -> dict[str, Any]:
        """All but `entries`, whose place is kept."""
        found: dict[str, Any] = {}
        kids = self.children(self.root)
        for key, one in zip(kids[::2], kids[1::2], strict=True):
            name = self.value(key)
            if name == "entries":
                self.entries = one
            else:
                found[name] = self.value(one)
        if self.entries < 0 or self.tag[self.entries] != self.kernels.LIST:
            raise _Refused
        return found

    def children(self, one: int) -> list[int]:
        start = int(self.first[one])
        found: list[int] = self.kids[start : start + int(self.count[one])].tolist()
        return found

    def value(self, one: int, depth: int = 0) -> Any:
        """The object itself; what is shared in the pickle is shared here."""
        k, tag = self.kernels, self.tag[one]
        if tag == k.INT:
            return int(self.first[one])
        if tag == k.TEXT:
            return self.data[self.first[one] : self.first[one] + self.count[one]].tobytes().decode("ascii")
        if one < 3:
            return (None, False, True)[one]
        if tag == k.FLOAT:
            return struct.unpack(">d", self.data[self.first[one] : self.first[one] + 8].tobytes())[0]
        if one in self._built:
            if (found := self._built[one]) is _Refused:  # it holds itself
                raise _Refused
            return found
        if depth > MAX_DEPTH:
            raise _Refused
        self._built[one] = _Refused
        kids = [self.value(kid, depth + 1) for kid in self.children(one)]
        try:
            made: Any = dict(zip(kids[::2], kids[1::2], strict=True)) if tag == k.DICT else kids if tag == k.LIST else tuple(kids)
        except TypeError:
            raise _Refused from None
        self._built[one] = made
        return made


def _calls(arena: _Arena) -> Calls:
    k, room = arena.kernels, arena.room
    height = int(arena.count[arena.entries])
    if not height:
        raise _Refused
    picked = np.empty((len(PICKED), height), np.int32)
    room.field[: arena.objects] = _UNSET
    _expect(k.pick(arena.data, arena.tag, arena.first, arena.count, arena.kids, arena.entries, _NAMES, _STARTS, room.field, picked))
    of = dict(zip(PICKED, picked, strict=True))
    _check(arena, of)
    _expect(k.intern(arena.data, arena.tag, arena.first, arena.count, arena.objects, room.texts, room.leaf))
    codes = _Codes(arena, height)
    kinds = codes.pairs(of, "profiling_name", "process_group")
    frames = codes.frames(of["frames"])
    stacks = _stacks(arena, of["frames"][frames[1]])
    return Calls(
        height, {name: _whole(arena, of[name]) for name in NUMBERS}, {name: _flags(arena, of[name]) for name in FLAGS},
        kinds, codes.pairs(of, "input_sizes", "output_sizes"), codes.pairs(of, "input_dtypes", "output_dtypes"),
        codes.leaves(of["state"]), codes.leaves(of["thread_id"]), Coded(frames[0], stacks), frames[1].tolist(),
        [arena.value(one) for one in of["pg_id"][kinds.last()].tolist()],
    )  # fmt: skip


def _stacks(arena: _Arena, lists: NDArray[np.int32]) -> list[tuple[tuple[str, str], ...]]:
    room, ends = arena.room, np.empty(len(lists), np.int64)
    room.field[: arena.objects] = _UNSET
    _expect(
        arena.kernels.spell(
            arena.data, arena.tag, arena.first, arena.count, arena.kids, lists, _FRAME_NAMES, _FRAME_STARTS, room.field, room.spelled, ends
        )
    )
    cuts = [0, *ends.tolist()]
    return [_frames(room.spelled[start:end].tobytes()) for start, end in pairwise(cuts)]


@lru_cache(maxsize=4096)
def _frames(spelled: bytes) -> tuple[tuple[str, str], ...]:
    """The pairs that `spell` wrote: ranks that run one program have few distinct stacks."""
    texts, at = [], 0
    while at < len(spelled):
        end = at + 4 + int.from_bytes(spelled[at : at + 4], "little")
        texts.append(spelled[at + 4 : end].decode("ascii"))
        at = end
    return tuple(zip(texts[::2], texts[1::2], strict=True))


def _expect(fact: bool) -> None:  # noqa: FBT001 - the one thing it is about
    if not fact:
        raise _Refused


def _check(arena: _Arena, of: dict[str, NDArray[np.int32]]) -> None:
    """Refuses fields that are missing or of another type than a recorder's: `_dump_fields.fields` and what becomes of them would not take them."""
    k, lists = arena.kernels, (arena.tag, arena.first, arena.count, arena.kids)
    for name in ("input_sizes", "output_sizes"):
        _expect(k.are_shapes(*lists, of[name], MAX_DIMS))
    for name in ("input_dtypes", "output_dtypes"):
        _expect(k.are_texts(*lists, of[name], 0, 1 << 30, False))
    _expect(k.are_texts(*lists, of["process_group"], 2, 2, True))
    _expect(k.are_tagged(arena.tag, of["profiling_name"], k.TEXT, k.TEXT))
    for name in ("state", "thread_id"):
        _expect(k.are_tagged(arena.tag, of[name], k.TEXT, k.NONE))
    _expect(bool((of["pg_id"] >= 0).all()))
    frames = of["frames"]
    frames[frames >= 0] = np.where(
        (arena.tag[frames[frames >= 0]] == k.LIST) & (arena.count[frames[frames >= 0]] <= MAX_FRAMES), frames[frames >= 0], k.MISSING
    )


def _whole(arena: _Arena, objects: NDArray[np.int32]) -> Known:
    found = Known(np.empty(len(objects), np.int64), np.empty(len(objects), bool))
    _expect(arena.kernels.whole_numbers(arena.tag, arena.first, objects, found.values, found.known))
    return found


def _flags(arena: _Arena, objects: NDArray[np.int32]) -> Known:
    found = Known(np.empty(len(objects), bool), np.empty(len(objects), bool))
    _expect(arena.kernels.flags(arena.tag, objects, found.values, found.known))
    return found


class _Codes:
    """Numbers the distinct values of columns."""

    def __init__(self, arena: _Arena, height: int) -> None:
        self._arena, self._height = arena, height
        self._slots = np.empty(1 << (2 * height).bit_length(), np.int32)

    def _new(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return np.empty(self._height, np.int32), np.empty(self._height, np.int32)

    def _numbered(self, objects: NDArray[np.int32], *, nested: bool) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        k, a, (numbers, places) = self._arena.kernels, self._arena, self._new()
        if nested:
            found = k.number_nested(a.tag, a.first, a.count, a.kids, a.room.leaf, objects, self._slots, numbers, places)
        else:
            found = k.number_leaves(a.room.leaf, objects, self._slots, numbers, places)
        return numbers, places[:found]

    def leaves(self, objects: NDArray[np.int32]) -> Coded:
        numbers, places = self._numbered(objects, nested=False)
        return Coded(numbers, [self._arena.value(one) for one in objects[places].tolist()])

    def pairs(self, of: dict[str, NDArray[np.int32]], one: str, other: str) -> Coded:
        left, _ = self._numbered(of[one], nested=one != "profiling_name")
        right, _ = self._numbered(of[other], nested=True)
        numbers, places = self._new()
        found = self._arena.kernels.number_pairs(left, right, self._slots, numbers, places)
        ends = [
            (self._arena.value(a), self._arena.value(b))
            for a, b in zip(of[one][places[:found]].tolist(), of[other][places[:found]].tolist(), strict=True)
        ]
        return Coded(numbers, [(a, tuple(b)) for a, b in ends] if other == "process_group" else ends)

    def frames(self, objects: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        numbers, places = self._new()
        found = self._arena.kernels.number_lists(
            self._arena.first, self._arena.count, self._arena.kids, objects, self._slots, numbers, places
        )
        return numbers, places[:found]


@lru_cache(maxsize=1)
def is_there() -> bool:
    """Whether Numba is installed."""
    from importlib.util import find_spec

    return find_spec("numba") is not None
