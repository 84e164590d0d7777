"""Descriptions of torch's distributed checkpoints (`.metadata`, as torch.distributed.checkpoint and Megatron's torch_dist write it).

The file is a pickle of torch's own classes: they become inert placeholders, nothing is imported or run (`collectors._inert`). It is written
last, when every rank's shards are on disk, so where it is whole the save was finished. It tells of each tensor or object in which shard it lies,
from which byte and how long, hence how large each shard must be at least. Names of tensors and objects tell what is saved.
Source: torch/distributed/checkpoint/metadata.py and filesystem.py, 1.13 to 2.13; fields that a version lacks are null.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from collectors._checkpoint_parts import folder_of, joined, lacking, parts_of
from collectors._inert import Inert, load_inert, mapping, state
from collectors._own_records import text, whole
from collectors._unpickle import PickleRefused
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
READS_PICKLES = True
OF_ITS_FOLDER = True  # equal bytes in another folder describe another checkpoint

MAX_BYTES: Final = 1 << 29  # 100 bytes a chunk: of 5 million chunks
RECORD: Final = "E0"  # the whole file is one object
_CLASS: Final = b"torch.distributed.checkpoint.metadata"
_ORIGIN: Final = re.compile(r"__([0-9]{1,9})_[0-9]{1,9}\.distcp$")  # rank that wrote the shard, and its number


def claims(name: str, head: bytes) -> bool:
    """A pickle whose outermost object is torch's Metadata."""
    start = head[:400]
    return head[:1] == b"\x80" and _CLASS in start and b"Metadata" in start and b"state_dict_metadata" in start


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """One row of `checkpoints`, and one of `checkpoint_files` per shard."""
    described = state(_loaded(source))
    stored = mapping(described.get("storage_data"))
    if not described or not isinstance(stored, Mapping):
        raise EvidenceError(source.path, None, "no description of a distributed checkpoint")
    folder = folder_of(source.path)
    least = dict(sorted(_shards(stored)))
    names = [key for key in mapping(described.get("state_dict_metadata")) if isinstance(key, str)]
    parts, meta = parts_of(names), state(described.get("storage_meta"))
    row: dict[str, Any] = {  # torch writes .metadata.tmp and renames it when all is done
        "record": RECORD, "checkpoint": folder, "format": "torch_dcp", "saved_to": _path(meta.get("checkpoint_id")),
        "is_marked": not source.path.endswith(".tmp"), "num_files": len(least), "size_bytes": whole(sum(least.values())),
        "state_version": text(described.get("version")),
        "parts": parts, "lacks": lacking(parts),
    }  # fmt: skip
    said = step_said(folder)
    row["step"] = said if said is not None else step_said(row["saved_to"] or "")
    files = [
        {
            "record": RECORD, "checkpoint": folder, "file": joined(folder, name), "format": "torch_dcp", "least_bytes": size,
            "state_rank": whole(int(found[1])) if (found := _ORIGIN.search(name)) else None,
        }
        for name, size in least.items()
    ]  # fmt: skip
    yield TABLES["checkpoints"], TABLES["checkpoints"].rows([row])
    yield TABLES["checkpoint_files"], TABLES["checkpoint_files"].rows(files)


def _loaded(source: Source) -> Any:
    data, torn = source.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise EvidenceError(source.path, None, f"more than {MAX_BYTES:,} bytes are not read")
    try:
        return load_inert(io.BytesIO(data), len(data))
    except PickleRefused as error:
        raise EvidenceError(source.path, None, str(error)) from None
    except (EOFError, pickle.UnpicklingError, RecursionError) as error:
        raise EvidenceError(source.path, None, f"breaks off ({torn or error}): the save was not finished, or the file was cut") from None


def _shards(stored: Mapping[Any, Any]) -> Iterator[tuple[str, int]]:
    """Each shard with the bytes it must have at least: the end of the last piece that is said to lie in it."""
    ends: dict[str, int] = {}
    for info in stored.values():
        held = state(info)
        name = text(held.get("relative_path"))
        offset, length = whole(held.get("offset")), whole(held.get("length"))
        if name is None or offset is None or length is None or offset < 0 or length < 0 or offset + length >= 1 << 63:
            continue
        ends[name] = max(ends.get(name, 0), offset + length)
    yield from ends.items()


def _path(value: Any) -> str | None:
    """A path as text, whether it was saved as one or as a pathlib object."""
    if isinstance(value, Inert) and all(isinstance(part, str) for part in value.args):
        return text(re.sub("^//", "/", "/".join(value.args)))
    return text(value)
