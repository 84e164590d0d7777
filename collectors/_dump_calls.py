"""The calls of one dump as columns: what differs from call to call as numbers, what repeats as codes of its few distinct values.

Two readers make it, of unpickled dicts (here) or straight of a pickle's bytes (`_dump_compiled`); whatever is told of calls is told of this.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectors._dump_fields import Entry, Values, is_shape
from collectors._groups import plain_text

__all__ = ["FLAGS", "MAX_FRAMES", "NO_CALLS", "NUMBERS", "Calls", "Coded", "Known", "calls_of", "texts_of_dtypes", "texts_of_sizes"]

NUMBERS = (
    "record_id",
    "collective_seq_id",
    "p2p_seq_id",
    "op_id",
    "time_created_ns",
    "time_discovered_started_ns",
    "time_discovered_completed_ns",
    "timeout_ms",
)
FLAGS = ("retired", "is_p2p")
MAX_FRAMES = 1024  # of a stack; a longer one is left out
_FRAMES = itemgetter("frames")


@dataclass(frozen=True)
class Coded:
    """A column of few distinct values: the number of each call's, in order of first sight, and the values."""

    numbers: NDArray[np.int32]
    distinct: Sequence[Any]

    def counts(self) -> list[int]:
        """How many calls have each."""
        counts: list[int] = np.bincount(self.numbers, minlength=len(self.distinct)).tolist()
        return counts

    def last(self) -> list[int]:
        """The place of the last call that has each."""
        places = np.zeros(len(self.distinct), np.int64)
        places[self.numbers] = np.arange(len(self.numbers))
        last: list[int] = places.tolist()
        return last

    def has(self, chosen: NDArray[np.bool_]) -> list[int]:
        """The numbers of the values that the chosen calls have."""
        found: list[int] = np.unique(self.numbers[chosen]).tolist()
        return found


@dataclass(frozen=True)
class Known:
    """A column of numbers or flags: what is not known is 0."""

    values: NDArray[Any]
    known: NDArray[np.bool_]

    def at(self, place: int) -> Any:
        """The value of one call; None where it has none."""
        return self.values[place].item() if self.known[place] else None

    def least(self) -> Any:
        """The smallest value; None where there is none."""
        told = self.values[self.known]
        return told.min().item() if len(told) else None

    @property
    def is_set(self) -> NDArray[np.bool_]:
        """Of a flag: where it is true."""
        found: NDArray[np.bool_] = self.values & self.known
        return found


@dataclass(frozen=True)
class Calls:
    """The calls of one dump in file order."""

    height: int
    numbers: Mapping[str, Known]  # NUMBERS, int64
    flags: Mapping[str, Known]  # FLAGS, bool
    kinds: Coded  # (name as recorded, (name of the group, description))
    sizes: Coded  # (input, output), each a list of shapes
    dtypes: Coded  # (input, output), each a list of types
    states: Coded
    threads: Coded
    stacks: Coded  # (function, file or None) of each frame, innermost first; empty where none can be told
    first_of_stack: Sequence[int]  # place of the first call with each
    local_groups: Sequence[Any]  # of the last call of each kind: the number of its group in that process


_NONE, _EMPTY = Coded(np.zeros(0, np.int32), []), np.zeros(0, bool)
NO_CALLS = Calls(
    0, {name: Known(np.zeros(0, np.int64), _EMPTY) for name in NUMBERS}, {name: Known(_EMPTY, _EMPTY) for name in FLAGS},
    _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, (), (),
)  # fmt: skip


def calls_of(values: Values, entries: Sequence[Entry]) -> Calls:
    """Of unpickled calls. Raises TypeError, OverflowError or a PolarsError where a value has not the type of its field."""
    kinds = _coded(list(zip(values["profiling_name"], values["process_group"], strict=True)))
    stacks, first = _stacks(entries)
    return Calls(
        len(entries), {name: _known(values[name], np.int64) for name in NUMBERS}, {name: _known(values[name], bool) for name in FLAGS},
        kinds, _sizes(values), _dtypes(values), _coded(values["state"]), _coded(values["thread_id"]), stacks, first,
        [values["pg_id"][place] for place in kinds.last()],
    )  # fmt: skip


