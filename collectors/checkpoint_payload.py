"""Shards of checkpoints: files of torch.save (zip or the older pickle; .pt, .pth, .bin, .ckpt, .distcp) and of safetensors, by their two ends.

A shard is never read whole (it may have hundreds of GB): the head tells its kind, the end whether it was written out, the header or the small
pickle at its beginning what is in it. Classes in that pickle become inert placeholders, nothing is imported or run. Where it tells a step (common.pt
and model_optim_rng.pt of Megatron, *_model_states.pt of DeepSpeed, .ckpt of Lightning), a row of `checkpoints` is given.
Source: torch/serialization.py; safetensors' format page; megatron/training/checkpointing.py; deepspeed/runtime/engine.py; Lightning's connector.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from collectors._checkpoint_parts import NEEDED, folder_of, part_of, parts_of
from collectors._inert import is_tensor, load_inert, mapping, state
from collectors._own_records import text, whole
from collectors._payload_ends import LEGACY, ends_of, is_safetensors, is_torch_zip, safetensors_header, zip_problem
from collectors._unpickle import PickleRefused
from rca.step_names import step_said
from rca.tables import TABLES
from rca.types import HEAD_BYTES, Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "OF_ITS_FOLDER", "READS_ENDS", "claims", "read"]

EMITS = ("checkpoint_files", "checkpoints")
IS_ALONE = True
READS_PICKLES = True
OF_ITS_FOLDER = True  # equal bytes in another folder are a shard of another checkpoint
READS_ENDS = True  # what lies between is not looked at: `rca.reading` need not hash it either

MAX_PICKLE: Final = 32 << 20  # bytes of the pickle that tells what is in a file; of an optimizer with 100,000 tensors 20 MB
RECORD: Final = "E0"
_STEPS: Final = ("iteration", "global_step", "global_steps", "step", "trained_steps")
_RANK: Final = re.compile(
    r"(?<![a-z])(?<![mptecd]p_)(?:rng_state|rank)[_-]?([0-9]{1,9})(?=[_.])"
)  # mp_rank, zero_pp_rank count other places
_SHARD: Final = re.compile(r"__([0-9]{1,9})_[0-9]{1,9}\.distcp$")
_RAW_RNG: Final = frozenset({"python", "numpy", "cpu", "cuda", "xla", "random_states"})
_WEIGHTS: Final = re.compile(r"(?i)(?:weight|bias|lora_[ab]|norm|_proj|embed\w*|gamma|beta)$")


def claims(name: str, head: bytes) -> bool:
    """What torch.save or safetensors writes; a pickle of anything else is none."""
    return is_torch_zip(head) or is_safetensors(head) or head.startswith(LEGACY)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """One row of `checkpoint_files`, and one of `checkpoints` where the file itself tells a step."""
    head, ends = source.head, ends_of(source)
    row: dict[str, Any] = {"record": RECORD, "checkpoint": folder_of(source.path), "file": source.path}
    found = _SHARD.search(source.path) or _RANK.search(source.path)
    row["state_rank"] = int(found[1]) if found else None
    if is_safetensors(head):
        header = safetensors_header(source, ends.size if ends else None)
        row |= {"format": "safetensors", "exact_bytes": header.exact_bytes, "problem": header.problem}
        row["parts"] = _of_names(header.names)
    else:
        is_zip = is_torch_zip(head)
        row |= {"format": "torch_zip" if is_zip else "torch_pickle", "problem": zip_problem(ends) if is_zip and ends else None}
        held = None
        try:
            held = _held(source, is_zip=is_zip) if not source.path.endswith(".distcp") else None  # of a shard it is but the first tensor
        except PickleRefused as error:
            yield Skip(RECORD, str(error))
        except (EOFError, pickle.UnpicklingError, RecursionError) as error:
            row["problem"] = row["problem"] or f"torn: the pickle at its beginning breaks off ({str(error)[:80]})"
        row["parts"] = _parts(held)
        if (told := _checkpoint(source, held, row["parts"])) is not None:
            yield TABLES["checkpoints"], TABLES["checkpoints"].rows([told])
    yield TABLES["checkpoint_files"], TABLES["checkpoint_files"].rows([row])


def _held(source: Source, *, is_zip: bool) -> Any:
    """The object in the pickle at the beginning of a file: the names in it, and numbers. No more is read than the pickle takes."""
    for limit in (HEAD_BYTES, 1 << 20, MAX_PICKLE):
        data = source.head if limit == HEAD_BYTES else source.read(limit)[0]
        try:
            return _object(data, is_zip=is_zip)
        except (EOFError, pickle.UnpicklingError):
            if len(data) < limit or limit == MAX_PICKLE:
                raise
    return None


def _object(data: bytes, *, is_zip: bool) -> Any:
    if not is_zip:
        file = io.BytesIO(data)
        for _ in range(3):  # magic number, version of the protocol, system
            load_inert(file, len(data))
        return load_inert(file, len(data))
    method, name, extra = *struct.unpack_from("<H", data, 8), *struct.unpack_from("<HH", data, 26)
    if method:
        raise PickleRefused("its members are compressed, which torch never does: not unpacked")
    return load_inert(io.BytesIO(data[30 + name + extra :]), len(data))


def _parts(held: Any) -> list[str] | None:
    """The parts that a saved object holds, by its keys; None where it tells none."""
    items = mapping(held)
    if not items:
        return ["rng"] if is_tensor(held) else None  # a lone tensor is saved as a generator's state
    names = [key for key in items if isinstance(key, str)]
    if set(names) == {"state", "param_groups"}:
        return ["optimizer"]
    if names and set(names) <= _RAW_RNG:
        return ["rng"]
    if all(is_tensor(value) for value in items.values()):
        return _of_names(names)
    found = {part_of(name) or "other" for name in names if items[name] is not None and not isinstance(items[name], int | float | str)}
    found |= {"scheduler"} & {part_of(name) or "" for name in names}
    if whole(state(items.get("args")).get("consumed_train_samples")) is not None:
        found.add("sampler")  # Megatron's loaders begin there
    return [part for part in (*NEEDED, "other") if part in found] or None


def _of_names(names: Sequence[str]) -> list[str] | None:
    """Of a file of tensors: the model, unless the names say otherwise."""
    found = parts_of(names)
    return ["model" if part == "other" else part for part in found if part != "other" or "model" not in found] or None


def _checkpoint(source: Source, held: Any, parts: list[str] | None) -> dict[str, Any] | None:
    """What a file with the state of a whole run says of its checkpoint."""
    items: Mapping[Any, Any] = mapping(held)
    step = next((number for key in _STEPS if (number := whole(items.get(key))) is not None and number >= 0), None)
    if step is None or not parts:
        return None
    arguments = state(items.get("args"))
    format_ = (
        "deepspeed" if "ds_version" in items else "lightning" if "pytorch-lightning_version" in items
        else "megatron" if "checkpoint_version" in items or "args" in items else "torch_save"
    )  # fmt: skip
    world = (
        whole(arguments.get("world_size")) if arguments else whole(items.get("dp_world_size")) if items.get("mp_world_size") == 1 else None
    )
    versions = (items.get(key) for key in ("ds_version", "pytorch-lightning_version", "checkpoint_version", "version"))
    version = next((str(value) for value in versions if isinstance(value, str | int | float)), None)
    folder = folder_of(source.path)
    return {
        "record": RECORD, "checkpoint": folder, "format": format_, "step": step if step or (said := step_said(folder)) is None else said,
        "world_size": world, "state_version": text(version), "parts": parts,
    }  # fmt: skip
