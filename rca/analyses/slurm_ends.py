"""What does Slurm itself say of the end of a job whose ranks nothing places on hosts?

1. A node that srun or salloc says failed is lost, and is named; a step that slurmstepd ended because of a node failure lost one that is not
   told: the host in that line is where the step ran. Where ranks of that host are known, `process_death` tells it.
2. Else the first task that srun says a signal ended is the first death: srun ends all others behind it. The host is named; the number may be
   that of a launcher (`_slurm_tasks`), so no rank is. One signal is little to tell why, and where tasks of several hosts end alike before srun
   began to end any, which was first is only the order in which srun heard of them: then no host is named either.
3. Ends behind an order to stop, and where a log tells a first fault of its own, are left to those who read that; so is one that nothing dates of
   processes that were there when the job stood still (`_elsewhere`): they were ended later.
4. Ends of tasks that are none of this job (`_slurm_tasks`) are only told.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from rca.analyses._elsewhere import why_elsewhere
from rca.analyses._faults import Story, story
from rca.analyses._job_logs import READS, Line, cite_line
from rca.analyses._slurm_tasks import TASKS
from rca.analyses._stop_pace import pace_until
from rca.analyses._stop_trouble import trouble_before
from rca.analyses._words import iso, quoted
from rca.types import Finding, Sign, Tables

NEEDS = ("log_events",)
USES = tuple(table for table in READS if table not in NEEDS)
SIGNS = {
    "node_failed": Sign("death", ("host_lost", "host_fault")),
    "task_killed": Sign("death", ("process_killed", "host_out_of_memory", "unknown")),
    "task_bus_error": Sign("death", ("storage_stall", "host_fault", "user_exception", "unknown")),
    "task_crashed": Sign("death", ("user_exception", "process_killed", "host_fault", "unknown")),
    "task_aborted": Sign("death", ("user_exception", "process_killed", "unknown")),
    "of_others": Sign("mention", (), is_note=True),
}
MAX_CITES: Final = 6

_NODE: Final = re.compile(r"(?i)(?:srun|salloc): error: \*{0,3} ?node failure on (?P<host>[\w.-]+)(?=[\s,;:]|$)")
_STEP: Final = re.compile(r"(?i)(?:cancelled|terminated) .{0,120}due to node failure")
_TASK: Final = re.compile(rf"srun: error: (?P<host>[\w.-]+): (?P<tasks>{TASKS}): (?P<death>[A-Z][a-z]+(?: [a-z]+)?)")
_DEATHS: Final = {"Killed": "task_killed", "Bus error": "task_bus_error", "Segmentation fault": "task_crashed", "Aborted": "task_aborted"}
_BY_SRUN: Final = re.compile(r"srun: (?:Terminating |Force Terminat|error: Timed out|Job step aborted)|(?:STEP|JOB) \S+ ON \S+ CANCELLED")
_ORDERS: Final = frozenset({"slurm_time_limit", "slurm_preempted", "slurm_requeued", "slurm_cancelled", "slurm_node_failure"})


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding: the lost node, else the task that ended first; and a note of what srun says of others."""
    told = case.derive(story)
    others = _of_others(told)
    if told.first:
        return others
    return [*(([] if _is_planned(case, told) else _lost(told)) or _ended(case, told)), *others]


def _of_others(told: Story) -> list[Finding]:
    """What srun says of tasks that are none of this job, in one note."""
    whys = {(line.evidence_id, line.record): (line, why) for line, why in told.logs.aside}  # one line may tell two things
    if not whys:
        return []
    (line, why), more = next(iter(whys.values())), len(whys) - 1
    task = _TASK.search(line.text)
    what = f"srun says that {task['tasks']} on {task['host']} ended ({task['death']})" if task else f"srun says: {quoted(line.text, 120)}"
    says = f"left aside: {what}; that is no task of this job, as {why}{f'; so are {more} more' if more else ''}"
    cites = tuple(cite_line(line) for line, _ in whys.values())[:MAX_CITES]
    return [Finding("slurm_ends", "of_others", says, scope="of others", numbers={"lines": len(whys)}, cites=cites)]


