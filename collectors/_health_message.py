"""Codes, GPUs and recommended actions in the words of health services.

`[CODE, CODE2] text - RecommendedAction: X` (NVSentinel's documentation), `ErrorCode:79 PCI:0000:b4:00 GPU_UUID:GPU-... text Recommended Action=X;`
(its conditions and events: several such parts, each ended by a semicolon), `XID 79 (...) detected on GPU PCI:0000:05:00 UUID:GPU-...` (gpud),
the driver's own line, and reasons such as NvidiaXID79Error (EKS node monitoring agent).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from collectors._kernel_event import gpu_address

__all__ = ["Said", "gpu_of", "said", "xid_of"]

MAX_CHARS: Final = 4000
_BRACKET: Final = re.compile(r"\s{0,8}\[(?P<codes>[A-Za-z0-9_.:,\- ]{1,300})\]")
_CODE: Final = re.compile(r"(?=[^0-9_]{0,80}[0-9_])[A-Za-z0-9_.:\-]{1,80}")  # a level of a log is none
_ERROR_CODE: Final = re.compile(r"\b(?:Error|Fault) ?Code[:=] ?(?P<code>[A-Za-z0-9_.\-]{1,80})", re.I)
_ACTION: Final = re.compile(r"\bRecommended ?Action(?:[:=]| is) {0,4}(?P<action>[A-Za-z][A-Za-z0-9_]{0,60})", re.I)
_PCI: Final = re.compile(r"\bPCI[: =]{1,3}(?P<pci>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?)(?![0-9a-f:])", re.I)
_ADDRESS: Final = re.compile(r"(?<![0-9a-f:])(?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?)(?![0-9a-f:])", re.I)
_UUID: Final = re.compile(r"\b(?P<uuid>GPU-[0-9A-Za-z](?:[0-9A-Za-z\-]{2,60}))")
_GPU: Final = re.compile(r"\bGPU(?:[:#=]| index | id | number | ) {0,2}(?P<gpu>[0-9]{1,3})\b(?![.:%][0-9]| ?(?:x|GB|GiB|GPUs|of)\b)", re.I)
_XID: Final = re.compile(
    r"(?<![A-Za-z])(?:nvidia|gpu)?_?Xid(?:[ _-]?(?:error|code))?s?[ _:#=\-]{0,3}(?:\([^)]{0,60}\) ?: ?)?(?P<xid>[0-9]{1,3})(?![0-9])", re.I
)
_XID_CODE: Final = re.compile(r"(?:(?:nvidia|gpu)?_?xid(?:_?error)?[ _:\-]{0,3})(?P<xid>[0-9]{1,3})(?:_?(?:error|warning))?", re.I)

_SXID: Final = re.compile(r"(?:(?<![a-z])|syslogs|nvidia|gpu)s_?xid", re.I)  # a switch's; SysLogsXIDError is none


class Said(NamedTuple):
    """What a message says; None for what it does not. `gpu`: dddd:bb:dd, else the number as written."""

    codes: tuple[str, ...]
    xid: int | None
    gpu: str | None
    gpu_uuid: str | None
    action: str | None


def said(message: str, *reasons: str | None) -> Said:
    """What a message says, and for the Xid the reasons beside it (names of checks and conditions)."""
    text = message[:MAX_CHARS]
    found = _BRACKET.match(text)
    codes = tuple(code for part in found["codes"].split(",") if _CODE.fullmatch(code := part.strip())) if found else ()
    codes = codes or tuple(dict.fromkeys(match["code"] for match in _ERROR_CODE.finditer(text)))
    action, uuid = _ACTION.search(text), _UUID.search(text)
    address = _PCI.search(text) or _ADDRESS.search(text)
    number = _GPU.search(text)
    gpu = gpu_address(address["pci"]) if address else None
    return Said(codes, xid_of(codes, text, *reasons), gpu or (number["gpu"] if number else None), uuid["uuid"] if uuid else None,
                action["action"] if action else None)  # fmt: skip


def xid_of(codes: Iterable[str], *words: str | None) -> int | None:
    """The Xid: a code that is one by name (XID_79, NvidiaXID79Error) or a bare number where the words speak of Xids; else what the words say."""
    speaks = any(word and "xid" in word.lower() and not _SXID.search(word) for word in words)
    for code in codes:
        if named := _XID_CODE.fullmatch(code):
            return int(named["xid"])
        if speaks and code.isascii() and code.isdigit() and len(code) <= 3:
            return int(code)
    found = (match for word in words if word and not _SXID.search(word) for match in [_XID.search(word)] if match)
    return next((int(match["xid"]) for match in found), None)


def gpu_of(value: str) -> str | None:
    """A GPU as the tables name it: its address without function, else as written; None for nothing."""
    text = value.strip()
    return gpu_address(text.removeprefix("PCI:")) or text[:80] or None
