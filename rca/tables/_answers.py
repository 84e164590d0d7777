"""The answer, as it is stored with a case."""

from __future__ import annotations

from typing import Final

from rca.tables._declare import EVIDENCE_ID, FLOAT, INTS, RECORD, TEXT, TEXTS, Column, Table, table

__all__ = ["DECLARED"]

DECLARED: Final[tuple[Table, ...]] = (
    table(
        "outcomes",
        "analysis that was asked",
        Column("analysis", TEXT, "question"),
        Column("status", TEXT, "found, clear, blind (did not or could not look), failed"),
        Column("why", TEXT, "reason in words"),
        lead=(),
    ),
    table(
        "findings",
        "thing that an analysis saw",
        Column("finding_id", TEXT, "analysis/sign/8 hex digits of its scope"),
        Column("analysis", TEXT, "question"),
        Column("sign", TEXT, "kind of observation"),
        Column("ranks", INTS, "accused ranks; empty = the sign accuses nobody"),
        Column("hosts", TEXTS, "hosts of the accused"),
        Column("groups", TEXTS, "process groups concerned"),
        Column("explains", INTS, "ranks that only wait because of this"),
        Column("says", TEXT, "the observation in words"),
        Column("numbers", TEXT, "its figures, as JSON"),
        lead=(),
    ),
    table(
        "cites",
        "row that a finding rests on",
        Column("finding_id", TEXT, "finding"),
        Column("table", TEXT, "table of the row"),
        EVIDENCE_ID,
        Column("path", TEXT, "file"),
        RECORD,
        Column("text", TEXT, "what stands there"),
        lead=(),
    ),
    table(
        "hypotheses",
        "cause with the ranks it accuses",
        Column("cause", TEXT, "cause"),
        Column("layer", TEXT, "layer of the cause"),
        Column("ranks", INTS, "accused ranks"),
        Column("hosts", TEXTS, "their hosts"),
        Column("probability", FLOAT, "posterior, 0..1; all rows sum to 1"),
        Column("supports", TEXTS, "findings that speak for it"),
        Column("against", TEXTS, "findings that speak against it"),
        lead=(),
    ),
)
