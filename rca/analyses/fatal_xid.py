"""Which device or host did a kernel report as broken during the job, and which ranks sit on it?

1. Read the kernel records of the job's hosts in the job's time; tell what began a chain from what followed (`_kernel_roots`, and the edges of
   rca/catalogue/xid_edges.csv with their sources): Xid 45, 43 and 154 only follow, and so do most 109, 137 and 145; an ECC chain is one fault; a
   lost GPU makes switches complain; corrected errors and records from before the job accuse nobody.
2. The rank is the one whose process the record names, or whose GPU has that address; else the one of the host that failed by its log or that
   others wait for. A sick host concerns all of its ranks; of a device or a mount that nothing ties to a rank, only the host is named. A
   time-out of the GPU's firmware (119, 120) names whoever called it, and accuses nobody by that. Where process and address name different
   ranks, a fault of the device is of the address and one of a program is of the process; both are said.
3. Of roots on several hosts the earliest outside the clock error counts; of links, the one end that had such errors before; else nobody is
   accused and all are listed. Both ends of one link on one host name the host.
4. The same application fault on many GPUs at once is the program; on one GPU in process after process it is the GPU.
5. Records that only tell of another's fault (lost packets of a peer) accuse nobody; hosts whose log is missing are named as the gap they are.
6. A GPU or process that is of no rank accuses nobody: it is noted, and a lost GPU beside the job's counts a little against the host. So do
   mere signs: an error of the bus that lost nothing, a short stall of a processor.
7. What our policy asks for goes with the root: the worst of its chain (a failed repair), and of what the driver's own verdict (154) demands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest
from typing import Any, Final

import polars as pl

from rca.analyses._faults import Story, story
from rca.analyses._job_logs import READS, step_at_end
from rca.analyses._kernel_aside import Aside, aside_words, broken_beside, of_weight
from rca.analyses._kernel_events import LOST, UNNAMED, Record, waits_for_gpus
from rca.analyses._kernel_policy import policy_of, ruled, sites_rule
from rca.analyses._kernel_programs import has_steps
from rca.analyses._kernel_roots import FAR, Scene, cites_of, scene
from rca.analyses._kernel_users import TRAINS, users_of
from rca.analyses._kernel_when import ENDED_BY_THEN, OTHER_FIRST, OUTLIVED
from rca.analyses._kernel_words import counted, examples, followers, named, on_devices, when
from rca.analyses._storage_hints import in_storage
from rca.analyses._waits import build_waits
from rca.analyses._words import iso, ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Finding, Sign, Tables

NEEDS = ("host_logs",)
USES = (*(table for table in READS if table not in NEEDS), "group_status", "memberships")
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
    "weak_gpu_bus_record": Sign("device", ("gpu_fault", "host_fault", "unknown")),
    "weak_bus_record": Sign("device", ("host_fault", "gpu_fault", "network_fault", "storage_stall", "unknown")),
    "weak_storage_record": Sign("device", ("storage_stall", "unknown")),
    "weak_network_record": Sign("device", ("network_fault", "unknown")),
    "short_stall_record": Sign("device", ("host_fault", "unknown")),
    "lost_beside_record": Sign("device", ("host_fault", "unknown")),
    "bystander_record": Sign("device", ("unknown",)),
    "hung_task_record": Sign("device", ("storage_stall", "host_fault", "unknown")),
    "node_wide_record": Sign("device", ("user_exception", "unknown")),
    "doubtful_record": Sign("device", ("unknown",)),
    "not_counted": Sign("mention", (), is_note=True),
    "not_counted_unread": Sign("mention", ()),
}

MAX_CITES = 6
MAX_COMPARED: Final = 32  # earliest roots that each other one is compared with
MAX_FOLLOWING: Final = 4  # kinds of records that are said to follow
ACCESS: Final = 137  # an access that arrived over a link: the fault is at its other end, or in the program there
ONE_SWITCH_S: Final = 5.0  # links of several hosts that go down within so much are one fault: each notices it when its driver next looks
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
_SHARED: Final = frozenset({"storage_nfs", "storage_lustre"})  # kinds that tell of a server, not of a disk of the host
_LINKS: Final = frozenset({"nic", "ib"})
IN_JOBS_TIME: Final = frozenset(
    {OUTLIVED, ENDED_BY_THEN, OTHER_FIRST, FAR}
)  # why a record of the job's time, or of its day, does not count
_BROKEN: Final = frozenset({"gpu_fault", "gpu_memory_fault"})
_OF_STORAGE: Final = frozenset({"storage_record", "hung_task_record"})
_OF_PROGRAMS: Final = frozenset({"application_record"})  # a program did it, wherever it ran
_WEAK_SIGN: Mapping[str, str] = {"storage_stall": "weak_storage_record", "network_fault": "weak_network_record"}
_NO_FAULT: Final = frozenset({*_WEAK_SIGN.values(), "weak_gpu_bus_record", "weak_bus_record", "short_stall_record"})  # they name no rank
_ON_DEVICE = frozenset(
    {"gpu_record", "gpu_memory_record", "nvlink_record", "nonfatal_link_record", "application_record", "repeated_record", "pcie_record"}
    | {"doubtful_record"}
)


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for the root; a second one only for what may have been, undated."""
    told = case.derive(story)
    seen = scene(case, told)
    if told.logs.everyone and not told.not_seen_to_end_well:  # whatever a kernel wrote, it kept no rank from finishing
        return _mention(case, told, (*seen.aside, *((r, "every rank ended well") for r in seen.roots if of_weight(r))))
    found = _found(case, told, seen)
    if found:
        return [_with_beside(_with_aside(found[0], seen), told, seen), *found[1:]]
    if seen.aside:
        return [_with_beside(one, told, seen) for one in _mention(case, told, seen.aside)]
    _check_covered(case, told)
    return ()


