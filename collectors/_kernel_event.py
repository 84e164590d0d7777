"""What one kernel line tells, before repeats are folded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["ADDRESS", "MESSAGE_CHARS", "Event", "gpu_address", "number"]

ADDRESS: Final = r"(?:[0-9a-fA-F]{1,8}:)?[0-9a-fA-F]{1,2}:[0-9a-fA-F]{1,2}(?:\.[0-7])?"  # of a PCI device; the domain may be missing
MESSAGE_CHARS: Final = 500  # of a line that a row keeps
_PARTS: Final = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.[0-7])?")


@dataclass(frozen=True, slots=True)
class Event:
    """Columns of `kernel_events` that a line fills. `what` tells apart lines of one kind; `folds_only`: only counts beside an open row."""

    kind: str
    message: str
    what: str = ""
    code: int | None = None
    gpu: str | None = None
    device: str | None = None
    pid: int | None = None
    process: str | None = None
    severity: str | None = None
    unit: str | None = None
    link: int | None = None
    caused_by: int | None = None
    recovery: str | None = None
    sub_code: int | None = None
    remote_effect: str | None = None
    driver_version: str | None = None
    gpu_uuid: str | None = None
    gpu_serial: str | None = None
    is_lower_bound: bool = False
    folds_only: bool = False


def gpu_address(text: str) -> str | None:
    """`dddd:bb:dd` of a PCI address in any spelling: function dropped, a missing domain is 0; None where it is none."""
    found = _PARTS.fullmatch(text.strip())
    if not found:
        return None
    return f"{int(found[1] or '0', 16):04x}:{int(found[2], 16):02x}:{int(found[3], 16):02x}"


def number(digits: str | None) -> int | None:
    """A printed number that fits a column; None for none or one that cannot be right."""
    return int(digits) if digits and len(digits) <= 18 else None
