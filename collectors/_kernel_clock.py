"""Stamps of kernel log lines: what of the time a line gives, and never more than that."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from rca.catalogues import cached
from rca.catalogues import rows as catalogue_rows

__all__ = ["NO_STAMP", "Stamp", "gap_s", "wall_stamp"]

_TIME: Final = r"(?P<time>[0-9][0-9]:[0-9][0-9]:[0-9][0-9])(?:[.,](?P<fraction>[0-9]{1,9}))?"
_DELTA: Final = r"(?: <[^>\n]{0,24}>)?"  # dmesg -d beside another form
_ENDS: Final = r"(?:\s+|$)"
# Hours that a zone is ahead of UTC, of names that mean one zone wherever the host stands; CST and IST are used for several.
_HOURS: Final = (
    "Z=0 UTC=0 GMT=0 WET=0 WEST=1 BST=1 CET=1 CEST=2 EET=2 EEST=3 SAST=2 MSK=3 PKT=5 WIB=7 HKT=8 AWST=8 JST=9 KST=9 AEST=10 AEDT=11 NZST=12 "
    "NZDT=13 ADT=-3 AST=-4 EDT=-4 EST=-5 CDT=-5 MDT=-6 MST=-7 PDT=-7 PST=-8 HST=-10"
)
_ZONES: Final = {name: int(hours) for name, hours in (pair.split("=") for pair in _HOURS.split())}
_ZONE_NAME: Final = rf"(?:{'|'.join((*_ZONES, 'CST', 'IST'))})\b"
_OFFSET: Final = r"[+-][0-9][0-9](?::?[0-9][0-9])?"
# dmesg iso 2024-04-29T14:55:41,678628+02:00; journal "Tue 2025-01-21 04:41:44 UTC"; Talos [...Z]:; Go 2025/01/21 04:41:44
_ISO: Final = re.compile(
    rf"\[?(?:[A-Z][a-z]{{2}} )?(?P<date>[0-9]{{4}}(?P<mark>[-/])[0-9][0-9]"
    rf"(?P=mark)[0-9][0-9])[T _]{_TIME}(?P<zone> ?(?:{_ZONE_NAME}|{_OFFSET})(?!\w|:\S))?"
    rf"(?:(?<=[0-9][0-9]) {_ZONE_NAME}(?!:))?[\"']?\]?:?{_ENDS}"
)
_CTIME: Final = re.compile(  # dmesg -T [Sun Feb 23 16:24:18 2025], in any language
    rf"\[(?:[^\s\]0-9]{{1,12}} +)?(?P<a>[^\s\]]{{1,12}}) +(?P<b>[^\s\]]{{1,12}}) +{_TIME} (?P<year>[0-9]{{4}}){_DELTA}\] ?"
)
# Mon Mar  2 08:12:07 2026, also with the zone before the year; GPFS writes a colon behind it.
_DATE: Final = re.compile(
    rf"[A-Z][a-z]{{2}} (?P<a>[A-Z][a-z]{{2}}) +(?P<b>[0-9]{{1,2}}) {_TIME}(?: (?P<zone>{_ZONE_NAME}))? (?P<year>[0-9]{{4}}):?{_ENDS}"
)
# Syslog and journal short Dec  2 11:38:27; some daemons put the year before; fabric manager [Jul 23 2024 07:53:55].
_SYSLOG: Final = re.compile(
    rf"\[?(?:(?P<first_year>[0-9]{{4}}) )?(?P<a>[^\s\[\]]{{1,12}}) +(?P<b>[^\s\[\]]{{1,12}})(?: +(?P<year>[0-9]{{4}}))? +{_TIME}\]?{_ENDS}"
)
# I1025 02:19:08.002792 1 health.go:151]; torch writes [E210 02:06:33.321131395 file:line], the month without its zero.
_KLOG: Final = re.compile(rf"\[?[IWEF](?P<month>[0-9]{{1,2}})(?P<day>[0-9][0-9]) {_TIME} +(?:[0-9]{{1,9}} +)?[^\s\]]{{1,200}}\] ?")
_CONDITION: Final = re.compile(  # node conditions of Kubernetes: the second stamp is the change, the first one only a sign of life
    r"(?P<type>[A-Z]\w{2,63}) +(?:True|False|Unknown) +(?:[A-Z][a-z]{2}, [^\n]{20,26}? [+-][0-9]{4}) +"
    rf"[A-Z][a-z]{{2}}, (?P<day>[0-9][0-9]) (?P<month>[A-Z][a-z]{{2}}) (?P<year>[0-9]{{4}}) {_TIME} (?P<zone>[+-][0-9]{{4}}) +\S{{1,64}} +"
)
_SEL: Final = re.compile(  # ipmitool; FreeIPMI Dec-14-2022
    rf"(?:(?P<month>[0-9][0-9])/(?P<day>[0-9][0-9])/(?P<year>[0-9]{{4}}|[0-9][0-9])"
    rf"|(?P<name>[A-Z][a-z]{{2}})-(?P<day2>[0-9][0-9])-(?P<year2>[0-9]{{4}})) +\| +{_TIME}"
    rf"(?: (?P<half>[AP]M))?(?: (?P<zone>{_ZONE_NAME}))? +\| "
)
_EPOCH: Final = re.compile(r"(?P<s>[1-9][0-9]{9})\.(?P<us>[0-9]{6}) ")  # journal short-unix
_CLOCK: Final = re.compile(rf"\[?{_TIME}\]?\s+")
SAME_BOOT_S: Final = 60.0  # two clocks of one boot differ by less: a log may be written late
_ROUNDS_S: Final = {
    -1: 86_400.0,
    5: 366 * 86_400.0,
}  # where "T" stands in a local stamp (not at all: no date) -> after which it begins anew
_NUMBERED_MONTH: Final = re.compile(r"([0-9]{1,2})[月월]")
_DAY: Final = re.compile(r"([0-9]{1,2})[.,]?")


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a line says of its time: the instant (UTC), or else what it prints (`local`), and the time since boot in seconds."""

    at: datetime | None = None
    local: str | None = None
    uptime_s: float | None = None

    @property
    def has_wall(self) -> bool:
        """Whether any clock on the wall is given."""
        return self.at is not None or self.local is not None


