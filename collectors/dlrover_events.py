"""Training events of DLRover: `[time] [pid] [id] [target] [#name] [BEGIN|END|INSTANT] {json}`, or the same as JSON objects.

A BEGIN and its END share the id. Rows: `steps` of pairs named step, numbered as at their beginning; `spans` of all other pairs, also of those whose
end was never written (a crash in between); `progress` of the trainer's log events; `trainer_events` of all other moments and of pairs that ended in
failure. The stamps have no zone; a step of which only the end is there gives no row, one that never ended gives a row without a time. The rank is
what the file's name says (events_RANK_PID.log) where the process is the one that the lines name, and the trainer's, not the launcher's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
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

EMITS = ("steps", "spans", "progress", "trainer_events")

IS_ALONE: Final = True
BATCH_ROWS: Final = 50_000
MAX_OPEN: Final = 100_000  # pairs whose end is awaited
MAX_JSON: Final = 1 << 20
_TYPES: Final = ("BEGIN", "END", "INSTANT")
_LINE: Final = re.compile(
    rb"\[(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?)\] (?:\[(?P<pid>\d{1,10})\] )?\[(?P<id>[^\]\s]{1,80})\]"
    rb" \[(?P<target>[^\]]{0,200})\] \[(?P<name>[^\]]{1,200})\] \[(?P<type>BEGIN|END|INSTANT)\](?P<rest>.*)"
)
_FILE: Final = re.compile(r"(?:^|[/_.\-])events_(?P<rank>[0-9]{1,7})_(?P<pid>[0-9]{1,10})\.(?:log|txt|jsonl?)(?:\.(?:gz|zst))?$")
_LAUNCHERS: Final = ("dlrover-", "dlrover_")  # agent and master count nodes, not ranks
_STEP: Final = ("global_step", "step")
_NUMBERS: Final = {  # of a log event -> column of progress; the first of the names that is there
    "loss": ("lm loss", "loss", "train_loss"),
    "grad_norm": ("grad norm", "grad_norm"),
    "learning_rate": ("learning rate", "learning_rate", "lr"),
}
_TIMES_MS: Final = ("elapsed time per iteration (ms)", "elapsed_time_per_iteration_ms")
_TIMES_S: Final = ("elapsed time per iteration (s)", "step_time", "elapsed_time_per_iteration_s")


def claims(name: str, head: bytes) -> bool:
    """A line in that form, or JSON with an event's id, time, name and type."""
    if head[:1] == b"[" and any(_LINE.match(line) for line in head.splitlines()[:50]):
        return True
    return b'"event_type"' in head and any({"event_id", "event_time", "event_type"} <= set(r) for r in json_of.first_objects(head))


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of all tables in the order of the file. Raises EvidenceError without any event."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in EMITS}
    waiting: dict[tuple[str, str], tuple[dict[str, Any], datetime | None]] = {}  # id and name -> its row, and when it began
    num_read = 0
    for event in _events(source):
        if isinstance(event, Skip):
            yield event
            continue
        num_read += 1
        key = event["id"], event["name"]
        if event["type"] == "INSTANT":
            _instant(rows, event, source)
        elif event["type"] == "BEGIN":
            row = _begun(event, source)
            rows["steps" if event["name"] == "step" else "spans"].append(row)
            if len(waiting) < MAX_OPEN:
                waiting[key] = row, event["at"]
            continue
        if event["type"] == "END" and event["content"].get("success") is False:
            _moment(rows, event | {"name": f"{event['name']}_failed"}, source)
        if event["type"] == "END" and (begun := waiting.pop(key, None)) is not None:
            row, at = begun
            ended = event["at"]
            is_one_clock = at is not None and ended is not None and (at.tzinfo is None) == (ended.tzinfo is None)
            took = (ended - at).total_seconds() if is_one_clock else None
            row["step_s" if event["name"] == "step" else "span_s"] = took if took is not None and took >= 0 else None
        elif event["type"] == "END":
            yield Skip(event["record"], f"the end of {event['name']!r} without its beginning in this file")
        if sum(map(len, rows.values())) >= BATCH_ROWS + len(waiting):
            yield from _finished(rows, waiting)
    if not num_read:
        raise EvidenceError(source.path, None, "no event of DLRover in it")
    for name, found in rows.items():
        yield TABLES[name], TABLES[name].rows(found)


def _finished(
    rows: dict[str, list[dict[str, Any]]], waiting: dict[tuple[str, str], tuple[dict[str, Any], datetime | None]]
) -> Iterator[tuple[Table, pl.DataFrame]]:
    """The rows that nothing is to be added to any more; those whose end is awaited stay."""
    held = {id(row) for row, _ in waiting.values()}
    for name, found in rows.items():
        yield TABLES[name], TABLES[name].rows([row for row in found if id(row) not in held])
        rows[name] = [row for row in found if id(row) in held]


def _events(source: Source) -> Iterator[dict[str, Any] | Skip]:
    if source.head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" or not _LINE.search(source.head):
        yield from _json_events(source)
        return
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            continue
        for number, line in enumerate(block.lines, block.first):
            if not line.strip():
                continue
            found = _LINE.match(line)
            if found is None:
                yield Skip(f"L{number}", "no event in the form [time] [pid] [id] [target] [#name] [type] {...}; a last line may be torn")
                continue
            content, why = _content(found["rest"].strip())
            if why:
                yield Skip(f"L{number}", why)
            parts = {name: value.decode("utf-8", "replace") if value is not None else None for name, value in found.groupdict().items()}
            yield _event(f"L{number}", parts["time"], parts["pid"], parts["id"], parts["target"], parts["name"], parts["type"], content)


