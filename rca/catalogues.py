"""What is known of codes and lines, as rows of rca/catalogue/*.csv, and a site's own rows laid over them.

A site's folder holds files of the same names. A row with the key of a shipped one replaces it column by column: an empty cell keeps what is
shipped, `-` empties it. Any other row is new; in a list of patterns, where the first that fits counts, it comes before the shipped ones. Which folder
counts is decided at the edge (`rca.catalogues.use_site`), never here: the library reads no environment.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Final, TypeVar

from rca.causes import ACTIONS, CAUSES
from rca.errors import UsageError
from rca.line_adapters import FILE as LINES
from rca.line_adapters import Adapter, parse, shipped
from rca.settings import FILE as SETTINGS
from rca.settings import NOT_SAID, Settings
from rca.settings import parse as parse_settings

__all__ = [
    "ROLES",
    "SCOPES",
    "Row",
    "Site",
    "by_code",
    "cached",
    "file_of",
    "is_sites",
    "line_adapters",
    "names",
    "read_site",
    "rows",
    "settings",
    "site",
    "site_fingerprint",
    "site_rows",
    "use_site",
]

Row = Mapping[str, str]
T = TypeVar("T")

ROLES: Final = ("root", "either", "application", "consequence", "repair", "info")
SCOPES: Final = ("same_gpu", "same_node", "nvlink_domain")
KINDS: Final = ("causes", "detail", "repairs", "worsens", "verdict", "announces")
STANCES: Final = ("stay", "out", "open")
MAX_BYTES: Final = 1 << 22  # of a site's file: the shipped ones have 50 KB
EMPTIED: Final = "-"
ENDING: Final = ".csv"


@dataclass(frozen=True)
class _File:
    """What a site may say in one file: the columns that tell rows apart, those a new row cannot do without, and whether the order counts."""

    key: tuple[str, ...]
    needs: tuple[str, ...] = ()
    is_ordered: bool = False


FILES: Final[Mapping[str, _File]] = {
    "xid": _File(("code",), ("name", "role", "policy")),
    "sxid": _File(("code",), ("name", "role", "policy")),
    "xid_edges": _File(("from", "to", "scope"), ("window_s", "kind", "source")),
    "policies": _File(("policy",), ("stance", "says")),
    "authorities": _File(("column", "value"), ("who", "stance")),
    "kernel_lines": _File(("pattern",), ("kind", "markers"), is_ordered=True),
    "log_patterns": _File(("pattern",), ("signature", "word"), is_ordered=True),
    "group_kinds": _File(("pattern",), ("kind",), is_ordered=True),
    "nvlink5": _File(("xid", "units", "word_since_575", "error_status"), ("word_before_575", "severity", "action", "peer")),
    "months": _File(("month",)),
    "signatures": _File(("signature",), ("layer", "role")),
    "bits": _File(("analysis", "sign", "cause"), ("bits",)),
}


@dataclass(frozen=True)
class Site:
    """A site's own rows, checked and laid over the shipped ones."""

    folder: str  # as it was named
    fingerprint: str  # of the names and bytes of its files, 16 hex digits
    merged: Mapping[str, tuple[Row, ...]]  # file without its ending -> all its rows
    changes: Mapping[str, tuple[int, int]]  # the same -> shipped rows that it changes, rows that it adds
    cells: frozenset[tuple[str, tuple[str, ...], str]] = frozenset()  # file, key and column of what it says itself
    adapters: tuple[Adapter, ...] = ()  # of its own lines
    settings: Settings = NOT_SAID  # its own numbers for the decision

    @property
    def says(self) -> str:
        """One line for people: which rules were not the shipped ones."""
        told = [f"{file_of(name)} ({changed} changed, {added} new)" for name, (changed, added) in sorted(self.changes.items())]
        return f"{', '.join(told)} of {self.folder}"


