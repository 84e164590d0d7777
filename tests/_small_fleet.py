"""A small fleet: five incidents and two launches of one job, written as `rca close` writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from apps.document import to_json
from rca.causes import CAUSES, STAGES
from rca.incidents.incident import incident_record
from rca.incidents.records import attempt_path, attempt_record, incident_path, iso, job_of

__all__ = ["LAST_WEEK", "small_fleet"]

BEGAN = datetime(2026, 3, 2, 4, 0, tzinfo=UTC)  # a Monday, the first day of 2026-W10
LAST_WEEK = "2026-W11"
FAULTS = (  # hours after the launch, cause, host, s to recover
    (5.0, "gpu_fault", "host-a", 540.0),
    (30.0, "storage_stall", "host-b", 1500.0),
    (80.0, "planned_stop", "host-c", 300.0),
    (190.0, "gpu_fault", "host-a", 700.0),
    (220.0, "user_exception", "host-d", 420.0),
)


def small_fleet(folder: Path, *, host: str = "", summary: str = "") -> Path:
    """Write it; `host` and `summary` take the place of those of the last incident."""
    for number, (hours, cause, name, whole_s) in enumerate(FAULTS):
        is_last = number == len(FAULTS) - 1
        began = BEGAN + timedelta(hours=hours)
        known = CAUSES[cause]
        where = host if is_last and host else name
        diagnosis: dict[str, Any] = {
            "cause": cause, "layer": known.layer, "attribution": known.attribution, "action": known.action, "probability": 0.9,
            "proven": False, "ranks": [number], "hosts": [where], "gpus": [], "at": iso(began), "step": 100 * number,
            "summary": summary if is_last and summary else f"rank {number} on {where} failed first",
        }  # fmt: skip
        record = incident_record(
            incident_id=f"INC-{number}",
            job=job_of(job_id="job-0", attempt=0, world_size=64, num_hosts=8, num_gpus=64, step_s=2.0, tokens_per_step=1000),
            diagnosis=diagnosis,
            opened_at=began + timedelta(seconds=40),
            closed_at=began + timedelta(hours=1),
            began_at=began,
            detected_at=began + timedelta(seconds=30),
            stages=_stages(began, whole_s),
            recomputed_steps=10,
        )
        _put(folder / incident_path(record), record)
    first = attempt_record(
        job_id="job-0",
        attempt=0,
        started_at=BEGAN,
        ended_at=BEGAN + timedelta(hours=100),
        end_kind="failed",
        world_size=64,
        num_hosts=8,
        num_gpus=64,
    )
    second = attempt_record(
        job_id="job-0", attempt=1, started_at=BEGAN + timedelta(hours=101), ended_at=BEGAN + timedelta(hours=300), end_kind="completed",
        world_size=64, num_hosts=8, num_gpus=64,
    )  # fmt: skip
    for record in (first, second):
        _put(folder / attempt_path(record), record)
    return folder


def _stages(began: datetime, whole_s: float) -> list[dict[str, Any]]:
    """One after the other, each its share of the whole."""
    shares = {"detect": 0.1, "localize": 0.3, "replace": 0.2, "load": 0.2, "rebuild": 0.1, "resume": 0.1}
    found, at = [], began
    for stage in STAGES:
        if stage in shares:
            end = at + timedelta(seconds=shares[stage] * whole_s)
            found.append({"stage": stage, "started_at": iso(at), "ended_at": iso(end)})
            at = end
    return found


def _put(file: Path, record: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(to_json(record) + "\n", "utf-8")
