"""Which device or host did a kernel report as broken during the job, and which ranks sit on it?

1. Read the kernel records of the job's hosts in the job's time; tell what began a chain from what followed (`_kernel_roots`, and the edges of
   rca/catalogue/xid_edges.csv with their sources): Xid 45, 43 and 154 only follow, and so do most 109, 137 and 145; an ECC chain is one fault; a
   lost GPU makes switches complain; corrected errors and records from before the job accuse nobody.
2. The rank is the one whose process the record names, or whose GPU has that address; else the one of the host that failed by its log or that
   others wait for. A sick host concerns all of its ranks; of a device or a mount that nothing ties to a rank, only the host is named. A
   time-out of the GPU's firmware (119, 120) names whoever called it: of these only the one rank of the job counts as its user. Where process
   and address name different ranks, a fault of the device is of the address and one of a program is of the process; both are said.
3. Of roots on several hosts the earliest outside the clock error counts; of links, the one end that had such errors before; else nobody is
   accused and all are listed. Both ends of one link on one host name the host; links of several hosts that go down together are one fault.
4. The same application fault on many GPUs at once is the program; on one GPU in process after process it is the GPU.
5. Records that only tell of another's fault (lost packets of a peer) accuse nobody; hosts whose log is missing are named as the gap they are.
6. A GPU or process that is of no rank accuses nobody: it is noted, and a lost GPU beside the job's counts a little against the host. So do
   mere signs: an error of the bus that lost nothing, a short stall of a processor.
7. What our policy asks for goes with the root: the worst of its chain (a failed repair), and of what the driver's own verdict (154) demands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rca.analyses._faults import Story, story
from rca.analyses._job_logs import READS, step_at_end
from rca.analyses._kernel_aside import Aside, aside_words, broken_beside, of_weight
from rca.analyses._kernel_borne_out import is_borne_out
from rca.analyses._kernel_events import UNNAMED, Record, waits_for_gpus
from rca.analyses._kernel_first import first_roots
from rca.analyses._kernel_links import went_together
from rca.analyses._kernel_others import MAX_CITES, bystander, peers, program, shared, unread_hosts
from rca.analyses._kernel_policy import policy_of, ruled, sites_rule
from rca.analyses._kernel_programs import has_steps
from rca.analyses._kernel_roots import FAR, Scene, cites_of, scene
from rca.analyses._kernel_servers import servers_away
from rca.analyses._kernel_users import users_of
from rca.analyses._kernel_when import AFTER_IT, BEHIND_END, ENDED_BY_THEN, OTHER_FIRST, OUTLIVED
from rca.analyses._kernel_who import WEAK_SIGN, contradicts, cut_off, ranks_of
from rca.analyses._kernel_words import counted, examples, followers, hung_words, named, on_devices, when
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
    "server_away": Sign("mention", (), is_note=True),
    "not_counted": Sign("mention", (), is_note=True),
    "not_counted_unread": Sign("mention", ()),
}

MAX_FOLLOWING: Final = 4  # kinds of records that are said to follow
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
LASTING: Final = frozenset(
    {OUTLIVED, ENDED_BY_THEN, OTHER_FIRST, AFTER_IT, FAR}
)  # why a record of the job's time, of its day or of later does not count: a restart meets its fault all the same
_STUCK: Final = frozenset({"lockup", "hung_task"})  # kinds of a host on which something stands still
_BROKEN: Final = frozenset({"gpu_fault", "gpu_memory_fault"})


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for the root; a second one only for what may have been, undated."""
    told = case.derive(story)
    seen = scene(case, told)
    if told.logs.everyone and not told.not_seen_to_end_well:  # whatever a kernel wrote, it kept no rank from finishing
        return _mention(case, told, (*seen.aside, *((r, "every rank ended well") for r in seen.roots if of_weight(r))))
    found = _found(case, told, seen)
    if found:
        return [_with_beside(_with_aside(found[0], seen), told, seen), *found[1:]]
    if away := servers_away(case, told):
        return [*away, *(_with_beside(one, told, seen) for one in _mention(case, told, seen.aside))]
    if seen.aside:
        return [_with_beside(one, told, seen) for one in _mention(case, told, seen.aside)]
    _check_covered(case, told)
    return ()


