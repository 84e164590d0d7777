"""What do the cluster and its health services say of the job's nodes, and does any of it explain the end of the job?

1. Take what Kubernetes, NVSentinel, gpud, HyperPod and the like report of the hosts that carry ranks; hosts that carry none are nobody's.
2. Count a report only when it tells of a fault that can end a job, between the job's beginning and a little after its end, not taken back by a
   recovery, and not outlived by further steps (`_health_reports`). All else is mentioned.
3. The rank is the one whose GPU the report names by address or UUID; of a sick or lost host all of its ranks. Reports of several hosts accuse
   nobody: such services look at intervals, and their order is not that of the faults.
4. These are second-hand: the kernel's own record of the same fault says more, and both together count once (one family).
5. A drain, scale-down or preemption of a job's node shortly before its end speaks for a planned stop, unless something was wrong before.
6. What a service recommends is quoted, and never taken for our own advice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rca.analyses._faults import TIMED_OUT, Story, story
from rca.analyses._health_reports import Report, Reports, cites_of, reports
from rca.analyses._job_logs import READS
from rca.analyses._words import iso, ranks_text
from rca.stop_words import stop_kind
from rca.types import Finding, Sign, Tables

NEEDS = ("node_events",)
USES = (*READS, "memberships")
SIGNS = {
    "gpu_reported": Sign("device", ("gpu_fault", "gpu_memory_fault", "nvlink_fault")),
    "gpu_memory_reported": Sign("device", ("gpu_memory_fault", "gpu_fault")),
    "nvlink_reported": Sign("device", ("nvlink_fault", "gpu_fault")),
    "host_reported": Sign("device", ("host_fault", "host_lost", "unknown")),
    "host_lost_reported": Sign("device", ("host_lost", "host_fault", "unknown")),
    "network_reported": Sign("device", ("network_fault", "network_transient", "unknown")),
    "storage_reported": Sign("device", ("storage_stall", "unknown")),
    "several_reported": Sign("device", ("unknown",)),
    "planned_reported": Sign("stop", ("planned_stop", "preemption", "unknown")),
    "preemption_reported": Sign("stop", ("preemption", "planned_stop", "unknown")),
    "not_counted": Sign("mention", (), is_note=True),
}

MAX_CITES: Final = 6
MOST_SHOWN: Final = 3
_SIGN_OF_CAUSE: Final = {
    "gpu_fault": "gpu_reported",
    "gpu_memory_fault": "gpu_memory_reported",
    "nvlink_fault": "nvlink_reported",
    "host_fault": "host_reported",
    "host_lost": "host_lost_reported",
    "network_fault": "network_reported",
    "storage_stall": "storage_reported",
}


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding for the fault that counts, one for a planned end; else a note on what was seen and does not count."""
    told, seen = case.derive(story), case.derive(reports)
    if told.logs.everyone and not told.not_seen_to_end_well:
        return ()  # whatever services said, every rank ended well
    found = [finding for finding in (_fault(told, seen), _stop(told, seen)) if finding is not None]
    return found or _mention(seen)


