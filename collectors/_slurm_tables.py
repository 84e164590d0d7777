"""Tables that Slurm's commands print: fields parted by a delimiter (`sacct -P`, `--delimiter`), or columns as wide as the dashes under their names.

A field may hold line breaks and even the delimiter (the line of a submission). So lines are joined until a record has as many fields as the
header, and what is too many goes back into that free text which leaves every other field what it must be.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from collectors._lines import LINE_BYTES, blocks
from rca.types import Skip, Source

__all__ = ["Header", "dashed_header", "delimited_header", "records", "text_lines"]

MAX_JOINED: Final = 200  # lines of one record
MAX_COLUMNS: Final = 400
FREE_TEXT: Final = frozenset(
    {"submitline", "comment", "admincomment", "systemcomment", "jobname", "workdir", "reason", "constraints", "extra"}
)
_NAME: Final = r"[A-Za-z][A-Za-z0-9_]{0,31}"
_PARTED: Final = re.compile(rf"^({_NAME})([^A-Za-z0-9_]{{1,4}})(?={_NAME})")
_DASHES: Final = re.compile(r"-{2,}")


@dataclass(frozen=True)
class Header:
    """The columns of a table, lower case, and how a line is cut into them."""

    names: tuple[str, ...]
    delimiter: str  # "" = by columns
    spans: tuple[tuple[int, int], ...] = ()
    is_closed: bool = False  # the delimiter ends every line as well (`sacct -p`)

    def cut(self, text: str) -> list[str]:
        """The fields of one record."""
        if not self.delimiter:
            return [text[start:end].strip() for start, end in self.spans]
        if '"' in text and self.delimiter in (",", ";", "\t"):
            try:
                return next(csv.reader([text], delimiter=self.delimiter))
            except (csv.Error, StopIteration):
                pass
        fields = text.split(self.delimiter)
        return fields[:-1] if self.is_closed and len(fields) > 1 and not fields[-1].strip() else fields


def delimited_header(line: str, known: frozenset[str], needed: Iterable[frozenset[str]]) -> Header | None:
    """The header that a line is, if all its names are known and of each set one is there."""
    found = _PARTED.match(line)
    if found is None or not found[2].strip(" ") or len(line) > 20_000:
        return None
    delimiter = found[2]
    is_closed = line.rstrip().endswith(delimiter.rstrip())
    names = [name.strip().strip('"').lower() for name in line.rstrip("\r\n").split(delimiter)]
    if is_closed and not names[-1]:
        names.pop()
    return Header(tuple(names), delimiter, (), is_closed) if _is_one(names, known, needed) else None


def dashed_header(line: str, under: str, known: frozenset[str], needed: Iterable[frozenset[str]]) -> Header | None:
    """The header that a line with dashes under it is: the dashes give the columns."""
    if len(under) > 20_000 or under.strip(" -\r") or "--" not in under:
        return None
    spans = [(found.start(), found.end()) for found in _DASHES.finditer(under)]
    names = [line[start:end].strip().lower() for start, end in spans]
    return Header(tuple(names), "", tuple(spans)) if _is_one(names, known, needed) else None


def _is_one(names: Sequence[str], known: frozenset[str], needed: Iterable[frozenset[str]]) -> bool:
    return 1 < len(names) <= MAX_COLUMNS and set(names) <= known and all(some & set(names) for some in needed)


def text_lines(source: Source) -> Iterator[tuple[int, str] | Skip]:
    """Every line with its number, without its end."""
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            continue
        for number, line in enumerate(block.lines, block.first):
            if len(line) > LINE_BYTES:
                yield Skip(f"L{number}", f"a line of {LINE_BYTES} bytes or more")
            else:
                yield number, line.decode("utf-8", "replace").rstrip("\r").removeprefix("\ufeff")


def records(
    lines: Iterable[tuple[int, str] | Skip],
    header_of: Callable[[str, str], Header | None],
    is_record: Callable[[Header, Sequence[str]], bool],
) -> Iterator[tuple[int, dict[str, str]] | Skip]:
    """Records with the number of their first line, by the latest header above them; a `Skip` for lines that are none.

    Of equal names the first counts.
    """
    header: Header | None = None
    joined: list[str] = []
    began = num_parted = 0

    def torn(why: str) -> Skip:
        return Skip(f"L{began}", why)

    for item, following in _with_next(lines):
        if isinstance(item, Skip):
            yield item
            continue
        number, line = item
        found = header_of(line, following)
        if found is not None:
            if joined:
                yield torn("a record that breaks off")
            header, joined = found, []
            continue
        if header is None or (not joined and (not line.strip() or not line.strip(" -"))):
            continue
        if not header.delimiter:
            fields = header.cut(line)
            if is_record(header, fields):
                yield number, _named(header, fields)
            else:
                yield Skip(f"L{number}", "no record of the table above it")
            continue
        alone = header.cut(line)
        if joined and len(alone) >= len(header.names) and _fitted(header, alone, is_record) is not None:
            yield torn("a record that breaks off: fewer fields than the header")  # the next one begins whole
            joined = []
        if not joined:
            began, num_parted = number, 0
        joined.append(line)
        num_parted += line.count(header.delimiter)
        if num_parted < len(header.names) - 1 + header.is_closed and len(alone) < len(header.names):
            if len(joined) < MAX_JOINED:
                continue
            yield torn("a record that breaks off: fewer fields than the header")
            joined = []
            continue
        fields = header.cut("\n".join(joined)) if len(joined) > 1 else alone
        if (fitted := _fitted(header, fields, is_record)) is not None:
            yield began, _named(header, fitted)
        else:
            yield torn("no record of the table above it")
        joined = []
    if joined:
        yield torn("the last record breaks off: fewer fields than the header")


def _with_next(lines: Iterable[tuple[int, str] | Skip]) -> Iterator[tuple[tuple[int, str] | Skip, str]]:
    """Each item and the text of the one after it ("" = none)."""
    before: tuple[int, str] | Skip | None = None
    for item in lines:
        if before is not None:
            yield before, "" if isinstance(item, Skip) else item[1]
        before = item
    if before is not None:
        yield before, ""


def _named(header: Header, fields: Sequence[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for name, value in zip(header.names, fields, strict=False):
        named.setdefault(name, value)
    return named


def _fitted(header: Header, fields: Sequence[str], is_record: Callable[[Header, Sequence[str]], bool]) -> list[str] | None:
    """As many fields as the header has, what is too many joined into a free text; None where none of them makes it a record."""
    more = len(fields) - len(header.names)
    if more <= 0:
        return list(fields) if is_record(header, fields) else None
    for place, name in enumerate(header.names):
        if name in FREE_TEXT or (name == "nodelist" and header.delimiter == ","):
            fitted = [*fields[:place], header.delimiter.join(fields[place : place + more + 1]), *fields[place + more + 1 :]]
            if is_record(header, fitted):
                return fitted
    return None