NO_STAMP: Final = Stamp()


def wall_stamp(text: str, start: int, stamp: Stamp) -> tuple[Stamp, int] | None:
    """`stamp` with the wall clock that stands at `start`, and where it ends; None where none stands there."""
    if found := _ISO.match(text, start):
        return _with_wall(stamp, found["date"].replace("/", "-"), found, found["zone"]), found.end()
    if found := _CTIME.match(text, start):
        if day := _month_and_day(found["a"], found["b"]):
            return _with_wall(stamp, f"{found['year']}-{day}", found), found.end()
        return _with_wall(stamp, None, found), found.end()  # a date in a language that is not known here
    if (found := _DATE.match(text, start)) and (day := _month_and_day(found["a"], found["b"])):
        return _with_wall(stamp, f"{found['year']}-{day}", found, found["zone"]), found.end()
    if (found := _SYSLOG.match(text, start)) and (day := _month_and_day(found["a"], found["b"])):
        year = found["year"] or found["first_year"]
        return _with_wall(stamp, f"{year}-{day}" if year else day, found), found.end()
    if found := _KLOG.match(text, start):
        return _with_wall(stamp, f"{found['month']:0>2}-{found['day']}", found), found.end()
    if found := _SEL.match(text, start):
        return _of_controller(stamp, found), found.end()
    if (found := _CONDITION.match(text, start)) and (day := _month_and_day(found["month"], found["day"])):
        return _with_wall(stamp, f"{found['year']}-{day}", found, found["zone"]), found.end()
    if found := _EPOCH.match(text, start):
        at = datetime.fromtimestamp(int(found["s"]), UTC).replace(microsecond=int(found["us"]))
        return replace(stamp, at=at, local=None), found.end()
    if found := _CLOCK.match(text, start):
        return _with_wall(stamp, None, found), found.end()
    return None