def _json_events(source: Source) -> Iterator[dict[str, Any] | Skip]:
    for place, record in json_of.records(source):
        if isinstance(record, Skip):
            yield Skip(place, record.why)
        elif record.get("event_type") not in _TYPES:
            yield Skip(place, "no event with a type BEGIN, END or INSTANT")
        else:
            content = record.get("content")
            yield _event(
                place, record.get("event_time"), record.get("pid"), record.get("event_id"), record.get("target"), record.get("name"),
                record["event_type"], content if isinstance(content, dict) else {},
            )  # fmt: skip


def _content(data: bytes) -> tuple[dict[str, Any], str]:
    """What an event carries, and what is wrong with it ("" = nothing)."""
    if not data:
        return {}, ""
    try:
        value = json.loads(data) if len(data) <= MAX_JSON else None
    except (ValueError, RecursionError) as error:
        return {}, f"its JSON cannot be read ({str(error)[:100]}): only time and name were taken"
    return (value, "") if isinstance(value, dict) else ({}, "what it carries is no JSON object: only time and name were taken")


def _event(record: str | None, time: Any, pid: Any, id_: Any, target: Any, name: Any, kind: Any, content: dict[str, Any]) -> dict[str, Any]:
    stamp = time.replace(" ", "T") if isinstance(time, str) else None
    local, utc = json_of.local(stamp), json_of.instant(stamp)
    at = datetime.fromisoformat(local) if local else utc
    return {
        "record": record, "at": at, "local": local, "utc": utc, "pid": json_of.whole(pid),
        "id": json_of.text(id_, 100) or "", "target": json_of.text(target, 200), "name": (json_of.text(name, 200) or "").lstrip("#"),
        "type": kind, "content": content,
    }  # fmt: skip


def _begun(event: dict[str, Any], source: Source) -> dict[str, Any]:
    step = json_of.whole(json_of.first(event["content"], *_STEP))
    row = {"record": event["record"], "rank": _rank(event, source), "step": step}
    if event["name"] == "step":
        return row | {"started_at": event["utc"]}
    return row | {"span": event["name"], "pid": event["pid"], "started_at": event["utc"], "started_at_local": event["local"]}


def _rank(event: dict[str, Any], source: Source) -> int | None:
    rank = json_of.whole(json_of.first(event["content"], "global_rank", "rank"))
    if rank is not None and rank >= 0:
        return rank
    if (event["target"] or "").startswith(_LAUNCHERS):
        return None
    named = _FILE.search(source.path)
    if named and event["pid"] in (None, int(named["pid"])):
        return int(named["rank"])
    return source.rank_said


def _instant(rows: dict[str, list[dict[str, Any]]], event: dict[str, Any], source: Source) -> None:
    """A log event with numbers of a step is a row of `progress`, any other of `trainer_events`."""
    content = event["content"]
    logs = content.get("logs") if isinstance(content.get("logs"), dict) else None
    step = (
        json_of.whole(json_of.first(content, *_STEP))
        if json_of.first(content, *_STEP) is not None
        else json_of.whole((logs or {}).get("step"))
    )
    if logs is not None and step is not None:
        elapsed = json_of.number(json_of.first(logs, *_TIMES_MS))
        numbers = {column: json_of.number(json_of.first(logs, *names)) for column, names in _NUMBERS.items()}
        told = [json_of.first(logs, *_NUMBERS[name]) for name in ("loss", "grad_norm")]
        skipped = json_of.number(logs.get("number of skipped iterations"))
        rows["progress"].append(
            {
                "record": event["record"],
                "step": step,
                "epoch": json_of.number(json_of.first({**content, **logs}, "epoch")),
                "ended_at": event["utc"],
                "ended_at_local": event["local"],
                **numbers,
                "is_finite": all(json_of.number(value) is not None for value in told if value is not None)
                if any(value is not None for value in told)
                else None,
                "tokens_total": json_of.whole(json_of.first(logs, "consumed tokens", "consumed samples")),
                "is_skipped": skipped > 0 if skipped is not None else None,
                "num_skipped": json_of.whole(logs.get("number of skipped iterations")),
                "num_nan": json_of.whole(logs.get("number of nan iterations")),
                "logged_step_s": elapsed / 1000 if elapsed is not None else json_of.number(json_of.first(logs, *_TIMES_S)),
            }
        )
        return
    _moment(rows, event, source)


def _moment(rows: dict[str, list[dict[str, Any]]], event: dict[str, Any], source: Source) -> None:
    """A row of `trainer_events`."""
    content, step = event["content"], json_of.whole(json_of.first(event["content"], *_STEP))
    rows["trainer_events"].append(
        {
            "record": event["record"], "rank": _rank(event, source), "event": event["name"], "source": "dlrover", "pid": event["pid"],
            "step": step, "logged_at": event["utc"], "logged_at_local": event["local"],
            "message": _message(content) or event["target"],
        }
    )  # fmt: skip


def _message(content: dict[str, Any]) -> str | None:
    """What an event carries, on one line: of an exception its last line, of a failure the error, else all of it."""
    stack = content.get("stack")
    lines = (
        [line for part in stack if isinstance(part, str) for line in part.splitlines() if line.strip()] if isinstance(stack, list) else []
    )
    said = json_of.text(content.get("error")) or (json_of.text(content.get("sig_name")) or (json_of.text(lines[-1]) if lines else None))
    return said or (json.dumps(content, sort_keys=True, ensure_ascii=True, default=str)[:1000] if content else None)
