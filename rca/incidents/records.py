"""What is written down of an interruption: notes (`rca.note/1`), launches of a job (`rca.attempt/1`), and how instants and names look there.

What people type is evidence: notes are only ever appended. In every record unknown is null, never 0 or "". Pure: instants are passed in.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from rca.causes import ACTIONS, ATTRIBUTIONS, CAUSES, LAYERS, STAGES
from rca.types import Advice, Verdict

__all__ = [
    "ATTEMPT",
    "DIAGNOSED",
    "END_KINDS",
    "INCIDENT",
    "JOB",
    "NOTE",
    "NOTE_KINDS",
    "STATED",
    "Record",
    "attempt_path",
    "attempt_record",
    "default_id",
    "diagnosis_of",
    "incident_path",
    "instant",
    "is_id",
    "iso",
    "job_of",
    "joined",
    "note",
    "problem_of",
    "week_of",
]

NOTE, INCIDENT, ATTEMPT = "rca.note/1", "rca.incident/1", "rca.attempt/1"
NOTE_KINDS: Final = ("open", "note", "stage", "overrule", "close")
END_KINDS: Final = ("completed", "failed", "stopped")
STATED: Final = ("cause", "layer", "attribution", "action", "ranks", "hosts")  # what a person may overrule
DIAGNOSED: Final = (*STATED, "probability", "proven", "gpus", "at", "step", "summary")
JOB: Final = (
    *("job_id", "attempt", "world_size", "num_hosts", "num_gpus", "started_at", "last_step", "resumed_from_step", "tokens_per_step"),
    "step_s",
)
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_MAX_ID: Final = 100  # characters, and so bytes: a file name takes 255
Record = dict[str, Any]


# Instants and names


def iso(moment: datetime | None) -> str | None:
    """An instant as the records write it: ISO 8601, UTC, Z."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def instant(text: str | None) -> datetime | None:
    """The instant that a record writes. Raises ValueError for a text that is none or names no zone."""
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no zone")
    return moment.astimezone(UTC)


def week_of(moment: datetime) -> str:
    """The ISO week of an instant, in UTC: 2026-W47."""
    year, week, _ = moment.astimezone(UTC).isocalendar()
    return f"{year:04d}-W{week:02d}"


def is_id(text: str) -> bool:
    """Whether a text can name an incident or job: safe as a file name everywhere, and as a word on a command line."""
    return len(text) <= _MAX_ID and _ID.fullmatch(text) is not None


def default_id(job_id: str, began_at: datetime, fingerprint: str) -> str:
    """INC-<day>-<time>-<4 hex>: of the minute in which the fault began, and of the job and its evidence."""
    digest = hashlib.sha256(f"{job_id}\0{fingerprint}".encode()).hexdigest()[:4]
    return f"INC-{began_at.astimezone(UTC):%Y%m%d-%H%M}-{digest}"


def incident_path(record: Mapping[str, Any]) -> str:
    """Where the record lies in a fleet: by the week in which the fault began, else was opened."""
    began = instant(record["began_at"] or record["opened_at"])
    assert began is not None
    return f"incidents/{week_of(began)}/{record['incident_id']}.json"


def attempt_path(record: Mapping[str, Any]) -> str:
    """Where the record of a launch lies in a fleet: by the week of its start."""
    started = instant(record["started_at"])
    assert started is not None
    return f"attempts/{week_of(started)}/{record['job_id']}-{record['attempt']}.json"


# What is written down


def note(incident_id: str, at: datetime, kind: str, text: str, data: Mapping[str, Any] | None = None, *, by: str | None = None) -> Record:
    """One line of the notes."""
    return {
        "schema_version": NOTE,
        "incident_id": incident_id,
        "at": iso(at),
        "kind": kind,
        "by": by,
        "text": text,
        "data": dict(data or {}),
    }


def diagnosis_of(verdict: Verdict, advice: Advice) -> Record:
    """What the tool said, as an incident keeps it; beside it the samples and the line of code that tell this fault from another one."""
    told = advice.retries or {}
    return {
        "cause": verdict.cause,
        "layer": verdict.layer,
        "attribution": verdict.attribution,
        "action": advice.action,
        "probability": round(verdict.probability, 6),
        "proven": verdict.proven,
        "ranks": list(verdict.ranks),
        "hosts": list(verdict.hosts),
        "gpus": list(verdict.gpus),
        "at": iso(verdict.failed_at),
        "step": verdict.step,
        "summary": verdict.summary,
        **{name: told[name] for name in ("sample_ids", "code_line") if told.get(name)},
    }


def job_of(**known: Any) -> Record:
    """The job of an incident: what is not given is null. Raises TypeError for a field that jobs do not have."""
    if unknown := sorted(set(known) - set(JOB)):
        raise TypeError(f"a job has no {', '.join(unknown)}")
    return {name: known.get(name) for name in JOB}


def attempt_record(
    *,
    job_id: str,
    attempt: int,
    started_at: datetime,
    ended_at: datetime | None = None,
    end_kind: str | None = None,
    world_size: int | None = None,
    num_hosts: int | None = None,
    num_gpus: int | None = None,
    resumed_from_step: int | None = None,
    last_step: int | None = None,
    tokens_per_step: int | None = None,
    step_s: float | None = None,
    exit_code: int | None = None,
) -> Record:
    """`rca.attempt/1`: a launch of a job. `ended_at` null = still running when recorded (censored), never "not known"."""
    return {
        "schema_version": ATTEMPT,
        "job_id": job_id,
        "attempt": attempt,
        "started_at": iso(started_at),
        "ended_at": iso(ended_at),
        "end_kind": end_kind,
        "world_size": world_size,
        "num_hosts": num_hosts,
        "num_gpus": num_gpus,
        "resumed_from_step": resumed_from_step,
        "last_step": last_step,
        "tokens_per_step": tokens_per_step,
        "step_s": step_s,
        "exit_code": exit_code,
    }


