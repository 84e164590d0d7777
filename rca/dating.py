"""Which findings rest on lines alone that bear no instant: nothing in them tells that they are of this launch, and not of one before. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import polars as pl

from rca.types import Finding, Tables

__all__ = ["undated"]

LOGS: Final = (
    "log_events",
    "kernel_events",
)  # of any time; what recorders, samplers and timers write is of the job itself


def undated(case: Tables, findings: Iterable[Finding]) -> frozenset[str]:
    """Ids of the findings whose every cited line is one of a log without an instant: no stamp, or one without zone or day."""
    findings = [finding for finding in findings if finding.cites]
    dated: set[tuple[str, str, str]] = set()
    for table in LOGS:
        files = sorted({cite.evidence_id for finding in findings for cite in finding.cites if cite.table == table})
        if files:
            rows = case.table(table).filter(pl.col("evidence_id").is_in(files) & pl.col("logged_at").is_not_null())
            dated |= {(table, *row) for row in rows.select("evidence_id", "record").unique().collect().iter_rows()}
    return frozenset(
        finding.id
        for finding in findings
        if all(cite.table in LOGS and (cite.table, cite.evidence_id, cite.record) not in dated for cite in finding.cites)
    )
