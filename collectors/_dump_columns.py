"""The calls of one dump as columns: one pass per field, each distinct shape, name and stack turned into text once.

A dump holds thousands of calls but few distinct values, so every field is pulled out with one comprehension and the expensive part
(parsing a name, writing a shape, describing a stack) is done per distinct value. Measured: the load costs 5.5 us a call, the rest about 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import polars as pl

from collectors._dump_groups import Group, Groups
from collectors._groups import plain_text
from collectors._stack_keys import describe
from rca.tables import Table
from rca.types import Skip, Source

__all__ = ["columns", "rank_of_content"]

Entry = dict[str, Any]

_FIELDS = (
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
_TAKE = itemgetter(*_FIELDS)
_P2P = re.compile(r"(?:send|recv)\s+(\d{1,7})\s*(->|<-)\s*(\d{1,7})")
_INT_LIMIT = 1 << 62
MAX_DIMS = 64  # dimensions of a tensor
MAX_TENSORS = 65536  # tensors in one coalesced call
MAX_FRAMES = 1024


def columns(entries: Sequence[Entry], groups: Groups, rank: int | None, table: Table) -> tuple[pl.DataFrame, list[Entry], list[Skip]]:
    """`collectives` rows of the calls in file order, their distinct stacks (`stack_frames` rows), and what had to be left out."""
    skipped: list[Skip] = []
    try:
        taken = list(map(_TAKE, entries))
        values = dict(zip(_FIELDS, map(list, zip(*taken, strict=True)), strict=True))
        _check(values)
    except (KeyError, TypeError):
        entries, values, skipped = _one_by_one(entries)
    names, flags = _names(values, groups)
    stack_ids, frames = _stacks(entries)
    data: dict[str, Any] = {
        "rank": rank,
        **names,
        "is_p2p": [bool(flag) or by_name for flag, by_name in zip(values["is_p2p"], flags, strict=True)],
        **{name: values[name] for name in ("record_id", "collective_seq_id", "p2p_seq_id", "op_id", "state", "thread_id")},
        "is_retired": values["retired"],
        "sizes": _pairs(values["input_sizes"], values["output_sizes"], _shape),
        "dtypes": _pairs(values["input_dtypes"], values["output_dtypes"], _types),
        "created_at": _instants(values["time_created_ns"]),
        "started_at": _instants(values["time_discovered_started_ns"]),
        "completed_at": _instants(values["time_discovered_completed_ns"]),
        "timeout_s": pl.Series(values["timeout_ms"], dtype=pl.Float64) / 1000,
        "stack_id": stack_ids,
        "record": pl.select("E" + pl.int_range(len(entries)).cast(pl.String)).to_series(),
    }
    return table.frame(data, height=len(entries)), frames, skipped


def _check(values: dict[str, list[Any]]) -> None:
    """Raise TypeError unless every value has the type a recorder writes: a hostile file must not reach the fast path."""
    kinds: dict[str, set[type]] = {name: set(map(type, column)) for name, column in values.items()}
    none = type(None)
    for name in ("record_id", "collective_seq_id", "p2p_seq_id", "op_id", "timeout_ms", "time_created_ns"):
        _expect(kinds[name] <= {int, none})
        _expect(all(-_INT_LIMIT < number < _INT_LIMIT for number in values[name] if number is not None))
    for name in ("time_discovered_started_ns", "time_discovered_completed_ns"):
        _expect(kinds[name] <= {int, none})
    _expect(kinds["state"] | kinds["profiling_name"] | kinds["thread_id"] <= {str, none})
    _expect(kinds["retired"] | kinds["is_p2p"] <= {bool, none})
    for name, inner in (("input_sizes", int), ("output_sizes", int)):
        _expect(kinds[name] == {list})
        shapes = list(chain.from_iterable(values[name]))
        _expect(set(map(type, shapes)) <= {list} and set(map(type, chain.from_iterable(shapes))) <= {inner})
    for name in ("input_dtypes", "output_dtypes"):
        _expect(kinds[name] == {list} and set(map(type, chain.from_iterable(values[name]))) <= {str})
    _expect(kinds["process_group"] <= {tuple, list} and set(map(type, chain.from_iterable(values["process_group"]))) <= {str})


def _expect(fact: bool) -> None:  # noqa: FBT001 - the one thing it is about
    if not fact:
        raise TypeError


def _one_by_one(entries: Sequence[Entry]) -> tuple[list[Entry], dict[str, list[Any]], list[Skip]]:
    """The slow way for other recorder versions and damaged calls: each field checked, what does not fit becomes null."""
    kept: list[Entry] = []
    for entry in entries:
        modern = {**entry}
        if "collective_seq_id" not in entry and "seq_id" in entry:  # before the numbering was split in two (recorder 2.0)
            modern["p2p_seq_id" if _P2P.search(plain_text(entry.get("profiling_name"))) else "collective_seq_id"] = entry["seq_id"]
        for name in ("time_created", "time_discovered_started", "time_discovered_completed"):
            if f"{name}_ns" not in entry and isinstance(entry.get(f"{name}_us"), int):
                modern[f"{name}_ns"] = entry[f"{name}_us"] * 1000
        kept.append(modern)
    clean: dict[str, list[Any]] = {}
    damaged = 0
    for name in _FIELDS:
        column = []
        for entry in kept:
            value, ok = _fit(name, entry.get(name))
            damaged += not ok
            column.append(value)
        clean[name] = column
    return (
        kept,
        clean,
        [Skip(None, f"{damaged} fields hold no value of their kind and were left empty")] if damaged else [],
    )


def _fit(name: str, value: Any) -> tuple[Any, bool]:
    """The value if it has its field's type, else an empty one; and whether it had."""
    if name in ("input_sizes", "output_sizes"):
        if value is None:
            return [], True
        ok = isinstance(value, list) and len(value) <= MAX_TENSORS and all(_is_shape(shape) for shape in value)
        return (value, True) if ok else ([], False)
    if name in ("input_dtypes", "output_dtypes"):
        if value is None:
            return [], True
        ok = isinstance(value, list) and len(value) <= MAX_TENSORS and all(isinstance(kind, str) for kind in value)
        return (value, True) if ok else ([], False)
    if name == "process_group":
        return Groups.key(value if isinstance(value, str) or _is_texts(value) else None), value is None or isinstance(
            value, str
        ) or _is_texts(value)
    if value is None:
        return None, True
    if name in ("state", "profiling_name", "thread_id"):
        return (value, True) if isinstance(value, str) else (str(value) if isinstance(value, int) else None, isinstance(value, int))
    if name in ("retired", "is_p2p"):
        return (value, True) if isinstance(value, bool) else (None, False)
    ok = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _INT_LIMIT
    return (value, True) if ok else (None, name == "pg_id")


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and len(shape) <= MAX_DIMS and all(isinstance(n, int) and not isinstance(n, bool) for n in shape)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) <= 2 and all(isinstance(text, str) for text in value)