def file_of(name: str) -> str:
    """The file that a name in `Site.changes` stands for."""
    return name if name in (LINES, SETTINGS) else f"{name}{ENDING}"


_site: Site | None = None
_clearing: list[Callable[[], None]] = []  # of what was made of the rows


def use_site(found: Site | None) -> None:
    """From now on the rows of this site count; None: only the shipped ones."""
    global _site
    if found != _site:
        _site = found
        for clear in _clearing:
            clear()


def site() -> Site | None:
    """The site whose rows count."""
    return _site


def settings() -> Settings:
    """The numbers for the decision of the site whose rows count; without one all that can be unknown is."""
    return _site.settings if _site else NOT_SAID


def is_sites(name: str, key: tuple[str, ...], column: str) -> bool:
    """Whether the site whose rows count set that cell itself; `key` as the file tells its rows apart, ("63",) of `xid`."""
    return _site is not None and (name, key, column) in _site.cells


def site_rows(name: str) -> tuple[Row, ...]:
    """The rows that only the site has; none where no site counts."""
    if _site is None or name not in _site.merged:
        return ()
    about = {_key(name, row) for row in _shipped(name)}
    return tuple(row for row in _site.merged[name] if _key(name, row) not in about)


def site_fingerprint() -> str:
    """What a case remembers of the rules that it was read with; "" = the shipped ones."""
    return _site.fingerprint if _site else ""


def line_adapters() -> tuple[Adapter, ...]:
    """How lines of a trainer's own kind are read: the site's adapters, then the shipped ones of other names."""
    own = _site.adapters if _site else ()
    return (*own, *(adapter for adapter in shipped() if adapter.name not in {one.name for one in own}))


def cached(function: Callable[[], T]) -> Callable[[], T]:
    """`function` (without arguments), called once until another site counts: for whatever is made of the rows."""
    once = lru_cache(maxsize=1)(function)
    _clearing.append(once.cache_clear)
    return once


def names() -> tuple[str, ...]:
    """The files that a site may have, without their ending, sorted."""
    return tuple(sorted(FILES))


def rows(name: str) -> tuple[Row, ...]:
    """The rows of a file, a site's laid over the shipped ones, all cells as text; `name` without its ending."""
    return _site.merged[name] if _site and name in _site.merged else _shipped(name)


@lru_cache(maxsize=4)
def _coded(name: str, fingerprint: str) -> Mapping[int, Row]:
    return {int(row["code"]): row for row in rows(name)}


def by_code(name: str) -> Mapping[int, Row]:
    """Number -> row, of `xid` or `sxid`. A number that is missing is unknown: nothing follows from that."""
    return _coded(name, site_fingerprint())


@lru_cache(maxsize=32)
def _shipped(name: str) -> tuple[Row, ...]:
    text = resources.files("rca.catalogue").joinpath(f"{name}{ENDING}").read_text("utf-8")
    return tuple(csv.DictReader(io.StringIO(text)))


