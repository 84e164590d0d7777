"""Tables of made-up fleets for tests: rows with what matters, everything else null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from rca.reliability.ledger import Ledger, open_ledger
from rca.reliability.window import Window, week
from rca.tables import TABLES

WEEK = week("2026-W10")
MONDAY = WEEK.start
Rows = Sequence[Mapping[str, Any]]


def hour(number: float) -> datetime:
    """An instant so many hours after the week's begin."""
    return MONDAY + timedelta(hours=number)


def attempt(number: int, start: float, end: float | None, **more: Any) -> dict[str, Any]:
    row = {"job_id": "job-0", "attempt": number, "started_at": hour(start), "ended_at": None if end is None else hour(end)}
    return row | {"num_hosts": 2, "num_gpus": 16} | more


def incident(name: str, began: float, **more: Any) -> dict[str, Any]:
    row = {"incident_id": name, "job_id": "job-0", "attempt": 0, "revision": 1, "began_at": hour(began), "attribution": "platform"}
    return row | {"layer": "hardware", "cause": "gpu_fault", "hosts": ["host-a"], "is_overruled": False, "num_gpus": 16} | more


def stage(name: str, stage: str, start: float | None, end: float | None, **more: Any) -> dict[str, Any]:
    moments = {"started_at": None if start is None else hour(start), "ended_at": None if end is None else hour(end)}
    return {"incident_id": name, "stage": stage, **moments} | more


def tables(incidents: Rows = (), stages: Rows = (), attempts: Rows = (), notes: Rows = ()) -> dict[str, pl.DataFrame]:
    given = {"incidents": incidents, "stages": stages, "attempts": attempts, "notes": notes}
    return {name: TABLES[name].rows(list(rows)) for name, rows in given.items()}


def ledger(incidents: Rows = (), stages: Rows = (), attempts: Rows = ()) -> Ledger:
    found = tables(incidents, stages, attempts)
    return open_ledger(found["incidents"], found["stages"], found["attempts"])


def hours(start: float, end: float) -> Window:
    return Window(hour(start), hour(end))
