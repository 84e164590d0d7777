"""Quarantine list of samples: JSON lines (`rca.quarantine/1`) of what people decided on samples, and of every time that these failed.

    {"schema_version": "rca.quarantine/1", "at": "2026-11-20T08:02:00Z", "by": null, "decision": "add", "sample_id": "131", "data_shard": null,
     "because": "...", "failures": [{"what": "exception", "step": 8, "rank": 3, "host": "host-b", "attempt": null, "path": "...", "record": "L12"}]}

Rows: `quarantines`, one for each failure that a decision tells, one where it tells none. Each line stands for itself: one that is torn or foreign is
skipped, and the rest counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from collectors._batches import batches
from collectors._own_records import instant, is_lines, lines_of, text, whole
from rca.errors import EvidenceError
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "SCHEMA", "claims", "read"]

EMITS = ("quarantines",)
SCHEMA = "rca.quarantine/1"  # what this reader claims is no other reader's, whatever a reason quotes

MAX_FAILURES: Final = 10_000  # of one decision
DECISIONS: Final = ("add", "release")
KINDS: Final = ("not_finite", "spike", "exception")


def claims(name: str, head: bytes) -> bool:
    """Lines that are decisions on samples."""
    return is_lines(head, SCHEMA)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `quarantines` in the order of the lines."""
    num_rows, _ = yield from batches("quarantines", lines_of(source, SCHEMA, _rows))
    if not num_rows:
        raise EvidenceError(source.path, None, "no decision on a sample in it")


def _rows(record: Mapping[str, Any]) -> list[dict[str, Any]] | str:
    sample, decided_at, decision = text(record.get("sample_id")), instant(record.get("at")), record.get("decision")
    if sample is None:
        return "names no sample"
    if decision not in DECISIONS:
        return f"decision {str(decision)[:40]!r} is none of {', '.join(DECISIONS)}"
    if decided_at is None:
        return f"at {str(record.get('at'))[:40]!r} is no instant with a zone"
    told = {
        "sample_id": sample, "data_shard": text(record.get("data_shard")), "decided_at": decided_at, "decision": decision,
        "author": text(record.get("by")), "because": text(record.get("because")),
    }  # fmt: skip
    failed = record.get("failures")
    listed = (
        [one for one in failed[:MAX_FAILURES] if isinstance(one, dict) and one.get("what") in KINDS] if isinstance(failed, list) else []
    )
    return [told | _failure(one) for one in listed] or [told]


def _failure(one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "what": one["what"], "step": whole(one.get("step")), "rank": whole(one.get("rank")), "host": text(one.get("host")),
        "failed_attempt": whole(one.get("attempt")), "failed_path": text(one.get("path")), "failed_record": text(one.get("record")),
    }  # fmt: skip
