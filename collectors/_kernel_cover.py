"""What time and which hosts a kernel log covers, so that silence in it can be told from a log that was not there."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from collectors._kernel_clock import NO_STAMP, Stamp, gap_s
from collectors._kernel_prefix import Line, peel

__all__ = ["Cover"]

EDGE_LINES: Final = 5  # looked at on either side of a block: its time runs from edge to edge
EDGE_BYTES: Final = 8192
YEAR_S: Final = 366 * 86_400.0
OUT_OF_ORDER_S: Final = 60 * 86_400.0  # lines in the order of time do not lie back by more: by so much only a year has ended
_SHORT: Final = (5, -1)  # where "T" stands in a printed clock without a year, or without a date


@dataclass(slots=True)
class _Span:
    """The stamps of one host: earliest and latest of each clock, of printed ones without a year in the order of the file."""

    boot_id: str | None = None
    at: list[datetime] = field(default_factory=list)
    local: list[str] = field(default_factory=list)
    uptime_s: list[float] = field(default_factory=list)
    covered_s: float = 0.0  # from the first to the last of `local`, where it lacks the year
    last: Stamp = NO_STAMP  # the one seen last: of a clock of whole seconds many lines share it

    def see(self, stamp: Stamp) -> None:
        """Widens the span."""
        if stamp is self.last:
            return
        self.last = stamp
        if stamp.at is not None:
            self.at = _widened(self.at, stamp.at)
        if stamp.local is not None:
            self._see_local(stamp.local)
        if stamp.uptime_s is not None:
            self.uptime_s = _widened(self.uptime_s, stamp.uptime_s)

    def _see_local(self, local: str) -> None:
        """A printed clock. Without a year 31 December is the greater text: what comes next in the file counts as later, by the shorter way round."""
        last = self.local[1] if self.local else local
        place = local.find("T")
        if place not in _SHORT or last.find("T") != place:
            self.local = _widened(self.local, local)
            return
        gap = gap_s(Stamp(local=last), Stamp(local=local)) or 0.0
        gap += YEAR_S if gap < -OUT_OF_ORDER_S else 0.0
        if not self.local:
            self.local = [local, local]
        elif gap >= 0:
            self.local[1], self.covered_s = local, self.covered_s + gap
        elif -gap > self.covered_s:
            self.local[0], self.covered_s = local, -gap


def _widened(span: list[Any], value: Any) -> list[Any]:
    """A span (empty, or earliest and latest) that holds the value, too."""
    if not span:
        return [value, value]
    if value > span[1]:
        span[1] = value
    elif value < span[0]:
        span[0] = value
    return span


@dataclass
class Cover:
    """Collects what the lines looked at say of host and time; `host` is what the file's name says of lines that name none."""

    host: str | None = None
    _spans: dict[str | None, _Span] = field(default_factory=dict)

    def see(self, line: Line) -> None:
        """Counts a line's host and stamp."""
        host = line.host or self.host
        span = self._spans.get(host)
        if span is None:
            span = self._spans[host] = _Span()
        if span.boot_id is None:
            span.boot_id = line.boot_id
        span.see(line.stamp)

    def see_edges(self, block: bytes) -> None:
        """The first and the last lines of a block of whole lines."""
        first = block[:EDGE_BYTES].split(b"\n")[:EDGE_LINES]
        last = block[-EDGE_BYTES:].split(b"\n")[1 if len(block) > EDGE_BYTES else 0 :][-EDGE_LINES - 1 :]
        for text in (*first, *last):
            if text.strip():
                self.see(peel(text.decode("utf-8", "replace")))

    def rows(self, num_lines: int) -> list[dict[str, Any]]:
        """Rows of `host_logs`: one per host that is named; one without a host where none is."""
        spans: dict[str | None, _Span] = {name: span for name, span in self._spans.items() if name is not None} or {
            None: self._spans.get(None, _Span())
        }
        return [
            {
                "record": "L1",
                "host": name,
                "boot_id": span.boot_id,
                **dict(zip(("first_at", "last_at"), span.at, strict=False)),
                **dict(zip(("first_at_local", "last_at_local"), span.local, strict=False)),
                **dict(zip(("first_uptime_s", "last_uptime_s"), span.uptime_s, strict=False)),
                "num_lines": num_lines,
            }
            for name, span in sorted(spans.items(), key=lambda item: item[0] or "")
        ]
