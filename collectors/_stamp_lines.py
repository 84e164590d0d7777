"""The time that a line of its own tells between outputs of a tool that is asked again and again: ISO 8601, or as date(1) prints it. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from collectors._json_records import instant, local

__all__ = ["stamp_of"]

MAX_LINE: Final = 120  # characters: a longer line says something else
_ISO: Final = re.compile(
    r"[0-9]{4}-[0-9][0-9]-[0-9][0-9][T ][0-9][0-9]:[0-9][0-9]:[0-9][0-9]"
    r"(?:[.,][0-9]{1,9})?(?: ?(?:Z|UTC|[+-][0-9][0-9]:?[0-9][0-9]))?(?![0-9.:])"
)
_DATE: Final = re.compile(
    r"[A-Z][a-z]{2} +([A-Z][a-z]{2}) +([0-9]{1,2}) ([0-9][0-9]:[0-9][0-9]:[0-9][0-9]) ([A-Z]{2,5}|[+-][0-9][0-9]) ([0-9]{4})\b"
)
_UTC: Final = ("UTC", "GMT", "+00")


def stamp_of(line: str) -> tuple[datetime | None, str | None] | None:
    """The instant of a line, or what it says without a zone; None for a line that tells no time."""
    if len(line) > MAX_LINE:
        return None
    if found := _ISO.search(line):
        stamp = re.sub(r" ?(?:Z|UTC)$", "+00:00", found[0].replace(",", ".")).replace(" +", "+").replace(" -", "-")
        told = instant(stamp), local(stamp)
        return told if told != (None, None) else None
    if found := _DATE.search(line):
        try:
            at = datetime.strptime(f"{found[5]} {found[1]} {found[2]} {found[3]}", "%Y %b %d %H:%M:%S")
        except ValueError:
            return None
        return (at.replace(tzinfo=UTC), None) if found[4] in _UTC else (None, at.isoformat())
    return None
