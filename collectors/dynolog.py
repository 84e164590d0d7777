"""Logs of dynolog, Meta's daemon for metrics of a host and its GPUs: a line of glog's for each sample, its values as a JSON object.

A sample is announced (`Logging : 12 values`) and, where it is logged as JSON, written by the same thread right behind that: one row. The time that
stands in the sample is often the epoch, and local time with a Z behind it at best, so that only glog's prefix tells when, without a zone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from collectors import _json_records as json_of
from collectors._lines import blocks, garbage, is_text
from collectors._log_prefix import local_stamp
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("host_samples",)

BATCH_ROWS: Final = 20_000
MAX_LINE: Final = 1 << 18  # bytes; a sample has some hundred values
MAX_VALUES: Final = 5_000
MAX_HELD: Final = 1_000  # threads with a sample that is announced
BEHIND: Final = timedelta(seconds=2)  # within this, a thread's values belong to what it announced
_MARK: Final = b"Logger.cpp:"
_LINE: Final = re.compile(
    r"(?:^|[ \t\]|:])[IWEF](?P<year>20[0-9][0-9])(?P<day>(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])) "
    r"(?P<time>(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])\.(?P<fraction>[0-9]{1,9})"
    r" {1,9}(?P<thread>[0-9]{1,10}) \w{0,40}Logger\.cpp:[0-9]{1,6}\] "
    r"(?:Logging : (?P<count>[0-9]{1,9}) values|time = \S{1,40} data = (?P<values>\{.*\}))\s*$"
)


def claims(name: str, head: bytes) -> bool:
    """A line that announces a sample, or holds one."""
    if _MARK not in head or not is_text(head):
        return False
    return any(_MARK in line and _LINE.search(line.decode("utf-8", "replace")) for line in head.split(b"\n"))


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `host_samples` in the order of the lines. Raises OSError where the file cannot be opened."""
    table = TABLES["host_samples"]
    rows: list[dict[str, Any]] = []
    announced: dict[str, tuple[dict[str, Any], datetime]] = {}
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            continue
        yield from garbage(block)
        if _MARK not in block.data:
            continue
        for number, line in enumerate(block.lines, block.first):
            if _MARK not in line:
                continue
            if len(line) > MAX_LINE:
                yield Skip(f"L{number}", f"a line of more than {MAX_LINE} bytes")
            elif found := _LINE.search(line.decode("utf-8", "replace")):
                at = _at(found)
                if at is None:
                    continue
                metrics, host = _values(found["values"])
                if found["values"] and metrics is None:
                    yield Skip(f"L{number}", "the values of the sample are no JSON object")
                    continue
                row = {"record": f"L{number}", "host": host or source.host_said, "logged_at_local": _stamp(found), "metrics": metrics}
                before = announced.pop(found["thread"], None)
                if before and metrics and timedelta() <= at - before[1] <= BEHIND:
                    before[0].update(row)
                    continue
                rows.append(row)
                if not metrics:
                    if len(announced) >= MAX_HELD:
                        del announced[next(iter(announced))]
                    announced[found["thread"]] = row, at
        if len(rows) >= BATCH_ROWS:
            yield table, table.rows(rows)
            rows, announced = [], {}
    yield table, table.rows(rows)


def _stamp(found: re.Match[str]) -> str:
    return local_stamp(f"{found['year']}-{found['day'][:2]}-{found['day'][2:]}", found["time"], found["fraction"])


def _at(found: re.Match[str]) -> datetime | None:
    """The moment by the host's own clock; None where the calendar has no such day."""
    try:
        return datetime.fromisoformat(_stamp(found)[:19])
    except ValueError:
        return None


def _values(text: str | None) -> tuple[str | None, str | None]:
    """The numbers of a sample as JSON, and the host that it names."""
    try:
        values = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(values, dict):
        return None, None
    numbers = {json_of.text(key, 200) or "": json_of.number(value) for key, value in list(values.items())[:MAX_VALUES]}
    host = json_of.host(json_of.first(values, "hostname", "host", "host_name"))
    return json.dumps({key: value for key, value in numbers.items() if value is not None}, sort_keys=True), host
