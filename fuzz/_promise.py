"""What every collector owes, whatever the bytes: nothing raised but EvidenceError, rows of its declared tables, in bounded time."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from functools import cache
from pathlib import Path
from types import ModuleType

from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import HEAD_BYTES, Skip, Source

__all__ = ["MB", "S_PER_MB", "Broken", "Slow", "allowed_s", "keep"]

MB = 1e6
S_PER_MB = 2.0  # CPU seconds to recognise and read, as CONTRIBUTING.md promises
FLOOR_S = 2.0  # however small the file
NAME = "rank_3.log"


class Broken(AssertionError):
    """A collector gave what is no row of its tables."""


class Slow(AssertionError):
    """A collector took longer than its input allows."""


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="firstfault-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def allowed_s(num_bytes: int) -> float:
    """CPU seconds that an input of this size may take."""
    return max(FLOOR_S, S_PER_MB * num_bytes / MB)


def keep(collector: ModuleType, data: bytes, *, patience: float = 1.0) -> float:
    """Recognise and read the bytes as a file; gives the CPU seconds it took.

    Raises whatever the collector raises besides EvidenceError, Broken, and Slow where it takes `patience` times what is allowed.
    """
    file = _folder() / "input"
    file.write_bytes(data)
    began = time.process_time()
    if collector.claims(NAME, data[:HEAD_BYTES]) not in (True, False):
        raise Broken("claims says neither yes nor no")
    try:
        for item in collector.read(Source(NAME, file, len(data))):
            _look_at(collector, item)
    except EvidenceError as error:
        if not error.why:
            raise Broken("an error without a reason") from error
    took_s = time.process_time() - began
    if took_s > patience * allowed_s(len(data)):
        raise Slow(f"{took_s:.1f} s of CPU for {len(data)} bytes")
    return took_s


def _look_at(collector: ModuleType, item: object) -> None:
    if isinstance(item, Skip):
        if not item.why:
            raise Broken("a record is skipped without a reason")
        return
    table, frame = item  # type: ignore[misc]
    if table is not TABLES[table.name] or table.name not in collector.EMITS:
        raise Broken(f"rows of {table.name}, which is not among its tables")
    if list(frame.schema.items()) != list(table.schema.items()):
        raise Broken(f"rows of {table.name} with other columns than declared")