def _found(case: Tables, told: Story, seen: Scene) -> list[Finding]:
    """What the records that count say."""
    if shared := _shared(seen, told):
        return [shared]
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
        heaviest = sorted(seen.undated, key=lambda r: (not of_weight(r), r.line.rank is None))
        return [_finding(case, told, seen, heaviest[:1], sign="doubtful_record")]
    if seen.strangers:
        return [_bystander(case, told, seen)]
    return []


def _mention(case: Tables, told: Story, aside: Sequence[Aside]) -> list[Finding]:
    """Records of weight that do not count, where no other does: a note, as "found nothing" would be wrong."""
    if not aside:
        return []
    unread = _unread(case, told) if told.logs.hosts else []
    says = f"seen in kernel logs and not counted: {aside_words(aside)}"
    if not told.logs.hosts:
        says += "; no map of ranks to hosts was given"
    if unread:
        says += f"; no kernel log of {', '.join(unread[:6])}{' and others' if len(unread) > 6 else ''} was read"
    return [
        Finding(
            "fatal_xid", "not_counted_unread" if unread or not told.logs.hosts else "not_counted", says, scope="not counted",
            numbers={"not_counted": len(aside), "needs_map": not told.logs.hosts, "has_log": has_steps(case)},
            cites=cites_of([record for record, _ in aside])[:MAX_CITES],
        )
    ]  # fmt: skip


def _with_aside(finding: Finding, seen: Scene) -> Finding:
    """A finding that tells too which other records of weight were seen and do not count."""
    cited = {(cite.evidence_id, cite.record) for cite in finding.cites}
    aside = [(r, why) for r, why in seen.aside if (r.line.evidence_id, r.line.record) not in cited]
    if not aside:
        return finding
    says = f"{finding.says}; seen and not counted: {aside_words(aside)}"
    return replace(finding, says=says, numbers={**finding.numbers, "not_counted": len(aside)})


