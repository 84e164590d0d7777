"""What every host runs, component by component, and which hosts differ from a clear majority.

1. Values of a host: those of its own rows and of its ranks; of several dated observations of one component the latest counts.
2. What must differ between hosts (names, addresses, serial numbers, dates), or is a measurement, is no configuration.
   Variables that only steer what is printed, recorded or measured are shown, and explain no failure.
   Values that were seen more than a day apart are shown with their dates, and explain no failure either.
3. A majority needs three hosts and two thirds of them with one and the same value. Two hosts that differ show a difference and no odd one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from rca.analyses._job_hosts import JobHosts
from rca.analyses._job_logs import JobLogs
from rca.types import Cite, Tables

__all__ = ["Compared", "Held", "Values", "compared", "hosts_of_ranks", "is_load_bearing", "values_of_hosts"]

ENOUGH: Final = 3  # hosts that a majority takes
SHARE: Final = 2 / 3  # of the hosts that have a value must have the same one
MAX_DISTINCT: Final = 3  # values beyond which hosts simply each have their own
SAME_TIME: Final = timedelta(days=1)  # hosts that were looked at further apart may have been alike: one may be updated since
MAX_SHOWN: Final = 80  # characters of a value in a cite
_NAMES: Final = (
    "hostname",
    "host",
    "hostid",
    "ip",
    "ipv4",
    "ipv6",
    "addr",
    "address",
    "mac",
    "guid",
    "gid",
    "lid",
    "uuid",
    "serial",
    "rank",
    "pid",
    "port",
)
_MOMENTS: Final = ("date", "time", "timestamp", "uptime", "boot", "bootid", "machineid", "session", "seed", "random")
_MEASURED: Final = ("temp", "temperature", "util", "utilization", "usage", "used", "free", "load", "draw", "fan")
_ITS_OWN: Final = frozenset({*_NAMES, *_MOMENTS, *_MEASURED})  # words of a component that is different on every host, or at every moment
_OWN_VARIABLES: Final = frozenset({"rank", "hostid", "addr", "visible", "pid"})
_NAMED_BY: Final = (
    "pip",
    "image",
    "hash",
    "firmware",
)  # what follows is the name of a package, container, file or device: it says nothing of the value
_ID_OF: Final = re.compile(
    r"(?:node|instance|machine|job|boot|pod|host|run|comm|unique|device|system|gpu|bus)[_.-]?id$|bus_id$|visible_devices", re.I
)
_LOAD_BEARING: Final = re.compile(
    r"nvidia_driver(?:_client)?|cuda(?:_driver|_toolkit)?|nccl(?:_cuda)?|cudnn|torch(?:_cuda)?|kernel|ofed|vbios|gsp_firmware|image|gpu_model"
    r"|firmware(?::.+)?|image:.+|hash:.+|env:.+|pip:(?:torch|triton|nvidia-.+|apex|flash-attn|transformer-engine.*|deepspeed|megatron-core)"
)
_SPOKEN: Final = re.compile(  # variables that steer what is printed, recorded or measured, not what runs
    r"env:(?:.+_)?(?:DEBUG|LOGS?|LOGGING|LOGLEVEL|VERBOSE|VERBOSITY|TRACE|TRACING|PROF|PROFILE|PROFILER|PROFILING|DUMP|STATS|INFO_LEVEL|WARN)(?:_.+)?"
    r"|env:.+_(?:LOG_?LEVEL|SHOW_.+|PRINT_.+|REPORT_.+|FR_.+|BACKTRACE|STACKTRACES?)",
    re.I,
)
Values = Mapping[str, Mapping[str, "Held"]]  # component -> host -> what it has


@dataclass(frozen=True)
class Held:
    """The values of a component on one host (several where its ranks or devices differ), and where they stand."""

    values: frozenset[str]
    cite: Cite
    at: datetime | None = None  # when it was so (UTC); None where the source gives no date

    @property
    def text(self) -> str:
        """As people read it."""
        return " and ".join(sorted(self.values))


@dataclass(frozen=True)
class Compared:
    """A component in which hosts differ."""

    component: str
    held: Mapping[str, Held]
    usual: str | None  # value of the majority; None where there is none
    odd: tuple[str, ...]  # hosts with another one; empty without a majority

    def apart(self, host: str) -> tuple[datetime, datetime] | None:
        """When an odd host and the nearest of the others were looked at, where that is too far apart to compare them."""
        at = self.held[host].at
        others = [held.at for name, held in self.held.items() if name not in self.odd and held.at is not None]
        nearest = min(others, key=lambda other: abs(other - at), default=None) if at is not None else None
        return (at, nearest) if at is not None and nearest is not None and abs(nearest - at) > SAME_TIME else None

    @property
    def _dates(self) -> str:
        told = {host: pair for host in self.odd if (pair := self.apart(host)) is not None}
        if not told:
            return ""
        host, (mine, theirs) = next(iter(told.items()))
        return f" ({host} as of {mine:%Y-%m-%d}, the others as of {theirs:%Y-%m-%d}: it may have changed since)"

    @property
    def says(self) -> str:
        """Component, values and how many have them."""
        if self.usual is None:
            groups: dict[str, list[str]] = defaultdict(list)
            for host, held in sorted(self.held.items()):
                groups[held.text].append(host)
            each = (f"{value} on {_some(hosts)}" for value, hosts in sorted(groups.items(), key=lambda item: (-len(item[1]), item[1])))
            return f"{self.component} {', '.join(each)}"
        each = (f"{self.held[host].text} on {host}" for host in self.odd[:4])
        more = f" and {len(self.odd) - 4} more hosts differ" if len(self.odd) > 4 else ""
        return f"{self.component} {', '.join(each)}{more}, {self.usual} on the {len(self.held) - len(self.odd)} others{self._dates}"


def _some(hosts: Collection[str]) -> str:
    names = sorted(hosts)
    return ", ".join(names) if len(names) < 4 else f"{len(names)} hosts"


def is_load_bearing(component: str) -> bool:
    """Whether a difference in it can by itself make ranks fail, hang or compute differently: logging, tracing and profiling cannot."""
    return _LOAD_BEARING.fullmatch(component) is not None and _SPOKEN.fullmatch(component) is None


def hosts_of_ranks(case: Tables, logs: JobLogs, hosts: JobHosts) -> Mapping[int, str]:
    """rank -> its one host: as the job's own evidence places it, else as the rows that name both do."""
    named: dict[int, set[str]] = defaultdict(set)
    for host, rank in case.table("configs").select("host", "rank").drop_nulls().unique().collect().iter_rows():
        named[rank].add(host)
    placed = {**named, **{rank: set(names) for rank, names in hosts.of_ranks.items() if names}}
    return {rank: next(iter(names)) for rank, names in sorted(placed.items()) if len(names) == 1} | dict(logs.hosts)


