"""Finding the raw files: any folder, file or archive, nothing to configure, nothing followed out of the folder, nothing opened that blocks."""

from __future__ import annotations

import math
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from rca.errors import UsageError
from rca.types import Compression, Source

__all__ = ["Inventory", "Unreadable", "inventory"]

IGNORED_NAMES = frozenset({"truth.json", "case.duckdb", ".git"})  # a drill's answer is never read; a case is not evidence
MAX_ARCHIVE_FILES = 2_000_000
MAX_UNPACKED = (8 << 30, 200)  # bytes that any archive may unpack to, or so many times its own size, whichever is more
WORKSPACE = ".case-tmp-"  # part of the name of the folder a case is built in, which may lie inside the evidence
_GZIP, _ZSTD, _DUCKDB = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"DUCK"


@dataclass(frozen=True)
class Unreadable:
    """A file that was found but cannot be evidence, and why."""

    path: str
    why: str


@dataclass(frozen=True)
class Inventory:
    """The raw files of a case, by path, and those that cannot be read."""

    root: Path
    sources: tuple[Source, ...]
    unreadable: tuple[Unreadable, ...]

    @property
    def fingerprint(self) -> str:
        """Changes when a file is added, removed, resized or rewritten."""
        import hashlib

        lines = [f"{s.path}\0{s.size_bytes}\0{s.modified_at}" for s in self.sources] + [u.path for u in self.unreadable]
        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def inventory(root: Path, spool: Path) -> Inventory:
    """All raw files below `root` (a folder, a file or a tar archive). Archives are unpacked into `spool` under neutral names."""
    if not root.exists():
        raise UsageError(f"{root}: no such file or folder. Name the folder (or .tar.gz) that holds the dumps.")
    sources: list[Source] = []
    unreadable: list[Unreadable] = []
    for path, name in _walk(root, unreadable):
        try:
            _add(path, name, spool, sources, unreadable)
        except OSError as error:
            unreadable.append(Unreadable(name, f"cannot be opened: {error.strerror or error}"))
    return Inventory(root, tuple(sorted(sources, key=lambda s: s.path)), tuple(sorted(unreadable, key=lambda u: u.path)))


def _walk(root: Path, unreadable: list[Unreadable]) -> Iterator[tuple[Path, str]]:
    if not root.is_dir():
        yield root, printable(root.name)
        return
    real = root.resolve()
    for folder, folders, files in os.walk(
        root, onerror=lambda e: unreadable.append(Unreadable(printable(str(e.filename)), f"cannot be listed: {e.strerror}"))
    ):
        folders[:] = sorted(name for name in folders if name not in IGNORED_NAMES and WORKSPACE not in name)
        for name in sorted(files):
            path = Path(folder) / name
            if name in IGNORED_NAMES or WORKSPACE in name:
                continue
            shown = printable(path.relative_to(root).as_posix())
            if path.is_symlink() and not _stays_inside(path, real):
                unreadable.append(Unreadable(shown, "a link that leaves the folder or leads nowhere: not followed"))
                continue
            yield path, shown


def printable(name: str) -> str:
    """A file name that can be written out: bytes that are no UTF-8 are shown as replacement characters."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _stays_inside(link: Path, real: Path) -> bool:
    try:
        return link.resolve(strict=True).is_relative_to(real)
    except (OSError, RuntimeError):  # it leads nowhere, or round in a circle
        return False


def _add(path: Path, name: str, spool: Path, sources: list[Source], unreadable: list[Unreadable]) -> None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        unreadable.append(Unreadable(name, "no regular file (a pipe, socket or device): not opened"))
        return
    with path.open("rb") as file:
        start = file.read(560)
    if start[8:12] == _DUCKDB:
        return  # a case of ours, whatever its name
    compression: Compression = "gzip" if start[:2] == _GZIP else "zstd" if start[:4] == _ZSTD else "none"
    modified = datetime.fromtimestamp(status.st_mtime, UTC) if abs(status.st_mtime) < 1 << 36 else None
    source = Source(name, path, status.st_size, compression, modified)
    head = start if compression == "none" else source.head[:560]
    if head[257:262] == b"ustar":
        _unpack(source, spool, sources, unreadable)
    else:
        sources.append(source)


def _unpack(archive: Source, spool: Path, sources: list[Source], unreadable: list[Unreadable]) -> None:
    """Regular members of a tar archive as files of their own, under numbered names: a member's name is never used as a path."""
    folder = spool / f"{len(list(spool.iterdir())):04d}" if spool.exists() else spool / "0000"
    folder.mkdir(parents=True)
    budget = max(MAX_UNPACKED[0], MAX_UNPACKED[1] * archive.size_bytes)
    try:
        with archive.open() as raw, tarfile.open(fileobj=raw, mode="r|") as tar:
            for number, member in enumerate(tar):
                name = f"{archive.path}/{printable(member.name.lstrip('./'))}"
                if number >= MAX_ARCHIVE_FILES:
                    unreadable.append(Unreadable(archive.path, f"more than {MAX_ARCHIVE_FILES:,} members: the rest is not read"))
                    break
                if not member.isreg() or Path(member.name).name in IGNORED_NAMES:
                    continue
                budget -= member.size
                content = tar.extractfile(member)
                if budget < 0 or content is None:
                    unreadable.append(Unreadable(name, "the archive unpacks to far more than its size: not read further"))
                    break
                target = folder / f"{number:07d}"
                _copy(content, target)
                moment = min(max(float(member.mtime), 0.0), float(1 << 35)) if math.isfinite(member.mtime) else 0.0
                os.utime(target, (moment, moment))
                _add(target, name, spool, sources, unreadable)
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        unreadable.append(Unreadable(archive.path, f"the archive breaks off ({error}); its whole members were read"))
    except Exception as error:
        if not type(error).__module__.startswith(("zlib", "zstd")) and type(error).__name__ not in (
            "error",
            "ZstdError",
        ):
            raise
        unreadable.append(Unreadable(archive.path, f"the archive breaks off ({error}); its whole members were read"))


def _copy(content: IO[bytes], target: Path) -> None:
    with target.open("wb") as out:
        while part := content.read(1 << 20):
            out.write(part)
