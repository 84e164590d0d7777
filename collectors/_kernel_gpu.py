"""Lines of the GPU and NVSwitch drivers: Xid, SXid, lost from the bus. The code counts, not the words beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from collectors._kernel_event import ADDRESS, MESSAGE_CHARS, Event, gpu_address, number
from collectors._kernel_nvlink import NVLINK5_XIDS, nvlink_line
from collectors._kernel_slots import IDENTITY_MARKERS

__all__ = ["ENGINE", "GPU_HEADER", "MARKERS", "ends_bus_loss", "gpu_event", "lost_from_bus", "rate_limited_gpu"]

MARKERS: Final = (
    "Xid",
    "fallen off the bus",
    "The NVIDIA GPU ",
    "detected NVSwitch ",
    "Rate limiting GSP RPC",
    "determine the device handle",
    *IDENTITY_MARKERS,
)
ENGINE: Final = "Severity"  # `what` of the line of an SXid that names an engine, not a link

# What the driver names: an address, also one that somebody has blanked. Other words in parentheses are prose, and a %s is a program.
_NAMED: Final = rf"(?:PCI:(?!\.\*)(?P<pci>[0-9A-Za-z.:\u2026*#<>_\-]{{0,40}})|(?P<pci2>{ADDRESS}|\.{{2,3}}|\u2026))"
_CODE_ENDS: Final = r"(?=$|[\s,;.()\[\]}|<>\"'`])"  # behind anything else the number is torn
_XID: Final = re.compile(
    rf"(?:NVRM: )?Xid\s{{0,4}}\(\s{{0,4}}{_NAMED}(?:\s+GPU-I:[0-9]{{1,4}})?(?:\s+GPU-CI:[0-9]{{1,4}})?\s{{0,4}}\)\s{{0,4}}:\s{{0,4}}"
    rf"(?P<code>[0-9]{{1,6}}){_CODE_ENDS}[,\s]{{0,4}}(?P<rest>.{{0,4000}})",
    re.DOTALL,
)
_SXID: Final = re.compile(
    rf"(?:nvidia-nvswitch[0-9]{{1,4}}: )?SXid\s{{0,4}}\({_NAMED}\)\s{{0,4}}:\s{{0,4}}"
    rf"(?P<code>[0-9]{{5,6}}){_CODE_ENDS}[,\s]{{0,4}}(?P<rest>.{{0,4000}})",
    re.DOTALL,
)
_SWITCH_BY_MANAGER: Final = re.compile(
    rf".{{0,200}}?detected NVSwitch (?P<severity>fatal|non-fatal) error (?P<code>[0-9]{{1,6}}) on .{{0,80}}?pci bus id (?P<pci>{ADDRESS})"
    r"(?:.{0,60}? port (?P<link>[0-9]{1,4}))?"
)
_PROCESS: Final = re.compile(r"(?:pid='?(?P<pid>[0-9]{1,10}|<unknown>)'?,?\s{0,4})?(?:name=(?P<name>[^,\n]{1,64})(?:,\s{0,4}|$))?")
_CAUSED_BY: Final = re.compile(r"caused by previous Xid ([0-9]{1,6})")
_LINK: Final = re.compile(r"\b[Ll]ink (-?[0-9]{1,4})\b")
_INSTANCE: Final = re.compile(r"Severity [0-9] Engine instance ([0-9]{1,4})")
_SM: Final = re.compile(r"\(GPC ([0-9]{1,3}), TPC ([0-9]{1,3}), SM ([0-9]{1,3})\)")
_MMU: Final = re.compile(r"MMU Fault: ENGINE (\S{1,40}) (\S{1,60}) faulted")
_CONTAINED: Final = re.compile(
    r"(?:Uncontained|Contained): (?P<unit>[A-Za-z0-9 ]{1,40}?)(?: \(|\.|$)(?:.{0,200}?RST: (?P<reset>Yes|No), D-RST: (?P<drain>Yes|No))?"
)
_VERDICT: Final = re.compile(r"to 0x([0-9a-fA-F]{1,4}) \(")
_VERDICTS: Final = {0: "none", 1: "reset", 2: "reboot", 3: "drain", 4: "drain_reset", 5: "imex"}  # of ctrl2080gpu.h
# The driver's summary of an uncorrectable error: how many in which part of the chip.
_COUNTS: Final = re.compile(r"\b([A-Z][A-Z0-9]{1,8}): ?([1-9][0-9]{0,9})\b")
_INTERRUPTED: Final = re.compile(r"([A-Z][A-Z0-9_]{1,30}) interrupt hit on link")

GPU_HEADER: Final = re.compile(r"NVRM: The NVIDIA GPU (?P<pci>\S{1,40})")
_LOST: Final = re.compile(rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?(?P<pci>{ADDRESS})\b.{{0,200}}?\bfallen off the bus", re.DOTALL)
_LOST_REST: Final = re.compile(
    r"(?:NVRM: )?(?:\(PCI ID: [^)]{0,20}\) )?(?:installed in this system has )?fallen off the bus and is not responding"
)
_NO_HANDLE: Final = re.compile(
    rf".{{0,200}}?[Uu]nable to determine the device handle for (?:GPU|gpu)(?:[0-9]{{1,3}}: )?\s?(?P<pci>{ADDRESS})"
)
_RATE_LIMITED: Final = re.compile(rf"NVRM: Rate limiting GSP RPC error prints for GPU at (?:PCI:)?(?P<pci>{ADDRESS})")


def gpu_event(body: str) -> Event | None:
    """The event of a driver's line; None for any other line."""
    if found := _XID.match(body):
        return _xid(found, body[:MESSAGE_CHARS])
    if found := _SXID.match(body):
        return _sxid(found, body[:MESSAGE_CHARS])
    if found := _SWITCH_BY_MANAGER.match(body):
        severity = found["severity"].replace("-", "")
        code = number(found["code"])
        return Event("sxid", body[:MESSAGE_CHARS], code=code, gpu=gpu_address(found["pci"]), severity=severity, link=number(found["link"]))
    if found := _LOST.match(body) or _NO_HANDLE.match(body):
        return lost_from_bus(gpu_address(found["pci"]), body)
    return None


