"""What others read: the documents of `--json`. Sorted lists, finite numbers, the same input gives the same bytes but for `timing`."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from apps.plain import Document, safe_json

if TYPE_CHECKING:
    import polars as pl

    from rca.case import Case
    from rca.catalogues import Site
    from rca.judge import Judgement
    from rca.roster import Roster
    from rca.sources import Inventory
    from rca.types import Finding, Outcome

__all__ = ["analysis_document", "collectors_of", "diagnosis_document", "inspect_document", "site_document", "skipped", "to_json"]

COVERED = ("dumps", "stacks", "steps", "log_events")
_NO_SPAN = {"first_at": None, "last_at": None, "first_at_local": None, "last_at_local": None}
_NOT_SEEN_THEN = ("boot_at", "timeout_at")  # a moment that the file tells of, long before it was written


def to_json(document: Mapping[str, Any]) -> Document:
    """One JSON text: keys in the order given, no NaN; what would drive a terminal is escaped, which changes no value."""
    return Document(safe_json(json.dumps(_plain(document), ensure_ascii=False, indent=1, allow_nan=False)))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset | set):
        return [_plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value


def diagnosis_document(judgement: Judgement, skips: Sequence[Mapping[str, Any]], timing: Mapping[str, float]) -> dict[str, Any]:
    """`rca.diagnosis/1`.

    Hypotheses go by probability. One that `is_prior` rests on no finding, and may stand before the verdict's where that is `unknown`: what acts on
    the document reads `verdict` and `advice`.
    """
    verdict, advice, roster = judgement.verdict, judgement.advice, judgement.roster
    return {
        "schema_version": "rca.diagnosis/1",
        "job_id": roster.job_id,
        "attempt": roster.attempt,
        "verdict": {
            "cause": verdict.cause,
            "layer": verdict.layer,
            "attribution": verdict.attribution,
            "probability": round(verdict.probability, 6),
            "summary": verdict.summary,
            "proven": verdict.proven,
            "concurrent": verdict.concurrent,
            "first_failing": {
                "ranks": list(verdict.ranks),
                "hosts": list(verdict.hosts),
                "gpus": list(verdict.gpus),
                "probability": round(verdict.ranks_probability, 6),
                "at": verdict.failed_at,
                "after": verdict.failed_after,
                "step": verdict.step,
                "last_collective": verdict.last_collective,
                "data": verdict.data,
                "ordered_by": verdict.ordered_by,
            },
        },
        "advice": {
            "action": advice.action,
            "evict": {
                "hosts": list(advice.evict_hosts),
                "ranks": list(advice.evict_ranks),
                "group": advice.evict_group,
                "innocent_hosts": None if advice.innocent_hosts is None else list(advice.innocent_hosts),
            },
            "checkpoint": advice.checkpoint,
            "replay": advice.replay,
            "because": advice.because,
            "commands": list(advice.commands),
            "branch": advice.branch or None,
            "checks": list(advice.checks),
            "next": list(advice.next),
            "retries": advice.retries,
            "degrade_or_replace": advice.losses,
            "shrink": advice.shrink,
            "spares": advice.spares,
            "recovery": advice.recovery,
            "before_restart": list(advice.before_restart),
            "eviction": advice.eviction,
            "keep_out": list(advice.keep_out),
        },
        "hypotheses": [
            {
                "cause": h.cause,
                "layer": h.layer,
                "probability": round(h.probability, 6),
                "ranks": list(h.ranks),
                "hosts": list(h.hosts),
                "supports": list(h.supports),
                "against": list(h.against),
                "is_prior": not h.supports,  # no finding speaks for it: how often such a cause is, and nothing seen in this job
            }
            for h in verdict.hypotheses
        ],
        "findings": [_finding(f) for o in judgement.outcomes for f in o.findings],
        "outcomes": [_outcome(o) for o in judgement.outcomes],
        "coverage": coverage(roster),
        "skipped": [dict(s) for s in skips],
        "timing": {key: round(value, 3) for key, value in timing.items()},
        **({"site": site_document(judgement.site)} if judgement.site else {}),
    }


def site_document(site: Site) -> dict[str, Any]:
    """Whose rules counted beside the shipped ones: the folder, and of each of its files how many rows it changes and adds."""
    from rca.catalogues import file_of

    files = {file_of(name): {"changed": changed, "added": added} for name, (changed, added) in sorted(site.changes.items())}
    return {"folder": site.folder, "fingerprint": site.fingerprint, "files": files}


def coverage(roster: Roster) -> dict[str, Any]:
    """How many ranks left which evidence, and which left none."""
    return {
        "world_size": roster.world_size if roster.world_size is not None else len(roster.everyone) or None,
        "ranks_with": {table: len(roster.ranks_with[table]) for table in COVERED},
        "ranks_missing": {table: roster.missing(table) for table in COVERED},
    }


def _finding(f: Finding) -> dict[str, Any]:
    return {
        "id": f.id,
        "analysis": f.analysis,
        "sign": f.sign,
        "scope": f.scope,
        "ranks": sorted(f.ranks),
        "hosts": sorted(f.hosts),
        "groups": sorted(f.groups),
        "explains": sorted(f.explains),
        "says": f.says,
        "numbers": dict(f.numbers),
        "cites": [{"table": c.table, "path": c.path, "record": c.record, "text": c.text} for c in f.cites],
    }


def _outcome(o: Outcome) -> dict[str, Any]:
    return {"analysis": o.analysis, "status": o.status, "why": o.why}


def analysis_document(outcome: Outcome) -> dict[str, Any]:
    """`rca.analysis/1`: one question's outcome and findings."""
    return {"schema_version": "rca.analysis/1", **_outcome(outcome), "findings": [_finding(f) for f in outcome.findings]}


