"""What a file is that no collector takes: a known format that is not read, with the reason, or the nearest one that is, with what it lacks.

A guess by the first bytes and by telltale words (rca/catalogue/known_formats.csv). It is for people: nothing is read because of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from rca.catalogues import rows, site

__all__ = ["guess"]

HEAD: Final = 1 << 16  # bytes looked at
MAX_KEYS: Final = 6  # of a JSON object that are named
MAX_WORDS: Final = 3  # telltales that are quoted
KEY_LETTERS: Final = 40
ADAPTER: Final = "lines of your own are read with an adapter of ten lines (docs/site.md)"


class _Known(NamedTuple):
    name: str
    begins: bytes
    telltales: tuple[bytes, ...]  # lower case
    least: int  # telltales that must be found
    reader: str  # "" = recognised, not read
    says: str


@lru_cache(maxsize=1)
def _known() -> tuple[_Known, ...]:
    return tuple(
        _Known(
            row["format"], bytes.fromhex(row["begins"]), tuple(word.lower().encode() for word in row["telltales"].split("|") if word),
            int(row["least"]), row["reader"], row["says"],
        )
        for row in rows("known_formats")
    )  # fmt: skip


def guess(head: bytes) -> str:
    """The nearest thing that an unrecognised file could be, in words; `head` are its first bytes after decompression.

    First what its first bytes say outright, then the format most of whose telltale words it holds, those that are read before others. Where a site
    has adapters for lines of its own, that none of them fits is said of every text.
    """
    own = site()
    names = [adapter.name for adapter in own.adapters] if own is not None else []
    if not names or _is_binary(head):
        return _nearest(head, ADAPTER)
    several = f"s {', '.join(names[:MAX_KEYS])} of lines.yaml fit" if len(names) > 1 else f" {names[0]} of lines.yaml fits"
    misses = f"this site's adapter{several} no line at its beginning"
    told = _nearest(head, misses)
    return told if misses in told else f"{told}; {misses}"


def _is_binary(head: bytes) -> bool:
    return head[:1] == b"\x80" or sum(byte < 9 or 13 < byte < 27 for byte in head[:4096]) > len(head[:4096]) // 20


def _nearest(head: bytes, adapter: str) -> str:
    """`adapter` is what is said of adapters, where text is of no known kind."""
    head = head[:HEAD]
    begun = [known for known in _known() if known.begins and head.startswith(known.begins)]
    plain = next((known for known in begun if not known.telltales), None)
    if plain is not None:
        return f"{plain.name}: {plain.says}"
    is_binary = _is_binary(head)
    low = head.lower()
    near: list[tuple[float, int, _Known, list[bytes]]] = []
    for known in begun if is_binary else (known for known in _known() if not known.begins):
        found = [word for word in known.telltales if word in low]
        if len(found) >= max(1, known.least):
            near.append((len(found) / len(known.telltales), len(found), known, found))
    if near:
        _, _, known, found = max(near, key=lambda item: item[:2])  # of equals the first in the catalogue
        words = ", ".join(f"'{word.decode('utf-8', 'replace')}'" for word in found[:MAX_WORDS])
        if known.reader:
            return f"nearest {known.name} ({known.reader}; it holds {words}), but not of the kind that is read: {known.says}"
        return f"{known.name} (it holds {words}): recognised, not read: {known.says}"
    if is_binary:
        return "a pickle without the keys of a recorder dump (not opened)" if head[:1] == b"\x80" else "binary data of no known kind"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start in (b"{", b"["):
        keys = ", ".join(_keys(head))
        return f"JSON of a kind that no collector reads yet{f', with {keys}' if keys else ''}: {adapter}"
    return f"text of a kind that no collector reads yet: {adapter}"


def _keys(head: bytes) -> Iterable[str]:
    """The first keys of a JSON document, or of its first line."""
    text = head.decode("utf-8-sig", "replace").strip()
    for part in (text, text.partition("\n")[0]):
        try:
            value: Any = json.loads(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, list):
            value = value[0] if value else None
        if isinstance(value, dict):
            return [str(key)[:KEY_LETTERS] for key in list(value)[:MAX_KEYS]]
    return []