def _coded(keys: Sequence[Hashable], value: Callable[[int], Any] | None = None) -> Coded:
    """By equal keys; `value` of the place where each comes first, the key itself where it is not given."""
    number: dict[Hashable, int] = {}
    numbers = np.array([number.setdefault(key, len(number)) for key in keys], np.int32)
    if value is None:
        return Coded(numbers, list(number))
    first = dict(zip(reversed(numbers.tolist()), range(len(keys) - 1, -1, -1), strict=True))
    return Coded(numbers, [value(first[at]) for at in range(len(number))])


def _known(values: Sequence[Any], dtype: type) -> Known:
    known = np.array([value is not None for value in values], bool)
    return Known(np.array([value or 0 for value in values], dtype), known)


def _sizes(values: Values) -> Coded:
    """A pair of shapes is told by its marshalled bytes: that form keeps types apart, refuses endless nesting and writes a shared part once, so a
    hostile value costs no more than its size."""
    pairs = list(zip(values["input_sizes"], values["output_sizes"], strict=True))
    try:
        keys = list(map(marshal.dumps, pairs))
    except ValueError as error:  # nested too deep, or of a type that no dump holds
        raise TypeError(error) from None
    coded = _coded(keys, pairs.__getitem__)
    if not all(type(side) is list and all(map(is_shape, side)) for pair in coded.distinct for side in pair):
        raise TypeError("a shape is no list of numbers")
    return coded


def _dtypes(values: Values) -> Coded:
    pairs = list(zip(values["input_dtypes"], values["output_dtypes"], strict=True))
    return _coded([(" ".join(one), " ".join(other)) for one, other in pairs], pairs.__getitem__)


def _stacks(entries: Sequence[Entry]) -> tuple[Coded, list[int]]:
    """A pickle shares its frame objects (often the whole list), so a stack is told by their identities."""
    try:
        lists = list(map(_FRAMES, entries))
    except KeyError:  # recorded without stacks, wholly or in part
        lists = [entry.get("frames") for entry in entries]
    keys = list(map(id, lists))
    first = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))  # the earliest place of each wins
    alike: dict[tuple[int, int], list[tuple[list[Any], int]]] = {}  # innermost frame and length -> stacks that begin so
    number: dict[int, int] = {}
    distinct: list[Any] = []
    places: list[int] = []
    for key, place in sorted(first.items(), key=itemgetter(1)):
        frames = lists[place]
        is_told = bool(frames) and type(frames) is list and len(frames) <= MAX_FRAMES
        known = alike.setdefault((id(frames[0]), len(frames)) if is_told else (0, 0), [])
        same = next((at for other, at in known if not is_told or all(map(is_, frames, other))), None)
        if same is None:
            known.append((frames, same := len(distinct)))
            distinct.append(_frames(frames) if is_told else ())
            places.append(place)
        number[key] = same
    return Coded(np.array(list(map(number.__getitem__, keys)), np.int32), distinct), places


def _frames(frames: list[Any]) -> tuple[tuple[str, str | None], ...]:
    try:
        known = [(frame["name"], frame["filename"]) for frame in frames]
        if not set(map(type, chain.from_iterable(known))) <= {str}:
            raise TypeError
        "".join(chain.from_iterable(known)).encode()  # a lone surrogate cannot be stored
    except (KeyError, TypeError, UnicodeEncodeError):
        named = [f for f in frames if isinstance(f, dict) and plain_text(f.get("name"))]
        return tuple((plain_text(f["name"]), plain_text(f.get("filename")) or None) for f in named)
    return tuple(known)


def texts_of_sizes(pairs: Sequence[Any]) -> list[str]:
    """ "input -> output" shapes."""
    return [f"{_shapes(one)} -> {_shapes(other)}" for one, other in pairs]


def _shapes(tensors: Sequence[Sequence[int]]) -> str:
    return " ".join(",".join(map(str, shape)).join("[]") for shape in tensors)


def texts_of_dtypes(pairs: Sequence[Any]) -> list[str]:
    """ "input -> output" types, each type once."""
    return [" -> ".join(" ".join(dict.fromkeys(" ".join(side).split(" "))) for side in pair) for pair in pairs]
