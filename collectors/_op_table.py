"""A table of timed operations of ranks, one row an operation: rows of `ops`, and of `steps` what each rank computed in a step.

ByteDance's straggler traces have these columns: dp_rank, stage, rank, step, optype, start_ts (s since the step began), duration (s), seq_id, mb_id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from collectors._step_names import MAX_TIME_S, RANK, STAGE, STEP, heading, split
from collectors._step_table import numbers, wholes
from rca.tables import TABLES

if TYPE_CHECKING:
    from rca.tables import Table

__all__ = ["OpLayout", "Sums", "op_kind", "op_layout"]

_OP: Final = ("optype", "op_type", "op", "op_name", "operation")
_TIME: Final = ("duration", "dur", "op_time", "elapsed")
_BEGIN: Final = ("start_ts", "start", "start_time", "ts", "begin")
_DP: Final = ("dp_rank", "dp")
_SEQ: Final = ("seq_id", "seq", "collective_seq_id")
_MICROBATCH: Final = ("mb_id", "microbatch", "micro_batch", "microbatch_id")
_GROUP: Final = ("group_desc", "process_group", "group", "pg_desc")
_KINDS: Final = (  # the first that fits
    ("optimizer", r"optim|clip"),
    ("p2p", r"send|recv"),
    ("collective", r"all_?gather|reduce_?scatter|all_?reduce|all_?to_?all|broadcast|barrier"),
    ("compute", r"compute|^(?:forward|backward|fwd|bwd)$|gemm|attention"),
    ("data", r"data|batch"),
    ("memory", r"mem(?:cpy|set)"),
)
_WAYS: Final = {"forward_s": r"(?i)forward|fwd", "backward_s": r"(?i)backward|bwd"}
_ORIGIN_S: Final = 1e6  # a start of more is no time since a step began: of a clock that is not known


def op_kind(name: str) -> str:
    """compute, collective, p2p, data, optimizer, memory or other, by the name of an operation."""
    plain = name.lower().replace("-", "_")
    return next((kind for kind, pattern in _KINDS if re.search(pattern, plain)), "other")


@dataclass(frozen=True)
class OpLayout:
    """Which column of a table of operations holds what; columns by their number."""

    rank: int
    step: int
    op: int
    time: tuple[int, int]  # column, units per second
    start: tuple[int, int] | None
    stage: int | None
    dp: int | None
    seq: int | None
    microbatch: int | None
    group: int | None

    @property
    def used(self) -> list[int]:
        """The columns that are read, sorted."""
        known = [self.rank, self.step, self.op, self.time[0], self.stage, self.dp, self.seq, self.microbatch, self.group]
        return sorted({n for n in (*known, self.start[0] if self.start else None) if n is not None})


def op_layout(headings: Sequence[str]) -> OpLayout | None:
    """What the columns of a table are; None where rank, step, operation and duration are not all there."""
    names = [heading(text) for text in headings]
    place = {name: number for number, name in reversed(list(enumerate(names)))}
    bare = {split(name)[0]: (number, split(name)[1] or 1) for name, number in reversed(place.items())} | {
        n: (p, 1) for n, p in place.items()
    }

    def first(known: Sequence[str]) -> int | None:
        return next((place[name] for name in known if name in place), None)

    rank, step, op = first(RANK), first(STEP), first(_OP)
    time, start = (next((bare[name] for name in known if name in bare), None) for known in (_TIME, _BEGIN))
    if rank is None or step is None or op is None or time is None:
        return None
    return OpLayout(rank, step, op, time, start, first(STAGE), first(_DP), first(_SEQ), first(_MICROBATCH), first(_GROUP))


class Sums:
    """Reads batches of a table of operations, and adds up what each rank computed in each step."""

    def __init__(self, about: OpLayout) -> None:
        self.about = about
        self._sums: list[pl.DataFrame] = []

    def frames(self, cells: Mapping[int, pl.Series], records: pl.Series) -> Iterator[tuple[Table, pl.DataFrame]]:
        """The rows of `ops` of a batch, all with a step."""
        about = self.about
        names = cells[about.op].cast(pl.String, strict=False).str.slice(0, 300)
        kinds = {name: op_kind(name) for name in names.drop_nulls().unique()}
        took = numbers(cells[about.time[0]]) / about.time[1]
        began = numbers(cells[about.start[0]]) / about.start[1] if about.start else None
        rows = pl.DataFrame(
            {
                "record": records,
                "rank": wholes(cells[about.rank]),
                "step": wholes(cells[about.step]),
                "stage": self._number(cells, about.stage),
                "dp": self._number(cells, about.dp),
                "microbatch": self._number(cells, about.microbatch),
                "seq_id": self._number(cells, about.seq),
                "op": names,
                "kind": names.replace_strict(kinds, default=None, return_dtype=pl.String),
                "group_desc": cells[about.group].cast(pl.String, strict=False) if about.group is not None else None,
                "start_s": began.set((began.abs() > _ORIGIN_S).fill_null(value=False), None) if began is not None else None,
                "op_s": took.set(((took < 0) | (took > MAX_TIME_S)).fill_null(value=False), None),
            },
            schema_overrides={"group_desc": pl.String, "start_s": pl.Float64},
        )
        yield TABLES["ops"], TABLES["ops"].frame(rows.to_dict())
        end = pl.col("start_s") + pl.col("op_s")
        computed = pl.col("op_s").filter(pl.col("kind") == "compute")
        way = {
            name: pl.col("op_s").filter((pl.col("kind") == "compute") & pl.col("op").str.contains(pattern))
            for name, pattern in _WAYS.items()
        }
        self._sums.append(
            rows.group_by("rank", "step", maintain_order=True).agg(
                pl.col("record", "stage", "dp").first(),
                end.max().alias("end"),
                computed.sum().alias("compute"),
                computed.count().alias("n"),
                *(part.sum().alias(name) for name, part in way.items()),
            )
        )

    def steps(self) -> Iterator[tuple[Table, pl.DataFrame]]:
        """One row of `steps` per rank and step that was seen, with the place of its first operation; `step_s` ends with the last one."""
        if not self._sums:
            return
        told = pl.concat(self._sums).group_by("rank", "step", maintain_order=True)
        sums = told.agg(pl.col("record", "stage", "dp").first(), pl.col("end").max(), pl.col("compute", "n", *_WAYS).sum())
        sums = sums.with_columns(pl.when(pl.col("n") > 0).then("compute").alias("compute_s"), step_s=pl.col("end"))
        sums = sums.with_columns(pl.when(pl.col(name) > 0).then(name).alias(name) for name in _WAYS)
        columns = sums.select("record", "rank", "step", "stage", "dp", "step_s", "compute_s", *_WAYS).to_dict()
        yield TABLES["steps"], TABLES["steps"].frame(columns)

    @staticmethod
    def _number(cells: Mapping[int, pl.Series], at: int | None) -> pl.Series | None:
        """Counts; -1 stands for none."""
        if at is None:
            return None
        found = wholes(cells[at])
        return found.set((found < 0).fill_null(value=False), None)
