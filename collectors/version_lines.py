"""Versions, settings and addresses that programs print as they start: NCCL, torch and the NVIDIA driver, in logs of any kind.

`configs`: the kernel module of the driver and a client that does not match it (kernel log); versions of NCCL, of the CUDA driver and of torch;
settings that NCCL took from the environment; two ranks whose NCCL differs. `host_addresses`: the interfaces that NCCL says it uses, which is
what the errors of other hosts name. Of a host (or rank) and component the last line of a file counts: an earlier one is of an earlier start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from collectors._config_values import cuda_version, is_secret, nccl_version, setting
from collectors._kernel_prefix import peel
from collectors._lines import blocks, is_text
from collectors._log_json import message_of, object_of
from collectors._log_prefix import Line, parse, pieces
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("configs", "host_addresses")
IS_GENERIC = True

MAX_LINE: Final = 8192  # characters of a line that are looked at
MAX_ROWS: Final = 100_000
_MARKS: Final = re.compile(
    rb"Bootstrap ?: ?Using |NET/(?:IB|Socket) ?: ?Using |NCCL version \d|cudaDriverVersion \d|PyTorch version ?[:=] ?\d|NVIDIA UNIX "
    rb"|API mismatch: the |Mismatched NCCL version|NCCL INFO NCCL_\w{1,60} set by environment to "
)
_COLLECTED: Final = b"Collecting environment information"  # of torch's own report, which `host_configs` reads
_NVRM: Final = re.compile(
    r"NVIDIA UNIX (?:Open )?[\w-]{1,20} Kernel Module (?:for \w{1,20} )? ?(?P<version>[0-9]{3,4}\.[0-9]{1,4}(?:\.[0-9]{1,4})?)\b"
)
_MISMATCH: Final = re.compile(
    r"API mismatch: the (?:client|NVIDIA kernel module) has (?:the )?version (?P<one>[0-9]{3,4}[0-9.]{1,12}),? {1,9}but\s{1,9}"
    r"(?:[^\n]{0,120}?NVRM: {0,9})?this (?P<who>kernel module|NVIDIA driver component|client) has (?:the )?version (?P<two>[0-9]{3,4}[0-9.]{1,12})"
)
_NCCL: Final = re.compile(r"\bNCCL version (?P<version>[0-9]{1,3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?)(?:\+cuda(?P<cuda>[0-9]{1,3}\.[0-9]{1,3}))?")
_DIFFERS: Final = re.compile(
    r"Mismatched NCCL version detected ?: rank (?P<a>[0-9]{1,7}) version (?P<one>[0-9]{3,6}) rank (?P<b>[0-9]{1,7}) version (?P<two>[0-9]{3,6})"
)
_CUDA: Final = re.compile(r"\bcudaDriverVersion (?P<version>[0-9]{4,6})\b")
_TORCH: Final = re.compile(r"\bPyTorch version ?[:=] ?(?P<version>[0-9][\w.+-]{1,60})")
_SETTING: Final = re.compile(r"\bNCCL INFO (?P<name>NCCL_\w{1,60}) set by environment to (?P<value>[^\n]{1,200})")
_USING: Final = re.compile(r"\b(?P<what>Bootstrap|NET/IB|NET/Socket) ?: ?Using (?P<rest>.{1,4000})")
_INTERFACE: Final = re.compile(r"(?P<interface>[A-Za-z][\w.@-]{0,30}):(?P<address>\[?[0-9a-fA-F:.]{3,45}(?:%[\w.-]{1,16})?\]?)<[0-9]{1,5}>")
_OWN_NAMES: Final = re.compile(r"NCCL_(?:HOSTID|COMM_ID|UNIQUE_ID|DEBUG_FILE)")  # differ by purpose


def claims(name: str, head: bytes) -> bool:
    """Text with such a line near its beginning, where programs print it."""
    if head[:1] == b"\x80" or _COLLECTED in head[:400] or _MARKS.search(head) is None or not is_text(head) or _is_document(head):
        return False
    return any(_facts(raw, number) for number, raw in _marked(head, 1))


def _is_document(head: bytes) -> bool:
    """One JSON document over many lines, not lines of JSON."""
    start = head.lstrip()
    if start[:1] == b"{":
        return object_of(start.partition(b"\n")[0].decode("utf-8", "replace")) is None
    return re.match(rb"\[\s*[{\]]", start) is not None


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of both tables, in the order of the file. Raises OSError where it cannot be opened."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            continue
        for number, raw in _marked(block.data, block.first):
            for table, fact in _facts(raw, number):
                key = (table, fact["host"], fact["rank"], fact.get("component"), fact.get("address"))
                if key in found or len(found) < MAX_ROWS:
                    found[key] = fact
    for table in EMITS:
        rows = [fact for key, fact in found.items() if key[0] == table]
        for row in rows:
            if row["rank"] is None and row["host"] is None and row.get("source") != "kernel_log":
                row["rank"] = source.rank_said
        yield TABLES[table], TABLES[table].rows(rows)


def _marked(data: bytes, first: int) -> Iterator[tuple[int, str]]:
    """Number and text of the lines that hold a mark. A message of the driver goes on in the next line."""
    number, counted, end = first, 0, 0
    for mark in _MARKS.finditer(data):
        if mark.start() < end:
            continue
        begin = data.rfind(b"\n", 0, mark.start()) + 1
        end = _end_of_line(data, mark.start())
        number += data.count(b"\n", counted, begin)
        counted = begin
        shown = _end_of_line(data, end + 1) if mark[0].startswith(b"API") else end
        start = max(begin, mark.start() - MAX_LINE // 2)
        yield number, data[start : min(shown, start + MAX_LINE)].decode("utf-8", "replace")


def _end_of_line(data: bytes, at: int) -> int:
    end = data.find(b"\n", at)
    return len(data) if end < 0 else end


Fact = tuple[str, dict[str, Any]]  # table and row


def _facts(raw: str, number: int) -> list[Fact]:
    """What a line tells."""
    if "NVIDIA UNIX " in raw or "API mismatch" in raw:
        return _of_kernel(raw, number)
    entry = object_of(raw)
    lines = message_of(entry, number) if entry is not None else [parse(piece, number) for piece in pieces(raw)]
    return [fact for line in lines for fact in _of_program(line)]


def _of_program(line: Line) -> list[Fact]:
    """What NCCL or torch says as it starts."""
    about = {"record": f"L{line.number}", "host": line.host, "rank": line.rank}
    if differs := _DIFFERS.search(line.text):  # who prints it stands last
        both = ((None, int(differs["a"]), differs["one"]), (line.host, int(differs["b"]), differs["two"]))
        named = [{**about, "host": host, "rank": rank, "value": nccl_version(int(code))} for host, rank, code in both]
        told_by = {"component": "nccl", "source": "nccl_mismatch", "observed_at": line.at}
        return [("configs", row | told_by) for row in named if row["value"]]
    if using := _USING.search(line.text):
        ends = (found.groupdict() for found in _INTERFACE.finditer(using["rest"]))
        return [("host_addresses", about | end | {"address": end["address"].strip("[]").partition("%")[0]}) for end in ends]
    told: list[tuple[str, str, str]] = []
    if found := _NCCL.search(line.text):
        told.append(("nccl", found["version"], "nccl_log"))
        told += [("nccl_cuda", found["cuda"], "nccl_log")] if found["cuda"] else []
    if (found := _CUDA.search(line.text)) and (value := cuda_version(int(found["version"]))):
        told.append(("cuda_driver", value, "nccl_log"))
    if found := _TORCH.search(line.text):
        told.append(("torch", found["version"], "torch_log"))
    if (
        (found := _SETTING.search(line.text))
        and not (_OWN_NAMES.fullmatch(found["name"]) or is_secret(found["name"]))
        and (value := setting(f"env:{found['name']}", found["value"].rstrip(". \r")))
    ):
        told.append((f"env:{found['name']}", value, "nccl_log"))
    return [("configs", about | {"component": c, "value": v, "source": s, "observed_at": line.at}) for c, v, s in told]


def _of_kernel(raw: str, number: int) -> list[Fact]:
    """The kernel module of the NVIDIA driver, and what speaks with it in another version."""
    line = peel(raw.partition("\n")[0])
    if line.is_hearsay:
        return []
    about = {"record": f"L{number}", "host": line.host, "rank": None, "source": "kernel_log", "observed_at": line.stamp.at}
    if found := _MISMATCH.search(raw):
        module, client = (found["two"], found["one"]) if found["who"] == "kernel module" else (found["one"], found["two"])
        versions = (("nvidia_driver", module), ("nvidia_driver_client", client))
        return [("configs", about | {"component": component, "value": value.rstrip(".")}) for component, value in versions]
    found = _NVRM.search(line.body)
    return [("configs", about | {"component": "nvidia_driver", "value": found["version"]})] if found else []
