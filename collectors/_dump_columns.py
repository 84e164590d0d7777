"""The calls of one dump as a frame: each distinct name, shape and stack is turned into text once, the rest is column arithmetic.

A dump holds thousands of calls but few distinct values. Measured: loading costs 3-5 us a call, this about as much.
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import polars as pl

from collectors._dump_fields import P2P_NAME, Entry, Values, is_shape
from collectors._dump_groups import Group, Groups
from collectors._groups import plain_text
from collectors._stack_keys import describe
from rca.tables import Table
from rca.types import Source

__all__ = ["columns", "rank_of_content", "stacks"]

MAX_FRAMES = 1024
RECORD_BLOCK = 4096
TAIL = 64  # last calls of a rank in a group (and direction) that count as its tail
LAST_CALLS = 64  # calls that are looked at for the rank a point-to-point call names

_FRAMES = itemgetter("frames")
_Name = tuple[str, str | None, str | None, int | None, int | None, bool]
_NAME_COLUMNS = ("group_id", "backend", "op", "src", "dst", "is_p2p")


def columns(values: Values, groups: Groups, rank: int | None, stack_ids: list[str | None], table: Table) -> pl.DataFrame:
    """`collectives` rows in file order. Series by Series: a query over so few rows costs more to plan than to run."""
    height = len(stack_ids)
    numbers, kinds = _names(values, groups)
    distinct = pl.DataFrame(
        [pl.Series(name, [kind[at] for kind in kinds], dtype=table.schema[name]) for at, name in enumerate(_NAME_COLUMNS)]
    )
    found = distinct[pl.Series(numbers, dtype=pl.UInt32)].to_dict()
    found |= {name: pl.Series(values[name], dtype=pl.Int64) for name in ("record_id", "collective_seq_id", "p2p_seq_id", "op_id")}
    found |= {name: pl.Series(values[name], dtype=pl.String) for name in ("state", "thread_id")}
    found["is_p2p"] = _known(pl.Series(values["is_p2p"], dtype=pl.Boolean)) | found["is_p2p"]
    found["is_retired"] = pl.Series(values["retired"], dtype=pl.Boolean)
    found["sizes"] = pl.Series(_sizes(values), dtype=pl.String)
    found["dtypes"] = pl.Series(_dtypes(values), dtype=pl.String)
    found["created_at"] = _instants(values["time_created_ns"])
    found["started_at"] = _instants(values["time_discovered_started_ns"])
    found["completed_at"] = _instants(values["time_discovered_completed_ns"])
    found["timeout_s"] = pl.Series(values["timeout_ms"], dtype=pl.Int64) / 1000
    found["stack_id"] = pl.Series(stack_ids, dtype=pl.String)
    found["record"] = _records(height)
    found["rank"] = pl.Series([rank], dtype=pl.Int64).new_from_index(0, height)
    ended = (found["state"] == "completed") | (found["is_retired"] & (found["backend"] == "gloo"))
    found["is_tail"] = ~_known(ended) | pl.Series(_tail(numbers, kinds), dtype=pl.Boolean)
    return table.frame(found, height=height)


def _known(flags: pl.Series) -> pl.Series:
    """Null as false; most columns have none, and looking costs less than filling."""
    return flags.fill_null(value=False) if flags.null_count() else flags


def _records(height: int) -> pl.Series:
    """E0, E1, ...: made once in blocks and cut to length."""
    return _record_block(-(-height // RECORD_BLOCK)).head(height)


@lru_cache(maxsize=4)
def _record_block(blocks: int) -> pl.Series:
    return "E" + pl.Series(range(blocks * RECORD_BLOCK)).cast(pl.String)


def _tail(numbers: Sequence[int], kinds: Sequence[_Name]) -> list[bool]:
    """Whether each call is among the last TAIL of its group and direction."""
    lanes: dict[tuple[Any, ...], int] = {}
    lane_of = [lanes.setdefault((kind[0], kind[3], kind[4]), len(lanes)) for kind in kinds]
    left = [TAIL] * len(lanes)
    found = []
    for number in reversed(numbers):
        lane = lane_of[number]
        left[lane] -= 1
        found.append(left[lane] >= 0)
    found.reverse()
    return found


def _instants(nanoseconds: list[Any]) -> pl.Series:
    """UTC instants from nanoseconds; 0 is how the JSON form writes "never"."""
    numbers = pl.Series(nanoseconds, dtype=pl.Int64)
    instants = numbers.cast(pl.Datetime("ns", "UTC")).cast(pl.Datetime("us", "UTC"))
    never = numbers <= 0
    return instants.set(_known(never), None) if never.any() else instants


def _names(values: Values, groups: Groups) -> tuple[list[int], list[_Name]]:
    """The number of each call's kind, and the kinds: group_id, backend, op, src, dst, and whether the name is a point-to-point one.

    Parsed once per distinct (name, group).
    """
    pairs = list(zip(values["profiling_name"], values["process_group"], strict=True))
    number = {pair: at for at, pair in enumerate(dict.fromkeys(pairs))}
    return list(map(number.__getitem__, pairs)), [_parse(name, groups.of(key)) for name, key in number]


def _parse(name: Any, group: Group) -> _Name:
    text = plain_text(name)
    backend, colon, op = text.partition(":")
    if not colon:
        backend, op = "", text
    pair = P2P_NAME.search(op)
    source = target = None
    if pair:
        first, second = int(pair[1]), int(pair[3])
        source, target = (first, second) if pair[2] == "->" else (second, first)
        if group.ranks:  # the name counts inside the group
            source = group.ranks[source] if source < len(group.ranks) else None
            target = group.ranks[target] if target < len(group.ranks) else None
        else:
            source = target = None
    return group.id, backend or None, op or None, source, target, pair is not None


def _sizes(values: Values) -> list[str]:
    """ "input -> output" shapes of each call, written (and checked) once per distinct pair; a pair is told by its marshalled bytes.

    That form keeps types apart, refuses endless nesting and writes a shared part once, so a hostile value costs no more than its size.
    """
    pairs = list(zip(values["input_sizes"], values["output_sizes"], strict=True))
    try:
        keys = list(map(marshal.dumps, pairs))
    except ValueError as error:  # nested too deep, or of a type that no dump holds
        raise TypeError(error) from None
    distinct = dict(zip(keys, pairs, strict=True))
    if not all(type(side) is list and all(map(is_shape, side)) for pair in distinct.values() for side in pair):
        raise TypeError("a shape is no list of numbers")
    texts = {key: f"{_shapes(pair[0])} -> {_shapes(pair[1])}" for key, pair in distinct.items()}
    return list(map(texts.__getitem__, keys))


def _shapes(tensors: Sequence[Sequence[int]]) -> str:
    return " ".join(",".join(map(str, shape)).join("[]") for shape in tensors)


def _dtypes(values: Values) -> list[str]:
    """ "input -> output" types of each call, each type once."""
    pairs = list(zip(map(" ".join, values["input_dtypes"]), map(" ".join, values["output_dtypes"]), strict=True))
    texts = {pair: " -> ".join(" ".join(dict.fromkeys(side.split(" "))) for side in pair) for pair in set(pairs)}
    return list(map(texts.__getitem__, pairs))


def stacks(entries: Sequence[Entry]) -> tuple[list[str | None], list[Entry]]:
    """Stack id of each call, and the distinct stacks as `stack_frames` rows.

    A pickle shares its frame objects (often the whole list), so a stack is told by their identities.
    """
    try:
        lists = list(map(_FRAMES, entries))
    except KeyError:  # recorded without stacks, wholly or in part
        lists = [entry.get("frames") for entry in entries]
    keys = list(map(id, lists))
    first = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))  # the earliest place of each wins
    alike: dict[tuple[int, int], list[tuple[list[Any], str | None]]] = {}  # innermost frame and length -> stacks that begin so
    rows: dict[str, Entry] = {}
    ids: dict[int, str | None] = {}
    for key, place in first.items():
        frames = lists[place]
        if not frames or type(frames) is not list or len(frames) > MAX_FRAMES:
            ids[key] = None
            continue
        known = alike.setdefault((id(frames[0]), len(frames)), [])
        for other, stack_id in known:
            if all(map(is_, frames, other)):
                ids[key] = stack_id
                break
        else:
            ids[key] = _describe(frames, f"E{place}", rows)
            known.append((frames, ids[key]))
    return list(map(ids.__getitem__, keys)), list(rows.values())


def _describe(frames: list[Any], record: str, rows: dict[str, Entry]) -> str | None:
    try:
        known = [(frame["name"], frame["filename"]) for frame in frames]
        if not set(map(type, chain.from_iterable(known))) <= {str}:
            raise TypeError
        "".join(chain.from_iterable(known)).encode()  # a lone surrogate cannot be stored
    except (KeyError, TypeError, UnicodeEncodeError):
        named = [f for f in frames if isinstance(f, dict) and plain_text(f.get("name"))]
        known = [(plain_text(f["name"]), plain_text(f.get("filename")) or None) for f in named]
    if not known:
        return None
    stack = describe(known)
    rows.setdefault(
        stack.stack_id,
        {
            "record": record,
            "stack_id": stack.stack_id,
            "frames": list(stack.frames),
            "leaf": stack.leaf,
            "leaf_key": stack.leaf_key,
            "shown": list(stack.shown),
            "activity": stack.activity,
            "wait_kind": stack.wait_kind,
        },
    )
    return stack.stack_id


def rank_of_content(source: Source, groups: Groups, values: Values) -> tuple[int | None, str]:
    """The global rank a dump is of, and a doubt to report ("" = none).

    1. A process is a member of every group it lists, so the rank lies in their intersection; a point-to-point call names it outright.
    2. The file's name is believed when the content allows it; when the content leaves one rank only, the content decides.
    """
    listed = [set(g.ranks) for g in groups.all() if g.ranks]
    possible = set.intersection(*listed) if listed else set()
    calls = zip(values.get("profiling_name", ())[-LAST_CALLS:], values.get("process_group", ())[-LAST_CALLS:], strict=True)
    said = {rank for name, key in set(calls) if (rank := _own_rank(name, groups.of(key))) is not None}
    if len(said) == 1 and (not possible or said <= possible):
        possible = said
    hint = source.rank_hint
    if hint is not None and (not possible or hint in possible):
        return hint, ""
    if len(possible) == 1:
        only = next(iter(possible))
        return (
            only,
            f"the name says rank {hint}, but the process groups in it are those of rank {only}" if source.rank_said is not None else "",
        )
    if hint is not None:
        return (
            None,
            f"the name says rank {hint}, which is in none of the process groups that the dump lists; rank left open",
        )
    return None, "nothing says which rank this dump is of; its calls are kept, but no rank is accused by them"


def _own_rank(name: Any, group: Group) -> int | None:
    """The caller's global rank from "send 0->1" or "recv 0<-1": the first number is its place in the group."""
    pair = P2P_NAME.search(plain_text(name))
    return group.ranks[int(pair[1])] if pair and int(pair[1]) < len(group.ranks) else None
