"""Stamps without a zone, as logs print them, as naive times: what they leave out (year, day) is told by what stands near them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

__all__ = ["MAX_ZONE_S", "QUARTER_S", "SANE_STAMP", "SLACK_S", "chained", "filled", "shifts", "whole_zone"]

QUARTER_S: Final = 900  # zones are multiples of this
MAX_ZONE_S: Final = 14 * 3600
BESIDE_HOURS: Final = frozenset(  # zones in use that are no full hour, s, summer time with them (IANA time zone database)
    round(hours * 3600) for hours in (-9.5, -3.5, -2.5, 3.5, 4.5, 5.5, 5.75, 6.5, 8.75, 9.5, 10.5, 12.75, 13.75)
)
SLACK_S: Final = 240.0  # a stamp and an instant of one file, rank or host may be this far apart and still tell the zone
SANE_STAMP: Final = (
    r"^(?:2[01][0-9][0-9]-[0-9][0-9]-|[0-9][0-9]-|[0-9][0-9]:)"  # not of a clock that was never set, or torn; it may lack its year
)
HALF_YEAR: Final = timedelta(days=183)
OUT_OF_ORDER: Final = timedelta(days=60)  # lines of a file in the order of time do not lie back by more: by so much only a year has ended
LEAP_DAY: Final = "02-29"
NO_YEAR: Final = re.compile(r"[0-9][0-9]-[0-9][0-9]T")
NO_DAY: Final = re.compile(r"[0-9][0-9]:[0-9][0-9]")
FULL: Final = re.compile(r"[0-9]{4}-[0-9][0-9]-[0-9][0-9][T ]")


def filled(text: str, near: datetime) -> datetime | None:
    """A stamp YYYY-MM-DDThh:mm:ss, MM-DDThh:mm:ss or hh:mm:ss as the naive time nearest to `near`; None for no stamp.

    A 29 February is looked for in the leap years around, the last one rather than the next: it must not be read before its year is known.
    """
    near = near.replace(tzinfo=None)
    short = re.sub(r"[T ]", "T", text.strip().replace(",", "."), count=1)
    candidates = [short]
    if NO_YEAR.match(short):
        reach = range(-7, 8) if short.startswith(LEAP_DAY) else (-1, 0, 1)
        candidates = [f"{near.year + years:04d}-{short}" for years in reach]
    elif NO_DAY.match(short):
        candidates = [f"{day.date().isoformat()}T{short}" for days in (-1, 0, 1) if (day := _moved(near, days)) is not None]
    found = []
    for candidate in candidates:
        try:
            found.append(datetime.fromisoformat(candidate).replace(tzinfo=None))
        except ValueError:  # 29 February of another year, or no stamp at all
            continue
    return min(found, key=lambda t: (t - near > HALF_YEAR, abs(t - near)), default=None)


def chained(texts: Sequence[str | None], near: Mapping[int, datetime], *, in_order: bool = False) -> list[datetime | None]:
    """The stamps of one file in the order of time, each as `filled` near the one before it (else the one after it).

    `near` gives for some places what is known of their time; a stamp with its year needs nothing. So a year ends between 31 December and
    1 January of one file; where the file is known to be `in_order`, also where months fall (Nov, Jul). All None where nothing tells a year (or
    a day).
    """
    found: list[datetime | None] = [None] * len(texts)
    for place, text in enumerate(texts):
        if text is not None and (place in near or FULL.match(text)):
            found[place] = filled(text, near.get(place, datetime.min))
    for order, step in ((range(len(texts)), 1), (range(len(texts) - 1, -1, -1), -1)):
        last = None
        for place in order:
            text = texts[place]
            if found[place] is None and last is not None and text is not None:
                found[place] = _beyond(text, last, step) if in_order else filled(text, last)
            last = found[place] or last
    return found


def _beyond(text: str, last: datetime, step: int) -> datetime | None:
    """A stamp near another one and behind it (step 1) or before it (-1) in the order of time."""
    nearest = filled(text, last)
    if nearest is None or (last - nearest) * step <= OUT_OF_ORDER:
        return nearest
    return filled(text, nearest.replace(day=1) + timedelta(days=366 * step)) or nearest


def whole_zone(apart_s: float, slack_s: float) -> float | None:
    """The zone, s, that a local time this far ahead of its instant tells: a multiple of a quarter of an hour, within the slack; else None."""
    zone = round(apart_s / QUARTER_S) * QUARTER_S
    return float(zone) if abs(apart_s - zone) <= slack_s and abs(zone) <= MAX_ZONE_S else None


def shifts(local: tuple[datetime, datetime], span: tuple[datetime, datetime]) -> list[float]:
    """The zones in use, s, that bring local stamps, from first to last, to overlap a span of instants, or near it."""
    low = (local[0] - span[1].replace(tzinfo=None)).total_seconds()
    high = (local[1] - span[0].replace(tzinfo=None)).total_seconds()
    most = MAX_ZONE_S // QUARTER_S
    first, last = max(-most, -int((SLACK_S - low) // QUARTER_S)), min(most, int((high + SLACK_S) // QUARTER_S))
    zones = (n * QUARTER_S for n in range(first, last + 1))
    return [float(zone) for zone in zones if zone % 3600 == 0 or zone in BESIDE_HOURS]


def _moved(day: datetime, days: int) -> datetime | None:
    try:
        return day + timedelta(days=days)
    except OverflowError:
        return None
