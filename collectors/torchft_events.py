"""Events of torchft: each change of a quorum, each commit of a step and each error, as OpenTelemetry writes them or as flat JSON.

Three forms: the console exporter's objects over several lines, OTLP in JSON (`resourceLogs`, one batch a line or a document), and flat objects with
the same fields. A record has replica_id, rank (inside that replica), quorum_id and step; commit_result makes it a commit, an error an error.

Rows: `trainer_events` (quorum, commit, error). The rank counts inside a replica, so that several replicas have the same: it stays in the message, and
`rank` is null. `value` of a commit: 1 = the step was kept, 0 = thrown away.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from collectors import _json_records as json_of
from collectors._lines import blocks
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("trainer_events",)

BATCH_ROWS: Final = 50_000
MAX_LINES: Final = 2_000  # of one object that is written over several lines
SNIFF_BLOCKS: Final = 40
_MARKS: Final = (b'"replica_id"', b'"quorum_id"')
_NEEDED: Final = ("replica_id", "quorum_id")
_SCOPE: Final = "torchft_"


def claims(name: str, head: bytes) -> bool:
    """JSON with a replica's id and the number of its quorum in one object."""
    return all(mark in head for mark in _MARKS) and any(True for _, record in _objects(_head_lines(head)) for _ in _events(record))


def _head_lines(head: bytes) -> Iterator[tuple[int, bytes]]:
    yield from enumerate(head.split(b"\n"), 1)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `trainer_events`, in the order of the file; what is no such object is passed over. Raises EvidenceError without any event."""
    rows: list[dict[str, Any]] = []
    num_read = 0
    skips: list[Skip] = []
    for number, record in _objects(_lines(source, skips)):
        for event in _events(record):
            rows.append({"record": f"L{number}", **event})
            num_read += 1
        if len(rows) >= BATCH_ROWS:
            yield TABLES["trainer_events"], TABLES["trainer_events"].rows(rows)
            rows = []
    yield from skips
    if not num_read:
        raise EvidenceError(source.path, None, "no event of torchft in it")
    yield TABLES["trainer_events"], TABLES["trainer_events"].rows(rows)


def _lines(source: Source, skips: list[Skip]) -> Iterator[tuple[int, bytes]]:
    for block in blocks(source):
        if isinstance(block, Skip):
            skips.append(block)
        else:
            yield from enumerate(block.lines, block.first)


def _objects(lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects and their first lines: one a line, or over several lines of which the last is a brace in the first column."""
    parts: list[bytes] = []
    first = 0
    for number, line in lines:
        start = line.lstrip(b"\xef\xbb\xbf \t[,")
        if parts and line[:1] not in (b"}", b"{"):
            parts.append(line)
            if len(parts) > MAX_LINES:
                parts = []
            continue
        if parts and line[:1] == b"}":
            if isinstance(record := _load(b"\n".join([*parts, b"}"])), dict):
                yield first, record
            parts = []
        elif start[:1] == b"{":
            record = _load(start.rstrip(b"\r,]")) if start.rstrip()[-1:] != b"{" else None
            if isinstance(record, dict):
                parts = []
                yield number, record
            else:
                first, parts = number, [start]


def _load(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _events(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of one object: its own, or those of a batch."""
    for resource in _list(record.get("resourceLogs")):
        for scope in _list(resource.get("scopeLogs")):
            about = scope.get("scope")
            named = about.get("name") if isinstance(about, dict) else None
            for log in _list(scope.get("logRecords")):
                fields = {
                    key: _value(pair.get("value")) for pair in _list(log.get("attributes")) if isinstance(key := pair.get("key"), str)
                }
                nanos = json_of.whole(json_of.first(log, "timeUnixNano", "observedTimeUnixNano"))
                yield from _event(fields, named, json_of.instant(nanos, "ns"), _value(log.get("body")))
    attributes = record.get("attributes")
    scoped = record.get("instrumentation_scope")
    named = scoped.get("name") if isinstance(scoped, dict) else json_of.first(record, "logger", "logger_name", "name")
    stamp = json_of.first(record, "timestamp", "observed_timestamp", "time", "created")
    yield from _event(attributes if isinstance(attributes, dict) else record, named, json_of.instant(stamp), record.get("body"))


def _event(fields: Mapping[str, Any], named: Any, at: Any, body: Any) -> Iterator[dict[str, Any]]:
    if any(fields.get(key) is None for key in _NEEDED):
        return
    kept = fields.get("commit_result")
    error = json_of.text(json_of.first(fields, "error", "exception.message", "exception"), 600)
    told = str(named).removeprefix(_SCOPE).removesuffix("s") if isinstance(named, str) and named.startswith(_SCOPE) else None
    parts = [f"replica {json_of.text(fields['replica_id'], 200)}", f"quorum {json_of.text(fields['quorum_id'], 40)}"]
    if (rank := json_of.whole(fields.get("rank"))) is not None:
        parts.append(f"rank {rank} of the replica")
    parts += [part for part in (error, json_of.text(body, 300)) if part]
    yield {
        "event": told or ("commit" if kept is not None else "error" if error else "quorum"),
        "source": "torchft",
        "host": json_of.host(json_of.first(fields, "host.name", "host", "hostname")),
        "pid": json_of.whole(json_of.first(fields, "process.pid", "pid")),
        "step": json_of.whole(fields.get("step")),
        "value": float(kept) if isinstance(kept, bool) else None,
        "logged_at": at,
        "message": ", ".join(parts),
    }


def _list(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _value(value: Any) -> Any:
    """A value of OTLP (`{"intValue": "3"}`) as itself."""
    if isinstance(value, dict) and len(value) == 1:
        (kind, inner), *_ = value.items()
        return json_of.whole(inner) if kind == "intValue" else inner
    return value
