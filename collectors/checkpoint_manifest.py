"""Manifests of a recoverable state: `rca.checkpoint/1` (docs/checkpoints.md), and what teams write of their own accord, as JSON.

A manifest names the step, the shards with sizes and checksums, the parts (model, optimizer, scheduler, RNG, sampler cursor), and says whether the
save was finished. Other keys for the same (files, global_step, bytes, digest, completed, ...) are read as `_manifest_fields` lists them; what is
not there is null, never guessed.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from collectors._checkpoint_parts import folder_of, joined, lacking
from collectors._manifest_fields import SHARDS, STEPS, Shard, is_finished, parts_told, saved_at, shards_of, step_of, world_of
from collectors._own_records import json_object, text, whole
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import HEAD_BYTES, Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "OF_ITS_FOLDER", "SCHEMA", "claims", "read"]

EMITS = ("checkpoints", "checkpoint_files")
IS_ALONE = True
SCHEMA = "rca.checkpoint/1"
OF_ITS_FOLDER = True  # equal bytes in another folder describe another checkpoint

MAX_BYTES: Final = 256 << 20
_OWN: Final = re.compile(rb'"schema_version"\s*:\s*"rca\.checkpoint/1"')
_OTHERS: Final = re.compile(rb'"schema_version"\s*:\s*"rca\.(?!checkpoint/)')
_LIST: Final = re.compile(rb'"(?:' + b"|".join(key.encode() for key in SHARDS) + rb')"\s*:\s*[\[{]')
_STEP: Final = re.compile(rb'"(?:' + b"|".join(key.encode() for key in STEPS) + rb')"\s*:\s*\d')
_OF_SHARD: Final = re.compile(
    rb'"(?:sha256|sha1|md5|crc32c?|checksum|digest|hash|size_bytes|num_bytes|nbytes|size|bytes|etag|sha_256)"\s*:\s*["\d]'
)
_STATE: Final = re.compile(rb"(?i)checkpoint|ckpt|optimizer|optim|model")


def claims(name: str, head: bytes) -> bool:
    """A JSON object that says it is one, or names shards with sizes or checksums, a step, and a part of a training state."""
    if head.lstrip()[:1] != b"{" or _OTHERS.search(head):
        return False
    if _OWN.search(head):
        return True
    if not (_LIST.search(head) and _STEP.search(head) and _STATE.search(head)):
        return False
    if len(head) >= HEAD_BYTES:
        return bool(_OF_SHARD.search(head))
    try:
        document = json.loads(head)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and _is_manifest(document)


def _is_manifest(document: dict[str, Any]) -> bool:
    if step_of(document) is None:
        return False
    shards = list(shards_of(document))
    return bool(shards) and any(shard.size is not None or shard.checksum is not None for _, shard in shards)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """One row of `checkpoints`, and one of `checkpoint_files` per shard."""
    document = json_object(source, MAX_BYTES)
    if document.get("schema_version") != SCHEMA and not _is_manifest(document):
        raise EvidenceError(source.path, None, "names no step, or no shards with sizes or checksums: no manifest of a checkpoint")
    folder = folder_of(source.path)
    shards = list(shards_of(document))
    sizes = [shard.size for _, shard in shards]
    parts = parts_told(document, [shard for _, shard in shards])
    total = next((number for key in ("size_bytes", "total_bytes", "total_size") if (number := whole(document.get(key))) is not None), None)
    version = next(
        (document[key] for key in ("state_version", "format_version", "version") if isinstance(document.get(key), str | int)), None
    )
    row = {
        "record": "E0", "checkpoint": folder, "format": "manifest", "step": step_of(document), "saved_at": saved_at(document),
        "saved_to": next((found for key in ("path", "checkpoint_path", "saved_to", "uri", "url") if (found := text(document.get(key)))), None),
        "job_id": text(document.get("job_id")), "is_marked": is_finished(document), "world_size": world_of(document), "num_files": len(shards),
        "size_bytes": total if total is not None else whole(sum(size or 0 for size in sizes)) if sizes and None not in sizes else None,
        "state_version": text(str(version)) if version is not None else None, "parts": parts, "lacks": lacking(parts) if parts else None,
    }  # fmt: skip
    yield TABLES["checkpoints"], TABLES["checkpoints"].rows([row])
    base = posixpath.dirname(source.path)
    yield TABLES["checkpoint_files"], TABLES["checkpoint_files"].rows([_file(record, shard, folder, base) for record, shard in shards])


def _file(record: str, shard: Shard, folder: str, base: str) -> dict[str, Any]:
    return {
        "record": record, "checkpoint": folder, "file": joined(base, shard.name), "format": "manifest", "exact_bytes": shard.size,
        "least_bytes": shard.size, "checksum": shard.checksum, "checksum_kind": shard.kind, "state_rank": shard.rank, "parts": shard.parts,
    }  # fmt: skip
