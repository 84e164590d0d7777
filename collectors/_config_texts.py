"""Components of one host as its tools print them: packages of pip, variables, torch's collect_env, nvidia-smi."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from collectors._config_tables import Fact
from collectors._config_values import FAMILIES, is_secret, package, plain_value, setting

__all__ = ["Reader", "form_of"]

MAX_LINE: Final = 2000  # characters of a line that are looked at
ENOUGH: Final = 3  # lines of packages or variables that make such a file
MOST: Final = 0.6  # of the lines of the head must be such
Reader = Callable[[Sequence[str], str | None], Iterator[Fact]]  # lines, host -> facts

_FROZEN: Final = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]{0,80})(?:\[[\w,. -]{0,80}\])?(?:==(?P<version>[\w.+!-]{1,80})| @ (?P<url>\S{1,400}))(?: {0,9};.{0,200})?$"
)
_LISTED: Final = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]{0,80}) {1,80}(?P<version>[0-9][\w.+!-]{0,80})(?: {1,80}\S{1,300})?$")
_LIST_HEAD: Final = re.compile(r"Package +Version\b")
_VARIABLE: Final = re.compile(r"(?:export |declare -x )?(?P<name>[A-Za-z_]\w{0,100})=(?P<value>.{0,1500})")
_FAMILY: Final = re.compile(rf"(?:export |declare -x )?{FAMILIES.pattern}=")
_COLLECT: Final = re.compile(r"(?:Collecting environment information|PyTorch version: ?\S)")
_COLLECTED: Final[Mapping[str, str]] = {
    "PyTorch version": "torch",
    "CUDA used to build PyTorch": "torch_cuda",
    "OS": "os",
    "GCC version": "gcc",
    "Libc version": "libc",
    "Python version": "python",
    "CUDA runtime version": "cuda",
    "Nvidia driver version": "nvidia_driver",
    "cuDNN version": "cudnn",
    "Is XNNPACK available": "xnnpack",
    "MIOpen runtime version": "miopen",
    "HIP runtime version": "hip",
}
_SAID: Final = re.compile(r"\s{0,4}(?P<name>[A-Z][\w ]{1,40}?) {0,60}: ?(?P<value>\S.{0,300})$")
_IN_COLLECT: Final = re.compile(r"\[(?:pip3?|conda)\] (?P<name>[A-Za-z0-9][\w.-]{0,80})(?:==| {1,40})(?P<version>[0-9][\w.+!-]{0,80})")
_SMI: Final = re.compile(r"NVSMI LOG=|\| NVIDIA-SMI [0-9]")
_SMI_TABLE: Final = re.compile(
    r"Driver Version: {0,9}(?P<nvidia_driver>[0-9][0-9.]{2,20}) {1,20}CUDA Version: {0,9}(?P<cuda_driver>[0-9][0-9.]{1,10})"
)
_SMI_FIELD: Final[Mapping[str, str]] = {
    "Driver Version": "nvidia_driver",
    "CUDA Version": "cuda_driver",
    "VBIOS Version": "vbios",
    "GSP Firmware Version": "gsp_firmware",
    "Product Name": "gpu_model",
    "Image Version": "inforom_image",
}
_QUERY: Final[
    Mapping[str, str]
] = {  # fields of --query-gpu that are the same on sound hosts of one kind; the others are measurements or identities
    "driver_version": "nvidia_driver",
    "vbios_version": "vbios",
    "name": "gpu_model",
    "gpu_name": "gpu_model",
    "memory.total": "gpu_memory",
    "inforom.img": "inforom_image",
    "inforom.image": "inforom_image",
    "ecc.mode.current": "ecc_mode",
    "mig.mode.current": "mig_mode",
    "persistence_mode": "persistence_mode",
    "compute_mode": "compute_mode",
    "power.limit": "power_limit",
    "enforced.power.limit": "power_limit_enforced",
    "power.max_limit": "power_limit_max",
    "clocks.max.sm": "sm_clock_max",
    "clocks.max.memory": "memory_clock_max",
    "pcie.link.gen.max": "pcie_gen_max",
    "pcie.link.width.max": "pcie_width_max",
    "pcie.link.width.current": "pcie_width",
    "gsp.mode.current": "gsp_mode",
}
_DEVICE: Final = frozenset({"index", "uuid", "serial", "pci.bus_id", "gpu_uuid", "gpu_serial", "gpu_bus_id"})
_COUNTING: Final = frozenset(
    {"driver_version", "vbios_version", *(name for name in _QUERY if "." in name or "_mode" in name)}
)  # no other table has
_SHELL_HOST: Final = re.compile(r"(?P<host>[A-Za-z][\w.-]{0,62}): (?=\S)")  # pdsh, clush


def form_of(lines: Sequence[str]) -> Reader | None:
    """How a file that begins with these lines is read; None where no tool prints such."""
    said = [line for line in lines if line.strip() and not line.startswith("#")]
    if not said:
        return None
    start = "\n".join(said[:12])
    if _SMI.search(start):
        return _smi
    if _COLLECT.search(start) and sum(":" in line for line in said[:12]) >= ENOUGH:
        return _collected
    if _query_columns(said[0]) is not None:
        return _queried
    if _LIST_HEAD.match(said[0]) or _share(said, _FROZEN) >= MOST:
        return _packages if len(said) >= ENOUGH else None
    if _share(said, _VARIABLE) >= MOST and sum(_FAMILY.match(line) is not None for line in said) and len(said) >= ENOUGH:
        return _variables
    return None


def _share(lines: Sequence[str], pattern: re.Pattern[str]) -> float:
    return sum(pattern.match(line[:MAX_LINE].rstrip()) is not None for line in lines) / len(lines)


def _numbered(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, 1):
        yield f"L{number}", line[:MAX_LINE].rstrip()


def _fact(record: str, host: str | None, component: str, value: str, source: str) -> Iterator[Fact]:
    text = setting(component, value)
    if text is not None:
        yield Fact(record, host, component, plain_value(component, text), source)


def _packages(lines: Sequence[str], host: str | None) -> Iterator[Fact]:
    """pip freeze and pip list; a package from a place has that as its version."""
    for record, line in _numbered(lines):
        found = _FROZEN.match(line) or _LISTED.match(line)
        if found:
            said = found.groupdict()
            yield from _fact(record, host, package(found["name"]), said["version"] or said.get("url") or "", "pip")


def _variables(lines: Sequence[str], host: str | None) -> Iterator[Fact]:
    """Variables of the families that steer communication and CUDA; no other is kept."""
    for record, line in _numbered(lines):
        found = _VARIABLE.match(line)
        if found and FAMILIES.fullmatch(found["name"]) and not is_secret(found["name"]):
            yield from _fact(record, host, f"env:{found['name']}", found["value"].strip("\"'"), "env")


def _collected(lines: Sequence[str], host: str | None) -> Iterator[Fact]:
    for record, line in _numbered(lines):
        if found := _IN_COLLECT.match(line):
            yield from _fact(record, host, package(found["name"]), found["version"], "collect_env")
        elif (found := _SAID.match(line)) and (component := _COLLECTED.get(found["name"])):
            for fact in _fact(record, host, component, found["value"], "collect_env"):
                if not fact.value.startswith(("Could not collect", "Not found")):
                    yield fact


def _smi(lines: Sequence[str], host: str | None) -> Iterator[Fact]:
    """`nvidia-smi -q` and the table that `nvidia-smi` prints."""
    for record, line in _numbered(lines):
        if table := _SMI_TABLE.search(line):
            for component, value in table.groupdict().items():
                yield from _fact(record, host, component, value, "nvidia_smi")
        elif (said := _SAID.match(line.strip())) and said["name"] in _SMI_FIELD:
            yield from _fact(record, host, _SMI_FIELD[said["name"]], said["value"], "nvidia_smi")


def _query_columns(line: str) -> list[str] | None:
    """Fields of `nvidia-smi --query-gpu=... --format=csv`, without their units; None where no field is one that counts."""
    if not any(field in line for field in _COUNTING):
        return None
    names = [re.sub(r" \[.{0,20}\]$", "", cell.strip()) for cell in _without_host(line)[1].split(",")]
    fits = sum(name in _QUERY or name in _DEVICE for name in names)
    return names if len(names) > 1 and not _COUNTING.isdisjoint(names) and fits >= len(names) / 2 else None


def _without_host(line: str) -> tuple[str | None, str]:
    found = _SHELL_HOST.match(line)
    return (found["host"].lower().partition(".")[0], line[found.end() :]) if found else (None, line)


def _queried(lines: Sequence[str], host: str | None) -> Iterator[Fact]:
    columns: list[str] = []
    for record, line in _numbered(lines):
        named, rest = _without_host(line)
        if (header := _query_columns(rest)) is not None:
            columns = header
            continue
        cells = [cell.strip() for cell in rest.split(",")]
        for column, cell in zip(columns, cells, strict=False) if len(cells) == len(columns) else ():
            if column in _QUERY:
                yield from _fact(record, named or host, _QUERY[column], cell, "nvidia_smi")
