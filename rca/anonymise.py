"""A case under neutral names: host-0001 for a host, 198.18.100.0 for an address, the same one wherever it stands. Pure.

Numbers follow the sorted order of the true names, so what is decided by the order of names stays as it was, and the same case gives the same numbers
each time. The verdict is not rewritten but made again from the renamed rows: nothing can come through it. Two passes: all names are gathered from
all tables, then every text is rewritten word by word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import polars as pl

from rca.anonymous_names import COLUMNS, HASHES, KEPT_TEXTS, KINDS, NAME_TABLES, SHAPES, USER_PHRASES, Names, is_plain_word, joined, short
from rca.anonymous_words import FREE, Words
from rca.tables import TABLES

__all__ = ["Renaming", "gather"]

Chunks = Callable[[str], Iterable[pl.DataFrame]]
PATHS: Final = frozenset({"path", "copy_of", "checkpoint", "file", "saved_to", "sample_id", "sample_ids", "data_shard", "failed_path"})
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")
_PIECE: Final = re.compile(r"[A-Za-z0-9]+|[_.\-]+")
_PLAIN_RECORD: Final = re.compile(r"[A-Z][0-9]+(?:[/.][A-Z]?[0-9]+)*")
_OWN_FOLDERS: Final = re.compile(  # where people keep their things: what the folders are called tells whose they are
    r"/(?:home|[Uu]sers?|scratch|work|workspaces?|mnt|data|lustre|fsx|gpfs|nfs|efs|projects?|proj|storage|shared|root)/(?:[\w.+@%\-]{1,255}/){1,40}"
)
_OF_PYTHON: Final = re.compile(
    r"(?:site|dist)-packages|lib(?:64|32)?|bin|python[0-9][0-9.]*|envs?|v?env|\.venv|torch|megatron|deepspeed|nccl"
)
_MAX_PIECES: Final = 15  # of one name: a host's with its domain, and more


def gather(chunks: Chunks) -> tuple[Names, dict[str, set[str]]]:
    """All names in the tables of a case, and the hashes of bytes by column."""
    names = Names()
    hashes: dict[str, set[str]] = {column: set() for column in HASHES}
    texts: list[tuple[str, str, pl.Series]] = []
    for table, column, values in _text_columns(chunks):
        names.see_column(table, column, values.to_list())
        if column in HASHES:
            hashes[column].update(values.to_list())
        if column not in KEPT_TEXTS and column not in HASHES:
            texts.append((table, column, values))
    for _, _, values in texts:
        for text in values.to_list():
            names.see_relatives(text)
    return names, hashes


def _text_columns(chunks: Chunks) -> Iterator[tuple[str, str, pl.Series]]:
    """Every different text of every column of texts, a part of a table at a time."""
    for table in TABLES.values():
        wanted = [c.name for c in table.columns if c.dtype in (pl.String(), pl.List(pl.String()))]
        for frame in chunks(table.name):
            for column in wanted:
                series = frame[column].explode() if isinstance(frame.schema[column], pl.List) else frame[column]
                values = series.drop_nulls().unique()
                if column == "record":  # another one for every row, and nearly always a number
                    values = values.filter(~values.str.contains(f"^{_PLAIN_RECORD.pattern}$"))
                if values.len():
                    yield table.name, column, values


class Renaming:
    """Old name -> new name, and the rewriting of texts, columns and frames by it."""

    def __init__(self, names: Names, hashes: Mapping[str, Iterable[str]]) -> None:
        self.new: dict[str, dict[str, str]] = {kind: _numbered(kind, names.found[kind], names.found) for kind in KINDS}
        self.hashes = {column: _tokens(column, values) for column, values in hashes.items()}
        self._words: dict[str, str] = {}  # what stands for itself in sentences, in lower case
        self._phrases: dict[str, str] = {}  # names with spaces or signs in them
        for kind in ("serial", "name", "user", "host"):
            for old, new in self.new[kind].items():
                if not is_plain_word(old):
                    (self._words if _WORD.fullmatch(old) else self._phrases)[old.lower()] = new
        self._joined = {joined(old): new for old, new in self.new["host"].items() if len(joined(old)) > 5 and any(map(str.isdigit, old))}
        self._domains = sorted(self.new["domain"], key=len, reverse=True)
        listed = "|".join(re.escape(old) for old in sorted(self._phrases, key=len, reverse=True))
        self._phrase = re.compile(rf"(?<![A-Za-z0-9])(?:{listed})(?![A-Za-z0-9])", re.I) if listed else None
        self._made: dict[tuple[str, bool, bool], str] = {}
        self._others = Words()  # that are no names
        self._targets = {new for kind in self.new.values() for new in kind.values()}

    def key(self) -> dict[str, dict[str, str]]:
        """kind -> new name -> old name: what turns the names back."""
        return {kind: {new: old for old, new in sorted(names.items())} for kind, names in self.new.items() if names and kind != "domain"}

    def text(self, text: str) -> str:
        """A free text under the new names."""
        for kind, shape in SHAPES:
            new = self.new[kind]
            if new:
                text = shape.sub(partial(_instead, new), text)
        if self._phrase is not None:
            text = self._phrase.sub(lambda found: self._phrases[found[0].lower()], text)
        text = USER_PHRASES.sub(self._of_user, text)
        text = _WORD.sub(lambda found: self._word(found[0]), text)
        return _OWN_FOLDERS.sub(lambda found: self._folders(found[0]), text)

    def _folders(self, path: str) -> str:
        """Folders of people and projects, up to where those of Python begin."""
        _, root, *folders, _ = path.split("/")
        out = [root]
        for number, folder in enumerate(folders):
            if _OF_PYTHON.fullmatch(folder):
                out += folders[number:]
                break
            out.append(self._others.of_path(folder))
        return f"/{'/'.join(out)}/"

    def _of_user(self, found: re.Match[str]) -> str:
        start, end = found.span(1 if found[1] else 2)
        old = found.string[start:end].rstrip(".-")
        return found.string[found.start() : start] + self.new["user"].get(old, old) + found.string[start + len(old) : found.end()]

    def _word(self, word: str) -> str:
        """A word with the names in it replaced: the longest run of its pieces that is a name, from the left."""
        if word in self._targets:
            return word
        pieces = _PIECE.findall(word)
        out, at = [], 0
        while at < len(pieces):
            for end in range(min(len(pieces), at + _MAX_PIECES), at, -1):
                name = "".join(pieces[at:end]).lower()
                new = self._words.get(name) or (self._joined.get(joined(name)) if name[0].isalnum() and name[-1].isalnum() else None)
                if new is not None:
                    out.append(new)
                    at = self._behind_domain(pieces, end)
                    break
            else:
                out.append(pieces[at])
                at += 1
        return "".join(out)

    def _behind_domain(self, pieces: list[str], at: int) -> int:
        rest = "".join(pieces[at:]).lower()
        for domain in self._domains:
            if rest.startswith(domain) and not rest[len(domain) : len(domain) + 1].isalnum():
                return at + len(_PIECE.findall(domain))
        return at

    def path(self, text: str) -> str:
        """A path: names as in texts; of what is left only words that say what kind of file it is, and numbers."""
        return self._others.of_path(self.text(text))

    def value(self, table: str, column: str, value: str) -> str:
        """One text of a column."""
        if column in HASHES:
            return self.hashes[column].get(value, value)
        kind = COLUMNS.get(column)
        if column in NAME_TABLES and table not in NAME_TABLES[column]:
            kind = None
        if kind is not None:
            new = self.new[kind].get(short(value) if kind == "host" else value.strip())
            if new is not None:
                return new
        if column in KEPT_TEXTS or (column == "record" and _PLAIN_RECORD.fullmatch(value)):
            return value
        if column in PATHS:
            return self.path(value)
        key = (value, f"{table}.{column}" in FREE, column == "labels")
        if key not in self._made:
            if len(self._made) > 200_000:
                self._made.clear()
            text = self.text(value)
            self._made[key] = self._others.of_labels(text) if key[2] else self._others.of_text(text) if key[1] else text
        return self._made[key]

    def frame(self, table: str, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows of a table under the new names; SHA-256 sums are left out."""
        changed = []
        for name, dtype in frame.schema.items():
            if name == "sha256":
                changed.append(pl.Series(name, [None], dtype=pl.String).new_from_index(0, frame.height))
            elif dtype == pl.String():
                changed.append(self._column(table, frame[name]))
            elif dtype == pl.List(pl.String()):
                lists = [
                    None if row is None else [None if v is None else self.value(table, name, v) for v in row]
                    for row in frame[name].to_list()
                ]
                changed.append(pl.Series(name, lists, dtype=dtype))
        return frame.with_columns(changed) if changed and frame.height else frame

    def _column(self, table: str, column: pl.Series) -> pl.Series:
        values = column.drop_nulls().unique().to_list()
        new = {old: self.value(table, column.name, old) for old in values}
        differ = {old: to for old, to in new.items() if old != to}
        return column.replace_strict(list(differ), list(differ.values()), default=column, return_dtype=pl.String) if differ else column