def _with_beside(finding: Finding, told: Story, seen: Scene) -> Finding:
    """A finding with the hosts of the job that it does not name and whose own record, of the job's time, shows a broken GPU or link."""
    records = [*seen.roots, *(r for r, why in seen.aside if why in IN_JOBS_TIME)]
    beside = broken_beside([r for r in records if not told.logs.hosts or told.logs.ranks_on(r.host)], finding.hosts)
    return replace(finding, numbers={**finding.numbers, "broken_beside": beside}) if beside else finding


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
    if all(r.kind in _LINKS for r in first):
        begun = min(r.at_s for r in first)
        first += [r for r in roots if r not in first and r.kind in _LINKS and r.at_s - begun <= ONE_SWITCH_S]
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
    alone = len({r.host for r in roots}) == 1 and len({r.cause for r in roots}) == 1
    is_open = len({r.host for r in roots}) > 1 and len({r.cause for r in roots}) > 1  # a tie says nothing of the cause either
    sign = sign or ("doubtful_record" if is_open else _sign(seen, root))
    by_end = (
        [_ranks(case, told, r, sign, seen) for r in roots]
        if alone and len({r.gpu for r in roots}) > 1 and root.cause == "nvlink_fault"
        else []
    )
    ranks = _ranks(case, told, root, sign, seen) if alone and not by_end else ()
    if not ranks and sign == "network_record":
        ranks = _cut_off(case, told, roots)
    ends = sorted({rank for of_end in by_end for rank in of_end}) if all(by_end) else []
    candidates = ends or sorted({rank for r in roots for rank in logs.ranks_on(r.host)})
    says = f"the kernel of {root.host_words} reports {named(root)}{on_devices(roots) if alone else on_devices(roots[:1])}{when(root)}"
    says += (
        f": {ranks_text(ranks)}"
        if ranks
        else f"; at which end of the link the fault lies is not told (ranks {', '.join(map(str, candidates))})"
        if ends
        else "; which rank sits there is not told: no map of ranks to hosts was given"
        if alone and not logs.hosts
        else f"; which of its ranks ({', '.join(map(str, candidates))}) it hit is not told"
        if alone
        else ""
    )
    if is_open:
        others = {r.host: r for r in reversed(roots) if r.host != root.host}
        says += "".join(
            f", that of {r.host_words} {named(r)}{on_devices([r])}{when(r)}" for r in list(others.values())[::-1][:MAX_FOLLOWING]
        )
    if not alone:
        says += f"; {len({r.host for r in roots})} hosts report faults, and "
        says += "calls that nobody ends all reach them" if ranks else "which was first the clocks do not tell"
    if root in seen.repeated:
        says += f"; it met {seen.repeated[root]} processes on this GPU one after the other and no other GPU so: that is the GPU, no program"
    contradiction = _contradicts(case, root) and len(ranks) == 1
    if contradiction:
        by_address = case.derive(users_of).uses(root.host, root.gpu)
        says += f"; its process {root.line.pid} is of rank {root.line.rank}, and its GPU that of {ranks_text(by_address)}: "
        says += "a program's fault is of the process" if root.line.rank in ranks else "a device's fault is of the address"
    following = [link for r in roots for link in seen.followers(r)] if alone else []
    told_after = followers(following)
    if told_after:
        says += "; what follows from it: " + ", ".join(
            f"{f['name']}{counted(f['num_gpus'], f['num_hosts'])} ({f['because']})" for f in told_after[:MAX_FOLLOWING]
        )
    numbers: dict[str, Any] = {
        "failed_at": iso(root.line.at),
        "xid": root.code if root.kind == "xid" else None,
        "gpu": root.gpu,
        "step": step_at_end(case, ranks[0]) if len(ranks) == 1 else None,
        "candidates": [] if ranks else candidates,
        "ordered_by": ordered_by,
    }
    if not logs.hosts:
        numbers["needs_map"] = True
    if sign != "doubtful_record" and any(of_weight(r) and r.cause in _BROKEN for r in roots):
        numbers["is_broken"] = True  # by its own record: no replay has to show it
    if contradiction:
        numbers["is_other_gpu"] = root.line.rank in ranks  # than the one that maps give of this rank
    if alone and (policy := policy_of(seen, root, following)):
        numbers |= ruled(*sites_rule(root, policy, following))
    if told_after:
        numbers["followed_by"] = told_after
    return Finding(
        "fatal_xid", sign, says, ranks=ranks, hosts=tuple(sorted({r.host for r in roots if not r.host.startswith(UNNAMED)})),
        scope=f"{root.host} {root.gpu} {root.name}",
        explains=tuple(sorted(logs.everyone - set(ranks))) if ranks else (), numbers=numbers,
        cites=cites_of(roots, examples(following))[:MAX_CITES],
    )  # fmt: skip


