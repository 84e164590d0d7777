"""Files that this tool keeps: written whole or not at all, and read only where they are plain files of a sensible size.

Whoever reads while one is written sees the old file or the new one. What lies in a folder of records may come from anybody: a pipe blocks for ever,
a link to a device never ends, so neither is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Final
from uuid import uuid4

from rca.errors import UsageError
from rca.sources import WORKSPACE

__all__ = ["MAX_BYTES", "is_plain", "plain_bytes", "put", "put_folders"]

MAX_BYTES: Final = 1 << 26  # of one record with its history, of the notes on one incident


def put(target: Path, text: str, *, else_: str = "") -> Path:
    """Write the text as UTF-8: beside the target, flushed to the disk, moved in. Raises UsageError that names the file, and `else_` what to do."""
    draft = target.with_name(f".{target.name}{WORKSPACE}{uuid4().hex}")  # left behind by a kill, it is no evidence
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written ({error.strerror or error}){f'. {else_}' if else_ else ''}") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return target


def put_folders(out: Path, files: Iterable[tuple[str, str]]) -> None:
    """Write many files, each under `folder/...` of `out`, and move the folders in when all are written. Raises UsageError that names the file; then
    nothing of them is left."""
    made_here, draft, target = not out.exists(), out / f".{WORKSPACE}{uuid4().hex}", out
    moved: list[Path] = []
    try:
        draft.mkdir(parents=True)
        for path, text in files:
            target = draft / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
        for folder in sorted(draft.iterdir()):
            target = folder
            moved.append(folder.rename(out / folder.name))
        moved.clear()
    except OSError as error:
        shown = out / target.relative_to(draft) if target.is_relative_to(draft) else target
        raise UsageError(f"{shown}: cannot be written ({error.strerror or error}): nothing was kept; name another --out") from None
    finally:
        for folder in (draft, *moved):
            rmtree(folder, ignore_errors=True)
        if made_here and out.is_dir() and not any(out.iterdir()):
            out.rmdir()


def is_plain(file: Path) -> bool:
    """Whether a regular file of at most MAX_BYTES lies there itself: no pipe, device or folder, and no link, wherever it leads."""
    try:
        status = file.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= MAX_BYTES


def plain_bytes(file: Path) -> bytes:
    """The bytes of such a file. Raises OSError for anything else, without waiting for whoever holds the other end."""
    handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as opened:
        if not is_plain(file) or not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"no plain file of at most {MAX_BYTES:,} bytes")
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(f"larger than {MAX_BYTES:,} bytes")
    return data
