"""A table of transfers between pairs of ranks, one row each: what its columns are by their headings, and its rows as rows of `transfers`.

    src_rank,dst_rank,transfer_s,bytes        and, where told: step, op, group, seq_id, started_at

What a delay matrix (C4, HPCA'25) is made of, whoever measured it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from collectors._step_names import MAX_TIME_S, PLAIN, START, STEP, heading, split
from collectors._step_table import instants, numbers, wholes
from rca.tables import TABLES

if TYPE_CHECKING:
    from rca.tables import Table

__all__ = ["TransferLayout", "transfer_frames", "transfer_layout"]

_SRC: Final = ("src_rank", "source_rank", "sender_rank", "send_rank", "from_rank", "tx_rank", "src", "source", "sender")
_DST: Final = (
    "dst_rank",
    "dest_rank",
    "destination_rank",
    "receiver_rank",
    "recv_rank",
    "to_rank",
    "rx_rank",
    "dst",
    "dest",
    "destination",
)
_TIMES: Final = frozenset({"transfer", "dur", "duration", "latency", "elapsed", "delay", "send", "recv", "comm", "p2p"})
_BYTES: Final = ("bytes", "size_bytes", "nbytes", "num_bytes", "msg_bytes", "message_bytes", "transfer_bytes", "size")
_OP: Final = ("op", "operation", "optype", "op_type", "op_name", "collective")
_GROUP: Final = ("group_desc", "process_group", "group", "pg_desc", "comm_name")
_SEQ: Final = ("seq_id", "seq", "collective_seq_id", "p2p_seq_id")
MAX_BYTES: Final = 2.0**50  # of one transfer


@dataclass(frozen=True)
class TransferLayout:
    """Which column of a table of transfers holds what; columns by their number."""

    src: int
    dst: int
    time: tuple[int, int]  # column, units per second
    size: int | None
    step_of: int | None
    op: int | None
    group: int | None
    seq: int | None
    start: tuple[int, int | None] | None

    @property
    def step(self) -> int:
        """The column that must hold a whole number for a row to be one."""
        return self.src

    @property
    def used(self) -> list[int]:
        """The columns that are read, sorted."""
        known = [self.src, self.dst, self.time[0], self.size, self.step_of, self.op, self.group, self.seq]
        return sorted({n for n in (*known, self.start[0] if self.start else None) if n is not None})


def transfer_layout(headings: Sequence[str]) -> TransferLayout | None:
    """What the columns of a table are; None where source, destination and a time are not all there."""
    names = [heading(text) for text in headings]
    place = {name: number for number, name in reversed(list(enumerate(names)))}

    def first(known: Sequence[str]) -> int | None:
        return next((place[name] for name in known if name in place), None)

    src, dst = first(_SRC), first(_DST)
    parts = [(number, *split(name)) for number, name in enumerate(names)]
    time = next(((number, unit or 1) for number, plain, unit in parts if PLAIN.sub("", plain) in _TIMES), None)
    if src is None or dst is None or time is None:
        return None
    start = next(((number, unit) for number, plain, unit in parts if plain in START or names[number] in START), None)
    return TransferLayout(src, dst, time, first(_BYTES), first(STEP), first(_OP), first(_GROUP), first(_SEQ), start)


def transfer_frames(about: TransferLayout, cells: Mapping[int, pl.Series], records: pl.Series) -> Iterator[tuple[Table, pl.DataFrame]]:
    """The rows of a batch, all with a source. What is no time or size is null."""

    def whole(at: int | None) -> pl.Series | None:
        return wholes(cells[at]) if at is not None else None

    def text(at: int | None) -> pl.Series | None:
        return cells[at].cast(pl.String, strict=False).str.slice(0, 300) if at is not None else None

    took = numbers(cells[about.time[0]]) / about.time[1]
    size = numbers(cells[about.size]) if about.size is not None else None
    rows = {
        "record": records,
        "src_rank": whole(about.src),
        "dst_rank": whole(about.dst),
        "step": whole(about.step_of),
        "op": text(about.op),
        "group_desc": text(about.group),
        "seq_id": whole(about.seq),
        "started_at": instants(cells[about.start[0]], about.start[1]) if about.start else None,
        "transfer_s": took.set(((took < 0) | (took > MAX_TIME_S)).fill_null(value=False), None),
        "bytes": size.set(((size < 0) | (size > MAX_BYTES)).fill_null(value=False), None).round().cast(pl.Int64)
        if size is not None
        else None,
    }
    yield TABLES["transfers"], TABLES["transfers"].frame(rows, height=len(records))
