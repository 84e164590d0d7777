"""The events of a Chrome trace of any size, one after the other, in flat memory; and what stands around them."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from rca.types import Skip, Source

__all__ = ["around", "events"]

PART: Final = 1 << 20  # bytes read at a time
MAX_EVENT: Final = 1 << 22  # characters of one event
_OPEN: Final = re.compile(r'"traceEvents"\s{0,100}:\s{0,100}\[')
_SPACE: Final = re.compile(r"[\s,]*+")
_OVERLAP: Final = 4096
_AROUND: Final = {
    "rank": re.compile(rb'"distributedInfo"\s{0,100}:\s{0,100}\{[^{}\[\]]{0,2000}?"rank"\s{0,100}:\s{0,100}(\d{1,7})\b'),
    "base_ns": re.compile(rb'"baseTimeNanoseconds"\s{0,100}:\s{0,100}(\d{1,20})\b'),
    "host": re.compile(rb'"host_?name"\s{0,100}:\s{0,100}"([^"\\]{1,255})"', re.I),
}


def around(source: Source) -> dict[str, str]:
    """`rank`, `base_ns` and `host` where the trace names them: they stand before its events, or behind them."""
    found: dict[str, str] = {}
    kept = b""
    for part in source.blocks(PART):
        data = kept + part
        for name, pattern in _AROUND.items():
            if name not in found and (told := pattern.search(data)):
                found[name] = told[1].decode("utf-8", "replace")
        if len(found) == len(_AROUND):
            break
        kept = data[-_OVERLAP:]
    return found


def events(source: Source) -> Iterator[tuple[int, dict[str, Any]] | Skip]:
    """Number and content of each event; a `Skip` where the trace breaks off."""
    decode, decoder = codecs.getincrementaldecoder("utf-8")("replace"), json.JSONDecoder()
    stream = source.blocks(PART)
    text, at, number = "", -1, 0
    why: str | None = None
    while True:
        if at < 0 and (opened := _OPEN.search(text)):
            at = opened.end()
        while at >= 0:
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it fits everywhere
            if at >= len(text):
                break
            if text[at] == "]":
                return
            try:
                event, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                if why is not None or len(text) - at > MAX_EVENT:
                    yield Skip(None, f"breaks off at event {number}: {why or str(error)[:100]}")
                    return
                break
            if isinstance(event, dict):
                yield number, event
            number += 1
        if why is not None:
            yield Skip(None, f"breaks off at event {number}: {why or 'the list of events does not end'}")
            return
        text = text[at:] if at >= 0 else text[-_OVERLAP:]
        at = 0 if at >= 0 else -1
        try:
            text += decode.decode(next(stream))
        except StopIteration as end:
            why = str(end.value)
            text += decode.decode(b"", final=True)
