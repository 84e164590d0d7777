"""What happened before, read from disk for the decision: records of the fleet, and the notes on the evidence at hand.

Records are only read: nothing is locked or written, and a damaged one is passed over (`rca inspect` on the fleet names it).
Of a large fleet the newest weeks count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from apps.places import fleet_folder

if TYPE_CHECKING:
    from rca.decision.history import History, Past

__all__ = ["history_of"]

MAX_RECORDS: Final = 400  # of the newest weeks: what a site took lately tells more of today than years ago
_WEEK: Final = re.compile(r"\d{4}-W\d\d")
_PENDING: Final = re.compile(r"(?i)\s*pending(?: changes?)?\s*[:=]\s*(?P<what>\S.{0,300})")  # a note that begins so
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


def history_of(path: str, fleet: str | None = None) -> History:
    """The history for a piece of evidence: earlier incidents of the fleet (--fleet, RCA_FLEET, else the user's own), and what notes on it say."""
    from rca.decision.history import History

    folder = fleet_folder(fleet)
    past = sorted(_past(folder), key=lambda one: one.began_at or _LONG_AGO) if folder.is_dir() else []
    where = f"{len(past)} incidents of {folder}" if past else ""
    return History(past=tuple(past), where=where, **_noted(path))


def _past(folder: Path) -> Iterator[Past]:
    from rca.decision.history import past_of
    from rca.errors import EvidenceError
    from rca.files import plain_bytes

    left = MAX_RECORDS
    weeks = (week for week in (folder / "incidents").glob("*") if _WEEK.fullmatch(week.name) and week.is_dir())
    for week in sorted(weeks, reverse=True):
        for file in sorted(week.glob("*.json"), reverse=True)[:left]:
            left -= 1
            try:
                record = json.loads(plain_bytes(file))
            except (OSError, ValueError, RecursionError, EvidenceError):
                continue
            if isinstance(record, dict) and (one := past_of(record)) is not None:
                yield one
        if left <= 0:
            return


def _noted(path: str) -> dict[str, Any]:
    """What people noted beside this evidence: the job's name, the version of the code, changes that wait."""
    from apps.incidents.notebook import notebook
    from apps.remote import is_remote
    from rca.errors import RcaError

    if is_remote(path):
        return {}
    try:
        notes = [note for notes in notebook(Path(path)).notes.values() for note in notes if isinstance(note["data"], dict)]
    except (RcaError, OSError):
        return {}
    found: dict[str, Any] = {}
    pending = []
    for note in notes:
        given = note["data"].get("given")
        if isinstance(given, dict) and isinstance(given.get("job_id"), str):
            found["job_id"] = given["job_id"]
        if isinstance(note["data"].get("code_version"), str):
            found["code_version"] = note["data"]["code_version"]
        if note["kind"] == "note" and (told := _PENDING.match(note["text"])):
            pending.append(told["what"])
    return {**found, "pending_changes": tuple(dict.fromkeys(pending))}
