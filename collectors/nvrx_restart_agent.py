"""Decisions of NVRx's restart agent (`restart_agent_response.v1`): whether it would restart or stop a job after a failure, and why.

It is another tool's judgement, not a fact of the job: it becomes a row of `trainer_events` (event `restart_decision`) that accuses nobody, whether
the object stands alone or in the answer of its service or a trace (`result`, `analysis_result`, `deterministic_result`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from collectors import _json_records as json_of
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("trainer_events",)
IS_ALONE: Final = True

SCHEMA_SAID: Final = "restart_agent_response.v"  # any version of it
_AROUND: Final = ("result", "analysis_result", "deterministic_result")
_MARK: Final = SCHEMA_SAID.encode()


def claims(name: str, head: bytes) -> bool:
    """A JSON object that says it is such an answer, or begins as one around it."""
    return _MARK in head and b'"decision"' in head and head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def _answer(record: dict[str, Any]) -> dict[str, Any] | None:
    for one in (record, *(record.get(key) for key in _AROUND)):
        if isinstance(one, dict) and str(one.get("schema_version")).startswith(SCHEMA_SAID):
            return one
    return None


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `trainer_events`, one per answer. Raises EvidenceError without any."""
    rows: list[dict[str, Any]] = []
    for place, record in json_of.records(source):
        answer = None if isinstance(record, Skip) else _answer(record)
        decision = json_of.text(answer.get("decision"), 60) if answer else None
        if answer is None or decision is None:
            yield Skip(place, record.why if isinstance(record, Skip) else "no decision of a restart agent")
            continue
        why = [json_of.text(answer.get(key)) for key in ("decision_basis", "justification")]
        failure = answer.get("primary_failure")
        if isinstance(failure, dict):
            why += [json_of.text(failure.get(key)) for key in ("failure_class", "category", "summary")]
        rows.append(
            {
                "record": place,
                "event": "restart_decision",
                "source": "nvrx_restart_agent",
                "message": ": ".join((decision, "; ".join(part for part in why if part)))[:1000],
            }
        )
    if not rows:
        raise EvidenceError(source.path, None, "no decision of a restart agent in it")
    yield TABLES["trainer_events"], TABLES["trainer_events"].rows(rows)