def read_site(folder: Path) -> Site:
    """A site's folder, checked. Raises UsageError that says what is wrong, in which file and line, and what to do."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder. Name the folder with the site's own catalogue files (--site, RCA_SITE), or none.")
    digest = hashlib.sha256()
    merged: dict[str, tuple[Row, ...]] = {}
    changes: dict[str, tuple[int, int]] = {}
    said: dict[str, list[tuple[int, Row]]] = {}
    for file in sorted(path for path in folder.iterdir() if path.name.endswith(ENDING)):
        name = file.name.removesuffix(ENDING)
        if name not in FILES:
            raise UsageError(f"{file}: no catalogue has that name. Known are {', '.join(names())}; rename the file or take it away.")
        text, data = _text(file)
        digest.update(f"{file.name}\0{len(data)}\0".encode() + data)
        said[name] = _site_rows(file, name, text)
        merged[name], changes[name] = _laid_over(file, name, said[name])
    adapters: tuple[Adapter, ...] = ()
    for file in sorted(path for path in folder.iterdir() if path.name.endswith((".yaml", ".yml"))):
        if file.name != LINES:
            raise UsageError(f"{file}: no file of a site has that name. The one in YAML is {LINES}; rename it or take it away.")
        text, data = _text(file)
        digest.update(f"{file.name}\0{len(data)}\0".encode() + data)
        adapters = parse(text, str(file))
        replaced = len({adapter.name for adapter in adapters} & {adapter.name for adapter in shipped()})
        changes[LINES] = (replaced, len(adapters) - replaced)
    numbers = NOT_SAID
    for file in sorted(path for path in folder.iterdir() if path.name.endswith(".toml")):
        if file.name != SETTINGS:
            raise UsageError(f"{file}: no file of a site has that name. The one in TOML is {SETTINGS}; rename it or take it away.")
        text, data = _text(file)
        digest.update(f"{file.name}\0{len(data)}\0".encode() + data)
        numbers, count = parse_settings(text, str(file))
        changes[SETTINGS] = (count, 0)
    words = {
        "policy": {row["policy"] for row in merged.get("policies", _shipped("policies"))},
        "signature": {
            row["signature"] for name in ("signatures", "log_patterns") for row in (*merged.get("signatures", ()), *_shipped(name))
        },
    }
    for name, told in said.items():
        for line, row in told:
            if wrong := _wrong(name, row, words):
                raise UsageError(f"{folder / name}{ENDING}, line {line}: {wrong}. Correct it, or leave the folder out (--site, RCA_SITE).")
    cells = {(name, _key(name, row), column) for name, told in said.items() for _, row in told for column, cell in row.items() if cell}
    return Site(str(folder), digest.hexdigest()[:16], merged, changes, frozenset(cells), adapters, numbers)


def _text(file: Path) -> tuple[str, bytes]:
    try:
        if not file.is_file() or file.stat().st_size > MAX_BYTES:
            raise UsageError(f"{file}: no plain file of at most {MAX_BYTES:,} bytes. Put a CSV file there, or take it away.")
        data = file.read_bytes()
        return data.decode("utf-8-sig"), data
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror or error}). Make it readable, or take it away.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: byte {error.start} is no UTF-8. Save it as UTF-8.") from None


def _site_rows(file: Path, name: str, text: str) -> list[tuple[int, Row]]:
    """Line and cells of each row; header and width checked."""
    known = tuple(_shipped(name)[0])
    reader = csv.reader(io.StringIO(text), strict=True)
    found: list[tuple[int, Row]] = []
    try:
        header = next(reader, [])
        strange = sorted(set(header) - set(known))
        missing = [column for column in FILES[name].key if column not in header]
        if strange or missing or len(set(header)) != len(header):
            why = f"has no column {missing[0]}" if missing else f"has a column {strange[0]!r}" if strange else "names a column twice"
            raise UsageError(f"{file}: its first line {why}. The columns of this file are {', '.join(known)}; it needs only those it sets.")
        for cells in reader:
            if not cells or (cells[0].startswith("#") and len(cells) == 1):
                continue
            if len(cells) != len(header):
                raise UsageError(
                    f"{file}, line {reader.line_num}: {len(cells)} cells under {len(header)} columns. Add or quote the commas."
                )
            found.append((reader.line_num, dict(zip(header, (cell.strip() for cell in cells), strict=True))))
    except csv.Error as error:
        raise UsageError(f"{file}, line {reader.line_num}: no CSV ({error}). Quote cells that hold commas or quotes.") from None
    return found


def _laid_over(file: Path, name: str, told: Sequence[tuple[int, Row]]) -> tuple[tuple[Row, ...], tuple[int, int]]:
    """All rows with the site's laid over them, and how many it changes and adds."""
    about = FILES[name]
    shipped = {_key(name, row): row for row in _shipped(name)}
    empty = dict.fromkeys(_shipped(name)[0], "")
    merged, new, seen = dict(shipped), {}, set[tuple[str, ...]]()
    for line, row in told:
        key = _key(name, row)
        if not all(key):
            raise UsageError(f"{file}, line {line}: {' and '.join(about.key)} may not be empty. Say which row is meant.")
        if key in seen:
            raise UsageError(f"{file}, line {line}: {', '.join(key)} stands there twice. Keep one of the two.")
        seen.add(key)
        says = {column: "" if cell == EMPTIED else cell for column, cell in row.items() if cell and column not in about.key}
        if key in shipped:
            merged[key] = {**shipped[key], **says}
        else:
            if lacking := [column for column in about.needs if not row.get(column)]:
                raise UsageError(f"{file}, line {line}: no shipped row is called {', '.join(key)}, and a new one needs {lacking[0]}.")
            new[key] = {**empty, **dict(zip(about.key, key, strict=True)), **says}
    ordered = [*new.values(), *merged.values()] if about.is_ordered else [*merged.values(), *new.values()]
    return tuple(ordered), (len(seen) - len(new), len(new))