def _fault(told: Story, seen: Reports) -> Finding | None:
    if not seen.faults:
        return None
    hosts = sorted({r.host for r in seen.faults})
    first = seen.faults[0]
    numbers: dict[str, Any] = {"failed_at": iso(first.at), "num_reports": len(seen.faults)}
    if len(hosts) > 1:
        says = f"services report faults of {len(hosts)} of the job's hosts ({', '.join(f'{_name(r)} of {r.host}' for r in _of_each(seen.faults))})"
        says += "; which was first their intervals do not tell"
        candidates = sorted({rank for r in seen.faults for rank in (r.ranks or told.logs.ranks_on(r.host))})
        return Finding("node_health", "several_reported", says, hosts=tuple(hosts), scope="several", numbers={**numbers, "candidates": candidates},
                       cites=cites_of(seen.faults, MAX_CITES))  # fmt: skip
    sharp = next((r for r in seen.faults if r.cause not in ("host_lost", "host_fault")), first)  # a GPU's fault says more than its host's
    same = [r for r in seen.faults if r.cause == sharp.cause]
    named = {r.ranks for r in same if r.ranks}
    ranks = named.pop() if len(named) == 1 else ()
    candidates = [] if ranks else list(told.logs.ranks_on(sharp.host))
    says = f"{_who(sharp)} reports {_name(sharp)} of {sharp.host}{_gpu(sharp)}{_when(sharp)}"
    says += f": {ranks_text(ranks)}" if ranks else f"; which of its ranks ({', '.join(map(str, candidates))}) it hit is not told"
    others = [r for r in _of_each_name(seen.faults) if r.name != sharp.name]
    says += f"; also {', '.join(_name(r) for r in others[:MOST_SHOWN])}" if others else ""
    if action := sharp.row["recommended_action"]:
        says += f"; it recommends {action}"
    numbers |= {"gpu": sharp.row["gpu"], "xid": _xid(sharp), "candidates": candidates, "recommended_by_service": action}
    return Finding(
        "node_health", _SIGN_OF_CAUSE[sharp.cause], says, ranks=ranks, hosts=(sharp.host,), scope=f"{sharp.host} {sharp.row['gpu']} {sharp.name}",
        explains=tuple(sorted(told.logs.everyone - set(ranks))) if ranks else (), numbers=numbers,
        cites=cites_of([sharp, *same, *others], MAX_CITES),
    )  # fmt: skip


def _stop(told: Story, seen: Reports) -> Finding | None:
    """A planned end, where nothing was wrong before."""
    if not seen.stops or seen.faults or told.first or any(line.signature in TIMED_OUT for line in told.logs.lines):
        return None
    preempted = [r for r in seen.stops if r.row["kind"] == "preemption"]
    first = (preempted or list(seen.stops))[0]
    says = f"{_who(first)} reports {_name(first)} of {first.host}{_when(first)}, shortly before the job's end"
    sign = "preemption_reported" if preempted else "planned_reported"
    kind = stop_kind("", f"{_name(first)} {first.row['message'] or ''}", is_preemption=bool(preempted))
    numbers = {"failed_at": iso(first.at), "reason": first.row["message"], "stop_kind": kind}
    return Finding("node_health", sign, says, hosts=(first.host,), scope="stop", numbers=numbers, cites=cites_of(seen.stops, MAX_CITES))


def _mention(seen: Reports) -> list[Finding]:
    aside = _of_each_name(seen.aside)
    if not aside:
        return []
    words = [f"{_name(r)} of {r.host}{_gpu(r)}{_when(r)} ({r.aside})" for r in aside[:MOST_SHOWN]]
    more = f" and {len(aside) - MOST_SHOWN} more" if len(aside) > MOST_SHOWN else ""
    says = f"reported by health services and not counted: {', '.join(words)}{more}"
    return [
        Finding(
            "node_health",
            "not_counted",
            says,
            scope="not counted",
            numbers={"not_counted": len(seen.aside)},
            cites=cites_of(aside, MAX_CITES),
        )
    ]


def _of_each(found: Sequence[Report]) -> list[Report]:
    """The first of each host, a few."""
    return list({r.host: r for r in reversed(found)}.values())[::-1][:MOST_SHOWN]


def _of_each_name(found: Sequence[Report]) -> list[Report]:
    """The first of each host and name."""
    return list({(r.host, r.name): r for r in reversed(found)}.values())[::-1]


def _who(report: Report) -> str:
    source = str(report.row["source"] or "a health service")
    return {
        "kubernetes_event": "an event of Kubernetes",
        "node_condition": "a condition of the node",
        "nvsentinel": "NVSentinel",
        "hyperpod": "HyperPod",
        "kubernetes_pod": "the state of a pod",
    }.get(source, source)


def _name(report: Report) -> str:
    return report.name


def _gpu(report: Report) -> str:
    return f" GPU {report.row['gpu']}" if report.row["gpu"] else ""


def _when(report: Report) -> str:
    return f" at {report.at:%Y-%m-%d %H:%M:%S} UTC" if report.at is not None else ""


def _xid(report: Report) -> int | None:
    return int(report.row["code"]) if report.row["kind"] == "xid" and report.row["code"] else None


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
