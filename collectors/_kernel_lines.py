"""The lines of a kernel log that are worth a look: those that hold one of the literal markers of the rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Final

import polars as pl

from collectors import _kernel_anchors, _kernel_gpu, _kernel_rules
from rca.catalogues import cached

__all__ = ["BOOT", "BROADCAST", "SKIPPED", "marked_lines"]

PIECE_BYTES: Final = 8192
NET_MARKERS: Final = 40  # beyond 64 the search compares one byte after the other, and is slower long before
BOOT: Final = re.compile(r"-- Boot (?P<boot>[0-9a-f]{32})")  # of journalctl, between boots
BROADCAST: Final = re.compile(
    r"(?:Broadcast m|M)essage from (?:syslogd|systemd-journald)@(?P<host>\S{1,255}) (?:at |\()(?P<stamp>[^.)\n]{1,40})"
)
SKIPPED: Final = re.compile(r".{0,200}?Skipped [0-9]{1,9} previous similar message")  # of Lustre
_BYTES: Final = ('"MESSAGE":[', '"MESSAGE": [', '"MESSAGE" : [')  # a message that is no text, as the journal and jq write it
_CONTEXT: Final = ("-- Boot ", "essage from ", "previous similar message")


@cached
def _markers() -> list[str]:
    return sorted({*_kernel_gpu.MARKERS, *_kernel_rules.markers(), *_kernel_anchors.MARKERS, *_CONTEXT, *_BYTES})


@cached
def _nets() -> list[str]:
    """Alternatives of the markers, few enough in each that vectors of bytes are compared (neighbours share their beginnings)."""
    all_of_them = _markers()
    markers = [re.escape(marker) for marker in all_of_them if not any(other in marker for other in all_of_them if other != marker)]
    num_nets = -(-len(markers) // NET_MARKERS)
    each = -(-len(markers) // num_nets)
    return ["|".join(markers[at : at + each]) for at in range(0, len(markers), each)]


def marked_lines(block: bytes, number: int) -> Iterator[tuple[int, str]]:
    """Number and text of the lines with a marker; `number` is that of the first line of the block."""
    block = _as_utf8(block)
    starts = _piece_starts(block)
    pieces = [block[start:end] for start, end in pairwise((*starts, len(block)))]
    texts = pl.Series(pieces, dtype=pl.Binary).cast(pl.String)
    is_marked = reduce(or_, (texts.str.contains(net) for net in _nets()))
    if not is_marked.any():
        return
    found = texts.filter(is_marked).str.find_many(_markers(), overlapping=False).to_list()
    counted = 0
    for at, offsets in zip(is_marked.arg_true().to_list(), found, strict=True):
        number += block.count(b"\n", counted, starts[at])
        counted = starts[at]
        yield from _lines_at(pieces[at], offsets, number)


def _as_utf8(block: bytes) -> bytes:
    """The block, with U+FFFD for what is no character."""
    try:
        block.decode()
    except UnicodeDecodeError:
        return block.decode("utf-8", "replace").encode()
    return block


def _piece_starts(block: bytes) -> list[int]:
    """Where pieces of whole lines begin: most hold no marker at all, and are not looked at again."""
    starts, end = [0], block.find(b"\n", PIECE_BYTES) + 1
    while 0 < end < len(block):
        starts.append(end)
        end = block.find(b"\n", end + PIECE_BYTES) + 1
    return starts


def _lines_at(piece: bytes, offsets: list[int], number: int) -> Iterator[tuple[int, str]]:
    """Number and text of the lines in which the offsets lie; `number` is that of the first line of the piece, which is UTF-8."""
    counted = end = 0
    for offset in offsets:
        if offset < end:
            continue
        start = piece.rfind(b"\n", 0, offset) + 1
        end = piece.find(b"\n", offset)
        end = len(piece) if end < 0 else end
        number += piece.count(b"\n", counted, start)
        counted = start
        yield number, piece[start:end].decode()
