"""How much a kernel record about a bus or a processor says: whose device it is, and whether it is a fault or only a sign.

1. Errors of the bus (AER) are of the device that the line names. Of a disk they are storage's, of a network adapter the network's; of a port the
   device below it is not told, unless the line gives the address of a GPU.
2. A non-fatal error lost one transaction, and the link goes on (PCI Express base specification, 6.2.2.2): alone it ended nothing for certain.
3. A processor that stood still for less than a minute, once, went on: the kernel says so whenever a task keeps it for over 20 s. So it does of one
   that has not passed through its quiet state for RCU: that is a task that kept it, until it is told again and again.
4. Floppies, discs, loop devices and memory cards hold no job's data; an error that somebody's command met on a disk is one of that command.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from rca.analyses._kernel_users import TRAINS

__all__ = ["bus_cause", "bus_gpu", "is_sign"]

STALLED_S: Final = 60  # so long a processor does not stand still for work alone
STALLS: Final = 3  # reports of it within a burst: it does not come back
DRIVER: Final = re.compile(r"([A-Za-z]\w{0,24}) (?=[0-9a-fA-F:.]{7,16}:? )")
STORAGE: Final = re.compile(r"nvme|ahci|mpt[23]sas|megaraid|aacraid|smartpqi|hpsa|virtio_blk|lpfc|qla2")
NETWORK: Final = re.compile(
    r"mlx[0-9]|bnxt|ice$|i40e|ixgbe|igb|igc|e1000|efa$|ena$|gve$|irdma|hfi1|be2net|cxgb|qed|tg3|nfp|ionic|idpf|hns3|atlantic|virtio_net"
)
ADDRESS: Final = re.compile(r"\b(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.[0-7]\b")
STALL: Final = re.compile(r"stuck for ([0-9]{1,9})s!")
RCU: Final = re.compile(r"(?i)\brcu\w{0,16}\b.{0,60}\bstall")
REMOVABLE: Final = re.compile(r"(?:fd|loop|sr|ram|zram|mmcblk)[0-9].*")
BY_COMMAND: Final = re.compile(r"\bcomm (?!kworker|jbd2|xfs|kswapd|flush|writeback|ext4)(\S{1,16}?):? ")  # of no thread of the kernel


def bus_cause(row: Mapping[str, Any]) -> str:
    """The cause that an error of the bus speaks for, by the driver of the device that the line names; of a port that of most devices below."""
    found = DRIVER.match(row["message"] or "")
    name = found[1] if found else ""
    return "storage_stall" if STORAGE.match(name) else "network_fault" if NETWORK.match(name) else "gpu_fault"


def bus_gpu(row: Mapping[str, Any], gpus: Collection[str]) -> str | None:
    """The one of these GPUs (`dddd:bb:dd`) whose address an error of the bus names, as reporter or as source; None where it names none."""
    named = [
        f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(slot, 16):02x}"
        for domain, bus, slot in ADDRESS.findall(row["message"] or "")
    ]
    return next((address for address in named if address in gpus), None)


def is_sign(row: Mapping[str, Any]) -> bool:
    """Whether a record alone is no fault: a non-fatal error of the bus, a short stall of a processor, a disk that no job uses."""
    text = row["message"] or ""
    if row["kind"] == "aer":
        return row["severity"] != "fatal" and re.search(r"(?i)non-?fatal", text) is not None
    if row["kind"] == "storage_nvme":
        command = BY_COMMAND.search(f"{text} ")
        return REMOVABLE.fullmatch(row["device"] or "") is not None or (command is not None and not TRAINS.match(command[1]))
    if row["kind"] != "lockup" or (row["num_folded"] or 1) >= STALLS:
        return False
    stall = STALL.search(text)
    return int(stall[1]) < STALLED_S if stall is not None else RCU.search(text) is not None
