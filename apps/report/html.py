"""The weekly report as one HTML file: opens from disk, loads nothing, light and dark, tables first and pictures where plotly is installed.

Everything that comes from a record passes `_text`, so that no element or attribute is made of it; a policy in the head forbids the page to load
anything should that ever fail.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import polars as pl

from apps.plain import one_line
from apps.report import words

__all__ = ["page"]

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; font-src data:"
STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d5dae0; --paper: #ffffff; --card: #f5f7f9; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ebee; --soft: #9aa4ae; --line: #333a42; --paper: #14171b; --card: #1c2127; --bad: #ff8a80; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.7rem; } h2 { margin: 2.6rem 0 .6rem; font-size: 1.2rem; } p { margin: .5rem 0; max-width: 60rem; }
.soft { color: var(--soft); } .bad { color: var(--bad); font-weight: 600; }
.lead { font-size: 1.1rem; margin: 1rem 0 1.4rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: .8rem; margin-bottom: 1rem; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.6rem; line-height: 1.25; } .tile span { display: block; color: var(--soft); font-size: .85rem; }
.wide { overflow-x: auto; margin-bottom: 1.2rem; } table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { text-align: left; border-bottom: 1px solid var(--line); padding: .35rem .7rem .35rem 0; vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; } td { overflow-wrap: break-word; }
td.num, th.num { padding-left: .7rem; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; } td.id { white-space: nowrap; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1rem; }
@media (max-width: 60rem) { .charts { grid-template-columns: minmax(0, 1fr); } }
.chart { min-width: 0; border: 1px solid var(--line); border-radius: 8px; padding: .4rem; overflow: hidden; }
.own { background: var(--card); border-left: 3px solid var(--line); padding: .6rem 1rem; white-space: pre-wrap; overflow-wrap: anywhere; }
@media print { body { max-width: none; } .chart, tr { break-inside: avoid; } }
"""
TILES: Final = ("failures", "mtbf", "mttr_median", "effective_ratio", "lost_gpu_h", "planned_interruptions")
CHARTS: Final = ("interruptions_by_week", "mttr_by_stage", "lost_time_by_cause", "platform_vs_planned")
CHART_CONFIG: Final = {"displayModeBar": False, "responsive": True}
FOOT: Final = (
    "How each figure is defined: docs/reliability.md. Times are UTC. Planned interruptions are never counted against the platform."
)
MAX_TEXT: Final = 600  # of a cell: a record may hold any text
Mark = Callable[[int, str], str]
HOSTS: Final = 4
TOO_LONG: Final = 6  # column of an incident's time to recover


def page(document: Mapping[str, Any], frames: Mapping[str, pl.DataFrame], written: Mapping[str, str]) -> str:
    """The whole page. `frames` by the name of their chart; `written` what a person wrote into the Markdown, by section."""
    body = [f"<h1>Training reliability, {_text(document['week'])}</h1>", f'<p class="soft">{_text(words.span(document))}</p>']
    body.append(f'<p class="lead">{_text(words.headline(document))}</p>')
    if "assessment" in written:
        body.append(f'<div class="own">{_lines(written["assessment"])}</div>')
    if not document["is_empty"]:
        body += [_tiles(document), _charts(frames), *_happened(document), *_figures(document), *_stages(document), *_costs(document)]
    body += [*_hosts(document), *_overruled(document), *_actions(document)]
    if "actions" in written:
        body.append(f'<div class="own">{_lines(written["actions"])}</div>')
    body += [*_quality(document), f'<p class="soft">{FOOT}</p>']
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    title = f"<title>Training reliability, {_text(document['week'])}</title>"
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}{title}<style>{STYLE}</style></head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _text(value: object) -> str:
    line = one_line(str(value))
    return html.escape(line if len(line) <= MAX_TEXT else f"{line[:MAX_TEXT]} ...", quote=True)


def _lines(text: str) -> str:
    return "\n".join(html.escape(one_line(line)) for line in text.strip().splitlines())


def _table(header: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[int] = (), mark: Mark | None = None) -> str:
    """A table of text; `mark(column, text)` names a class of a cell."""

    def cell(place: int, value: object) -> str:
        text = str(value)
        names = " ".join(filter(None, ["num" if place in right else "", mark(place, text) if mark else ""]))
        return f'<td class="{names}">{_text(text)}</td>' if names else f"<td>{_text(text)}</td>"

    head = "".join(f'<th class="num">{_text(t)}</th>' if i in right else f"<th>{_text(t)}</th>" for i, t in enumerate(header))
    lines = ["<tr>" + "".join(cell(i, value) for i, value in enumerate(row)) + "</tr>" for row in rows]
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n' + "\n".join(lines) + "\n</tbody></table></div>"