def _tokens(column: str, values: Iterable[str]) -> dict[str, str]:
    """In the order of the old ones, and as long as those of evidence."""
    return {old: f"{column[0]}{number:015d}" for number, old in enumerate(sorted(set(values)), 1)}


def _numbered(kind: str, found: Iterable[str], by_kind: Mapping[str, set[str]]) -> dict[str, str]:
    """New names in the order of the old ones, of the same width, so that they sort alike; none of them is an old one of any kind."""
    old = sorted(found, key=lambda name: (name.lower(), name)) if kind in ("user", "name", "serial", "url", "mail") else sorted(found)
    width = max(4, len(str(len(old))))
    taken = {name.lower() for names in by_kind.values() for name in names}
    for form in _forms(kind, width):
        new = {name: form(number, name) for number, name in enumerate(old, 1)}
        if not taken & set(new.values()):
            return new
    raise AssertionError(f"no free names of kind {kind}")  # the last form counts on


def _instead(new: Mapping[str, str], found: re.Match[str]) -> str:
    return new.get(found[0], found[0])


Form = Callable[[int, str], str]


def _forms(kind: str, width: int) -> Iterator[Form]:
    """Ways to name things of a kind, to be tried in turn."""
    makers: dict[str, tuple[Callable[[str], Form], tuple[str, ...]]] = {
        "ipv4": (_ipv4, ("198", "240")),  # 198.18 is set aside for tests of networks
        "ipv6": (_ipv6, ("2001:db8", "2001:db8:1")),
        "mac": (_mac, ("02", "0a")),
        "guid": (_guid, ("00", "f0")),
        "uuid": (_uuid, ("8000", "9000")),
        "hex32": (_hex32, ("0", "f")),
        "domain": (_plain, ("|",)),  # never written: a host stands without it
    }
    make, starts = makers.get(kind, (_plain, (kind, *(f"neutral-{kind}{more}" for more in ("", "-a", "-b")))))
    for start in starts:
        yield make(start if make is not _plain else f"{start} {width}")


def _plain(start: str) -> Form:
    stem, _, width = start.rpartition(" ")
    return lambda n, _: f"{stem}-{n:0{width}d}"


def _ipv4(start: str) -> Form:
    """Three digits everywhere, so that texts sort as numbers."""
    return lambda n, _: f"{start}.{18 + n // 22500}.{100 + n % 22500 // 150}.{100 + n % 150}"


def _ipv6(start: str) -> Form:
    return lambda n, _: f"{start}::{0x1000 + n // 0xE000:x}:{0x1000 + n % 0xE000:x}"


def _mac(start: str) -> Form:
    return lambda n, old: _in_groups(f"{start}{n:010x}", 2, ":" if ":" in old else "-")


def _guid(start: str) -> Form:
    return lambda n, old: _in_groups(f"{start}{n:014x}", 2 if old[2:3] == ":" else 4, ":")


def _uuid(start: str) -> Form:
    return lambda n, old: f"{old[:4] if old[3:4] == '-' else ''}00000000-0000-4000-{start}-{n:012x}"


def _hex32(start: str) -> Form:
    return lambda n, _: f"{start}{n:031x}"


def _in_groups(digits: str, size: int, sign: str) -> str:
    return sign.join(digits[at : at + size] for at in range(0, len(digits), size))
