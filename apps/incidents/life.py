"""What the verbs of an incident share: which incident is meant, what evidence says now, what people stated before."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.incidents.moments import AHEAD, now
from apps.incidents.notebook import MAX_LINE_BYTES, Note, Notebook, notebook
from apps.names import host_name
from apps.plain import complain
from rca.errors import UsageError
from rca.incidents.records import instant, is_id, iso, problem_of

if TYPE_CHECKING:
    from rca.incidents.course import Course
    from rca.roster import Roster
    from rca.types import Verdict

__all__ = [
    "Seen",
    "check_name",
    "chosen",
    "common",
    "given_facts",
    "given_so_far",
    "hosts_named",
    "launch_of",
    "look",
    "opening",
    "sound_history",
    "tell_closed",
    "tell_place",
    "text_of",
    "with_given",
    "written_down",
]

_NOTE_FIELDS = {"schema_version", "incident_id", "at", "kind", "by", "text", "data"}
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_OPEN_FIRST = "open it first: rca open {path}"


@dataclass(frozen=True)
class Seen:
    """What a diagnosis of the evidence says at this moment."""

    is_blind: bool  # there was no readable evidence
    headline: str
    diagnosis: Mapping[str, Any]
    verdict: Verdict
    course: Course
    facts: Mapping[str, Any]  # of the job
    ended: str | None  # how the job ended, as `how_ended` says it; None = nothing tells that it did


def common(parser: argparse.ArgumentParser) -> None:
    """What every verb of an incident takes."""
    parser.add_argument("path", metavar="PATH", help="folder, file or archive with the evidence of the incident")
    parser.add_argument("--id", metavar="INC", help="which incident, where several are open on this evidence")
    parser.add_argument("--by", metavar="NAME", help="who says so; stays unknown if not given")


def look(path: str, case_file: str | None, given: Mapping[str, Any]) -> Seen:
    """Diagnose the evidence, and tell the course of the interruption. `given` are facts of the job that a person stated."""
    from apps.headline import headline, how_ended
    from apps.session import open_session
    from rca.incidents.course import course, job_facts
    from rca.incidents.records import JOB, diagnosis_of

    with open_session(path, case_file) as session:
        case = session.case()
        try:
            judgement = session.judgement(case)
            told = course(case, judgement.verdict)
            roster: Roster = judgement.roster
            facts = job_facts(case, roster, told, {name: value for name, value in given.items() if name in JOB})
        finally:
            case.close()
    said = diagnosis_of(judgement.verdict, judgement.advice)
    return Seen(judgement.is_blind, headline(judgement), said, judgement.verdict, told, facts, how_ended(judgement))


def opening(seen: Seen, asked_at: datetime, verdict_at: datetime, detected_by_hand: datetime | None) -> dict[str, Any]:
    """What is told at opening or closing, as the data of the note: diagnosis, job, moments, stages. `asked_at`: when somebody began to open the
    incident, which is when it was noticed at the latest; `verdict_at`: when the verdict stood in the open note."""
    from rca.incidents.course import evidence_stages

    told = seen.course
    began = instant(seen.diagnosis["at"])
    is_told = detected_by_hand is None and told.noticed_at is not None and told.noticed_at <= asked_at
    detected, how = asked_at, "nothing earlier is told: the moment of opening"
    if detected_by_hand is not None:
        detected, how = detected_by_hand, "stated by a person"
    elif is_told and told.noticed_at is not None:
        detected, how = told.noticed_at, f"first sign of trouble in the logs ({told.noticed_by})"
    has_failed = seen.verdict.attribution != "none"
    return {
        "began_at": iso(began or (told.noticed_at if has_failed else None)),
        "asked_at": iso(asked_at),
        "detected_at": iso(detected),
        "diagnosis": dict(seen.diagnosis),
        "job": dict(seen.facts),
        "stages": evidence_stages(began, detected, how, verdict_at, told, is_by_hand=not is_told),
        "evidence": {"files": told.num_files, "fingerprint": told.fingerprint},
    }


def given_facts(**facts: Any) -> dict[str, Any]:
    """Facts of the job that a person stated, checked; those not stated are left out."""
    found = {name: value for name, value in facts.items() if value is not None}
    if "job_id" in found:
        check_name(found["job_id"], "--job")
    for name, value in found.items():
        least = 1 if name in ("num_gpus", "tokens_per_step") else -(1 << 31) if name == "exit_code" else 0
        if isinstance(value, int) and not least <= value < 1 << 53:
            raise UsageError(f"{value} cannot be the {name.replace('_', ' ').removeprefix('num ')} of a job")
    return found


def given_so_far(notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What people stated of the job when they opened or closed the incident before."""
    found: dict[str, Any] = {}
    for note in notes:
        told = note["data"].get("given")
        found |= {name: value for name, value in told.items() if value is not None} if isinstance(told, dict) else {}
    return found


