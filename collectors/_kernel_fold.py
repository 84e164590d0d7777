"""Bursts of kernel lines become one row: one per host, kind, address or device, as long as the lines follow each other closely."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

from collectors._kernel_clock import NO_STAMP, Stamp, gap_s
from collectors._kernel_event import Event
from collectors._kernel_gpu import ENGINE
from collectors._kernel_prefix import Line

__all__ = ["Folder", "Plan"]

BURST_S: Final = 30.0  # a longer silence ends a burst
OVER_S: Final = 300.0  # so long after the last line of a burst good news still ends that trouble: a switch that reboots takes minutes
ROW_S: Final = 600.0  # of a burst that does not end: a new row each ten minutes keeps its rate visible
TRACE_S: Final = 2.0  # within which the call trace of a task is printed
HUNG: Final = "hung_task"
SEVERAL: Final = "several"
ASKED: Final = "asked"  # `what` of a line that tells only who asked for memory
LINKS: Final = ("link", "port")  # `what` of a network link that goes down or comes up
LOST_XID: Final = 79  # the Xid of a GPU that has fallen off the bus
VERDICT_XID: Final = 154  # says what the driver thinks is needed: each verdict is a row
TIMEOUT_XIDS: Final = (119, 120)
# Where the first line of a burst does not say.
_FILLED_LATER: Final = ("pid", "process", "severity", "unit", "link", "caused_by", "recovery", "gpu_uuid", "gpu_serial")
_SAID: Final = attrgetter(*_FILLED_LATER)
_COLUMNS: Final = (
    *("kind", "code", "gpu", "device", "pid", "process", "severity", "unit", "link", "caused_by", "recovery", "message"),
    *("sub_code", "remote_effect", "driver_version", "gpu_uuid", "gpu_serial"),
)

Key = tuple[Any, ...]


@dataclass(slots=True, eq=False)
class Plan:
    """How an event folds: rows of which keys it may join, the best first, and under which keys its own row is found afterwards.

    `settled`: the event of a row that it joined and had nothing to add to; nor will it have the next time.
    """

    event: Event
    find: tuple[Key, ...]
    own: tuple[Key, ...]
    settled: Event | None = None


@dataclass(slots=True)
class _Row:
    """A row that still grows. `first` is the earliest stamp, `last` that of the latest line folded in."""

    number: int
    event: Event
    first: Stamp
    last: Stamp
    host: str | None
    boot_id: str | None
    num_folded: int
    is_rate_limited: bool
    fits_again: bool = True  # one more line with the stamp `last`: not where only the change of clocks hid how old the row is

    def fits(self, stamp: Stamp) -> bool:
        """Whether a line of that time belongs to the burst; lines without a common clock do, but none with a clock to a burst that tells none: when
        it was would be lost."""
        if stamp is self.last:  # of a clock of whole seconds
            return self.fits_again
        if self.last == NO_STAMP and stamp != NO_STAMP:
            return False
        silence, age = gap_s(self.last, stamp), gap_s(self.first, stamp)
        return (silence is None or abs(silence) <= BURST_S) and (age is None or abs(age) <= ROW_S)

    def is_near(self, stamp: Stamp, most_s: float) -> bool:
        """Whether a line of that time comes at most so long after the burst."""
        silence = gap_s(self.last, stamp)
        return silence is not None and 0 <= silence <= most_s

    def take(self, plan: Plan, line: Line) -> None:
        """Counts one more line; the earliest stamp stays, and units that differ become `several`."""
        self.num_folded += line.times
        stamp = line.stamp
        if stamp is not self.last:
            gap = gap_s(self.first, stamp)
            if gap is not None and gap < 0:  # a reversed file
                self.first = stamp
            self.last, self.fits_again = stamp, gap is None or gap <= ROW_S
        if plan.event.is_lower_bound:
            self.is_rate_limited = True
        if plan.settled is not self.event:
            self._learn(plan)

    def _learn(self, plan: Plan) -> None:
        """What the event adds to that of the row."""
        mine, event = self.event, plan.event
        said = zip(_FILLED_LATER, _SAID(mine), _SAID(event), strict=True)
        news: dict[str, Any] = {name: new for name, old, new in said if old is None and new is not None}
        if mine.unit and event.unit and mine.unit != event.unit:
            news["unit"] = SEVERAL
        if mine.kind != "xid" and event.recovery != mine.recovery:
            news["recovery"] = event.recovery  # good news last until the next bad one
        if mine.kind == "sxid" and "severity" in news:
            news["message"] = event.message  # the one line of three that says what happened
        if news:
            self.event = replace(mine, **news)
        else:
            plan.settled = mine

    def columns(self) -> dict[str, Any]:
        """The row of `kernel_events`."""
        event = self.event
        return {
            "record": f"L{self.number}",
            "host": self.host,
            "boot_id": self.boot_id,
            "logged_at": self.first.at,
            "logged_at_local": self.first.local,
            "uptime_s": self.first.uptime_s,
            "num_folded": self.num_folded,
            "is_rate_limited": self.is_rate_limited,
            **{name: getattr(event, name) for name in _COLUMNS},
        }


@dataclass
class Folder:
    """Rows in the order of their first lines. `take_rows` empties it, so that memory does not grow with the file."""

    _rows: list[_Row] = field(default_factory=list)
    _open: dict[Key, _Row] = field(default_factory=dict)
    _hung: dict[str | None, _Row] = field(default_factory=dict)  # host -> the last task that was told to hang

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, event: Event, line: Line, number: int) -> None:
        """Folds a line's event into the row of its burst, or begins one."""
        self.fold(self.plan(event, line.host), line, number)

    def plan(self, event: Event, host: str | None) -> Plan:
        """How an event of that host folds, for any number of lines."""
        own = _key(event, host)
        find: tuple[Key, ...] = (own,)
        if event.kind == "xid" and event.code == LOST_XID:
            find = (own, _key(replace(event, kind="bus_loss"), host))
        elif event.kind == "bus_loss":
            find = (_key(replace(event, kind="xid", code=LOST_XID), host), own)
        elif event.kind == "sxid":
            find = (own, _key(replace(event, link=None), host))
        elif event.kind == "oom":
            killed = _key(Event("oom", "", what="killed"), host)  # the last one, whoever it was
            if event.what == ASKED:
                return Plan(event, (killed, own), (own,))
            return Plan(event, (own, _key(Event("oom", "", what=ASKED), host)), (own, killed))
        elif event.folds_only and event.what in LINKS:  # the adapter and its interface tell of one link, each in its words
            find = (own, *(_key(replace(event, what=what), host) for what in LINKS if what != event.what))
        if event.what == ENGINE:
            event = replace(event, link=None)  # its number only helps to find the row: not every engine is a link
            own = _key(event, host)
        # lines of an SXid that name no link belong to it as well
        return Plan(event, find, (own, _key(replace(event, link=None), host)) if event.kind == "sxid" else (own,))

    def fold(self, plan: Plan, line: Line, number: int) -> None:
        """Folds a line whose event has that plan."""
        event, row = plan.event, self._find(plan, line.stamp)
        if row is None:
            if event.folds_only:
                return
            row = _Row(number, event, line.stamp, line.stamp, line.host, line.boot_id, line.times, event.is_lower_bound)
            self._rows.append(row)
        elif (
            event.kind == "oom" and row.event.what == ASKED and event.what != ASKED
        ):  # who is killed is the event, not who asked for memory
            self._open.pop(_key(row.event, line.host), None)
            row.event = event
            row.number, row.first, row.last, row.fits_again = number, line.stamp, line.stamp, True
        elif event.what == ASKED and row.event.what != ASKED:
            row.num_folded += line.times
            return
        else:
            row.take(plan, line)
            if event.kind == "xid" and row.event.kind == "bus_loss":  # the same loss, now with its number
                row.event = replace(event, message=row.event.message)
        for key in plan.own:
            self._open[key] = row
        if event.kind == HUNG:
            self._hung[line.host] = row

    def _find(self, plan: Plan, stamp: Stamp) -> _Row | None:
        """The growing row that a line belongs to: its own, else one that it completes."""
        for key in plan.find:
            row = self._open.get(key)
            is_near = row is not None and (row.fits(stamp) or (plan.event.folds_only and row.is_near(stamp, OVER_S)))
            if row is not None and is_near and _may_join(plan.event, row.event):
                if plan.event.what == ASKED and row.event.what != ASKED and (gap_s(row.first, stamp) or 0.0) >= 0:
                    continue  # begins another kill; only in a reversed file the one who asked comes after the one who was killed
                return row
        return None

    def waits_in(self, module: str, line: Line) -> None:
        """A line of a call trace: the first module in that of a task that hangs is what it waits for."""
        row = self._hung.get(line.host)
        if row is None or row.event.unit is not None:
            return
        silence = gap_s(row.last, line.stamp)
        if silence is None or 0 <= silence <= TRACE_S:
            row.event = replace(row.event, unit=module)

    def rate_limited(self, gpu: str, host: str | None) -> None:
        """The driver says that it prints only some of the lines of a GPU's time-outs."""
        for code in TIMEOUT_XIDS:
            if row := self._open.get(_key(Event("xid", "", code=code, gpu=gpu), host)):
                row.is_rate_limited = True

    def skipped(self, kind: str, host: str | None) -> None:
        """The kernel says that it dropped lines like the last one of that kind."""
        row = next((row for row in reversed(self._rows[-8:]) if row.event.kind == kind and row.host == host), None)
        if row:
            row.is_rate_limited = True

    def take_rows(self) -> list[dict[str, Any]]:
        """The rows so far, which no longer grow."""
        rows = [row.columns() for row in self._rows]
        self._rows, self._open, self._hung = [], {}, {}
        return rows


def _key(event: Event, host: str | None) -> Key:
    """What the lines of one row have in common."""
    if event.kind == "bus_loss":
        return event.kind, host, event.gpu
    if event.kind in ("xid", "sxid"):
        return event.kind, host, event.gpu, event.code, event.link, event.recovery if event.code == VERDICT_XID else None
    return event.kind, host, event.what, event.gpu, event.device, event.pid, event.severity


def _may_join(event: Event, row: Event) -> bool:
    """A switch tells one fault in three lines, of which one names the link: that one never joins another link's row."""
    return event.kind != "sxid" or event.severity is None or row.link is None or row.link == event.link