def _of_controller(stamp: Stamp, found: re.Match[str]) -> Stamp:
    """`stamp` at what a management controller prints: month before day, a year of two digits or four, hours of a day or of half a day."""
    day = f"{found['month']}-{found['day']}" if found["month"] else _month_and_day(found["name"], found["day2"])
    if day is None:
        return stamp
    if (half := found["half"]) is None:
        return _with_wall(stamp, f"20{(found['year'] or found['year2'])[-2:]}-{day}", found, found["zone"])
    hour = int(found["time"][:2]) % 12 + (12 if half == "PM" else 0)
    return _at_local(stamp, f"20{(found['year'] or found['year2'])[-2:]}-{day}T{hour:02d}{found['time'][2:]}", found["zone"])


def _with_wall(stamp: Stamp, date: str | None, said: re.Match[str], zone: str | None = None) -> Stamp:
    """`stamp` at a printed date and time; unchanged where there is no such day or hour."""
    fraction = (said["fraction"] or "")[:6]
    local = f"{date}T{said['time']}" if date else str(said["time"])
    return _at_local(stamp, local + (f".{fraction}" if fraction else ""), zone if date else None)


def _at_local(stamp: Stamp, local: str, zone: str | None) -> Stamp:
    try:
        moment = _moment(local)
        if zone and (offset_s := _offset_s(zone.strip())) is not None:
            return replace(stamp, at=(moment - timedelta(seconds=offset_s)).replace(tzinfo=UTC), local=None)
    except (ValueError, OverflowError):
        return stamp
    return replace(stamp, at=None, local=local)


def _offset_s(zone: str) -> int | None:
    """Seconds that a zone as printed (Z, UTC, CET, +02:00, -0700, +08) is ahead of UTC; None for a name that does not tell."""
    if zone[0] not in "+-":
        return None if (hours := _ZONES.get(zone)) is None else hours * 3600
    digits = zone[1:].replace(":", "")
    return (-1 if zone[0] == "-" else 1) * (int(digits[:2]) * 3600 + int(digits[2:] or 0) * 60)


def _month_and_day(a: str, b: str) -> str | None:
    """MM-DD from a name and a number in either order."""
    for month, day in ((a, b), (b, a)):
        number, found = _month(month), _DAY.fullmatch(day)
        if number and found:
            return f"{number:02d}-{int(found[1]):02d}"
    return None


def _month(word: str) -> int | None:
    if found := _NUMBERED_MONTH.fullmatch(word):
        return int(found[1]) if 1 <= int(found[1]) <= 12 else None
    lowered = word.lower().rstrip(".")
    begun, whole = _months()
    return whole.get(lowered) or next((number for start, number in begun.items() if lowered.startswith(start)), None)


@cached
def _months() -> tuple[dict[str, int], dict[str, int]]:
    """How names of months begin, and short names that count only as a whole word (they would begin too many others), with their numbers."""
    rows = catalogue_rows("months")
    begun, whole = ({word: int(row["month"]) for row in rows for word in row[column].split("|")} for column in ("begins", "words"))
    return begun, whole


@lru_cache(maxsize=4096)
def _moment(local: str) -> datetime:
    """A printed stamp on a common scale: what is not given counts as 2000 (which has a 29 February), January, the 1st."""
    if "T" not in local:
        local = f"01-01T{local}"
    return datetime.fromisoformat(local if local[4] == "-" else f"2000-{local}")


def gap_s(a: Stamp, b: Stamp) -> float | None:
    """Seconds from `a` to `b` by a clock that both give; None where there is none.

    The time since boot is the finer clock; where the wall clock contradicts it, the two are of different boots and the longer gap counts.
    """
    wall = _wall_gap_s(a, b)
    if a.uptime_s is None or b.uptime_s is None:
        return wall
    since_boot = b.uptime_s - a.uptime_s
    return since_boot if wall is None or abs(since_boot - wall) <= SAME_BOOT_S else max(since_boot, wall, key=abs)


def _wall_gap_s(a: Stamp, b: Stamp) -> float | None:
    """By the wall clocks: without a year or a day the shorter way round, so that New Year and midnight are no gap."""
    if a.at is not None and b.at is not None:
        return (b.at - a.at).total_seconds()
    if a.local is None or b.local is None or (date := a.local.find("T")) != b.local.find("T"):
        return None
    gap = (_moment(b.local) - _moment(a.local)).total_seconds() if a.local != b.local else 0.0
    round_s = _ROUNDS_S.get(date)
    return gap if round_s is None else (gap + round_s / 2) % round_s - round_s / 2
