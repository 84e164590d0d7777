"""Asking the analyses. The second of the two places that catch broadly: an analysis that fails is reported, the others still answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from rca import plugins
from rca.errors import CaseError, NotEnoughEvidence
from rca.memory import without_gc
from rca.tables import TABLES
from rca.types import Cite, Finding, Outcome, Tables, Verdict

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
        with without_gc():
            findings = sorted(analysis.analyse(case), key=lambda f: f.id)
    except NotEnoughEvidence as error:
        return Outcome(name, "blind", str(error))
    except CaseError:
        raise  # not the analysis' fault: the case cannot be read
    except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001 - runner site: recorded as `failed`, exit code 4 tells
        return Outcome(name, "failed", f"{type(error).__name__}: {str(error)[:300]}")
    findings = _with_paths(case, findings)
    return Outcome(
        name,
        "found" if any(not analysis.SIGNS[f.sign].is_note for f in findings) else "clear",
        "; ".join(f.says for f in findings) or "looked, and found nothing",
        tuple(findings),
    )


def _has_rows(case: Tables, table: str) -> bool:
    return bool(case.table(table).select(TABLES[table].schema.names()[0]).head(1).collect().height)


def _with_paths(case: Tables, findings: Sequence[Finding]) -> list[Finding]:
    """Findings whose cites name the file (analyses know rows, a person wants paths), each place once."""
    ids = sorted({cite.evidence_id for f in findings for cite in f.cites})
    if not ids:
        return list(findings)
    rows = case.table("evidence").filter(pl.col("evidence_id").is_in(ids)).select("evidence_id", "path").collect()
    paths = dict(rows.iter_rows())
    return [
        replace(
            f,
            cites=tuple(dict.fromkeys(Cite(c.table, c.evidence_id, paths.get(c.evidence_id, c.path), c.record, c.text) for c in f.cites)),
        )
        for f in findings
    ]


def verdict_frames(outcomes: Sequence[Outcome], verdict: Verdict) -> dict[str, pl.DataFrame]:
    """Outcomes, findings, cites and hypotheses as tables."""
    findings = [f for o in outcomes for f in o.findings]
    cites = [(f.id, cite) for f in findings for cite in f.cites]
    rows: dict[str, list[dict[str, Any]]] = {
        "outcomes": [{"analysis": o.analysis, "status": o.status, "why": o.why} for o in outcomes],
        "findings": [
            {
                "finding_id": f.id,
                "analysis": f.analysis,
                "sign": f.sign,
                "ranks": list(f.ranks),
                "hosts": list(f.hosts),
                "groups": list(f.groups),
                "explains": list(f.explains),
                "says": f.says,
                "numbers": json.dumps(dict(f.numbers), sort_keys=True, default=str),
            }
            for f in findings
        ],
        "cites": [
            {"finding_id": i, "table": c.table, "evidence_id": c.evidence_id, "path": c.path, "record": c.record, "text": c.text}
            for i, c in cites
        ],
        "hypotheses": [
            {
                "cause": h.cause,
                "layer": h.layer,
                "ranks": list(h.ranks),
                "hosts": list(h.hosts),
                "probability": h.probability,
                "supports": list(h.supports),
                "against": list(h.against),
            }
            for h in verdict.hypotheses
        ],
    }
    return {name: TABLES[name].rows(found) for name, found in rows.items()}
