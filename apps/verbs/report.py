"""Write the weekly report: what faults cost, whose they are, whether they come back, each figure with its denominator.

Reads the records of a fleet (`rca close` writes them) and compares the week with the four before. Without --out the Markdown goes to stdout; with it
`report-WEEK.md` and `report-WEEK.html` are written there. What you write between the marks in the Markdown survives the next run.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from apps.report.document import Report
    from rca.reliability.window import Window

__all__ = ["arguments", "run"]

MAX_WEEKS = 6  # that are named where the asked one is empty
TABLES = ("incidents", "stages", "attempts", "notes")


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca report [--fleet DIR] [--week 2026-W47] [--out DIR] [--format md|html|both] [--json]`."""
    parser.add_argument("--fleet", metavar="DIR", help="the fleet's records (default: $RCA_FLEET, else fleet in the user's data folder)")
    parser.add_argument("--week", metavar="WEEK", help="ISO week, as in 2026-W47 (default: the last one that is over)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write report-WEEK.md and .html there")
    parser.add_argument("--format", choices=("md", "html", "both"), help="which of the two (default: both; needs --out)")
    parser.add_argument("--json", action="store_true", help="one JSON document (rca.report/1) on stdout")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 (a week without records too), 2 usage or a week to come, 3 when the fleet holds no record at all."""
    from datetime import UTC, datetime, timedelta

    from apps.document import to_json
    from apps.places import fleet_folder
    from apps.plain import complain
    from apps.text import write
    from rca.errors import UsageError
    from rca.incidents.records import week_of
    from rca.reliability.window import week

    if args.format and not args.out:
        raise UsageError("--format says which files to write: name their folder with --out")
    now = datetime.now(UTC)
    window = week(args.week or week_of(now - timedelta(days=7)))
    if window.start >= now:
        raise UsageError(f"--week {args.week} has not begun: nothing of it can have been seen. Name the running week or an earlier one.")
    fleet = fleet_folder(args.fleet)
    report, weeks = _report(fleet, window, now if window.start < now < window.end else None)
    if report is None:
        complain(f"{fleet}: no record of an incident or of a launch: `rca close` writes them, `rca fleet generate` makes some up")
        return 3
    if report.document["is_empty"] and weeks:
        shown = f"{', '.join(weeks[:MAX_WEEKS])}{f' and {len(weeks) - MAX_WEEKS} earlier' if len(weeks) > MAX_WEEKS else ''}"
        complain(f"nothing is recorded of {window.name}; weeks with records: {shown}. Name one with --week {weeks[0]}")
    written = _files(args.out, args.format or "both", window.name, report) if args.out else []
    if args.json:
        write([to_json(report.document)])
    elif args.out:
        write([f"{path}" for path in written])
    else:
        from apps.report.markdown import markdown

        write(markdown(report.document, {}).splitlines())
    return 0


def _report(fleet: Path, window: Window, until: datetime | None) -> tuple[Report | None, list[str]]:
    """The report of the fleet's case, built first where it is out of date, None of a fleet without records; and the weeks of the fleet's
    incidents and launches, newest first."""
    from apps.document import skipped
    from apps.report.document import weekly
    from apps.session import open_session
    from rca.errors import UsageError

    if not fleet.is_dir():
        raise UsageError(f"{fleet}: no such folder: name the fleet's records with --fleet, or close a first incident (rca close)")
    with open_session(str(fleet), None) as session:
        case = session.case()
        try:
            tables: dict[str, Any] = {name: case.table(name).collect() for name in TABLES}
            left_out = skipped(case, session.inventory)
        finally:
            case.close()
    if not any(frame.height for frame in tables.values()):
        return None, []
    return weekly(tables, window, until=until, skipped=left_out), _weeks(tables)


def _weeks(tables: dict[str, Any]) -> list[str]:
    import polars as pl

    from rca.incidents.records import week_of

    began = tables["incidents"].select(pl.coalesce("began_at", "opened_at").alias("at"))["at"].to_list()
    moments = [at for at in (*began, *tables["attempts"]["started_at"].to_list()) if at is not None]
    return sorted({week_of(at) for at in moments}, reverse=True)


def _files(out: Path, form: str, name: str, report: Report) -> list[Path]:
    """Write the files; the Markdown that lies there lends what a person wrote in it."""
    from apps.report.html import page
    from apps.report.markdown import markdown, written
    from rca.files import is_plain, put

    text, web = out / f"report-{name}.md", out / f"report-{name}.html"
    kept = written(text.read_text("utf-8", "replace")) if is_plain(text) else {}
    files = []
    if form in ("md", "both"):
        files.append((text, markdown(report.document, kept)))
    if form in ("html", "both"):
        files.append((web, page(report.document, report.frames, kept)))
    return [put(path, content) for path, content in files]
