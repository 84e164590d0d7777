"""Evidence in object stores: s3://, gs:// and az:// are listed, fetched into this session's folder, and never written to.

What is reached through which package is fsspec's business; so are credentials and endpoints, by the usual variables of s3fs, gcsfs and adlfs. An
object's name is never a path on this machine: it lies under a number, and its name is kept beside it, so that hosts and ranks in it are found.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rca.errors import UsageError

if TYPE_CHECKING:
    from rca.sources import Inventory

__all__ = ["Object", "fetch", "is_remote", "listed", "recall", "remember", "store_of"]

EXTRAS: Final = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
MAX_OBJECTS: Final = 1_000_000
MAX_OBJECT_BYTES: Final = 8 << 30  # a larger one is a checkpoint's, and no reader takes it whole
SPARE_BYTES: Final = 256 << 20  # left free for the case
AT_ONCE: Final = 8
_THEIRS: Final = (
    "botocore",
    "aiobotocore",
    "aiohttp",
    "s3fs",
    "gcsfs",
    "google",
    "adlfs",
    "azure",
    "fsspec",
    "requests",
    "urllib3",
    "asyncio",
    "concurrent",
)
T = TypeVar("T")


@dataclass(frozen=True)
class Object:
    """An object of a store."""

    key: str  # as the store knows it
    name: str  # below what was asked for; the last part of the key, where it is the object itself
    size_bytes: int
    tag: str  # another one when its bytes change, where the store says so
    modified_at: datetime | None


def is_remote(path: str) -> bool:
    """Whether a path names an object store (also after `pathlib` took one of its slashes)."""
    scheme, found, _ = path.partition(":/")
    return bool(found) and scheme.lower() in EXTRAS


def store_of(url: str) -> tuple[Any, str]:
    """The file system of fsspec for an address, and the path in it. Raises UsageError that says what to install."""
    scheme, _, rest = url.partition(":/")
    extra = EXTRAS[scheme.lower()]
    rest = rest.strip("/")
    if not rest:
        raise UsageError(f"{url}: names no bucket; wanted is {scheme}://BUCKET/FOLDER")
    try:
        from fsspec.core import url_to_fs

        whole = f"{scheme.lower()}://{rest}"
        store, path = _asked(url, lambda: url_to_fs(whole, use_listings_cache=False, skip_instance_cache=True))
    except ImportError as error:
        raise UsageError(f"{url}: {error.name or 'a package'} is not installed: pip install 'firstfault[{extra}]'") from None
    return store, str(path).rstrip("/")


def listed(store: Any, path: str, url: str) -> list[Object]:
    """Every object below a path, or the one that it names, by name. Raises UsageError where there is none or the store does not answer."""
    found: dict[str, Any] = _asked(url, lambda: store.find(path, detail=True))
    if not found:
        raise UsageError(
            f"{url}: no such object, and none below it (or no such bucket). Name the folder, object or archive with the evidence."
        )
    if len(found) > MAX_OBJECTS:
        raise UsageError(f"{url}: {len(found):,} objects, more than {MAX_OBJECTS:,}: name a smaller folder")
    objects = []
    for key, info in found.items():
        name = key[len(path) :].lstrip("/") or key.rpartition("/")[2]
        tag = next((str(info[field]) for field in ("ETag", "etag", "content_settings", "md5Hash", "generation") if info.get(field)), "")
        objects.append(Object(key, name, int(info.get("size") or 0), tag, _moment(info)))
    return sorted(objects, key=lambda o: o.name)


def _moment(info: dict[str, Any]) -> datetime | None:
    for field in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = info.get(field)
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value.replace("Z", "+00:00"))
            except ValueError:
                continue
        if isinstance(value, datetime):
            return value if value.tzinfo else value.replace(tzinfo=UTC)
    return None


def _asked(url: str, question: Callable[[], T]) -> T:
    """What a store answers; its errors as sentences."""
    try:
        return question()
    except PermissionError as error:
        raise UsageError(f"{url}: the store does not let you in ({_line(error)}). Check the credentials and the region") from None
    except FileNotFoundError as error:
        raise UsageError(f"{url}: no such bucket or object ({_line(error)})") from None
    except (OSError, TimeoutError) as error:
        raise UsageError(f"{url}: the store does not answer ({_line(error)}). Check the network and the endpoint") from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _THEIRS and not isinstance(error, ValueError):
            raise
        hint = (
            "Set credentials as for the vendor's own tools"
            if "redential" in f"{type(error).__name__} {error}"
            else "Check endpoint and credentials"
        )
        raise UsageError(f"{url}: cannot be reached ({_line(error)}). {hint}") from None


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300] or type(error).__name__


def fetch(store: Any, objects: Sequence[Object], into: Path, url: str) -> tuple[list[tuple[Path, str]], list[tuple[str, str]]]:
    """Copy objects into a folder, under numbers. Gives files with their names, and what could not be had with the reason; the rest goes on.

    Raises UsageError where the disk has no room for them.
    """
    wanted = [o for o in objects if o.size_bytes <= MAX_OBJECT_BYTES]
    refused = [
        (
            o.name,
            f"{_gigabytes(o.size_bytes)}, more than the {_gigabytes(MAX_OBJECT_BYTES)} that are fetched: fetch it yourself and name its folder",
        )
        for o in objects
        if o.size_bytes > MAX_OBJECT_BYTES
    ]
    total = sum(o.size_bytes for o in wanted)
    into.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(into).free - SPARE_BYTES
    if total > free:
        raise UsageError(
            f"{url}: {len(wanted):,} objects of {_gigabytes(total)}, and {into.parent} has room for {_gigabytes(max(free, 0))}: "
            "set XDG_CACHE_HOME to a larger disk, or name a smaller folder"
        )
    files, told = [], _Told(url, total)
    targets = [into / f"{number:07d}" for number in range(len(wanted))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for one, target, why in zip(
            wanted, targets, pool.map(lambda pair: _copied(store, *pair), zip(wanted, targets, strict=True)), strict=True
        ):
            if why is None:
                files.append((target, one.name))
            elif why == _FULL:
                pool.shutdown(cancel_futures=True)
                raise UsageError(f"{url}: the disk of {into.parent} is full: set XDG_CACHE_HOME to a larger one, or name a smaller folder")
            else:
                refused.append((one.name, why))
            told.add(one.size_bytes)
    told.end()
    return files, refused


_FULL: Final = "no space left"


def _copied(store: Any, one: Object, target: Path) -> str | None:
    """Fetch an object, a second time where the first goes wrong. Gives the reason where both do, None where it is there."""
    for is_last in (False, True):
        try:
            _asked(one.name, lambda: store.get_file(one.key, str(target)))
        except UsageError as error:
            target.unlink(missing_ok=True)
            if shutil.disk_usage(target.parent).free < SPARE_BYTES // 16 or os.strerror(errno.ENOSPC) in str(error):
                return _FULL
            if is_last:
                return f"cannot be fetched: {str(error).removeprefix(f'{one.name}: ')}"
            continue
        if not target.is_file():  # a mark for a folder
            target.touch()
        if one.modified_at is not None:
            os.utime(target, (one.modified_at.timestamp(), one.modified_at.timestamp()))
        return None
    return None


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"


class _Told:
    """On a terminal, a line that says how much is fetched, once it takes a while."""

    def __init__(self, url: str, total: int) -> None:
        self.url, self.total, self.done, self.began, self.last = url, total, 0, time.monotonic(), 0.0
        self.is_shown = sys.stderr is not None and sys.stderr.isatty()

    def add(self, size: int) -> None:
        self.done += size
        now = time.monotonic()
        if self.is_shown and now - self.began > 1 and now - self.last > 0.2:
            self.last = now
            sys.stderr.write(f"\r\x1b[Kfetching {self.done / 1e6:,.0f} of {self.total / 1e6:,.0f} MB")
            sys.stderr.flush()

    def end(self) -> None:
        if self.is_shown and self.last:
            sys.stderr.write("\r\x1b[K")


def _digest(objects: Sequence[Object]) -> str:
    lines = [f"{o.key}\0{o.size_bytes}\0{o.tag}\0{o.modified_at}" for o in objects]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def remember(folder: Path, objects: Sequence[Object], found: Inventory) -> None:
    """Write down what was found for this listing, so that the same listing needs no second fetch. A folder that takes nothing is no harm."""
    from rca.files import put

    sources = [[s.path, s.size_bytes, s.compression, s.modified_at.isoformat() if s.modified_at else None] for s in found.sources]
    told = {"listing": _digest(objects), "sources": sources, "unreadable": [[u.path, u.why] for u in found.unreadable]}
    try:
        put(folder / "listing.json", json.dumps(told))
    except UsageError:
        return


def recall(folder: Path, objects: Sequence[Object]) -> Inventory | None:
    """What was found for just this listing before, without its bytes; None where it was another one."""
    from rca.sources import Inventory, Unreadable
    from rca.types import Source

    try:
        told = json.loads((folder / "listing.json").read_text("utf-8"))
        if told["listing"] != _digest(objects):
            return None
        sources = tuple(
            Source(path, folder / "not fetched", size, kind, datetime.fromisoformat(at) if at else None)
            for path, size, kind, at in told["sources"]
        )
        return Inventory(folder, sources, tuple(Unreadable(path, why) for path, why in told["unreadable"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
