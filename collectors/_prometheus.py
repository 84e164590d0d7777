"""A sample of Prometheus as a row: which families of metrics tell of GPUs, links and collectives, and what their labels say. Pure.

Families: DCGM and its exporter, other exporters of GPUs, the NCCL Inspector's text files, xpu_timer. Metrics of hosts, containers and programs are
none of them: `row` gives None and the reader counts them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from collectors._json_records import whole
from collectors._kernel_event import gpu_address
from collectors._stack_dump import host_label

__all__ = ["FAMILY", "HANG", "MAX_SERIES", "Scrapes", "hang_row", "is_family", "row"]

FAMILY: Final = (
    r"(?:DCGM_(?:FI|EXP|ST|FR)_|XPU_TIMER_|nccl_(?:bus_bandwidth|algorithm_bandwidth|collective_|p2p_|inspector_|coll_)|nvidia_(?:smi|gpu)_|gpud_|node_infiniband_"
    r"|amd_gpu_|rocm_|gpu_(?:junction_temperature|ecc_|xgmi_|pcie_))[A-Za-z0-9_:]{1,200}"
)
HANG: Final = "XPU_TIMER_COMMON_HANG"
MAX_SERIES: Final = 2_000_000  # of one file whose samples are numbered; those of more count as first ones
MAX_LABELS: Final = 4000  # characters kept of all labels

_IS_FAMILY: Final = re.compile(FAMILY)
_HOST: Final = (
    "Hostname",
    "hostname",
    "node",
    "nodename",
    "Node",
    "host",
    "kubernetes_node",
    "exported_node",
    "ip",
    "exported_instance",
    "instance",
)
_PCI: Final = ("pci_bus_id", "pci_bus", "pci_address", "pcie_bus_id", "bus_id")
_UUID: Final = ("UUID", "uuid", "gpu_uuid", "GPU_UUID")
_INDEX: Final = ("gpu", "gpu_id", "gpu_index", "minor_number", "index", "device")
_LINK: Final = ("nvlink", "link", "link_id", "port", "lane")
_COMM: Final = ("comm_name", "comm", "comm_hash", "comm_id", "communicator")
_OP: Final = ("collective", "p2p_operation", "operation")
_NOT_SET: Final = ("", "NOT_SET", "unknown", "N/A", "none")
_NUMBER: Final = re.compile(r"(?:GPU|gpu|nvidia|card|mlx5_)?[-_]?([0-9]{1,6})", re.A)
_EXEC: Final = re.compile(
    r"nccl_\w*?exec_time_(seconds|milliseconds|microseconds|nanoseconds)|XPU_TIMER_COLL_KERNEL_(?:AVG|MAX|MIN|P[0-9][0-9])_(LATENCY)"
)
_PER_S: Final = {
    "seconds": 1.0,
    "milliseconds": 1e3,
    "microseconds": 1e6,
    "nanoseconds": 1e9,
    "LATENCY": 1e6,
}  # xpu_timer counts microseconds
_TEMP: Final = ("DCGM_FI_DEV_GPU_TEMP", "nvidia_smi_temperature_gpu", "nvidia_gpu_temperature_celsius", "gpu_junction_temperature")
_MAX_TEMP_C: Final = 300  # above it stands for "not known"
_XID_VALUE: Final = ("DCGM_FI_DEV_XID_ERRORS", "nvidia_smi_xid_errors")
_MAX_XID: Final = 100_000
_SAYS_VALUE: Final = ("err_code", "err_msg")  # labels that repeat the value: it changes, and the series goes on


def is_family(name: str) -> bool:
    """Whether a metric tells of GPUs, links or collectives."""
    return _IS_FAMILY.match(name) is not None


class Scrapes:
    """Numbers the samples of each series of a file: 1, 2, ...

    In texts of whole scrapes, one behind the other, a series that first appears in a later one has the number of that scrape of its host.
    """

    def __init__(self, *, are_whole: bool) -> None:
        self._are_whole = are_whole
        self._seen: dict[int, int] = {}
        self._latest: dict[str | None, int] = {}

    def number(self, name: str, labels: Mapping[str, str]) -> int:
        """Which sample of its series the next one is."""
        series = hash((name, tuple(sorted((key, said) for key, said in labels.items() if key not in _SAYS_VALUE))))
        if series not in self._seen and len(self._seen) >= MAX_SERIES:
            return 1
        number, host = self._seen.get(series, 0) + 1, _host(labels) if self._are_whole else None
        if self._are_whole:
            number = self._latest[host] = max(number, self._latest.get(host, 1))
        self._seen[series] = number
        return number


def row(name: str, labels: Mapping[str, str], value: float | None, at: datetime | None, scrape: int) -> dict[str, Any] | None:
    """A row of `gpu_samples`, without its place; None for a metric of another family."""
    if not is_family(name):
        return None
    number = value if value is not None and math.isfinite(value) else None
    timed = _EXEC.fullmatch(name)
    window = _float(labels.get("window_size_in_ms"))
    rank = whole(labels.get("rank")) if name.startswith("XPU_TIMER_") else None
    return {
        "rank": rank if rank is not None and rank >= 0 else None,
        "name": name,
        "host": _host(labels),
        "gpu": next((found for key in _PCI if (found := gpu_address(labels.get(key, ""))) is not None), None),
        "gpu_index": _first_number(labels, _INDEX),
        "gpu_uuid": next((labels[key][:80] for key in _UUID if labels.get(key, "") not in _NOT_SET), None),
        "link": _first_number(labels, _LINK),
        "scrape": scrape,
        "sampled_at": at,
        "value": number,
        "code": _code(name, labels, number),
        "gpu_temp_c": number if name in _TEMP and number is not None and number < _MAX_TEMP_C else None,
        "exec_s": number / _PER_S[timed[1] or timed[2]] if timed and number is not None else None,
        "window_s": window / 1000 if window is not None else None,
        "comm": _text(labels, _COMM),
        "op": _text(labels, _OP),
        "labels": json.dumps(dict(labels))[:MAX_LABELS],
    }


def hang_row(labels: Mapping[str, str], value: float | None, at: datetime | None) -> dict[str, Any] | None:
    """A row of `rank_states` of a sample of HANG, without its place; None where it names no rank."""
    rank = whole(labels.get("rank"))
    if rank is None or rank < 0:
        return None
    is_told = value is not None and math.isfinite(value)
    return {"rank": rank, "host": _host(labels), "source": "xpu_timer", "is_hang": value != 0 if is_told else None, "logged_at": at}


def _host(labels: Mapping[str, str]) -> str | None:
    for key in _HOST:
        if (name := labels.get(key, "")) not in _NOT_SET:
            return host_label(re.sub(r":[0-9]{1,5}$", "", name[:255]) if key.endswith("instance") else name[:255])
    return None


def _text(labels: Mapping[str, str], keys: tuple[str, ...]) -> str | None:
    return next((labels[key][:200] for key in keys if labels.get(key, "") not in _NOT_SET), None)


def _first_number(labels: Mapping[str, str], keys: tuple[str, ...]) -> int | None:
    found = (_NUMBER.fullmatch(labels[key]) for key in keys if key in labels)
    return next((int(match[1]) for match in found if match), None)


def _code(name: str, labels: Mapping[str, str], value: float | None) -> int | None:
    """The Xid that the value of the gauge is, else that a label names; 0 is none."""
    code = whole(value if name in _XID_VALUE else labels.get("xid") if "XID" in name.upper() else None)
    return code if code is not None and 0 < code < _MAX_XID else None


def _float(text: str | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and math.isfinite(value) else None
