"""Moments as people type them: ISO 8601 with a zone, `now`, or a time ago (`-5m`, `-1h30m`)."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from rca.errors import UsageError

__all__ = ["FORMS", "moment", "now", "takes_times_ago"]

FORMS: Final = "ISO 8601 with a zone (2026-11-29T21:16:54Z), `now`, or a time ago (-90s, -5m, -1h30m, -2d)"
AHEAD: Final = timedelta(minutes=5)  # the clock of whoever copies a time from another machine may be that far off
_EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
_AGO: Final = re.compile(r"-(?=\d)(?:(\d{1,4})d)?(?:(\d{1,4})h)?(?:(\d{1,5})m)?(?:(\d{1,7})s)?")


def now() -> datetime:
    """The present moment, UTC, to the millisecond."""
    at = datetime.now(UTC)
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


def moment(text: str, at: datetime, what: str) -> datetime:
    """The moment that `text` names, `at` being now. Raises UsageError that names the option (`what`) and the forms it takes."""
    typed = text.strip()
    if typed == "now":
        return at
    if ago := _AGO.fullmatch(typed):
        days, hours, minutes, seconds = (int(part or 0) for part in ago.groups())
        return at - timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    try:
        found = datetime.fromisoformat(typed)
    except ValueError:
        raise UsageError(f"{what} {text[:60]!r} is no moment: give {FORMS}") from None
    if found.tzinfo is None:
        raise UsageError(f"{what} {text!r} names no zone, and could be any of a day's hours: append Z for UTC, or an offset such as +01:00")
    try:
        found = found.astimezone(UTC)
    except OverflowError:
        found = _EARLIEST - timedelta(days=1)
    if found > at + AHEAD:
        raise UsageError(f"{what} {text!r} lies in the future (it is {at:%Y-%m-%dT%H:%M:%SZ}): give a moment that has been")
    if found < _EARLIEST:
        raise UsageError(f"{what} {text!r} lies before the year 2000: check the date")
    return min(found, at)


def takes_times_ago(parser: argparse.ArgumentParser) -> None:
    """Let `--start -5m` be an option and its value: argparse takes only plain negative numbers for values."""
    parser._negative_number_matcher = re.compile(r"^-\d")  # type: ignore[assignment]
