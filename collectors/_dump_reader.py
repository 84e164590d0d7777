"""Recorder dumps -> rows: one at a time by the plain reader, or many together (`Batch`).

`Batch.add_header` reads what stands before the calls (a few KB): enough to see who lags, long before the calls themselves are read.
"""

from __future__ import annotations

import json
import pickle
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from collectors._dump_calls import NO_CALLS, Calls, calls_of
from collectors._dump_columns import Dump, columns, created, rank_of_content, stacks
from collectors._dump_fields import fields, fields_one_by_one
from collectors._dump_groups import Groups, member_rows
from collectors._groups import plain_text
from collectors._unpickle import MAX_FILE_BYTES, PickleRefused, cut_header, load, salvage
from rca.errors import EvidenceError
from rca.tables import TABLES, Table
from rca.types import Skip, Source

__all__ = ["Batch", "read"]

HEADER_BYTES = (65536, 262144, 4 << 20)  # one try after the other: 16,384 ranks make a header of ~0.2 MB
MAX_ENTRIES = 20_000_000

Rows = tuple[Table, pl.DataFrame]
Items = Iterator[Rows | Skip]


def read(source: Source) -> Items:
    """All rows of one dump; a torn file gives its good prefix and a Skip that says where it ends."""
    document, is_json, torn = _document(source)
    if torn:
        yield Skip(None, torn)
    yield from _tables(source, document, is_json=is_json, is_torn=bool(torn))


class Batch:
    """Dumps whose rows are made together: a column costs as much for one as for all. What `read` says of a dump is said here, in the same order."""

    def __init__(self) -> None:
        self.height = 0  # calls taken in so far
        self._dumps: list[tuple[Source, _Dump]] = []

    def add(self, source: Source) -> bool:
        """Takes in a whole pickle, by the compiled reader (collectors/_dump_compiled.py, where `is_compiled()`); False where anything in it is not as
        usual: `read` has to say what."""
        from collectors._dump_compiled import walked

        data = _bytes(source)
        found = walked(data) if data is not None else None
        if found is None:
            return False
        self._dumps.append((source, _dump(source, found.document, found.calls, is_torn=False)))
        self.height += found.calls.height
        return True

    def add_header(self, source: Source) -> bool:
        """Takes in what stands before the calls; False where that cannot be read by itself."""
        header = _header(source)
        if header is None:
            return False
        self._dumps.append((source, _dump(source, header, NO_CALLS, is_torn=False, is_whole=False)))
        return True

    def items(self) -> Iterator[tuple[Source, Skip | int] | tuple[None, Rows]]:
        """Skips with the file they are about; how many rows of a file others told already (stacks: ranks that run one program have the same); and
        tables whose rows name their file themselves. Empties the batch."""
        dumps, self._dumps, self.height = self._dumps, [], 0
        rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        told: set[str] = set()
        for source, dump in dumps:
            if dump.doubt:
                yield source, Skip(None, dump.doubt)
            of_file = {"evidence_id": source.evidence_id}
            for name, some in _rows(dump, is_json=False).items():
                rows[name] += [row | of_file for row in some if name != "stack_frames" or row["stack_id"] not in told]
            yield source, sum(row["stack_id"] in told for row in dump.stacks)
            told.update(row["stack_id"] for row in dump.stacks)
        if dumps:
            calls, members = TABLES["collectives"], TABLES["memberships"]
            yield None, (calls, columns([dump.named(source.evidence_id) for source, dump in dumps if dump.calls.height], calls))
            yield None, (members, member_rows((source.evidence_id, dump.groups.memberships(dump.rank)) for source, dump in dumps))
        for name, some in rows.items():
            if some:
                yield None, (TABLES[name], TABLES[name].rows(some))


