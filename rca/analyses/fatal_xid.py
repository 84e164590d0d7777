"""Which device or host did a kernel report as broken during the job, and which ranks sit on it?

1. Read the kernel records of the job's hosts in the job's time; tell what began a chain from what followed (`_kernel_roots`, and the edges of
   rca/catalogue/xid_edges.csv with their sources): Xid 45, 43 and 154 only follow, and so do most 109, 137 and 145; an ECC chain is one fault; a
   lost GPU makes switches complain; corrected errors and records from before the job accuse nobody.
2. The rank is the one whose process the record names, or whose GPU has that address; else the one of the host that failed by its log or that
   others wait for. A sick host concerns all of its ranks; of a device or a mount that nothing ties to a rank, only the host is named. A
   time-out of the GPU's firmware (119, 120) names whoever called it, and accuses nobody by that.
3. Of roots on several hosts the earliest outside the clock error counts; of links, the one end that had such errors before; else nobody is
   accused and all are listed. Both ends of one link on one host name the host.
4. The same application fault on many GPUs at once is the program; on one GPU in process after process it is the GPU.
5. Records that only tell of another's fault (lost packets of a peer) accuse nobody; hosts whose log is missing are named as the gap they are.
6. What our policy asks for goes with the root: the worst of its chain (a failed repair), and of what the driver's own verdict (154) demands.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import Any, Final

import polars as pl

from rca.analyses._faults import Story, story
from rca.analyses._job_logs import READS, Line, step_at_end
from rca.analyses._kernel_edges import Link
from rca.analyses._kernel_roots import Record, Scene, cites_of, scene
from rca.analyses._waits import build_waits
from rca.analyses._words import iso, ranks_text
from rca.catalogues import by_code, rows
from rca.errors import NotEnoughEvidence
from rca.policies import opinions
from rca.types import Finding, Sign, Tables

NEEDS = ("host_logs",)
USES = (*READS, "group_status", "memberships")
SIGNS = {
    "gpu_record": Sign("device", ("gpu_fault", "gpu_memory_fault", "nvlink_fault")),
    "gpu_memory_record": Sign("device", ("gpu_memory_fault", "gpu_fault")),
    "nvlink_record": Sign("device", ("nvlink_fault", "gpu_fault")),
    "nonfatal_link_record": Sign("device", ("nvlink_fault", "unknown")),
    "peer_record": Sign("peer", ("nvlink_fault", "unknown")),
    "peer_access_record": Sign("device", ("nvlink_fault", "user_exception", "unknown")),
    "host_record": Sign("device", ("host_fault", "unknown")),
    "network_record": Sign("device", ("network_fault", "network_transient", "unknown")),
    "storage_record": Sign("device", ("storage_stall", "unknown")),
    "application_record": Sign("device", ("user_exception", "gpu_fault", "unknown")),
    "repeated_record": Sign("device", ("gpu_fault", "gpu_memory_fault", "user_exception", "unknown")),
    "pcie_record": Sign("device", ("gpu_fault", "host_fault", "network_fault", "unknown")),
    "hung_task_record": Sign("device", ("storage_stall", "host_fault", "unknown")),
    "node_wide_record": Sign("device", ("user_exception", "unknown")),
    "doubtful_record": Sign("device", ("unknown",)),
}

MAX_CITES = 6
MAX_COMPARED: Final = 32  # earliest roots that each other one is compared with
MAX_FOLLOWING: Final = 4  # kinds of records that are said to follow
ACCESS: Final = 137  # an access that arrived over a link: the fault is at its other end, or in the program there
SAME_LINK_S: Final = 2.0  # both ends of a link, on one host, tell its loss within so much
_SIGN_OF_CAUSE: Mapping[str, str] = {
    "gpu_fault": "gpu_record",
    "gpu_memory_fault": "gpu_memory_record",
    "nvlink_fault": "nvlink_record",
    "host_fault": "host_record",
    "network_fault": "network_record",
    "storage_stall": "storage_record",
    "user_exception": "application_record",
    "unknown": "doubtful_record",
}
_SIGN_OF_KIND: Mapping[str, str] = {"aer": "pcie_record", "hung_task": "hung_task_record"}  # they name no culprit of their own
_ON_DEVICE = frozenset(
    {"gpu_record", "gpu_memory_record", "nvlink_record", "nonfatal_link_record", "application_record", "repeated_record", "pcie_record"}
    | {"doubtful_record"}
)
_DEMANDS: Mapping[str, str] = {
    "reset": "reset_gpu",
    "drain": "reset_gpu",
    "drain_reset": "reset_gpu",
    "reboot": "reboot_host",
}  # verdicts of the driver
_DEMANDING: Final = ("repairs", "verdict")  # edges at whose end a line says what is needed: a repair that a reset makes effective
_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.[0-7])?")


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for the root; a second one only for what may have been, undated."""
    told = case.derive(story)
    if not told.logs.hosts:
        raise NotEnoughEvidence("no evidence says which hosts the ranks run on: a kernel log cannot be tied to them")
    if not told.not_seen_to_end_well:
        return ()  # whatever a kernel wrote, it kept no rank from finishing
    seen = scene(case, told)
    if seen.roots:
        first = _first(seen, told)
        later = [root for root in seen.roots if root not in first]
        by_clock = len(first) == 1 and any(told.logs.is_earlier_by_clock(first[0].line, root.line) for root in later)
        return [_finding(case, told, seen, first, ordered_by="clock" if by_clock else None)]
    if seen.node_wide:
        return [_program(seen)]
    if seen.victims:
        return [_peers(case, told, seen)]
    if seen.undated:
        return [_finding(case, told, seen, seen.undated[:1], sign="doubtful_record")]
    _check_covered(case, told)
    return ()


