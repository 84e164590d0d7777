"""Planned windows: calendars (.ics), CSV or JSON with a begin and an end, and Slurm's reservations for maintenance.

    start_time_utc,end_time_utc,nodes,reason
    2026-05-03T06:00:00Z,2026-05-03T10:00:00Z,"host-[01-04]",firmware

Columns that a name calls UTC are; elsewhere a time without a zone stays local (`*_local`), unless a column names the zone. Of Slurm's reservations
(`scontrol show reservation`, also as JSON) only those with the flag MAINT are windows: others are kept for people, not from them.
Source: RFC 5545; Slurm, manual page of scontrol.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import polars as pl

from collectors._batches import batches
from collectors._calendar import Event, events
from collectors._hostlist import expand
from collectors._json_records import first_objects, instant, local, number, text
from collectors._slurm_blocks import begins, shown
from collectors._slurm_json import entries, flags_of, moment
from collectors._slurm_tables import text_lines
from collectors._slurm_values import duration_s, plain, stamp
from rca.errors import EvidenceError
from rca.tables import Table
from rca.types import Skip, Source

__all__ = ["EMITS", "claims", "read"]

EMITS = ("planned_windows",)
IS_ALONE = True

_WHOSE: Final = r"(?:window_?|maintenance_?|exclusion_?|planned_?)?"
_WHEN: Final = r"(?:_?(?:time|at|date|datetime|ts))?(_utc)?"
_BEGIN: Final = re.compile(rf"{_WHOSE}(?:start|begin|starts|from){_WHEN}")
_END: Final = re.compile(rf"{_WHOSE}(?:end|finish|ends|to|until|stop){_WHEN}")
_HOSTS: Final = (
    *("hosts", "nodes", "nodelist", "node_list", "node_names", "host", "node", "hostname", "hostnames"),
    *("affected_nodes", "affected_hosts", "resources"),
)
_NAMES: Final = ("name", "title", "summary", "reason", "description", "subject", "comment", "note", "label", "event")
_KINDS: Final = ("kind", "type", "category")
_STATUS: Final = ("status", "state")
_ZONES: Final = ("timezone", "time_zone", "tz")
_OTHERS: Final = (
    "id",
    "uid",
    "window_id",
    "cluster",
    "owner",
    "ticket",
    "url",
    "created_by",
    "author",
    "cancelled",
    "canceled",
    "is_cancelled",
)
_KNOWN: Final = frozenset((*_HOSTS, *_NAMES, *_KINDS, *_STATUS, *_ZONES, *_OTHERS))
_SAYS_SO: Final = frozenset((*_HOSTS, *_NAMES, *_KINDS))
_LISTS: Final = (
    "windows",
    "exclusions",
    "maintenance_windows",
    "maintenance",
    "planned_windows",
    "events",
    "outages",
    "exclusion_windows",
    "items",
)
_WORDS: Final = re.compile(r"(?i)mainten|exclu|planned|outage|downtime|window|upgrade|firmware|patch")
_CALLED_OFF: Final = re.compile(r"(?i)cancel|postpon|reject|called off|withdrawn|abort")
_PLACED: Final = re.compile(r"(?i)\b(?:nodes?|hosts?)\s{0,3}[:=]\s{0,3}([A-Za-z][^\s;]{0,2000})")
_NODES_ONLY: Final = re.compile(r"[A-Za-z][\w.\-]{0,60}(?:[0-9\]])[\w.\-,\[\] ]{0,2000}|[A-Za-z][\w.\-]{0,60}\[[\w.\-,\[\] ]{0,2000}")


def claims(name: str, head: bytes) -> bool:
    """A calendar with events, a table or objects of windows, or reservations of Slurm."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:15].upper() == b"BEGIN:VCALENDAR":
        return True
    if start[:1] in (b"{", b"["):
        return bool(_slurm_reservations(head) or any(map(_is_window, _objects(head))))
    if any(True for _ in begins(head, "ReservationName")):
        return b"StartTime=" in head and b"EndTime=" in head
    return _columns(start.split(b"\n", 1)[0]) is not None


def _slurm_reservations(head: bytes) -> bool:
    return re.search(rb'"reservations"\s*:\s*\[\s*\{', head) is not None and b'"node_list"' in head and b'"start_time"' in head


def _objects(head: bytes) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for value in first_objects(head):
        inner = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), None)
        found += [one for one in inner[:8] if isinstance(one, dict)] if inner is not None else [value]
    return found


