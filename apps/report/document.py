"""The weekly report as one document (`rca.report/1`): what happened, the figures with their denominators, what came back, what to do, what was not
recorded. markdown.py and html.py only render it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import polars as pl

from rca.causes import WHOLE_BUDGET_S
from rca.reliability.breakdowns import bad_hosts, began_in, counts_by_week, lost_by, stage_times
from rca.reliability.effective import is_seen, stretches, unexplained_h
from rca.reliability.figures import figures
from rca.reliability.ledger import Ledger, open_ledger
from rca.reliability.window import Figure, Window

__all__ = ["WEEKS_BEFORE", "Report", "weekly"]

WEEKS_BEFORE: Final = 4
SUMMED: Final = ("incidents", "GPU h", "steps", "tokens", "node-days")  # units of figures that grow with the time looked at
MAX_NAMED: Final = 8
OFTEN: Final = 0.5  # share of a stage over its budget from which it is worth somebody's time


@dataclass(frozen=True)
class Report:
    """`document` is what is said; `frames` what charts draw of it, by the chart's name."""

    document: dict[str, Any]
    frames: Mapping[str, pl.DataFrame]


def weekly(
    tables: Mapping[str, pl.DataFrame], week: Window, *, until: datetime | None = None, skipped: Sequence[Mapping[str, Any]] = ()
) -> Report:
    """The report of a week over the tables incidents, stages, attempts and notes. `until`: the present, when the week is not over."""
    ledger = open_ledger(tables["incidents"], tables["stages"], tables["attempts"])
    window = week if until is None else replace(week, end=until)
    earlier = [week.back(count) for count in range(WEEKS_BEFORE, 0, -1)]
    seen = [one for one in earlier if is_seen(ledger, one)]
    before = figures(ledger, Window(earlier[0].start, week.start))
    began = began_in(ledger, window)
    stages, hosts = stage_times(ledger, window), bad_hosts(ledger, window)
    notes = tables["notes"].filter(pl.col("incident_id").is_not_null())
    still_open = _still_open(notes, ledger, window)
    document = {
        "schema_version": "rca.report/1",
        "week": week.name,
        "from": window.start,
        "to": window.end,
        "is_complete": until is None,
        "is_empty": not (began.height or is_seen(ledger, window)),
        "figures": [_compared(figure, before, len(seen)) for figure in figures(ledger, window).values()],
        "weeks_before": [one.name for one in seen],
        "incidents": [_incident(row) for row in began.iter_rows(named=True)],
        "stages": stages.to_dicts(),
        "by_cause": lost_by(ledger, window, "cause").to_dicts(),
        "by_layer": lost_by(ledger, window, "layer").to_dicts(),
        "by_attribution": lost_by(ledger, window, "attribution").to_dicts(),
        "hosts": hosts.to_dicts(),
        "overruled": _overruled(began, notes),
        "still_open": still_open,
        "actions": _actions(ledger, began, stages, hosts, still_open),
        "quality": _quality(ledger, window, began, still_open, skipped),
    }
    frames = {
        "interruptions_by_week": counts_by_week(ledger, [*earlier, window]),
        "mttr_by_stage": stages.filter((pl.col("num") > 0) & (pl.col("stage") != "whole")),
        "lost_time_by_cause": lost_by(ledger, window, "cause"),
        "platform_vs_planned": lost_by(ledger, window, "attribution"),
    }
    return Report(document, {name: frame for name, frame in frames.items() if frame.height})


def _compared(figure: Figure, before: Mapping[str, Figure], weeks: int) -> dict[str, Any]:
    """A figure with its value of the four weeks before: per recorded week where it is a sum, else over all of them."""
    old = before[figure.name]
    is_sum = old.unit in SUMMED or figure.name == "job_hours"
    value = old.value if weeks else None
    if is_sum and value is not None:
        value /= weeks
    return figure.as_row() | {"before": value, "before_why": old.why if weeks else None, "before_is_per_week": is_sum}


