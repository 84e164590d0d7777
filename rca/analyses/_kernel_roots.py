"""Kernel records of the job's hosts: which began a chain, which only followed, and which ranks sit on the device.

1. A record counts when it is of a host of the job and in the job's time, and the job made no more steps after it. A corrected error never does.
   Where nothing but kernel logs tells of the job, the last records of GPUs and switches count that stand near the end of their logs
   (`_kernel_last`). Stamps that are no instants count beside others where a record of their host names a process of the job.
2. Of an Xid the catalogue says what it can be: the root of a chain, its consequence, the repair of memory, or an application's own fault.
   What follows from what by the edges of the catalogue (`_kernel_edges`), or by its own line, is never a root.
3. Where no device has a root, what may be either is a root unless an earlier record of the host, or of a link's other end, explains it.
4. One application fault on most GPUs of a host, or on many of the job, within seconds is the program, no GPU. The same one on a single GPU, in one
   process after the other, is that GPU.
5. A fault of a link shows at both ends. The end that several others name, or that loses several links, is the one; else the ends are a tie.
6. A GPU or process that no rank of the job uses (`_kernel_users`) accuses nobody, unless records of the job's own GPUs follow from it. What is
   only a sign (`_kernel_signs`) counts where nothing stronger is told.
7. Errors of a disk or a mount beside those of GPUs count only where the job itself speaks of storage: every host has some that no job needs.
8. Records that only tell of another's fault (lost packets, accesses of a peer) accuse nobody where that other one left no record.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl

from rca.analyses._alive import last_steps
from rca.analyses._faults import TIMED_OUT, Fault, Story
from rca.analyses._job_logs import JobLogs, Line, cite_line, kernel_line
from rca.analyses._kernel_aside import Aside, not_counted
from rca.analyses._kernel_edges import Link, chain_of, follow
from rca.analyses._kernel_last import GAP_S, last_chain, longest_wait_s, waited_s
from rca.analyses._kernel_signs import bus_cause, bus_gpu, is_sign
from rca.analyses._kernel_undated import before_the_end, past
from rca.analyses._kernel_users import Users, hosts_by_process, users_of
from rca.analyses._storage_hints import speaks_of_storage
from rca.catalogues import by_code
from rca.kernel_record import merged
from rca.policies import sites_way_out
from rca.types import Cite, Tables

__all__ = ["Record", "Scene", "cites_of", "scene"]

BEFORE: Final = timedelta(minutes=1)  # a record so long before the first sign of the job may be of it: clocks of host and trainer differ
AFTER: Final = timedelta(seconds=GAP_S)
CHAIN: Final = timedelta(minutes=2)  # one fault shows in records so far apart
AT_ONCE_S: Final = 30.0  # application faults of one program come within seconds
NEAR_THE_END: Final = timedelta(hours=1)  # of the logs: without other evidence, older records may be of another job
NODE_WIDE: Final = 3  # GPUs with the same application fault at once: the program, not a device
REPEATED: Final = 3  # processes that one GPU failed, and no other GPU did: the device
REPEATED_UNIT: Final = 2  # the same where it is one and the same multiprocessor
NAMED_BY: Final = 2  # ends that name a GPU as the other end of their broken link: it is the one

UNNAMED: Final = "?"  # begins what stands for the host of a log that names none
CONTAINED: Final = 94  # Xid of a memory error that the driver confined to one process
LOST: Final = 79  # Xid of a GPU that left the bus; the same is told without any number
REPEATING: Final = frozenset({13, 31})  # faults of programs that a broken GPU repeats
OF_A_LINK: Final = frozenset({74, 136})  # Xids that may name the link's other end
NVLINK5: Final = range(144, 151)
ANYONES: Final = frozenset({119, 120})  # logged for whoever calls the driver: the process in the line is a caller, no victim
OF_GPUS: Final = frozenset({"xid", "sxid", "bus_loss", "aer"})
DEVICE_ERRORS: Final = frozenset({"gpu_memory_error", "gpu_error", "illegal_access"})  # what victims of a lost link raise
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
NEEDS_SEVERITY: Final = frozenset({"aer", "mce", "edac"})  # without a word for it they are mere notes
_REMOTE: Final = re.compile(r"remote (?:PCI:)?((?:[0-9a-fA-F]{1,8}:)?[0-9a-fA-F]{1,2}:[0-9a-fA-F]{1,2})")


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


@dataclass(frozen=True)
class Scene:
    """What the kernels of the job's hosts say."""

    roots: tuple[Record, ...]  # began a chain, in the job's time
    undated: tuple[Record, ...]  # could have, but when is not told
    node_wide: tuple[Record, ...]  # the same application fault on many GPUs at once
    victims: tuple[Record, ...]  # tell of another's fault, which no log shows
    num_old: int  # roots from before the job or after it
    repeated: Mapping[Record, int] = field(default_factory=dict)  # application faults of one GPU alone -> processes that met them
    worn: frozenset[tuple[str, str | None]] = frozenset()  # devices with the same kind of record from before
    live: tuple[Record, ...] = ()
    links: Mapping[int, Link] = field(default_factory=dict)  # of `live`, by place
    aside: tuple[Aside, ...] = ()  # of weight, and not counted
    strangers: tuple[Record, ...] = ()  # would be roots, but are of a GPU or process that no rank of the job uses

    def followers(self, root: Record) -> list[tuple[Record, Link]]:
        """What follows from a root, in the order of time, each with the reason."""
        if root not in self.live:
            return []
        return [(self.live[n], self.links[n]) for n in chain_of(self.live.index(root), self.links)]


