"""Asking the analyses. The second of the two places that catch broadly: an analysis that fails is reported, the others still answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from rca import plugins
from rca.errors import NotEnoughEvidence
from rca.tables import TABLES
from rca.types import Cite, Finding, Outcome, Tables

__all__ = ["ask", "ask_all", "questions", "verdict_frames"]


def questions() -> tuple[str, ...]:
    """Every question that can be asked, by name."""
    return plugins.names("rca.analyses")


def ask_all(case: Tables) -> list[Outcome]:
    """All questions, by name."""
    return [ask(case, name) for name in questions()]


def ask(case: Tables, name: str) -> Outcome:
    """One question. Without rows in any table it needs, it is blind and not called."""
    analysis = plugins.load("rca.analyses", name)
    empty = [table for table in analysis.NEEDS if not _has_rows(case, table)]
    if empty:
        return Outcome(name, "blind", f"no rows in {', '.join(empty)}")
    try:
        findings = sorted(analysis.analyse(case), key=lambda f: f.id)
    except NotEnoughEvidence as error:
        return Outcome(name, "blind", str(error))
    except Exception as error:  # noqa: BLE001 - runner site: recorded as `failed`, exit code 4 tells
        return Outcome(name, "failed", f"{type(error).__name__}: {str(error)[:300]}")
    findings = _with_paths(case, findings)
    return Outcome(
        name,
        "found" if findings else "clear",
        "; ".join(f.says for f in findings) or "looked, and found nothing",
        tuple(findings),
    )


def _has_rows(case: Tables, table: str) -> bool:
    return bool(case.table(table).select(TABLES[table].schema.names()[0]).head(1).collect().height)


def _with_paths(case: Tables, findings: Sequence[Finding]) -> list[Finding]:
    """Findings whose cites name the file: analyses know rows, a person wants paths."""
    ids = sorted({cite.evidence_id for f in findings for cite in f.cites})
    if not ids:
        return list(findings)
    rows = case.table("evidence").filter(pl.col("evidence_id").is_in(ids)).select("evidence_id", "path").collect()
    paths = dict(rows.iter_rows())
    return [
        replace(
            f,
            cites=tuple(Cite(c.table, c.evidence_id, paths.get(c.evidence_id, c.path), c.record, c.text) for c in f.cites),
        )
        for f in findings
    ]


def verdict_frames(outcomes: Sequence[Outcome]) -> dict[str, pl.DataFrame]:
    """Outcomes, findings and cites as tables."""
    import json

    findings = [f for o in outcomes for f in o.findings]
    return {
        "outcomes": TABLES["outcomes"].rows([{"analysis": o.analysis, "status": o.status, "why": o.why} for o in outcomes]),
        "findings": TABLES["findings"].rows(
            [
                {
                    "finding_id": f.id, "analysis": f.analysis, "sign": f.sign, "ranks": list(f.ranks), "hosts": list(f.hosts), "groups": list(f.groups),
                    "explains": list(f.explains), "says": f.says, "numbers": json.dumps(dict(f.numbers), sort_keys=True, default=str),
                }
                for f in findings
            ]
        ),
        "cites": TABLES["cites"].rows(
            [{"finding_id": f.id, "table": c.table, "evidence_id": c.evidence_id, "path": c.path, "record": c.record, "text": c.text} for f in findings for c in f.cites]
        ),
    }  # fmt: skip