def _first(seen: Scene, told: Story) -> list[Record]:
    """Roots that none of the others precedes outside the clock error; the other end of the same link beside it, and of links on several hosts
    the one that was bad before."""
    roots = seen.roots
    early = nsmallest(MAX_COMPARED, roots, key=lambda r: r.at_s if r.line.at is not None else 0.0)
    first = [r for r in roots if not any(told.logs.order(o.line, r.line) == -1 for o in early if o is not r)] or list(roots)
    if all(r.cause == "nvlink_fault" for r in first) and len({r.host for r in first}) > 1:
        hinted = [r for r in first if "source" not in (r.remote_effect or "")] or first
        worn = [r for r in hinted if (r.host, r.gpu) in seen.worn]
        first = worn if len({r.host for r in worn}) == 1 else hinted
    if len({r.host for r in first}) == 1 and first[0].cause == "nvlink_fault":
        begun = min(r.at_s for r in first)
        first += [
            r for r in roots if r not in first and r.host == first[0].host and r.cause == "nvlink_fault" and r.at_s - begun <= SAME_LINK_S
        ]
    return first


def _finding(
    case: Tables, told: Story, seen: Scene, roots: Sequence[Record], *, sign: str | None = None, ordered_by: str | None = None
) -> Finding:
    logs, root = told.logs, roots[0]
    sign = sign or _sign(seen, root)
    alone = len({r.host for r in roots}) == 1 and len({r.cause for r in roots}) == 1
    by_end = (
        [_ranks(case, told, r, sign) for r in roots] if alone and len({r.gpu for r in roots}) > 1 and root.cause == "nvlink_fault" else []
    )
    ranks = _ranks(case, told, root, sign) if alone and not by_end else ()
    ends = sorted({rank for of_end in by_end for rank in of_end}) if all(by_end) else []
    candidates = ends or sorted({rank for r in roots for rank in logs.ranks_on(r.host)})
    says = f"the kernel of {root.host} reports {root.name}{_on(roots) if alone else _on(roots[:1])}{_when(root)}"
    says += (
        f": {ranks_text(ranks)}"
        if ranks
        else f"; at which end of the link the fault lies is not told (ranks {', '.join(map(str, candidates))})"
        if ends
        else f"; which of its ranks ({', '.join(map(str, candidates))}) it hit is not told"
        if alone
        else ""
    )
    if not alone:
        says += f"; {len({r.host for r in roots})} hosts report faults, and which was first the clocks do not tell"
    if root in seen.repeated:
        says += f"; it met {seen.repeated[root]} processes on this GPU one after the other and no other GPU so: that is the GPU, no program"
    following = [link for r in roots for link in seen.followers(r)] if alone else []
    told_after = _following(following)
    if told_after:
        says += "; what follows from it: " + ", ".join(
            f"{f['name']}{_count(f['num_gpus'], f['num_hosts'])} ({f['because']})" for f in told_after[:MAX_FOLLOWING]
        )
    numbers: dict[str, Any] = {
        "failed_at": iso(root.line.at),
        "xid": root.code if root.kind == "xid" else None,
        "gpu": root.gpu,
        "step": step_at_end(case, ranks[0]) if len(ranks) == 1 else None,
        "candidates": [] if ranks else candidates,
        "ordered_by": ordered_by,
    }
    if alone and (policy := _policy(seen, root, following)):
        numbers |= _ruled(root, policy)
    if told_after:
        numbers["followed_by"] = told_after
    return Finding(
        "fatal_xid", sign, says, ranks=ranks, hosts=tuple(sorted({r.host for r in roots})), scope=f"{root.host} {root.gpu} {root.name}",
        explains=tuple(sorted(logs.everyone - set(ranks))) if ranks else (), numbers=numbers,
        cites=cites_of(roots, _examples(following))[:MAX_CITES],
    )  # fmt: skip


