"""Pickles of torch's checkpoints, read without importing or running anything: every class they name becomes an inert placeholder.

A checkpoint's description is made of torch's own classes, so refusing every global (`collectors._unpickle`) would leave nothing to read. Names
on a closed list of packages, whose classes savers write, become placeholders that only keep what they were given; any other name is refused with
the whole pickle: `os.system` in a checkpoint is no checkpoint. A placeholder has no attribute that a pickle could set, so nothing that is
called on it later is the file's.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import IO, Any, ClassVar, Final

from collectors._unpickle import PickleRefused, load

__all__ = ["Inert", "is_tensor", "load_inert", "mapping", "state"]

PACKAGES: Final = frozenset(
    {
        *("torch", "numpy", "collections", "argparse", "pathlib", "enum", "datetime", "_codecs", "types", "typing", "functools"),
        *("_io", "io", "uuid", "decimal", "random", "signal"),
        *("megatron", "apex", "transformer_engine", "deepspeed", "lightning", "pytorch_lightning", "lightning_fabric", "nemo", "omegaconf"),
        *(
            "transformers",
            "accelerate",
            "torchao",
            "torchtitan",
            "torchdata",
            "tensordict",
            "ml_dtypes",
            "peft",
            "trl",
            "verl",
            "mcore_adapter",
            "nvidia_resiliency_ext",
            "modelopt",
        ),
    }
)
BUILT_IN: Final = frozenset(  # as placeholders, as all others: none is called
    {
        *("set", "frozenset", "bytearray", "complex", "slice", "range", "list", "dict", "tuple"),
        *("object", "int", "float", "str", "bytes", "bool", "type", "getattr"),
    }
)
BUILT_INS: Final = frozenset({"builtins", "__builtin__", "copy_reg", "copyreg"})
RECONSTRUCTS: Final = frozenset({"_reconstructor"})  # of copyreg, before protocol 2
MAX_CLASSES: Final = 2_000  # a checkpoint names some dozens


class Inert:
    """What stands for an object: the name of its class, what it was called with, its state, and what was put into it."""

    __slots__ = ("args", "items", "state")
    args: tuple[Any, ...]
    items: dict[Any, Any] | None
    state: Any
    of: ClassVar[str] = ""  # package.Class

    def __new__(cls, *args: Any, **named: Any) -> Inert:
        made = object.__new__(cls)
        made.args, made.state, made.items = args, named or None, None
        return made

    def __init__(self, *args: Any, **named: Any) -> None:
        """All is kept by `__new__`, which a pickle may call alone."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.items is None:
            self.items = {}
        self.items[key] = value

    def append(self, value: Any) -> None:
        """One more item of what was a list."""
        self[len(self.items or ())] = value

    add = append


class _Placing(pickle.Unpickler):
    """Gives a placeholder for every class of a known package."""

    def __init__(self, file: IO[bytes], **options: Any) -> None:
        super().__init__(file, **options)
        self._classes: dict[str, type[Inert]] = {}

    def find_class(self, module: str, name: str, /) -> Any:
        is_known = name in BUILT_IN | RECONSTRUCTS if module in BUILT_INS else module.partition(".")[0] in PACKAGES
        of = f"{module}.{name}"
        if not is_known:
            raise PickleRefused(f"asks to import {of[:200]}, which no checkpoint needs: refused, nothing was run")
        if of not in self._classes:
            if len(self._classes) >= MAX_CLASSES:
                raise PickleRefused(f"names more than {MAX_CLASSES:,} classes: refused")
            self._classes[of] = type("Placeholder", (Inert,), {"__slots__": (), "of": of})
        return self._classes[of]

    def persistent_load(self, pid: Any, /) -> Any:
        """A tensor's bytes, which lie elsewhere in the file: never fetched."""
        return Inert(pid)


def load_inert(file: IO[bytes], size_bytes: int) -> Any:
    """The object in a pickle, its classes as placeholders. Raises as `collectors._unpickle.load`."""
    return load(file, size_bytes, unpickler=_Placing)


def state(value: Any) -> Mapping[str, Any]:
    """The attributes of what was an object, or what was in a mapping; empty for anything else."""
    if isinstance(value, Inert):
        value = value.state[0] if isinstance(value.state, tuple) and value.state else value.state
    return {key: held for key, held in value.items() if isinstance(key, str)} if isinstance(value, dict) else {}


def mapping(value: Any) -> Mapping[Any, Any]:
    """The items of what was a mapping (dict, OrderedDict, ...); empty for anything else."""
    if isinstance(value, Inert):
        return value.items or (value.args[0] if value.args and isinstance(value.args[0], dict) else {})
    return value if isinstance(value, dict) else {}


def is_tensor(value: Any) -> bool:
    """Whether it was a tensor (or a storage), by the function that makes it again."""
    return isinstance(value, Inert) and ("_rebuild_" in value.of or value.of in ("torch.Tensor", "torch.nn.parameter.Parameter"))