def skipped(case: Case, inventory: Inventory) -> list[dict[str, Any]]:
    """Everything that was found and not (wholly) read, with its reason; older dumps that were left out too."""
    rows = [{"path": u.path, "record": None, "why": u.why} for u in inventory.unreadable]
    for r in case.table("readings").collect().iter_rows(named=True):
        if r["problem"]:
            guess = f" (looks like {r['guess']})" if r["guess"] else ""
            rows.append({"path": r["path"], "record": r["first_skip_record"], "why": r["problem"] + guess})
        elif r["first_skip"]:
            more = f"; {r['num_skipped'] - 1} more" if r["num_skipped"] > 1 else ""
            rows.append({"path": r["path"], "record": r["first_skip_record"], "why": r["first_skip"] + more})
    for r in case.table("evidence").collect().iter_rows(named=True):
        if r["is_stale"]:
            rows.append({"path": r["path"], "record": None, "why": f"left out: {r['stale_because']}"})
    return sorted(rows, key=lambda r: (r["path"], r["record"] or "", r["why"]))


def inspect_document(case: Case, inventory: Inventory, tables: Sequence[str]) -> dict[str, Any]:
    """`rca.inspect/1`: what was read from each file, the rows of the tables asked for, and which questions the evidence leaves open."""
    import polars as pl

    from rca.tables import TABLES

    counts, spans, ranks = _per_file(case)
    paths: dict[str, str] = {}
    files: dict[str, dict[str, Any]] = {}
    for r in case.table("readings").collect().iter_rows(named=True):
        key = r["evidence_id"]
        if r["path"] in files:  # one more collector that read it
            files[r["path"]]["collector"] += f",{r['collector']}"
            continue
        paths.setdefault(key, r["path"])
        is_first = paths[key] == r["path"]  # what a copy holds was read once
        why = r["problem"] or r["first_skip"]
        files[r["path"]] = {
            "path": r["path"],
            "collector": r["collector"],
            "rows": counts.get(key, {}) if is_first else {},
            "skipped": [{"record": r["first_skip_record"], "why": why, "count": r["num_skipped"] or 1}] if why else [],
            **(spans.get(key, _NO_SPAN) if is_first else _NO_SPAN),
            "ranks": sorted(ranks.get(key, ())),
            "guess": r["guess"],
            "copy_of": r["copy_of"],
        }
    for u in inventory.unreadable:
        files[u.path] = {
            "path": u.path, "collector": None, "rows": {}, "skipped": [{"record": None, "why": u.why, "count": 1}],
            **_NO_SPAN, "ranks": [], "guess": None, "copy_of": None,
        }  # fmt: skip
    shown: dict[str, Any] = {}
    for name in tables:
        frame: pl.DataFrame = case.table(name, with_stale=True).collect()
        if "evidence_id" in TABLES[name].schema and "path" not in frame.columns:
            frame = frame.with_columns(pl.col("evidence_id").replace_strict(paths, default=None, return_dtype=pl.String).alias("path"))
        shown[name] = frame.to_dicts()
    document: dict[str, Any] = {"schema_version": "rca.inspect/1", "files": [files[path] for path in sorted(files)], "tables": shown}
    return {**document, "open": open_questions(case)}