def _names(values: dict[str, list[Any]], groups: Groups) -> tuple[dict[str, list[Any]], list[bool]]:
    """group_id, backend, op, src, dst; parsed once per distinct (name, group). And whether the name is a point-to-point one."""
    memo: dict[tuple[Any, Any], tuple[Any, ...]] = {}
    rows = []
    for name, key in zip(values["profiling_name"], map(tuple, values["process_group"]), strict=True):
        found = memo.get((name, key))
        if found is None:
            found = memo[name, key] = _parse(name, groups.of(key))
        rows.append(found)
    group_ids, backends, ops, sources, targets, p2p = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [], [], [])
    return {"group_id": group_ids, "backend": backends, "op": ops, "src": sources, "dst": targets}, p2p


def _parse(name: Any, group: Group) -> tuple[Any, ...]:
    text = plain_text(name)
    backend, colon, op = text.partition(":")
    if not colon:
        backend, op = "", text
    pair = _P2P.search(op)
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


def _shape(tensors: list[list[int]]) -> str:
    return " ".join(",".join(map(str, shape)).join("[]") for shape in tensors)


def _types(kinds: list[str]) -> str:
    return " ".join(dict.fromkeys(kinds))


def _pairs(inputs: Iterable[list[Any]], outputs: Iterable[list[Any]], write: Any) -> list[str]:
    """ "input -> output" of each call, written once per distinct pair."""
    memo: dict[Any, str] = {}
    found = []
    for one, two in zip(inputs, outputs, strict=True):
        key = (*map(_hashable, one), None, *map(_hashable, two))
        text = memo.get(key)
        if text is None:
            text = memo[key] = f"{write(one)} -> {write(two)}"
        found.append(text)
    return found


def _hashable(value: Any) -> Any:
    return tuple(value) if type(value) is list else value


def _instants(nanoseconds: list[Any]) -> pl.Series:
    """UTC instants; 0 is how the JSON form writes "never"."""
    numbers = pl.Series(nanoseconds, dtype=pl.Int64, strict=False)
    micro = (numbers // 1000).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    return pl.select(pl.when(numbers > 0).then(micro)).to_series()


def _stacks(entries: Sequence[Entry]) -> tuple[list[str | None], list[Entry]]:
    """Stack id of each call and the distinct stacks. A pickle shares its frame objects, so a stack is told by their identities."""
    memo: dict[tuple[int, ...], str | None] = {}
    rows: dict[str, Entry] = {}
    ids: list[str | None] = []
    for place, entry in enumerate(entries):
        frames = entry.get("frames")
        if not frames or type(frames) is not list or len(frames) > MAX_FRAMES:
            ids.append(None)
            continue
        key = tuple(map(id, frames))
        if key not in memo:
            memo[key] = _describe(frames, f"E{place}", rows)
        ids.append(memo[key])
    return ids, list(rows.values())


def _describe(frames: list[Any], record: str, rows: dict[str, Entry]) -> str | None:
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
            "activity": stack.activity,
            "wait_kind": stack.wait_kind,
        },
    )
    return stack.stack_id


def rank_of_content(source: Source, groups: Groups, entries: Sequence[Entry]) -> tuple[int | None, str]:
    """The global rank a dump is of, and a doubt to report ("" = none).

    1. A process is a member of every group it lists, so the rank lies in their intersection; a point-to-point call names it outright.
    2. The file's name is believed when the content allows it; when the content leaves one rank only, the content decides.
    """
    listed = [set(g.ranks) for g in groups.all() if g.ranks]
    possible = set.intersection(*listed) if listed else set()
    said = {rank for rank in map(lambda e: _own_rank(e, groups), entries[-MAX_DIMS:]) if rank is not None}
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


def _own_rank(entry: Entry, groups: Groups) -> int | None:
    """The caller's global rank from "send 0->1" or "recv 0<-1": the first number is its place in the group."""
    pair = _P2P.search(plain_text(entry.get("profiling_name")))
    ranks = groups.of(entry.get("process_group")).ranks if pair else ()
    return ranks[int(pair[1])] if pair and int(pair[1]) < len(ranks) else None
