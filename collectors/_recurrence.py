"""When an event that repeats takes place: the rules that windows of maintenance have (every n days, weeks or months), as naive local times.

Source: RFC 5545, 3.3.10 and 3.8.5.3. Rules with other parts (BYSETPOS, BYYEARDAY, by the hour, by the year) are not expanded.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count, islice
from typing import Any, Final

__all__ = ["MAX_TIMES", "occurrences"]

MAX_TIMES: Final = 400  # of one event
MAX_DAYS: Final = 732  # an event without an end is looked at for two years
_DAYS: Final = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_DAY: Final = re.compile(r"([+-]?[1-5])?(MO|TU|WE|TH|FR|SA|SU)")
_KNOWN: Final = frozenset({"FREQ", "INTERVAL", "COUNT", "UNTIL", "BYDAY", "BYMONTHDAY", "WKST"})


def occurrences(rule: Mapping[str, Sequence[Any]], first: datetime, until: datetime | None) -> list[datetime] | None:
    """The beginnings, the first one included; `until` is that of the rule in the same local time. None for a rule that is not expanded."""
    told = {key.upper(): list(value) for key, value in rule.items()}
    frequency = str((told.get("FREQ") or [""])[0]).upper()
    interval, most = (_whole((told.get(key) or [None])[0]) for key in ("INTERVAL", "COUNT"))
    days = [_DAY.fullmatch(str(day).upper()) for day in told.get("BYDAY", [])]
    dates = [_whole(day) for day in told.get("BYMONTHDAY", [])]
    if set(told) - _KNOWN or None in days or None in dates or (interval is not None and interval < 1):
        return None
    parts = [(int(day[1] or 0), _DAYS.index(day[2])) for day in days if day is not None]
    by_date = [day for day in dates if day is not None]
    if frequency == "MONTHLY":
        times = _monthly(first, interval or 1, parts, by_date)
    elif frequency in ("DAILY", "WEEKLY") and not by_date and not any(nth for nth, _ in parts):
        times = _daily(first, interval or 1, {day for _, day in parts}, is_weekly=frequency == "WEEKLY")
    else:
        return None
    end = min(until or datetime.max, first + timedelta(days=MAX_DAYS) if first.year < 9000 else first)
    found: list[datetime] = []
    for at in times:
        if at > end or len(found) >= min(MAX_TIMES, most if most is not None else MAX_TIMES):
            break
        found.append(at)
    return found or [first]


def _daily(first: datetime, interval: int, weekdays: set[int], *, is_weekly: bool) -> Iterator[datetime]:
    """Every so many days, or on these days of every so many weeks (which begin on Mondays)."""
    weekdays = weekdays or (set(range(7)) if not is_weekly else {first.weekday()})
    monday = first.toordinal() - first.weekday()
    for ahead in range(MAX_DAYS + 1):
        day = first.toordinal() + ahead
        fits = ((day - monday) // 7 if is_weekly else ahead) % interval == 0
        at = first + timedelta(days=ahead)
        if fits and at.weekday() in weekdays:
            yield at


def _monthly(first: datetime, interval: int, parts: Sequence[tuple[int, int]], dates: Sequence[int]) -> Iterator[datetime]:
    """On these days of every so many months: by date, by the nth weekday, else by the date of the first."""
    for months in islice(count(0, interval), MAX_DAYS // 28 + 1):
        year, month = first.year + (first.month - 1 + months) // 12, (first.month - 1 + months) % 12 + 1
        last = calendar.monthrange(year, month)[1]
        days = {day if day > 0 else last + 1 + day for day in dates or (() if parts else (first.day,))}
        for nth, weekday in parts:
            fitting = [day for day in range(1, last + 1) if calendar.weekday(year, month, day) == weekday]
            if nth == 0:
                days |= set(fitting)
            elif abs(nth) <= len(fitting):
                days.add(fitting[nth - 1 if nth > 0 else nth])
        yield from (at for day in sorted(days) if 1 <= day <= last and (at := first.replace(year=year, month=month, day=day)) >= first)


def _whole(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None