def _sign(seen: Scene, root: Record) -> str:
    if root in seen.repeated:
        return "repeated_record"
    if root.cause == "nvlink_fault" and root.role == "either" and root.severity == "nonfatal":
        return "nonfatal_link_record"  # the link said itself that it goes on
    return _SIGN_OF_KIND.get(root.kind) or _SIGN_OF_CAUSE[root.cause]


def _on(roots: Sequence[Record]) -> str:
    gpus = sorted({r.gpu for r in roots if r.gpu})
    what = "switch" if roots[0].kind == "sxid" else "GPU"
    return f" {what}{'s' if len(gpus) > 1 else ''} {', '.join(gpus)}" if gpus else ""


def _when(root: Record) -> str:
    return f" at {root.line.at:%H:%M:%S} UTC" if root.line.at is not None else ", when is not told"


def _following(links: Sequence[tuple[Record, Link]]) -> list[dict[str, Any]]:
    """Kinds of records that follow, most told first: on how many GPUs and hosts, why, and who says so."""
    by_name: dict[str, list[tuple[Record, Link]]] = defaultdict(list)
    for record, link in links:
        by_name[record.name].append((record, link))
    found = []
    for name, told in by_name.items():
        edge = told[0][1].edge
        found.append(
            {
                "name": name,
                "num_gpus": len({(r.host, r.gpu) for r, _ in told}),
                "num_hosts": len({r.host for r, _ in told}),
                "because": told[0][1].says,
                "source": edge.source if edge else "the line itself",
            }
        )
    return sorted(found, key=lambda f: (-f["num_gpus"], f["name"]))


def _count(num_gpus: int, num_hosts: int) -> str:
    return (f" on {num_gpus} GPUs" + (f" of {num_hosts} hosts" if num_hosts > 1 else "")) if num_gpus > 1 else ""


def _examples(links: Sequence[tuple[Record, Link]]) -> list[Line]:
    """Of each kind that follows the first line, in the order of time."""
    first: dict[str, Line] = {}
    for record, _ in links:
        first.setdefault(record.name, record.line)
    return list(first.values())


def _policy(seen: Scene, root: Record, following: Sequence[tuple[Record, Link]]) -> str:
    """What our rules ask for: of the root, or of a failed repair in its chain, or what the driver itself demands where we would let it run on."""
    policy = "check_gpu" if root in seen.repeated else root.policy
    worse = [r.policy for r, link in following if link.edge is not None and link.edge.kind == "worsens"]
    if "replace_host" in worse:
        return "replace_host"
    stance = {row["policy"]: row["stance"] for row in rows("policies")}
    if stance.get(policy) == "out":
        return policy
    asked = [root.recovery, *(r.recovery for r, link in following if link.edge is not None and link.edge.kind in _DEMANDING)]
    demands = [_DEMANDS[word] for word in asked if word is not None and word in _DEMANDS]
    return demands[-1] if demands else worse[-1] if worse else policy


