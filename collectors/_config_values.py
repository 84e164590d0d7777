"""Names and spellings of what runs on a host, so that two sources that say the same give the same component and value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from collectors._capture.withheld import is_plain, looks_secret, withheld
from rca.host_names import host_in_folder, host_in_name

__all__ = [
    "FAMILIES",
    "cuda_version",
    "driver_version",
    "host_of_path",
    "is_secret",
    "known",
    "nccl_version",
    "package",
    "plain_value",
    "scalar",
    "setting",
]

MAX_VALUE: Final = 400  # characters of a value that are kept
FAMILIES: Final = re.compile(r"(?:NCCL|TORCH|PYTORCH|CUDA|GLOO|UCX|FI|OFI)_[A-Z0-9_]{1,80}")  # of environment variables; no other is kept
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASS(?!IVE)|CREDENTIAL|COOKIE|BEARER|AUTH", re.I)  # in a name; its value is not kept
_IN_ADDRESS: Final = re.compile(r"://[^/@\s]{1,200}@")
_NAMED_BY: Final = (
    "pip:",
    "image:",
    "hash:",
    "firmware:",
)  # the rest is the name of a package, file or device, and the value a version of it
_DRIVER: Final = re.compile(r"(?<![0-9.])([0-9]{3,4}\.[0-9]{1,4}(?:\.[0-9]{1,4})?)(?![0-9.])")
_PYTHON: Final = re.compile(r"(?:Python )?([0-9]\.[0-9]{1,3}\.[0-9]{1,3})\b")
_KNOWN: Final[Mapping[str, tuple[str, ...]]] = {  # component -> spellings, with _ for every blank, dash and dot
    "nvidia_driver": (
        "driver",
        "driver_version",
        "nvidia_driver",
        "nvidia_driver_version",
        "gpu_driver",
        "gpu_driver_version",
        "cuda_driver_pkg",
    ),
    "kernel": ("kernel", "kernel_version", "kernel_release", "kernelversion", "uname", "uname_r"),
    "os": ("os", "os_image", "osimage", "os_version", "distro", "pretty_name"),
    "nccl": ("nccl", "nccl_version"),
    "cuda": ("cuda", "cuda_version", "cuda_toolkit", "cuda_toolkit_version"),
    "cudnn": ("cudnn", "cudnn_version"),
    "torch": ("torch", "torch_version", "pytorch", "pytorch_version"),
    "python": ("python", "python_version"),
    "vbios": ("vbios", "vbios_version", "gpu_vbios"),
    "ofed": ("ofed", "ofed_version", "mlnx_ofed", "mofed", "mofed_version", "doca_ofed"),
    "firmware": ("firmware", "fw", "fw_version", "fw_ver", "hca_firmware", "nic_firmware", "firmware_version"),
    "image": ("image", "container", "container_image", "image_id", "imageid", "image_digest", "container_image_id"),
}
_BY_SPELLING: Final = {spelling: name for name, spellings in _KNOWN.items() for spelling in spellings}


def known(name: str) -> str | None:
    """The component that a common spelling means; None for any other name."""
    return _BY_SPELLING.get(re.sub(r"[\s.\-]+", "_", name.strip().lower()))


def scalar(value: Any) -> str | None:
    """A value as text: words, numbers and truths; None for what is none, empty or holds a secret."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and abs(value) < 1e18:
        return str(value)
    if not isinstance(value, str):
        return None
    text = " ".join(value.encode("utf-8", "replace").decode().split())[:MAX_VALUE]
    return (
        None
        if not text or _IN_ADDRESS.search(text) or text.lower() in ("n/a", "[n/a]", "none", "null", "unknown", "[not supported]")
        else text
    )


def setting(component: str, value: Any) -> str | None:
    """A value as `scalar` gives it; of what looks like a secret only the mark that lets a difference between hosts be seen.

    A variable must have the shape of a setting; a hash, image or version only must not tell that it is a secret.
    """
    text = scalar(value)
    if not isinstance(value, str):
        return text
    if text is None:
        return withheld(component, value) if _IN_ADDRESS.search(value) else None
    is_kept = is_plain(value) if component.startswith("env:") else not looks_secret(value)
    return text if is_kept else withheld(component, value)


def is_secret(component: str) -> bool:
    """Whether the name of a setting says that its value is nobody's business."""
    return not component.startswith(_NAMED_BY) and _SECRET.search(component) is not None


def package(name: str) -> str:
    """A package as the index names it: pip:nvidia-nccl-cu12."""
    return "pip:" + re.sub(r"[-_.]+", "-", name.strip().lower())


def driver_version(text: str) -> str | None:
    """The version in what names an NVIDIA driver, however much stands round it."""
    found = _DRIVER.search(text)
    return found[1] if found else None


def plain_value(component: str, text: str) -> str:
    """The value without what only some sources print beside it: of a driver and of Python the version alone."""
    if component == "nvidia_driver":
        return driver_version(text) or text
    found = _PYTHON.match(text) if component == "python" else None
    return found[1] if found else text


def nccl_version(code: int) -> str | None:
    """2.21.5 of 22105; until 2.8 a version had one digit less for its minor part (2708 is 2.7.8)."""
    if 1000 <= code < 10000:
        return f"{code // 1000}.{code // 100 % 10}.{code % 100}"
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}" if 10000 <= code < 1_000_000 else None


def cuda_version(code: int) -> str | None:
    """12.4 of 12040."""
    return f"{code // 1000}.{code % 1000 // 10}" if 1000 <= code < 100_000 else None


def host_of_path(path: str) -> str | None:
    """The host that the name of a file, else of its folder states (`rca.host_names`)."""
    where = PurePosixPath(path)
    return host_in_name(where.name) or host_in_folder(where.parent.name)
