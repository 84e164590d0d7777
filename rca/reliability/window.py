"""A stretch of time that is reported on, and a figure about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from rca.errors import UsageError
from rca.incidents.records import week_of

FIRST_YEAR, LAST_YEAR = 1990, 2199  # no record is older, and weeks before and after must exist too

__all__ = ["Figure", "Window", "week"]


@dataclass(frozen=True)
class Window:
    """From `start` up to, not including, `end`."""

    start: datetime
    end: datetime

    def back(self, count: int) -> Window:
        """The window of the same length so many lengths earlier."""
        by = (self.end - self.start) * count
        return Window(self.start - by, self.end - by)

    @property
    def name(self) -> str:
        """The ISO week it begins in."""
        return week_of(self.start)


def week(name: str) -> Window:
    """The ISO week of a name like 2026-W47, in UTC. Raises UsageError for any other name."""
    try:
        year, number = name.split("-W")
        if len(year) != 4 or len(number) != 2 or not (year + number).isascii() or not FIRST_YEAR <= int(year) <= LAST_YEAR:
            raise ValueError
        start = datetime.fromisocalendar(int(year), int(number), 1).replace(tzinfo=UTC)
        return Window(start, start + timedelta(days=7))
    except (ValueError, OverflowError):
        raise UsageError(f"{name!r} is no week: write the ISO year and week, as in 2026-W47") from None


@dataclass(frozen=True)
class Figure:
    """A figure: `value` (None = not known) = `numerator` / `denominator` where it is a ratio. It rests on `n` records; `left_out` more belonged
    here but did not tell. `low` and `high` bound it at 95 % where it is an estimate of a rate."""

    name: str
    says: str
    value: float | None
    unit: str
    numerator: float | None = None
    denominator: float | None = None
    n: int = 0
    left_out: int = 0
    low: float | None = None
    high: float | None = None
    why: str | None = None

    def as_row(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)
