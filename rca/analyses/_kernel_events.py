"""Kernel records of the job's hosts: what each can be by itself, and which rank uses its device.

Of an Xid the catalogue says what it can be: the root of a chain, its consequence, the repair of memory, or an application's own fault. What follows
by its own line from another one is never a root. A corrected error means nothing. A GPU or process that no rank of the job uses is a stranger's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from rca.analyses._job_logs import JobLogs, Line, kernel_line
from rca.analyses._kernel_signs import bus_cause, bus_gpu, is_sign
from rca.analyses._kernel_users import Users, hosts_by_process, users_of
from rca.catalogues import by_code
from rca.kernel_record import merged
from rca.policies import sites_way_out
from rca.types import Cite, Tables

__all__ = ["CONTAINED", "LOST", "OF_GPUS", "UNNAMED", "Record", "records", "waits_for_gpus"]

UNNAMED: Final = "?"  # begins what stands for the host of a log that names none
CONTAINED: Final = 94  # Xid of a memory error that the driver confined to one process
LOST: Final = 79  # Xid of a GPU that left the bus; the same is told without any number
NVLINK5: Final = range(144, 151)
ANYONES: Final = frozenset({119, 120})  # logged for whoever calls the driver: the process in the line is a caller, no victim
OF_GPUS: Final = frozenset({"xid", "sxid", "bus_loss", "aer"})
CAUSE_OF_KIND: Final[Mapping[str, tuple[str, str]]] = {  # kind -> role, cause
    "bus_loss": ("root", "gpu_fault"),
    "aer": ("either", "gpu_fault"),
    "mce": ("root", "host_fault"),
    "edac": ("root", "host_fault"),
    "lockup": ("either", "host_fault"),
    "panic": ("either", "host_fault"),
    "nic": ("either", "network_fault"),
    "ib": ("either", "network_fault"),
    "storage": ("root", "storage_stall"),
    "storage_nvme": ("root", "storage_stall"),
    "storage_nfs": ("root", "storage_stall"),
    "storage_lustre": ("root", "storage_stall"),
    "hung_task": ("either", "storage_stall"),
}
_NUMBER: Final = re.compile(r"from GPU([0-9]{1,3}) GSP\b")  # the driver's own number of a GPU: in the order of addresses, as a rule
NEEDS_SEVERITY: Final = frozenset({"aer", "mce", "edac"})  # without a word for it they are mere notes


@dataclass(frozen=True)
class Record:
    """One kernel event of a host of the job."""

    line: Line
    host: str
    kind: str
    code: int | None
    gpu: str | None
    role: str  # root, either, application, repair, consequence
    cause: str  # "" = accuses nobody by itself
    unit: str | None = None
    severity: str | None = None
    link: int | None = None
    recovery: str | None = None
    caused_by: int | None = None
    remote_effect: str | None = None
    cites: tuple[Cite, ...] = ()  # every file that tells it, the best first
    order: int = 0  # place in its file in the order of time: a journal may be printed backwards
    error_s: float = 0.0  # so much later than its stamp it may have been: most clocks print whole seconds

    before_end_s: float | None = None  # from the last line of its log, where that is all that places it
    process: str | None = None  # name of the process in the line
    stranger: str = ""  # "gpu", "process": it is of one that no rank of the job uses
    is_sign: bool = False  # it alone is no fault

    @property
    def name(self) -> str:
        """As people say it."""
        return f"Xid {self.code}" if self.kind == "xid" else f"SXid {self.code}" if self.kind == "sxid" else self.kind.replace("_", " ")

    @property
    def of_gpus(self) -> bool:
        """Whether it tells of GPUs, their links or their driver: what no other work of a host brings about."""
        return self.kind in OF_GPUS or waits_for_gpus(self.kind, self.unit)

    @property
    def where(self) -> str:
        """Host and device as people say it."""
        return self.host_words + (f" {'switch' if self.kind == 'sxid' else 'GPU'} {self.gpu}" if self.gpu else "")

    @property
    def host_words(self) -> str:
        """The host, where its log names it."""
        return "a host that its log does not name" if self.host.startswith(UNNAMED) else self.host

    @property
    def at_s(self) -> float:
        """When, in seconds since 1970, or from the end of its log where no record has an instant; asked only of records that have either."""
        if self.line.at is None:
            assert self.before_end_s is not None
            return self.before_end_s
        return self.line.at.timestamp()

    @property
    def policy(self) -> str:
        """What our rules ask for ("" = nothing is said of this kind)."""
        told = self.policy_code
        row = by_code(told[0]).get(told[1]) if told else None
        return row["policy"] if row else ""

    @property
    def policy_code(self) -> tuple[str, int] | None:
        """The catalogue and number whose rule counts; None for what is no Xid or SXid."""
        if self.kind == "bus_loss":
            return "xid", LOST
        return (self.kind, self.code) if self.kind in ("xid", "sxid") and self.code is not None else None


def records(case: Tables, logs: JobLogs) -> list[Record]:
    """Events that can mean a fault or follow one, of hosts of the job, in the order of their files."""
    hosts = set(logs.hosts.values())  # empty: no map; then the hosts of the kernel logs are what is there
    rows = case.table("kernel_events").filter(~pl.col("kind").is_in(["oom", "segfault", "thermal", "other"])).collect().rows(named=True)
    host_of_file, users = hosts_by_process(case, rows, logs), case.derive(users_of)
    if not hosts:
        host_of_file = {row["evidence_id"]: UNNAMED + row["evidence_id"] for row in rows if row["host"] is None}
    slots = _gpus_of_hosts(rows, users)
    found = []
    for event in sorted(merged(rows, logs.clocks, host_of_file), key=lambda e: (e.row["evidence_id"], e.order)):
        row, host = event.row, event.row["host"]
        role, cause = _role(row)
        if (hosts and host not in hosts) or role == "info":
            continue
        rank = None if row["kind"] == "xid" and row["code"] in ANYONES else logs.rank_of(row["pid"], host)
        line = replace(kernel_line(row, rank, logs), at=event.at)
        gpu = bus_gpu(row, slots[host]) if row["kind"] == "aer" else row["gpu"]
        record = Record(
            line, host, row["kind"], row["code"], gpu, role, cause, row["unit"], row["severity"], row["link"], row["recovery"],
            row["caused_by"], row.get("remote_effect"), event.cites, event.order, event.error_s, process=row["process"],
            is_sign=is_sign(row),
        )  # fmt: skip
        found.append(replace(record, stranger=_stranger(record, users)))
    named: dict[tuple[str, str], set[int]] = defaultdict(set)
    for record in found:
        if record.gpu is not None and record.line.rank is not None and not users.uses(record.host, record.gpu):
            named[record.host, record.gpu].add(record.line.rank)
    callers = {place: ranks for place, ranks in _callers(found, logs, users).items() if place not in named}
    named |= callers
    return [_with_user(record, named.get((record.host, record.gpu or ""), set())) for record in found]


def _callers(found: Iterable[Record], logs: JobLogs, users: Users) -> Mapping[tuple[str, str], set[int]]:
    """(host, GPU) -> the one rank that called the dead firmware of a GPU of which no source gives the address, unless the number that the driver has
    for that GPU is another than the rank's own on its host. Of the processes that ask a dead GPU, monitors are many; a trainer asks its own."""
    called: dict[tuple[str, str], set[int]] = defaultdict(set)
    for r in found:
        rank = logs.rank_of(r.line.pid, r.host) if r.kind == "xid" and r.code in ANYONES else None
        if rank is not None and r.gpu is not None and not users.uses(r.host, r.gpu):
            number = _NUMBER.search(r.line.text)
            is_its = number is None or users.local.get(rank) in (None, int(number[1]))
            called[r.host, r.gpu] |= {rank} if is_its else {rank, -1}  # contradicted: nobody
    return {place: ranks for place, ranks in called.items() if len(ranks) == 1}


