"""What stands before the message of a log line: clock, level, host, rank. Prefixes nest in any order, so they are peeled one by one.

A stamp without a zone is never made an instant: it stays `local`, in as much detail as the line gives.
Only a global rank is a `rank`; the rank inside a process group goes to `group_rank`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

__all__ = ["Line", "local_stamp", "parse", "pieces", "plain_host"]

MAX_PREFIXES = 12
_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BAR: Final = re.compile(r"\d+/\d+ \[\d[\d:]*<[^\]]{0,400}\]")
_LEVELS: Final = {
    **dict.fromkeys(("DEBUG", "TRACE", "D", "V"), "debug"),
    **dict.fromkeys(("INFO", "NOTICE", "I"), "info"),
    **dict.fromkeys(("WARNING", "WARN", "W"), "warning"),
    **dict.fromkeys(("ERROR", "CRITICAL", "FATAL", "E", "F", "C"), "error"),
}
_MONTH_NAMES: Final = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_MONTHS: Final = {name: f"{at:02d}" for at, name in enumerate(_MONTH_NAMES.split("|"), 1)}
_WORD: Final = r"DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL"
_DAY: Final = r"(?:0[1-9]|1[0-2])[-/](?:0[1-9]|[12]\d|3[01])"
_TIME: Final = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-6]\d"
_FRACTION: Final = r"(?:[.,](\d{1,9}))?"
_END: Final = r"[\])\"]?:?(?: -(?= ))?"
_FORMS: Final = (  # name and pattern; what the groups of each hold is said in `parse`
    ("iso", rf"(?:time|ts)?=?[\[(\"]?(\d{{4}}[-/]{_DAY})[T _]({_TIME}){_FRACTION}( ?(?:Z|UTC)\b| ?[+-]\d\d:?\d\d(?!\d))?{_END}"),
    ("glog", rf"\[?([DIWEFCV])(\d{{8}}|\d{{3,4}}) ({_TIME}){_FRACTION}(?: +\d{{1,9}})?(?: +[^\s\]]{{1,200}}:\d+\])?"),
    ("at_host", rf"\[(?!(?:{_WORD}|default|main|train\w*|worker|std\w+)\])([A-Za-z][\w.-]{{0,62}})\](?= ?\[(?i:rank) ?\d)"),
    ("rank", r"[\[(](?i:(?:global[_ ])?rank)[ _:=]{0,2}(\d{1,7})[\])]:?|RANK (\d{1,7}) -(?= )"),
    ("group", r"\[PG (?:ID )?([^\s\]]{1,20})(?: PG GUID ?([^\s\]]{0,200}))? {1,2}Rank (\d{1,7})\]"),
    ("level", rf"[\[(]?({_WORD})[\])]?(?:\s?[-:|])?(?=\s|$)|({_WORD}):[\w.]{{1,100}}:|\[([DIWEF]) [\w./-]{{1,100}}:\d+\]"),
    ("us", rf"\[?({_DAY})(?:/(\d{{4}}))? ({_TIME}){_FRACTION}(?: [\w.]+\])?{_END}"),
    ("nccl", r"([A-Za-z][\w.-]{0,62}):(\d{1,9}):\d{1,9} \[\d{1,4}\]"),
    ("syslog", rf"({_MONTH_NAMES}) {{1,2}}([12]\d|3[01]|0?[1-9]) ({_TIME}) ([\w.-]{{1,63}})(?= )"),
    ("clock", rf"\[?({_TIME}){_FRACTION}\]?(?: -(?= ))?"),
    ("program", r"(?:agent|launcher|torchrun|submitit)(?:\[\d{1,9}\])?:?(?= )"),
    ("place", r"\[[a-z_]{1,20}\d{1,6}\]:|\[pod/[^\]\s]{1,200}\]|\[[\w./-]{1,100}\.py:\d+(?::\w+)?\]"),
    ("logger", rf"(?:- )?[\w.]{{1,80}} - (?=(?:{_WORD}|RANK) ?)"),
    ("logfmt", r'(?:level|lvl)="?([A-Za-z]{4,8})"? (?:msg|message)="?'),
    ("quote", r"[|>](?= )"),
)
_NO_HOST: Final = (  # what also stands before a colon and ends in a number
    r"(?!(?:(?:local_|global_)?rank|step|epoch|iter|iteration|batch|sample|shard|layer|stage|worker|frame|attempt|error|gpu|cuda|nccl|torch|python"
    r"|libc|lib|fp|bf|tf|int|uint|float|sm|sha|md|utf|base|http|ipv|v)[\d._-]*:)"
)
_FIRST_FORMS: Final = (  # only at the beginning of a line
    ("number", r"\[\d{1,9}\](?= )"),  # of an editor; device of NCCL
    ("label", r"(\d{1,6}):(?= )"),  # srun --label, mpirun
    (  # pdsh, DeepSpeed's launcher: a name with a number, or before a stamp one with a dash
        "shell_host",
        rf"{_NO_HOST}([a-z][\w.]{{0,30}}-[\w.-]{{0,30}}\d[\w-]{{0,20}}|[a-z_]{{1,20}}\d{{2,6}}"
        r"|[a-z]\w{0,30}-[\w-]{1,30}(?=: \[?\d{4}-)):(?= )",
    ),
)


def _compiled(forms: Sequence[tuple[str, str]]) -> re.Pattern[str]:
    return re.compile("[ \t]*(?:" + "|".join(f"(?P<{name}>{pattern})" for name, pattern in forms) + ")")


_PREFIX: Final = _compiled(_FORMS)
_FIRST: Final = _compiled((*_FORMS, *_FIRST_FORMS))


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
    label: int | None = None  # task that srun or mpirun puts in front: a rank, or a node where the tasks are launchers
    is_bare: bool = True

    @property
    def stream(self) -> tuple[str | int | None, ...]:
        """What tells interleaved writers apart."""
        return self.host, self.rank, self.label, self.is_bare

    @property
    def is_logged(self) -> bool:
        """Whether the prefix is that of a logger: a clock, a level, a rank or a task."""
        return any(said is not None for said in (self.local, self.level, self.rank, self.label))


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
    rank = label = group_rank = pid = None
    place = 0
    for count in range(MAX_PREFIXES):
        found = (_FIRST if count < 2 else _PREFIX).match(raw, place)
        if not found:
            break
        form = str(found.lastgroup)
        place = found.end()
        said = _groups(found, form)
        stamp: str | None = None
        if form == "iso":
            stamp = local_stamp(str(said[0]), str(said[1]), said[2])
            at = at or (_instant(stamp, said[3].strip()) if said[3] else None)
        elif form == "glog":  # month and day without a separator, the month without a leading zero
            level = level or _LEVELS[str(said[0])]
            stamp = _glog_stamp(str(said[1]), str(said[2]), said[3])
        elif form == "us":
            stamp = local_stamp(f"{said[1]}-{said[0]}" if said[1] else str(said[0]), str(said[2]), said[3])
        elif form == "syslog":
            stamp = local_stamp(f"{_MONTHS[str(said[0])]}-{int(str(said[1])):02d}", str(said[2]))
            host = host or plain_host(str(said[3]))
        elif form == "clock":
            stamp = local_stamp("", str(said[0]), said[1])
        elif form == "level":
            level = level or _LEVELS[str(said[0] or said[1] or said[2])]
        elif form == "logfmt":
            level = level or _LEVELS.get(str(said[0]).upper())
        elif form == "rank":
            if rank is None:
                rank = int(said[0] or said[1] or 0)
            else:
                group_rank = int(said[0] or said[1] or 0)
        elif form == "group":
            group_rank = int(said[2] or 0)
            if rank is None and (said[0] == "0" or "default_pg" in (said[1] or "")):
                rank = group_rank  # the default group is the whole job
        elif form == "nccl":
            host, pid = host or plain_host(str(said[0])), int(said[1] or 0)
        elif form in ("at_host", "shell_host"):
            host = host or plain_host(str(said[0]))
        elif form == "label":
            label = int(said[0] or 0)
        local = local or stamp
    return Line(number, raw[place:], at, local, level, rank, group_rank, host, pid, label, place == 0)


def _groups(found: re.Match[str], form: str) -> Sequence[str | None]:
    """The groups inside the form that matched."""
    first = found.re.groupindex[form]
    return found.groups()[first : first + _NUM_GROUPS[form]]


_NUM_GROUPS: Final = {name: re.compile(pattern).groups for name, pattern in (*_FORMS, *_FIRST_FORMS)}


@lru_cache(maxsize=1024)
def plain_host(name: str) -> str:
    """A host's lower-case first label; an address stays whole."""
    lowered = name.lower()
    return lowered if lowered.replace(".", "").isdigit() else lowered.split(".")[0]


def local_stamp(date: str, time: str, fraction: str | None = None) -> str:
    """A printed date (`YYYY-MM-DD`, `MM-DD`, slashes too, or "") and time of day as the tables hold it; at most microseconds."""
    day = f"{date.replace('/', '-')}T" if date else ""
    return f"{day}{time}.{fraction[:6]}" if fraction else f"{day}{time}"


def _glog_stamp(digits: str, time: str, fraction: str | None) -> str | None:
    year, month, day = digits[:-4] if len(digits) == 8 else "", int(digits[-4:-2]), int(digits[-2:])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return local_stamp(f"{year}{'-' if year else ''}{month:02d}-{day:02d}", time, fraction)


def _instant(local: str, zone: str) -> datetime | None:
    """A full local stamp with its zone as an instant in UTC; None where the calendar has no such day."""
    try:
        at = datetime.fromisoformat(local).replace(tzinfo=UTC)
        if zone in ("Z", "UTC"):
            return at
        digits = zone[1:].replace(":", "")
        offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        return at - offset if zone[0] == "+" else at + offset
    except (ValueError, OverflowError):
        return None
