"""Record of an incident (`rca.incident/1`): what it was, whose, how long each stage took, and all that was said. Written by `rca close`.

Rows: one of `incidents`, one of `stages` for each stage, one of `notes` for each entry of its history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from collectors._notes import row_of
from collectors._own_records import document, instant, is_record, number, text, texts, whole, wholes
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "SCHEMA", "claims", "read"]

EMITS = ("incidents", "stages", "notes")
SCHEMA = "rca.incident/1"

MAX_LISTED: Final = 100_000  # stages or notes of one record
STAGES: Final = ("detect", "localize", "queue", "replace", "load", "rebuild", "warmup", "validate", "resume")
ATTRIBUTIONS: Final = ("platform", "workload", "planned", "none", "unknown")
_MOMENTS: Final = ("began_at", "opened_at", "detected_at", "closed_at")
_TEXTS: Final = ("layer", "cause", "proven_cause", "because", "action", "code_version", "recurs_incident_id", "summary", "job_id")
_COUNTS: Final = ("attempt", "revision", "world_size", "num_gpus", "recomputed_steps", "recomputed_tokens")
_NUMBERS: Final = ("lost_gpu_s", "recomputed_s")


def claims(name: str, head: bytes) -> bool:
    """A record of that schema."""
    return is_record(head, SCHEMA)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of the three tables. A record that does not name its incident is none."""
    record = document(source, SCHEMA)
    incident = text(record.get("incident_id"))
    if incident is None:
        raise EvidenceError(source.path, "E0", "names no incident")
    attribution = record.get("attribution")
    if attribution not in ATTRIBUTIONS:
        yield Skip("E0", f"attribution {str(attribution)[:40]!r} is none of {', '.join(ATTRIBUTIONS)}: read as unknown")
        attribution = "unknown"
    overruled = record.get("is_overruled")
    row: dict[str, Any] = {"record": "E0", "incident_id": incident, "attribution": attribution}
    row |= {name: instant(record.get(name)) for name in _MOMENTS}
    row |= {name: text(record.get(name)) for name in _TEXTS}
    row |= {name: whole(record.get(name)) for name in _COUNTS}
    row |= {name: number(record.get(name)) for name in _NUMBERS}
    row |= {"is_overruled": overruled if isinstance(overruled, bool) else None, "ranks": wholes(record.get("ranks"))}
    row |= {name: texts(record.get(name)) for name in ("hosts", "gpus", "evicted")}
    yield TABLES["incidents"], TABLES["incidents"].rows([row])
    for table, key, row_for in (("stages", "stages", _stage), ("notes", "history", row_of)):
        rows: list[dict[str, Any]] = []
        for place, one in enumerate(_listed(record, key)):
            found = row_for(one) if isinstance(one, dict) else "no object"
            if isinstance(found, str):
                yield Skip(f"{key}/E{place}", found)
            else:
                rows.append({**found, "record": f"{key}/E{place}", "incident_id": incident})
        if rows:
            yield TABLES[table], TABLES[table].rows(rows)


def _listed(record: Mapping[str, Any], key: str) -> list[Any]:
    found = record.get(key)
    return found[:MAX_LISTED] if isinstance(found, list) else []


def _stage(stage: Mapping[str, Any]) -> Mapping[str, Any] | str:
    """The columns of `stages` but for record and incident, or why it is no stage."""
    name, origin = stage.get("stage"), stage.get("origin")
    if name not in STAGES:
        return f"stage {str(name)[:40]!r} is none of {', '.join(STAGES)}"
    return {
        "stage": name,
        "started_at": instant(stage.get("started_at")),
        "ended_at": instant(stage.get("ended_at")),
        "budget_s": number(stage.get("budget_s")),
        "origin": origin if origin in ("evidence", "hand") else None,
    }
