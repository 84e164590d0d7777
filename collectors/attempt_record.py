"""Record of a launch of a job (`rca.attempt/1`): when it ran, on how much, how far it came. Written by `rca close`, or by a scheduler's hook."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from collectors._own_records import document, instant, is_record, number, text, whole
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "SCHEMA", "claims", "read"]

EMITS = ("attempts",)
SCHEMA = "rca.attempt/1"

END_KINDS: Final = ("completed", "failed", "stopped")
_COUNTS: Final = ("world_size", "num_hosts", "num_gpus", "resumed_from_step", "last_step", "tokens_per_step", "exit_code")


def claims(name: str, head: bytes) -> bool:
    """A record of that schema."""
    return is_record(head, SCHEMA)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """The one row of `attempts`."""
    record = document(source, SCHEMA)
    started, ended, kind = instant(record.get("started_at")), instant(record.get("ended_at")), record.get("end_kind")
    if started is None:
        raise EvidenceError(source.path, "E0", "started_at is no instant with a zone: a launch without a start cannot be counted")
    if record.get("ended_at") is not None and (ended is None or ended < started):
        raise EvidenceError(source.path, "E0", "ended_at is no instant after the start: it cannot be told from a job that still runs")
    if kind is not None and kind not in END_KINDS:
        yield Skip("E0", f"end_kind {str(kind)[:40]!r} is none of {', '.join(END_KINDS)}: read as not told")
        kind = None
    counts = {name: whole(record.get(name)) for name in _COUNTS}
    row = {
        "record": "E0",
        "job_id": text(record.get("job_id")),
        "attempt": whole(record.get("attempt")),
        "started_at": started,
        "ended_at": ended,
        "end_kind": kind,
        **counts,
        "step_s": number(record.get("step_s")),
    }
    yield TABLES["attempts"], TABLES["attempts"].rows([row])
