"""What the driver says once for all lines that follow: its version, and which GPU (UUID, serial number) sits in which slot.

An address is a slot: hosts of one kind share them, and after a repair another GPU sits there. The driver names the GPU of a slot before
that GPU's first Xid, so the last one named before an event is meant. By the clock, not by the place: files are reversed and glued.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from collectors._kernel_clock import Stamp, gap_s
from collectors._kernel_event import ADDRESS, gpu_address
from collectors._kernel_nvlink import NVLINK5_XIDS, decoded, nvlink_line
from collectors._kernel_prefix import Line

__all__ = ["IDENTITY_MARKERS", "Slots"]

IDENTITY_MARKERS: Final = ("NVRM: GPU at ", "GPU Board Serial Number", "GPU serial number is", "NVIDIA UNIX ", "Kernel Mode Setting Driver")
MAX_SAID: Final = 100_000  # facts of a file that are kept; a driver that is loaded so often names the same GPUs
NEXT_LINE_S: Final = 1.0  # between the line that names a GPU and the one with its serial number
_UUID: Final = re.compile(rf"NVRM: GPU at (?:PCI:)?(?P<pci>{ADDRESS}): (?P<uuid>GPU-[0-9a-fA-F\-]{{4,40}})")
_BOARD: Final = re.compile(r"NVRM: GPU Board Serial Number: (?P<serial>[0-9A-Za-z\-]{1,40})")
_SERIAL: Final = re.compile(rf"NVRM: GPU (?:at )?(?:PCI:)?(?P<pci>{ADDRESS}): GPU serial number is (?P<serial>[0-9A-Za-z\-]{{1,40}})")
_DRIVER: Final = re.compile(
    r"(?:NVRM: loading |NVRM version: |nvidia-modeset: Loading )NVIDIA (?:UNIX"
    r"|Kernel Mode).{0,80}?\s(?P<version>[0-9]{3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?)\b"
)

Slot = tuple[str | None, str | None]  # host, gpu (None: the driver of the host)


@dataclass(frozen=True, slots=True)
class _Said:
    """One fact and when it was said."""

    what: str
    stamp: Stamp
    boot_id: str | None


@dataclass
class Slots:
    """Collects the driver's facts of all hosts of a file, then fills rows of events with them."""

    _uuids: dict[Slot, list[_Said]] = field(default_factory=lambda: defaultdict(list))
    _serials: dict[Slot, list[_Said]] = field(default_factory=lambda: defaultdict(list))
    _drivers: dict[Slot, list[_Said]] = field(default_factory=lambda: defaultdict(list))
    _named: dict[str | None, str] = field(default_factory=dict)  # host -> slot named last: the next line gives its serial number
    _loose: dict[str | None, _Said] = field(
        default_factory=dict
    )  # host -> serial number of the slot that the next line names: a reversed file
    _num_said: int = 0

    def learn(self, line: Line) -> bool:
        """Takes in a line that states such a fact; False for any other line."""
        if found := _UUID.match(line.body):
            if gpu := gpu_address(found["pci"]):
                self._add(self._uuids, gpu, found["uuid"], line)
                loose = self._loose.pop(line.host, None)
                if loose is None:
                    self._named[line.host] = gpu
                elif abs(gap_s(loose.stamp, line.stamp) or 0.0) <= NEXT_LINE_S:
                    self._add(self._serials, gpu, loose.what, line)
        elif found := _BOARD.match(line.body):
            if gpu := self._named.pop(line.host, None):
                self._add(self._serials, gpu, found["serial"], line)
            else:
                self._loose[line.host] = _Said(found["serial"], line.stamp, line.boot_id)
        elif found := _SERIAL.match(line.body):
            self._add(self._serials, gpu_address(found["pci"]), found["serial"], line)
        elif found := _DRIVER.match(line.body):
            self._add(self._drivers, None, found["version"], line)
        else:
            return False
        return True

    def _add(self, facts: dict[Slot, list[_Said]], gpu: str | None, what: str, line: Line) -> None:
        if self._num_said < MAX_SAID:
            self._num_said += 1
            facts[line.host, gpu].append(_Said(what, line.stamp, line.boot_id))

    def fill(self, events: Sequence[dict[str, Any]]) -> None:
        """Puts driver, UUID and serial number into rows of `kernel_events`, and what follows from the driver for lines of NVLink."""
        if not self._num_said:
            return
        for row in events:
            if row["kind"] in ("xid", "bus_loss", "other") and (driver := _last(self._drivers.get((row["host"], None), ()), row)):
                row["driver_version"] = driver
            if row["kind"] in ("xid", "bus_loss") and row["gpu"]:
                row["gpu_uuid"] = _last(self._uuids.get((row["host"], row["gpu"]), ()), row)
                row["gpu_serial"] = _last(self._serials.get((row["host"], row["gpu"]), ()), row)
            _decode(row)


def _last(said: Sequence[_Said], row: dict[str, Any]) -> str | None:
    """The fact that holds at an event: the last one before it by the clock, or the only one that the file ever states."""
    stamp = Stamp(row["logged_at"], row["logged_at_local"], row["uptime_s"])
    boot = row["boot_id"]
    of_boot = [fact for fact in said if None in (boot, fact.boot_id) or fact.boot_id == boot]
    if len({fact.what for fact in of_boot}) <= 1:
        return of_boot[0].what if of_boot else None
    gaps = [(gap, fact.what) for fact in of_boot if (gap := _wall_gap_s(fact.stamp, stamp)) is not None]
    if len(gaps) < len(of_boot):
        return None  # which of them came last is not known
    return min(((gap, what) for gap, what in gaps if gap >= 0), default=(0.0, None))[1]


def _wall_gap_s(a: Stamp, b: Stamp) -> float | None:
    """Seconds from `a` to `b` by the wall clock: the time since boot says nothing across boots."""
    return gap_s(Stamp(a.at, a.local), Stamp(b.at, b.local))


def _decode(row: dict[str, Any]) -> None:
    """What the sheet says of the first line of a row, where it is of NVLink and its driver is known. A recovery that is already said stays."""
    if row["kind"] != "xid" or row["code"] not in NVLINK5_XIDS or not row["driver_version"]:
        return
    line = nvlink_line(row["message"])
    found = decoded(row["code"], line, row["driver_version"]) if line else None
    if found:
        row["recovery"] = row["recovery"] or found.recovery
        row["remote_effect"] = found.remote_effect