def _ruled(record: Record, policy: str) -> dict[str, Any]:
    """Our rule for a record, and the words of the authorities beside it, each under its column of the catalogue."""
    told = record.policy_code
    row = by_code(told[0]).get(told[1]) if told else None
    return {"policy": policy, "policy_code": told, "authorities": {o.column: o.value for o in opinions(row)} if row else {}}


def _program(seen: Scene) -> Finding:
    record = seen.node_wide[0]
    devices = {(r.host, r.gpu) for r in seen.node_wide}
    hosts = sorted({r.host for r in seen.node_wide})
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    says = f"{record.name} on {len(devices)} GPUs of {where} at once: that is the program, no device"
    numbers = {"failed_at": iso(record.line.at), "xid": record.code, **_ruled(record, record.policy)}
    cites = cites_of(seen.node_wide)[:MAX_CITES]
    return Finding("fatal_xid", "node_wide_record", says, scope=f"{record.host} {record.name}", numbers=numbers, cites=cites)


def _peers(case: Tables, told: Story, seen: Scene) -> Finding:
    """GPUs that tell of another's fault, and no log that shows that one."""
    first = seen.victims[0]
    kinds = sorted({r.name for r in seen.victims})
    devices, hosts = {(r.host, r.gpu) for r in seen.victims}, {r.host for r in seen.victims}
    unread = _unread(case, told)
    sufferers = {rank for r in seen.victims for rank in _ranks(case, told, r, "nvlink_record")}
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


def _ranks(case: Tables, told: Story, record: Record, sign: str) -> tuple[int, ...]:
    """Ranks that a record concerns: by process, by address, by what else points at one of the host's ranks. A sick host concerns all of its
    ranks; of a device or a mount nobody is named where nothing tells which rank uses it."""
    logs = told.logs
    on_host = logs.ranks_on(record.host)
    if record.line.rank is not None:
        return (record.line.rank,)
    if sign == "host_record" or len(on_host) == 1:
        return on_host
    if sign in _ON_DEVICE and (by_address := _by_address(case, record, on_host)):
        return by_address
    failed = {rank for fault in told.first for rank in fault.ranks} & set(on_host)
    if len(failed) == 1:
        return tuple(failed)
    waits = case.derive(build_waits)
    awaited = {rank for rank in on_host if rank in waits.awaited and rank not in waits.first and rank not in waits.held}
    return tuple(awaited) if len(awaited) == 1 else ()


def _by_address(case: Tables, record: Record, on_host: Sequence[int]) -> tuple[int, ...]:
    """Ranks of the host whose GPU some source gives by the address that the record names."""
    rows = (
        case.table("ranks")
        .filter(pl.col("rank").is_in(list(on_host)) & pl.col("gpu").is_not_null())
        .select("rank", "gpu")
        .unique()
        .collect()
    )
    named: dict[str, set[int]] = defaultdict(set)
    for rank, gpu in rows.iter_rows():
        found = _PCI.fullmatch(gpu.lower())
        if found:
            named[f"{int(found[1] or '0', 16):04x}:{int(found[2], 16):02x}:{int(found[3], 16):02x}"].add(rank)
    return tuple(sorted(named.get(record.gpu or "", ())))


def _unread(case: Tables, told: Story) -> list[str]:
    """Hosts of the job without a kernel log, sorted."""
    read = case.table("host_logs").select(pl.col("host").drop_nulls().unique()).collect()
    return sorted(set(told.logs.hosts.values()) - set(read["host"].to_list()))


def _check_covered(case: Tables, told: Story) -> None:
    """Raise unless the kernel log of every host was read."""
    if unread := _unread(case, told):
        shown = ", ".join(unread[:6])
        raise NotEnoughEvidence(f"no fault in the kernel logs that were read, but {len(unread)} hosts of the job left none ({shown})")


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
