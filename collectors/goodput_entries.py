"""Entries of the ml-goodput library: flat JSON objects of one job, each with a moment (seconds since 1970), alone or in `jsonPayload` of a cloud log.

Rows: `steps` (rank null: the job as a whole), from the start of a step to that of the next within one launch, so that the end of a launch's last step
is unknown; `spans` of every pair NAME_start_time and NAME_end_time (job, tpu_init, training_prep, data_loading, ...), of custom events by their type;
`trainer_events`: the starts of the job, of which a second one is a restart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
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

BATCH_ROWS: Final = 50_000
_WRAPPED: Final = ("jsonPayload", "json_payload")
_MOMENT: Final = re.compile(r"(?P<name>[a-z][a-z0-9_]{0,80}?)_(?P<end>start|end)_time$")
_CUSTOM: Final = re.compile(r"(?P<name>custom_[a-z_]{1,60}?)_(?P<end>start|end)_time$")
_STEP: Final = "step_start_time"


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
    steps: list[dict[str, Any]] = []
    spans: list[dict[str, Any]] = []
    launches: list[dict[str, Any]] = []
    open_spans: dict[tuple[str, str], dict[str, Any]] = {}
    last_step: dict[str, dict[str, Any]] = {}  # of each job: the one whose end is the start of the next
    num_read = 0
    for place, record in json_of.records(source):
        if isinstance(record, Skip):
            yield Skip(place, record.why)
            continue
        entry = _inner(record)
        moment = _moment(entry)
        if moment is None:
            yield Skip(place, "no entry of a job with the start or end of something in seconds since 1970")
            continue
        num_read += 1
        name, end, at = moment
        job = json_of.text(entry["job_name"], 200) or ""
        if name == "step" and end == "start":
            step = json_of.whole(entry.get("step_count"))
            if step is None:
                yield Skip(place, "the start of a step without its number (step_count)")
                continue
            before = last_step.get(job)
            if before is not None and step == before["step"] + 1 and at >= before["started_at"]:
                before["step_s"] = (at - before["started_at"]).total_seconds()
            last_step[job] = {"record": place, "step": step, "started_at": at, "step_s": None}
            steps.append(last_step[job])
        elif end == "start":
            if name == "job":
                last_step.pop(job, None)  # what comes is another launch: its first step does not end the last one's
                launches.append({"record": place, "event": "job_start", "source": "ml_goodput", "logged_at": at, "message": job})
            span = {"record": place, "span": name, "started_at": at, "span_s": None}
            spans.append(span)
            open_spans[job, name] = span
        elif (span := open_spans.pop((job, name), {})) and at >= span["started_at"]:
            span["span_s"] = (at - span["started_at"]).total_seconds()
        else:
            yield Skip(place, f"the end of {name!r} without its start")
        if len(steps) >= BATCH_ROWS:
            yield TABLES["steps"], TABLES["steps"].rows(steps[:-1])
            steps = steps[-1:]
    if not num_read:
        raise EvidenceError(source.path, None, "no entry of the goodput library in it")
    for table, rows in (("steps", steps), ("spans", spans), ("trainer_events", launches)):
        yield TABLES[table], TABLES[table].rows(rows)
