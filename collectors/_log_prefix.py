"""What stands before the message of a log line: clock, level, host, rank. Prefixes nest in any order, so they are peeled one by one.

A stamp without a zone is never made an instant: it stays `local`, in as much detail as the line gives.
Only a global rank is a `rank`; the rank inside a process group goes to `group_rank`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["Line", "local_stamp", "parse", "pieces"]

MAX_PREFIXES = 12
_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BAR: Final = re.compile(r"\d+/\d+ \[\d[\d:]*<[^\]]{0,400}\]")
_LEVELS: Final = {
    **dict.fromkeys(("debug", "d", "v", "trace"), "debug"),
    **dict.fromkeys(("info", "i", "notice"), "info"),
    **dict.fromkeys(("warning", "warn", "w"), "warning"),
    **dict.fromkeys(("error", "err", "critical", "fatal", "e", "f", "c"), "error"),
}
_MONTH_NAMES: Final = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_MONTHS: Final = {name: at for at, name in enumerate(_MONTH_NAMES.split("|"), 1)}
_WORD: Final = r"DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL"
_NO_HOST: Final = (
    r"(?!(?:rank|step|epoch|iter|iteration|gpu|cuda|layer|stage|worker|frame|python|attempt|error|local_rank|libc|lib)[\d.]*:)"
)
_ANYWHERE: Final = (
    r"[\[(]?(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T _](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<frac>\d{1,9}))?"
    r"(?P<zone> ?(?:Z|UTC)\b| ?[+-]\d\d:?\d\d(?!\d))?[\])]?:?(?: -(?= ))?",
    r"\[?(?P<us>\d\d/\d\d)(?:/(?P<us_year>\d{4}))? (?P<us_time>\d\d:\d\d:\d\d)(?:[.,](?P<us_frac>\d{1,9}))?(?: [\w.]+\])?\]?:?(?: -(?= ))?",
    r"\[?(?P<glog>[DIWEFCV])(?P<glog_date>\d{8}|\d{3,4}) (?P<glog_time>\d\d:\d\d:\d\d)(?:\.(?P<glog_frac>\d{1,9}))?"
    r"(?: +(?P<glog_pid>\d{1,9}))?(?: +[^\s\]]{1,200}:\d+\])?",
    r"\[(?P<letter>[DIWEF]) [\w./-]{1,100}:\d+\]",
    r"\[(?P<at_host>[A-Za-z][\w.-]{0,62})\](?= ?\[(?i:rank) ?\d)",
    r"[\[(](?i:(?:global[_ ])?rank)[ _:=]{0,2}(?P<rank>\d{1,7})[\])]:?",
    r"RANK (?P<word_rank>\d{1,7}) -(?= )",
    r"\[PG (?:ID )?(?P<pg>[^\s\]]{1,20})(?: PG GUID ?(?P<guid>[^\s\]]{0,200}))? {1,2}Rank (?P<group_rank>\d{1,7})\]",
    r"(?P<nccl_host>[A-Za-z][\w.-]{0,62}):(?P<nccl_pid>\d{1,9}):\d{1,9} \[\d{1,4}\]",
    rf"(?P<month>{_MONTH_NAMES}) {{1,2}}(?P<day>\d{{1,2}}) (?P<sys_time>\d\d:\d\d:\d\d) "
    r"(?P<sys_host>[\w.-]{1,63})(?= )",
    r"\[?(?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<clock_frac>\d{1,9}))?\]?(?: -(?= ))?",
    rf"(?P<colon_level>{_WORD}):[\w.]{{1,100}}:",
    rf"[\[(]?(?P<level>{_WORD})[\])]?(?:\s?[-:|])?(?=\s|$)",
    r"(?:agent|launcher|torchrun|submitit)(?:\[\d{1,9}\])?:?(?= )",
    r"\[[a-z_]{1,20}\d{1,6}\]:|\[pod/[^\]\s]{1,200}\]|\[[\w./-]{1,100}\.py:\d+(?::\w+)?\]",
    rf"(?:- )?[\w.]{{1,80}} - (?=(?:{_WORD}|RANK) ?)",
    r"[|>](?= )",
)
_AT_START: Final = (
    r"\[\d{1,9}\](?= )",  # number of an editor, device of NCCL
    r"(?P<label>\d{1,6}):(?= )",  # srun --label, mpirun
    rf"{_NO_HOST}(?P<shell_host>[a-z](?:[a-z_]|[\w.]*-)[\w.-]{{0,60}}\d[\w-]{{0,20}}|[a-z]\d{{2,6}}):(?= )",  # pdsh, DeepSpeed's launcher
)
_PREFIX: Final = re.compile("|".join(_ANYWHERE))
_START: Final = re.compile("|".join(_AT_START))
_BLANK: Final = re.compile(r"[ \t]*")


@dataclass(frozen=True, slots=True)
class Line:
    """One message and what its prefix says. `text` keeps its indentation; `is_bare` = nothing stood before it."""

    number: int
    text: str
    at: datetime | None = None
    local: str | None = None
    level: str | None = None
    rank: int | None = None
    group_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    is_bare: bool = True

    @property
    def stream(self) -> tuple[str | None, int | None, bool]:
        """What tells interleaved writers apart."""
        return self.host, self.rank, self.is_bare

    @property
    def is_logged(self) -> bool:
        """Whether the prefix is that of a logger: a clock, a level or a rank."""
        return self.local is not None or self.level is not None or self.rank is not None


def pieces(raw: str) -> Iterator[str]:
    """What one physical line holds: progress bars rewrite it (carriage returns), and the next writer's text may be glued to a bar."""
    if "\x1b" in raw:
        raw = _COLOUR.sub("", raw)
    for part in raw.split("\r") if "\r" in raw else (raw,):
        if "<" in part and (bar := _BAR.search(part)) and part[bar.end() :].strip():
            yield part[: bar.end()]
            yield part[bar.end() :]
        elif part:
            yield part


