"""What kernel records say that accuse no rank: servers that hosts share, a program everywhere, victims of a peer, GPUs and processes of others."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from rca.analyses._faults import Story
from rca.analyses._kernel_events import LOST
from rca.analyses._kernel_policy import ruled
from rca.analyses._kernel_roots import Scene, cites_of
from rca.analyses._kernel_who import ranks_of
from rca.analyses._kernel_words import on_devices, when
from rca.analyses._words import iso, ranks_text
from rca.types import Finding, Tables

__all__ = ["MAX_CITES", "bystander", "peers", "program", "shared", "unread_hosts"]

MAX_CITES: Final = 6
ACCESS: Final = 137  # an access that arrived over a link: the fault is at its other end, or in the program there
_SHARED: Final = frozenset({"storage_nfs", "storage_lustre"})  # kinds that tell of a server, not of a disk of the host


def shared(seen: Scene, told: Story) -> Finding | None:
    """The servers of a file system that hosts share fail several of them, or their ranks, and nothing else began a chain: no host is to blame."""
    hosts = sorted({r.host for r in seen.roots})
    if not hosts or any(r.kind not in _SHARED for r in seen.roots):
        return None
    refused = {rank for fault in told.first if fault.kind == "storage_error" for rank in fault.ranks}
    if len(hosts) == 1 and refused <= set(told.logs.ranks_on(hosts[0])):
        return None
    root = min(seen.roots, key=lambda r: (r.line.at is None, r.at_s if r.line.at is not None else 0.0))
    shown = ", ".join(hosts[:6]) + (" and others" if len(hosts) > 6 else "")
    who = f"the kernel of {shown} reports" if len(hosts) == 1 else f"the kernels of {len(hosts)} hosts ({shown}) report"
    says = f"{who} {root.name}{when(root)}"
    says += f", and storage refused {ranks_text(sorted(refused))}" if refused else ""
    says += ": what they share fails, and no host is accused"
    numbers: dict[str, Any] = {"failed_at": iso(root.line.at), "xid": None, "candidates": []}
    return Finding("fatal_xid", "storage_record", says, scope="shared storage", numbers=numbers, cites=cites_of(seen.roots)[:MAX_CITES])


def program(seen: Scene) -> Finding:
    record = seen.node_wide[0]
    devices = {(r.host, r.gpu) for r in seen.node_wide}
    hosts = sorted({r.host for r in seen.node_wide})
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    says = f"{record.name} on {len(devices)} GPUs of {where} at once: that is the program, no device"
    numbers = {"failed_at": iso(record.line.at), "xid": record.code, **ruled(record, record.policy)}
    cites = cites_of(seen.node_wide)[:MAX_CITES]
    return Finding("fatal_xid", "node_wide_record", says, scope=f"{record.host} {record.name}", numbers=numbers, cites=cites)


def peers(case: Tables, told: Story, seen: Scene) -> Finding:
    """GPUs that tell of another's fault, and no log that shows that one."""
    first = seen.victims[0]
    kinds = sorted({r.name for r in seen.victims})
    devices, hosts = {(r.host, r.gpu) for r in seen.victims}, {r.host for r in seen.victims}
    unread = unread_hosts(case, told)
    sufferers = {rank for r in seen.victims for rank in ranks_of(case, told, r, "nvlink_record", seen)}
    says = (
        f"{' and '.join(kinds)} on {len(devices)} GPU{'s' if len(devices) > 1 else ''} of {len(hosts)} host{'s' if len(hosts) > 1 else ''}"
    )
    says += ": they tell of a fault at the other end of their links, and no log that was read shows that end, so none of them is accused"
    if unread:
        says += f"; no kernel log of {', '.join(unread[:6])}{' and others' if len(unread) > 6 else ''} was read: get it before any host is drained"
    return Finding(
        "fatal_xid", "peer_access_record" if {r.code for r in seen.victims} == {ACCESS} else "peer_record", says, scope="victims of a link",
        numbers={"failed_at": iso(first.line.at), "xid": first.code, "unread_hosts": unread},
        explains=tuple(sorted(sufferers)),
        cites=cites_of(seen.victims)[:MAX_CITES],
    )  # fmt: skip


def bystander(case: Tables, told: Story, seen: Scene) -> Finding:
    """Records of GPUs and processes that no rank of the job uses, and nothing else: a note. A GPU that left the bus is a sign against its host."""
    lost = [r for r in seen.strangers if r.stranger == "gpu" and (r.code == LOST or r.kind in ("bus_loss", "aer")) and not r.is_sign]
    first = (lost or seen.strangers)[0]
    whose = f"process {first.line.pid} ({first.process})" if first.stranger == "process" else "a GPU"
    says = f"the kernel of {first.host} reports {first.name}{on_devices([first])}{when(first)}, of {whose} that no rank of the job uses"
    says += ": no rank is accused"
    if unread := unread_hosts(case, told):
        says += f"; no kernel log of {', '.join(unread[:6])}{' and others' if len(unread) > 6 else ''} was read"
    return Finding(
        "fatal_xid", "lost_beside_record" if lost else "bystander_record", says, scope=f"{first.host} {first.gpu} {first.name}",
        numbers={"seen_at": iso(first.line.at), "xid": first.code, "gpu": first.gpu, "candidates": list(told.logs.ranks_on(first.host))},
        cites=cites_of(lost or seen.strangers)[:MAX_CITES],
    )  # fmt: skip


def unread_hosts(case: Tables, told: Story) -> list[str]:
    """Hosts of the job without a kernel log, sorted."""
    read = case.table("host_logs").select(pl.col("host").drop_nulls().unique()).collect()
    return sorted(set(told.logs.hosts.values()) - set(read["host"].to_list()))