def _found(case: Tables, told: Story, seen: Scene) -> list[Finding]:
    """What the records that count say."""
    if on_servers := shared(seen, told):
        return [on_servers]
    if seen.roots:
        first = first_roots(seen, told)
        later = [root for root in seen.roots if root not in first]
        by_clock = len(first) == 1 and any(told.logs.is_earlier_by_clock(first[0].line, root.line) for root in later)
        sign = None if is_borne_out(case, told, seen, first) else "doubtful_record"
        return [_finding(case, told, seen, first, sign=sign, ordered_by="clock" if by_clock else None)]
    if seen.node_wide:
        return [program(seen)]
    if seen.victims:
        return [peers(case, told, seen)]
    if seen.undated:
        heaviest = sorted(seen.undated, key=lambda r: (not of_weight(r), r.line.rank is None))
        return [_finding(case, told, seen, heaviest[:1], sign="doubtful_record")]
    if seen.strangers:
        return [bystander(case, told, seen)]
    return []


def _mention(case: Tables, told: Story, aside: Sequence[Aside]) -> list[Finding]:
    """Records of weight that do not count, where no other does: a note, as "found nothing" would be wrong."""
    if not aside:
        return []
    unread = unread_hosts(case, told) if told.logs.hosts else []
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
    """A finding with the hosts of the job that it does not name and whose own record, not of before it, shows a broken GPU or link."""
    records = [*seen.roots, *(r for r, why in seen.aside if why in LASTING or why.startswith(BEHIND_END))]
    beside = broken_beside([r for r in records if not told.logs.hosts or told.logs.ranks_on(r.host)], finding.hosts)
    return replace(finding, numbers={**finding.numbers, "broken_beside": beside}) if beside else finding


def _finding(
    case: Tables, told: Story, seen: Scene, roots: Sequence[Record], *, sign: str | None = None, ordered_by: str | None = None
) -> Finding:
    logs, root = told.logs, roots[0]
    alone = len({r.host for r in roots}) == 1 and len({r.cause for r in roots}) == 1
    is_open = len({r.host for r in roots}) > 1 and len({r.cause for r in roots}) > 1  # a tie says nothing of the cause either
    sign = sign or ("doubtful_record" if is_open else _sign(seen, root))
    by_end = (
        [ranks_of(case, told, r, sign, seen) for r in roots]
        if alone and len({r.gpu for r in roots}) > 1 and root.cause == "nvlink_fault"
        else []
    )
    ranks = ranks_of(case, told, root, sign, seen) if alone and not by_end else ()
    if not ranks and sign == "network_record":
        ranks = cut_off(case, told, roots)
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
    if went_together(roots):
        hosts = sorted({r.host_words for r in roots})
        says += f"; links of {len(hosts)} hosts ({', '.join(hosts)}) went down within seconds, and no line says that they came back: "
        says += "what they share, a switch or its uplink, not one host"
        says += f"; calls that nobody ends all reach them ({ranks_text(ranks)})" if ranks else ""
    elif not alone:
        says += f"; {len({r.host for r in roots})} hosts report faults, and "
        says += "calls that nobody ends all reach them" if ranks else "which was first the clocks do not tell"
    if root in seen.repeated:
        says += f"; it met {seen.repeated[root]} processes on this GPU one after the other and no other GPU so: that is the GPU, no program"
    hung = [r for r in seen.live if alone and r.host == root.host and r.kind == "hung_task"] if root.kind in _STUCK else []
    if set(hung) - set(roots):  # each blocked process is proof of its own
        says += f"; {hung_words(hung)}"
    contradiction = contradicts(case, root) and len(ranks) == 1
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
        cites=cites_of([*roots, *(r for r in hung if r not in roots)], examples(following))[:MAX_CITES],
    )  # fmt: skip


def _sign(seen: Scene, root: Record) -> str:
    if root in seen.repeated:
        return "repeated_record"
    if root.is_sign:
        return (
            "short_stall_record"
            if root.kind == "lockup"
            else WEAK_SIGN.get(root.cause) or ("weak_gpu_bus_record" if root.gpu else "weak_bus_record")
        )
    if root.kind == "aer" and root.cause != "gpu_fault":
        return _SIGN_OF_CAUSE[root.cause]  # the line names a disk or a network adapter
    if root.cause == "nvlink_fault" and root.role == "either" and root.severity == "nonfatal":
        return "nonfatal_link_record"  # the link said itself that it goes on
    if waits_for_gpus(root.kind, root.unit):
        return "host_record"
    return _SIGN_OF_KIND.get(root.kind) or _SIGN_OF_CAUSE[root.cause]


def _check_covered(case: Tables, told: Story) -> None:
    """Raise unless the kernel log of every host was read."""
    if not told.logs.hosts:
        raise NotEnoughEvidence(
            "no fault in the kernel logs that were read, but nothing says which hosts the ranks run on: give a rank map"
        )
    if unread := unread_hosts(case, told):
        shown = ", ".join(unread[:6])
        raise NotEnoughEvidence(f"no fault in the kernel logs that were read, but {len(unread)} hosts of the job left none ({shown})")


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
