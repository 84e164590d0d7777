"""JSON objects that stand one behind the other in a file: one a line, or spread over lines, with lines of text between them.

What a tool prints that is asked again and again, or that goes on to tell: `records` of `_json_records` reads a file that is one document, or
one object a line; here each object may have lines of its own. Flat memory but for the object under way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from collectors._json_records import MAX_DOCUMENT_BYTES
from collectors._lines import LINE_BYTES, blocks
from rca.types import Skip, Source

__all__ = ["stream"]

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.S)  # brackets inside of texts open nothing; one that is not closed takes the rest
_BARE: Final = (b"{", b"[", b"{ ", b"[ ")  # the first line of a document that is spread over lines


def stream(source: Source, *, mend: Callable[[str], str] | None = None) -> Iterator[tuple[str | None, dict[str, Any] | str | Skip]]:
    """Each object and the line on which it begins; lines between objects as text; a `Skip` for what is torn or no JSON.

    A list gives its objects, all with the line on which it begins. `mend` makes JSON of what a writer with a known fault wrote: asked only for a
    document that is none.
    """
    parts: list[bytes] = []  # lines of the document under way
    began = depth = size = 0
    for block in blocks(source):
        if isinstance(block, Skip):
            yield None, block
            continue
        for place, whole in enumerate(block.lines, block.first):
            line = whole.rstrip(b"\r")
            if parts and line[:1] in (b"{", b"[") and parts[0] in _BARE:  # what is inside of such a document is indented
                yield f"L{began}", Skip(None, "a JSON document breaks off")
                parts = []
            if not parts:
                start = line.lstrip(b"\xef\xbb\xbf \t") if place == 1 else line.lstrip(b" \t")
                if start[:1] not in (b"{", b"["):
                    if start:
                        yield f"L{place}", start[:LINE_BYTES].decode("utf-8", "replace")
                    continue
                line, began, depth, size = start, place, 0, 0
            parts.append(line)
            size += len(line)
            bare = _STRING.sub(b"", line)
            depth += bare.count(b"{") + bare.count(b"[") - bare.count(b"}") - bare.count(b"]")
            if size > MAX_DOCUMENT_BYTES:
                yield f"L{began}", Skip(None, f"more than {MAX_DOCUMENT_BYTES:,} bytes in one JSON document")
                parts = []
            elif depth <= 0:
                yield from _objects(parts, began, mend)
                parts = []
    if parts:
        yield f"L{began}", Skip(None, "the last JSON document breaks off")


def _objects(parts: list[bytes], began: int, mend: Callable[[str], str] | None) -> Iterator[tuple[str, dict[str, Any] | Skip]]:
    """The objects of a piece of text that holds one JSON document, or several on one line."""
    text, at, decoder = b"\n".join(parts).decode("utf-8", "replace"), 0, json.JSONDecoder()
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            if mend is not None and isinstance(error, ValueError):
                text, mend = text[:at] + mend(text[at:]), None
                continue
            yield f"L{began}", Skip(None, f"not JSON ({str(error)[:100]})")
            return
        for entry in value if isinstance(value, list) else [value]:
            yield f"L{began}", entry if isinstance(entry, dict) else Skip(None, "no JSON object")
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