def _bytes(source: Source) -> bytes | None:
    """The bytes of a whole pickle; None where the plain reader has to say what is wrong with it."""
    if source.head[:1] != b"\x80" or source.size_bytes > MAX_FILE_BYTES:
        return None
    try:
        if source.compression == "none":
            with source.file.open("rb") as file:
                return file.read(source.size_bytes)
        data, is_torn = source.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error):
        return None
    return None if is_torn else data


def _header(source: Source) -> dict[str, Any] | None:
    """What stands before the calls; None when that cannot be read by itself."""
    head = b""
    try:
        with source.file.open("rb", 0) if source.compression == "none" else source.open() as file:
            for num_bytes in HEADER_BYTES:
                head += file.read(num_bytes - len(head)) or b""
                header = cut_header(head) if head[:1] == b"\x80" else None
                if header is not None or len(head) < num_bytes:
                    return header
    except (OSError, EOFError, zlib.error):
        return None
    return None


def _document(source: Source) -> tuple[dict[str, Any], bool, str]:
    """The dump as a dict, whether it was JSON, and why it is torn ("" = whole)."""
    if source.size_bytes > MAX_FILE_BYTES:
        raise EvidenceError(source.path, None, f"{source.size_bytes:,} bytes: larger than any dump ({MAX_FILE_BYTES:,}), not read")
    is_json = source.head[:1] != b"\x80"
    try:
        document, torn = _json(source) if is_json else _pickle(source)
    except (OSError, EOFError, zlib.error) as error:
        raise EvidenceError(source.path, None, f"cannot be read: {error or 'the file ends early'}") from None
    if isinstance(document, list):  # recorder of October 2023: the bare list of calls
        document = {"entries": document, "version": "0"}
    if not isinstance(document, dict):
        raise EvidenceError(source.path, None, f"holds a {type(document).__name__}, not a recorder dump")
    return document, is_json, torn


def _pickle(source: Source) -> tuple[Any, str]:
    try:
        with source.open() as file:
            return load(file, _plain_size(source)), ""
    except PickleRefused as error:
        raise EvidenceError(source.path, None, str(error)) from None
    except (EOFError, pickle.UnpicklingError, zlib.error, OSError) as error:
        document = salvage(_good_bytes(source))
        if document is None:
            raise EvidenceError(source.path, None, f"the pickle breaks off before its first whole entry ({error})") from None
        return document, f"the file breaks off ({error}); the whole entries before that were read"


def _json(source: Source) -> tuple[Any, str]:
    text = _good_bytes(source).decode("utf-8", "replace")
    try:
        return json.loads(text), ""
    except RecursionError:
        raise EvidenceError(source.path, None, "JSON nested deeper than any dump: refused") from None
    except ValueError as error:
        entries = _whole_json_entries(text)
        if not entries:
            raise EvidenceError(source.path, None, f"the JSON breaks off before its first whole entry ({error})") from None
        return {"entries": entries}, f"the file breaks off ({error}); the whole entries before that were read"


def _whole_json_entries(text: str) -> list[Any]:
    start = re.search(r'"entries"\s*:\s*\[', text)
    decoder, found, at = json.JSONDecoder(), [], start.end() if start else len(text)
    while at < len(text):
        try:
            entry, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        found.append(entry)
        at += len(re.match(r"[\s,]*", text[at : at + 64])[0])  # type: ignore[index]  # the pattern matches anything
    return found


def _good_bytes(source: Source) -> bytes:
    """The bytes that can be had, capped; a compressed file that breaks off gives what decompresses."""
    data, _ = source.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise EvidenceError(source.path, None, f"more than {MAX_FILE_BYTES:,} bytes once decompressed: refused")
    return data


def _plain_size(source: Source) -> int:
    """Size to judge memory by; a dump compresses 10 to 30 times."""
    return source.size_bytes * (1 if source.compression == "none" else 30)


# Another recorder version, or damaged calls: what the quick way over whole columns raises.
NOT_AS_USUAL = (KeyError, TypeError, OverflowError, UnicodeEncodeError, pl.exceptions.PolarsError)