def cites_of(records: Sequence[Record], others: Sequence[Line] = ()) -> tuple[Cite, ...]:
    """The best place of each record, then other lines, then the other files that tell the same records."""
    first = [record.cites[0] if record.cites else cite_line(record.line) for record in records]
    return (*first, *(cite_line(line) for line in others), *(cite for record in records for cite in record.cites[1:]))


def scene(case: Tables, told: Story) -> Scene:
    """The records of the job's hosts, sorted into what began and what followed."""
    everything = _records(case, told.logs)
    wait_s = longest_wait_s(told.logs.lines)
    span = _of_the_job(told.logs) or _last_records(case, everything, wait_s)
    dated = [r for r in everything if r.line.at is not None and span is not None]
    in_time = [r for r in dated if span is not None and r.line.at is not None and span[0] - BEFORE <= r.line.at <= span[1] + AFTER]
    if told.logs.span is None:
        in_time = [r for r in in_time if r.kind in OF_GPUS]
    in_time += _undated_of_the_job(case, told.logs, everything, wait_s)
    steps = last_steps(case, told.logs)
    faults = [(fault, frozenset(told.logs.hosts_of(fault.ranks))) for fault in told.first]
    ended = [r for r in in_time if not _after_the_end(r, told, faults) and not _was_outlived(r, steps, told.logs)]
    live = sorted(ended, key=lambda r: (r.at_s, r.line.evidence_id, r.order))
    links = follow(live, told.logs.clocks)
    first = [r for n, r in enumerate(live) if n not in links and r.cause]
    repeated = _repeated([r for r in first if r.code in REPEATING and r.role == "application"], everything)
    strangers = [r for r in first if r.stranger and r not in repeated and not _reaches_job(r, live, links)]
    foreign = {id(r) for r in strangers}
    node_wide, rest = _node_wide([r for r in first if id(r) not in foreign], repeated)
    rest, disks = _without_disks(case, told, rest, has_others=bool(node_wide))
    victims = [r for r in rest if r.role == "consequence"]
    roots = _one_end(_chain_heads([r for r in rest if r.role != "consequence"]), live)
    if victims and not roots:  # what they suffer from may stand in a log whose clock nothing places
        roots = [r for r in _last_undated(case, everything, wait_s) if r.role == "root" and r.cause in ("nvlink_fault", "gpu_fault")]
    before = {(r.host, r.gpu, r.code) for r in dated if span is not None and r.line.at is not None and r.line.at < span[0] - BEFORE}
    older = past(case, span)
    return Scene(
        tuple(roots),
        tuple(
            r
            for r in everything
            if (r.line.at is None or span is None)
            and r.role == "root"
            and not older & {(c.evidence_id, c.record) for c in r.cites}
            and not r.stranger
        ),  # asked for where nothing is live
        tuple(node_wide),
        tuple(victims),
        sum(r.role == "root" for r in dated) - sum(r.role == "root" for r in live),
        repeated,
        frozenset((r.host, r.gpu) for r in roots if (r.host, r.gpu, r.code) in before),
        tuple(live),
        links,
        (*not_counted(everything, [*live, *roots], _reasons(everything, live, span, in_time, told, steps)), *disks),
        tuple(strangers),
    )


