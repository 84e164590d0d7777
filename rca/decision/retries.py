"""Retries, counted and capped: the same deterministic fault is not tried again for ever. Pure.

Counted are incidents of this job that were the same fault (history), and launches in the evidence at hand in which the same exception came again.
Restarts whose end nothing tells are shown beside, and cap nothing: a job may well be hit by different faults. How many restarts may meet the same
fault is `SAME_FAULT_RESTARTS`, or what the site says.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from rca.decision.facts import Facts
from rca.decision.history import Fault, History, repeats
from rca.types import Finding, Verdict

__all__ = ["CAPPED", "fault_of", "retries"]

CAPPED: Final = ("retry", "rollback")  # actions that start the job again as it was
MAX_NAMED: Final = 4


def fault_of(verdict: Verdict, findings: Sequence[Finding], facts: Facts) -> Fault:
    """What tells this fault from another one."""
    samples = tuple(str(i) for i in verdict.data["sample_ids"]) if verdict.data else ()
    carrying = {i for h in verdict.hypotheses if (h.cause, h.ranks) == (verdict.cause, verdict.ranks) for i in h.supports}
    cites = [(c.evidence_id, c.record) for f in findings if f.id in carrying for c in f.cites if c.table == "log_events"]
    line = next((facts.launches.frames[place] for place in cites if place in facts.launches.frames), None)
    return Fault(verdict.cause, verdict.ranks, verdict.hosts, verdict.step, samples, line)


def retries(fault: Fault, facts: Facts, history: History, *, limit: int, at: datetime | None) -> dict[str, Any]:
    """`same_fault` restarts that met this fault again, of `limit` that may; `stopped` = no further one as it is; `restarts` in all.

    None = not told.
    """
    earlier = repeats(fault, history, facts.job_id, at=at, fingerprint=facts.fingerprint)
    # an exception of the log is this fault where the verdict rests on a traceback from that very line
    in_log = facts.launches.same_exception if fault.code_line is not None and fault.code_line == facts.launches.code_line else 0
    same = max(len(earlier), in_log)
    is_known = bool(history.where) and (history.job_id or facts.job_id) is not None
    row: dict[str, Any] = {
        "same_fault": same if is_known or facts.launches.restarts is not None or in_log else None,
        "limit": limit,
        "stopped": same >= limit and same > 0,
        "restarts": facts.launches.restarts,
        "sample_ids": list(fault.sample_ids),
        "code_line": fault.code_line,
        "incidents": [past.incident_id for past in earlier],
        "told_by": [*facts.launches.told_by, *(facts.launches.raised_at if in_log else ())],
    }
    return {**row, "says": _says(row, history, is_known=is_known)}


def _says(row: dict[str, Any], history: History, *, is_known: bool) -> str:
    limit = f"{row['limit']} restart{'' if row['limit'] == 1 else 's'} may meet the same fault"
    if row["same_fault"]:
        seen = ", ".join(row["incidents"][-MAX_NAMED:]) or "the log at hand"
        times = "once" if row["same_fault"] == 1 else f"{row['same_fault']} times"
        end = ": not restarted as it is again" if row["stopped"] else ""
        return f"this fault came back after a restart {times} ({seen}); {limit}{end}"
    restarts = row["restarts"]
    many = "" if not restarts else f"; {restarts} restart{'' if restarts == 1 else 's'} before this end, why is not told here"
    if is_known:
        return f"no earlier incident of this job in {history.where} is the same fault{many}"
    if restarts is None:
        return "whether this job was restarted before is not told: no record of its launches or incidents was at hand"
    return f"the evidence tells {restarts or 'no'} earlier restart{'' if restarts == 1 else 's'} of this job; no record of earlier incidents names it"
