"""The calls of one dump as a frame: each distinct name, shape and stack is turned into text once, the rest is column arithmetic.

A dump holds thousands of calls but few distinct values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from collectors._dump_calls import Calls, Coded, Known, texts_of_dtypes, texts_of_sizes
from collectors._dump_fields import P2P_NAME, Entry
from collectors._dump_groups import Group, Groups
from collectors._groups import Ranks, plain_text
from collectors._stack_keys import describe
from rca.tables import Table
from rca.types import Source

__all__ = ["Dump", "columns", "created", "rank_of_content", "stacks"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RECORD_BLOCK = 4096
TAIL = 64  # last calls of a rank in a group (and direction) that count as its tail
LAST_CALLS = 64  # calls that are looked at for the rank a point-to-point call names

_Name = tuple[str, str | None, str | None, int | None, int | None, bool]
_NAME_COLUMNS = ("group_id", "backend", "op", "src", "dst", "is_p2p")
_INSTANTS = {"created_at": "time_created_ns", "started_at": "time_discovered_started_ns", "completed_at": "time_discovered_completed_ns"}
_SAME = ("record_id", "collective_seq_id", "p2p_seq_id", "op_id")


@dataclass(frozen=True)
class Dump:
    """One dump with what is told of it as a whole."""

    evidence_id: str | None
    rank: int | None
    groups: Groups
    calls: Calls
    stack_ids: Sequence[str | None]  # of each distinct stack


def columns(dumps: Sequence[Dump], table: Table) -> pl.DataFrame:
    """`collectives` rows of some dumps, in file order. For many at once: a column costs the same for one dump as for a hundred."""
    if not any(d.calls.height for d in dumps):
        return table.frame()
    kinds = [[_parse(name, d.groups.of(key)) for name, key in d.calls.kinds.distinct] for d in dumps]
    heights = np.array([d.calls.height for d in dumps])
    of_kind, every = _joined([d.calls.kinds for d in dumps]), [kind for some in kinds for kind in some]
    found: dict[str, Any] = {
        name: _spread(of_kind, [kind[at] for kind in every], table.schema[name]) for at, name in enumerate(_NAME_COLUMNS)
    }
    found |= {name: _series([d.calls.numbers[name] for d in dumps]) for name in _SAME}
    told: dict[str, tuple[list[Coded], list[Any]]] = {
        "state": ([d.calls.states for d in dumps], [d.calls.states.distinct for d in dumps]),
        "thread_id": ([d.calls.threads for d in dumps], [d.calls.threads.distinct for d in dumps]),
        "sizes": ([d.calls.sizes for d in dumps], [texts_of_sizes(d.calls.sizes.distinct) for d in dumps]),
        "dtypes": ([d.calls.dtypes for d in dumps], [texts_of_dtypes(d.calls.dtypes.distinct) for d in dumps]),
        "stack_id": ([d.calls.stacks for d in dumps], [d.stack_ids for d in dumps]),
    }
    found |= {
        name: _spread(_joined(coded), [text for some in texts for text in some], pl.String()) for name, (coded, texts) in told.items()
    }
    is_p2p = np.concatenate([d.calls.flags["is_p2p"].is_set for d in dumps])
    found["is_p2p"] = pl.Series(is_p2p | np.array([kind[5] for kind in every], bool)[of_kind])
    found["is_retired"] = _series([d.calls.flags["retired"] for d in dumps])
    found |= {name: _instants([d.calls.numbers[source] for d in dumps]) for name, source in _INSTANTS.items()}
    found["timeout_s"] = _series([d.calls.numbers["timeout_ms"] for d in dumps]) / 1000
    found["record"] = pl.concat([_records(d.calls.height) for d in dumps])
    found["rank"] = _spread(np.repeat(np.arange(len(dumps)), heights), [d.rank for d in dumps], table.schema["rank"])
    if any(d.evidence_id for d in dumps):
        found["evidence_id"] = _spread(np.repeat(np.arange(len(dumps)), heights), [d.evidence_id for d in dumps], pl.String())
    found["is_tail"] = pl.Series(
        np.concatenate([_open(d.calls, some) | _tail(d.calls.kinds, some) for d, some in zip(dumps, kinds, strict=True)])
    )
    return table.frame(found, height=int(heights.sum()))


def _joined(coded: Sequence[Coded]) -> NDArray[np.int32]:
    """The numbers of some columns, of which the distinct values are put one behind the other."""
    starts = np.cumsum([0, *(len(one.distinct) for one in coded[:-1])])
    return np.concatenate([one.numbers + np.int32(start) for one, start in zip(coded, starts, strict=True)])


def _spread(numbers: NDArray[Any], values: Sequence[Any], dtype: Any) -> pl.Series:
    return pl.Series(values, dtype=dtype).gather(numbers)


def _series(known: Sequence[Known]) -> pl.Series:
    values, is_known = np.concatenate([one.values for one in known]), np.concatenate([one.known for one in known])
    found = pl.Series(values)
    return found if is_known.all() else found.set(pl.Series(~is_known), None)


def _instants(known: Sequence[Known]) -> pl.Series:
    """UTC instants from nanoseconds; 0 is how the JSON form writes "never"."""
    values = np.concatenate([one.values for one in known])
    found, never = pl.Series(values // 1000), values <= 0
    return (found.set(pl.Series(never), None) if never.any() else found).cast(pl.Datetime("us", "UTC"))


def created(calls: Calls) -> tuple[datetime | None, datetime | None]:
    """When the first and the last call was made."""
    told = calls.numbers["time_created_ns"].values
    told = told[told > 0]
    return (_instant(int(told.min())), _instant(int(told.max()))) if len(told) else (None, None)


def _instant(nanoseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=nanoseconds // 1000)


def _records(height: int) -> pl.Series:
    """E0, E1, ...: made once in blocks and cut to length."""
    return _record_block(-(-height // RECORD_BLOCK)).head(height)


@lru_cache(maxsize=4)
def _record_block(blocks: int) -> pl.Series:
    return "E" + pl.Series(range(blocks * RECORD_BLOCK)).cast(pl.String)


def _open(calls: Calls, kinds: Sequence[_Name]) -> NDArray[np.bool_]:
    """Whether each call was not seen to end; with gloo its being put away is the only sign."""
    is_completed = np.array([state == "completed" for state in calls.states.distinct], bool)[calls.states.numbers]
    is_gloo = np.array([kind[1] == "gloo" for kind in kinds], bool)[calls.kinds.numbers]
    found: NDArray[np.bool_] = ~(is_completed | (calls.flags["retired"].is_set & is_gloo))
    return found


def _tail(coded: Coded, kinds: Sequence[_Name]) -> NDArray[np.bool_]:
    """Whether each call is among the last TAIL of its group and direction."""
    lanes: dict[tuple[Any, ...], int] = {}
    lane = np.array([lanes.setdefault((kind[0], kind[3], kind[4]), len(lanes)) for kind in kinds])[coded.numbers]
    order = np.argsort(lane, kind="stable")
    ends = np.cumsum(np.bincount(lane, minlength=len(lanes)))
    found = np.zeros(len(lane), bool)
    found[order] = np.arange(len(lane)) >= ends[lane[order]] - TAIL
    return found


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


def stacks(calls: Calls) -> tuple[list[str | None], list[Entry]]:
    """Stack id of each distinct stack, and `stack_frames` rows."""
    rows: dict[str, Entry] = {}
    told = zip(calls.stacks.distinct, calls.first_of_stack, strict=True)
    return [_describe(frames, f"E{place}", rows) if frames else None for frames, place in told], list(rows.values())


def _describe(frames: Sequence[tuple[str, str | None]], record: str, rows: dict[str, Entry]) -> str:
    stack = describe(frames)
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


def rank_of_content(source: Source, groups: Groups, calls: Calls) -> tuple[int | None, str]:
    """The global rank a dump is of, and a doubt to report ("" = none).

    1. A process is a member of every group it lists, so the rank lies in their intersection; a point-to-point call names it outright.
    2. The file's name is believed when the content allows it; when the content leaves one rank only, the content decides.
    """
    smallest, *larger = sorted((g.ranks for g in groups.all() if g.ranks), key=len) or [Ranks()]
    possible = {rank for rank in smallest if all(ranks.place(rank) is not None for ranks in larger)}
    last = [calls.kinds.distinct[number] for number in np.unique(calls.kinds.numbers[-LAST_CALLS:])]
    said = {rank for name, key in last if (rank := _own_rank(name, groups.of(key))) is not None}
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
