"""What this host and the trainers' programs are: kernel, driver, Python, torch, NCCL. Nothing of theirs is imported or run."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collectors._capture.find import Member
from collectors._capture.proc import read_text, sees_files_of

__all__ = ["driver_version", "versions"]

WANTED = ("torch", "numpy", "triton", "nvidia_nccl_cu11", "nvidia_nccl_cu12", "nvidia_nccl_cu13", "deepspeed", "megatron_core", "lightning")
MAX_MAPS = 8 << 20
_TORCH = re.compile(r"(/\S.*/(?:site|dist)-packages)/torch/lib/\S+$", re.M)
_LIBRARY = re.compile(r"(/\S.*/lib(?:nccl|cudart|cuda)\.so[.\d]*)$", re.M)


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
    found["packages"] = _packages(sees_files_of(pid, packages[1])) if packages else None
    return found


def _packages(folder: Path) -> dict[str, str]:
    """Versions by the names of the dist-info folders."""
    found = {}
    for path in sorted(folder.glob("*.dist-info")):
        name, _, version = path.name.removesuffix(".dist-info").partition("-")
        if name.lower() in WANTED:
            found[name.lower()] = version
    return found
