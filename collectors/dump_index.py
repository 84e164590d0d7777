"""Index of a capture: a JSON list that says of which process each stack dump is, when it was taken, whether it failed.

Rows: one per listed dump (`dump_index`), one per process that it names (`ranks`). A dump that failed is evidence too:
its error text gives the `dump_status`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from collectors._stack_dump import dump_status, host_label, json_elements, read_bytes, whole_number
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("dump_index", "ranks")

MAX_ENTRIES = 1_000_000
SNIFF_BYTES = 8192
_FIRST_AT, _LAST_AT = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
_MOST_CPU_S: Final = 1e10  # a thread that ran for three centuries is a wrong number
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION_OF_SECOND: Final = {"_ns": 10**9, "_us": 10**6, "_ms": 10**3}

# What captures call the same thing; the first one present counts.
_NAMES: Final = {
    "sample": ("round", "sample", "iteration", "attempt_index"),
    "rank": ("rank", "global_rank"),
    "host": ("host", "hostname", "node", "node_name"),
    "role": ("role", "process_role", "kind", "name"),
    "pid": ("pid", "process_id"),
    "at": (
        *("t_ns", "time_ns", "timestamp_ns", "t_us", "time_us", "timestamp_us", "t_ms", "time_ms", "timestamp_ms"),
        *("t_s", "time_s", "t", "time", "timestamp", "ts", "at"),
    ),
    "format": ("format", "fmt"),
    "rc": ("rc", "returncode", "return_code", "exit_code", "exitcode"),
    "error": ("err", "error", "stderr", "message"),
    "switches": ("voluntary_switches", "voluntary_ctxt_switches"),
    "cpu_s": ("cpu_s",),
}
_OBJECT: Final = re.compile(rb"^\s*\[\s*(\{[^{}\[\]]{0,7000}\})", re.DOTALL)
_KEY: Final = re.compile(rb'"(\w{1,40})"\s*:')
_ROLES: Final = (
    ("trainer", re.compile(r"^(main|trainer|train|rank|process)\b|^rank_?[0-9]+$", re.IGNORECASE)),
    ("dataloader_worker", re.compile(r"^(data_?loader|(dl|data)?_?worker)", re.IGNORECASE)),
    ("agent", re.compile(r"^(agent|launcher|torchrun|elastic)", re.IGNORECASE)),
)


def claims(name: str, head: bytes) -> bool:
    """Whether the content is a JSON list of flat objects that name a process, a place and how the dump of it ended."""
    match = _OBJECT.match(head[:SNIFF_BYTES])
    if not match:
        return False
    keys = {key.decode("ascii", "replace") for key in _KEY.findall(match[1])}

    def has(what: str) -> bool:
        return not keys.isdisjoint(_NAMES[what])

    return has("pid") and has("rc") and (has("rank") or has("host")) and (has("sample") or has("format") or has("role"))


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of one index, in its order, and the entries that could not be read."""
    data, torn = read_bytes(source)
    if torn:
        yield torn
    skips: list[Skip] = []
    rows: list[dict[str, object]] = []
    for index, element in json_elements(data, skips):
        if len(rows) >= MAX_ENTRIES:
            skips.append(Skip(f"E{index}", f"more than {MAX_ENTRIES} entries; the rest is left out"))
            break
        if isinstance(element, dict) and (row := _row(index, element)):
            rows.append(row)
        else:
            skips.append(Skip(f"E{index}", "no entry: an object with a rank or a pid is expected"))
    if not rows:
        raise EvidenceError(source.path, None, "no entry of a stack dump in it")
    yield from skips
    yield TABLES["dump_index"], TABLES["dump_index"].rows(rows)
    yield TABLES["ranks"], TABLES["ranks"].rows(_processes(rows))


def _value(element: dict[str, object], what: str) -> object:
    return next((element[name] for name in _NAMES[what] if element.get(name) is not None), None)


def _text(element: dict[str, object], what: str) -> str | None:
    value = _value(element, what)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) and value else None


def _row(index: int, element: dict[str, object]) -> dict[str, object] | None:
    """A row of `dump_index`; None where the entry names no process."""
    rank, pid = whole_number(_value(element, "rank")), whole_number(_value(element, "pid"))
    if rank is None and pid is None:
        return None
    return_code, error = _value(element, "rc"), _text(element, "error")
    failed = return_code != 0 if return_code is not None else error is not None
    return {
        "record": f"E{index}",
        "rank": rank,
        "host": host_label(_text(element, "host")),
        "pid": pid,
        "role": _text(element, "role"),
        "sample": whole_number(_value(element, "sample")),
        "sampled_at": _instant(element),
        "format": _text(element, "format"),
        "dump_status": dump_status(error or "") if failed else "ok",
        "num_switches": _count(whole_number(_value(element, "switches"))),
        "cpu_s": _seconds(_value(element, "cpu_s")),
    }


def _count(value: int | None) -> int | None:
    return value if value is not None and value >= 0 else None


def _seconds(value: object) -> float | None:
    """A CPU time, where it can be one."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < _MOST_CPU_S else None


def _instant(element: dict[str, object]) -> datetime | None:
    """When the dump was taken: a count since 1970 in the unit of its name (else seconds), or ISO 8601 with a zone."""
    name = next((name for name in _NAMES["at"] if element.get(name) is not None), "")
    value = element.get(name)
    instant = None
    if isinstance(value, str):
        try:
            instant = datetime.fromisoformat(value)
        except ValueError:
            return None
        if instant.tzinfo is None:
            return None
        try:
            instant = instant.astimezone(UTC)
        except OverflowError:
            return None
    elif isinstance(value, int | float) and not isinstance(value, bool) and -1e21 < value < 1e21:
        per_second = _FRACTION_OF_SECOND.get(name[-3:], 1)
        microseconds = value * 10**6 // per_second
        if 0 <= microseconds < (_LAST_AT - _EPOCH).total_seconds() * 1e6:
            instant = _EPOCH + timedelta(microseconds=int(microseconds))
    return instant if instant is not None and _FIRST_AT <= instant < _LAST_AT else None


def _role(name: object) -> str | None:
    """The role as the tables name it; None where the index does not say."""
    if not isinstance(name, str):
        return None
    return next((role for role, pattern in _ROLES if pattern.match(name)), "other")


def _processes(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """One row of `ranks` per distinct process, at its first mention."""
    distinct: dict[tuple[object, ...], dict[str, object]] = {}
    for row in rows:
        if row["rank"] is None:
            continue
        process = {"rank": row["rank"], "host": row["host"], "pid": row["pid"], "role": _role(row["role"])}
        distinct.setdefault(tuple(process.values()), {"record": row["record"], **process})
    return list(distinct.values())
