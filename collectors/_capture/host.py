"""What this host and the trainers' programs are: kernel, driver, Python, torch, NCCL, their image, script and settings. Nothing of theirs is
imported or run."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collectors._capture.files import open_regular
from collectors._capture.find import Member
from collectors._capture.proc import read_text, sees_files_of

__all__ = ["driver_version", "versions"]

WANTED = re.compile(
    r"torch|numpy|triton|nvidia_(?:nccl|cudnn|cublas|cuda_runtime)_cu[0-9]{2}|deepspeed|megatron_core|lightning|transformers|flash_attn|transformer_engine"
)
IMAGE_VARIABLES = (
    "CONTAINER_IMAGE",
    "IMAGE_ID",
    "IMAGE_DIGEST",
    "APPTAINER_CONTAINER",
    "SINGULARITY_CONTAINER",
    "NVIDIA_PYTORCH_VERSION",
    "NVIDIA_BUILD_ID",
)
MAX_MAPS = 8 << 20
MAX_HASHED = 16 << 20  # bytes of a script or its configuration
MAX_FILES = 8  # of these, of one process
_TORCH = re.compile(r"(/\S.*/(?:site|dist)-packages)/torch/lib/\S+$", re.M)
_HASHED = re.compile(r"[^\0]{1,1000}\.(?:py|ya?ml|json|toml|ini|cfg|conf|gin)")
_IN_PATH = re.compile(r"/(?:lib|bin)/python([0-9]\.[0-9]{1,2})(?=/|$)")
_CONTAINER = re.compile(r'^(image|imageid)="?([^"\n]{1,300})"?$', re.M)
_LIBRARY = re.compile(r"(/\S.*/lib(?:nccl|cudart|cuda)\.so[.0-9]*)$", re.M)


def driver_version() -> str | None:
    """The NVIDIA driver's own line, where one is loaded."""
    text = read_text(Path("/proc/driver/nvidia/version"))
    return text.splitlines()[0].strip()[:300] if text else None


def versions(trainers: Sequence[Member]) -> dict[str, Any]:
    """Of the host, and of each distinct set of programs that trainers have loaded."""
    programs: dict[str, dict[str, Any]] = {}
    for member in trainers:
        found = _programs(member)
        key = repr(sorted(found.items(), key=str))
        programs.setdefault(key, found | {"ranks": []})["ranks"].append(member.rank)
    return {
        "kernel": platform.release(),
        "system": (read_text(Path("/etc/os-release")) or "").partition("PRETTY_NAME=")[2].splitlines()[:1],
        "nvidia_driver": driver_version(),
        "programs": list(programs.values()),
    }


def _programs(member: Member) -> dict[str, Any]:
    """Versions by what is mapped into the process: torch's folder tells where its packages lie. Null where it may not be looked at."""
    pid = member.process.pid
    maps = (read_text(Path(f"/proc/{pid}/maps")) or "")[:MAX_MAPS]
    try:
        python = str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        python = None
    found: dict[str, Any] = {"python": python, "libraries": sorted(set(_LIBRARY.findall(maps)))}
    packages = _TORCH.search(maps)
    told = _IN_PATH.search(packages[1]) if packages else _IN_PATH.search(python or "")
    found["python_version"] = told[1] if told else None
    found["packages"] = _packages(sees_files_of(pid, packages[1])) if packages else None
    found["image"] = _image(member)
    found["files"] = _hashes(member)
    return found


def _packages(folder: Path) -> dict[str, str]:
    """Versions by the names of the dist-info folders."""
    found = {}
    for path in sorted(folder.glob("*.dist-info")):
        name, _, version = path.name.removesuffix(".dist-info").partition("-")
        if WANTED.fullmatch(name.lower()):
            found[name.lower()] = version
    return found


def _image(member: Member) -> dict[str, str]:
    """The image of the process' container as its variables or podman's file tell it; empty where nothing does."""
    environ = member.process.environ or {}
    found = {name.lower(): environ[name][:300] for name in IMAGE_VARIABLES if environ.get(name)}
    told = read_text(sees_files_of(member.process.pid, "/run/.containerenv")) or ""
    return found | dict(_CONTAINER.findall(told))


def _hashes(member: Member) -> dict[str, str]:
    """Name -> SHA-256 (first 16 hex digits) of the script and the configuration files that the command line names."""
    found: dict[str, str] = {}
    for word in member.process.command[1:]:
        name = word.rpartition("=")[2]
        if len(found) < MAX_FILES and _HASHED.fullmatch(name) and (digest := _digest(sees_files_of(member.process.pid, name))):
            found[name.rpartition("/")[2]] = digest
    return found


def _digest(path: Path) -> str | None:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            data = file.read(MAX_HASHED + 1)
    except OSError:
        return None
    return hashlib.sha256(data).hexdigest()[:16] if len(data) <= MAX_HASHED else None