def _pair(keys: Sequence[str]) -> tuple[str, str, bool] | None:
    """The names of the begin and the end, and whether they say UTC."""
    starts = [(key, found) for key in keys if (found := _BEGIN.fullmatch(key.strip().lower()))]
    ends = [(key, found) for key in keys if (found := _END.fullmatch(key.strip().lower()))]
    for key, found in starts:
        for other, end in ends:
            if found[1] == end[1]:
                return key, other, found[1] is not None
    return None


def _is_told(keys: Sequence[str], words: str) -> bool:
    """Whether begin and end are those of a window: no column that a window has not, and more than two times that say nothing of what they are."""
    pair = _pair(keys)
    if pair is None:
        return False
    rest = {key.strip().lower() for key in keys} - {pair[0].strip().lower(), pair[1].strip().lower()}
    if not rest <= _KNOWN:
        return False
    return pair[2] or _WORDS.search(f"{words} {' '.join(keys)}") is not None or bool(rest & set(_HOSTS) and rest & _SAYS_SO)


def _is_window(value: Mapping[str, Any]) -> bool:
    words = " ".join(str(value[key])[:200] for key in value if str(key).lower() in _SAYS_SO)
    return _is_told([str(key) for key in value], words)


def _columns(line: bytes) -> tuple[list[str], str] | None:
    """Columns and delimiter of the header of a table of windows; None for any other line."""
    if len(line) > 2000 or b"\0" in line:
        return None
    plain_line = line.decode("utf-8", "replace").strip().lstrip("#").strip()
    delimiter = next((letter for letter in (",", ";", "\t", "|") if letter in plain_line), ",")
    names = [name.strip().strip('"').lower() for name in plain_line.split(delimiter)]
    return (names, delimiter) if len(names) > 1 and _is_told(names, "") else None


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `planned_windows` in the order of the file. Raises EvidenceError where nothing in it could be read."""
    num_rows, num_skips = yield from batches("planned_windows", _rows(source))
    if not num_rows and not num_skips:
        raise EvidenceError(source.path, None, "no window with a begin and an end in it")


def _rows(source: Source) -> Iterator[dict[str, Any] | Skip]:
    start = source.head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:15].upper() == b"BEGIN:VCALENDAR":
        for item in events(source):
            yield item if isinstance(item, Skip) else _of_event(item)
    elif start[:1] in (b"{", b"["):
        yield from _of_slurm_json(source) if _slurm_reservations(source.head) else _of_json(source)
    elif any(True for _ in begins(source.head, "ReservationName")):
        yield from _of_reservations(source)
    else:
        yield from _of_table(source)


def _of_event(event: Event) -> dict[str, Any]:
    row: dict[str, Any] = {
        "record": f"L{event.number}",
        "name": event.name,
        "kind": "maintenance",
        "hosts": _hosts_in(event.place, event.name),
        "is_cancelled": event.is_cancelled,
    }
    for column, at in (("started", event.begins), ("ended", event.ends)):
        if at is not None:
            row[f"{column}_at"], row[f"{column}_at_local"] = (at.astimezone(UTC), None) if at.tzinfo else (None, at.isoformat())
    return row


def _hosts_in(place: str | None, name: str | None) -> list[str] | None:
    """Hosts that words name: behind `nodes:`, or a place that is nothing but them."""
    for words in (place, name):
        for line in (words or "").splitlines():
            found = _PLACED.search(line)
            told = found[1] if found else line.strip() if _NODES_ONLY.fullmatch(line.strip()) else None
            if told and (hosts := expand(told.rstrip(".)")).names):
                return list(hosts)
    return None


def _of_table(source: Source) -> Iterator[dict[str, Any] | Skip]:
    lines = text_lines(source)
    header: tuple[list[str], str] | None = None
    for item in lines:
        if isinstance(item, Skip):
            yield item
            continue
        at, line = item
        if header is None:
            header = _columns(line.encode()) if line.strip() else None
            if header is None and line.strip():
                return
            continue
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            cells = next(csv.reader([line], delimiter=header[1]))
        except (csv.Error, StopIteration) as error:
            yield Skip(f"L{at}", f"no line of the table ({error})")
            continue
        yield from _of_record(f"L{at}", dict(zip(header[0], cells, strict=False)))


def _of_json(source: Source) -> Iterator[dict[str, Any] | Skip]:
    from collectors._json_records import records

    for place, value in records(source):
        if isinstance(value, Skip):
            yield Skip(place, value.why)
            continue
        inner = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), None)
        for one in inner if inner is not None else [value]:
            if isinstance(one, dict):
                yield from _of_record(place or "E0", {str(key).strip().lower(): told for key, told in one.items()})
            else:
                yield Skip(place, f"no window: {json.dumps(one)[:80]}")


def _of_record(record: str, told: Mapping[str, Any]) -> Iterator[dict[str, Any] | Skip]:
    pair = _pair(list(told))
    if pair is None:
        yield Skip(record, "no begin and end of a window")
        return
    zone = next((text(told[key], 64) for key in _ZONES if told.get(key)), None)
    begin, end = (_moment(told[key], zone, is_utc=pair[2]) for key in pair[:2])
    if begin == (None, None):
        yield Skip(record, f"no time in {pair[0]}: {str(told[pair[0]])[:60]!r} (ISO 8601 is expected)")
        return
    if begin[0] is not None and end[0] is not None and end[0] < begin[0]:
        yield Skip(record, "the window ends before it begins")
        return
    hosts: list[str] | None = None
    for key in _HOSTS:
        value = told.get(key)
        listed = expand(",".join(str(one) for one in value) if isinstance(value, list) else text(value, 1 << 20))
        if listed.problem:
            yield Skip(record, f"{key}: {listed.problem}")
        if listed.names:
            hosts = list(listed.names)
            break
    status = next((text(told[key]) for key in _STATUS if told.get(key)), None) or ""
    yield {
        "record": record,
        "name": next((found for key in _NAMES if (found := text(told.get(key)))), None),
        "kind": next((found for key in _KINDS if (found := text(told.get(key)))), None)
        or ("exclusion" if "exclusion" in pair[0] else "maintenance"),
        "hosts": hosts,
        "started_at": begin[0],
        "started_at_local": begin[1],
        "ended_at": end[0],
        "ended_at_local": end[1],
        "is_cancelled": bool(_CALLED_OFF.search(status))
        or any(_is_true(told.get(key)) for key in ("cancelled", "canceled", "is_cancelled")),
    }


def _is_true(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", "yes", "1"))


def _moment(value: Any, zone: str | None, *, is_utc: bool) -> tuple[datetime | None, str | None]:
    """The instant of a time with a zone or of a count since 1970 (s, or thousandths of them), else the local stamp that it is."""
    if isinstance(value, str):
        value = re.sub(r"(?i)\s*(?:utc|z|gmt)$", "+00:00", value.strip()) if not value.strip().isdigit() else value
    count = number(value)
    if count is not None:
        for unit in ("s", "ms", "us", "ns"):
            if (at := instant(count, unit)) is not None:
                return at, None
        return None, None
    if (at := instant(value)) is not None:
        return at, None
    naive = local(value)
    if naive is None or not (is_utc or zone):
        return None, naive
    where = UTC if is_utc else _zone(zone)
    try:
        return (datetime.fromisoformat(naive).replace(tzinfo=where).astimezone(UTC), None) if where is not None else (None, naive)
    except OverflowError:
        return None, naive


def _zone(name: str | None) -> Any:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    if name is None:
        return None
    try:
        return UTC if name.upper() in ("UTC", "Z", "GMT") else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _reservation(record: str, name: str | None, flags: Sequence[str], hosts: str | None) -> dict[str, Any] | Skip:
    if not {"MAINT", "MAINTENANCE"} & set(flags):
        return Skip(record, f"reservation {name}: without the flag MAINT it is no maintenance")
    listed = expand(hosts)
    whole = not listed.names and not listed.problem
    return {"record": record, "name": name, "kind": "reservation", "hosts": None if whole else list(listed.names), "is_cancelled": False}


def _of_reservations(source: Source) -> Iterator[dict[str, Any] | Skip]:
    for item in shown(source, "ReservationName"):
        if isinstance(item, Skip):
            yield item
            continue
        fields = item.fields
        row = _reservation(
            f"L{item.number}", plain(fields["ReservationName"]), flags_of(fields.get("Flags", "").split(",")), fields.get("Nodes")
        )
        began, ended = stamp(fields.get("StartTime")), stamp(fields.get("EndTime"))
        if not isinstance(row, Skip):
            lasts = duration_s(fields.get("Duration"))
            if ended is None and began is not None and lasts is not None:
                ended = (datetime.fromisoformat(began) + timedelta(seconds=lasts)).isoformat()
            row["started_at_local"], row["ended_at_local"] = began, ended
            if began is None:
                yield Skip(row["record"], f"reservation {row['name']} without a time")
                continue
        yield row


def _of_slurm_json(source: Source) -> Iterator[dict[str, Any] | Skip]:
    for item in entries(source, "reservations"):
        if isinstance(item, Skip):
            yield item
            continue
        record, told = item
        row = _reservation(record, text(told.get("name")), flags_of(told.get("flags")), text(told.get("node_list"), 1 << 20))
        if not isinstance(row, Skip):
            row["started_at"], row["started_at_local"] = moment(told.get("start_time"))
            row["ended_at"], row["ended_at_local"] = moment(told.get("end_time"))
        yield row