def lost_from_bus(gpu: str | None, body: str) -> Event:
    """A GPU that no longer answers on the bus, told without an Xid."""
    return Event("bus_loss", body[:MESSAGE_CHARS], gpu=gpu)


def rate_limited_gpu(body: str) -> str | None:
    """The GPU of which the driver says that it will no longer print every time-out."""
    found = _RATE_LIMITED.match(body)
    return gpu_address(found["pci"]) if found else None


def ends_bus_loss(body: str) -> bool:
    """The last line of the message of three lines whose first one names the GPU."""
    return _LOST_REST.match(body) is not None


def _sxid(found: re.Match[str], message: str) -> Event:
    rest = found["rest"]
    severity = {"F": "fatal", "N": "nonfatal"}.get(rest[:1])
    link = _LINK.search(rest) if severity else _INSTANCE.match(rest)
    return Event(
        "sxid",
        message,
        what=rest.split(" ", 1)[0],
        code=number(found["code"]),
        gpu=gpu_address(found["pci"] or found["pci2"] or ""),
        severity=severity,
        link=int(link[1]) if link else None,
    )


def _xid(found: re.Match[str], message: str) -> Event:
    rest, code = found["rest"], int(found["code"])
    said = _PROCESS.match(rest)
    pid = said["pid"] if said and said["pid"] not in (None, "0", "<unknown>") else None
    name = said["name"] if said and said["name"] not in (None, "<unknown>") else None
    text = rest[said.end() :] if said else rest
    caused_by = _CAUSED_BY.search(text)
    details = _DETAILS.get(code, _nothing)(text)
    return Event(
        "xid",
        message,
        code=code,
        gpu=gpu_address(found["pci"] or found["pci2"] or ""),
        pid=number(pid),
        process=name.strip() if name else None,
        caused_by=int(caused_by[1]) if caused_by else None,
        severity=details.get("severity"),
        unit=details.get("unit"),
        recovery=details.get("recovery"),
        link=int(link) if (link := details.get("link")) else None,
        sub_code=line.sub_code if code in NVLINK5_XIDS and (line := nvlink_line(text)) else None,
    )


Details = Mapping[str, str | None]


def _nothing(text: str) -> Details:
    return {}


def _sm(text: str) -> Details:
    found = _SM.search(text)
    return {"unit": f"GPC{found[1]}/TPC{found[2]}/SM{found[3]}"} if found else {}


def _mmu(text: str) -> Details:
    found = _MMU.search(text)
    return {"unit": f"{found[1]} {found[2]}"} if found else {}


def _remap(text: str) -> Details:
    return {"recovery": "reset"} if "reset gpu" in text.lower() else {}


def _link(text: str) -> Details:
    found = _LINK.search(text)
    unit = _INTERRUPTED.search(text)
    return {"link": found[1] if found else None, "unit": unit[1] if unit else None}


def _contained(text: str) -> Details:
    found = _CONTAINED.search(text)
    if not found:
        return {"severity": "uncorrected"}
    needs = {("Yes", "No"): "reset", ("Yes", "Yes"): "drain_reset", ("No", "Yes"): "drain_reset", ("No", "No"): "none"}
    return {"severity": "uncorrected", "unit": found["unit"].strip(), "recovery": needs.get((found["reset"], found["drain"]))}


def _gsp(text: str) -> Details:
    return {"unit": "GSP"}


def _uncorrectable(text: str) -> Details:
    units = [unit for unit, _ in _COUNTS.findall(text)]
    return {"severity": "uncorrected", "unit": (units[0] if len(units) == 1 else "several") if units else None}


def _nvlink5(text: str) -> Details:
    found = nvlink_line(text)
    return {"unit": found.unit, "severity": found.severity, "link": str(found.link)} if found else {}


def _verdict(text: str) -> Details:
    found = _VERDICT.search(text)
    return {"recovery": _VERDICTS.get(int(found[1], 16))} if found else {}


_DETAILS: Final[Mapping[int, Callable[[str], Details]]] = {
    13: _sm,
    31: _mmu,
    **dict.fromkeys((63, 64), _remap),
    **dict.fromkeys((74, 136, 137), _link),
    **dict.fromkeys((94, 95), _contained),
    **dict.fromkeys((119, 120), _gsp),
    140: _uncorrectable,
    **dict.fromkeys(NVLINK5_XIDS, _nvlink5),
    154: _verdict,
}
