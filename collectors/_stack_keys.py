"""Canonical frames and labels of stacks, the same for every dumper, Python version and machine.

A key is `module:function`. The module is the path below site-packages, the standard library or the job's folder,
without `.py`; the function is the last part of the qualified name, because older Pythons and dumpers print only that.
Addresses, line numbers, generated file names, template arguments and library versions are left out: they differ between
processes that stand in the same place.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from collectors._stack_activity import Frame, is_wrapper
from collectors._stack_labels import labels, named_as_service

__all__ = ["Stack", "describe", "frame_key", "is_native_file"]

MAX_NAME = 4096  # characters of a C++ name that are looked at; template monsters go on for kilobytes
MAX_FILE = 1024  # characters of a path that are looked at
MAX_FUNCTION, MAX_MODULE = 160, 240  # characters kept; longer ones are no names that people gave
MAX_FRAMES = 2048  # frames of one thread; deeper ones are runaway recursion and say the same again
SHOWN_FRAMES = 3  # of a stack, where a line must do
CACHED_FRAMES, CACHED_STACKS = 1 << 16, 1 << 15

_PYTHON_LIB: Final = re.compile(r"(?:^|/)(?:lib|lib64|Lib)/(?:python[0-9][0-9.]*t?/|python[0-9]+\.zip/)")
_LIBRARY: Final = re.compile(r"^(.+?)(?:\.cpython-[\w-]+|\.abi3)?\.(?:so(?:\.[\w.-]+)?|dylib|dll)$")
_WHEEL_HASH: Final = re.compile(r"-[0-9a-f]{6,}$")
_NATIVE_SOURCE: Final = re.compile(r"\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|inl|rs|S|go|pyi\.c)$")
_FROZEN: Final = re.compile(r"^<frozen ([\w.]+)>$")
_MADE_NAME: Final = re.compile(r"^(<[A-Za-z_][\w ]*?)[-_. ]?[0-9].*$")
_GENERATED: Final = re.compile(r"^(?=[a-z0-9]*[0-9])[a-z0-9]{40,64}$")  # inductor and triton name files by their hash
_NOTEBOOK: Final = re.compile(r"/ipykernel_[0-9]+/[0-9]+\.py$")
_TORCH_PARTS: Final = frozenset(
    (
        "_C",
        "_dynamo",
        "_export",
        "_functorch",
        "_inductor",
        "_library",
        "_logging",
        "_prims",
        "_refs",
        "_subclasses",
        "_tensor",
        "_tensor_str",
        "_utils",
        "_utils_internal",
        "amp",
        "ao",
        "autograd",
        "backends",
        "cuda",
        "distributed",
        "distributions",
        "export",
        "fft",
        "fx",
        "functional",
        "hub",
        "jit",
        "library",
        "linalg",
        "masked",
        "multiprocessing",
        "nested",
        "nn",
        "onnx",
        "optim",
        "overrides",
        "package",
        "profiler",
        "quantization",
        "random",
        "serialization",
        "sparse",
        "special",
        "storage",
        "testing",
        "utils",
        "xpu",
    )
)
# Packages whose files may lie outside site-packages (archives, source trees).
_PACKAGES: Final = frozenset(
    (
        "accelerate",
        "apex",
        "colossalai",
        "datasets",
        "deepspeed",
        "fairscale",
        "fairseq",
        "flash_attn",
        "gcsfs",
        "fsspec",
        "horovod",
        "lightning",
        "megatron",
        "mmengine",
        "nemo",
        "numpy",
        "pandas",
        "peft",
        "pyarrow",
        "pytorch_lightning",
        "ray",
        "sglang",
        "torchaudio",
        "torchdata",
        "torchtitan",
        "torchvision",
        "transformer_engine",
        "transformers",
        "triton",
        "trl",
        "verl",
        "vllm",
        "wandb",
        "webdataset",
    )
)


@dataclass(frozen=True)
class Stack:
    """One distinct stack: canonical frames, innermost first, and what they tell."""

    stack_id: str
    frames: tuple[str, ...]
    leaf: str | None
    leaf_key: str | None
    shown: tuple[str, ...]
    activity: str
    wait_kind: str
    role: str


def is_native_file(filename: str | None) -> bool:
    """The frame's file is a shared library or C source, not Python."""
    if not filename:
        return False
    base = filename[-MAX_FILE:].replace("\\", "/").rpartition("/")[2]
    return ".py" not in base and (_LIBRARY.match(base) is not None or _NATIVE_SOURCE.search(base) is not None)


