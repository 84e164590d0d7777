"""One event told by several files is one event: dmesg, syslog, journal, a switch daemon's log and a health check of a host all tell the same Xid.

Rows of `kernel_events` become records: rows of one host (never of two: a PCI address is a slot that every host has) that say the same of the same
device, of the same time or, where that cannot be compared, in the same words. A record counts as many lines as the file with most of them, has the
best stamp of all, and names every place. A file that holds a log twice counts it once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from rca.clocks import Clocks, clocks
from rca.local_time import filled, whole_zone
from rca.types import Cite, Tables

__all__ = ["KernelRecord", "kernel_records", "merged"]

BURST_S: Final = 30.0  # lines of one host and device so close are one row within a file; so they are across files
LOST_XID: Final = 79  # Xid of a GPU that left the bus; the same is told without any number
SAME_S: Final = 2.0  # two clocks that show different zones show the same seconds, or nearly
CUT: Final = 40  # characters of two messages that must be equal where a wrapper has cut the rest of one
MOST_NEAR: Final = 64  # records of one device that are compared with a row that names no process or link
MAX_TEXT: Final = 300
_STAMPS: Final = ("logged_at", "logged_at_local", "uptime_s")
_FILLED: Final = ("gpu", "device", "pid", "process", "severity", "unit", "link", "caused_by", "recovery", "code")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class KernelRecord:
    """One event. `row` has the columns of `kernel_events`; `at` (UTC) is None where no file's clock can be placed, `error_s` how much later than `at`
    it may have been by its host's clock (stamps are cut to seconds); `order`: its place in its file (that of `row`) in the order of time; `rows`: all
    it is told by."""

    row: Row
    at: datetime | None
    error_s: float
    order: int
    rows: tuple[Row, ...]

    @property
    def cites(self) -> tuple[Cite, ...]:
        """Every place that tells it, the best one first."""
        return tuple(
            Cite("kernel_events", row["evidence_id"], "", row["record"], (row["message"] or row["kind"])[:MAX_TEXT]) for row in self.rows
        )


def kernel_records(case: Tables) -> tuple[KernelRecord, ...]:
    """The records of all kernel logs of a case, of hosts as far as files tell them."""
    return merged(case.table("kernel_events").collect().rows(named=True), case.derive(clocks))


def merged(rows: Iterable[Row], told: Clocks, hosts: Mapping[str, str] | None = None) -> tuple[KernelRecord, ...]:
    """Records of rows of `kernel_events`, by host and place. `hosts`: evidence_id -> host of files that name none."""
    groups: dict[tuple[Any, ...], list[_Told]] = defaultdict(list)
    for row in rows:
        host = row["host"] or (hosts or {}).get(row["evidence_id"])
        filled = {**row, "host": host}
        key = (row["evidence_id"], row["record"])
        placed = told.kernel.placed.get(key)
        at = placed.at if placed is not None else told.at(filled)
        error_s = placed.error_s if placed is not None else 1.0
        found = _Told(filled, at, error_s, told.kernel.boots.get(key), told.kernel.order.get(key, 0))
        groups[_subject(filled)].append(found)
    records = [one.record() for group in groups.values() for one in _events(group)]
    return tuple(sorted(records, key=lambda r: (r.row["host"] or "", r.row["evidence_id"], r.order, _order(r.row))))


@dataclass(frozen=True, slots=True)
class _Told:
    """A row with its instant."""

    row: Row
    at: datetime | None
    error_s: float
    boot: int | None
    order: int

    @property
    def who(self) -> tuple[int | None, int | None]:
        """Process and link."""
        return self.row["pid"], self.row["link"]


@dataclass
class _Event:
    """Rows that tell one event."""

    told: list[_Told]
    files: dict[str, _Told] = field(default_factory=dict)

    def take(self, one: _Told) -> None:
        self.told.append(one)
        self.files.setdefault(one.row["evidence_id"], one)

    def admits(self, one: _Told) -> bool:
        """Whether a row tells this event. A file tells an event in one row; in a second one only where it holds the same log twice."""
        own = self.files.get(one.row["evidence_id"])
        if own is not None and (own.row["message"] != one.row["message"] or any(own.row[name] != one.row[name] for name in _STAMPS)):
            return False
        if any(not _fits(mine, theirs) for told in self.told for mine, theirs in zip(told.who, one.who, strict=True)):
            return False
        return own is not None or any(_same_time(told, one) for told in self.told)

    def record(self) -> KernelRecord:
        """The fullest row, completed from the others."""
        ranked = sorted(
            self.told, key=lambda one: (one.at is None, one.row["kind"] == "bus_loss", one.error_s, -_fullness(one.row), _order(one.row))
        )
        row = dict(ranked[0].row)
        for name in _FILLED:
            row[name] = next((one.row[name] for one in ranked if one.row[name] is not None), None)
        row["num_folded"] = max((one.row["num_folded"] or 1 for one in self.told), default=1)
        row["is_rate_limited"] = any(one.row["is_rate_limited"] for one in self.told)
        rows: dict[tuple[str, str], Row] = {(one.row["evidence_id"], one.row["record"]): one.row for one in ranked}
        return KernelRecord(row, *_best_instant(self.told), ranked[0].order, tuple(rows.values()))


def _subject(row: Row) -> tuple[Any, ...]:
    """What a record is about: host (the file, where it is not told), kind, device. A GPU off the bus is its Xid, with the number or without."""
    host = ("host", row["host"]) if row["host"] is not None else ("file", row["evidence_id"])
    kind, code = ("xid", LOST_XID) if row["kind"] == "bus_loss" else (row["kind"], row["code"])
    severity = row["severity"] if kind not in ("xid", "sxid") else None
    return *host, kind, code, row["gpu"], row["device"], severity


def _events(group: Sequence[_Told]) -> list[_Event]:
    """Rows about one thing, sorted into events: those with an instant by it, then the others."""
    found: list[_Event] = []
    by_who: dict[tuple[int | None, int | None], list[_Event]] = defaultdict(list)
    by_part: dict[tuple[int, int | None], list[_Event]] = defaultdict(list)  # (0, process) and (1, link)
    by_words: dict[str | None, list[_Event]] = defaultdict(list)
    for one in sorted(group, key=lambda one: (one.at is None, one.at or datetime.max, _order(one.row))):
        pid, link = one.who
        near = [
            event for who in dict.fromkeys([(pid, link), (None, link), (pid, None), (None, None)]) for event in by_who[who][-MOST_NEAR:]
        ]
        if one.at is None:
            near = by_words[one.row["message"]][:MOST_NEAR] + near
        elif pid is None and link is None:
            near += found[-MOST_NEAR:]
        elif pid is None or link is None:  # those that lack what this row tells, and those that tell more than it
            part = (0, pid) if link is None else (1, link)
            near += by_part[part][-MOST_NEAR:] + by_part[part[0], None][-MOST_NEAR:]
        event = next((event for event in near if event.admits(one)), None)
        if event is None:
            event = _Event([])
            found.append(event)
            by_who[one.who].append(event)
            by_part[0, pid].append(event)
            by_part[1, link].append(event)
            by_words[one.row["message"]].append(event)
        event.take(one)
    return found


def _fits(one: int | None, two: int | None) -> bool:
    return one is None or two is None or one == two


def _same_time(one: _Told, two: _Told) -> bool:
    """Whether two rows of one thing are of one burst: by instant, by time since one boot, by the same printed clock, else by the same words."""
    if one.at is not None and two.at is not None:
        return abs((one.at - two.at).total_seconds()) <= BURST_S + one.error_s + two.error_s
    up, other_up = one.row["uptime_s"], two.row["uptime_s"]
    if up is not None and other_up is not None:
        return bool(abs(up - other_up) <= BURST_S) and (one.boot == two.boot or _same_words(one.row, two.row))
    apart = _apart_s(one.row["logged_at_local"], two.row["logged_at_local"])
    if apart is not None and abs(apart) <= BURST_S:
        return True
    return _same_words(one.row, two.row) and (apart is None or whole_zone(apart, SAME_S) is not None)


def _apart_s(one: str | None, two: str | None) -> float | None:
    """Seconds between two printed clocks; what the one lacks of year or day it has from the other."""
    if one is None or two is None:
        return None
    short, long = sorted((one, two), key=len)
    later = filled(long, datetime(2000, 7, 1))
    earlier = filled(short, later) if later is not None else None
    return (later - earlier).total_seconds() if later is not None and earlier is not None else None


def _same_words(one: Row, two: Row) -> bool:
    """Whether two messages are equal, or one is the other cut short."""
    short, long = sorted((" ".join((row["message"] or "").split()).strip("\"' ") for row in (one, two)), key=len)
    return short == long or (len(short) >= CUT and long.startswith(short))


def _fullness(row: Row) -> int:
    return sum(row[name] is not None for name in _FILLED)


def _best_instant(told: Sequence[_Told]) -> tuple[datetime | None, float]:
    """The earliest, and its error; of those that may be the same instant the one told most exactly."""
    dated = [(one.at, one.error_s) for one in told if one.at is not None]
    if not dated:
        return None, 0.0
    first, error = min(dated)
    same = [(other, at) for at, other in dated if (at - first).total_seconds() <= error + other]
    exact, at = min(same)
    return at, exact


def _order(row: Row) -> tuple[str, str, tuple[int, ...]]:
    numbers = tuple(int(digits) for part in row["record"].split("/") if (digits := "".join(c for c in part if c.isdigit())))
    return row["host"] or "", row["evidence_id"], numbers
