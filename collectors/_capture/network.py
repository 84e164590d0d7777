"""The network of this host: its addresses, which the errors of others name, and the firmware of its adapters. Read from /proc and /sys."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

from collectors._capture.proc import read_text

__all__ = ["adapters", "addresses"]

MAX_ADDRESSES = 200  # a host of many containers has a bridge and more for each
_OWN = re.compile(r"\|-- ([0-9]{1,3}(?:\.[0-9]{1,3}){3})\s+/32 host LOCAL")
_LINK_LOCAL = "20"  # scope of an IPv6 address, as the kernel prints it
_WANTED = ("fw_ver", "hca_type", "board_id")


def addresses(net: Path = Path("/proc/net")) -> list[str]:
    """The host's own IPv4 and IPv6 addresses, sorted; loopback and link-local ones are every host's and left out."""
    found = {ipaddress.ip_address(text) for text in _OWN.findall(read_text(net / "fib_trie") or "") if _is_address(text)}
    for line in (read_text(net / "if_inet6") or "").splitlines():
        fields = line.split()
        if len(fields) == 6 and fields[3] != _LINK_LOCAL and re.fullmatch(r"[0-9a-f]{32}", fields[0]):
            found.add(ipaddress.ip_address(int(fields[0], 16).to_bytes(16, "big")))
    kept = [address for address in found if not (address.is_loopback or address.is_link_local or address.is_unspecified)]
    return [str(address) for address in sorted(kept, key=lambda a: (a.version, int(a)))][:MAX_ADDRESSES]


def _is_address(text: str) -> bool:
    return all(int(part) < 256 for part in text.split("."))


def adapters(root: Path = Path("/sys/class/infiniband")) -> dict[str, dict[str, str]]:
    """RDMA device -> firmware, model and board, as the driver gives them; empty without any."""
    found = {}
    try:
        devices = sorted(root.iterdir())
    except OSError:
        return {}
    for device in devices:
        told = {name: " ".join(text.split())[:100] for name in _WANTED if (text := read_text(device / name))}
        if told:
            found[device.name] = told
    return found
