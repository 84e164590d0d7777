"""What stands before the message of a log line: clock, level, host, rank. Prefixes nest in any order, so they are peeled one by one.

A stamp without a zone is never made an instant: it stays `local`, in as much detail as the line gives.
Only a global rank is a `rank`; the rank inside a process group goes to `group_rank`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from collectors._log_forms import LEVELS, MONTHS, peel

__all__ = ["Line", "local_stamp", "parse", "pieces", "plain_host"]

MAX_PREFIXES = 12
_GRAVEST_FIRST: Final = ("error", "warning", "info", "debug")
MAX_WRITERS = 4  # on one line that are told apart
MAX_BARS = 64  # on one line that lost its carriage returns
NEAR = 2  # forms that may stand before one that belongs to the beginning of a line
_ESCAPES: Final = ("\x1b", "^[[", "#033[", "\\x1b[", "\\u001b[", "[0m")  # ESC itself, and as pagers, syslog and JSON write it, or lost
_COLOUR: Final = re.compile(
    r"(?:\x1b|\^\[|#033|\\x1b|\\u001b)\[[0-9;?]{0,20}[A-Za-z]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\[[0-9]{1,3}(?:;[0-9]{1,3}){0,4}m"
)
_BAR: Final = re.compile(r"[0-9]+/[0-9]+ \[[0-9][0-9:]*<[^\]]{0,400}\]")
_GLUE: Final = ("[rank", "ProcessGroup", "Traceback (most", "NCCL WARN", "srun: error", "slurmstepd: error", "TCPStore.cpp", "socket.cpp")
_GLUED: Final = re.compile(  # how a line begins that only one writer writes so, whatever stands before it
    r"\[rank[0-9]{1,7}\]: ?(?=\[?[DIWEF][0-9]{0,4} |Traceback )"
    r"|\[[EWF](?:[0-9]{3,4} [0-9:.]{8,18})? (?:ProcessGroup\w{1,20}|TCPStore|socket)\.cpp:[0-9]{1,6}\] "
    r"|(?<=[^\s\"'`(])Traceback \(most recent call last\)"
    r"|(?<![\w.-])[A-Za-z][\w.-]{0,62}:[0-9]{1,9}:[0-9]{1,9} \[[0-9]{1,4}\] (?:\S{1,80} )?NCCL WARN "
    r"|(?:srun|slurmstepd): error: "
)
_SPEAKS: Final = re.compile(r"[ \t]*(?:(?:what\(\): +){1,9}|(?:[a-z_]\w{0,60}\.){0,6}[A-Z]\w{0,80}(?:Error|Exception): )(?=\[(?:Rank|PG) )")
_ABORTED: Final = re.compile(  # where no group is named
    r"(?:^|Error: )NCCL communicator was aborted on rank ([0-9]{1,7})\b"
)
_OF_TORCH: Final = re.compile(  # what a process group says of itself
    r"[ \t]{0,3}(?:Watchdog caught |(?:Process group |NCCL )watchdog thread |Some NCCL operations |To avoid (?:data inconsistency|this))"
)
_LAUNCHERS: Final = ("slurmstepd", "srun: ", "salloc: ", "Child process with PID ")  # what is said of others; the last is Lightning's


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
    is_of_task: bool = False  # the rank is that number, as long as nothing says that tasks are no ranks
    is_bare: bool = True
    is_spoken: bool = False  # the rank stands in the message, not before it
    is_of_group: bool = False  # the rank is what torch's process group calls itself: a global one in the default group alone

    @property
    def stream(self) -> tuple[str | int | None, ...]:
        """What tells interleaved writers apart: their prefix."""
        return self.host, None if self.is_spoken else self.rank, self.label, self.is_bare

    @property
    def is_logged(self) -> bool:
        """Whether the prefix is that of a logger: a clock, a level, a rank or a task."""
        return any(said is not None for said in (self.local, self.level, self.rank, self.label))


def pieces(raw: str) -> Iterator[str]:
    """What one physical line holds: progress bars rewrite it (carriage returns), and the next writer's text may be glued to its end."""
    if any(escape in raw for escape in _ESCAPES):
        raw = _COLOUR.sub("", raw)
    for part in raw.split("\r") if "\r" in raw else (raw,):
        rest = part
        for _ in range(MAX_BARS if "<" in part else 0):
            if not (bar := _BAR.search(rest)) or not rest[bar.end() :].strip():
                break
            yield rest[: bar.end()]
            rest = rest[bar.end() :]
        for _ in range(MAX_WRITERS if any(mark in rest for mark in _GLUE) else 0):
            if not (place := _glued_at(rest)):
                break
            yield rest[:place]
            rest = rest[place:]
        if rest:
            yield rest


def _glued_at(text: str) -> int:
    """Where the next writer's line begins behind the first one's message; 0 where it does not."""
    begin = len(text) - len(parse(text, 0).text.lstrip())
    return next((found.start() for found in _GLUED.finditer(text, begin) if found.start() > begin), 0)


