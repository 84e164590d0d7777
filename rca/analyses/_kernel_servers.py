"""Servers of shared file systems that were away for a while before storage refused the job's reads or writes: told beside the refusals.

The job may have gone on meanwhile, and the server answered again: such records end nothing by themselves. Yet they say why storage refused, and when.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from rca.analyses._faults import Story
from rca.analyses._job_logs import cite_line, kernel_line
from rca.types import Finding, Tables

__all__ = ["servers_away"]

SERVERS: Final = ("storage_nfs", "storage_lustre")  # kinds that tell of a server, not of a disk of the host
NEAR_S: Final = (
    3600.0  # so long before the first refusal a server that was away may have to do with it: mounts give up and retry for minutes
)
MAX_CITES: Final = 6
MAX_NAMED: Final = 3


def servers_away(case: Tables, told: Story) -> list[Finding]:
    """A note of the servers that hosts of the job could not reach within the hour before storage refused; empty where it did not, or none is told."""
    refused = [fault.line.at for fault in told.first if fault.kind == "storage_error"]
    dated = [at for at in refused if at is not None]
    first = min(dated) if dated else told.logs.span[1] if told.logs.span else None  # what ended the job stands near the end of its logs
    if not refused or first is None:
        return []
    rows = case.table("kernel_events").filter(pl.col("kind").is_in(SERVERS) & pl.col("device").is_not_null())
    away = []
    for row in rows.sort("evidence_id", "record").collect().iter_rows(named=True):
        at = told.logs.clocks.at(row)
        if told.logs.ranks_on(row["host"]) and at is not None and 0 <= (first - at).total_seconds() <= NEAR_S:
            away.append((at, row))
    if not away:
        return []
    away.sort(key=lambda one: (one[0], one[1]["host"]))
    servers, hosts = (sorted({row[name] for _, row in away}) for name in ("device", "host"))
    shown = ", ".join(servers[:MAX_NAMED]) + (" and others" if len(servers) > MAX_NAMED else "")
    last = {(row["host"], row["device"]): row for _, row in away}  # of each mount
    is_back = all(row["recovery"] == "none" for row in last.values())
    says = (
        f"the kernels of {len(hosts)} host{'s' if len(hosts) > 1 else ''} could not reach the storage server {shown} "
        f"from {away[0][0]:%H:%M:%S} to {away[-1][0]:%H:%M:%S} UTC at least"
        + ("; it answered again on all of them" if is_back else "")
        + f"; storage refused {'from' if dated else 'by'} {first:%H:%M:%S}{' on' if dated else ''}"
    )
    lines = {row["host"]: kernel_line(row, None, told.logs) for _, row in reversed(away)}  # the first of each host
    cites = tuple(cite_line(lines[host]) for host in sorted(lines))[:MAX_CITES]
    return [Finding("fatal_xid", "server_away", says, scope=f"servers {shown}", numbers={"is_back": is_back}, cites=cites)]
