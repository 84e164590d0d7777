"""Entries of a log in JSON: the journal's own, dmesg's, of shippers and containers, conditions of nodes, logs of controllers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from collectors._kernel_clock import NO_STAMP, Stamp, wall_stamp

__all__ = ["Entry", "entry_of"]

MAX_DEPTH: Final = 5  # of objects in objects, and of JSON in a text of JSON
MAX_NODES: Final = 500  # of an entry that are looked at
_MESSAGES: Final = (
    "MESSAGE",
    "message",
    "msg",
    "log",
    "Message",
    "line",
    "text",
    "textPayload",
    "raw",
    "error",
    "reason",
    "detail",
    "body",
)
_TIMES: Final = (  # of a condition the change counts, not the last sign of life; of an event that repeats the first one
    *("lastTransitionTime", "firstTimestamp", "time", "timestamp", "@timestamp", "ts", "Created", "generatedTimestamp", "date"),
)
_HOSTS: Final = (
    *(("_HOSTNAME",), ("hostname",), ("host",), ("node",), ("nodeName",), ("node_name",), ("host", "name"), ("host", "hostname")),
    *(("kubernetes", "host"), ("kubernetes", "node_name"), ("kubernetes", "node", "name"), ("resource", "labels", "node_name")),
)
_EPOCHS: Final = ((1e9, 1e10, 1.0), (1e12, 1e13, 1e3), (1e15, 1e16, 1e6), (1e18, 1e19, 1e9))  # from, to, ticks of a second

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """What an entry says; `program`: who speaks (`kernel`), None = not said."""

    message: str
    stamp: Stamp
    host: str | None
    boot_id: str | None
    program: str | None


def entry_of(text: str) -> Entry | None:
    """The entry that a line of JSON holds; None for other text and for JSON without a message."""
    try:
        value = json.loads(text.rstrip().rstrip(","))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    found = max(_messages(value), key=len, default=None)  # the innermost: what stands round it was put there by those who carry it
    message = _text(found[-1].get(_key(found[-1]) or "")) if found else None
    if found is None or message is None:
        return None
    inner_first = found[::-1]
    stamp = next((stamp for part in inner_first if (stamp := _stamp(part)) != NO_STAMP), NO_STAMP)
    host = next((host for part in inner_first for path in _HOSTS if (host := _text(_at(part, path)))), None)
    is_kernel = any(part.get("_TRANSPORT") == "kernel" for part in inner_first)
    said_by = next((name for part in inner_first for key in ("SYSLOG_IDENTIFIER", "_COMM") if (name := _text(part.get(key)))), None)
    boot = next((boot for part in inner_first if (boot := _text(part.get("_BOOT_ID")))), None)
    return Entry(message, stamp, host, boot, "kernel" if is_kernel else said_by)


def _messages(value: Object) -> Iterator[tuple[Object, ...]]:
    """The objects with a message, each with those round it, outermost first."""
    waiting: list[tuple[Any, tuple[Object, ...]]] = [(value, ())]
    for _ in range(MAX_NODES):
        if not waiting:
            return
        node, around = waiting.pop(0)
        if isinstance(node, dict):
            here = (*around, node)
            if _key(node):
                yield here
            waiting += [(child, here) for child in node.values() if isinstance(child, dict | list) and len(here) < MAX_DEPTH]
        else:
            waiting += [(child, around) for child in node[:MAX_NODES] if isinstance(child, dict)]


def _key(node: Object) -> str | None:
    """The key of an object's message: of several texts the longest, for a short one only says what the other is."""
    sizes = {key: len(text) for key in _MESSAGES if (text := _text(node.get(key))) is not None}
    return max(sizes, key=lambda key: sizes[key], default=None)


def _at(node: Object, path: Sequence[str]) -> Any:
    value: Any = node
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _stamp(node: Object) -> Stamp:
    """Wall clock and time since boot that an object gives beside its message."""
    stamp = NO_STAMP
    if (us := _whole(node.get("__REALTIME_TIMESTAMP"))) is not None:
        stamp = replace(stamp, at=datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000))
    else:
        for key in _TIMES:
            if (told := _told(node.get(key), is_dmesg="pri" in node)) is not None:
                stamp = told
                break
    if (us := _whole(node.get("_SOURCE_MONOTONIC_TIMESTAMP"))) is not None:
        stamp = replace(stamp, uptime_s=us / 1e6)
    return stamp


def _told(value: Any, *, is_dmesg: bool) -> Stamp | None:
    """A time in text, a count since 1970, or with dmesg the seconds since boot."""
    if isinstance(value, str):
        wall = wall_stamp(value, 0, NO_STAMP) or wall_stamp(f"[{value}]", 0, NO_STAMP)
        return wall[0] if wall else None
    if isinstance(value, dict) and isinstance(seconds := value.get("seconds"), int):
        value = seconds + (value["nanos"] / 1e9 if isinstance(value.get("nanos"), int) else 0)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    if is_dmesg and 0 <= value < 1e9:
        return Stamp(uptime_s=float(value))
    ticks = next((ticks for low, high, ticks in _EPOCHS if low <= value < high), None)
    return Stamp(at=datetime.fromtimestamp(round(value / ticks, 6), UTC)) if ticks else None


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # half a character is none
    if isinstance(value, list) and value and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        return bytes(value).decode("utf-8", "replace")
    return None


def _whole(value: Any) -> int | None:
    """Microseconds as the journal writes them: digits in a string, within the years that a date can hold."""
    text = str(value) if isinstance(value, str | int) else ""
    return int(text) if re.fullmatch(r"[0-9]{1,17}", text) else None
