"""The objects of an export of a cluster or service, however they stand in it, each with its place.

One JSON document (an object, a list of them, a list under `items` as Kubernetes prints it), one object a line, objects one after the other as
`--watch` prints them, or YAML of one or several documents. Of a torn document the whole entries before the tear are given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from collectors._json_records import is_lines, records
from rca.errors import EvidenceError
from rca.types import Skip, Source

__all__ = ["MAX_BYTES", "objects", "plain"]

MAX_BYTES: Final = 1 << 26  # of a document; lines may be more
MAX_YAML_BYTES: Final = 1 << 23  # its parser is slow
MAX_TEARS: Final = 20  # places in a stream of objects at which one is torn
MAX_DEPTH: Final = 6  # of lists in lists
_NEXT: Final = re.compile(r"^[ \t]{0,8}\{", re.M)
_ENTRIES: Final = re.compile(r'"(?:items|events)"\s{0,20}:\s{0,20}\[')
_INNER: Final = ("items", "Items")

Placed = tuple[str | None, dict[str, Any] | Skip]


def objects(source: Source, *, inner: tuple[str, ...] = _INNER) -> Iterator[Placed]:
    """Every object with its place, a `Skip` for what is none. Raises EvidenceError where a whole file is no such thing."""
    data, torn = source.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        if not is_lines(source.head):
            raise EvidenceError(source.path, None, f"more than {MAX_BYTES:,} bytes in one document: export one object a line")
        for record, value in records(source):
            yield from _unfolded(value, record, record, inner) if isinstance(value, dict) else [(record, value)]
        return
    if torn:
        yield None, Skip(None, f"breaks off: {torn}")
    text = data.decode("utf-8-sig", "replace")
    if text.lstrip()[:1] not in ("{", "["):
        yield from _of_yaml(source, text, inner)
        return
    try:
        document = json.loads(text)
    except RecursionError:
        raise EvidenceError(source.path, None, "no valid JSON (nested too deeply)") from None
    except ValueError:
        yield from _stream(text, inner)
        return
    yield from _unfolded(document, "E0", "", inner)


def _unfolded(value: Any, record: str | None, lead: str | None, inner: tuple[str, ...], depth: int = 0) -> Iterator[Placed]:
    """A value, or the entries of the list that it is or holds. `lead` stands before their places: "" at the top of a document."""
    key = next((key for key in inner if isinstance(value.get(key), list)), None) if isinstance(value, dict) else None
    if key is None and not isinstance(value, list):
        yield record, value if isinstance(value, dict) else Skip(record, "no object")
        return
    part = f"{key}/" if key else ""
    for place, entry in enumerate(value[key] if key else value):
        at = f"{lead}/{part}E{place}" if lead else f"{part}E{place}"
        if depth < MAX_DEPTH and (
            isinstance(entry, list) or (isinstance(entry, dict) and any(isinstance(entry.get(k), list) for k in inner))
        ):
            yield from _unfolded(entry, at, at, inner, depth + 1)
        else:
            yield at, entry if isinstance(entry, dict) else Skip(lead or at, "no object")


def _stream(text: str, inner: tuple[str, ...]) -> Iterator[Placed]:
    """Objects one after the other; a torn one is told, and reading goes on at the next line that begins one."""
    if text.lstrip()[:1] == "[":
        yield from _entries(text, text.index("[") + 1)
        yield None, Skip(None, "the list is torn: only its whole entries were read")
        return
    decoder, at, line, counted, num_torn = json.JSONDecoder(), 0, 1, 0, 0
    while found := _NEXT.search(text, at):
        start = text.index("{", found.start())
        line, counted = line + text.count("\n", counted, start), start
        try:
            value, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            num_torn += 1
            if num_torn == 1 and (entries := _ENTRIES.search(text, start, start + 4000)):
                yield from _entries(text, entries.end())
            yield f"L{line}", Skip(f"L{line}", f"no whole object ({str(error)[:80]})")
            if num_torn == MAX_TEARS:
                yield f"L{line}", Skip(f"L{line}", f"more than {MAX_TEARS} torn objects: the rest is left out")
                return
            if num_torn == 1 and entries:
                return
            at = start + 1
            continue
        record = f"L{line}"
        yield from _unfolded(value, record, record, inner)


def _entries(text: str, at: int) -> Iterator[Placed]:
    """The whole entries of a list whose document is torn."""
    decoder, line, counted = json.JSONDecoder(), 1, 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at >= len(text) or text[at] != "{":
            return
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        yield f"L{line}", value


def _of_yaml(source: Source, text: str, inner: tuple[str, ...]) -> Iterator[Placed]:
    if len(text) > MAX_YAML_BYTES:
        raise EvidenceError(source.path, None, f"more than {MAX_YAML_BYTES:,} bytes of YAML: export JSON (-o json)")
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    place = 0
    try:
        for document in yaml.load_all(text, Loader=loader):  # a safe loader: plain values only
            if document is None:
                continue
            yield from _unfolded(document, f"E{place}", "", inner)
            place += 1
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        yield None, Skip(None, f"no valid YAML ({' '.join(str(error).split())[:120]})")


def plain(value: Any) -> Any:
    """A value without the wrappers of MongoDB's extended JSON ({"$numberLong": "5"}, {"$date": "..."}); counts in milliseconds stay counts."""
    for _ in range(3):
        if not (isinstance(value, dict) and len(value) == 1):
            return value
        key = next(iter(value))
        if key not in ("$numberLong", "$numberInt", "$numberDouble", "$date", "$oid"):
            return value
        value = value[key]
        if key in ("$numberLong", "$numberInt") and isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
            value = int(value)
    return value
