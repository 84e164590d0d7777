"""Logs in which an entry takes several lines: the journal's export, verbose and indented JSON, dmesg's JSON, event logs of controllers.

Each entry with a line that is worth a look becomes one line of JSON, as the journal's own, so that one reader understands all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Entries", "entries_of"]

HEAD_LINES: Final = 12  # within which a form shows itself
MAX_ENTRY: Final = 2000  # lines of an entry that are kept; the journal's longest have some sixty
MAX_OPEN: Final = 32  # objects within each other
_CURSOR: Final = re.compile(r"__CURSOR=s=|__REALTIME_TIMESTAMP=[0-9]")
_VERBOSE: Final = re.compile(
    r"(?P<stamp>[^\s\[]{1,12} [0-9]{4}-[0-9][0-9]-[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9]"
    r"(?:\.[0-9]{1,6})? [^\s\[]{1,8}) \[s=[0-9a-f]{32};"
)
_FIELD: Final = re.compile(r"\s{0,8}(?P<key>[A-Z_][A-Z0-9_]{0,63})=(?P<value>.*)")
_BINARY: Final = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")  # of the export: the value follows, behind its length in eight bytes
_KERNELS: Final = re.compile(rb"_TRANSPORT\"?\s{0,2}[=:]\s{0,2}\"?kernel|\"dmesg\"\s{0,2}:")
_RECORD: Final = re.compile(r"(?:Record|SeqNumber)\s{0,12}[:=]\s{0,12}[0-9]")  # of a controller of Dell: racadm getsel
_PAIR: Final = re.compile(r"\s{0,4}(?P<key>[A-Z][\w/ ]{0,24}?)\s{0,12}[:=] {1,12}(?P<value>.{1,2000})")
_AMERICAN: Final = re.compile(r"([0-9][0-9])/([0-9][0-9])/([0-9]{4}) ([0-9][0-9]:[0-9][0-9]:[0-9][0-9])")
_NAMES: Final = {"Date/Time": "time", "Timestamp": "time", "Description": "message", "Message": "message"}

Found = Iterator[tuple[int, str]]  # number of the line with the message, the entry as one line of JSON


def entries_of(head: bytes) -> Entries | None:
    """A reader for the form that the head of a file shows; None where a line is an entry."""
    found = _form(head)
    if found:
        found.is_kernel = _KERNELS.search(head) is not None
    return found


def _form(head: bytes) -> Entries | None:
    lines = [line for line in head[:65536].decode("utf-8", "replace").split("\n") if line.strip()][:HEAD_LINES]
    if any(map(_CURSOR.match, lines)):
        return Entries(_is_blank, _of_fields)
    if any(map(_VERBOSE.match, lines)):
        return Entries(_VERBOSE.match, _of_fields, begins=True)
    if lines and _RECORD.match(lines[0]):
        return Entries(_RECORD.match, _of_pairs, begins=True)
    if len(lines) > 1 and lines[0].strip() in ("{", "[", "[{", "---") and lines[1].lstrip()[:1] in ('"', "{"):
        return Entries(None, _of_pairs)
    return None


def _is_blank(line: str) -> bool:
    return not line.strip()


@dataclass
class Entries:
    """Takes the lines of a file one after the other. `border`: the line before an entry, or (`begins`) its first; None: JSON with indents."""

    border: Callable[[str], object] | None
    read: Callable[[Sequence[str]], dict[str, Any]]
    begins: bool = False
    is_kernel: bool = False  # entries of the kernel are among those that the head shows
    _lines: list[str] = field(default_factory=list)
    _at: int = 0  # number of the line of the entry that is wanted
    _open: list[_Object] = field(default_factory=list)

    def take(self, block: bytes, number: int, wanted: Container[int]) -> Found:
        """The entries that end in a block of whole lines, of those that hold a wanted line; `number` is that of its first line."""
        for count, line in enumerate(block.decode("utf-8", "replace").removesuffix("\n").split("\n"), number):
            if self.border is None:
                yield from self._indented(line, count, wanted)
                continue
            if self.border(line):
                yield from self.rest()
                if not self.begins:
                    continue
            if len(self._lines) < MAX_ENTRY:
                self._lines.append(line)
                if not self._at and count in wanted:
                    self._at = count

    def rest(self) -> Found:
        """The entry that the last line ends."""
        lines, at = self._lines, self._at
        self._lines, self._at = [], 0
        if at:
            yield at, json.dumps(self.read(lines))

    def _indented(self, line: str, number: int, wanted: Container[int]) -> Found:
        """JSON with indents: an object ends where its bracket closes; what stands in inner ones is told by them."""
        text = line.strip().rstrip(",")
        if text[:1] in ("}", "]"):
            if self._open:
                ended = self._open.pop()
                if ended.at:
                    yield ended.at, json.dumps(_of_members(ended.lines))
            text = text[1:].lstrip(", ")
        if text[-1:] in ("{", "["):
            if len(self._open) < MAX_OPEN:
                self._open.append(_Object())
        elif text and self._open and len(self._open[-1].lines) < MAX_ENTRY:
            self._open[-1].lines.append(text)
            if number in wanted and not self._open[-1].at:
                self._open[-1].at = number


@dataclass
class _Object:
    lines: list[str] = field(default_factory=list)
    at: int = 0


def _of_fields(lines: Sequence[str]) -> dict[str, Any]:
    """KEY=value, one a line; a line before them is a stamp, lines without a key go on with the value."""
    entry: dict[str, Any] = {}
    key = ""
    is_next = False
    for line in lines:
        if is_next:
            entry[key], is_next = line[8:], False
        elif _BINARY.fullmatch(line):
            key, is_next = line, True
        elif found := _FIELD.match(line):
            key = found["key"]
            entry.setdefault(key, found["value"])
        elif stamp := _VERBOSE.match(line):
            entry["time"] = stamp["stamp"]
        elif key:
            entry[key] += f"\n{line.strip()}"
    return entry


def _of_pairs(lines: Sequence[str]) -> dict[str, Any]:
    """`Key: value`, one a line."""
    found = (_PAIR.match(line) for line in lines)
    entry = {_NAMES.get(pair["key"], pair["key"]): pair["value"].strip() for pair in found if pair}
    if day := _AMERICAN.fullmatch(entry.get("time", "")):
        entry["time"] = f"{day[3]}-{day[1]}-{day[2]} {day[4]}"
    return entry


def _of_members(lines: Sequence[str]) -> dict[str, Any]:
    """`"key": value`, one a line; a line that is none is left out."""
    entry: dict[str, Any] = {}
    for line in lines:
        try:
            member = json.loads(f"{{{line}}}")
        except (ValueError, RecursionError):
            continue
        entry.update(member)
    return entry
