"""Structured logs of torchtitan: one JSON object a line, per rank, with the spans of each step (fwd_bwd, fetching_batch, optim, checkpoint_save).

A span is a pair of records NAME_start and NAME_end; the second carries how long it took, in milliseconds, as `value`. Rows: `trainer_events`, one a
record; `steps`, one per rank and step whose records tell a time: `step_s` of the span `step` (null where it is not told or did not end),
`compute_s` of fwd_bwd, `data_s` of fetching_batch, `checkpoint_s` of checkpoint spans. A step has one such span per micro-batch: they are summed
up. fwd_bwd holds the waiting of pipelines too: the format gives no narrower time. A process that runs a step again (a restart) has a row of its
own.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from collectors import _json_records as json_of
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("trainer_events", "steps")

IS_ALONE: Final = True
BATCH_ROWS: Final = 50_000
MAX_OPEN_STEPS: Final = 200_000  # of ranks and steps held at a time: 16,384 ranks in one file, a dozen steps each
MAX_MS: Final = 1e11  # three years: no span lasts that long
_MARKS: Final = ({"log_type_name", "time_us"}, {"log_type_name", "log_type"})  # keys that no other format has together
_Step = tuple[int | None, int | None, int]  # rank, process, step
_Span = tuple[_Step, str | None, str]  # step, task, name
_TOLD: Final = ("_start", "_end")
_COLUMN: Final = {
    "step": "step_s",
    "train_step": "step_s",
    "fwd_bwd": "compute_s",
    "forward_backward": "compute_s",
    "fetching_batch": "data_s",
    "checkpoint_save": "checkpoint_s",
    "checkpoint_load": "checkpoint_s",
}


def claims(name: str, head: bytes) -> bool:
    """JSON objects with the name of an event and its time in microseconds."""
    return b'"log_type_name"' in head and any(marks <= set(record) for record in json_of.first_objects(head) for marks in _MARKS)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of both tables, in the order of the file. Raises EvidenceError without any record."""
    events: list[dict[str, Any]] = []
    steps: dict[_Step, dict[str, Any]] = {}
    began: dict[_Span, datetime] = {}  # spans that are open
    num_read = 0
    for place, record in json_of.records(source):
        if isinstance(record, Skip):
            yield Skip(place, record.why)
            continue
        name = json_of.text(record.get("log_type_name"), 200)
        if name is None:
            yield Skip(place, "no name of an event (log_type_name)")
            continue
        num_read += 1
        event = _event(place, name, record, source)
        events.append(event)
        _count(steps, began, event, record)
        if len(events) >= BATCH_ROWS:
            yield TABLES["trainer_events"], TABLES["trainer_events"].rows(events)
            events = []
        if len(steps) > MAX_OPEN_STEPS:
            yield TABLES["steps"], TABLES["steps"].rows(list(steps.values())[: MAX_OPEN_STEPS // 2])
            steps = dict(list(steps.items())[MAX_OPEN_STEPS // 2 :])
    if not num_read:
        raise EvidenceError(source.path, None, "no event of torchtitan in it")
    yield TABLES["trainer_events"], TABLES["trainer_events"].rows(events)
    yield TABLES["steps"], TABLES["steps"].rows(list(steps.values()))


def _event(place: str | None, name: str, record: dict[str, Any], source: Source) -> dict[str, Any]:
    rank = json_of.whole(json_of.first(record, "global_rank", "rank"))
    at = json_of.instant(record.get("time_us"), "us") or json_of.instant(record.get("time_ms"), "ms") or json_of.instant(record.get("time"))
    said = [json_of.text(record.get(key)) for key in ("event_name", "message", "caller")]
    return {
        "record": place,
        "rank": rank if rank is not None and rank >= 0 else source.rank_said,
        "event": name,
        "source": "torchtitan",
        "host": json_of.host(record.get("host_name")),
        "pid": json_of.whole(record.get("pid")),
        "local_gpu": json_of.whole(record.get("local_rank")),
        "step": json_of.whole(record.get("step")),
        "value": json_of.number(record.get("value")),
        "logged_at": at,
        "message": " | ".join(part for part in said if part) or None,
    }


def _count(
    steps: dict[_Step, dict[str, Any]],
    began: dict[_Span, datetime],
    event: dict[str, Any],
    record: dict[str, Any],
) -> None:
    """Add what a record tells of a step: how long a span took, by itself or by the record that began it."""
    span, ending = next(((event["event"].removesuffix(end), end) for end in _TOLD if event["event"].endswith(end)), (event["event"], ""))
    column, step, at = _COLUMN.get(span), event["step"], event["logged_at"]
    if column is None or step is None or not ending:
        return
    owner = event["rank"], event["pid"], step
    task = record.get("task_name") if isinstance(record.get("task_name"), str) else None
    key = owner, task, span
    if ending == "_start":
        if at is not None and len(began) < MAX_OPEN_STEPS:
            began[key] = at
        if column == "step_s":  # a step that never ends has begun all the same
            row = _row_of(steps, owner, event)
            row["started_at"] = row["started_at"] or at
        return
    start, took = began.pop(key, None), event["value"]
    if took is None and start is not None and at is not None:
        took = (at - start).total_seconds() * 1000
    if took is None or not 0 <= took < MAX_MS:
        return
    if any((owner, task, other) in began for other, into in _COLUMN.items() if into == column != "step_s"):
        return  # a part of a span that counts as a whole
    row = _row_of(steps, owner, event)
    if column == "step_s":  # of two around each other the outer one ends last
        row[column] = took / 1000
        row["started_at"] = start or (at - timedelta(milliseconds=took) if at is not None else None)
    else:
        row[column] = row.get(column, 0.0) + took / 1000


def _row_of(steps: dict[_Step, dict[str, Any]], owner: _Step, event: dict[str, Any]) -> dict[str, Any]:
    return steps.setdefault(owner, {name: event[name] for name in ("record", "rank", "host", "step")} | {"started_at": None})