def _without_disks(case: Tables, told: Story, records: Sequence[Record], *, has_others: bool) -> tuple[list[Record], list[Aside]]:
    """The records without those of disks and mounts, where GPUs tell of faults and the job itself says nothing of storage; and these, with why."""
    disks = [r for r in records if r.kind.startswith("storage") and r.line.rank is None]
    has_others |= any(r.kind in OF_GPUS and not r.is_sign for r in records)
    if not disks or not has_others or speaks_of_storage(case, told):
        return list(records), []
    kept = {id(r) for r in disks}
    return [r for r in records if id(r) not in kept], [(r, "the job itself says nothing of storage") for r in disks]


def _reasons(
    everything: Iterable[Record],
    live: Iterable[Record],
    span: tuple[datetime, datetime] | None,
    in_time: Iterable[Record],
    told: Story,
    steps: Iterable[tuple[datetime, str | None]],
) -> dict[tuple[str, str], str]:
    """(evidence_id, record) -> why a record does not count, where its time or what the job did after it says so."""
    inside = {(r.line.evidence_id, r.line.record) for r in in_time} - {(r.line.evidence_id, r.line.record) for r in live}
    steps, found = list(steps), {}
    for r in everything:
        key = r.line.evidence_id, r.line.record
        if key in inside:
            found[key] = (
                "the job made more steps after it" if _was_outlived(r, steps, told.logs) else "the job had failed or was stopped by then"
            )
        elif r.line.at is not None and span is None:
            found[key] = "the logs go on for long after it, and when the job ran is not told"
        elif r.line.at is not None and span is not None:
            when = "before" if r.line.at < span[0] else "after"
            found[key] = (
                f"{when} the job" if told.logs.span is not None else f"long {when} the last records of GPUs; when the job ran is not told"
            )
    return found


def _reaches_job(stranger: Record, live: Sequence[Record], links: Mapping[int, Link]) -> bool:
    """Whether a fault of another's GPU broke one of the job's: a record that could be a root itself follows from it there."""
    place = next(n for n, r in enumerate(live) if r is stranger)
    return any(live[n].cause and live[n].gpu is not None and not live[n].stranger for n in chain_of(place, links))


def _was_outlived(record: Record, steps: Iterable[tuple[datetime, str | None]], logs: JobLogs) -> bool:
    """Whether the job made steps for certain after a record."""
    latest = record.line.at + timedelta(seconds=record.error_s) if record.line.at is not None else None
    return any(logs.clocks.order(last, (latest, record.line.clock)) == 1 for last in steps)


def _of_the_job(logs: JobLogs) -> tuple[datetime, datetime] | None:
    """First and last instant of the job; a call that ran out of time began before the line that says so."""
    if logs.span is None:
        return None
    begun = [line.at - timedelta(seconds=waited) for line in logs.lines if line.at is not None and (waited := waited_s(line)) > 0]
    return min([logs.span[0], *begun]), logs.span[1]


def _last_records(case: Tables, records: Iterable[Record], wait_s: float) -> tuple[datetime, datetime] | None:
    """First and last of the last chain of records of GPUs; None where the logs go on for long after it."""
    chain = last_chain((r for r in records if r.line.at is not None and r.kind in OF_GPUS), wait_s)
    moments = [r.line.at for r in chain if r.line.at is not None]
    end = case.table("host_logs").select(pl.col("last_at").max()).collect().item()
    if not moments or (end is not None and end - moments[-1] > NEAR_THE_END):
        return None
    return moments[0], moments[-1]


def _undated_of_the_job(case: Tables, logs: JobLogs, records: Sequence[Record], wait_s: float) -> list[Record]:
    """Records without an instant that are of the job: those of a host whose last chain names a process of a rank, which dates it; all of the last
    chain where one of them does, or nothing else tells of the job, and no record has an instant."""
    last = _last_undated(case, records, wait_s)
    named = {r.host for r in last if r.line.rank is not None and r.line.pid is not None}
    if all(r.line.at is None for r in records):
        return last if logs.span is None or named else []
    end = case.table("host_logs").select(pl.col("last_at").max()).collect().item()
    since = end.timestamp() if end is not None else 0.0  # logs that were collected together end at about the same time
    return [replace(r, before_end_s=since + r.at_s) for r in last if r.host in named]


def _last_undated(case: Tables, records: Iterable[Record], wait_s: float) -> list[Record]:
    """The last chain of records of GPUs without an instant, counted from the end of their logs, where it comes near that end."""
    counted = before_the_end(case)
    placed = [
        replace(r, before_end_s=seconds)
        for r in records
        if r.kind in OF_GPUS and r.line.at is None and (seconds := counted.get((r.line.evidence_id, r.line.record))) is not None
    ]
    chain = last_chain(placed, wait_s)
    return chain if chain and -chain[-1].at_s <= NEAR_THE_END.total_seconds() else []