def collectors_of(case: Case) -> list[str]:
    """The collectors that read a file of the case, by name."""
    return sorted(case.table("readings").select("collector").drop_nulls().unique().collect()["collector"].to_list())


def open_questions(case: Case) -> list[dict[str, Any]]:
    """The questions that could not be asked of this evidence: what each asks, the tables that lack rows, and which collectors fill them."""
    from rca import plugins
    from rca.reading import collectors

    fills = {name: collector.EMITS for name, collector in collectors().items()}
    has_rows = {name for (name,) in case.table("readings").select("collector").drop_nulls().unique().collect().iter_rows()}
    found = []
    for r in case.table("outcomes").sort("analysis").collect().iter_rows(named=True):
        if r["status"] != "blind":
            continue
        analysis = plugins.load("rca.analyses", r["analysis"])
        empty = [table for table in analysis.NEEDS if not case.table(table).head(1).collect().height]
        by = sorted({name for name, emits in fills.items() for table in empty if table in emits})
        asks = (analysis.__doc__ or "").strip().splitlines()[0]
        found.append(
            {
                "question": r["analysis"],
                "asks": asks,
                "why": r["why"],
                "lacks": empty,
                "filled_by": by,
                "was_read": sorted({*has_rows} & {*by}),
            }
        )
    return found


def _per_file(case: Case) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, Any]], dict[str, set[int]]]:
    """Per evidence_id: rows by table, first and last moment, ranks."""
    import polars as pl

    from rca.tables import TABLES

    counts: dict[str, dict[str, int]] = defaultdict(dict)
    spans: dict[str, dict[str, Any]] = {}
    ranks: dict[str, set[int]] = defaultdict(set)
    for name, table in TABLES.items():
        if not table.from_evidence or name in ("evidence", "readings"):
            continue
        columns = [pl.len().alias("n")]
        has_rank = "rank" in table.schema and name != "memberships"
        if has_rank:
            columns.append(pl.col("rank").drop_nulls().unique().alias("ranks"))
        for ending in ("_at", "_at_local"):
            moments = [column for column in table.schema if column.endswith(ending) and column not in _NOT_SEEN_THEN]
            if moments:
                columns.append(pl.min_horizontal(pl.col(moments).min()).alias(f"first{ending}"))
                columns.append(pl.max_horizontal(pl.col(moments).max()).alias(f"last{ending}"))
        for r in case.table(name, with_stale=True).group_by("evidence_id").agg(columns).collect().iter_rows(named=True):
            key = r["evidence_id"]
            counts[key][name] = r["n"]
            ranks[key] |= set(r.get("ranks", ()))
            span = spans.setdefault(key, dict(_NO_SPAN))
            for place, better in (("first", min), ("last", max)):
                for ending in ("_at", "_at_local"):
                    told = [moment for moment in (span[place + ending], r.get(place + ending)) if moment is not None]
                    if told:
                        span[place + ending] = better(told)
    return counts, spans, ranks
