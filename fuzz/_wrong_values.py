"""Every value of a small JSON document (or of a few JSON lines) replaced by every value that fits no field: too rare for chance to try them all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from _promise import keep
from _seeds import seeds

__all__ = ["wrong_values"]

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 2**53 + 0.5, 2**63 - 1, -(2**63), 10**30, 1e-320, 1e308, float("nan"), float("inf"), 253_402_300_800),
    *("", "\ud800x", "\u00b2", "\u0663", "--5", "\x00", "9" * 50, "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"),
    *([], {}, [[]], [None], {"a": 1}),
)
NUM_DOCUMENTS = 6  # of a collector
NUM_PLACES = 60  # of a document, spread over it
NUM_LINES = 3  # of a file of JSON lines
NUM_ITEMS = 2  # of a list: the others are like them
Path = tuple[Any, ...]  # keys and positions; a key to be renamed stands last, as a tuple of its own


def wrong_values(collector: ModuleType) -> Iterator[tuple[bytes, Exception]]:
    """The inputs on which the collector breaks its promise, and how."""
    for data in seeds(collector)[:NUM_DOCUMENTS]:
        whole = _parsed(data)
        places = list(_places(whole)) if whole is not None else []
        for place in places[:: max(1, len(places) // NUM_PLACES)]:
            for value in VALUES:
                if isinstance(place[-1], tuple) and not isinstance(value, str):
                    continue
                text = _written(whole, place, value, is_lines=data.lstrip()[:1] == b"{" and isinstance(whole, list))
                try:
                    keep(collector, text)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
                    yield text, error


def _parsed(data: bytes) -> Any:
    """The document, or the first lines; None of what is no JSON."""
    try:
        return json.loads(data)
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in data.splitlines()[:NUM_LINES] if line.strip()]
    except ValueError:
        return None


def _places(value: Any, path: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, (key,))
            yield (*path, key)
            yield from _places(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:NUM_ITEMS]):
            yield (*path, number)
            yield from _places(inner, (*path, number))


def _written(whole: Any, place: Path, value: Any, *, is_lines: bool) -> bytes:
    changed = json.loads(json.dumps(whole))
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    if isinstance(place[-1], tuple):
        inner[value] = inner.pop(place[-1][0])
    else:
        inner[place[-1]] = value
    return ("\n".join(map(json.dumps, changed)) if is_lines else json.dumps(changed)).encode()
