"""Traces of torch's profiler (Kineto, Chrome's JSON): steps of a rank, and its communication.

    {"distributedInfo": {"rank": 3}, "baseTimeNanoseconds": ..., "traceEvents": [{"ph": "X", "name": "ProfilerStep#7", "ts": ..., "dur": ...}, ...]}

Rows: `steps` of `ProfilerStep#N`, with the time in which at least one kernel computed (`compute_s`) or communicated (`comm_s`) and the wait of the
DataLoader; `ops` of NCCL kernels and of Gloo's calls, with group, number and size where the trace has them. A kernel is of the step in
which it runs. Times are in microseconds; instants where the trace has a base or its times count from 1970. The events are read one
after the other; records are E<event>.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from collectors._json_records import host, text, whole
from collectors._trace_events import around, events
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    from rca.tables import Table

__all__ = ["EMITS", "IS_ALONE", "claims", "read"]

EMITS = ("steps", "ops")
IS_ALONE = True

MAX_KERNELS: Final = 20_000_000  # of a trace that are kept, 16 bytes each
MAX_OPS: Final = 2_000_000
MAX_COMMS: Final = 200_000  # calls remembered until their kernels come
MAX_US: Final = 1e14  # three years
_STEP: Final = re.compile(r"ProfilerStep#([0-9]{1,18})$")
_DATA: Final = re.compile(r"enumerate\(DataLoader\)#.{0,200}__next__")
_GLOO: Final = re.compile(r"gloo:(\w{1,60})$")
_FIRST_US, _LAST_US = 946_684_800_000_000, 7_258_118_400_000_000  # 2000 and 2200: outside, a clock that does not count from 1970
_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("double", "long", "int64", "float64", "complexfloat"), 8),
    **dict.fromkeys(("float", "int", "float32", "int32"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"), 1),
}


def claims(name: str, head: bytes) -> bool:
    """A JSON object with a list of trace events, and what torch's profiler writes before it or into it."""
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{":
        return False
    begins = b'"schemaVersion"' in head and b'"deviceProperties"' in head
    has_events = re.search(rb'"traceEvents"\s{0,100}:\s{0,100}\[', head) is not None
    return begins or (has_events and any(word in head for word in (b'"ProfilerStep#', b'"distributedInfo"', b'"baseTimeNanoseconds"')))


@dataclass
class _Seen:
    """What was read so far; times in microseconds."""

    steps: list[tuple[int, int, float, float]] = field(default_factory=list)  # event, step, start, duration
    data: array[float] = field(default_factory=lambda: array("d"))  # start, duration, start, ...
    compute: array[float] = field(default_factory=lambda: array("d"))
    comm: array[float] = field(default_factory=lambda: array("d"))
    ops: list[tuple[Any, ...]] = field(default_factory=list)  # event, op, kind, group, number, bytes, start, duration
    comms: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # number of the call on the CPU -> its arguments
    num_left: int = 0


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """All steps, then all communication. Raises EvidenceError where the trace has neither."""
    about, seen = around(source), _Seen()
    for item in events(source):
        if isinstance(item, Skip):
            yield item
        else:
            _take(*item, seen)
    if seen.num_left:
        yield Skip(None, f"{seen.num_left} kernels beyond the first {MAX_KERNELS:,}, and {MAX_OPS:,} of communication, were left out")
    if not seen.steps and not seen.ops:
        raise EvidenceError(source.path, None, "no step of torch's profiler (ProfilerStep#N) and no communication in this trace")
    rank = whole(about.get("rank"))
    named = {"rank": source.rank_said if rank is None else rank}
    base_us = int(about["base_ns"]) / 1000 if "base_ns" in about else 0.0
    schema = {"event": pl.Int64, "step": pl.Int64, "ts": pl.Float64, "dur": pl.Float64}
    steps = pl.DataFrame(seen.steps, schema=schema, orient="row").sort("ts", "event")
    if steps.height:
        rows: dict[str, Any] = {"step": steps["step"], "record": _places(steps["event"]), "host": host(about.get("host")), **named}
        rows |= {"started_at": _instants(steps["ts"], base_us), "step_s": steps["dur"] / 1e6}
        rows |= {"compute_s": _within(steps, seen.compute), "comm_s": _within(steps, seen.comm), "data_s": _within(steps, seen.data)}
        yield TABLES["steps"], TABLES["steps"].frame(rows, height=steps.height)
    if seen.ops:
        of_ops: dict[str, Any] = {
            "event": pl.Int64,
            "op": pl.String,
            "kind": pl.String,
            "group_desc": pl.String,
            "seq_id": pl.Int64,
            "size_bytes": pl.Int64,
        }
        ops = pl.DataFrame(seen.ops, schema=of_ops | {"ts": pl.Float64, "dur": pl.Float64}, orient="row", strict=False)
        ops = _of_steps(ops, steps)
        rows = {name: ops[name] for name in ("op", "kind", "group_desc", "seq_id", "size_bytes", "step")} | named
        rows |= {"record": _places(ops["event"]), "started_at": _instants(ops["ts"], base_us), "op_s": ops["dur"] / 1e6}
        rows["start_s"] = (ops["ts"] - ops["began"]) / 1e6
        yield TABLES["ops"], TABLES["ops"].frame(rows, height=ops.height)


def _take(number: int, event: Mapping[str, Any], seen: _Seen) -> None:
    name, category, args = event.get("name"), event.get("cat"), event.get("args")
    start, took = event.get("ts"), event.get("dur")
    if event.get("ph") != "X" or name.__class__ is not str or not _is_time(start) or not _is_time(took):
        return
    assert isinstance(name, str)
    start, took = float(start), float(took)  # type: ignore[arg-type]  # both are numbers
    if category == "kernel":
        is_comm = "nccl" in name[:200].lower()
        kept = seen.comm if is_comm else seen.compute
        if len(kept) >= 2 * MAX_KERNELS or (is_comm and len(seen.ops) >= MAX_OPS):
            seen.num_left += 1
            return
        kept.extend((start, took))
        if is_comm:
            seen.ops.append((number, name[:300], "p2p" if "SendRecv" in name else "collective", *_told(args, seen), start, took))
    elif name == "record_param_comms":
        key = args.get("External id") if isinstance(args, dict) else None
        if key.__class__ is int and len(seen.comms) < MAX_COMMS:
            seen.comms[key] = args  # type: ignore[assignment]  # a dict
    elif category != "gpu_user_annotation" and (found := _STEP.match(name)):
        step = int(found[1])
        if step < 1 << 62:
            seen.steps.append((number, step, start, took))
    elif _DATA.match(name):
        seen.data.extend((start, took))
    elif (called := _GLOO.match(name)) and len(seen.ops) < MAX_OPS:
        seen.comm.extend((start, took))
        seen.ops.append(
            (number, name, "p2p" if called[1] in ("send", "recv", "recvAnySource") else "collective", *_told(args, seen), start, took)
        )


def _is_time(value: object) -> bool:
    return value.__class__ in (int, float) and math.isfinite(value) and 0 <= value < 1e19


def _told(args: object, seen: _Seen) -> tuple[str | None, int | None, int | None]:
    """Group, number and bytes of a call: of the kernel itself, or of the call on the CPU that launched it."""
    if not isinstance(args, dict):
        return None, None, None
    if "Collective name" not in args and args.get("External id").__class__ is int:
        args = seen.comms.get(args["External id"], args)
    count, size = whole(args.get("In msg nelems")), _BYTES.get(str(args.get("dtype")).lower())
    num_bytes = count * size if count is not None and size is not None and 0 <= count < 1 << 50 else None
    return text(args.get("Process Group Description") or args.get("Process Group Name"), 200), whole(args.get("Seq")), num_bytes


def _places(numbers: pl.Series) -> pl.Series:
    return "E" + numbers.cast(pl.String)


def _instants(start: pl.Series, base_us: float) -> pl.Series:
    micros = (start + base_us).round()
    return micros.set((micros < _FIRST_US) | (micros >= _LAST_US), None).cast(pl.Int64).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")


def _of_steps(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Rows with the step during which they began, and when it began; null between steps."""
    if not steps.height:
        return rows.with_columns(step=pl.lit(None, pl.Int64), began=pl.lit(None, pl.Float64))
    starts = steps.select("step", "ts", began=pl.col("ts"), end=pl.max_horizontal(pl.col("ts") + pl.col("dur"), pl.col("ts").shift(-1)))
    joined = rows.with_row_index("row").sort("ts").join_asof(starts, on="ts", strategy="backward").sort("row")
    inside = pl.col("ts") < pl.col("end")
    return joined.with_columns(pl.when(inside).then("step").alias("step"), pl.when(inside).then("began").alias("began"))


def _within(steps: pl.DataFrame, times: array[float]) -> pl.Series | None:
    """Of each step, the time in which at least one of these intervals ran, s; None where the trace holds none at all."""
    if not times:
        return None
    flat = pl.Series(times, dtype=pl.Float64)
    rows = _of_steps(pl.DataFrame({"ts": flat.gather_every(2), "dur": flat.gather_every(2, 1)}), steps).drop_nulls("step")
    rows = rows.with_columns(stop=pl.col("ts") + pl.col("dur")).sort("began", "ts")
    before = pl.col("stop").cum_max().shift(1).over("began")
    rows = rows.with_columns(covered=(pl.col("stop") - pl.max_horizontal("ts", before)).clip(lower_bound=0.0))
    sums = rows.group_by("began").agg(pl.col("covered").sum() / 1e6)
    return steps.join(sums, left_on="ts", right_on="began", how="left", maintain_order="left")["covered"].fill_null(0.0)