def parse(raw: str, number: int) -> Line:
    """A line without its prefixes. `raw` is one of `pieces`, `number` its physical line."""
    at = local = level = host = None
    rank: int | None = None
    label: int | None = None
    group_rank = pid = None
    place = 0
    for count in range(MAX_PREFIXES):
        blank = _BLANK.match(raw, place)
        begin = blank.end() if blank else place
        found = _PREFIX.match(raw, begin) or (_START.match(raw, begin) if count < 2 else None)
        if not found or found.end() == begin:
            break
        said = {name: value for name, value in found.groupdict().items() if value}
        place = found.end()
        if stamp := _stamp(said):
            local = local or stamp[0]
            at = at or stamp[1]
        letter = said.get("level") or said.get("colon_level") or said.get("glog") or said.get("letter")
        level = level or (_LEVELS.get(letter.lower()) if letter else None)
        name = next((said[key] for key in ("at_host", "nccl_host", "sys_host", "shell_host") if key in said), None)
        host = host or (_host(name) if name else None)
        pid = pid or (int(said["nccl_pid"]) if "nccl_pid" in said else None)
        if "label" in said:
            label = int(said["label"])
        if number_said := said.get("rank") or said.get("word_rank"):
            if rank is None:
                rank = int(number_said)
            else:
                group_rank = int(number_said)
        if "group_rank" in said:
            group_rank = int(said["group_rank"])
            if rank is None and (said["pg"] == "0" or "default_pg" in said.get("guid", "")):
                rank = group_rank  # the default group is the whole job
    rank = label if rank is None else rank
    return Line(number, raw[place:], at, local, level, rank, group_rank, host, pid, place == 0)


def _host(name: str) -> str:
    """Lower-case first label; an address stays whole."""
    lowered = name.lower()
    return lowered if lowered.replace(".", "").isdigit() else lowered.split(".")[0]


def local_stamp(date: str, time: str, frac: str | None = None) -> str | None:
    """A printed date (any separators; or "") and time as the tables hold it; None where there is no such day or time."""
    hour, minute, second = (int(part) for part in time.split(":"))
    parts = [int(part) for part in re.split(r"[-/]", date)] if date else []
    if hour > 23 or minute > 59 or second > 60 or (parts and not (1 <= parts[-2] <= 12 and 1 <= parts[-1] <= 31)):
        return None
    day = "-".join(f"{part:02d}" for part in parts)
    return f"{day}{'T' if day else ''}{time}{f'.{frac[:6]}' if frac else ''}"


def _stamp(said: dict[str, str]) -> tuple[str, datetime | None] | None:
    """The printed stamp of one prefix, and the instant where it has a zone."""
    if "date" in said:
        local = local_stamp(said["date"], said["time"], said.get("frac"))
        return (local, _instant(local, said.get("zone", ""))) if local else None
    if "us" in said:
        date = f"{said['us_year']}/{said['us']}" if "us_year" in said else said["us"]
        local = local_stamp(date, said["us_time"], said.get("us_frac"))
    elif "glog" in said:
        digits = said["glog_date"]  # month and day without a separator, the month without a leading zero
        date = f"{digits[:4]}-{digits[4:6]}-{digits[6:]}" if len(digits) == 8 else f"{digits[:-2]}-{digits[-2:]}"
        local = local_stamp(date, said["glog_time"], said.get("glog_frac"))
    elif "month" in said:
        local = local_stamp(f"{_MONTHS[said['month']]}-{said['day']}", said["sys_time"])
    elif "clock" in said:
        local = local_stamp("", said["clock"], said.get("clock_frac"))
    else:
        return None
    return (local, None) if local else None


def _instant(local: str, zone: str) -> datetime | None:
    """A full local stamp with its zone as an instant in UTC; None without a zone or where the calendar has no such day."""
    zone = zone.strip()
    if not zone:
        return None
    try:
        at = datetime.fromisoformat(local).replace(tzinfo=UTC)
        if zone in ("Z", "UTC"):
            return at
        digits = zone[1:].replace(":", "")
        offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        return at - offset if zone[0] == "+" else at + offset
    except (ValueError, OverflowError):
        return None
