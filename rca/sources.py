"""Finding the raw files: any folder, file or archive, nothing to configure, nothing followed out of the folder, nothing opened that blocks."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from rca import archives
from rca.errors import UsageError
from rca.types import Compression, Source

__all__ = ["IGNORED_NAMES", "Inventory", "Unreadable", "inventory", "inventory_of"]

IGNORED_NAMES = frozenset({"truth.json", "case.duckdb", ".git"})  # a drill's answer is never read; a case is not evidence
WORKSPACE = ".case-tmp-"  # part of the name of the folder a case is built in, which may lie inside the evidence
PARTS = ".case-parts"  # end of the name of the folder with the parts of a case
HEAD = 560  # bytes that tell an archive
CASE = "a case file: it is read when it is named itself (`rca diagnose FILE`), unpacked"
MANIFEST, EXPORT = "manifest.json", b"rca.export/"  # of what `rca export` writes
_DUCKDB = b"DUCK"
_COMPRESSED: tuple[tuple[bytes, Compression], ...] = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\x00", "xz"),
)


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

        lines = [f"{s.path}\0{s.size_bytes}\0{s.modified_at}" for s in self.sources]
        lines += [u.path for u in self.unreadable if u.why != CASE]  # one that this very evidence made may lie beside it
        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def inventory(root: Path, spool: Path) -> Inventory:
    """All raw files below `root` (a folder, a file or an archive). Archives are unpacked into `spool` under neutral names."""
    if not root.exists():
        raise UsageError(f"{root}: no such file or folder. Name the folder (or archive) that holds the dumps.")
    refused: list[Unreadable] = []
    return inventory_of(root, _walk(root, refused), refused, spool)


def inventory_of(root: Path, files: Iterable[tuple[Path, str]], refused: list[Unreadable], spool: Path) -> Inventory:
    """Files with the names they are known by, and those known as unreadable before (a list that grows while the files are asked for)."""
    found = _Found(spool, num_folders=[len(list(spool.iterdir())) if spool.exists() else 0])
    for path, name in files:
        try:
            _add(path, name, found)
        except OSError as error:
            found.unreadable.append(Unreadable(name, f"cannot be opened: {error.strerror or error}"))
    return Inventory(
        root, tuple(sorted(found.sources, key=lambda s: s.path)), tuple(sorted([*refused, *found.unreadable], key=lambda u: u.path))
    )


@dataclass
class _Found:
    """What was found so far, and where archives are unpacked."""

    spool: Path
    sources: list[Source] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    num_folders: list[int] = field(default_factory=list)  # below the spool: one number


def _walk(root: Path, unreadable: list[Unreadable]) -> Iterator[tuple[Path, str]]:
    if not root.is_dir():
        yield root, archives.printable(root.name)
        return
    real = root.resolve()
    for folder, folders, files in os.walk(
        root, onerror=lambda e: unreadable.append(Unreadable(archives.printable(str(e.filename)), f"cannot be listed: {e.strerror}"))
    ):
        folders[:] = sorted(name for name in folders if name not in IGNORED_NAMES and WORKSPACE not in name and not name.endswith(PARTS))
        for name in sorted(files):
            path = Path(folder) / name
            if name in IGNORED_NAMES or WORKSPACE in name:
                continue
            shown = archives.printable(path.relative_to(root).as_posix())
            if path.is_symlink() and not _stays_inside(path, real):
                unreadable.append(Unreadable(shown, "a link that leaves the folder or leads nowhere: not followed"))
                continue
            yield path, shown


def _stays_inside(link: Path, real: Path) -> bool:
    try:
        return link.resolve(strict=True).is_relative_to(real)
    except (OSError, RuntimeError):  # it leads nowhere, or round in a circle
        return False


def _add(path: Path, name: str, found: _Found, room: archives.Room | None = None) -> None:
    """A file as a source, or what is in it as sources, where it is an archive. `room` is that of the archive it lies in."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        found.unreadable.append(Unreadable(name, "no regular file (a pipe, socket or device): not opened"))
        return
    with path.open("rb") as file:
        start = file.read(HEAD)
    if start[8:12] == _DUCKDB:
        found.unreadable.append(Unreadable(name, CASE))
        return
    if name.rpartition("/")[2] == MANIFEST and EXPORT in start[:200]:
        found.unreadable.append(
            Unreadable(name, "an export by `rca export` lies in this folder: name the folder itself (unpacked) to read it")
        )
        return
    compression: Compression = next((name for magic, name in _COMPRESSED if start.startswith(magic)), "none")
    modified = datetime.fromtimestamp(status.st_mtime, UTC) if abs(status.st_mtime) < 1 << 36 else None
    source = Source(name, path, status.st_size, compression, modified)
    kind = archives.kind_of(source, start if compression == "none" else source.head[:HEAD])
    if not kind:
        found.sources.append(source)
        return
    inside = replace(room, depth=room.depth + 1) if room else archives.Room.of(status.st_size, found.num_folders)
    if inside.depth > archives.MAX_DEPTH:
        found.unreadable.append(Unreadable(name, f"more than {archives.MAX_DEPTH} archives in one another: not opened"))
        return
    for part in archives.unpack(source, kind, found.spool, inside):
        if isinstance(part, archives.Problem):
            found.unreadable.append(Unreadable(part.name, part.why))
        elif part.name == name:  # no folder after all: a document that lay compressed
            found.sources.append(source)
        elif part.name.rpartition("/")[2] not in IGNORED_NAMES:
            _add(part.file, part.name, found, inside)
    if room:
        room.bytes_left, room.members_left = inside.bytes_left, inside.members_left
