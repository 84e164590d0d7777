"""PyTorch flight-recorder dumps: pickle or JSON, recorder 1.x to 2.10, NCCL, gloo and torchcomms, whole or torn.

Every key is optional, unknown keys are passed over. A pickle is read by an unpickler that refuses every import, so nothing in a dump runs.
`read_header` reads what stands before the calls (a few KB): enough to see who lags, long before the calls themselves are read.
"""

from __future__ import annotations

import json
import pickle
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from collectors._dump_columns import columns, rank_of_content, stacks
from collectors._dump_fields import Values, fields, fields_one_by_one
from collectors._dump_groups import Groups
from collectors._groups import plain_text
from collectors._unpickle import MAX_FILE_BYTES, PickleRefused, cut_header, load, salvage
from rca.errors import EvidenceError
from rca.tables import TABLES, Table
from rca.types import Skip, Source

EMITS = ("dumps", "groups", "memberships", "group_status", "collectives", "stack_frames")
READS_PICKLES = True

_KEYS = (
    b"pg_config",
    b"pg_status",
    b"comm_lib_version",
    b"nccl_version",
    b"nccl_comm_state",
    b"profiling_name",
    b"collective_seq_id",
)
_JSON_START = re.compile(rb"\s*[\[{]\s*[\[{\"]")
HEADER_BYTES = (65536, 4 << 20)  # first try, last try: 16,384 ranks make a header of ~0.2 MB
MAX_ENTRIES = 20_000_000

Rows = Iterator[tuple[Table, pl.DataFrame] | Skip]


def claims(name: str, head: bytes) -> bool:
    """A pickle (protocol 2 or later) or JSON text whose first bytes hold a key that only recorder dumps have."""
    is_pickle = head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    if not is_pickle and not _JSON_START.match(head):
        return False
    if not is_pickle and b'"communicators"' in head and b'"entries"' not in head:
        return False  # a status report of NCCL RAS, which names the version by the same key
    if any(key in head for key in _KEYS):
        return True
    return is_pickle and b"entries" in head and b"version" in head


def read(source: Source) -> Rows:
    """All rows of one dump; a torn file gives its good prefix and a Skip that says where it ends."""
    document, is_json, torn = _document(source)
    if torn:
        yield Skip(None, torn)
    yield from _tables(source, document, is_json=is_json, is_torn=bool(torn), with_entries=True)


def read_header(source: Source) -> Rows | None:
    """The rows that the header alone gives (no calls); None when the header cannot be read by itself."""
    for num_bytes in HEADER_BYTES:
        head = source.head
        if num_bytes > len(head) and source.size_bytes > len(head):
            with source.open() as file:
                head = file.read(num_bytes)
        header = cut_header(head) if head[:1] == b"\x80" else None
        if header is not None:
            return _tables(source, header, is_json=False, is_torn=False, with_entries=False)
        if len(head) < num_bytes:
            break
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


def _tables(source: Source, document: dict[str, Any], *, is_json: bool, is_torn: bool, with_entries: bool) -> Rows:
    entries = document.get("entries") if with_entries else []
    if entries is None:
        entries = []
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
        raise EvidenceError(source.path, None, "`entries` is no list of calls")
    good = entries if set(map(type, entries)) <= {dict} else [e for e in entries if isinstance(e, dict)]
    if len(good) < len(entries):
        yield Skip(None, f"{len(entries) - len(good)} of {len(entries)} entries are no calls")
    try:
        dump = _framed(source, document, fields(good) if good else {}, good, is_torn=is_torn)
    except NOT_AS_USUAL:
        values, skipped = fields_one_by_one(good)
        yield from skipped
        dump = _framed(source, document, values, good, is_torn=is_torn)
    if dump.doubt:
        yield Skip(None, dump.doubt)
    if good:
        yield TABLES["stack_frames"], TABLES["stack_frames"].rows(dump.stacks)
        yield TABLES["collectives"], dump.calls
    yield TABLES["groups"], TABLES["groups"].rows(dump.groups.rows())
    yield TABLES["memberships"], dump.groups.memberships(dump.rank)
    yield TABLES["group_status"], TABLES["group_status"].rows(dump.groups.status_rows(dump.rank))
    row = _dump_row(document, dump) | {"format": "json" if is_json else "pickle", "is_torn": is_torn}
    yield TABLES["dumps"], TABLES["dumps"].rows([row if with_entries else row | {"num_entries": None}])


@dataclass(frozen=True)
class _Dump:
    """One dump as rows."""

    groups: Groups
    rank: int | None
    doubt: str
    calls: pl.DataFrame
    stacks: list[dict[str, Any]]
    values: Values


def _framed(source: Source, document: dict[str, Any], values: Values, entries: Sequence[dict[str, Any]], *, is_torn: bool) -> _Dump:
    groups = Groups(document, values, is_torn=is_torn)
    rank, doubt = rank_of_content(source, groups, values)
    stack_ids, frames = stacks(entries)
    table = TABLES["collectives"]
    calls = columns(values, groups, rank, stack_ids, table) if entries else table.frame()
    return _Dump(groups, rank, doubt, calls, frames, values)


def _dump_row(document: dict[str, Any], dump: _Dump) -> dict[str, Any]:
    calls = dump.calls
    row: dict[str, Any] = {
        "record": "E0",
        "rank": dump.rank,
        "version": plain_text(document.get("version"))[:40] or None,
        "num_entries": calls.height,
    }
    if calls.height:
        ended = "completed" in dump.values["state"] or True in dump.values["retired"]
        row |= {
            "backend": _most_common(calls["backend"].to_list()),
            "first_record_id": calls["record_id"].min(),
            "first_at": calls["created_at"].min(),
            "last_at": calls["created_at"].max(),
            "has_only_active": not ended,
            "main_thread_id": _most_common(dump.values["thread_id"]),
        }
    return row


def _most_common(values: Sequence[Any]) -> Any:
    kinds = sorted(kind for kind in set(values) if kind is not None)
    return max(kinds, key=values.count, default=None)


__all__: Sequence[str] = ["EMITS", "claims", "read", "read_header"]