def _incident(row: Mapping[str, Any]) -> dict[str, Any]:
    names = (
        "incident_id",
        "at",
        "job_id",
        "attempt",
        "attribution",
        "layer",
        "cause",
        "action",
        "summary",
        "repeats",
        "is_overruled",
        "kind",
    )
    recovered = row["length_s"]
    return {name: row[name] for name in names} | {
        "hosts": sorted(row["hosts"] or []),
        "ranks": sorted(row["ranks"] or []),
        "evicted": sorted(row["evicted"] or []),
        "recovered_s": recovered,
        "budget_s": WHOLE_BUDGET_S,
        "is_over": recovered > WHOLE_BUDGET_S if recovered is not None and row["kind"] == "failure" else None,
        "lost_gpu_h": None if row["lost_gpu_s"] is None else row["lost_gpu_s"] / 3600.0,
    }


def _data(text: str | None) -> Mapping[str, Any]:
    """What a note states beside its words; nothing where it is no object."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _overruled(began: pl.DataFrame, notes: pl.DataFrame) -> list[dict[str, Any]]:
    """Verdicts that a person changed: what was said, what stands now, and why."""
    said: dict[str, str] = {}
    for name, text in notes.filter(pl.col("kind").is_in(["open", "close"])).sort("noted_at").select("incident_id", "data").iter_rows():
        diagnosis = _data(text).get("diagnosis")
        if isinstance(diagnosis, dict) and diagnosis.get("cause"):
            said[name] = str(diagnosis["cause"])
    rows = began.filter(pl.col("is_overruled")).iter_rows(named=True)
    return [
        {"incident_id": row["incident_id"], "said": said.get(row["incident_id"]), "stands": row["cause"], "because": row["because"]}
        for row in rows
    ]


def _still_open(notes: pl.DataFrame, ledger: Ledger, window: Window) -> list[dict[str, Any]]:
    """Incidents that somebody opened up to the window's end and that have no record: nothing of them is counted."""
    recorded = set(ledger.incidents["incident_id"])
    opened = notes.filter((pl.col("kind") == "open") & (pl.col("noted_at") < window.end)).sort("noted_at", "incident_id")
    rows = [{"incident_id": name, "opened_at": at} for name, at in opened.select("incident_id", "noted_at").iter_rows()]
    return list({row["incident_id"]: row for row in rows if row["incident_id"] not in recorded}.values())


