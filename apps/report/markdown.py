"""The weekly report as Markdown. What records say is shown as text; what a person wrote between the marks survives the next run.

A section to write in lies between `<!-- write here: NAME -->` and `<!-- end: NAME -->`; everything else is written anew each time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from apps.plain import one_line
from apps.report import words

__all__ = ["SECTIONS", "escaped", "markdown", "written"]

SECTIONS: Final = {"assessment": "What went well, what went badly, where we were lucky.", "actions": "Owner and date of each action."}
_SPECIAL: Final = re.compile(r"([\\`*_\[\]|~$#])")
_LINKS: Final = (("://", "&#58;//"), ("www.", "www&#46;"), ("@", "&#64;"))
_REGION: Final = re.compile(r"<!-- write here: (\w+) -->\n(.*?)<!-- end: \1 -->", re.DOTALL)


def escaped(text: object) -> str:
    """Text as Markdown shows it letter by letter, also in a table: no mark-up, no HTML, no link made of an address."""
    line = one_line(str(text))
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        line = line.replace(character, entity)
    line = _SPECIAL.sub(r"\\\1", line)
    for mark, harmless in _LINKS:
        line = re.sub(re.escape(mark), harmless, line, flags=re.IGNORECASE)
    return line


def written(text: str) -> dict[str, str]:
    """What people wrote into an earlier report, by section; text that was only the hint is nothing."""
    found = {name: body for name, body in _REGION.findall(text.replace("\r\n", "\n")) if name in SECTIONS}
    return {name: body for name, body in found.items() if body.strip() and body.strip() != SECTIONS[name]}


def markdown(document: Mapping[str, Any], kept: Mapping[str, str]) -> str:
    """The whole report."""
    parts = [f"# Training reliability, {document['week']}", f"{words.span(document)}.", f"**{escaped(words.headline(document))}**"]
    parts.append(_section("assessment", kept))
    if not document["is_empty"]:
        parts += [
            "## What happened",
            *_happened(document),
            "## Figures",
            *_figures(document),
            "## Time to recover by stage",
            *_stages(document),
        ]
        parts += ["## Where the time went", *_costs(document)]
    parts += ["## What came back", *_hosts(document), "## What was overruled", *_overruled(document)]
    parts += ["## What to do", *_actions(document), _section("actions", kept), "## What was not recorded", *_quality(document)]
    parts.append(
        "How each figure is defined: docs/reliability.md. Times are UTC. Planned interruptions are never counted against the platform."
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(name: str, kept: Mapping[str, str]) -> str:
    body = kept.get(name, f"{SECTIONS[name]}\n")
    return f"<!-- write here: {name} -->\n{body}<!-- end: {name} -->"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[int] = ()) -> str:
    marks = ["---:" if place in right else "---" for place in range(len(header))]
    lines = [list(header), marks, *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _happened(document: Mapping[str, Any]) -> list[str]:
    if not document["incidents"]:
        return ["No incident began in this week."]
    header = ("began", "incident", "job", "cause", "who", "whose", "to recover", "notes")
    return [_table(header, (words.incident_row(row) for row in document["incidents"]), right=(6,))]


def _figures(document: Mapping[str, Any]) -> list[str]:
    return [_table(*words.figure_table(document), right=(1, 2))]


def _stages(document: Mapping[str, Any]) -> list[str]:
    header = ("stage", "median", "p90", "budget", "over budget", "unknown, absent")
    return [
        "Of failures. Unknown: begun or ended, but not both told. Absent: no such stage is recorded.",
        _table(header, (words.stage_row(row) for row in document["stages"]), right=(1, 2, 3)),
    ]


def _costs(document: Mapping[str, Any]) -> list[str]:
    found = []
    for column in ("cause", "layer", "attribution"):
        rows = [words.cost_row(row, column) for row in document[f"by_{column}"]]
        if rows:
            header = (
                column,
                *(() if column == "attribution" else ("whose",)),
                "interruptions",
                "GPU hours lost",
                "not recorded",
                "median to recover",
            )
            found.append(_table(header, rows, right=range(len(header) - 4, len(header))))
    return found or ["No time was lost to an interruption."]


def _hosts(document: Mapping[str, Any]) -> list[str]:
    repeats = [row for row in document["incidents"] if row["repeats"]]
    lines = [f"- {escaped(r['incident_id'])} repeats {escaped(r['repeats'])}: {escaped(r['cause'].replace('_', ' '))}" for r in repeats]
    rows = [
        (row["host"], row["num"], ", ".join(cause.replace("_", " ") for cause in row["causes"]), ", ".join(row["incidents"]))
        for row in document["hosts"]
    ]
    table = _table(("host", "failures in 28 days", "causes", "incidents"), rows, right=(1,)) if rows else ""
    again = "\n".join(lines) or "No failure of this week repeats an earlier one."
    return [table or "No host failed first in two failures of the last 28 days.", again]


def _overruled(document: Mapping[str, Any]) -> list[str]:
    rows = [
        (row["incident_id"], words.spaced(row["said"]), words.spaced(row["stands"]), row["because"] or "") for row in document["overruled"]
    ]
    return [_table(("incident", "the verdict said", "stands now", "because"), rows)] if rows else ["No verdict was overruled."]


def _actions(document: Mapping[str, Any]) -> list[str]:
    rows = [(row["kind"], row["what"], row["why"]) for row in document["actions"]]
    return [_table(("kind", "what", "why"), rows)] if rows else ["Nothing follows from the records."]


def _quality(document: Mapping[str, Any]) -> list[str]:
    lines = [
        f"- {escaped(row['what'])}: {row['num']}" + (f" of {row['of']}" if row["of"] is not None else "") for row in document["quality"]
    ]
    return ["\n".join(lines) or "Nothing is known to be missing."]
