"""What `scontrol show` prints: `Name=value` fields of one object after another, each on one line (`-o`) or on several with indented ones below."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from collectors._slurm_tables import text_lines
from rca.types import Skip, Source

__all__ = ["Shown", "begins", "shown"]

MAX_LINES: Final = 400  # of one object
MAX_BYTES: Final = 1 << 20
_FIELD: Final = re.compile(r"(?:^|(?<=\s))([A-Z][A-Za-z0-9_:/]{1,40})=")
_BEGIN: Final = re.compile(r"\s{0,8}(NodeName|JobId|ReservationName)=\S")


@dataclass(frozen=True)
class Shown:
    """One object: what kind it is, the line on which it begins, and its text."""

    kind: str  # NodeName, JobId, ReservationName
    number: int
    text: str

    @cached_property
    def fields(self) -> dict[str, str]:
        """Field -> value as printed, blanks inside kept; a value ends where the next field or the line does. Of equal names the first counts."""
        found: dict[str, str] = {}
        for line in self.text.split("\n"):
            places = list(_FIELD.finditer(line))
            for place, following in zip(places, [*places[1:], None], strict=False):
                found.setdefault(place[1], line[place.end() : following.start() if following else len(line)].strip())
        return found

    def rest_of(self, name: str) -> str | None:
        """All that stands behind a field to the end of its line: a text in which other fields seem to begin."""
        found = re.search(rf"(?:^|\s){name}=([^\n]*)", self.text)
        return found[1].strip() if found else None


def begins(head: bytes, kind: str) -> Iterator[str]:
    """The first lines of the head on which an object of this kind begins."""
    start = f"{kind}=".encode()
    for line in head.splitlines():
        if line.lstrip(b"\xef\xbb\xbf ").startswith(start):
            yield line.decode("utf-8", "replace").removeprefix("\ufeff").strip()


def shown(source: Source, kind: str) -> Iterator[Shown | Skip]:
    """The objects of one kind in the order of the file; other lines (prompts, other kinds) are passed over."""
    joined: list[str] = []
    number = size = 0
    for item in text_lines(source):
        if isinstance(item, Skip):
            yield item
            continue
        at, line = item
        found = _BEGIN.match(line)
        goes_on = bool(joined) and found is None and line[:1] in (" ", "\t") and len(joined) < MAX_LINES and size < MAX_BYTES
        if goes_on:
            joined.append(line)
            size += len(line)
            continue
        if joined:
            yield Shown(kind, number, "\n".join(joined))
            joined = []
        if found is not None and found[1] == kind:
            joined, number, size = [line], at, len(line)
    if joined:
        yield Shown(kind, number, "\n".join(joined))
