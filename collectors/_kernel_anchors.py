"""What a kernel log says of its own clocks: where a second clock stands beside the first, where a kernel starts, where the clock was set.

Seconds since 1970 stand in records of audit, of memory errors (EDAC, mce: `TIME 1519356496`) and in time-outs of Lustre
(`[sent 1409063012/real ...`); together with the stamp of their line they tell the zone and the year that the stamp lacks. Records of audit,
and lines with two clocks, are looked for at the ends of each block only, so that a log of nothing else costs no more. Told where they
differ from what was told before. Of a syslog, whose stamps lack the year, the first line of each month and the last line are told, by lines picked
all along: so the years between a record and the end of its file can be counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from collectors._kernel_prefix import Line, peel

__all__ = ["MARKERS", "Anchors"]

_EPOCH: Final = re.compile(r".{0,2000}?(?: TIME |\[sent |audit\()([0-9]{10}(?:\.[0-9]{3})?)(?:/real [0-9]|:[0-9]| |$)")
_AUDIT: Final = b"audit(1"
MARKERS: Final = (
    "Linux version ",
    "-- Boot ",
    "-- Reboot --",
    "Clock change detected",
    "ime has been changed",
)  # of lines to be shown to `mark`
_START: Final = re.compile(r"Linux version [0-9]|-- Boot (?P<boot>[0-9a-f]{32})|-- Reboot --")
_SET: Final = re.compile(r"(?:.{0,80}: )?(?:Clock change detected|(?:System t|T)ime has been changed)")
_MARKED: Final = ("Linux version ", "-- ")
_MONTHS: Final = {name: number for number, name in enumerate(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}
_YEARLESS: Final = re.compile(rb"(?:<\d{1,3}>)?([A-Z][a-z]{2}) [ \d]\d \d\d:\d\d:\d\d[ .]")
PICKED: Final = 256  # lines of a block that are looked at for their month
SMALL_BYTES: Final = 65536  # of a block so small every line
MAX_MONTHS: Final = 1200  # that one file tells; a hostile one changes it with every line
EDGE_BYTES: Final = 32768  # at either end of a block
MAX_LINE: Final = 16384
DAY_S, QUARTER_S = 86400, 900
SAME_S: Final = 2.0  # two lines whose clocks are apart by the same tell nothing new

Row = dict[str, Any]


@dataclass
class Anchors:
    """Collects them from block to block; `host` is what the file's name says of lines that name none."""

    host: str | None = None
    _rows: list[Row] = field(default_factory=list)
    _told: dict[tuple[str | None, str], tuple[float, Row, Row]] = field(
        default_factory=dict
    )  # host, kind -> gap, first and last row with it
    _boot_id: str | None = None
    _month: bytes = b""  # of the line looked at last
    _num_months: int = 0
    _end: list[Row] = field(default_factory=list)

    def see(self, block: bytes, first: int) -> None:
        """Looks at the ends of a block of whole lines; `first` is the number of its first line."""
        tail = max(0, len(block) - EDGE_BYTES)
        places = {0, block.rfind(b"\n", 0, len(block) - 1) + 1, block.find(_AUDIT, 0, EDGE_BYTES), block.rfind(_AUDIT, tail)}
        number, counted = first, 0
        for start in sorted({block.rfind(b"\n", 0, at) + 1 for at in places - {-1}}):
            end = block.find(b"\n", start)
            number += block.count(b"\n", counted, start)
            counted = start
            line = peel(block[start : end if end >= 0 else len(block)][:MAX_LINE].decode("utf-8", "replace"))
            self._pair(line, number)
            self._epoch(line, number)
        self._months(block, first)
        if self._num_months:
            self._end = [self._month_row(line, number)]

    def _months(self, block: bytes, first: int) -> None:
        """The first of the picked lines with another month than the one before, of logs whose stamps name no year."""
        if _YEARLESS.match(block) is None and not self._month:
            return
        number, counted, start = first, 0, 0
        step = len(block) // PICKED if len(block) > SMALL_BYTES else 1
        while 0 <= start < len(block) and self._num_months < MAX_MONTHS:
            found = _YEARLESS.match(block, start)
            if found is not None and found[1] in _MONTHS and found[1] != self._month:
                if self._month:
                    end = block.find(b"\n", start)
                    line = peel(block[start : end if end >= 0 else len(block)][:MAX_LINE].decode("utf-8", "replace"))
                    number += block.count(b"\n", counted, start)
                    counted = start
                    self._rows.append(self._month_row(line, number))
                    self._num_months += 1
                self._month = found[1]
            start = block.find(b"\n", min(start + step, len(block)) - 1) + 1 or len(block)

    def _month_row(self, line: Line, number: int) -> Row:
        return {**self._row(line, number, "month"), "boot_id": None, "uptime_s": None}

    def mark(self, line: Line, number: int) -> None:
        """Looks at a line without its prefixes that holds one of the markers, or tells an event."""
        body = line.body
        if " TIME 1" in body or "[sent 1" in body:
            self._epoch(line, number)
        elif body.startswith(_MARKED) and (found := _START.match(body)) and not line.is_hearsay:
            self._boot_id = found["boot"] or line.boot_id
            self._rows.append(self._row(line, number, "boot"))
        elif ("Clock" in body or "ime has" in body) and _SET.match(body):
            self._rows.append(self._row(line, number, "set"))

    def rows(self) -> list[Row]:
        """Rows of `clock_anchors`, in the order of the file."""
        late = [last for _, first, last in self._told.values() if last is not first]
        return sorted([*self._rows, *late, *self._end], key=lambda row: int(row["record"][1:]))

    def _row(self, line: Line, number: int, kind: str) -> Row:
        stamp = line.stamp
        return {
            "record": f"L{number}",
            "host": line.host or self.host,
            "boot_id": line.boot_id or self._boot_id,
            "kind": kind,
            "told_at": stamp.at,
            "told_at_local": stamp.local,
            "uptime_s": stamp.uptime_s,
        }

    def _pair(self, line: Line, number: int) -> None:
        stamp = line.stamp
        if stamp.uptime_s is not None and stamp.has_wall:
            self._tell(self._row(line, number, "pair"), _of_day(stamp.at or stamp.local) - stamp.uptime_s)

    def _epoch(self, line: Line, number: int) -> None:
        stamp = line.stamp
        if stamp.at is not None or (stamp.local is None and stamp.uptime_s is None) or not (found := _EPOCH.match(line.body)):
            return
        at = datetime.fromtimestamp(float(found[1]), UTC)
        zone = (
            round((_of_day(stamp.local) - _of_day(at)) / QUARTER_S) * QUARTER_S if stamp.local else at.timestamp() - (stamp.uptime_s or 0.0)
        )
        self._tell(self._row(line, number, "epoch") | {"told_at": at}, zone)

    def _tell(self, row: Row, gap_s: float) -> None:
        """Keeps the first and the last of those between whose clocks lies the same."""
        gap_s %= DAY_S
        key = row["host"], row["kind"]
        before = self._told.get(key)
        if before is None or min((gap_s - before[0]) % DAY_S, (before[0] - gap_s) % DAY_S) > SAME_S:
            if before is not None and before[1] is not before[2]:
                self._rows.append(before[2])
            self._rows.append(row)
            self._told[key] = gap_s, row, row
        else:
            self._told[key] = before[0], before[1], row


def _of_day(moment: datetime | str | None) -> float:
    """Seconds since midnight of an instant, or of a stamp that ends in hh:mm:ss and a fraction."""
    if isinstance(moment, datetime):
        return moment.hour * 3600 + moment.minute * 60 + moment.second + moment.microsecond / 1e6
    hours, minutes, seconds = (moment or "00:00:00").rpartition("T")[2].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
