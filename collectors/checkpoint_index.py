"""Small files beside a checkpoint's shards: the index of sharded weights, Megatron's metadata.json, DeepSpeed's tag.

- `model.safetensors.index.json`, `pytorch_model.bin.index.json` (Hugging Face): which file holds which tensor, and the bytes of all.
- `metadata.json` (Megatron's dist checkpointing): the backends. It is written when a save is finished, so it is a mark of that.
- `latest` (DeepSpeed): the folder of the newest save, global_stepN, written when that was finished. Megatron's own tracker holds a bare number, which
  could be anything: it is not read.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from collectors._checkpoint_parts import folder_of, joined, parts_of
from collectors._own_records import json_object, text, whole
from rca.errors import EvidenceError
from rca.step_names import step_said
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "OF_ITS_FOLDER", "claims", "read"]

EMITS = ("checkpoints", "checkpoint_files")
IS_ALONE = True
OF_ITS_FOLDER = True  # Megatron's metadata.json is the same in every checkpoint

MAX_BYTES: Final = 256 << 20  # an index has 100 bytes a tensor
_TAG: Final = re.compile(rb"global_step(\d{1,12})(?:_universal)?[\r\n]{0,2}")
_WEIGHTS: Final = re.compile(rb'"weight_map"\s*:\s*\{')
_BACKEND: Final = re.compile(rb'\A\s*\{[^\[\]{}]{0,2000}?"sharded_backend"\s*:\s*"')
_OTHER_SCHEMA: Final = re.compile(rb'"schema_version"\s*:\s*"rca\.')


def claims(name: str, head: bytes) -> bool:
    """One of the three."""
    if _TAG.fullmatch(head):
        return True
    if head.lstrip()[:1] != b"{" or _OTHER_SCHEMA.search(head[:4096]):
        return False
    return bool(_BACKEND.match(head)) or (bool(_WEIGHTS.search(head[:4096])) and _names_files(head)) or _has_late_map(head)


def _names_files(head: bytes) -> bool:
    """Whether tensors are given file names of shards."""
    return bool(re.search(rb'":\s*"[^"\n]{1,300}\.(?:safetensors|bin|pt|pth)"', head))


def _has_late_map(head: bytes) -> bool:
    """A small index whose map comes last, behind its metadata."""
    return b'"weight_map"' in head and b'"total_size"' in head and _names_files(head)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """One row of `checkpoints`, and one of `checkpoint_files` per file that an index names."""
    head = source.head
    if found := _TAG.fullmatch(head):
        tag = head.decode("ascii").strip()
        row = {"record": "L1", "format": "deepspeed", "step": int(found[1]), "is_marked": True}
        yield TABLES["checkpoints"], TABLES["checkpoints"].rows([row | {"checkpoint": joined(posixpath.dirname(source.path), tag)}])
        return
    document = json_object(source, MAX_BYTES)
    folder = folder_of(source.path)
    row = {"record": "E0", "checkpoint": folder, "step": step_said(folder)}
    if "weight_map" not in document:
        backend, version = text(document.get("sharded_backend")), whole(document.get("sharded_backend_version"))
        if backend is None:
            raise EvidenceError(source.path, None, "no description of a checkpoint")
        row |= {"format": "megatron_dist", "is_marked": True, "state_version": f"{backend}/{version}" if version is not None else backend}
        yield TABLES["checkpoints"], TABLES["checkpoints"].rows([row])
        return
    weights, about = document["weight_map"], document.get("metadata")
    if not isinstance(weights, dict):
        raise EvidenceError(source.path, None, "its weight_map names no files")
    first: dict[str, int] = {}
    for place, name in enumerate(weights.values()):
        if (file := text(name)) is not None:
            first.setdefault(file, place)
    parts = parts_of(weights)
    kind = "safetensors" if any(name.endswith(".safetensors") for name in first) else "torch_save"
    yield (
        TABLES["checkpoints"],
        TABLES["checkpoints"].rows(
            [
                row
                | {
                    "format": kind, "num_files": len(first), "size_bytes": whole(about.get("total_size")) if isinstance(about, dict) else None,
                    "parts": ["model" if part == "other" else part for part in parts if part != "other" or "model" not in parts],
                }
            ]
        ),
    )  # fmt: skip
    files: list[dict[str, Any]] = [
        {"record": f"weight_map/E{place}", "checkpoint": folder, "file": joined(posixpath.dirname(source.path), name), "format": kind}
        for name, place in first.items()
    ]
    yield TABLES["checkpoint_files"], TABLES["checkpoint_files"].rows(files)
