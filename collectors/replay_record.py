"""Records of a replay (`rca.replay/1`, one run of a group) and its plan (`rca.replay_plan/1`): what each host computed, bit by bit.

A plan gives one row per host and group with the outcome `missing`: what should be there. A record gives one row per host and step, or one
`missing` row for a host that left nothing. A plan that was never run has no replay_id and gives no rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from collectors._log_prefix import plain_host
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("replays",)

MAX_BYTES: Final = 1 << 28
MAX_WORD: Final = 300  # characters of a name or fingerprint
RECORD: Final = "rca.replay/1"
PLAN: Final = "rca.replay_plan/1"
OUTCOMES: Final = ("equal", "differs", "missing")
_MARKS: Final = tuple(f'"{version}"'.encode() for version in (RECORD, PLAN))


def claims(name: str, head: bytes) -> bool:
    """A JSON object that says it is one of the two."""
    return head.lstrip()[:1] == b"{" and b'"schema_version"' in head and any(mark in head for mark in _MARKS)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `replays`, in the order of the file."""
    data, torn = source.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise EvidenceError(source.path, None, f"more than {MAX_BYTES:,} bytes: no record of a replay")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        why = f"breaks off ({torn})" if torn else f"no whole JSON ({error})"
        raise EvidenceError(source.path, None, f"{why}: this run of the replay is missing") from None
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version not in (RECORD, PLAN):
        raise EvidenceError(source.path, None, "no record of a replay")
    rows: list[dict[str, Any]] = []
    for row in _planned(document) if version == PLAN else _ran(document):
        if isinstance(row, Skip):
            yield row
        else:
            rows.append(row)
    yield TABLES["replays"], TABLES["replays"].rows(rows)


def _planned(document: dict[str, Any]) -> Iterator[dict[str, Any] | Skip]:
    """Who should run with whom."""
    replay_id, names = _word(document.get("replay_id")), document.get("hosts")
    if replay_id is None:
        return
    for at, phase in enumerate(_list(document.get("phases"))):
        groups = _list(phase.get("groups")) if isinstance(phase, dict) else []
        name = _word(phase.get("name")) if isinstance(phase, dict) else None
        for number, group in enumerate(groups):
            for place, host in enumerate(_list(group)):
                index = _whole(host)
                said = names[index] if isinstance(names, list) and index is not None and index < len(names) else None
                record = f"phases/E{at}/E{number}/E{place}"
                if name is None or (called := _host(said)) is None:
                    yield Skip(record, "names no host or phase")
                else:
                    yield _row(record, replay_id, name, number, None, called, place)


def _ran(document: dict[str, Any]) -> Iterator[dict[str, Any] | Skip]:
    """What one run of a group left."""
    replay_id, phase = _word(document.get("replay_id")), _word(document.get("phase"))
    group, repeat = _whole(document.get("group")), _whole(document.get("repeat"))
    if replay_id is None or phase is None or group is None or repeat is None:
        yield Skip(None, "does not say which replay, phase, group and repeat it is of")
        return
    ended = _instant(document.get("ended_at"))
    for at, host in enumerate(_list(document.get("hosts"))):
        name = _host(host.get("host")) if isinstance(host, dict) else None
        place = _whole(host.get("place")) if isinstance(host, dict) else None
        if name is None or place is None:
            yield Skip(f"hosts/E{at}", "names no host or no place in its group")
            continue
        steps = [(number, step) for number, step in enumerate(_list(host.get("steps"))) if isinstance(step, dict)]
        known = [(n, s) for n, s in steps if _whole(s.get("step")) is not None and _word(s.get("fingerprint")) is not None]
        for number, step in known:
            row = _row(f"hosts/E{at}/E{number}", replay_id, phase, group, repeat, name, place)
            row |= {"step": step["step"], "fingerprint": step["fingerprint"], "expected": _word(step.get("expected"))}
            row |= {"outcome": step.get("outcome") if step.get("outcome") in OUTCOMES else None, "ran_at": ended}
            yield row
        if not known or host.get("outcome") == "missing" or len(known) < len(_list(host.get("steps"))):
            yield _row(f"hosts/E{at}", replay_id, phase, group, repeat, name, place) | {"ran_at": ended}


def _row(record: str, replay_id: str, phase: str, group: int, repeat: int | None, host: str, place: int) -> dict[str, Any]:
    """A row of what is missing, until more is known."""
    return {
        "record": record, "replay_id": replay_id, "phase": phase, "group_number": group, "repeat": repeat, "host": host, "place": place,
        "step": None, "fingerprint": None, "expected": None, "outcome": "missing", "ran_at": None,
    }  # fmt: skip


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= MAX_WORD and value.isprintable() else None


def _host(value: Any) -> str | None:
    name = _word(value)
    return plain_host(name) or None if name is not None else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None


def _instant(value: Any) -> datetime | None:
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return at.astimezone(UTC) if at is not None and at.tzinfo is not None and 1970 < at.year < 9000 else None
