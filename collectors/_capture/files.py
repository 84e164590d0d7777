"""The folder of one capture: what is written, what was done, and the seal at the end. Nothing outside of the folder is written.

While it is made, `.rca-partial` lies in it. `rca-bundle.json` is written last, in one go, with every file's size and SHA-256.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rca.errors import UsageError

__all__ = ["BUNDLE", "PARTIAL", "Folder", "instant", "is_full", "open_regular", "reason", "refuse_used"]

BUNDLE, PARTIAL = "rca-bundle.json", ".rca-partial"
SCHEMA = "rca.bundle/1"
BLOCK = 1 << 20


def instant(ns: int) -> str:
    """ISO 8601 in UTC with microseconds, of nanoseconds since 1970."""
    return f"{datetime.fromtimestamp(ns // 10**9, UTC):%Y-%m-%dT%H:%M:%S}.{ns // 1000 % 10**6:06d}Z"


def reason(error: BaseException) -> str:
    """Why something failed, in a line."""
    text = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return " ".join(f"{text or type(error).__name__}".split())[:400]


def is_full(error: OSError) -> bool:
    """Whether a disk is full or a quota is used up."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def open_regular(path: Path, *, owner: int | None = None, follow: bool = False) -> int:
    """A descriptor of a regular file, opened for reading without ever waiting. Links are followed only where asked for (as in /proc/PID/fd).

    Raises OSError. It is looked at before it is opened: opening a pipe to read could take bytes that are another's.
    """
    held = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        found = os.fstat(held)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "no regular file")
        if owner is not None and found.st_uid != owner:
            raise OSError(errno.EPERM, "it belongs to another user than the process that names it")
        return os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(held)


def refuse_used(root: Path) -> None:
    """Raise UsageError where something lies already."""
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UsageError(f"{root} is not empty: name a new folder with --out, each capture needs one of its own")


class Folder:
    """`<out>/<host>` of one job, and the record of what was done there."""

    def __init__(self, root: Path, host: str, clock: Callable[[], int]) -> None:
        refuse_used(root)
        root.mkdir(parents=True, exist_ok=True)
        self.root, self.host, self._clock = root, host, clock
        self.began_ns = clock()
        self.steps: list[dict[str, Any]] = []
        self.is_full = False
        self._is_sealed = False
        self.write(PARTIAL, _encoded({"schema_version": SCHEMA, "started_at": instant(self.began_ns), "is_partial": True, "host": host}))

    def note(self, step: str, status: str, why: str | None = None, **about: Any) -> None:
        """Record a step: ok, failed or skipped, and why."""
        row = {"step": step, "status": status, "why": why, "at": instant(self._clock())}
        self.steps.append(row | {key: value for key, value in about.items() if value is not None})

    @contextmanager
    def doing(self, step: str, **about: Any) -> Iterator[None]:
        """A step whose failure of the file system is recorded; the next step goes on."""
        try:
            yield
        except OSError as error:
            self.is_full = self.is_full or is_full(error)
            self.note(step, "failed", reason(error), **about)

    def write(self, name: str, data: bytes) -> None:
        """A whole file at once: it is there complete, or not at all."""
        if self._is_sealed:  # by work that was given up and still came to an end
            raise OSError("the capture is sealed")
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.rca-part")
        try:
            part.write_bytes(data)
            part.replace(path)
        except OSError as error:
            self.is_full = self.is_full or is_full(error)
            part.unlink(missing_ok=True)
            raise

    def write_json(self, name: str, value: object) -> None:
        """One document."""
        self.write(name, _encoded(value))

    def seal(self, about: dict[str, Any]) -> None:
        """Write the bundle's list, then take the mark of a partial capture away. Raises OSError, e.g. on a full disk."""
        document = {
            "schema_version": SCHEMA,
            "started_at": instant(self.began_ns),
            "ended_at": instant(self._clock()),
            "is_partial": False,
            "host": self.host,
            **about,
            "steps": self.steps,
            "files": list(self._files()),
        }
        self.write_json(BUNDLE, document)
        self._is_sealed = True
        (self.root / PARTIAL).unlink()

    def _files(self) -> Iterator[dict[str, Any]]:
        for path in sorted(p for p in self.root.rglob("*") if p.is_file() and p.name != PARTIAL):
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while block := file.read(BLOCK):
                    digest.update(block)
            yield {"path": path.relative_to(self.root).as_posix(), "size_bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _encoded(value: object) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()