def _sign(seen: Scene, root: Record) -> str:
    if root in seen.repeated:
        return "repeated_record"
    if root.is_sign:
        return (
            "short_stall_record"
            if root.kind == "lockup"
            else _WEAK_SIGN.get(root.cause) or ("weak_gpu_bus_record" if root.gpu else "weak_bus_record")
        )
    if root.kind == "aer" and root.cause != "gpu_fault":
        return _SIGN_OF_CAUSE[root.cause]  # the line names a disk or a network adapter
    if root.cause == "nvlink_fault" and root.role == "either" and root.severity == "nonfatal":
        return "nonfatal_link_record"  # the link said itself that it goes on
    if waits_for_gpus(root.kind, root.unit):
        return "host_record"
    return _SIGN_OF_KIND.get(root.kind) or _SIGN_OF_CAUSE[root.cause]


def _shared(seen: Scene, told: Story) -> Finding | None:
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


def _program(seen: Scene) -> Finding:
    record = seen.node_wide[0]
    devices = {(r.host, r.gpu) for r in seen.node_wide}
    hosts = sorted({r.host for r in seen.node_wide})
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    says = f"{record.name} on {len(devices)} GPUs of {where} at once: that is the program, no device"
    numbers = {"failed_at": iso(record.line.at), "xid": record.code, **ruled(record, record.policy)}
    cites = cites_of(seen.node_wide)[:MAX_CITES]
    return Finding("fatal_xid", "node_wide_record", says, scope=f"{record.host} {record.name}", numbers=numbers, cites=cites)


def _peers(case: Tables, told: Story, seen: Scene) -> Finding:
    """GPUs that tell of another's fault, and no log that shows that one."""
    first = seen.victims[0]
    kinds = sorted({r.name for r in seen.victims})
    devices, hosts = {(r.host, r.gpu) for r in seen.victims}, {r.host for r in seen.victims}
    unread = _unread(case, told)
    sufferers = {rank for r in seen.victims for rank in _ranks(case, told, r, "nvlink_record", seen)}
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


def _ranks(case: Tables, told: Story, record: Record, sign: str, seen: Scene) -> tuple[int, ...]:
    """Ranks that a record concerns: by process, by address, by what else points at one of the host's ranks. A sick host concerns all of its
    ranks; of a device or a mount nobody is named where nothing tells which rank uses it."""
    logs = told.logs
    on_host = logs.ranks_on(record.host)
    if sign in _NO_FAULT:
        return ()
    if _contradicts(case, record) and sign not in _OF_PROGRAMS:
        return case.derive(users_of).uses(record.host, record.gpu)
    if record.line.rank is not None:
        return (record.line.rank,)
    if sign == "host_record" or len(on_host) == 1:
        return on_host
    if sign in _ON_DEVICE and (by_address := case.derive(users_of).uses(record.host, record.gpu)):
        return by_address
    if sign in _OF_STORAGE and _all_hang(seen, record.host, len(on_host)):
        return on_host
    if sign == "storage_record" and (stuck := case.derive(in_storage)) and stuck <= set(on_host):
        return tuple(sorted(stuck))
    failed = {rank for fault in told.first for rank in fault.ranks} & set(on_host)
    if len(failed) == 1:
        return tuple(failed)
    waits = case.derive(build_waits)
    awaited = {rank for rank in on_host if rank in waits.awaited and rank not in waits.first and rank not in waits.held}
    return tuple(awaited) if len(awaited) == 1 else ()