def _gpus_of_hosts(rows: Iterable[Mapping[str, Any]], users: Users) -> Mapping[str, set[str]]:
    """host -> addresses of its GPUs, as maps and the driver give them."""
    found: dict[str, set[str]] = defaultdict(set)
    for host, gpu in (*users.gpus, *((row["host"], row["gpu"]) for row in rows if row["kind"] in ("xid", "bus_loss") and row["gpu"])):
        found[host].add(gpu)
    return found


def _stranger(record: Record, users: Users) -> str:
    """Whether a record is of a GPU or, where only its process is hit, of a process that no rank of the job uses."""
    of_device = record.kind in ("xid", "bus_loss", "aer")
    if of_device and record.line.rank is None and users.is_strange_gpu(record.host, record.gpu):
        return "gpu"
    of_process = record.role == "application" or (record.kind == "xid" and record.code == CONTAINED)
    return "process" if of_process and users.is_strange_process(record.host, record.line.pid, record.process, record.line.rank) else ""


def _with_user(record: Record, users: set[int]) -> Record:
    """A record with the rank that other records of the same GPU name by its process, where no source gives its address."""
    if record.line.rank is not None or len(users) != 1 or record.stranger:
        return record
    return replace(record, line=replace(record.line, rank=next(iter(users))))


def _role(row: Mapping[str, Any]) -> tuple[str, str]:
    """Role and cause of an event; no cause where it accuses nobody by itself, `info` where it means nothing."""
    kind, severity = row["kind"], row["severity"]
    if severity == "corrected" or (row["recovery"] == "none" and kind != "xid"):
        return "info", ""
    if kind in ("xid", "sxid"):
        role, cause = _role_of_code(kind, row["code"], severity)
        return ("consequence", "") if row["caused_by"] is not None else (role, cause)
    if kind in NEEDS_SEVERITY and severity not in ("uncorrected", "fatal"):
        return "info", ""
    role, cause = CAUSE_OF_KIND.get(kind, ("info", ""))
    if waits_for_gpus(kind, row["unit"]):
        return role, "host_fault"
    return (role, bus_cause(row)) if kind == "aer" else (role, cause)


def waits_for_gpus(kind: str, module: str | None) -> bool:
    """Whether a task hangs in the driver of the GPUs: no storage keeps it there, and no signal ends it."""
    return kind == "hung_task" and (module or "").startswith("nvidia")


def _role_of_code(kind: str, code: int | None, severity: str | None) -> tuple[str, str]:
    """What the catalogue says of a number, and the word for its severity in the line, which goes before it."""
    row = by_code(kind).get(code if code is not None else -1)
    if kind == "sxid" and (row is None or row["severity"] == "undocumented") and severity != "fatal":
        return "info", ""
    if row is None:
        return "either", "unknown"  # a number that nobody has described is never simply ignored
    role, cause = row["role"], row["cause"]
    if role in ("repair", "info") and sites_way_out(kind, code):
        return "either", cause or "unknown"  # a site that takes the GPU out for it is told of it even where it stands alone
    if kind == "xid" and code in NVLINK5:
        if severity == "nonfatal" and role == "root":
            return "either", cause
        if severity == "fatal" and role == "consequence":
            return "either", cause  # its own end may be the broken one
    return role, cause
