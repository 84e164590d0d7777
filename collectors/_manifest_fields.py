"""The fields of a checkpoint's manifest under the names that teams give them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from collectors._checkpoint_parts import NEEDED, part_of
from collectors._log_progress import instant_of
from collectors._own_records import instant, number, text, whole

__all__ = ["SHARDS", "STEPS", "Shard", "is_finished", "parts_told", "saved_at", "shards_of", "step_of", "world_of"]

SHARDS: Final = ("shards", "files", "parts", "components", "artifacts", "entries")
STEPS: Final = ("step", "global_step", "iteration", "train_step", "step_number", "completed_steps")
_NAMES: Final = ("file", "path", "name", "filename", "file_name", "relative_path", "relativePath", "key", "uri")
_SIZES: Final = ("size_bytes", "bytes", "size", "num_bytes", "nbytes", "length", "file_size", "byte_size")
_CHECKSUMS: Final = ("sha256", "sha_256", "sha512", "sha1", "md5", "crc32c", "crc32", "blake3", "xxh64", "xxh3", "adler32")
_UNNAMED: Final = ("checksum", "digest", "hash")
_RANKS: Final = ("rank", "state_rank", "global_rank")
_PARTS: Final = ("part", "kind", "type", "role", "component")
_FINISHED: Final = ("complete", "completed", "is_complete", "committed", "finished", "is_finished", "done", "marked", "finalized")
_STATES: Final = ("status", "state", "mark")
_YES: Final = re.compile(
    r"(?i)(?:is_)?(?:complete[d]?|commit(?:ted)?|done|finished|finali[sz]ed|success(?:ful)?|ok|saved|valid|durable|persisted)"
)
_NO: Final = re.compile(
    r"(?i)(?:incomplete|partial|in[_ -]?progress|pending|writing|saving|started|failed|aborted|torn|uploading|staging|error)"
)
_TIMES: Final = ("saved_at", "completed_at", "finished_at", "committed_at", "created_at", "timestamp", "timestamp_utc", "wall_time", "time")
_WORLDS: Final = ("world_size", "num_ranks", "worldSize", "nranks")
_BY_DIGITS: Final = {8: "crc32", 32: "md5", 40: "sha1", 64: "sha256", 128: "sha512"}  # hexadecimal ones
_HEX: Final = re.compile(r"[0-9a-fA-F]{8,128}")
_PREFIXED: Final = re.compile(r"(sha256|sha512|sha1|md5|crc32c?|blake3|xxh64|xxh3|adler32)[:=-](.{1,200})", re.I)
MAX_DEPTH: Final = 4  # of lists of shards in parts


@dataclass(frozen=True)
class Shard:
    """A file of a checkpoint as its manifest tells it."""

    name: str
    size: int | None = None
    checksum: str | None = None
    kind: str | None = None  # of the checksum
    rank: int | None = None
    parts: list[str] | None = None


def step_of(document: Mapping[str, Any]) -> int | None:
    """The step that it was saved after, which may stand in an inner object (state, progress, training)."""
    inner = [document.get(key) for key in ("progress", "training", "trainer", "state", "metadata", "meta")]
    for holder in (document, *(one for one in inner if isinstance(one, dict))):
        for key in STEPS:
            if (found := whole(holder.get(key))) is not None and found >= 0:
                return found
    return None


def shards_of(document: Mapping[str, Any]) -> Iterator[tuple[str, Shard]]:
    """(place, shard) of all files that a manifest lists: as a list of objects or names, by name, or by part."""
    for key in SHARDS:
        held = document.get(key)
        pairs = list(held.items()) if isinstance(held, dict) else [(None, item) for item in held] if isinstance(held, list) else []
        for place, (name, item) in enumerate(pairs):
            for shard in _shards(name, item, depth=0):
                yield f"{key}/E{place}", shard


def _shards(name: Any, item: Any, *, depth: int) -> Iterator[Shard]:
    """What one entry names: a file, or of a part its files."""
    name = text(name)
    if isinstance(item, str):
        said = name if isinstance(name, str) else item
        if isinstance(name, str) and _checksum_of(item)[0] is not None:
            yield Shard(name, None, *_checksum_of(item))
        elif _is_file(said if name is None else item):
            yield Shard(item, parts=_part_list(name if isinstance(name, str) else item))
        return
    if isinstance(item, int) and not isinstance(item, bool) and isinstance(name, str) and _is_file(name):
        yield Shard(name, whole(item), parts=_part_list(name))
        return
    if isinstance(item, list) and depth < MAX_DEPTH:
        for one in item:
            yield from (_of(shard, name) for shard in _shards(None, one, depth=depth + 1))
        return
    if not isinstance(item, dict):
        return
    inner = [(key, item[key]) for key in ("shards", "files") if isinstance(item.get(key), list | dict)]
    if inner and depth < MAX_DEPTH:
        part = next((text(item.get(key)) for key in (*_PARTS, "name") if text(item.get(key))), name)
        for _, held in inner:
            for key, one in held.items() if isinstance(held, dict) else [(None, one) for one in held]:
                yield from (_of(shard, part) for shard in _shards(key, one, depth=depth + 1))
        return
    given = _first_text(item, _NAMES)
    named = given or (name if isinstance(name, str) else None)
    if named is None:
        return
    told = next((kind for key in _PARTS if (kind := text(item.get(key))) and part_of(kind)), None)
    part = told or (name if given and isinstance(name, str) else named)
    yield Shard(named, _first_count(item, _SIZES), *_checksum(item), _first_count(item, _RANKS), _part_list(part))


def _first_text(item: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    return next((found for key in keys if (found := text(item.get(key)))), None)


def _first_count(item: Mapping[str, Any], keys: Sequence[str]) -> int | None:
    return next((found for key in keys if (found := whole(item.get(key))) is not None and found >= 0), None)


def _of(shard: Shard, part: Any) -> Shard:
    """A shard of a part that is named above it."""
    found = _part_list(part) if isinstance(part, str) else None
    return Shard(shard.name, shard.size, shard.checksum, shard.kind, shard.rank, found) if found else shard


def _is_file(name: str) -> bool:
    return bool(re.search(r"\.[A-Za-z]\w{0,15}$|/", name)) and len(name) < 4096 and "\n" not in name


def _part_list(name: str) -> list[str] | None:
    found = part_of(name)
    return [found] if found else None


def _checksum(item: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """(checksum, its kind): under the name of its kind, or of none and told by a prefix, a kind beside it, or its length."""
    for key in _CHECKSUMS:
        value = item.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and key.startswith("crc32") and 0 <= value < 1 << 32:
            value = f"{value:08x}"
        if found := text(value):
            return _checksum_of(found)[0] or found, key.replace("sha_", "sha")
    inner = next((item[key] for key in ("checksums", "hashes", "digests") if isinstance(item.get(key), dict)), None)
    if inner is not None:
        return _checksum({key: value for key, value in inner.items() if key in _CHECKSUMS})
    for key in _UNNAMED:
        if found := text(item.get(key)):
            kind = next((k for other in ("algorithm", "checksum_kind", "checksum_type", "algo") if (k := text(item.get(other)))), None)
            value, told = _checksum_of(found)
            return value or found, (kind.lower().replace("-", "") if kind else told)
    return None, None


def _checksum_of(value: str) -> tuple[str | None, str | None]:
    if found := _PREFIXED.fullmatch(value):
        return found[2], found[1].lower()
    return (value, _BY_DIGITS[len(value)]) if _HEX.fullmatch(value) and len(value) in _BY_DIGITS else (None, None)


def is_finished(document: Mapping[str, Any]) -> bool | None:
    """Whether the manifest says that the save was finished; None where it says neither."""
    for key in _FINISHED:
        if isinstance(document.get(key), bool):
            return bool(document[key])
    for key in _STATES:
        said = document.get(key)
        if isinstance(said, bool) and key == "mark":
            return said
        if isinstance(said, str) and len(said) < 40:
            if _YES.fullmatch(said):
                return True
            if _NO.fullmatch(said):
                return False
    return None


def parts_told(document: Mapping[str, Any], shards: Sequence[Shard]) -> list[str] | None:
    """The parts that are saved: as listed, as keys of their own that hold something, and by the shards; None where nothing tells."""
    names: list[str] = [
        one
        for key in ("parts", "components", "contains", "state")
        if isinstance(document.get(key), list)
        for one in document[key]
        if isinstance(one, str)
    ]
    holders = [document, *(document[key] for key in ("parts", "components", "state", "contents") if isinstance(document.get(key), dict))]
    for holder in holders:
        names += [
            key
            for key, value in holder.items()
            if value not in (None, False, [], {}, "") and key not in SHARDS and part_of(key) and not isinstance(value, bool)
        ]
        names += [key for key, value in holder.items() if value is True and part_of(key)]
    found = {part_of(name) or "other" for name in names if part_of(name)} | {part for shard in shards for part in shard.parts or ()}
    return [part for part in (*NEEDED, "other") if part in found] or None


def saved_at(document: Mapping[str, Any]) -> datetime | None:
    """When it was saved; None unless date, year and zone are told (a count since 1970 is in UTC)."""
    for key in _TIMES:
        value = document.get(key)
        if isinstance(value, str) and (found := instant(value)) is not None:
            return found
        if (count := number(value)) is not None:
            return instant_of(count)
    return None


def world_of(document: Mapping[str, Any]) -> int | None:
    """How many ranks saved it."""
    return next((found for key in _WORLDS if (found := whole(document.get(key))) is not None and found > 0), None)
