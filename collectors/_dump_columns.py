"""The calls of one dump as a frame: each distinct name, shape and stack is turned into text once, the rest is column arithmetic.

A dump holds thousands of calls but few distinct values. Measured: loading costs 3-5 us a call, this about as much.
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import polars as pl

from collectors._dump_fields import P2P_NAME, Entry, Values
from collectors._dump_groups import Group, Groups
from collectors._groups import plain_text
from collectors._stack_keys import describe
from rca.tables import Table
from rca.types import Source

__all__ = ["columns", "rank_of_content", "stacks"]

MAX_FRAMES = 1024
RECORD_BLOCK = 4096
TAIL = 128  # last calls of a rank in a group (and direction) that count as its tail
LAST_CALLS = 64  # calls that are looked at for the rank a point-to-point call names

_Names = tuple[str, str | None, str | None, int | None, int | None, bool]


def columns(values: Values, groups: Groups, rank: int | None, stack_ids: list[str | None], table: Table) -> pl.DataFrame:
    """`collectives` rows in file order."""
    names = _names(values, groups)
    raw = pl.DataFrame(
        {
            "record_id": pl.Series(values["record_id"], dtype=pl.Int64),
            "collective_seq_id": pl.Series(values["collective_seq_id"], dtype=pl.Int64),
            "p2p_seq_id": pl.Series(values["p2p_seq_id"], dtype=pl.Int64),
            "op_id": pl.Series(values["op_id"], dtype=pl.Int64),
            "group_id": pl.Series([n[0] for n in names], dtype=pl.String),
            "backend": pl.Series([n[1] for n in names], dtype=pl.String),
            "op": pl.Series([n[2] for n in names], dtype=pl.String),
            "src": pl.Series([n[3] for n in names], dtype=pl.Int64),
            "dst": pl.Series([n[4] for n in names], dtype=pl.Int64),
            "named_p2p": pl.Series([n[5] for n in names], dtype=pl.Boolean),
            "flag_p2p": pl.Series(values["is_p2p"], dtype=pl.Boolean),
            "state": pl.Series(values["state"], dtype=pl.String),
            "is_retired": pl.Series(values["retired"], dtype=pl.Boolean),
            "sizes": pl.Series(_sizes(values), dtype=pl.String),
            "dtypes": pl.Series(_dtypes(values), dtype=pl.String),
            "created": pl.Series(values["time_created_ns"], dtype=pl.Int64),
            "started": pl.Series(values["time_discovered_started_ns"], dtype=pl.Int64),
            "completed": pl.Series(values["time_discovered_completed_ns"], dtype=pl.Int64),
            "timeout_ms": pl.Series(values["timeout_ms"], dtype=pl.Int64),
            "thread_id": pl.Series(values["thread_id"], dtype=pl.String),
            "stack_id": pl.Series(stack_ids, dtype=pl.String),
        }
    )
    retired = pl.col("is_retired").fill_null(value=False)
    ended = (pl.col("state") == "completed") | (retired & (pl.col("backend") == "gloo"))
    known: dict[str, pl.Expr] = {
        "record": pl.lit(_records(len(names))),
        "rank": pl.lit(rank, dtype=pl.Int64),
        "is_p2p": pl.col("flag_p2p").fill_null(value=False) | pl.col("named_p2p"),
        "created_at": _instant("created"),
        "started_at": _instant("started"),
        "completed_at": _instant("completed"),
        "timeout_s": pl.col("timeout_ms") / 1000,
        "is_tail": ~ended.fill_null(value=False) | pl.lit(pl.Series(_tail(names), dtype=pl.Boolean)),
    }
    for c in table.columns:
        known.setdefault(c.name, pl.col(c.name) if c.name in raw.columns else pl.lit(None, dtype=c.dtype))
    return raw.select(known[c.name].alias(c.name) for c in table.columns)


def _records(height: int) -> pl.Series:
    """E0, E1, ...: made once in blocks and cut to length."""
    return _record_block(-(-height // RECORD_BLOCK)).head(height)


@lru_cache(maxsize=4)
def _record_block(blocks: int) -> pl.Series:
    return "E" + pl.Series(range(blocks * RECORD_BLOCK)).cast(pl.String)


def _tail(names: Sequence[_Names]) -> list[bool]:
    """Whether each call is among the last TAIL of its group and direction."""
    lanes = {name: (name[0], name[3], name[4]) for name in set(names)}
    counts = dict.fromkeys(lanes.values(), TAIL)
    found = []
    for name in reversed(names):
        lane = lanes[name]
        counts[lane] -= 1
        found.append(counts[lane] >= 0)
    found.reverse()
    return found


def _instant(column: str) -> pl.Expr:
    """UTC instant from nanoseconds; 0 is how the JSON form writes "never"."""
    number = pl.col(column)
    return pl.when(number > 0).then((number // 1000).cast(pl.Datetime("us"))).dt.replace_time_zone("UTC")


def _names(values: Values, groups: Groups) -> list[_Names]:
    """group_id, backend, op, src, dst, and whether the name is a point-to-point one: parsed once per distinct (name, group)."""
    memo: dict[tuple[Any, Any], _Names] = {}
    pairs = list(zip(values["profiling_name"], values["process_group"], strict=True))
    for pair in set(pairs):
        memo[pair] = _parse(pair[0], groups.of(pair[1]))
    return list(map(memo.__getitem__, pairs))


def _parse(name: Any, group: Group) -> _Names:
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
    """ "input -> output" shapes of each call, written once per distinct pair; a pair is told by its marshalled bytes, which C makes fast.

    Version 0 of that form has no back-references: `fields` has made sure that these are lists of lists of numbers and nothing deeper.
    """
    pairs = list(zip(values["input_sizes"], values["output_sizes"], strict=True))
    keys = [marshal.dumps(pair, 0) for pair in pairs]
    texts = {key: f"{_shapes(pair[0])} -> {_shapes(pair[1])}" for key, pair in dict(zip(keys, pairs, strict=True)).items()}
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
    lists = [entry.get("frames") for entry in entries]
    keys = list(map(id, lists))
    first: dict[int, int] = {}
    for place, key in enumerate(keys):
        first.setdefault(key, place)
    by_frames: dict[tuple[int, ...], str | None] = {}
    rows: dict[str, Entry] = {}
    ids: dict[int, str | None] = {}
    for key, place in first.items():
        frames = lists[place]
        if not frames or type(frames) is not list or len(frames) > MAX_FRAMES:
            ids[key] = None
            continue
        content = tuple(map(id, frames))
        if content not in by_frames:
            by_frames[content] = _describe(frames, f"E{place}", rows)
        ids[key] = by_frames[content]
    return list(map(ids.__getitem__, keys)), list(rows.values())


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


def rank_of_content(source: Source, groups: Groups, values: Values) -> tuple[int | None, str]:
    """The global rank a dump is of, and a doubt to report ("" = none).

    1. A process is a member of every group it lists, so the rank lies in their intersection; a point-to-point call names it outright.
    2. The file's name is believed when the content allows it; when the content leaves one rank only, the content decides.
    """
    listed = [set(g.ranks) for g in groups.all() if g.ranks]
    possible = set.intersection(*listed) if listed else set()
    calls = zip(values.get("profiling_name", ())[-LAST_CALLS:], values.get("process_group", ())[-LAST_CALLS:], strict=True)
    said = {rank for name, key in calls if (rank := _own_rank(name, groups.of(key))) is not None}
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