@lru_cache(CACHED_FRAMES)
def frame_key(name: str, filename: str | None) -> str:
    """`module:function` of a frame, whatever dumper printed it."""
    native = is_native_file(filename)
    function = _native_function(name[:MAX_NAME]) if native or "::" in name else name.strip().rpartition(".")[2]
    return f"{_module(filename)[-MAX_MODULE:]}:{function[:MAX_FUNCTION]}"


def _native_function(name: str) -> str:
    """A C or C++ name without return type, arguments, template arguments and versions; `??` for an unresolved address."""
    name = name.strip()
    if not name or name.startswith(("0x", "??")):
        return "??"
    name = name.replace("(anonymous namespace)::", "").replace("operator()", "operator_call").partition("@")[0]
    kept: list[str] = []
    depth = 0
    for character in name:
        if character == "<":
            depth += 1
        elif character == ">":
            depth = max(0, depth - 1)
        elif not depth:
            if character == "(" and kept:
                break
            kept.append(character)
    words = "".join(kept).partition(" [clone")[0].split()
    return words[-1] if words else "??"


def _module(filename: str | None) -> str:
    """Path of the module below site-packages, the standard library or the job's folder, without its ending."""
    path = (filename or "").strip()[-MAX_FILE:].replace("\\", "/")
    if not path:
        return "?"
    if path.startswith("<"):
        frozen, made = _FROZEN.match(path), _MADE_NAME.match(path)
        return frozen[1].replace(".", "/") if frozen else f"{made[1]}>" if made and ">" not in made[1] else path.partition(">")[0] + ">"
    if ".py:" in path:  # file.py:codegen(function)
        path = path[: path.index(".py:") + 3]
    base = path.rpartition("/")[2]
    library = _LIBRARY.match(base)
    if library and not base.endswith(".py"):
        return _WHEEL_HASH.sub("", library[1])
    if _NATIVE_SOURCE.search(base):
        return base.rpartition(".")[0]
    if _NOTEBOOK.search(path):
        return "<notebook>"
    if _GENERATED.match(base.partition(".")[0]):
        return "<generated>"
    return _without_ending(_below_root(path))


def _without_ending(path: str) -> str:
    for ending in (".py", ".pyc", ".pyx", ".pyi"):
        if path.endswith(ending):
            return path[: -len(ending)]
    return path


def _below_root(path: str) -> str:
    """The part of a path that is the same on every machine."""
    for packages in ("site-packages/", "dist-packages/"):
        place = path.rfind(packages)
        if place >= 0:
            return path[place + len(packages) :]
    if library := _PYTHON_LIB.search(path):
        return path[library.end() :]
    parts = [part for part in path.split("/") if part not in ("", ".", "..", "...")]
    if not parts:
        return "?"
    for place, part in enumerate(parts[:-1]):
        if part.lower() == "lib" and parts[place + 1].partition(".")[0] in sys.stdlib_module_names:
            return "/".join(parts[place + 1 :])
    is_absolute = path.startswith("/") or (len(path) > 1 and path[1] == ":")
    if not is_absolute:
        return "/".join(parts)
    for place, part in enumerate(parts[:-1]):
        if part in _PACKAGES or (part == "torch" and parts[place + 1].partition(".")[0] in _TORCH_PARTS):
            return "/".join(parts[place:])
    return parts[-1]  # a script is imported from its own folder


_FORK: Final = "multiprocessing/process:_bootstrap"