def parse(raw: str, number: int) -> Line:
    """A line without its prefixes. `raw` is one of `pieces`, `number` its physical line."""
    if "\x1b" in raw:  # also inside of JSON
        raw = _COLOUR.sub("", raw)
    said: dict[str, str] = {}
    ranks: list[str] = []
    levels: list[str] = []
    at = local = None
    place, length = 0, len(raw)
    for count in range(MAX_PREFIXES):
        begin = place
        while begin < length and raw[begin] in " \t":
            begin += 1
        if begin == length:
            break
        if (peeled := peel(raw, begin, is_first=count < NEAR, is_logged=local is not None or bool(levels))) is None:
            break
        place = peeled[0]
        zone = clock = ""
        for name, value in peeled[1]:
            if name == "rank":
                ranks.append(value)
            elif name == "level":
                levels.append(LEVELS.get(value.upper(), ""))
            elif name == "time":
                clock = value
            elif name == "zone":
                zone = value.strip()
            elif name == "epoch":
                at = at or datetime.fromtimestamp(float(value), UTC)
            elif name not in said or (name == "host" and said["host"][:1].isdigit()):  # a name says more than an address
                said[name] = value
        if clock and (stamp := _stamp(clock, dict(peeled[1]))):
            local = local or stamp
            at = at or (_instant(stamp, zone) if zone else None)
    if raw.startswith(_LAUNCHERS, place + (raw[place : place + 1] == " ")):
        said.pop("label", None)  # of the task that it stands beside
        ranks.clear()
    rank, group_rank = _ranks(ranks, said)
    if rank is not None and group_rank is None and int(said.get("label", 0)) > rank:
        # A node's number is never above the rank of its processes: the task is the rank, and this one counts inside a group.
        rank, group_rank = None, rank
    spoken = _spoken(raw, place) if rank is None and group_rank is None and "label" not in said else None
    return Line(
        number=number,
        text=raw[place:],
        at=at,
        local=local,
        level=next((level for level in _GRAVEST_FIRST if level in levels), None),  # who passes a line on may think little of it
        rank=spoken[0] if spoken else rank,
        group_rank=spoken[1] if spoken else group_rank,
        host=plain_host(said["host"]) if "host" in said else None,
        pid=int(said["pid"]) if "pid" in said else None,
        label=int(said["label"]) if "label" in said else None,
        is_bare=place == 0,
        is_spoken=spoken is not None,
        is_of_group=spoken[2] if spoken else rank is not None and group_rank is None and _is_of_group(raw, place),
    )


def _ranks(ranks: list[str], said: Mapping[str, str]) -> tuple[int | None, int | None]:
    """The global rank and the one inside a group that the prefixes give."""
    rank = int(ranks[0]) if ranks else None
    if "group_rank" not in said:
        return rank, int(ranks[1]) if len(ranks) > 1 else None
    group_rank = int(said["group_rank"])
    is_whole_job = said.get("group") == "0" or "default_pg" in said.get("group_name", "")
    return group_rank if rank is None and is_whole_job else rank, group_rank


def _is_of_group(raw: str, place: int) -> bool:
    """Whether the only rank before a message is the one that torch's process group calls itself by."""
    return _OF_TORCH.match(raw, place) is not None and "[Rank " in raw[:place]


def _spoken(raw: str, place: int) -> tuple[int | None, int | None, bool] | None:
    """The same where a line has no such prefix, but an error begins with that of its own: `what():  [Rank 3] ...`, `SomeError: [PG 2 Rank 1] ...`."""
    if (found := _SPEAKS.match(raw, place)) is not None:
        inner = parse(raw[found.end() :], 0)
        return (inner.rank, inner.group_rank, inner.is_of_group) if inner.rank is not None or inner.group_rank is not None else None
    if "aborted on" in raw and (aborted := _ABORTED.search(raw, place)):
        return int(aborted[1]), None, False
    return None


@lru_cache(maxsize=1024)
def plain_host(name: str) -> str:
    """A host's lower-case first label; an address stays whole."""
    lowered = name.lower()
    return lowered if lowered.replace(".", "").isdigit() else lowered.split(".")[0]


def local_stamp(date: str, time: str, fraction: str | None = None) -> str:
    """A printed date (`YYYY-MM-DD`, `MM-DD`, slashes too, or "") and time of day as the tables hold it; at most microseconds."""
    day = f"{date.replace('/', '-')}T" if date else ""
    return f"{day}{time}.{fraction[:6]}" if fraction else f"{day}{time}"


def _stamp(time: str, told: Mapping[str, str]) -> str | None:
    """A printed stamp of any form as the tables hold it; None where the digits are no date."""
    if "digits" in told:
        return _glog_stamp(told["digits"], time, told.get("fraction"))
    day = told.get("day", "")
    if "month" in told:
        day = f"{MONTHS[told['month']]}-{int(told['mday']):02d}"
    year = told.get("year")
    return local_stamp(f"{year}-{day}" if year else day, time, told.get("fraction"))


def _glog_stamp(digits: str, time: str, fraction: str | None) -> str | None:
    year, month, day = digits[:-4] if len(digits) == 8 else "", int(digits[-4:-2]), int(digits[-2:])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return local_stamp(f"{year}{'-' if year else ''}{month:02d}-{day:02d}", time, fraction)


def _instant(local: str, zone: str) -> datetime | None:
    """A full local stamp with its zone as an instant in UTC; None where the calendar has no such day."""
    try:
        at = datetime.fromisoformat(local).replace(tzinfo=UTC)
        if zone in ("Z", "UTC", "GMT"):
            return at
        digits = zone[1:].replace(":", "")
        offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        return at - offset if zone[0] == "+" else at + offset
    except (ValueError, OverflowError):
        return None