def _records(case: Tables, logs: JobLogs) -> list[Record]:
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
    return [_with_user(record, named.get((record.host, record.gpu or ""), set())) for record in found]


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
    return (role, bus_cause(row)) if kind == "aer" else (role, cause)


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


def _after_the_end(record: Record, told: Story, faults: Sequence[tuple[Fault, frozenset[str]]]) -> bool:
    """Whether a record is later than the stop of the job, or than the first faults in the logs of ranks on other hosts.

    What a lost link does to other GPUs their programs may notice before the driver names the link: that ends nothing. A fault is
    earlier than the time-outs that its rank wrote below it, and those of the record's own host tell whether the record came after them.
    """
    if told.stop.is_asked and told.stop.began is not None and told.logs.order(record.line, told.stop.began) == 1:
        return True
    is_later = False
    for fault, hosts in faults:
        if record.host in hosts or (record.cause == "nvlink_fault" and fault.kind in DEVICE_ERRORS):
            continue
        below = _time_outs_below(fault.line, told.logs)
        is_late = bool(below) and _is_after_time_outs(
            record, told.logs
        )  # the fault was there before the job was given up, the record was not
        if not is_late and told.logs.order(record.line, _latest(fault.line, below)) != 1:
            return False
        is_later = True
    return is_later


def _latest(line: Line, below: Sequence[Line]) -> Line:
    """A line, where it has no stamp with the latest instant at which it can have been written: `below` are time-outs after it in its file."""
    return replace(line, at=max(o.at for o in below if o.at is not None)) if below and line.at is None else line


def _time_outs_below(line: Line, logs: JobLogs) -> list[Line]:
    """Time-outs that the rank of a line wrote after it into its own log. They go to the same unbuffered stream as a traceback; what a program prints
    may come late."""
    if line.evidence_id not in logs.own_logs:
        return []
    return [
        o
        for o in logs.lines
        if o.evidence_id == line.evidence_id and o.place > line.place and o.at is not None and o.signature in TIMED_OUT
    ]


def _is_after_time_outs(record: Record, logs: JobLogs) -> bool:
    """Whether the ranks of the record's own host had given up the job by then, by the clock of that very host."""
    own = [
        o
        for o in logs.lines
        if o.signature in TIMED_OUT and o.at is not None and logs.hosts.get(o.rank if o.rank is not None else -1) == record.host
    ]
    return bool(own) and all(logs.order(record.line, o) == 1 for o in own)


def _node_wide(records: Sequence[Record], repeated: Mapping[Record, int]) -> tuple[list[Record], list[Record]]:
    """Application faults that many GPUs show within seconds, and all other records."""
    wide: set[int] = set()
    by_code: dict[int | None, list[Record]] = defaultdict(list)
    for record in records:
        if record.role == "application" and record not in repeated:
            by_code[record.code].append(record)
    for found in by_code.values():
        for burst in _bursts(found):
            if len({(r.host, r.gpu) for r in burst}) >= NODE_WIDE:
                wide |= {id(r) for r in burst}
    return [r for r in records if id(r) in wide], [r for r in records if id(r) not in wide]


def _bursts(records: Sequence[Record]) -> list[list[Record]]:
    """Records, in the order of time, parted where nothing is told for a while: half a minute on one host, longer where clocks may differ."""
    found: list[list[Record]] = []
    for record in records:
        last = found[-1][-1] if found else None
        pause = AT_ONCE_S if last is not None and last.host == record.host else CHAIN.total_seconds()
        if last is not None and record.at_s - last.at_s <= pause:
            found[-1].append(record)
        else:
            found.append([record])
    return found


def _repeated(now: Sequence[Record], everything: Sequence[Record]) -> dict[Record, int]:
    """Application faults that one GPU gave to several processes, one after the other, and no other GPU of the job gave to more than one.

    Source: NVIDIA's Xid sheet for 13 and 31: the same GPU over several jobs is to be tested, spread over GPUs it is the application.
    """
    met: dict[tuple[int | None, str, str | None], set[int]] = defaultdict(set)
    at_unit: dict[tuple[int | None, str, str | None, str], set[int]] = defaultdict(set)
    for r in everything:
        if r.code in REPEATING and r.line.pid is not None:
            met[r.code, r.host, r.gpu].add(r.line.pid)
            if r.code == 13 and r.unit and r.unit != "several":
                at_unit[r.code, r.host, r.gpu, r.unit].add(r.line.pid)
    most: dict[int | None, list[int]] = defaultdict(list)
    for key, pids in met.items():
        most[key[0]] = sorted([*most[key[0]], len(pids)])[-2:]
    found = {}
    for r in now:
        if r.gpu is None:
            continue
        own = len(met[r.code, r.host, r.gpu])
        others = next((n for n in most[r.code] if n != own), own) if len(most[r.code]) > 1 else 0  # of two that have most, the other one
        same_unit = len(at_unit.get((r.code, r.host, r.gpu, r.unit or ""), ()))
        if others <= 1 and (own >= REPEATED or same_unit >= REPEATED_UNIT):
            found[r] = own
    return found


