"""Entries of the ml-goodput library: flat JSON objects of one job, each with a moment (seconds since 1970), alone or in `jsonPayload` of a cloud log.

Rows: `steps` (rank null: the job as a whole), from the start of a step to that of the next within one launch, so that the end of a launch's last step
is unknown; `spans` of every pair NAME_start_time and NAME_end_time (job, tpu_init, training_prep, data_loading, ...), of custom events by their type;
`trainer_events`: the starts of the job, of which a second one is a restart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from collectors import _json_records as json_of
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("steps", "spans", "trainer_events")
IS_ALONE: Final = True

MAX_ENTRIES: Final = 1_000_000  # of which pairs are made: their order in the file need not be that of time
_WRAPPED: Final = ("jsonPayload", "json_payload")
_MOMENT: Final = re.compile(r"(?P<name>[a-z][a-z0-9_]{0,80}?)_(?P<end>start|end)_time$")
_CUSTOM: Final = re.compile(r"(?P<name>custom_[a-z_]{1,60}?)_(?P<end>start|end)_time$")
_STEP: Final = "step_start_time"


@dataclass(frozen=True, slots=True)
class _Entry:
    """The start or end of something, and where it stands."""

    order: int
    place: str | None
    job: str
    name: str
    end: str
    at: datetime
    step: int | None


def claims(name: str, head: bytes) -> bool:
    """JSON objects with the name of a job, and the start or end of something in seconds since 1970."""
    return b'"job_name"' in head and b"_time" in head and any(_moment(_inner(record)) for record in json_of.first_objects(head))


def _inner(record: dict[str, Any]) -> dict[str, Any]:
    return next((record[key] for key in _WRAPPED if isinstance(record.get(key), dict)), record)


def _moment(entry: dict[str, Any]) -> tuple[str, str, datetime] | None:
    """Name of what began or ended, which of the two, and when."""
    if not isinstance(entry.get("job_name"), str):
        return None
    for key, value in entry.items():
        found = _MOMENT.match(key)
        at = json_of.instant(value) if found else None
        if found and at is not None:
            custom = _CUSTOM.match(key)
            type_ = json_of.text(entry.get(f"{custom['name']}_type"), 200) if custom else None
            return type_ or found["name"], found["end"], at
    return None


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of all tables, in the order of the file. Raises EvidenceError without any entry."""
    entries: list[_Entry] = []
    for order, (place, record) in enumerate(json_of.records(source)):
        if isinstance(record, Skip):
            yield Skip(place, record.why)
            continue
        entry = _inner(record)
        moment = _moment(entry)
        if moment is None:
            yield Skip(place, "no entry of a job with the start or end of something in seconds since 1970")
        elif len(entries) == MAX_ENTRIES:
            yield Skip(place, f"more than {MAX_ENTRIES:,} entries: the rest is left out")
            break
        else:
            step = json_of.whole(entry.get("step_count"))
            entries.append(_Entry(order, place, json_of.text(entry["job_name"], 200) or "", *moment, step))
    if not entries:
        raise EvidenceError(source.path, None, "no entry of the goodput library in it")
    rows: dict[str, list[tuple[int, dict[str, Any]]]] = {name: [] for name in EMITS}
    yield from _paired(_in_time(entries), rows)
    for table, found in rows.items():
        yield TABLES[table], TABLES[table].rows([row for _, row in sorted(found, key=lambda one: one[0])])


def _in_time(entries: list[_Entry]) -> list[_Entry]:
    """Entries in the order of their moments; an export of a cloud log has the last one first."""
    falls = sum(b.at < a.at for a, b in pairwise(entries))
    rises = sum(b.at > a.at for a, b in pairwise(entries))
    return sorted(entries[::-1] if falls > rises else entries, key=lambda entry: entry.at)


def _paired(entries: list[_Entry], rows: dict[str, list[tuple[int, dict[str, Any]]]]) -> Iterator[Skip]:
    """Fill the rows of all tables, each with its place in the file; a Skip for what cannot be paired."""
    open_spans: dict[tuple[str, str], dict[str, Any]] = {}
    last_step: dict[str, dict[str, Any]] = {}  # of each job: the one whose end is the start of the next
    for entry in entries:
        if entry.name == "step" and entry.end == "start":
            if entry.step is None:
                yield Skip(entry.place, "the start of a step without its number (step_count)")
                continue
            before = last_step.get(entry.job)
            if before is not None and entry.step == before["step"] + 1:
                before["step_s"] = (entry.at - before["started_at"]).total_seconds()
            last_step[entry.job] = {"record": entry.place, "step": entry.step, "started_at": entry.at, "step_s": None}
            rows["steps"].append((entry.order, last_step[entry.job]))
        elif entry.end == "start":
            if entry.name == "job":
                last_step.pop(entry.job, None)  # what comes is another launch: its first step does not end the last one's
                launch = {"record": entry.place, "event": "job_start", "source": "ml_goodput", "logged_at": entry.at, "message": entry.job}
                rows["trainer_events"].append((entry.order, launch))
            span = {"record": entry.place, "span": entry.name, "started_at": entry.at, "span_s": None}
            rows["spans"].append((entry.order, span))
            open_spans[entry.job, entry.name] = span
        elif begun := open_spans.pop((entry.job, entry.name), None):
            begun["span_s"] = (entry.at - begun["started_at"]).total_seconds()
        else:
            yield Skip(entry.place, f"the end of {entry.name!r} without its start")
