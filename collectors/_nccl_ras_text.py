"""The text of RAS as rows, line by line: the table of communicators, what its Errors and Warnings tell of each, and lines of the monitor. Pure.

A section about a communicator begins with `#group-number (hash) WORD`. What it says of ranks stands in two ways: `N ranks have X`, with a list of
these ranks below where they are few, or one line `Rank R has X -- ...`. The list may be of the ranks that are ahead: who is behind follows from
the counts alone. Until NCCL 2.25 all kinds of calls are counted as one (`collective`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from collectors._stack_dump import host_label, whole_number
from collectors._stamp_lines import stamp_of

__all__ = ["EMPTY", "MAX_LINE", "Report", "is_report"]

Row = tuple[str, dict[str, Any]]

MAX_LINE: Final = 20_000  # bytes of a line: a list of missing ranks is cut by RAS itself at 1,024
MAX_ROWS: Final = 1_000_000  # of one report that are held until it ends

EMPTY: Final = "No communicator data collected"  # instead of the table
_N: Final = r"([0-9]{1,18})"
_GPUS: Final = r"managing GPUs? (?P<gpus>[0-9,]{1,400})(?: \(NVML [0-9,]{1,400}\))?"
_BY: Final = r"rocess (?P<pid>[0-9]{1,18}) on node (?P<host>\S{1,255})"
_TAIL: Final = rf"(?: -- (?:GPU (?P<gpu>[0-9]{{1,6}})(?: \(NVML [0-9]{{1,6}}\))? managed by p{_BY}|\[process information not found\]))?"
_HEADS: Final = re.compile(
    rb"Group\s+Comms\s+Nodes\s+Ranks\s+Ranks\s+Ranks\s+Status\s+Errors"
    rb"|#\d{1,6}-\d{1,6} \([0-9a-f]{16}\) (?:MISMATCH|INCOMPLETE|ERROR)\b"
    rb"|(?m:^[ \t]*No communicator data collected!)"
)
_WHOLE: Final = re.compile(rb"(?m)^[ \t]*(?:Job summary|Communicators\.\.\.)")
_MONITOR: Final = re.compile(
    r"\[(?P<at>[0-9]{4}-[0-9][0-9]-[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9])\] (?P<event>[A-Z][A-Z0-9_]{2,60}): ?"
    rf"(?:P{_BY} {_GPUS})?\s{{0,8}}(?P<rest>.{{0,1000}})"
)
_IS_MONITOR: Final = re.compile(
    rb"(?m)^\s{0,8}(?:RAS Monitor Mode\b|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] [A-Z][A-Z0-9_]{2,60}: Process \d{1,18} on node \S{1,255} managing GPU)"
)

# Marks of a report in their order: one that stands before or at where the report is begins the next one.
_STAGES: Final = (
    (1, "NCCL version "),
    (2, "Job summary"),
    (3, "Communicators..."),
    (4, "Group "),
    (4, EMPTY),
    (5, "Errors"),
    (6, "Warnings"),
)
_VERSION: Final = re.compile(r"NCCL version (\S{1,60})")
_ROW: Final = re.compile(
    rf"{_N}\s+{_N}\s+{_N}\s+[0-9]{{1,9}}(?:-[0-9]{{1,9}})?\s+{_N}\s+{_N}\s+([A-Z]{{2,20}})\s+([A-Z]{{2,20}}(?:,[A-Z]{{2,20}}){{0,4}})"
)
_COMM: Final = re.compile(r"#([0-9]{1,9})-[0-9]{1,9} \(([0-9a-fx]{1,20})\) ([A-Z]{2,20})")
_ALONE: Final = re.compile(r"[A-Z]{4,20}")
_MISSING: Final = re.compile(rf"Missing communicator data from {_N} rank")
_MISSING_RANKS: Final = re.compile(r"The missing ranks?: ([0-9, ]{1,20000})")
_PROCESS: Final = re.compile(rf"P{_BY} {_GPUS}")
_TIMEOUTS: Final = re.compile(rf"Encountered {_N} communication timeout")
_DIFFERENT: Final = re.compile(r"Communicator ranks have different (?:(?P<status>status)|(?P<op>[A-Za-z0-9_]{1,60}) operation counts)")
_KIND_OF_ERROR: Final = re.compile(r"(Initialization|Asynchronous) errors? on [0-9]")
_SAID: Final = r"status (?P<status>[A-Z]{2,20})|launched up to operation (?P<calls>[0-9]{1,19})|(?P<none>not launched any) operations"
_RANKS_HAVE: Final = re.compile(rf"{_N} ranks (?:have (?:{_SAID})|reported (?P<error>.{{1,100}}))")
_RANK: Final = re.compile(rf"Rank (?P<rank>[0-9]{{1,9}})(?: has (?:{_SAID})| reported (?P<error>[^-]{{1,100}}?))?{_TAIL}")


def is_report(head: bytes) -> bool:
    """Whether a text holds a table of communicators, a section about one, or events of the monitor."""
    if _IS_MONITOR.search(head) and not head.lstrip().startswith(b"{"):
        return True
    return not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")) and (
        _HEADS.search(head) is not None or (b"Job summary\n===" in head.replace(b"\r", b"") and _WHOLE.search(head) is not None)
    )


class Report:
    """The report under way: fed line by line, it gives its rows when the next one begins, or at the end."""

    def __init__(self) -> None:
        self._number, self._stage = 0, 0
        self._told: tuple[datetime | None, str | None] = (None, None)  # stamp of a line since the last report: of the next one
        self._begin()

    def _begin(self) -> None:
        self._stamp, self._told = self._told, (None, None)
        self._version: str | None = None
        self._timeouts: int | None = None
        self._groups: dict[int, dict[str, Any]] = {}
        self._ranks: list[dict[str, Any]] = []
        self._ops: list[dict[str, Any]] = []
        self._leave()

    def _leave(self) -> None:
        """No section, or the next one: what the last one said of ranks does not go on."""
        self._comm: str | None = None
        self._group: int | None = None
        self._word = ""  # of the section
        self._under: dict[str, Any] = {}  # what the ranks listed below have in common
        self._op: str | None = None
        self._error = ""
        self._counts: list[tuple[int, int]] = []  # of the op: ranks, calls
        self._of_op: list[dict[str, Any]] = []

    def line(self, place: int, raw: str) -> Iterator[Row]:
        """Take a line; the rows of the report before where it begins another one, and of an event."""
        line = raw.strip()
        if not line:
            return
        if line[0] == "[" and (event := _MONITOR.fullmatch(line)):
            yield "trainer_events", _event(event, place)
            return
        stage = next((stage for stage, mark in _STAGES if line.startswith(mark) and (stage < 5 or line == mark)), None)
        if stage is not None:
            if stage <= self._stage and not (stage == 4 and self._stage == 4 and not self._groups):
                yield from self.end()
            self._close_op()
            self._leave()
            self._stage = stage
            if found := _VERSION.match(line):
                self._version = found[1]
            return
        if self._stage == 4 and line[0].isdigit() and (row := _ROW.fullmatch(line)):
            self._row(row, place)
        elif self._stage == 0 or len(self._ranks) + len(self._ops) > MAX_ROWS:
            self._time(line)
            if section := _COMM.match(line):  # an excerpt that begins here
                self._stage = 5
                self._section(section)
        elif not self._detail(line, place):
            self._time(line)

    def end(self) -> Iterator[Row]:
        """The rows of the report under way, if it is one."""
        self._close_op()
        if self._groups or self._ranks or self._ops:
            self._number += 1
            stamp = {"snapshot": self._number, "taken_at": self._stamp[0], "taken_at_local": self._stamp[1]}
            for row in self._groups.values():
                yield "nccl_ras", stamp | row | {"version": self._version, "num_timeouts": self._timeouts}
            for row in self._ranks:
                yield "nccl_ras_ranks", stamp | row
            for row in self._ops:
                yield "nccl_ras_ops", stamp | row
        self._stage = 0
        self._begin()

    def _row(self, row: re.Match[str], place: int) -> None:
        group, comms, nodes, per_comm, ranks = (whole_number(int(row[number])) for number in range(1, 6))
        if group is not None and group not in self._groups:
            self._groups[group] = {
                "record": f"L{place}", "group": group, "num_comms": comms, "num_hosts": nodes, "ranks_per_comm": per_comm, "num_ranks": ranks,
                "status": row[6], "errors": row[7],
            }  # fmt: skip

    def _section(self, found: re.Match[str]) -> None:
        self._close_op()
        self._leave()
        self._group, self._comm, self._word = int(found[1]), found[2], found[3]
        row = self._groups.get(self._group)
        if row is not None and row["num_comms"] == 1:
            row["comm"] = self._comm  # the group is this communicator

    def _detail(self, line: str, place: int) -> bool:
        """Take a line of a section; whether it is one."""
        if section := _COMM.match(line):
            self._section(section)
        elif _ALONE.fullmatch(line):  # INCOMPLETE, DEAD, TIMEOUT: of the job's processes
            self._close_op()
            self._leave()
            self._word = line
        elif found := _RANK.fullmatch(line):
            self._rank(found, place)
        elif found := _RANKS_HAVE.match(line):
            self._under = _said(found)
            if (calls := self._under.get("calls")) is not None:
                self._counts.append((int(found[1]), calls))
        elif found := _DIFFERENT.match(line):
            self._close_op()
            self._under, self._op, self._error = {}, found["op"], ""
            self._place = place
        elif found := _MISSING_RANKS.match(line):
            self._ranks += [self._of(place) | {"group_rank": int(n), "is_missing": True} for n in re.findall(r"[0-9]{1,9}", found[1])]
        elif found := _MISSING.match(line):
            row = self._groups.get(self._group) if self._group is not None else None
            if row is not None and row["num_comms"] == 1:
                row["num_missing"] = whole_number(int(found[1]))
        elif found := _PROCESS.match(line):
            if self._word in ("INCOMPLETE", "DEAD"):
                flags = {"is_missing": True, "is_unresponsive": True, "is_dead": self._word == "DEAD"}
                self._ranks.append(self._of(place) | _process(found["pid"], found["host"], found["gpus"]) | flags)
        elif found := _KIND_OF_ERROR.match(line):
            self._under, self._op, self._error = {}, None, found[1]
        elif found := _TIMEOUTS.match(line):
            self._timeouts = whole_number(int(found[1]))
        else:
            return False
        return True

    def _of(self, place: int) -> dict[str, Any]:
        return {"record": f"L{place}", "comm": self._comm, "group": self._group}

    def _rank(self, found: re.Match[str], place: int) -> None:
        """A rank that is named: in a list, or by what it alone has."""
        said = _said(found)
        alone = bool(said)
        said = said or self._under
        row = self._of(place) | {"group_rank": int(found["rank"])} | _process(found["pid"], found["host"], found["gpu"])
        row["status"] = said.get("status") or (f"{self._error} error: {said['error']}" if "error" in said and self._error else None)
        if self._error == "Asynchronous" and "error" in said:
            row["has_async_error"] = True
        if row["status"] != "UNKNOWN":  # until NCCL 2.25: not told whether it is of the communicator no more, or did not answer
            row["is_missing"] = self._word == "INCOMPLETE" or row["status"] == "NOCOMM"
        self._ranks.append(row)
        calls = said.get("calls")
        if self._op is not None and calls is not None:
            if alone:
                self._counts.append((1, calls))
            self._of_op.append(self._of(place) | {"group_rank": int(found["rank"]), "op": self._op, "num_calls": calls})

    def _close_op(self) -> None:
        """The row of an operation over its ranks, then those of the ranks that were named."""
        if self._op is not None and self._counts:
            most, least = max(calls for _, calls in self._counts), min(calls for _, calls in self._counts)
            by_calls: Counter[int] = Counter()
            for num, calls in self._counts:
                by_calls[calls] += num
            common = by_calls.most_common(2)
            is_tie = len(common) > 1 and common[0][1] == common[1][1]
            row = self._of(self._place) | {"op": self._op, "num_calls": None if is_tie else common[0][0]}
            if len(by_calls) > 1:
                row |= {
                    "num_behind": sum(by_calls.values()) - by_calls[most],
                    "count_behind": least,
                    "num_ahead": by_calls[most],
                    "count_ahead": most,
                }
            self._ops += [row, *self._of_op]
        self._op, self._counts, self._of_op = None, [], []

    def _time(self, line: str) -> None:
        """The stamp of a line between reports, as whoever asks again and again prints it."""
        if (told := stamp_of(line)) is None:
            return
        if self._stage == 0:
            self._stamp = told
        else:
            self._told = told


def _said(found: re.Match[str]) -> dict[str, Any]:
    """What a line says that ranks have: their state, how many calls they launched, or an error."""
    if found["status"]:
        return {"status": found["status"]}
    if found["calls"] or found["none"]:
        calls = whole_number(int(found["calls"] or 0))
        return {} if calls is None else {"calls": calls}
    return {"error": found["error"].strip()} if found["error"] else {}


def _process(pid: str | None, host: str | None, gpus: str | None) -> dict[str, Any]:
    """Process, host, and its GPU where it has one only."""
    one = gpus if gpus and "," not in gpus else None
    return {"pid": whole_number(int(pid)) if pid else None, "host": host_label(host), "local_gpu": whole_number(int(one)) if one else None}


def _event(found: re.Match[str], place: int) -> dict[str, Any]:
    process = _process(found["pid"], found["host"], found["gpus"])
    return {
        "record": f"L{place}", "event": found["event"], "source": "nccl_ras", **process, "logged_at_local": found["at"].replace(" ", "T"),
        "message": found["rest"].strip() or None,
    }  # fmt: skip
