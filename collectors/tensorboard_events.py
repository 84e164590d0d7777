"""Event files of TensorBoard (tfevents): scalars of a trainer by tag, as step times, losses and throughput of the job.

    time_metrics/end_to_end(s), loss_metrics/global_avg_loss, throughput(tps), mfu(%)     torchtitan
    iteration-time, lm loss, grad-norm, learning-rate                                     Megatron
    train/loss, train/grad_norm                                                           HF Trainer

Rows: `steps` and `progress`, of no rank unless the file's name or folder says one. A tag twice for one step: the later counts. Needs
`pip install "firstfault[tensorboard]"` to decode the records; text, pictures and histograms are passed over. Records are E<record>.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import polars as pl

from collectors._step_series import Point, series_frames
from collectors._step_table import metric
from rca.errors import EvidenceError
from rca.types import Skip, Source

if TYPE_CHECKING:
    from rca.tables import Table

__all__ = ["EMITS", "IS_ALONE", "claims", "read"]

EMITS = ("steps", "progress")
IS_ALONE = True

HEADER: Final = 12  # of a record: length, and a checksum of it
FOOTER: Final = 4
MAX_RECORD: Final = 1 << 26  # bytes; pictures are smaller
MARK: Final = b"brain.Event:"
MAX_POINTS: Final = 5_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_S, _LAST_S = 946_684_800, 7_258_118_400  # 2000 and 2200


def claims(name: str, head: bytes) -> bool:
    """A first record of the length that it says, which states the version of TensorBoard's events."""
    if len(head) < HEADER:
        return False
    (length,) = struct.unpack("<Q", head[:8])
    return bool(length < 4096) and MARK in head[HEADER : HEADER + length]


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """One row per step of the times, one per step of the metrics. Raises EvidenceError without any, or where the extra is not installed."""
    try:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # comes with tensorboard
        from tensorboard.compat.proto.event_pb2 import Event
    except ImportError:
        why = 'TensorBoard\'s records need its decoder: pip install "firstfault[tensorboard]"'
        raise EvidenceError(source.path, None, why) from None
    series: dict[str, dict[int, Point]] = {}
    known: dict[str, tuple[str, float] | None] = {}
    num_points = 0
    for number, record in _records(source):
        if isinstance(record, Skip):
            yield record
            continue
        try:
            event = Event.FromString(record)
        except (DecodeError, ValueError, RecursionError):
            yield Skip(f"E{number}", "no event of TensorBoard")
            continue
        at = _EPOCH + timedelta(microseconds=round(event.wall_time * 1e6)) if _FIRST_S < event.wall_time < _LAST_S else None
        for value in event.summary.value:
            number_told = _scalar(value)
            if number_told is None or num_points >= MAX_POINTS:
                continue
            if value.tag not in known and len(known) < 100_000:
                known[value.tag] = metric(value.tag)
            told = known.get(value.tag)
            if told is not None:
                num_points += 1
                series.setdefault(told[0], {})[event.step] = Point(number_told / told[1], f"E{number}", at)
    if not series:
        raise EvidenceError(source.path, None, "no step time, loss or throughput among its tags")
    yield from series_frames(series, source.rank_said, nan_is_missing=False)


def _scalar(value: object) -> float | None:
    """The number of a summary, also where it is a tensor of one; None for text, pictures and histograms."""
    kind = value.WhichOneof("value")  # type: ignore[attr-defined]  # a message of the protocol
    if kind == "simple_value":
        return float(value.simple_value)  # type: ignore[attr-defined]
    if kind != "tensor":
        return None
    tensor = value.tensor  # type: ignore[attr-defined]
    if len(tensor.float_val) == 1 or len(tensor.double_val) == 1:
        return float((tensor.float_val or tensor.double_val)[0])
    formats = {1: "<f", 2: "<d"}  # of DT_FLOAT and DT_DOUBLE
    form = formats.get(tensor.dtype)
    if form is None or len(tensor.tensor_content) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, tensor.tensor_content)[0])


def _records(source: Source) -> Iterator[tuple[int, bytes | Skip]]:
    """Number and bytes of each record; a Skip where the file breaks off."""
    stream, data, number = source.blocks(), b"", 0
    at = 0
    while True:
        need = HEADER
        if len(data) - at >= HEADER:
            (length,) = struct.unpack_from("<Q", data, at)
            if length > MAX_RECORD:
                yield number, Skip(None, f"breaks off at record {number}: it says that it has {length} bytes")
                return
            need = HEADER + length + FOOTER
            if len(data) - at >= need:
                yield number, data[at + HEADER : at + HEADER + length]
                number, at = number + 1, at + need
                continue
        parts = [data[at:]]
        at, size = 0, len(parts[0])
        while size < need:
            try:
                part = next(stream)
            except StopIteration as end:
                if size or end.value:
                    yield number, Skip(None, f"breaks off at record {number}: {end.value or 'it is not whole'}")
                return
            parts.append(part)
            size += len(part)
        data = b"".join(parts)