def _is_planned(case: Tables, told: Story) -> bool:
    """Whether somebody stopped the job before which nothing had gone wrong."""
    began = told.stop.began
    return told.stop.is_asked and (began is None or trouble_before(case, told, began, pace_until(case, told.logs, [began])) is None)


def _lost(told: Story) -> list[Finding]:
    lines = [x for x in told.logs.lines if x.signature == "slurm_node_failure" and (_NODE.search(x.text) or _STEP.search(x.text))]
    hosts = tuple(sorted({found["host"] for x in lines if (found := _NODE.search(x.text))}))
    if not lines or (told.logs.hosts and not set(hosts) <= set(told.logs.hosts.values())):
        return []
    says = f"Slurm ended the job because a node failed: {', '.join(hosts) or 'which one is not told here'}"
    return [_finding("node_failed", says, hosts, lines)]


def _ended(case: Tables, told: Story) -> list[Finding]:
    """The first end of a task in its file, where no order to stop stands before it and no other file tells another."""
    first: dict[str, Line] = {}
    odd = told.stop.odd
    is_behind = odd is not None and (odd.is_before or odd.is_alone)  # the order ended what that task left, or may have
    for line in told.logs.lines:  # by file and place
        if line.signature == "slurm_task_exit" or (line.signature in _ORDERS and not is_behind):
            first.setdefault(line.evidence_id, line)
    found = {id(line): match for line in first.values() if (match := _TASK.search(line.text))}
    if len(first) != 1 or len(found) != 1 or any((x.signature or "").startswith("elastic_") for x in told.logs.lines):
        return []
    (line,), (match,) = first.values(), found.values()
    if why_elsewhere(case, told.logs, line) is not None:
        return []
    began = told.stop.began
    if match["death"] not in _DEATHS or (
        not is_behind and began is not None and (began.evidence_id != line.evidence_id or began.place < line.place)
    ):
        return []
    alike = _alike(told, line, match)
    says = f"srun says that {match['tasks']} on {match['host']} ended first: {match['death']}; "
    says += f"by its number that is rank {line.rank}" if line.rank is not None else "which rank that is nothing tells"
    if alike:
        says += f"; others ended alike before srun ended any ({', '.join(alike[:4])}): which was first is not certain"
    sign = _DEATHS[match["death"]]
    says += "; by its own watchdog or communication library as well as by its program" if sign == "task_aborted" else ""
    return [_finding(sign, says, () if alike or sign == "task_aborted" else (match["host"],), [line])]


def _alike(told: Story, first: Line, match: re.Match[str]) -> list[str]:
    """Other hosts whose tasks ended by the same signal, sorted, up to where srun itself begins to end tasks."""
    found: set[str] = set()
    for line in told.logs.lines:
        if line.evidence_id != first.evidence_id or line.place <= first.place:
            continue
        if line.signature in _ORDERS or _BY_SRUN.search(line.text):
            break
        other = _TASK.search(line.text)
        if other and other["death"] == match["death"]:
            found.add(other["host"])
    return sorted(found - {match["host"]})


def _finding(sign: str, says: str, hosts: tuple[str, ...], lines: Sequence[Line]) -> Finding:
    candidates: list[int] = []
    numbers: dict[str, Any] = {"failed_at": iso(next((x.at for x in lines if x.at is not None), None)), "candidates": candidates}
    if sign != "node_failed" and hosts:
        numbers["names_host"] = True  # the one place that is told, whatever the cause
    return Finding("slurm_ends", sign, says, hosts=hosts, scope=f"{hosts}", numbers=numbers, cites=tuple(map(cite_line, lines))[:MAX_CITES])


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
