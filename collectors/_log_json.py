"""JSON lines: metrics of a step, or a message wrapped in an object by a logger, a container engine or `kubectl logs`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import UnionType
from typing import Any, Final

from collectors._log_prefix import Line, parse, plain_host

__all__ = ["event_of", "message_of", "object_of"]

MAX_LINES = 5000  # of one message

_OBJECT: Final = re.compile(r'\s*(?:[\w.]{1,80}(?:: +| \| ))?(?:- )?(?=\{")')
_EVENT: Final = "torchelastic."  # names of torchelastic's events begin with it
_MESSAGE: Final = ("message", "msg", "log", "textPayload", "MESSAGE")  # the last two: a cloud's log, the journal's export
_LOGGED: Final = ("text", "event")  # a message only beside what a logger writes: else a sample of the data, or a name
_TIME: Final = ("time", "timestamp", "ts", "@timestamp", "asctime", "datetime")
_JOURNAL_TIME: Final = "__REALTIME_TIMESTAMP"  # microseconds since 1970, as text
_LEVEL: Final = ("level", "levelname", "severity", "log_level")
_WRITER: Final = ("logger", "name", "stream")
_WRAPPED: Final = ("jsonPayload", "extra")  # fields of the message's own object; those around it count first
_RANK: Final = ("rank", "global_rank")
_HOST: Final = ("host", "hostname", "node", "host_name", "_HOSTNAME")


def object_of(text: str) -> dict[str, Any] | None:
    """The object that a line is, perhaps behind the name of a logger; None where it is none, or torn."""
    found = _OBJECT.match(text)
    if not found or not text.rstrip().endswith("}"):
        return None
    try:
        value = json.loads(text[found.end() :])
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def message_of(entry: Mapping[str, Any], number: int) -> list[Line]:
    """The lines that an object wraps, with what its own fields say of clock, level, rank and host; none where it wraps no message."""
    for inner in (entry[key] for key in _WRAPPED if isinstance(entry.get(key), dict)):
        entry = {**inner, **entry}
    is_logged = any(key in entry for key in (*_TIME, *_LEVEL, *_WRITER)) or isinstance(entry.get("record"), dict)  # the last: loguru
    text = _first(entry, (*_MESSAGE, *_LOGGED) if is_logged else _MESSAGE, str) or _error(entry)
    if text is None:
        return []
    first, *further = text.rstrip("\n").split("\n", MAX_LINES)
    outer = parse(f"{_first(entry, _TIME, str) or ''} {(_first(entry, _LEVEL, str) or '').upper()} ", number)
    line = parse(first, number)
    rank: int | None = _first(entry, _RANK, int)
    host = next((entry[key] for key in _HOST if isinstance(entry.get(key), str) and entry[key]), None)
    line = replace(
        line,
        at=outer.at or line.at or _instant(_first(entry, _TIME, int | float)) or _journal_instant(entry.get(_JOURNAL_TIME)),
        local=outer.local or line.local,
        level=outer.level or line.level,
        rank=rank if rank is not None and rank >= 0 else line.rank,
        host=plain_host(host) if host else line.host,
        is_bare=False,
    )
    return [line, *(replace(line, text=part) for part in further)]


def _first(entry: Mapping[str, Any], keys: Sequence[str], kind: type | UnionType) -> Any:
    """The first of the fields that holds a value of this kind (true and false are no numbers); None where none does."""
    return next((value for key in keys if isinstance(value := entry.get(key), kind) and not isinstance(value, bool)), None)


def event_of(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """What an event of torchelastic says of a worker: state, rank, pid, host, and error as an entry of its own; None for other objects."""
    told = entry.get("metadata")
    if not (isinstance(entry.get("name"), str) and entry["name"].startswith(_EVENT) and isinstance(told, dict)):
        return None
    rank, pid, host, error = (told.get(key) for key in ("global_rank", "worker_id", "hostname", "raw_error"))
    return {
        "state": str(told.get("state") or ""),
        "rank": rank if isinstance(rank, int) and rank >= 0 else None,
        "pid": int(pid) if isinstance(pid, str) and pid.isascii() and pid.isdigit() and len(pid) < 16 else None,
        "host": plain_host(host) if isinstance(host, str) and host else None,
        "error": object_of(error) if isinstance(error, str) else None,
    }


def _error(entry: Mapping[str, Any]) -> str | None:
    """The traceback, else the message, of torchelastic's error file: an object in an object."""
    inner = entry.get("message")
    if not isinstance(inner, dict):
        return None
    extra = inner.get("extraInfo")
    said = (extra.get("py_callstack") if isinstance(extra, dict) else None, inner.get("message"))
    return next((text for text in said if isinstance(text, str) and text), None)


def _instant(count: float | None) -> datetime | None:
    """Seconds since 1970 as an instant, where they are of a time that logs are from."""
    return datetime.fromtimestamp(count, UTC) if count is not None and 1e9 < count < 4e9 else None


def _journal_instant(stamp: object) -> datetime | None:
    """The same of the journal's own stamp."""
    is_count = isinstance(stamp, str) and stamp.isascii() and stamp.isdigit() and len(stamp) < 18
    return _instant(int(stamp) / 1e6) if is_count and isinstance(stamp, str) else None
