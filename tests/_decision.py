"""Helpers of the tests of the decision: verdicts, histories and cases made by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from rca.case import MemoryCase
from rca.causes import CAUSES
from rca.decision.advise import advise
from rca.decision.history import Fault, History, Past
from rca.roster import Roster
from rca.tables import TABLES
from rca.types import Advice, Finding, Outcome, Verdict

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOSTS = {rank: f"host-{'abcd'[rank // 2]}" for rank in range(8)}
WHO = Roster(8, HOSTS, {}, {}, {}, {}, frozenset(), "job-0", 0, {})
ALIVE = (Outcome("job_motion", "found", ""),)
ENDED = (Outcome("process_death", "found", "", (Finding("process_death", "killed", "rank 5 died", ranks=(5,)),)),)


def verdict(cause: str, ranks: tuple[int, ...] = (5,), probability: float = 0.95, **more: Any) -> Verdict:
    about = CAUSES[cause]
    known: dict[str, Any] = {
        "cause": cause, "layer": about.layer, "attribution": about.attribution, "probability": probability, "summary": "", "ranks": ranks,
        "hosts": WHO.hosts_of(ranks), "gpus": (), "ranks_probability": probability if ranks else 0.0, "failed_at": AT, "step": 40, "data": None,
        "last_collective": None, "ordered_by": None, "concurrent": False, "proven": False, "hypotheses": (),
    }  # fmt: skip
    return Verdict(**known | more)


def past(number: int = 1, cause: str = "process_killed", **more: Any) -> Past:
    known: dict[str, Any] = {
        "incident_id": f"INC-{number}", "job_id": "train-7", "attempt": number, "fault": Fault(cause, ranks=(5,), step=40), "action": "retry",
        "began_at": AT - timedelta(hours=number),
    }  # fmt: skip
    return Past(**known | more)


def history(*incidents: Past, **more: Any) -> History:
    return History(past=incidents, where=f"{len(incidents)} incidents of a fleet", **{"job_id": "train-7", **more})


def advised(told: Verdict, findings: tuple[Finding, ...] = (), **more: Any) -> Advice:
    return advise(told, WHO, findings, **more)


def frames(**rows: list[dict[str, Any]]) -> MemoryCase:
    evidence = [{"evidence_id": "a", "path": "logs/run.log"}]
    return MemoryCase({name: TABLES[name].rows(given) for name, given in {"evidence": evidence, **rows}.items()})
