"""The objects of a JSON file, whether one a line, a list of them, or one alone; and what a value holds, if it is of the kind asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from collectors._groups import plain_text
from collectors._lines import LINE_BYTES, blocks
from collectors._stack_dump import host_label, whole_number
from rca.types import Skip, Source

__all__ = ["MAX_DOCUMENT_BYTES", "first", "first_objects", "host", "instant", "is_lines", "local", "number", "records", "text", "whole"]

MAX_DOCUMENT_BYTES: Final = 1 << 28  # of a document that is not one object a line
SNIFF_LINES: Final = 8
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_S, _LAST_S = 946_684_800, 7_258_118_400  # 2000 and 2200: outside, a clock that does not count from 1970
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def is_lines(head: bytes) -> bool:
    """Whether the head begins with a line that is one whole JSON object (then each line is one, or is torn)."""
    line = next((line for line in head.lstrip(b"\xef\xbb\xbf").splitlines() if line.strip()), b"")
    return isinstance(_load(line), dict)


def first_objects(head: bytes) -> list[dict[str, Any]]:
    """Some of the first objects, of lines or of a list that ends within the head; what is torn off is left out."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] not in (b"{", b"["):
        return []
    if is_lines(start):
        return [value for line in start.splitlines()[:SNIFF_LINES] if isinstance(value := _load(line), dict)]
    whole_document = _load(start)
    if whole_document is not None:
        return [value for value in (whole_document if isinstance(whole_document, list) else [whole_document]) if isinstance(value, dict)]
    decoder, text_, at = json.JSONDecoder(), start.decode("utf-8", "replace"), 0
    found: list[dict[str, Any]] = []
    if text_[:1] == "[":  # a list that goes on: its first entries
        at = 1
        while len(found) < SNIFF_LINES:
            while at < len(text_) and text_[at] in " \t\r\n,":
                at += 1
            try:
                value, at = decoder.raw_decode(text_, at)
            except (ValueError, RecursionError):
                break
            if isinstance(value, dict):
                found.append(value)
    return found


def _load(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def records(source: Source) -> Iterator[tuple[str | None, dict[str, Any] | Skip]]:
    """Every object and where it stands (L<line>, or E<entry> of a document), a `Skip` for what is none.

    One object a line is read in flat memory. Anything else is one document of at most MAX_DOCUMENT_BYTES: an object, or a list of them.
    """
    if is_lines(source.head):
        for block in blocks(source):
            if isinstance(block, Skip):
                yield None, block
                continue
            for place, line in enumerate(block.lines, block.first):
                if line.strip():
                    yield f"L{place}", _object(line) if len(line) < LINE_BYTES else Skip(None, f"a line of {LINE_BYTES} bytes or more")
        return
    data, torn = source.read(MAX_DOCUMENT_BYTES + 1)
    if torn or len(data) > MAX_DOCUMENT_BYTES:
        yield None, Skip(None, f"breaks off: {torn}" if torn else f"more than {MAX_DOCUMENT_BYTES:,} bytes in one JSON document")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        yield None, Skip(None, f"not JSON ({str(error)[:100]})")
        return
    for place, value in enumerate(document if isinstance(document, list) else [document]):
        yield f"E{place}", value if isinstance(value, dict) else Skip(None, "no JSON object")


def _object(line: bytes) -> dict[str, Any] | Skip:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Skip(None, f"not JSON ({str(error)[:100]}); a last line may be torn")
    return value if isinstance(value, dict) else Skip(None, "no JSON object")


def number(value: Any) -> float | None:
    """A finite number, also one written as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def whole(value: Any) -> int | None:
    """A 64-bit integer, also one written as text or as 3.0; None for anything else."""
    if isinstance(value, str):
        digits = value.strip()
        return whole_number(int(digits)) if digits.isascii() and digits.removeprefix("-").isdigit() and len(digits) < 20 else None
    if isinstance(value, float):
        return whole_number(int(value)) if math.isfinite(value) and value == int(value) else None
    return whole_number(value)


def text(value: Any, most: int = 1000) -> str | None:
    """A text that is not empty, or a number as text, cut to `most` characters; None for anything else."""
    if isinstance(value, str):
        return value.strip()[:most].encode("utf-8", "replace").decode() or None
    return plain_text(value) or None


def host(value: Any) -> str | None:
    """A host as the tables name it; None for what is no text."""
    return host_label(text(value, 255)) if isinstance(value, str) else None


def instant(value: Any, unit: str = "s") -> datetime | None:
    """An instant: a count of `unit` (s, ms, us, ns) since 1970, or ISO 8601 with a zone; None where it is neither, or lies outside 2000 to 2200."""
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(value.strip())
            return at.astimezone(UTC) if at.tzinfo and 2000 <= at.year < 2200 else None
        except (ValueError, OverflowError):
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    per_second = _PER_SECOND[unit]
    if not _FIRST_S * per_second < value < _LAST_S * per_second:
        return None
    micros = value * 1_000_000 // per_second if isinstance(value, int) else round(value * 1_000_000 / per_second)
    return _EPOCH + timedelta(microseconds=int(micros))


def local(value: Any) -> str | None:
    """What a stamp without a zone says, as the tables write it; None for one with a zone, and for anything else."""
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value.strip().replace(",", "."))
    except ValueError:
        return None
    return None if at.tzinfo else at.isoformat()


def first(record: Mapping[str, Any], *keys: str) -> Any:
    """The value of the first of the keys that the record has with one; None where it has none."""
    return next((record[key] for key in keys if record.get(key) is not None), None)
