"""The lines of a kernel log that are worth a look: those that hold one of the literal markers of the rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import polars as pl

from collectors import _kernel_gpu, _kernel_rules

__all__ = ["BOOT", "BROADCAST", "SKIPPED", "marked_lines"]

BOOT: Final = re.compile(r"-- Boot (?P<boot>[0-9a-f]{32})")  # of journalctl, between boots
BROADCAST: Final = re.compile(
    r"(?:Broadcast m|M)essage from (?:syslogd|systemd-journald)@(?P<host>\S{1,255}) (?:at |\()(?P<stamp>[^.)\n]{1,40})"
)
SKIPPED: Final = re.compile(r".{0,200}?Skipped \d{1,9} previous similar message")  # of Lustre
_BYTES: Final = ('"MESSAGE":[', '"MESSAGE" : [')  # the journal's way to write a message that is no text
_CONTEXT: Final = ("-- Boot ", "essage from ", "previous similar message")


@lru_cache(maxsize=1)
def _markers() -> list[str]:
    return sorted({*_kernel_gpu.MARKERS, *_kernel_rules.markers(), *_CONTEXT, *_BYTES})


def marked_lines(block: bytes, number: int) -> Iterator[tuple[int, str]]:
    """Number and text of the lines with a marker; `number` is that of the first line of the block."""
    text = block.decode("utf-8", "replace")
    if not block.isascii():
        block = text.encode()  # offsets count its bytes, which differ where the block is no valid UTF-8
    offsets = pl.Series([text]).str.find_many(_markers(), overlapping=False).to_list()[0]
    counted = end = 0
    for offset in offsets:
        if offset < end:
            continue
        start = block.rfind(b"\n", 0, offset) + 1
        end = block.find(b"\n", offset)
        end = len(block) if end < 0 else end
        number += block.count(b"\n", counted, start)
        counted = start
        yield number, block[start:end].decode()
