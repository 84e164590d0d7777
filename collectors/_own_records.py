"""Records that this tool wrote itself: told by their `schema_version`, read with the same distrust as any other file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from collectors._lines import blocks
from rca.errors import EvidenceError
from rca.types import Skip, Source

__all__ = ["document", "instant", "is_lines", "is_record", "lines_of", "number", "text", "texts", "whole", "wholes"]

MAX_BYTES: Final = 1 << 26  # of one record with its history
MAX_TEXT: Final = 1 << 20  # characters of one text that are kept
MAX_ITEMS: Final = 100_000  # of a list
_SNIFF_LINES: Final = 8  # a first line may be torn
_SNIFF_BYTES: Final = 4096
_SCHEMA: Final = re.compile(rb'(?<!\\)"schema_version"\s*:\s*"([\w./-]{1,60})"')
_SPACE: Final = b" \t\r\n"


def is_record(head: bytes, schema: str) -> bool:
    """Whether the head is of an object whose first `schema_version` is this one; a later one is of a record that it quotes."""
    return head.lstrip(_SPACE)[:1] == b"{" and _first_schema(head[:_SNIFF_BYTES]) == schema


def is_lines(head: bytes, schema: str) -> bool:
    """Whether one of the first lines is such an object."""
    lines = head.lstrip(_SPACE).split(b"\n", _SNIFF_LINES)[:_SNIFF_LINES]
    return any(line[:1] == b"{" and _first_schema(line[:_SNIFF_BYTES]) == schema for line in lines)


def _first_schema(data: bytes) -> str | None:
    found = _SCHEMA.search(data)
    return found[1].decode("ascii", "replace") if found else None


def lines_of(
    source: Source, schema: str, rows: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]] | str]
) -> Iterator[dict[str, Any] | Skip]:
    """What `rows` makes of each record of a file of lines, in their order; each line stands for itself: what is torn, foreign or refused with a
    reason is skipped."""
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            continue
        for number, line in enumerate(block.lines, block.first):
            if not line.strip():
                continue
            found = _read(line, schema, rows)
            if isinstance(found, str):
                yield Skip(f"L{number}", found)
            else:
                yield from ({"record": f"L{number}", **row} for row in found)


def _read(
    line: bytes, schema: str, rows: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]] | str]
) -> Sequence[Mapping[str, Any]] | str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"not JSON ({str(error)[:100]}): a torn line"
    if not isinstance(record, dict) or record.get("schema_version") != schema:
        return f"no record of schema {schema}"
    return rows(record)


def document(source: Source, schema: str) -> Mapping[str, Any]:
    """The one object of a file. Raises EvidenceError where there is none of that schema."""
    found = json_object(source, MAX_BYTES)
    if found.get("schema_version") != schema:
        raise EvidenceError(source.path, None, f"no record of schema {schema}")
    return found


def json_object(source: Source, max_bytes: int) -> dict[str, Any]:
    """The one JSON object that a whole file holds. Raises EvidenceError where it is torn, larger than `max_bytes`, or none."""
    data, torn = source.read(max_bytes + 1)
    if torn or len(data) > max_bytes:
        raise EvidenceError(source.path, None, f"breaks off: {torn}" if torn else f"larger than {max_bytes:,} bytes: no such record")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(source.path, None, f"no valid JSON ({str(error)[:100]})") from None
    if not isinstance(found, dict):
        raise EvidenceError(source.path, None, "no JSON object")
    return found


def text(value: object) -> str | None:
    """A text that can be stored; null for what is none or empty."""
    return value[:MAX_TEXT].encode("utf-8", "replace").decode() or None if isinstance(value, str) else None


def whole(value: object) -> int | None:
    """A whole number that fits; null for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63 else None


def number(value: object) -> float | None:
    """A finite number; null for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300 or not math.isfinite(value):
        return None
    return float(value)


def instant(value: object) -> datetime | None:
    """An instant with its zone, in UTC; null for anything else."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        moment = datetime.fromisoformat(value)
        return moment.astimezone(UTC) if moment.tzinfo and 1970 <= moment.year < 2200 else None
    except (ValueError, OverflowError):
        return None


def texts(value: object) -> list[str]:
    """The texts of a list."""
    return [one for item in value[:MAX_ITEMS] if (one := text(item))] if isinstance(value, list) else []


def wholes(value: object) -> list[int]:
    """The whole numbers of a list."""
    return [one for item in value[:MAX_ITEMS] if (one := whole(item)) is not None] if isinstance(value, list) else []
