"""How the figures of a report read: numbers with their unit, denominators, and the sentence on top. Plain text: the renderers escape it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

__all__ = [
    "MISSING",
    "basis",
    "before",
    "by_name",
    "cost_row",
    "counted",
    "figure_table",
    "headline",
    "heads",
    "incident_row",
    "quantity",
    "seconds",
    "spaced",
    "span",
    "stage_row",
    "who",
]

MISSING: Final = "not known"
MINUTE_S: Final = 60.0
PER_1000: Final = "1/1000 node-days"
Row = Mapping[str, Any]


def quantity(value: float | None, unit: str) -> str:
    """A number with its unit; a ratio as per cent. Small ones keep digits that tell something: hours become minutes or seconds."""
    if value is None:
        return MISSING
    if unit == "":
        return _share(value)
    if unit == "s":
        return seconds(value)
    if unit in ("h", "GPU h") and 0 < value < 1:
        return seconds(value * 3600.0, unit.removesuffix("h"))
    if unit == "tokens":
        return f"{value:,.0f} tokens" if value < 1e6 else f"{value / 1e9:,.2f} billion tokens"
    if unit == "incidents":
        return counted(value, "incident")
    return f"{_digits(value)} {unit.replace(PER_1000, 'per 1,000 node-days')}"


def counted(number: float, word: str) -> str:
    """A count with its noun: 1 failure, 2 failures."""
    return f"{_digits(number)} {word}{'' if number == 1 else 's'}"


def _digits(value: float) -> str:
    if value == int(value) or value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 1 else f"{value:,.2f}" if value < 20 else f"{value:,.1f}"


def _share(value: float) -> str:
    """Per cent, never a false 0 or 100."""
    text = f"{100 * value:.1f} %"
    is_false = (text == "0.0 %" and value > 0) or (text == "100.0 %" and value < 1)
    return text if not is_false else "< 0.1 %" if value < 0.5 else "> 99.9 %"


def seconds(value: float | None, of: str = "") -> str:
    """A length of time as people read it; `of` stands before the unit: `GPU `."""
    if value is None:
        return MISSING
    if value >= 3 * 60 * MINUTE_S:
        return f"{value / 3600:,.1f} {of}h"
    if value >= 10 * MINUTE_S:
        return f"{value / MINUTE_S:,.1f} {of}min"
    return f"{value:,.0f} {of}s" if value >= 10 or value == int(value) else f"{value:.2g} {of}s"


def basis(figure: Row) -> str:
    """What a figure rests on: numerator and denominator, bounds, how many were left out, and why it is what it is."""
    parts = []
    top, bottom = figure["numerator"], figure["denominator"]
    if top is not None and bottom is not None:
        unit = f" {figure['unit']}" if figure["unit"] in ("h", "s") else ""
        per = " thousand node-days" if figure["unit"] == PER_1000 else ""
        parts.append(f"{_plain(top)}{unit} / {_plain(bottom)}{per}")
    elif figure["n"]:
        parts.append(f"of {figure['n']:,}")
    if figure["low"] is not None:
        bound = partial(quantity, unit=figure["unit"]) if figure["unit"] in ("h", "s") else _bound
        high = "no upper bound" if figure["high"] is None else bound(figure["high"])
        parts.append(f"95 %: {bound(figure['low'])} to {high}")
    if figure["left_out"]:
        parts.append(f"{figure['left_out']:,} left out")
    if figure["why"]:
        parts.append(figure["why"])
    return "; ".join(parts)


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3g}"


def _bound(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:.3g}"


def before(figure: Row) -> str:
    """The four weeks before."""
    if figure["before"] is None:
        return str(figure["before_why"] or MISSING)
    text = quantity(figure["before"], figure["unit"])
    return f"{text} a week" if figure["before_is_per_week"] else text


def by_name(document: Row) -> dict[str, Row]:
    """Figures of a document by name."""
    return {figure["name"]: figure for figure in document["figures"]}


def spaced(word: str | None) -> str:
    """A cause or stage in plain words."""
    return MISSING if word is None else word.replace("_", " ")


def span(document: Row) -> str:
    """The time that is reported on."""
    text = f"{document['from']:%Y-%m-%d %H:%M} to {document['to']:%Y-%m-%d %H:%M} UTC"
    return text if document["is_complete"] else f"{text}; the week is not over"


def headline(document: Row) -> str:
    """The week in a sentence or two."""
    if document["is_empty"]:
        return "Nothing is recorded of this week: no incident, and no launch of a job. That is not the same as a week without faults."
    told = by_name(document)
    stops = told["interruptions"]["value"] or 0
    if not stops:
        hours = told["job_hours"]["value"]
        return f"No interruption is recorded in {quantity(hours, 'h')} of jobs." if hours else "No interruption is recorded."
    parts = [(told[f"{name}_interruptions"]["value"] or 0, text) for name, text in _WHOSE]
    whose = ", ".join(f"{count:.0f} {text}" for count, text in parts if count)
    lines = [f"{counted(stops, 'interruption')}: {whose}."]
    mtbf, median, ratio = told["mtbf"], told["mttr_median"], told["effective_ratio"]
    if mtbf["value"] is not None:
        lines.append(f"One failure every {quantity(mtbf['value'], 'h')} of a job.")
    if median["value"] is not None:
        lines.append(f"Half of the failures were over within {seconds(median['value'])} (budget 10 min).")
    if ratio["value"] is not None:
        at_most = "At most " if ratio["why"] else ""
        lines.append(f"{at_most}{quantity(ratio['value'], '')} of the GPU time under way trained.")
    return " ".join(lines)


_WHOSE: Final = (
    ("platform", "of the platform"), ("workload", "of the workload"), ("unknown", "that nobody is known to answer for"), ("planned", "planned"),
)  # fmt: skip


def who(row: Row) -> str:
    """Where an incident was first seen: hosts, else ranks."""
    hosts, ranks = row["hosts"], row["ranks"]
    if hosts:
        return ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    if ranks:
        return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return "nobody"


def stage_row(row: Row) -> tuple[str, ...]:
    """stage, median, p90, budget, over budget, not known."""
    budget = "none" if row["budget_s"] is None else seconds(row["budget_s"])
    over = "" if row["num_over"] is None else f"{row['num_over']} of {row['num']}"
    times = (seconds(row["median_s"]), seconds(row["p90_s"])) if row["num"] else (MISSING, MISSING)
    return (row["stage"], *times, budget, over or f"(of {row['num']})", f"{row['num_unknown']}, {row['num_absent']}")


def figure_table(document: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Titles and rows of all figures: this week, the weeks before, and what each rests on."""
    weeks = len(document["weeks_before"])
    head = f"{weeks} week{'s' * (weeks != 1)} before" if weeks else "weeks before"
    rows = [(figure["says"], quantity(figure["value"], figure["unit"]), before(figure), basis(figure)) for figure in document["figures"]]
    return ("figure", "this week", head, "rests on"), rows