def sound_history(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The notes that a stored record keeps, in full; what is none is left out."""
    history = record.get("history")
    return [one for one in history if _is_note(one, record.get("incident_id"))] if isinstance(history, list) else []


def _is_note(one: object, incident_id: object) -> bool:
    return (
        isinstance(one, dict)
        and set(one) == _NOTE_FIELDS
        and one["incident_id"] == incident_id
        and isinstance(one["text"], str)
        and isinstance(one["by"], str | None)
        and isinstance(one["data"], dict)
        and problem_of(one) is None
    )


def with_given(seen: Seen, given: Mapping[str, Any]) -> Seen:
    """The same, with what people stated of the job meanwhile."""
    from rca.incidents.records import JOB

    return replace(seen, facts={**seen.facts, **{name: value for name, value in given.items() if name in JOB}})


def launch_of(record: Mapping[str, Any], seen: Seen, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of the launch that the incident ended; None where nothing tells when it began.

    It ended with its last sign of life, unless nothing failed or the job went on degraded: then it was still running when recorded, but for a
    job that is seen to have ended all the same. How that one ended is told where its ranks ended well; where a person says of a death that
    nothing failed, it stays open.
    """
    from apps.headline import ENDED_WELL
    from rca.incidents.records import attempt_record

    facts, told = seen.facts, seen.course
    started = instant(facts["started_at"])
    if started is None:
        return None
    is_spared = record["attribution"] == "none" or record["action"] == "degrade"
    ended = None if (is_spared and seen.ended is None) or told.last_at is None else max(started, told.last_at)
    words = {"planned": "stopped", "none": None}
    kind = None if ended is None else "completed" if seen.ended == ENDED_WELL else words.get(record["attribution"], "failed")
    counts = {
        name: facts[name] for name in ("world_size", "num_hosts", "num_gpus", "resumed_from_step", "last_step", "tokens_per_step", "step_s")
    }
    return attempt_record(
        job_id=record["job_id"], attempt=record["attempt"], started_at=started, ended_at=ended, end_kind=kind,
        exit_code=given.get("exit_code"), **counts,
    )  # fmt: skip


def chosen(book: Notebook, path: str, asked: str | None) -> tuple[str, Sequence[Note]]:
    """The incident that is meant: the one asked for, else the only open one, else the last that was opened. Raises UsageError when none or
    several could be."""
    opened = {i: notes for i, notes in book.notes.items() if any(note["kind"] == "open" for note in notes)}
    for problem in book.skipped:
        complain(f"notes: {problem}; left out")
    for one in (one for notes in opened.values() for one in notes):
        if (instant(one["at"]) or _LONG_AGO) > now() + AHEAD:
            complain(
                f"notes: {one['incident_id']}, {one['kind']}: dated {one['at']}, which is to come: that clock was ahead. The order of lines counts"
            )
    if not opened:
        raise UsageError(f"no incident was opened on {path}; {_OPEN_FIRST.format(path=shlex.quote(path))}")
    if asked is not None:
        if asked not in opened:
            raise UsageError(f"no incident {asked} on {path}: there is {', '.join(sorted(opened))}")
        return asked, opened[asked]
    going_on = sorted(i for i, notes in opened.items() if all(note["kind"] != "close" for note in notes))
    if len(going_on) > 1:
        raise UsageError(f"several incidents are open on {path}: name one with --id ({', '.join(going_on)})")
    newest = (
        going_on[0]
        if going_on
        else max(opened, key=lambda i: instant(next(n["at"] for n in opened[i] if n["kind"] == "open")) or _LONG_AGO)
    )
    return newest, opened[newest]


def written_down(book: Notebook, path: str, note: Note) -> tuple[Path, Sequence[Note]]:
    """Append a note; the file, and all notes of the incident as they then lie on disk: others may have written since the book was read."""
    file = book.append(note)
    return file, notebook(Path(path)).notes.get(note["incident_id"], [note])


def text_of(words: Sequence[str]) -> str:
    """The text of a note: its words, or what stdin holds for `-`. Half characters, which no file can hold, are replaced."""
    text = _piped() if list(words) == ["-"] else " ".join(words)
    text = text.encode("utf-8", "replace").decode().strip()
    if not text:
        raise UsageError("the text is empty: say it in a few words, or pipe it in and give -")
    return text


def _piped() -> str:
    """What stdin holds, as far as a note can take it. A terminal is refused: the process that reads is not the one in its foreground."""
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("- takes the text from a pipe or file (some-command | rca note PATH -); here nothing is piped in")
    return sys.stdin.buffer.read(MAX_LINE_BYTES + 1).decode("utf-8", "replace")


def hosts_named(names: Sequence[str]) -> list[str]:
    """Hosts as the tables name them: lower case, first label; commas separate too."""
    found = []
    for name in (part.strip() for word in names for part in word.split(",")):
        if not name:
            continue
        lower = host_name(name).lower()
        found.append(lower if ":" in lower or lower.replace(".", "").isdigit() else lower.partition(".")[0])
    return sorted(set(found))


def tell_place(book: Notebook, path: str) -> None:
    """Say where notes go when that is not beside the evidence."""
    if not book.is_beside:
        complain(f"{path} stays as it is (read-only, or no folder): notes lie in {book.folder}")


def tell_closed(record: Mapping[str, Any], path: str) -> None:
    """Say that what was added to a closed incident is not in the fleet yet."""
    if record["closed_at"] is not None:
        complain(f"closed before: the fleet has it as it was then. To record this too, close it again: rca close {shlex.quote(path)}")


def check_name(text: str, what: str) -> str:
    """A name that may become one of a file. Raises UsageError for any other."""
    if not is_id(text):
        raise UsageError(f"{what} {text[:60]!r} cannot be a name: use up to 100 letters, digits, -, _ and single dots")
    return text