def _key(name: str, row: Row) -> tuple[str, ...]:
    parts = tuple(row[column] for column in FILES[name].key)
    return (str(int(parts[0])),) if name in ("xid", "sxid") and parts[0].isascii() and parts[0].isdigit() else parts


def _wrong(name: str, row: Row, words: Mapping[str, set[str]]) -> str:
    """What is wrong with the cells of a site's row; "" = nothing."""
    for column, cell in row.items():
        if cell == EMPTIED and column in (*FILES[name].key, *FILES[name].needs):
            return f"{column} may not be emptied: no row can do without it"
        if not cell or cell == EMPTIED:
            continue
        if name == "xid_edges" and column in ("from", "to") and not _is_term(cell):
            return f"{column} {cell!r} is no record: write xid:79, xid:* (any fault), xid:94/SM (of that unit), sxid:20034 or a kind of kernel_lines"
        if column == "code" and not (cell.isascii() and cell.isdigit() and len(cell) <= 6):
            return f"code {cell!r} is no number of at most six digits"
        if column in ("window_s", "early_s", "bits") and not re.fullmatch(r"-?[0-9]{1,6}(\.[0-9]{1,6})?", cell):
            return f"{column} {cell!r} is no number"
        if column == "pattern":
            try:
                re.compile(cell)
            except re.error as error:
                return f"the pattern is no regular expression ({error})"
        allowed = _words(name, column, words)
        if allowed and cell not in allowed:
            return f"{column} {cell!r} is none of {', '.join(sorted(allowed))}"
    return ""


def _is_term(cell: str) -> bool:
    """Whether an edge can mean a record by this."""
    kinds = {row["kind"] for row in rows("kernel_lines")}
    return cell in kinds or re.fullmatch(r"s?xid:(?:\*|[0-9]{1,6}(?:/[A-Za-z0-9_]{1,32})?)", cell) is not None


def _words(name: str, column: str, words: Mapping[str, set[str]]) -> set[str]:
    """The words that a cell may hold; empty = any text. `words`: those that other files of the site may add to."""
    if (name, column) in (("kernel_lines", "kind"), ("kernel_lines", "severity"), ("kernel_lines", "turn"), ("group_kinds", "kind")):
        return {cell for row in _shipped(name) if (cell := row[column])} | ({"ib"} if (name, column) == ("kernel_lines", "kind") else set())
    if name == "log_patterns" and column == "signature":
        return words["signature"]
    if name in ("xid", "sxid"):
        return {"role": set(ROLES), "cause": set(CAUSES), "policy": words["policy"]}.get(column, set())
    if name == "policies":
        return {"action": set(ACTIONS), "stance": set(STANCES)}.get(column, set())
    return {("xid_edges", "scope"): set(SCOPES), ("xid_edges", "kind"): set(KINDS), ("authorities", "stance"): set(STANCES)}.get(
        (name, column), set()
    )
