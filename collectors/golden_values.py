"""Golden values of Megatron and NeMo: series of step times and losses of a reference run, by step.

    {"iteration-time": {"start_step": 1, "end_step": 100, "step_interval": 1, "values": {"1": 12.1, "2": "nan"}}, "lm loss": {...}}

Older files list the values; then the steps count up from `start_step` by `step_interval`. Rows: `steps` and `progress`, of the job, never of a
rank. Times are in seconds unless the name says otherwise. A value `nan` was not written at that step: null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from collectors._json_records import MAX_DOCUMENT_BYTES, whole
from collectors._step_series import Point, series_frames
from collectors._step_table import metric
from rca.errors import EvidenceError
from rca.types import Skip, Source

if TYPE_CHECKING:
    from rca.tables import Table

__all__ = ["EMITS", "IS_ALONE", "claims", "read"]

EMITS = ("steps", "progress")
IS_ALONE = True

MAX_STEPS: Final = 1_000_000
_SERIES: Final = re.compile(rb'"([^"\\]{1,80})"\s{0,20}:\s{0,20}\{\s{0,20}"start_step"\s{0,20}:')


def claims(name: str, head: bytes) -> bool:
    """A JSON object whose entries hold series by step, with interval and values, one of them of a metric that is known."""
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{" or b'"step_interval"' not in head or b'"values"' not in head:
        return False
    return any(metric(found[1].decode("utf-8", "replace")) is not None for found in _SERIES.finditer(head))


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """One row per step of the times, one per step of the metrics. Raises EvidenceError where the file is no such document."""
    data, torn = source.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise EvidenceError(source.path, None, f"more than {MAX_DOCUMENT_BYTES:,} bytes in one JSON document")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(source.path, None, f"breaks off: {torn}" if torn else f"not JSON ({str(error)[:100]})") from None
    series: dict[str, dict[int, Point]] = {}
    for place, (name, entry) in enumerate(document.items() if isinstance(document, dict) else ()):
        known = metric(name)
        if known is None or known[0] in series:
            continue  # memory, counts of zeros: nothing asks for them
        points = _points(entry, place, known[1])
        if points is None:
            yield Skip(f"E{place}", "no series of values by step")
        else:
            series[known[0]] = points
    if not any(series.values()):
        raise EvidenceError(source.path, None, "no series of step times or metrics in it")
    yield from series_frames(series, nan_is_missing=True)


def _points(entry: Any, place: int, unit: float) -> dict[int, Point] | None:
    values = entry.get("values") if isinstance(entry, dict) else None
    if isinstance(values, list):
        first, every = whole(entry.get("start_step")), whole(entry.get("step_interval"))
        if first is None or every is None or every < 1 or first + every * len(values) >= 1 << 62:
            return None
        values = {first + every * number: value for number, value in enumerate(values)}
    if not isinstance(values, Mapping) or len(values) > MAX_STEPS:
        return None
    known = ((whole(step), value) for step, value in values.items())
    return {step: Point(_number(value, unit), f"E{place}/{step}") for step, value in known if step is not None}


def _number(value: Any, unit: float) -> float | None:
    """A number, also written as text; infinity stays, anything else is None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value) / unit
    except (ValueError, OverflowError):
        return None
