"""The fields of a dump's calls as plain lists, every value of the type a recorder writes.

Almost every dump is well-formed, so one pass pulls all fields out of all calls and whole columns are checked at once; only what fails that is
gone through call by call, and what does not fit becomes null and is counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from collectors._groups import plain_text
from rca.types import Skip

__all__ = ["P2P_NAME", "Entry", "Values", "fields", "fields_one_by_one", "is_shape"]

Entry = dict[str, Any]
Values = dict[str, list[Any]]

FIELDS = (
    "record_id",
    "pg_id",
    "process_group",
    "collective_seq_id",
    "p2p_seq_id",
    "op_id",
    "profiling_name",
    "time_created_ns",
    "time_discovered_started_ns",
    "time_discovered_completed_ns",
    "input_sizes",
    "output_sizes",
    "input_dtypes",
    "output_dtypes",
    "state",
    "retired",
    "timeout_ms",
    "is_p2p",
    "thread_id",
)
P2P_NAME = re.compile(r"(?:send|recv)\s+([0-9]{1,7})\s*(->|<-)\s*([0-9]{1,7})")
_NUMBER, _TEXT, _FLAG = (frozenset({kind, type(None)}) for kind in (int, str, bool))
SCALARS = {
    **dict.fromkeys(("record_id", "collective_seq_id", "p2p_seq_id", "op_id", "timeout_ms", "time_created_ns"), _NUMBER),
    **dict.fromkeys(("time_discovered_started_ns", "time_discovered_completed_ns"), _NUMBER),
    **dict.fromkeys(("state", "thread_id"), _TEXT),
    **dict.fromkeys(("retired", "is_p2p"), _FLAG),
}
_ALL_FIELDS = itemgetter(*FIELDS)  # one call a dict; field by field takes 40 % longer
_INT_LIMIT = 1 << 62
MAX_DIMS = 64  # dimensions of a tensor
MAX_TENSORS = 65536  # tensors in one coalesced call


def fields(entries: Sequence[Entry]) -> Values:
    """field -> its value in every call (`process_group` as a (name, description) tuple).

    Raises KeyError, TypeError or UnicodeEncodeError when a field is missing or what is looked at here has another type or is no text; the
    frame made of the rest raises the same for the others. Then `fields_one_by_one` is the way.
    """
    values: Values = dict(zip(FIELDS, map(list, zip(*map(_ALL_FIELDS, entries), strict=True)), strict=True))
    _check(values)
    values["process_group"] = list(map(tuple, values["process_group"]))
    return values


def _check(values: Values) -> None:
    """Raise TypeError where a value could do harm before polars checks its type: what gets hashed. (Shapes are checked when written out.)"""
    _expect(set(map(type, values["process_group"])) <= {tuple, list} and set(map(len, values["process_group"])) == {2})
    _expect(set(map(type, chain.from_iterable(values["process_group"]))) == {str})
    "".join(set(chain.from_iterable(values["process_group"]))).encode()  # a lone surrogate cannot be stored
    _expect(set(map(type, values["profiling_name"])) <= {str})
    for name, kinds in SCALARS.items():  # polars recurses into whatever it is given
        _expect(set(map(type, values[name])) <= kinds)


def _expect(fact: bool) -> None:  # noqa: FBT001 - the one thing it is about
    if not fact:
        raise TypeError


def fields_one_by_one(entries: Sequence[Entry]) -> tuple[Values, list[Skip]]:
    """The slow way for other recorder versions and damaged calls: each field checked, what does not fit becomes null."""
    kept: list[Entry] = []
    for entry in entries:
        modern = {**entry}
        if "collective_seq_id" not in entry and "seq_id" in entry:  # before the numbering was split in two (recorder 2.0)
            modern["p2p_seq_id" if P2P_NAME.search(plain_text(entry.get("profiling_name"))) else "collective_seq_id"] = entry["seq_id"]
        for name in ("time_created", "time_discovered_started", "time_discovered_completed"):
            if f"{name}_ns" not in entry and isinstance(entry.get(f"{name}_us"), int):
                modern[f"{name}_ns"] = entry[f"{name}_us"] * 1000
        kept.append(modern)
    clean: dict[str, list[Any]] = {}
    damaged = 0
    for name in FIELDS:
        column = []
        for entry in kept:
            value, ok = _fit(name, entry.get(name))
            damaged += not ok
            column.append(value)
        clean[name] = column
    return clean, [Skip(None, f"{damaged} fields hold no value of their kind and were left empty")] if damaged else []


def _fit(name: str, value: Any) -> tuple[Any, bool]:
    """The value if it has its field's type, else an empty one; and whether it had."""
    if name in ("input_sizes", "output_sizes"):
        if value is None:
            return [], True
        ok = isinstance(value, list) and len(value) <= MAX_TENSORS and all(is_shape(shape) for shape in value)
        return (value, True) if ok else ([], False)
    if name in ("input_dtypes", "output_dtypes"):
        if value is None:
            return [], True
        ok = isinstance(value, list) and len(value) <= MAX_TENSORS and all(isinstance(kind, str) for kind in value)
        return (list(map(plain_text, value)), True) if ok else ([], False)
    if name == "process_group":
        return _key(value), value is None or isinstance(value, str) or _is_texts(value)
    if value is None:
        return None, True
    if name in ("state", "profiling_name", "thread_id"):
        return (plain_text(value), True) if isinstance(value, str | int) else (None, False)
    if name in ("retired", "is_p2p"):
        return (value, True) if isinstance(value, bool) else (None, False)
    ok = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _INT_LIMIT
    return (value, True) if ok else (None, name == "pg_id")


def is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and len(shape) <= MAX_DIMS and all(isinstance(n, int) and not isinstance(n, bool) for n in shape)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) <= 2 and all(isinstance(text, str) for text in value)


def _key(value: Any) -> tuple[str, str]:
    """(name, description): a pair, or in old recorders a name alone."""
    if _is_texts(value):
        return (plain_text(value[0]) if value else "", plain_text(value[1]) if len(value) > 1 else "")
    return (plain_text(value), "")