def values_of_hosts(case: Tables, logs: JobLogs, hosts: JobHosts) -> Values:
    """What each host of the job has; of all hosts where the table names none of the job's."""
    rows = case.table("configs").select("evidence_id", "record", "host", "rank", "component", "value", "observed_at").collect()
    told: dict[tuple[str, str], list[tuple[datetime | None, str, str, str]]] = defaultdict(list)
    of_rank = hosts_of_ranks(case, logs, hosts)
    for evidence_id, record, named, rank, component, value, at in rows.iter_rows():
        host = named or (of_rank.get(rank) if rank is not None else None)
        if host and component and value and not _is_its_own(component):
            told[component, host].append((at, evidence_id, record, value))
    of_job = {host for _, host in told} & hosts.named
    found: dict[str, dict[str, Held]] = defaultdict(dict)
    for (component, host), seen in sorted(told.items()):
        if host in of_job or not of_job:
            kept = _latest(seen)
            _, evidence_id, record, value = min(kept, key=lambda row: row[1:])
            text = f"{host}: {component} {value[:MAX_SHOWN]}"
            at = max((row[0] for row in kept if row[0] is not None), default=None) if all(row[0] for row in kept) else None
            found[component][host] = Held(frozenset(row[3] for row in kept), Cite("configs", evidence_id, "", record, text), at)
    return found


def _latest(seen: list[tuple[datetime | None, str, str, str]]) -> list[tuple[datetime | None, str, str, str]]:
    """Undated observations, and of the dated ones those of the file that holds the latest."""
    dated = [row for row in seen if row[0] is not None]
    newest = max(dated, key=lambda row: (row[0] or datetime.min, row[1]), default=None)
    return [row for row in seen if row[0] is None or (newest is not None and row[1] == newest[1])]


def _is_its_own(component: str) -> bool:
    kind, _, name = component.partition(":")
    if kind in _NAMED_BY and name:
        return False
    words = set(re.split(r"[^a-z0-9]+", component.lower()))
    return bool((_OWN_VARIABLES if kind == "env" else _ITS_OWN) & words) or _ID_OF.search(component) is not None


def compared(values: Values) -> list[Compared]:
    """The components in which hosts differ, by name."""
    found = []
    for component, held in sorted(values.items()):
        counts = Counter(one.values for one in held.values())
        if len(counts) < 2:
            continue
        most, num = max(counts.items(), key=lambda item: (item[1], sorted(item[0])))
        if len(held) >= ENOUGH and num >= SHARE * len(held):
            odd = tuple(sorted(host for host, one in held.items() if one.values != most))
            found.append(Compared(component, held, " and ".join(sorted(most)), odd))
        elif len(held) < ENOUGH or len(counts) <= MAX_DISTINCT:
            found.append(Compared(component, held, None, ()))
    return found
