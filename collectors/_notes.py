"""One note as a row, whether it stands in the notes of an incident or in the history of its record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from collectors._own_records import instant, text

__all__ = ["row_of"]

KINDS: Final = ("open", "note", "stage", "overrule", "close")


def row_of(record: Mapping[str, Any]) -> Mapping[str, Any] | str:
    """The columns of `notes` but for `record`, or why it is no note."""
    incident, kind, noted_at = text(record.get("incident_id")), record.get("kind"), instant(record.get("at"))
    if incident is None:
        return "names no incident"
    if kind not in KINDS:
        return f"kind {str(kind)[:40]!r} is none of {', '.join(KINDS)}"
    if noted_at is None:
        return f"at {str(record.get('at'))[:40]!r} is no instant with a zone"
    data = record.get("data")
    stated = json.dumps(data if isinstance(data, dict) else {}, sort_keys=True)
    return {
        "incident_id": incident,
        "noted_at": noted_at,
        "kind": kind,
        "author": text(record.get("by")),
        "text": text(record.get("text")),
        "data": stated,
    }
