"""Which device or host did a kernel report as broken during the job, and which ranks sit on it?

1. Read the kernel records of the job's hosts in the job's time; tell what began a chain from what followed (`_kernel_roots`): Xid 45, 43
   and 154 only follow, and so do most 109, 137 and 145; an ECC chain is one fault; a lost GPU makes switches complain; corrected errors and
   records from before the job accuse nobody.
2. The rank is the one whose process the record names, or whose GPU has that address; else the one of the host that failed by its log or that
   others wait for. A sick host concerns all of its ranks; of a device or a mount that nothing ties to a rank, only the host is named.
3. Of roots on several hosts the earliest outside the clock error counts; else nobody is accused and all are listed.
4. The same application fault on most GPUs of a host is the program.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import polars as pl

from rca.analyses._faults import Story, story
from rca.analyses._job_logs import READS, cite_line, step_at_end
from rca.analyses._kernel_roots import Record, Scene, scene
from rca.analyses._waits import build_waits
from rca.analyses._words import iso, ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Finding, Sign, Tables

NEEDS = ("host_logs",)
USES = (*READS, "group_status", "memberships")
SIGNS = {
    "gpu_record": Sign("device", ("gpu_fault", "gpu_memory_fault", "nvlink_fault")),
    "gpu_memory_record": Sign("device", ("gpu_memory_fault", "gpu_fault")),
    "nvlink_record": Sign("device", ("nvlink_fault", "gpu_fault")),
    "host_record": Sign("device", ("host_fault", "unknown")),
    "network_record": Sign("device", ("network_fault", "network_transient", "unknown")),
    "storage_record": Sign("device", ("storage_stall", "unknown")),
    "application_record": Sign("device", ("user_exception", "gpu_fault", "unknown")),
    "pcie_record": Sign("device", ("gpu_fault", "host_fault", "network_fault", "unknown")),
    "hung_task_record": Sign("device", ("storage_stall", "host_fault", "unknown")),
    "node_wide_record": Sign("device", ("user_exception", "unknown")),
    "doubtful_record": Sign("device", ("unknown",)),
}

MAX_CITES = 6
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
_ON_DEVICE = frozenset({"gpu_record", "gpu_memory_record", "nvlink_record", "application_record", "pcie_record", "doubtful_record"})
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
        first = _earliest(seen.roots, told)
        later = [root for root in seen.roots if root not in first]
        by_clock = len(first) == 1 and any(told.logs.is_earlier_by_clock(first[0].line, root.line) for root in later)
        return [_finding(case, told, first, ordered_by="clock" if by_clock else None)]
    if seen.node_wide:
        return [_program(told, seen)]
    if seen.undated:
        return [_finding(case, told, seen.undated[:1], sign="doubtful_record")]
    _check_covered(case, told)
    return ()


def _earliest(roots: Sequence[Record], told: Story) -> list[Record]:
    """Roots that none of the others precedes outside the clock error."""
    return [r for r in roots if not any(told.logs.order(o.line, r.line) == -1 for o in roots if o is not r)] or list(roots)


def _finding(case: Tables, told: Story, roots: Sequence[Record], *, sign: str | None = None, ordered_by: str | None = None) -> Finding:
    logs, root = told.logs, roots[0]
    sign = sign or _SIGN_OF_KIND.get(root.kind) or _SIGN_OF_CAUSE[root.cause]
    alone = len({r.host for r in roots}) == 1 and len({r.cause for r in roots}) == 1
    ranks = _ranks(case, told, root, sign) if alone else ()
    candidates = sorted({rank for r in roots for rank in logs.ranks_on(r.host)})
    gpu = f" GPU {root.gpu}" if root.gpu else ""
    when = f" at {root.line.at:%H:%M:%S} UTC" if root.line.at is not None else ", when is not told"
    says = f"the kernel of {root.host} reports {root.name}{gpu}{when}"
    says += (
        f": {ranks_text(ranks)}"
        if ranks
        else f"; which of its ranks ({', '.join(map(str, candidates))}) it hit is not told"
        if alone
        else ""
    )
    if not alone:
        says += f"; {len({r.host for r in roots})} hosts report faults, and which was first the clocks do not tell"
    numbers = {
        "failed_at": iso(root.line.at),
        "xid": root.code if root.kind == "xid" else None,
        "gpu": root.gpu,
        "step": step_at_end(case, ranks[0]) if len(ranks) == 1 else None,
        "candidates": [] if ranks else candidates,
        "ordered_by": ordered_by,
    }
    return Finding(
        "fatal_xid", sign, says, ranks=ranks, hosts=tuple(sorted({r.host for r in roots})), scope=f"{root.host} {root.gpu} {root.name}",
        explains=tuple(sorted(logs.everyone - set(ranks))) if ranks else (), numbers=numbers,
        cites=tuple(cite_line(r.line) for r in roots)[:MAX_CITES],
    )  # fmt: skip


def _program(told: Story, seen: Scene) -> Finding:
    record = seen.node_wide[0]
    gpus = len({r.gpu for r in seen.node_wide})
    says = f"{record.name} on {gpus} GPUs of {record.host} at once: that is the program, no device"
    numbers = {"failed_at": iso(record.line.at), "xid": record.code}
    cites = tuple(cite_line(r.line) for r in seen.node_wide)[:MAX_CITES]
    return Finding("fatal_xid", "node_wide_record", says, scope=f"{record.host} {record.name}", numbers=numbers, cites=cites)


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


def _check_covered(case: Tables, told: Story) -> None:
    """Raise unless the kernel log of every host was read."""
    rows = case.table("host_logs").select(pl.col("host").drop_nulls().unique()).collect()
    unread = sorted(set(told.logs.hosts.values()) - set(rows["host"].to_list()))
    if unread:
        shown = ", ".join(unread[:6])
        raise NotEnoughEvidence(f"no fault in the kernel logs that were read, but {len(unread)} hosts of the job left none ({shown})")


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
