"""Archives as folders: the regular members of a tar or zip become files under numbered names. Told by content; a member's name is never a path.

Nothing in an archive is trusted: links and devices are no files, and bytes, members and depth are bounded over all that one archive holds, those
nested in it too. What is torn gives its whole members and the reason. A zip that is the format of something else (a torch checkpoint, a package, a
spreadsheet, arrays) is a file, not a folder.
"""

from __future__ import annotations

import errno
import lzma
import math
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from rca import torn_zips
from rca.types import Source

__all__ = ["MAX_DEPTH", "MAX_MEMBERS", "MAX_UNPACKED", "Member", "Problem", "Room", "kind_of", "printable", "unpack"]

MAX_MEMBERS: Final = 2_000_000
MAX_DEPTH: Final = 16  # archives in archives
MAX_UNPACKED = (8 << 30, 200)  # bytes that an archive may unpack to in all, or so many times its own size, whichever is more
MAX_DIRECTORY: Final = 256 << 20  # of a zip; a longer one is not loaded: the members are then found one after the other
TAR_HEAD: Final = 512
_FORMATS: Final = re.compile(  # zips that are one document: by a member that only they have
    r"(?:^|/)(?:data\.pkl|constants\.pkl|\.data/serialization_id|\.format_version)$"  # torch
    r"|^META-INF/MANIFEST\.MF$|\.dist-info/(?:WHEEL|METADATA)$|^EGG-INFO/"
    r"|^\[Content_Types\]\.xml$|^mimetype$|^AndroidManifest\.xml$|^model\.weights\.h5$"
)
_TORN: Final = "the archive breaks off ({}); its whole members were read"
_BOMB: Final = "the archive unpacks to far more than its size: not read further"
_CLOSED: Final = "encrypted: unpack it with its password first"


@dataclass(frozen=True)
class Member:
    """A regular file of an archive, unpacked."""

    name: str  # "archive/name in it", for people
    file: Path


@dataclass(frozen=True)
class Problem:
    """A member or archive that could not be unpacked, and why."""

    name: str
    why: str


@dataclass
class Room:
    """What one archive named by a person may still unpack to, with all that is nested in it."""

    bytes_left: int
    members_left: int
    depth: int = 0
    num_folders: list[int] = field(default_factory=lambda: [0])  # shared by all archives of one spool

    @classmethod
    def of(cls, size_bytes: int, num_folders: list[int]) -> Room:
        """The room of an archive of this size."""
        return cls(max(MAX_UNPACKED[0], MAX_UNPACKED[1] * size_bytes), MAX_MEMBERS, num_folders=num_folders)