def _tiles(document: Mapping[str, Any]) -> str:
    told = words.by_name(document)
    tiles = []
    for name in TILES:
        figure = told[name]
        old = f"before: {words.before(figure)}" if document["weeks_before"] else ""
        value = _text(words.quantity(figure["value"], figure["unit"]))
        says, basis, was = (f"<span>{_text(line)}</span>" for line in (figure["says"], words.basis(figure), old))
        tiles.append(f'<div class="tile">{says}<b>{value}</b>{basis}{was}</div>')
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _charts(frames: Mapping[str, pl.DataFrame]) -> str:
    """The pictures; plotly's program stands in the page once. Without plotly the tables tell the same."""
    try:
        from apps import charts

        figures = [getattr(charts, name)(frames[name]) for name in CHARTS if name in frames]
    except ModuleNotFoundError as error:
        if error.name != "plotly":
            raise
        return (
            '<p class="soft">No pictures: plotly is not installed (pip install "firstfault[explore]"). The tables below tell the same.</p>'
        )
    parts = []
    for place, figure in enumerate(figures):
        drawn = figure.to_html(full_html=False, include_plotlyjs=place == 0, div_id=f"chart-{place}", config=CHART_CONFIG)
        parts.append(f'<div class="chart">{drawn}</div>')
    return f'<div class="charts">{"".join(parts)}</div>' if parts else ""


def _happened(document: Mapping[str, Any]) -> list[str]:
    if not document["incidents"]:
        return ["<h2>What happened</h2>", "<p>No incident began in this week.</p>"]
    header = ("began", "incident", "job", "cause", "who", "whose", "to recover", "notes")
    rows = (words.incident_row(row) for row in document["incidents"])

    def mark(place: int, text: str) -> str:
        return "bad" if place == TOO_LONG and "over budget" in text else "id" if place < 3 or (place == HOSTS and ", " not in text) else ""

    return ["<h2>What happened</h2>", _table(header, rows, right=(TOO_LONG,), mark=mark)]


def _figures(document: Mapping[str, Any]) -> list[str]:
    return ["<h2>Figures</h2>", _table(*words.figure_table(document), right=(1, 2))]


def _stages(document: Mapping[str, Any]) -> list[str]:
    header = ("stage", "median", "p90", "budget", "over budget", "unknown, absent")
    note = "Of failures. Unknown: begun or ended, but not both told. Absent: no such stage is recorded."
    rows = (words.stage_row(row) for row in document["stages"])
    return ["<h2>Time to recover by stage</h2>", f'<p class="soft">{note}</p>', _table(header, rows, right=(1, 2, 3, 4, 5))]


def _costs(document: Mapping[str, Any]) -> list[str]:
    found = ["<h2>Where the time went</h2>"]
    for column in ("cause", "layer", "attribution"):
        rows = [words.cost_row(row, column) for row in document[f"by_{column}"]]
        header = (*words.heads(column), "interruptions", "GPU hours lost", "not recorded", "median to recover")
        if rows:
            found.append(_table(header, rows, right=range(len(header) - 4, len(header))))
    return found if len(found) > 1 else [*found, "<p>No time was lost to an interruption.</p>"]


def _hosts(document: Mapping[str, Any]) -> list[str]:
    rows = [
        (row["host"], row["num"], ", ".join(cause.replace("_", " ") for cause in row["causes"]), ", ".join(row["incidents"]))
        for row in document["hosts"]
    ]
    repeats = [(row["incident_id"], row["repeats"], row["cause"].replace("_", " ")) for row in document["incidents"] if row["repeats"]]
    hosts = _table(("host", "failures in 28 days", "causes", "incidents"), rows, right=(1,)) if rows else ""
    again = _table(("incident", "repeats", "cause"), repeats) if repeats else ""
    return [
        "<h2>What came back</h2>",
        hosts or "<p>No host failed first in two failures of the last 28 days.</p>",
        again or "<p>No failure of this week repeats an earlier one.</p>",
    ]


def _overruled(document: Mapping[str, Any]) -> list[str]:
    rows = [
        (row["incident_id"], words.spaced(row["said"]), words.spaced(row["stands"]), row["because"] or "") for row in document["overruled"]
    ]
    table = _table(("incident", "the verdict said", "stands now", "because"), rows) if rows else "<p>No verdict was overruled.</p>"
    return ["<h2>What was overruled</h2>", table]


def _actions(document: Mapping[str, Any]) -> list[str]:
    rows = [(row["kind"], row["what"], row["why"]) for row in document["actions"]]
    return ["<h2>What to do</h2>", _table(("kind", "what", "why"), rows) if rows else "<p>Nothing follows from the records.</p>"]


def _quality(document: Mapping[str, Any]) -> list[str]:
    rows = [(row["what"], row["num"], "" if row["of"] is None else row["of"]) for row in document["quality"]]
    table = _table(("what", "how many", "of"), rows, right=(1, 2)) if rows else "<p>Nothing is known to be missing.</p>"
    return ["<h2>What was not recorded</h2>", table]
