"""Stamps of kernel log lines: what of the time a line gives, and never more than that."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["NO_STAMP", "Stamp", "gap_s", "wall_stamp"]

_TIME: Final = r"(?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_DELTA: Final = r"(?: <[^>\n]{0,24}>)?"  # dmesg -d beside another form
_ISO: Final = re.compile(  # dmesg iso 2024-04-29T14:55:41,678628+02:00; journal "Tue 2025-01-21 04:41:44 UTC"; Talos [...Z]:
    rf"\[?(?:[A-Z][a-z]{{2}} )?(?P<date>\d{{4}}-\d\d-\d\d)[T ]{_TIME}(?P<zone> ?(?:Z|UTC|GMT|CES?T|[+-]\d\d:?\d\d))?\]?:?(?:\s+|$)"
)
_CTIME: Final = re.compile(  # dmesg -T [Sun Feb 23 16:24:18 2025], in any language
    rf"\[(?:[^\s\]\d]{{1,12}} +)?(?P<a>[^\s\]]{{1,12}}) +(?P<b>[^\s\]]{{1,12}}) +{_TIME} (?P<year>\d{{4}}){_DELTA}\] ?"
)
_SYSLOG: Final = re.compile(  # syslog and journal short Dec  2 11:38:27; fabric manager [Jul 23 2024 07:53:55]
    rf"\[?(?P<a>[^\s\[\]]{{1,12}}) +(?P<b>[^\s\[\]]{{1,12}})(?: +(?P<year>\d{{4}}))? +{_TIME}\]?(?:\s+|$)"
)
_KLOG: Final = re.compile(
    rf"[IWEF](?P<month>\d\d)(?P<day>\d\d) {_TIME} +\d{{1,9}} \S{{1,200}}\] ?"
)  # I1025 02:19:08.002792 1 health.go:151]
_SEL: Final = re.compile(
    rf"(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{{2}}|\d{{4}}) \| {_TIME}(?P<zone> (?:UTC|GMT|CES?T))? \| "
)  # ipmitool
_EPOCH: Final = re.compile(r"(?P<s>[1-9]\d{9})\.(?P<us>\d{6}) ")  # journal short-unix
_CLOCK: Final = re.compile(rf"\[?{_TIME}\]?\s+")
_MONTHS: Final = (  # how their names begin, of January to December; C locale, German, French, Spanish, Italian, Dutch, Portuguese, Nordic
    *(
        ("jan", "ene", "gen"),
        ("feb", "fév", "fev"),
        ("mar", "mär", "mrz", "mrt"),
        ("apr", "avr", "abr"),
        ("may", "mai", "mei", "maj", "mag"),
    ),
    *(("jun", "juin", "giu"), ("jul", "juil", "lug"), ("aug", "aoû", "ago"), ("sep", "set"), ("oct", "okt", "ott", "out"), ("nov",)),
    ("dec", "dez", "déc", "dic", "des"),
)
_NUMBERED_MONTH: Final = re.compile(r"(\d{1,2})[月월]")
_DAY: Final = re.compile(r"(\d{1,2})[.,]?")


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
        return _with_wall(stamp, found["date"], found, found["zone"]), found.end()
    if found := _CTIME.match(text, start):
        if day := _month_and_day(found["a"], found["b"]):
            return _with_wall(stamp, f"{found['year']}-{day}", found), found.end()
        return _with_wall(stamp, None, found), found.end()  # a date in a language that is not known here
    if (found := _SYSLOG.match(text, start)) and (day := _month_and_day(found["a"], found["b"])):
        return _with_wall(stamp, f"{found['year']}-{day}" if found["year"] else day, found), found.end()
    if found := _KLOG.match(text, start):
        return _with_wall(stamp, f"{found['month']}-{found['day']}", found), found.end()
    if found := _SEL.match(text, start):
        return _with_wall(stamp, f"20{found['year'][-2:]}-{found['month']}-{found['day']}", found, found["zone"]), found.end()
    if found := _EPOCH.match(text, start):
        at = datetime.fromtimestamp(int(found["s"]), UTC).replace(microsecond=int(found["us"]))
        return replace(stamp, at=at, local=None), found.end()
    if found := _CLOCK.match(text, start):
        return _with_wall(stamp, None, found), found.end()
    return None


def _with_wall(stamp: Stamp, date: str | None, said: re.Match[str], zone: str | None = None) -> Stamp:
    """`stamp` at a printed date and time; unchanged where there is no such day or hour."""
    fraction = (said["fraction"] or "")[:6]
    local = f"{date}T{said['time']}" if date else str(said["time"])
    local += f".{fraction}" if fraction else ""
    try:
        moment = _moment(local)
        if zone and date:
            return replace(stamp, at=(moment - timedelta(seconds=_offset_s(zone.strip()))).replace(tzinfo=UTC), local=None)
    except (ValueError, OverflowError):
        return stamp
    return replace(stamp, at=None, local=local)


def _offset_s(zone: str) -> int:
    """Seconds that a zone as printed (Z, UTC, CET, +02:00, -0700) is ahead of UTC."""
    if zone[0] not in "+-":
        return {"CET": 3600, "CEST": 7200}.get(zone, 0)
    digits = zone[1:].replace(":", "")
    return (-1 if zone[0] == "-" else 1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)


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
    lowered = word.lower()
    return next((number for number, starts in enumerate(_MONTHS, 1) if lowered.startswith(starts)), None)


def _moment(local: str) -> datetime:
    """A printed stamp on a common scale: what is not given counts as 2000 (which has a 29 February), January, the 1st."""
    if "T" not in local:
        local = f"01-01T{local}"
    return datetime.fromisoformat(local if local[4] == "-" else f"2000-{local}")


def gap_s(a: Stamp, b: Stamp) -> float | None:
    """Seconds from `a` to `b` by a clock that both give; None where there is none."""
    if a.uptime_s is not None and b.uptime_s is not None:
        return b.uptime_s - a.uptime_s
    if a.at is not None and b.at is not None:
        return (b.at - a.at).total_seconds()
    if a.local is not None and b.local is not None and a.local.find("T") == b.local.find("T"):
        return (_moment(b.local) - _moment(a.local)).total_seconds()
    return None
