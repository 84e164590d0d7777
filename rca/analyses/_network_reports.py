"""Which host reports trouble with which other one: the lines in which a transport names the far end of a connection, as pairs of hosts.

A line is printed by whoever notices, and names the other end. The address becomes a host by what the evidence says of addresses
(`host_addresses`); one that nothing maps stays an address, for the speaker is not the accused. Loopback names nobody, and neither does a
connection within one host.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from rca.analyses._faults import kind_of
from rca.analyses._job_logs import JobLogs, Line
from rca.types import Tables

__all__ = ["NAMELESS", "READS", "Kind", "Report", "hosts_by_address", "kind_of_report", "reports", "speaker"]

READS: Final = ("host_addresses",)
Kind = Literal["transport", "closed", "local", "flushed"]

NAMELESS: Final = "file "  # stands before the file's id where no line of it tells the host
FLUSHED: Final = 5  # IBV_WC_WR_FLUSH_ERR: what was queued is thrown back after an earlier error
OWN_SIDE: Final = frozenset({1, 2, 3, 4, 6, 8})  # IBV_WC_LOC_*, MW_BIND: length, queue, registration or access on the reporting side
_STATUS: Final = re.compile(r"with (?:status|error)[= ](?:[A-Z][A-Z_]{2,40}\()?([0-9]{1,3})\b")
_VERBS: Final = re.compile(r"Call to ibv_\w{1,60} failed")  # a call into the own adapter
_NO_WAY: Final = re.compile(r"(?i)no route to host|network is unreachable|host is unreachable|connect(?:ion)? timed? ?out|connect timeout")
_CLOSED: Final = re.compile(r"(?i)connection (?:was )?(?:closed|reset|refused)|broken pipe|(?:closed|reset) by (?:remote )?peer")
_FAR_ENDS: Final = (  # how transports name the far end, with the port behind it
    re.compile(r"(?i)(?:completion from|closed by(?: remote)?|reset by|connection to|from remote) peer:? \[?([\w.:%-]{2,80})"),
    re.compile(r"(?i)(?:\bconnect(?:ion)?(?: to| timeout)?|(?:read|write) error):? \[?([\w.:%-]{2,80})(?=\]|<|:[0-9]| failed)"),
    re.compile(r"(?i)\bpeer host id:? ?([\w.:-]{2,80})|\bremote=\[?([\w.:%-]{2,80})"),
)
_FAR_RANK: Final = re.compile(r"(?i)\b(?:remote|peer)[ _]rank[ :=]{1,3}([0-9]{1,7})\b")
_NAME: Final = re.compile(
    r"(?=[\w.-]*[a-z])(?=[\w.-]*[0-9-])[a-z0-9][\w.-]{1,62}"
)  # a machine's name has a number or a dash, a word has not
_BY_SIGNATURE: Final[Mapping[str, Kind]] = {
    "nccl_ofi_error": "transport",
    "nccl_net_flush_error": "flushed",
    "nccl_socket_closed": "closed",
    "nccl_connect_refused": "closed",
    "tcpstore_broken": "closed",
}

_SOCKETS: Final = ("nccl_socket_closed", "nccl_connect_refused", "nccl_watchdog_timeout", "python_traceback", "unknown")  # not the store


@dataclass(frozen=True)
class Report:
    """One host says that a connection to another end has failed."""

    reporter: str  # host; a file's id where its lines tell none
    accused: str  # host, or the address or name as the line gives it where nothing maps it
    is_host: bool  # the accused is a host that the evidence knows
    kind: Kind  # transport or closed
    line: Line


def kind_of_report(line: Line) -> Kind | None:
    """What a line says of a connection: that the transport failed, that the far end closed or refused, that the fault is on the own side.

    None for a line about something else, and for a fault of the rank's own (storage refuses connections too).
    """
    if kind_of(line) is not None:
        return None
    if line.signature == "nccl_net_completion_error" or (line.signature == "python_traceback" and _STATUS.search(line.text)):
        status = int(found[1]) if (found := _STATUS.search(line.text)) else None
        return "flushed" if status == FLUSHED else "local" if status in OWN_SIDE or _VERBS.search(line.text) else "transport"
    if line.signature in _SOCKETS and _NO_WAY.search(line.text):
        return "transport"
    if line.signature in ("python_traceback", "unknown"):
        return "closed" if _CLOSED.search(line.text) else None
    return _BY_SIGNATURE.get(line.signature)


def speaker(line: Line, logs: JobLogs) -> str:
    """The host that prints a line: as named, else that of its rank, else its file stands for it."""
    named = line.host or (logs.hosts.get(line.rank) if line.rank is not None else None)
    return named or f"{NAMELESS}{line.evidence_id}"


def reports(case: Tables, logs: JobLogs, lines: Iterable[Line]) -> list[Report]:
    """The reports of transport errors and closed connections that name another host, in the order of the lines."""
    hosts = hosts_by_address(case, logs)
    found = []
    for line in lines:
        kind, end = kind_of_report(line), _far_end(line)
        if kind not in ("transport", "closed") or end is None:
            continue
        accused = logs.hosts.get(int(end[5:])) if end.startswith("rank ") else hosts.get(end)
        reporter = speaker(line, logs)
        if reporter not in (accused, end):
            found.append(Report(reporter, accused or end, accused is not None, kind, line))
    return found


def _far_end(line: Line) -> str | None:
    """The far end that a line names: an address in its usual form, a machine's first label, or `rank N`; None where it names none."""
    if found := _FAR_RANK.search(line.text):
        return f"rank {int(found[1])}"
    said = (found[found.lastindex or 0] for pattern in _FAR_ENDS if (found := pattern.search(line.text)))
    return next((end for text in (*said, line.peer or "") if (end := _end(text))), None)


def _end(text: str) -> str | None:
    text = text.strip("[]").rstrip(".:").partition("%")[0]
    for candidate in (text, text.rpartition(":")[0]):
        try:
            address = ipaddress.ip_address(candidate)
        except ValueError:
            continue
        return None if address.is_loopback or address.is_unspecified else str(address)
    label = text.partition(":")[0].lower().partition(".")[0]
    return label if _NAME.fullmatch(label) and not label.startswith("localhost") else None


def hosts_by_address(case: Tables, logs: JobLogs) -> dict[str, str]:
    """Address (and name) -> host, for those that only one host of the evidence has: a bridge has the same one on every host."""
    found: dict[str, set[str]] = defaultdict(set)
    rows = case.table("host_addresses").select("host", "rank", "address").unique().collect()
    for host, rank, address in rows.iter_rows():
        known = host or (logs.hosts.get(rank) if rank is not None else None)
        if known and address and (end := _end(address)):
            found[end].add(known)
    for host in logs.hosts.values():
        found[host].add(host)
    return {end: next(iter(hosts)) for end, hosts in found.items() if len(hosts) == 1}