def printable(name: str) -> str:
    """A file name that can be written out: bytes that are no UTF-8 are shown as replacement characters."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def kind_of(source: Source, head: bytes) -> str:
    """ "tar" or "zip" where the decompressed bytes begin like one that holds files, else ""."""
    if head[:4] == torn_zips.LOCAL:
        return "" if source.compression == "none" and _is_document(source) else "zip"
    if len(head) < TAR_HEAD or (head[257:262] != b"ustar" and not head[148:156].strip(b" \0").isdigit()):
        return ""
    try:  # also those of before POSIX, which have nothing but a sum
        tarfile.TarInfo.frombuf(head[:TAR_HEAD], "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError, OverflowError):
        return "tar" if head[257:262] == b"ustar" else ""
    return "tar"


def unpack(archive: Source, kind: str, spool: Path, room: Room) -> Iterator[Member | Problem]:
    """Every regular member as a file below `spool`, and what could not be had. The files live as long as the spool."""
    room.num_folders[0] += 1
    folder = spool / f"{room.num_folders[0]:04d}"
    try:
        folder.mkdir(parents=True)
        if kind == "tar":
            yield from _tar(archive, folder, room)
        else:
            yield from _zip(archive, folder, room)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        yield Problem(archive.path, _TORN.format(error))
    except OSError as error:
        yield Problem(archive.path, _no_space(folder) if _is_full(error) else _TORN.format(error))
    except Exception as error:
        if not type(error).__module__.startswith("zstd") and type(error).__name__ != "ZstdError":
            raise
        yield Problem(archive.path, _TORN.format(error))


def _is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _no_space(folder: Path) -> str:
    return f"no space left to unpack it in {folder.parent}: free some, or set XDG_CACHE_HOME to a larger disk; what fitted was read"


def _tar(archive: Source, folder: Path, room: Room) -> Iterator[Member | Problem]:
    with archive.open() as raw, tarfile.open(fileobj=raw, mode="r|") as tar:
        for number, member in enumerate(tar):
            room.members_left -= 1
            if room.members_left < 0:
                yield Problem(archive.path, f"more than {MAX_MEMBERS:,} members: the rest is not read")
                return
            if not member.isreg():
                continue
            name = _label(archive, member.name)
            content = tar.extractfile(member) if member.size <= room.bytes_left else None
            if content is None:
                room.bytes_left = -1
                yield Problem(name, _BOMB)
                return
            target = folder / f"{number:07d}"
            _copy(_parts(content), target, room)
            moment = min(max(float(member.mtime), 0.0), float(1 << 35)) if math.isfinite(member.mtime) else 0.0
            os.utime(target, (moment, moment))
            yield Member(name, target)


def _label(archive: Source, name: str) -> str:
    return f"{archive.path}/{printable(name.lstrip('./'))}"


class _TooMuch(Exception):
    """More bytes than there is room for."""


def _copy(parts: Iterable[bytes], target: Path, room: Room) -> None:
    """All or nothing of it."""
    is_whole = False
    try:
        with target.open("wb") as out:
            for part in parts:
                room.bytes_left -= len(part)
                if room.bytes_left < 0:
                    raise _TooMuch
                out.write(part)
        is_whole = True
    finally:
        if not is_whole:
            target.unlink(missing_ok=True)


def _parts(content: IO[bytes]) -> Iterator[bytes]:
    while part := content.read(1 << 20):
        yield part


def _zip(archive: Source, folder: Path, room: Room) -> Iterator[Member | Problem]:
    if archive.compression != "none":  # a zip is read from its end
        whole = folder / "zip"
        try:
            _copy(archive.blocks(), whole, room)
        except _TooMuch:
            yield Problem(archive.path, _BOMB)
            return
        archive = Source(archive.path, whole, whole.stat().st_size)
        if _is_document(archive):
            yield Member(archive.path, whole)
            return
    opened = _opened(archive.file)
    if opened is None:
        yield from _one_after_the_other(archive, folder, room)
        return
    with opened:
        for number, member in enumerate(opened.infolist()):
            room.members_left -= 1
            if room.members_left < 0:
                yield Problem(archive.path, f"more than {MAX_MEMBERS:,} members: the rest is not read")
                return
            mode = member.external_attr >> 16
            if member.is_dir() or (stat.S_IFMT(mode) and not stat.S_ISREG(mode)):
                continue
            name, target = _label(archive, member.filename), folder / f"{number:07d}"
            if member.flag_bits & 1:
                yield Problem(name, _CLOSED)
                continue
            try:
                with opened.open(member) as content:
                    _copy(_parts(content), target, room)
            except _TooMuch:
                yield Problem(name, _BOMB)
                return
            except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
                yield Problem(name, f"cannot be unpacked ({error})")
                continue
            os.utime(target, (moment := _moment(member.date_time), moment))
            yield Member(name, target)


def _moment(stamp: tuple[int, int, int, int, int, int]) -> float:
    """A zip's stamp has no zone: a hint only, like every file's."""
    try:
        return max(datetime(*stamp, tzinfo=UTC).timestamp(), 0.0)
    except ValueError:
        return 0.0


def _opened(file: Path) -> zipfile.ZipFile | None:
    """A zip whose directory can be read; None where it is torn, or too long to load."""
    with file.open("rb") as raw:
        size = raw.seek(0, os.SEEK_END)
        raw.seek(max(size - 65_557, 0))
        tail = raw.read()
    end = tail.rfind(b"PK\x05\x06")
    if end < 0 or (int.from_bytes(tail[end + 12 : end + 16], "little") >= MAX_DIRECTORY and not _is_long(tail[:end])):
        return None
    with suppress(zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OSError):
        return zipfile.ZipFile(file)
    return None


def _is_long(before: bytes) -> bool:
    """Whether a zip64 record stands before the end, with a directory that can be loaded."""
    at = before.rfind(b"PK\x06\x06")
    return at >= 0 and int.from_bytes(before[at + 40 : at + 48], "little") < MAX_DIRECTORY


def _is_document(archive: Source) -> bool:
    opened = _opened(archive.file)
    if opened is None:
        names = [name for name in torn_zips.names_in(archive.head) if name]
    else:
        with opened:
            names = opened.namelist()
    files = [name for name in names if not name.endswith("/")]
    return any(_FORMATS.search(name) for name in names) or (bool(files) and all(name.endswith(".npy") for name in files))


def _one_after_the_other(archive: Source, folder: Path, room: Room) -> Iterator[Member | Problem]:
    """The whole members of a zip without a directory."""
    why = "its directory is missing"
    try:
        with archive.file.open("rb") as raw:
            for number, (name, content) in enumerate(torn_zips.members(raw)):
                room.members_left -= 1
                if room.members_left < 0:
                    yield Problem(archive.path, f"more than {MAX_MEMBERS:,} members: the rest is not read")
                    return
                target = folder / f"{number:07d}"
                _copy(content, target, room)
                os.utime(target, (0, 0))
                if not name.endswith("/"):
                    yield Member(_label(archive, name), target)
    except _TooMuch:
        yield Problem(archive.path, _BOMB)
        return
    except (EOFError, ValueError, zlib.error) as error:
        why = str(error)
    yield Problem(archive.path, _TORN.format(why))
