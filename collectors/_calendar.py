"""Events of an iCalendar file, one after another: an event that cannot be read leaves the others alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from collectors._recurrence import MAX_TIMES, occurrences
from collectors._slurm_tables import text_lines
from rca.types import Skip, Source

__all__ = ["Event", "events"]

MAX_LINES: Final = 2_000  # of one event
MAX_ZONES: Final = 200
_EPOCH_YEAR: Final = 1970


@dataclass(frozen=True)
class Event:
    """One time that an event takes place. Times are instants (aware) where the file gives a zone, else naive."""

    number: int  # line of its BEGIN
    name: str | None
    place: str | None  # LOCATION, and the words of DESCRIPTION and CATEGORIES
    begins: datetime
    ends: datetime | None
    is_cancelled: bool


def events(source: Source) -> Iterator[Event | Skip]:
    """Every event in the order of the file, one that repeats expanded; a `Skip` for what cannot be read or is not expanded."""
    zones: list[str] = []
    joined: list[str] = []
    kind = ""
    number = 0
    for item in text_lines(source):
        if isinstance(item, Skip):
            yield item
            continue
        at, line = item
        word = line.strip().upper()
        if not kind and word in ("BEGIN:VEVENT", "BEGIN:VTIMEZONE"):
            kind, number, joined = word[6:], at, []
        if not kind:
            continue
        joined.append(line)
        if word == f"END:{kind}":
            if kind == "VEVENT":
                yield from _event(number, joined, zones)
            elif len(zones) < MAX_ZONES:
                zones.append("\r\n".join(joined))
            kind = ""
        elif len(joined) > MAX_LINES:
            yield Skip(f"L{number}", f"a {kind} of more than {MAX_LINES} lines")
            kind = ""
    if kind:
        yield Skip(f"L{number}", f"a {kind} that breaks off")


def _event(number: int, lines: list[str], zones: list[str]) -> Iterator[Event | Skip]:
    from icalendar import Calendar

    record = f"L{number}"
    text = "\r\n".join(["BEGIN:VCALENDAR", *zones, *lines, "END:VCALENDAR", ""])
    try:
        found = Calendar.from_ical(text).walk("VEVENT")[0]
        times, why = _times(found)
        name, status, place = (_words(found.get(key)) for key in ("SUMMARY", "STATUS", "LOCATION"))
        more = _words(found.get("DESCRIPTION"))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        yield Skip(record, f"no event ({str(error)[:100] or type(error).__name__})")
        return
    if why:
        yield Skip(record, why)
    for begins, ends in times:
        yield Event(number, name, "\n".join(filter(None, (place, more))) or None, begins, ends, (status or "").upper() == "CANCELLED")


def _words(value: Any) -> str | None:
    return str(value).strip()[:4000].encode("utf-8", "replace").decode() or None if isinstance(value, str) else None


def _time(value: Any) -> datetime | None:
    """The time of a property; a day begins at midnight, of no zone."""
    at = getattr(value, "dt", None)
    if isinstance(at, datetime):
        return at if at.year > _EPOCH_YEAR else None
    return datetime(at.year, at.month, at.day) if isinstance(at, date) and at.year > _EPOCH_YEAR else None


def _times(event: Any) -> tuple[list[tuple[datetime, datetime | None]], str | None]:
    """Beginnings and ends, and what is not expanded, in words. Raises ValueError without a beginning."""
    begins, ends = _time(event.get("DTSTART")), _time(event.get("DTEND"))
    if begins is None:
        raise ValueError("it has no DTSTART")
    lasts = getattr(event.get("DURATION"), "dt", None)
    if ends is not None:
        lasts = _naive(ends, begins) - _naive(begins, begins)
    elif not isinstance(lasts, timedelta):
        lasts = None if isinstance(getattr(event.get("DTSTART"), "dt", None), datetime) else timedelta(days=1)
    if lasts is not None and lasts < timedelta(0):
        raise ValueError("it ends before it begins")
    rule = event.get("RRULE")
    if rule is None:
        return [(begins, _ended(begins, lasts))], None
    if isinstance(rule, list):
        return [(begins, _ended(begins, lasts))], "several rules of repetition are not expanded: the first time is kept"
    until = (rule.get("UNTIL") or [None])[0]
    starts = occurrences(rule, begins.replace(tzinfo=None), _until(until, begins))
    if starts is None:
        return [(begins, _ended(begins, lasts))], f"the repetition {rule.to_ical().decode()[:100]} is not expanded: the first time is kept"
    dropped = {_naive(at, begins) for at in _dropped(event.get("EXDATE"))}
    kept = [at.replace(tzinfo=begins.tzinfo) for at in starts if at not in dropped]
    is_open = "UNTIL" not in rule and "COUNT" not in rule
    why = f"a repetition without an end: expanded for two years and at most {MAX_TIMES} times" if is_open else None
    return [(at, _ended(at, lasts)) for at in kept], why


def _ended(begins: datetime, lasts: timedelta | None) -> datetime | None:
    return begins + lasts if lasts is not None else None


def _naive(at: datetime, like: datetime) -> datetime:
    """A time on the clock that another one is told on."""
    if at.tzinfo is not None and like.tzinfo is not None:
        at = at.astimezone(like.tzinfo)
    return at.replace(tzinfo=None)


def _until(value: Any, begins: datetime) -> datetime | None:
    if isinstance(value, datetime):
        return _naive(value if value.tzinfo is None or begins.tzinfo is not None else value.astimezone(UTC), begins)
    return datetime(value.year, value.month, value.day, 23, 59, 59) if isinstance(value, date) else None


def _dropped(value: Any) -> Iterator[datetime]:
    for listed in value if isinstance(value, list) else [value]:
        for one in getattr(listed, "dts", ()):
            if (at := _time(one)) is not None:
                yield at