def incident_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One incident on one line: when, which, job, cause, hosts, whose, time to recover against the budget, what is special."""
    took = seconds(row["recovered_s"]) + (" (over budget)" if row["is_over"] else "")
    notes = [f"repeats {row['repeats']}"] if row["repeats"] else []
    notes += ["overruled"] if row["is_overruled"] else []
    notes += [f"taken out: {', '.join(row['evicted'][:4])}"] if row["evicted"] else []
    job = f"{row['job_id']} #{row['attempt']}" if row["attempt"] is not None else str(row["job_id"])
    return (
        f"{row['at']:%m-%d %H:%M}", row["incident_id"], job, spaced(row["cause"]), who(row), row["attribution"], took,
        "; ".join(notes),
    )  # fmt: skip


def heads(column: str) -> tuple[str, ...]:
    """Titles of the first columns of what was lost by cause, layer or attribution."""
    return (column,) if column == "attribution" else (column, "whose")


def cost_row(row: Mapping[str, Any], column: str) -> tuple[str, ...]:
    """cause or layer or attribution, whose, how many, what it cost."""
    head = (spaced(row[column]), *(() if column == "attribution" else (row["attribution"],)))
    lost = None if row["lost_gpu_s"] is None else row["lost_gpu_s"] / 3600.0
    return (*head, str(row["num"]), quantity(lost, "GPU h"), str(row["num_unknown"]), seconds(row["median_s"]))