def _tables(source: Source, document: dict[str, Any], *, is_json: bool, is_torn: bool) -> Items:
    entries = document.get("entries")
    if entries is None:
        entries = []
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
        raise EvidenceError(source.path, None, "`entries` is no list of calls")
    good = entries if set(map(type, entries)) <= {dict} else [e for e in entries if isinstance(e, dict)]
    if len(good) < len(entries):
        yield Skip(None, f"{len(entries) - len(good)} of {len(entries)} entries are no calls")
    try:
        dump = _dump(source, document, calls_of(fields(good), good) if good else NO_CALLS, is_torn=is_torn)
        frame = columns([dump.named(None)], TABLES["collectives"])
    except NOT_AS_USUAL:
        values, skipped = fields_one_by_one(good)
        yield from skipped
        dump = _dump(source, document, calls_of(values, good), is_torn=is_torn)
        frame = columns([dump.named(None)], TABLES["collectives"])
    if dump.doubt:
        yield Skip(None, dump.doubt)
    yield TABLES["collectives"], frame
    yield TABLES["memberships"], member_rows([(None, dump.groups.memberships(dump.rank))])
    for name, rows in _rows(dump, is_json=is_json).items():
        yield TABLES[name], TABLES[name].rows(rows)


def _rows(dump: _Dump, *, is_json: bool) -> dict[str, list[dict[str, Any]]]:
    """Rows of the small tables."""
    return {
        "stack_frames": dump.stacks,
        "groups": dump.groups.rows(),
        "group_status": dump.groups.status_rows(dump.rank),
        "dumps": [_dump_row(dump) | {"format": "json" if is_json else "pickle", "is_torn": dump.is_torn}],
    }


@dataclass(frozen=True)
class _Dump:
    """One dump as it is told; what it was told by is gone."""

    version: str | None
    groups: Groups
    rank: int | None
    doubt: str
    calls: Calls
    stack_ids: list[str | None]  # of each distinct stack
    stacks: list[dict[str, Any]]  # rows of `stack_frames`
    is_torn: bool
    is_whole: bool  # its calls were read too, as far as it has them

    def named(self, evidence_id: str | None) -> Dump:
        return Dump(evidence_id, self.rank, self.groups, self.calls, self.stack_ids)


def _dump(source: Source, document: dict[str, Any], calls: Calls, *, is_torn: bool, is_whole: bool = True) -> _Dump:
    groups = Groups(document, calls, is_torn=is_torn)
    rank, doubt = rank_of_content(source, groups, calls)
    version = plain_text(document.get("version"))[:40] or None
    return _Dump(version, groups, rank, doubt, calls, *stacks(calls), is_torn, is_whole)


def _dump_row(dump: _Dump) -> dict[str, Any]:
    calls = dump.calls
    row: dict[str, Any] = {
        "record": "E0",
        "rank": dump.rank,
        "version": dump.version,
        "num_entries": calls.height if dump.is_whole else None,
    }
    if calls.height:
        ended = "completed" in calls.states.distinct or bool(calls.flags["retired"].is_set.any())
        backends = [plain_text(name).partition(":") for name, _ in calls.kinds.distinct]
        first_at, last_at = created(calls)
        row |= {
            "backend": _most_common([name or None if colon else None for name, colon, _ in backends], calls.kinds.counts()),
            "first_record_id": calls.numbers["record_id"].least(),
            "first_at": first_at,
            "last_at": last_at,
            "has_only_active": not ended,
            "main_thread_id": _most_common(calls.threads.distinct, calls.threads.counts()),
        }
    return row


def _most_common(kinds: Sequence[Any], counts: Sequence[int]) -> Any:
    told: Counter[Any] = Counter()
    for kind, count in zip(kinds, counts, strict=True):
        if kind is not None:
            told[kind] += count
    return max(sorted(told), key=told.__getitem__, default=None)
