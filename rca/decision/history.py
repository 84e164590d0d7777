"""What happened before, as a value: earlier incidents of the site, and what is known of the job at hand. Pure; the edge reads the files.

Two faults are the same deterministic one when job and cause are the same, something sharp agrees and nothing sharper speaks against it: the line
of code, a sample, the step, the ranks. A sample or a line that fails again on another rank is the same fault; the same rank at another line is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from rca.causes import STAGES
from rca.incidents.records import instant

__all__ = ["NO_HISTORY", "Fault", "History", "Past", "past_of", "repeats", "same_fault"]

ITSELF_S: Final = 60.0  # of two incidents that began so close together: one that was opened twice
STRANGE_S: Final = 86400.0  # of a stage: a longer one is a moment typed wrong, or a repair that waited for people


@dataclass(frozen=True)
class Fault:
    """What tells a fault from another one. Empty and None = not known."""

    cause: str
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    step: int | None = None
    sample_ids: tuple[str, ...] = ()
    code_line: str | None = None  # innermost frame, function (file:line)


@dataclass(frozen=True)
class Past:
    """An earlier incident."""

    incident_id: str
    job_id: str | None
    attempt: int | None
    fault: Fault
    action: str
    began_at: datetime | None
    code_version: str | None = None
    evicted: tuple[str, ...] = ()
    fingerprint: str | None = None  # of its evidence
    stage_s: Mapping[str, float] = field(default_factory=dict)  # stage -> s, of those whose both ends are told
    repair_s: float | None = None  # from the end of the search to the first new step


@dataclass(frozen=True)
class History:
    """Earlier incidents, newest last, and what people said of this job."""

    past: tuple[Past, ...] = ()
    where: str = ""  # which records were read, in words; "" = none were
    job_id: str | None = None  # as a person named it
    code_version: str | None = None  # that runs now
    pending_changes: tuple[str, ...] = ()  # changes that wait for the next restart, as noted


NO_HISTORY: Final = History()


def past_of(record: Mapping[str, Any]) -> Past | None:
    """An incident from its record (`rca.incident/1`), as far as it is sound; None where it is no such record. Never raises for what a file holds."""
    if not isinstance(record.get("incident_id"), str) or not isinstance(record.get("cause"), str):
        return None
    notes = [note for note in _list(record.get("history")) if isinstance(note, dict) and isinstance(note.get("data"), dict)]
    told = [note["data"]["diagnosis"] for note in notes if isinstance(note["data"].get("diagnosis"), dict)]
    said = record["diagnosis"] if isinstance(record.get("diagnosis"), dict) else {}
    last: Mapping[str, Any] = told[-1] if told else said
    evidence = record["evidence"] if isinstance(record.get("evidence"), dict) else {}
    spans = {s["stage"]: s for s in _list(record.get("stages")) if isinstance(s, dict) and s.get("stage") in STAGES}
    stage_s = {
        stage: seconds for stage, span in spans.items() if (seconds := _span(_at(span, "started_at"), _at(span, "ended_at"))) is not None
    }
    found = _at(spans.get("localize", {}), "ended_at") or _at(spans.get("detect", {}), "ended_at")
    attempt = record.get("attempt")
    return Past(
        incident_id=record["incident_id"],
        job_id=_text(record.get("job_id")),
        attempt=attempt if isinstance(attempt, int) else None,
        fault=Fault(
            cause=record["cause"],
            ranks=tuple(sorted(r for r in _list(record.get("ranks")) if isinstance(r, int))),
            hosts=tuple(sorted(h for h in _list(record.get("hosts")) if isinstance(h, str))),
            step=said["step"] if isinstance(said.get("step"), int) else None,
            sample_ids=tuple(s for s in _list(last.get("sample_ids")) if isinstance(s, str)),
            code_line=_text(last.get("code_line")),
        ),
        action=str(record.get("action") or "unknown"),
        began_at=_at(record, "began_at") or _at(record, "opened_at"),
        code_version=_text(record.get("code_version")),
        evicted=tuple(h for h in _list(record.get("evicted")) if isinstance(h, str)),
        fingerprint=_text(evidence.get("fingerprint")),
        stage_s=stage_s,
        repair_s=_span(found, _at(spans.get("resume", {}), "ended_at")),
    )


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _at(span: Mapping[str, Any], name: str) -> datetime | None:
    try:
        return instant(span.get(name))
    except (TypeError, ValueError, OverflowError):
        return None


def _span(start: datetime | None, end: datetime | None) -> float | None:
    seconds = None if start is None or end is None else (end - start).total_seconds()
    return seconds if seconds is not None and 0 <= seconds <= STRANGE_S else None


def same_fault(one: Fault, other: Fault) -> bool:
    """Whether two faults of one job are the same deterministic one."""
    if one.cause != other.cause:
        return False
    for mine, theirs in ((one.code_line, other.code_line), (one.sample_ids, other.sample_ids)):
        if mine and theirs:  # the sharpest that both know decides
            return mine == theirs if isinstance(mine, str) else bool(set(mine) & set(theirs))
    if one.step is not None and other.step is not None:
        return one.step == other.step and not (one.ranks and other.ranks and not set(one.ranks) & set(other.ranks))
    return bool(one.ranks) and one.ranks == other.ranks


def repeats(
    fault: Fault, history: History, job_id: str | None, *, at: datetime | None = None, fingerprint: str | None = None
) -> tuple[Past, ...]:
    """The earlier incidents of this job that were the same fault, newest last. Where the job has no name, or another code version ran, none is.

    `at` = when the fault at hand began, `fingerprint` of its evidence: the incident that began then, or has that evidence, is its own.
    """
    job = history.job_id or job_id
    if job is None:
        return ()
    return tuple(
        past
        for past in history.past
        if past.job_id == job
        and (past.fingerprint is None or past.fingerprint != fingerprint)
        and not (at is not None and past.began_at is not None and past.began_at >= at - timedelta(seconds=ITSELF_S))
        and not (past.code_version and history.code_version and past.code_version != history.code_version)
        and same_fault(fault, past.fault)
    )
