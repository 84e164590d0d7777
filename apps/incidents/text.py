"""The record of an incident on a terminal: stages against budgets, whose it is, what it cost, what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from apps.report.words import counted, quantity
from rca.causes import WHOLE_BUDGET_S
from rca.incidents.incident import is_settled
from rca.incidents.records import instant

__all__ = ["next_lines", "record_lines", "span"]


def span(seconds: float) -> str:
    """A duration as people read it."""
    whole = round(seconds)
    if abs(seconds) < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s".replace(" min 0 s", " min")
    return f"{whole // 3600} h {whole % 3600 // 60} min" if whole < 172_800 else f"{whole // 86400} d {whole % 86400 // 3600} h"


def record_lines(record: Mapping[str, Any]) -> list[str]:
    """Stages against budgets, whose it is and why, what it cost."""
    lines = ["Stages", *(f"  {line}" for line in _stages(record)), ""]
    attribution = {"none": "nobody's (nothing failed)"}.get(record["attribution"], record["attribution"])
    lines.append(f"Attribution: {attribution}: {record['because']}")
    if record["attribution"] == "planned":
        lines.append("  planned: it never counts against the platform")
    if record["is_overruled"]:
        said = record["diagnosis"]
        lines.append(f"  overruled by a person; the tool said {said['cause'].replace('_', ' ')} ({said['attribution']})")
    if record["proven_cause"]:
        lines.append(f"  proven: {record['proven_cause'].replace('_', ' ')}")
    cost = []
    if record["lost_gpu_s"] is not None:
        cost.append(f"{quantity(record['lost_gpu_s'] / 3600.0, 'GPU h')} on {counted(record['num_gpus'], 'GPU')}")
    if record["recomputed_steps"] is not None:
        tokens = f" ({record['recomputed_tokens']:,} tokens)" if record["recomputed_tokens"] is not None else ""
        cost.append(f"{counted(record['recomputed_steps'], 'step')} done again{tokens}")
    lines.append(f"Cost so far: {', '.join(cost) or 'not known (GPUs, or the moment of the fault)'}")
    return lines


def _stages(record: Mapping[str, Any]) -> list[str]:
    from apps.text import columns

    rows = []
    for stage in record["stages"]:
        took, verdict = _took(instant(stage["started_at"]), instant(stage["ended_at"]), stage["budget_s"])
        rows.append(
            (
                stage["stage"],
                _clock(stage["started_at"]),
                _clock(stage["ended_at"]),
                took,
                verdict,
                f"{stage['origin']}: {stage['why']}"[:90],
            )
        )
    rows.append(_whole(record))
    return columns(("stage", "from", "to", "took", "budget", "known from"), rows)


def _whole(record: Mapping[str, Any]) -> tuple[str, str, str, str, str, str]:
    """The row of the whole. While it goes on it lasts at least to the last moment that is told, and no budget is kept yet."""
    stages, start = record["stages"], record["began_at"]
    is_over = is_settled(stages, is_closed=record["closed_at"] is not None)
    resumed = [stage["ended_at"] for stage in stages if stage["stage"] == "resume" and stage["ended_at"]]
    moments = resumed or [stage[name] for stage in stages for name in ("started_at", "ended_at") if stage[name]]
    took, verdict = _took(instant(start), max(filter(None, map(instant, moments)), default=None), WHOLE_BUDGET_S)
    if is_over:
        return "whole", _clock(start), "", took, verdict, f"from the fault to the end of {'resume' if resumed else 'the last stage'}"
    so_far = took if took == "-" else f"{took} so far"
    return "whole", _clock(start), "", so_far, verdict.removesuffix(", kept"), "from the fault to the last moment told; it goes on"


def _clock(text: str | None) -> str:
    moment = instant(text)
    return f"{moment:%m-%d %H:%M:%S}Z" if moment else "-"


def _took(start: datetime | None, end: datetime | None, budget_s: float | None) -> tuple[str, str]:
    allowed = "none" if budget_s is None else span(budget_s)
    if start is None or end is None:
        return "-", allowed
    seconds = (end - start).total_seconds()
    over = "" if budget_s is None else f", over by {span(seconds - budget_s)}" if seconds > budget_s else ", kept"
    return span(seconds), allowed + over


def next_lines(path: str) -> list[str]:
    """What to type next."""
    where = shlex.quote(path)
    return [
        "Next",
        f"  rca note {where} 'what you see or do'",
        f"  rca stage {where} replace --now      # again when it is done; queue, load, rebuild, warmup, validate, resume alike",
        f"  rca overrule {where} --cause CAUSE --because 'why'",
        f"  rca close {where}      # when the job has caught up",
    ]