def joined(old: Mapping[str, Any], new: Mapping[str, Any], *, is_one: bool = False) -> Record | None:
    """A launch as a new record tells it, with what only the old one of the same number knows; None where they are two launches: one number does not
    run twice at once, so one that was over before the other began is another. `is_one`: somebody says that they are the same.

    Of one that is told to have begun at two moments (other evidence, read later) the first beginning and the last end count.
    """
    both = {**new, **{name: old.get(name) for name, value in new.items() if value is None}}
    try:
        spans = [(instant(one.get("started_at")), instant(one.get("ended_at"))) for one in (old, new)]
    except (TypeError, ValueError, OverflowError):
        return both  # the old one is damaged
    (was, stopped), (begins, ends) = spans
    if was is None or begins is None or was == begins:
        return both
    is_apart = (stopped is not None and stopped < begins) or (ends is not None and ends < was)
    if is_apart and not is_one:
        return None
    over = [end for end in (stopped, ends) if end is not None]
    return {**both, "started_at": iso(min(was, begins)), "ended_at": iso(max(over, default=None))}


# What may count


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and item for item in value) and len(set(value)) == len(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 53


def _is_moment(value: object) -> bool:
    try:
        return isinstance(value, str) and instant(value) is not None
    except (ValueError, OverflowError):
        return False


_FORMS: Final[Mapping[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("world_size", "num_hosts", "num_gpus", "last_step", "resumed_from_step", "tokens_per_step", "attempt"), _is_count),
    **dict.fromkeys(("recomputed_steps", "checkpoint_step", "files"), _is_count),
    **dict.fromkeys(("hosts", "gpus", "evicted"), _is_texts),
    **dict.fromkeys(("at", "started_at", "ended_at", "began_at", "asked_at", "detected_at"), _is_moment),
    **dict.fromkeys(("summary", "code_version"), lambda value: isinstance(value, str) and value != ""),
    **dict.fromkeys(("job_id", "recurs_incident_id"), lambda value: isinstance(value, str) and is_id(value)),
    **dict.fromkeys(("diagnosis", "job", "evidence", "given"), lambda value: isinstance(value, dict)),
    "stages": lambda value: isinstance(value, list) and all(isinstance(item, dict) for item in value),
    "ranks": lambda value: isinstance(value, list) and all(map(_is_count, value)) and len(set(value)) == len(value),
    "step_s": _is_number,
    "probability": lambda value: _is_number(value) and value <= 1,
    "proven": lambda value: isinstance(value, bool),
    "step": _is_count,
    "fingerprint": lambda value: isinstance(value, str) and re.fullmatch(r"[0-9a-f]{16}", value) is not None,
    "origin": lambda value: value in ("evidence", "hand"),
    "why": lambda value: isinstance(value, str),
    "stage": lambda value: isinstance(value, str) and value in STAGES,
    "cause": lambda value: isinstance(value, str) and value in CAUSES,
    "layer": lambda value: value in LAYERS,
    "attribution": lambda value: value in ATTRIBUTIONS,
    "action": lambda value: value in ACTIONS,
}
_NEVER_NULL: Final = {*STATED, "gpus", "proven", "summary", "job_id", "attempt"}


def problem_of(one: Mapping[str, Any]) -> str | None:
    """Why a note cannot count in a record, in words; None when it can. Notes are files that anybody can edit."""
    data, kind = one["data"], one["kind"]
    parts: list[tuple[str, Mapping[str, Any], tuple[str, ...]]] = [("", data, ())]
    if not _is_moment(one["at"]) or kind not in NOTE_KINDS:
        return f"at {str(one['at'])[:40]!r}, kind {str(kind)[:40]!r}: no moment, or no kind of note"
    if wrong := _wrong("", data, STATED if kind == "overrule" else ()):
        return wrong
    if kind == "open" or data.get("diagnosis") is not None or data.get("job") is not None:
        parts += [("diagnosis.", data.get("diagnosis") or {}, DIAGNOSED), ("job.", data.get("job") or {}, JOB)]
    stages = [data] if kind == "stage" else data.get("stages") or []
    parts += [(f"stage {number}: ", stage, ("stage",)) for number, stage in enumerate(stages)]
    parts.append(("evidence.", data.get("evidence") or {"files": None, "fingerprint": None}, ("files", "fingerprint")))
    for where, part, needed in parts:
        if missing := [name for name in needed if name not in part]:
            return f"lacks {where}{', '.join(missing)}"
        if wrong := _wrong(where, part, needed):
            return wrong
    if kind == "overrule" and not set(data) <= set(STATED):
        return f"states {', '.join(sorted(set(data) - set(STATED)))[:80]}: only {', '.join(STATED)} can be overruled"
    return None


def _wrong(where: str, part: Mapping[str, Any], needed: tuple[str, ...] = ()) -> str | None:
    """The first field whose value is not of its form."""
    for name, value in part.items():
        if value is None and (name not in _NEVER_NULL or name not in needed):
            continue
        if name in _FORMS and not _FORMS[name](value):
            return f"{where}{name} cannot be {str(value)[:60]!r}"
    return None