def _chain_heads(records: Sequence[Record]) -> list[Record]:
    """Of each device the record that began its chain; a device whose chain follows from another one's of the host has none."""
    by_device: dict[tuple[str, str | None], list[Record]] = defaultdict(list)
    for record in records:
        by_device[record.host, record.gpu].append(record)
    heads = [head for chain in by_device.values() if (head := _head(chain)) is not None]
    heads = [head for head in heads if not head.is_sign] or heads
    certain = [head for head in heads if head.role == "root"]
    return sorted(certain or _unexplained(heads), key=lambda r: (r.at_s, r.host, r.gpu or ""))


def _head(chain: Sequence[Record]) -> Record | None:
    """The first root of one device, else what came first of the rest. Repairs and consequences never begin anything.

    An error of the device in the same chain beats an application's fault a moment earlier: bad memory makes programs fail first.
    """
    may_be = [r for r in chain if r.role in ("either", "application")]
    return next((r for r in chain if r.role == "root"), None) or next((r for r in may_be if not r.is_sign), may_be[0] if may_be else None)


def _unexplained(heads: Sequence[Record]) -> list[Record]:
    """Heads that no earlier one of the same time explains: on the same host, or (for links) of a peer."""
    found = []
    before: dict[
        str, tuple[float, float]
    ] = {}  # host, or the links of all -> instant of the last head, and of the last one before that instant
    for head in sorted(heads, key=lambda r: r.at_s):
        is_explained = False
        for where in (f"host {head.host}", *(["links"] if head.cause == "nvlink_fault" else [])):
            last, earlier = before.get(where, (float("-inf"), float("-inf")))
            earlier = last if last < head.at_s else earlier
            is_explained |= head.at_s - earlier <= CHAIN.total_seconds()
            before[where] = head.at_s, earlier
        if not is_explained:
            found.append(head)
    return found


def _one_end(heads: Sequence[Record], live: Sequence[Record]) -> list[Record]:
    """The heads, of both ends of a broken link only the one that its peers name or that lost several links; as they are where neither tells."""
    ends = [r for r in live if r.kind == "xid" and r.code in OF_A_LINK]
    found = list(heads)
    is_end = {id(r) for r in ends}
    for host in sorted({r.host for r in heads if id(r) in is_end}):
        mine = [r for r in ends if r.host == host]
        named: dict[str, set[str | None]] = defaultdict(set)
        for r in mine:
            for address in _REMOTE.findall(r.line.text):
                if (other := _address(address)) != r.gpu:
                    named[other].add(r.gpu)
        lost = Counter(gpu for gpu, _ in {(r.gpu, r.link) for r in mine})
        hub = _most({gpu: len(by) for gpu, by in named.items()}) or _most({gpu: n for gpu, n in lost.items() if gpu})
        of_link = [r for r in found if r.host == host and id(r) in is_end]
        if hub is None or not of_link:
            continue
        own = next((r for r in of_link if r.gpu == hub), None)
        keep = own or replace(of_link[0], gpu=hub, line=replace(of_link[0].line, rank=None))
        found = [r for r in found if r.host != host or id(r) not in is_end] + [keep]
    return sorted(found, key=lambda r: (r.at_s, r.host, r.gpu or ""))


def _most(counts: Mapping[str, int]) -> str | None:
    """The one that has clearly the most: at least NAMED_BY and more than any other."""
    order = sorted(counts.values(), reverse=True)
    if not order or order[0] < NAMED_BY or (len(order) > 1 and order[1] == order[0]):
        return None
    return max(counts, key=lambda gpu: counts[gpu])


def _address(text: str) -> str:
    """`dddd:bb:dd` of an address that may lack its domain, as the tables write it."""
    parts = [int(part, 16) for part in text.split(":")]
    return f"{parts[0] if len(parts) == 3 else 0:04x}:{parts[-2]:02x}:{parts[-1]:02x}"