def _actions(
    ledger: Ledger, began: pl.DataFrame, stages: pl.DataFrame, hosts: pl.DataFrame, still_open: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """What is left to do, each with the reason; owner and date are a person's to add."""
    found = []
    evicted = {
        name: row["evicted"] or []
        for name, row in zip(ledger.incidents["incident_id"], ledger.incidents.iter_rows(named=True), strict=True)
    }
    for row in hosts.iter_rows(named=True):
        newest = row["incidents"][-1]
        was_out = row["host"] in evicted[newest]
        todo = "keep out until a test of its own has passed" if was_out else "take out and test: nobody is recorded to have done so"
        why = f"{row['num']} failures in 28 days ({', '.join(_words(cause) for cause in row['causes'])}), the last one {newest}"
        found.append({"kind": "prevent", "what": f"{row['host']}: {todo}", "why": why})
    again: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in began.filter(pl.col("attribution") == "workload").iter_rows(named=True):
        if row["repeats"]:
            again[row["cause"], row["code_version"] or "unknown code"].append(row["incident_id"])
    for (cause, code), names in sorted(again.items()):
        found.append({"kind": "prevent", "what": f"fix {_words(cause)} in {code}", "why": f"came back: {_listed(names)}"})
    open_causes = began.filter((pl.col("kind") != "none") & (pl.col("cause") == "unknown"))["incident_id"].to_list()
    if open_causes:
        found.append(
            {"kind": "detect", "what": "find the cause, or the evidence that was missing", "why": f"cause unknown: {_listed(open_causes)}"}
        )
    for row in stages.filter((pl.col("num") > 0) & pl.col("budget_s").is_not_null() & (pl.col("stage") != "whole")).iter_rows(named=True):
        if row["num_over"] / row["num"] >= OFTEN:
            why = f"{row['num_over']} of {row['num']} took longer than {row['budget_s']:.0f} s, median {row['median_s']:.0f} s"
            found.append({"kind": "mitigate", "what": f"shorten {row['stage']}", "why": why})
    if still_open:
        names = [row["incident_id"] for row in still_open]
        found.append({"kind": "record", "what": "close what is over (rca close)", "why": f"opened and without a record: {_listed(names)}"})
    return found


def _quality(
    ledger: Ledger, window: Window, began: pl.DataFrame, still_open: Sequence[Any], skipped: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """What was not recorded, so that no figure is taken for more than it is: only lines with something in them."""
    parts = stretches(ledger, window)
    failures = began.filter(pl.col("kind") == "failure")
    gaps: dict[str, set[int]] = defaultdict(set)
    for spell, _ in parts:
        if spell.attempt is not None:
            gaps[spell.job_id].add(spell.attempt)
    missing = sum(max(numbers) - min(numbers) + 1 - len(numbers) for numbers in gaps.values())
    running = sum(spell.ended_at is None and spell.started_at < window.start for spell, _ in parts)

    homeless = began.filter(~pl.col("job_id").is_in(list(ledger.jobs))).height

    last = {spell.job_id: spell for spell, _ in parts}
    lost_sight = sum(spell.ended_at is not None and spell.ended_at < window.end and spell.end_kind == "failed" for spell in last.values())

    def without(column: str) -> int:
        return began.filter((pl.col("kind") != "none") & pl.col(column).is_null()).height

    lines = [
        ("failures without the end of their resume stage: not in the time to recover", failures["length_s"].null_count(), failures.height),
        ("interruptions whose lost GPU time is not recorded", without("lost_gpu_s"), began.height),
        ("interruptions whose recomputed steps are not recorded", without("recomputed_steps"), began.height),
        ("interruptions of unknown cause", began.filter((pl.col("kind") != "none") & (pl.col("cause") == "unknown")).height, began.height),
        ("interruptions dated by when they were noticed or opened, not by when the fault showed", without("began_at"), began.height),
        ("interruptions of jobs without a recorded launch: in no rate", homeless, began.height),
        ("launches without their number of GPUs: not in the training time ratio", sum(s.num_gpus is None for s, _ in parts), len(parts)),
        ("launches without their number of hosts: not in the node-days", sum(s.num_hosts is None for s, _ in parts), len(parts)),
        ("launches without an end that began before this week: taken to run on, which lengthens MTBF if they do not", running, len(parts)),
        ("launches missing in the numbering of their job", missing, len(parts) + missing),
        ("jobs that were last seen to fail: what ran after it is not recorded, and MTBF seems shorter than it is", lost_sight, len(last)),
        ("incidents opened and never closed: counted nowhere", len(still_open), None),
        ("incidents without any moment, of all weeks: counted nowhere", ledger.incidents["at"].null_count(), ledger.incidents.height),
        ("launches without a start, of all weeks", ledger.num_without_start, None),
        ("values that cannot be, of all weeks: read as not recorded", ledger.num_strange, None),
        ("older revisions of records, of all weeks: replaced by newer ones", ledger.num_older, None),
        ("files of the fleet that were not wholly read", len(skipped), None),
    ]  # fmt: skip
    found: list[dict[str, Any]] = [{"what": what, "num": num, "of": of} for what, num, of in lines if num]
    if hours := unexplained_h(ledger, window):
        found.append({"what": "hours between two launches of a job in which no incident is recorded", "num": round(hours, 2), "of": None})
    return found


def _words(name: str) -> str:
    return name.replace("_", " ")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