def describe(
    frames: Sequence[tuple[str, str | None]],
    *,
    thread_name: str | None = None,
    native: Sequence[bool] | None = None,
    is_cut: bool = False,
) -> Stack:
    """The canonical stack of (function name, file name) pairs, innermost first.

    `native` marks frames of C code where the dumper says so; otherwise the file name tells. A forked child's frames below
    `_bootstrap` belong to its parent and are cut off first. Of a stack whose innermost frames are missing (`is_cut`) no leaf is known. Equal
    arguments are answered from a cache.
    """
    flags = None if native is None else tuple(native)[:MAX_FRAMES]
    known = _describe(tuple((name, file) for name, file in frames[:MAX_FRAMES]), flags, named_as_service(thread_name))
    if not is_cut:
        return known
    return replace(known, stack_id=hashlib.sha256(f"{known.stack_id}|cut".encode()).hexdigest()[:16], leaf=None)


@lru_cache(CACHED_STACKS)
def _describe(pairs: tuple[tuple[str, str | None], ...], native: tuple[bool, ...] | None, service: bool) -> Stack:  # noqa: FBT001 - the cache key
    frames: list[Frame] = []
    for place, (name, file) in enumerate(pairs):
        key = frame_key(name, file)
        module, _, function = key.partition(":")
        is_native = native[place] if native is not None and place < len(native) else is_native_file(file)
        if is_native and frames and frames[-1].key == key:
            continue  # runs of unresolved or interpreter frames
        frames.append(Frame(key, module, function, is_native))
        if key == _FORK:
            break
    activity, wait = labels(frames)
    salt = ""
    if service and activity == "unknown":
        activity, wait = "side_thread", "idle" if wait in ("unknown", "queue", "sleep", "io") else wait
        salt = "|service"  # the thread's name, not its frames, told: another row of stack_frames
    keys = tuple(frame.key for frame in frames)
    digest = hashlib.sha256(("\n".join(keys) + salt).encode("utf-8", "replace")).hexdigest()[:16]
    leaf = next((frame.key for frame in frames if not frame.native), None)
    leaf_key = next((frame.key for frame in frames if not is_wrapper(frame)), leaf)
    return Stack(digest, keys, leaf, leaf_key, _shown(frames), activity, wait, _role(frames, activity, wait))


def _shown(frames: Sequence[Frame]) -> tuple[str, ...]:
    """The innermost frames that tell a person where it is: no wrappers, and of a run of standard-library calls only the innermost."""
    found: list[str] = []
    in_library = False
    for frame in frames:
        if is_wrapper(frame):
            continue
        was, in_library = in_library, not frame.native and frame.module.partition("/")[0] in sys.stdlib_module_names
        if not (was and in_library) and frame.key not in found[-1:]:
            found.append(frame.key)
        if len(found) == SHOWN_FRAMES:
            break
    return tuple(found) or tuple(frame.key for frame in frames[:SHOWN_FRAMES])


def _role(frames: Sequence[Frame], activity: str, wait: str) -> str:
    """Role of the process by the root of this stack; `unknown` where the root is cut off or belongs to a helper thread."""
    keys = {frame.key for frame in frames}
    if "torch/utils/data/_utils/worker:_worker_loop" in keys:
        return "dataloader_worker"
    if any(frame.module.startswith("torch/_inductor/compile_worker") and frame.module.endswith("__main__") for frame in frames):
        return "compile_worker"
    if activity == "agent":
        return "agent"
    if any(frame.module in ("multiprocessing/resource_tracker", "multiprocessing/forkserver") for frame in frames):
        return "other"
    if any(frame.key.startswith("threading:_bootstrap") for frame in frames) or activity == "side_thread":
        return "unknown"
    trains = activity in ("train_step", "eval") or wait in ("collective", "p2p") or "torch/multiprocessing/spawn:_wrap" in keys
    if _FORK in keys:
        return "trainer" if trains else "other"
    root = next((frame for frame in reversed(frames) if not frame.native), None)
    if trains or (root is not None and root.function == "<module>"):
        return "trainer"
    return "unknown"