def _cut_off(case: Tables, told: Story, roots: Sequence[Record]) -> tuple[int, ...]:
    """All ranks of the hosts whose links are down, where calls that all members joined and nobody ends reach them, and every other such call stays
    inside one host: it needs no network, so it hangs behind others."""
    logs = told.logs
    on = {rank for r in roots for rank in logs.ranks_on(r.host)}
    if any(r.kind not in _LINKS for r in roots) or on >= logs.everyone:
        return ()
    waits = case.derive(build_waits)
    stuck = [set(ranks) for node, ranks in waits.waiters.items() if len(ranks) > 1 and not waits.lagging[node]]
    reach = any(ranks & on for ranks in stuck) and all(ranks & on or len(logs.hosts_of(ranks)) < 2 for ranks in stuck)
    return tuple(sorted(on)) if reach else ()


def _all_hang(seen: Scene, host: str, num_ranks: int) -> bool:
    """Whether the kernel says of as many trainers as the host has ranks that they hang."""
    hung = {r.line.pid for r in seen.live if r.host == host and r.kind == "hung_task" and r.process and TRAINS.match(r.process)}
    return num_ranks == len(hung - {None}) > 1


def _contradicts(case: Tables, record: Record) -> bool:
    """Whether the process in a record is of one rank, and the address of its GPU of another."""
    by_address = case.derive(users_of).uses(record.host, record.gpu) if record.kind in ("xid", "bus_loss") else ()
    return bool(by_address) and record.line.rank is not None and record.line.rank not in by_address


def _bystander(case: Tables, told: Story, seen: Scene) -> Finding:
    """Records of GPUs and processes that no rank of the job uses, and nothing else: a note. A GPU that left the bus is a sign against its host."""
    lost = [r for r in seen.strangers if r.stranger == "gpu" and (r.code == LOST or r.kind in ("bus_loss", "aer")) and not r.is_sign]
    first = (lost or seen.strangers)[0]
    whose = f"process {first.line.pid} ({first.process})" if first.stranger == "process" else "a GPU"
    says = f"the kernel of {first.host} reports {first.name}{on_devices([first])}{when(first)}, of {whose} that no rank of the job uses"
    says += ": no rank is accused"
    if unread := _unread(case, told):
        says += f"; no kernel log of {', '.join(unread[:6])}{' and others' if len(unread) > 6 else ''} was read"
    return Finding(
        "fatal_xid", "lost_beside_record" if lost else "bystander_record", says, scope=f"{first.host} {first.gpu} {first.name}",
        numbers={"seen_at": iso(first.line.at), "xid": first.code, "gpu": first.gpu, "candidates": list(told.logs.ranks_on(first.host))},
        cites=cites_of(lost or seen.strangers)[:MAX_CITES],
    )  # fmt: skip


def _unread(case: Tables, told: Story) -> list[str]:
    """Hosts of the job without a kernel log, sorted."""
    read = case.table("host_logs").select(pl.col("host").drop_nulls().unique()).collect()
    return sorted(set(told.logs.hosts.values()) - set(read["host"].to_list()))


def _check_covered(case: Tables, told: Story) -> None:
    """Raise unless the kernel log of every host was read."""
    if not told.logs.hosts:
        raise NotEnoughEvidence(
            "no fault in the kernel logs that were read, but nothing says which hosts the ranks run on: give a rank map"
        )
    if unread := _unread(case, told):
        shown = ", ".join(unread[:6])
        raise NotEnoughEvidence(f"no fault in the kernel logs that were read, but {len(unread)} hosts of the job left none ({shown})")


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
