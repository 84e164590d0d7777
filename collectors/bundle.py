"""What `rca capture` says of itself: the list of a capture's files with their hashes, which host and ranks it is of, what failed.

Reads `rca-bundle.json` and, of a capture that was cut short, `.rca-partial` (`rca.bundle/1`), the facts of the host (`rca.host/1`) and the states
of its processes (`rca.processes/1`). Rows: `ranks`, `hosts`; versions, settings and hashes as `configs`; the host's own `host_addresses`. Skipped,
with the reason: files that are missing or differ from what was captured, steps that failed, and what a partial capture lacks.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from collectors._bundle_configs import addresses, of_host, of_processes
from collectors._kernel_prefix import host_name
from collectors._own_records import json_object
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("ranks", "hosts", "configs", "host_addresses")

BUNDLE, HOST, PROCESSES = "rca.bundle/1", "rca.host/1", "rca.processes/1"
MAX_BYTES: Final = 1 << 28
MAX_WORDS: Final = 400  # characters of a reason that are shown
MAX_BOOT_NS: Final = 4 * 10**18  # the year 2096
MAX_ZONE_S: Final = 15 * 3600
BLOCK: Final = 1 << 20
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = datetime(2000, 1, 1, tzinfo=UTC)  # a clock that was never set counts from 1970
_HEAD: Final = re.compile(rb'\s*\{\s*"schema_version"\s*:\s*"rca\.(?:bundle|host|processes)/1"')
_INT64: Final = 1 << 63


def claims(name: str, head: bytes) -> bool:
    """JSON that begins with one of these schema versions."""
    return _HEAD.match(head) is not None


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of one of the three documents, in its order."""
    document = json_object(source, MAX_BYTES)
    host = host_name(_text(document.get("host")))
    if document.get("schema_version") == PROCESSES:
        yield TABLES["ranks"], TABLES["ranks"].rows(list(_ranks(document.get("processes"), host, "main")))
        settings = of_processes(document.get("processes"), host, _instant(document.get("started_at")))
        yield TABLES["configs"], TABLES["configs"].rows(list(settings))
        return
    if document.get("schema_version") != BUNDLE:
        yield TABLES["configs"], TABLES["configs"].rows(list(of_host(document, host, _instant(document.get("started_at")))))
        yield TABLES["host_addresses"], TABLES["host_addresses"].rows(list(addresses(document, host)))
        return
    if document.get("is_partial") is not False:
        yield Skip(None, "this capture was cut short: what it had by then is read, the rest was not looked at")
    yield from _failed_steps(document.get("steps"))
    yield from _changed_files(source, document.get("files"))
    yield TABLES["ranks"], TABLES["ranks"].rows(list(_ranks(document.get("ranks"), host, None)))
    yield TABLES["hosts"], TABLES["hosts"].rows(list(_host(document, host)))


def _text(value: Any) -> str | None:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) and value else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64 else None


def _instant(value: Any) -> datetime | None:
    """The instant that a capture writes; None for what is none, names no zone, or lies where no process of a GPU job can have begun."""
    try:
        at = datetime.fromisoformat(_text(value) or "")
        return at.astimezone(UTC) if at.tzinfo is not None and at > _FIRST else None
    except (ValueError, OverflowError):
        return None


def _entries(value: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    for place, entry in enumerate(value if isinstance(value, list) else ()):
        if isinstance(entry, dict):
            yield place, entry


def _ranks(value: Any, host: str | None, role: str | None) -> Iterator[dict[str, object]]:
    """Processes that are a rank themselves; `role` = how these are marked, None where only they are listed."""
    for place, entry in _entries(value):
        rank = _number(entry.get("rank"))
        if rank is not None and rank >= 0 and (role is None or entry.get("role") == role):
            about = {name: _number(entry.get(name)) for name in ("local_rank", "pid")}
            began = _instant(entry.get("started_at"))
            yield {"record": f"E{place}", "rank": rank, "host": host, "role": "trainer", "started_at": began, **about}


def _host(document: dict[str, Any], host: str | None) -> Iterator[dict[str, object]]:
    boot, zone = _number(document.get("boot_time_ns")), _number(document.get("zone_offset_s"))
    if host is not None and boot is not None and 0 < boot < MAX_BOOT_NS:
        known = zone is not None and abs(zone) <= MAX_ZONE_S
        at = _EPOCH + timedelta(microseconds=boot // 1000)
        yield {"record": "E0", "host": host, "boot_at": at, "zone_offset_s": float(zone) if known and zone is not None else None}


def _failed_steps(value: Any) -> Iterator[Skip]:
    """What the capture could not do. What it left out by choice is no trouble."""
    for place, entry in _entries(value):
        if entry.get("status") == "failed":
            yield Skip(f"E{place}", f"not captured: {_words(entry.get('step'))}: {_words(entry.get('why'))}")


def _words(value: Any) -> str:
    return " ".join((_text(value) or "no reason given").split())[:MAX_WORDS]


def _changed_files(source: Source, value: Any) -> Iterator[Skip]:
    """Files that lie beside and are not what was captured. Inside an archive the neighbours cannot be looked at."""
    folder = source.file.parent
    if source.file.name != PurePosixPath(source.path).name:
        return
    for place, entry in _entries(value):
        name, digest = _text(entry.get("path")), _text(entry.get("sha256"))
        if name is None or digest is None or ".." in PurePosixPath(name).parts or name.startswith("/") or "\0" in name:
            yield Skip(f"E{place}", "names no file of the capture")
        elif why := _difference(folder / name, _number(entry.get("size_bytes")), digest):
            yield Skip(f"E{place}", f"{_words(name)}: {why}")


def _difference(path: Path, size: int | None, digest: str) -> str | None:
    """Why a file is not the one that was captured; None where it is. Only regular files are opened."""
    try:
        if path.is_symlink() or not path.is_file():
            return "captured, but not there any more"
        if size is not None and path.stat().st_size != size:
            return "changed since it was captured: another size"
        found = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                found.update(block)
    except OSError as error:
        return f"cannot be compared: {error.strerror or error}"
    return None if found.hexdigest() == digest else "changed since it was captured: other bytes"
