"""Say when a stage of an incident began or ended, where evidence does not tell; show all stages against their budgets.

STAGE is detect, localize, queue, replace, load, rebuild, warmup, validate or resume. `--now` begins it, or ends it when it has begun. What is
typed goes before what evidence tells, field by field; the later of two notes counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca stage PATH STAGE [--start T] [--end T] [--now] [--why TEXT] [--id INC] [--by NAME]`."""
    from apps.incidents.life import common
    from apps.incidents.moments import FORMS, takes_times_ago

    common(parser)
    takes_times_ago(parser)
    parser.add_argument("stage", metavar="STAGE", help="detect, localize, queue, replace, load, rebuild, warmup, validate, resume")
    parser.add_argument("--start", metavar="T", help=f"when it began: {FORMS}")
    parser.add_argument("--end", metavar="T", help="when it ended, likewise")
    parser.add_argument("--now", action="store_true", help="it begins now; or ends now, if it has begun")
    parser.add_argument("--why", default="", metavar="TEXT", help="how that is known")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, or 2 when there is no incident, the stage is unknown, or the times cannot be."""
    from pathlib import Path

    from apps.incidents import life, moments
    from apps.incidents.notebook import notebook
    from apps.incidents.text import record_lines
    from apps.text import write
    from rca.causes import STAGES
    from rca.errors import UsageError
    from rca.incidents.incident import fold
    from rca.incidents.records import instant, iso, note

    if args.stage not in STAGES:
        raise UsageError(f"no stage is called {args.stage[:60]!r}: choose one of {', '.join(STAGES)}")
    at = moments.now()
    book = notebook(Path(args.path))
    incident_id, notes = life.chosen(book, args.path, args.id)
    start = moments.moment(args.start, at, "--start") if args.start else None
    end = moments.moment(args.end, at, "--end") if args.end else None
    known = next((stage for stage in fold(notes)["stages"] if stage["stage"] == args.stage), {"started_at": None, "ended_at": None})
    started, ended = instant(known["started_at"]), instant(known["ended_at"])
    if args.now:
        start, end = _now(start, end, started, at)
    elif start is None and end is None:
        raise UsageError(f"say when: rca stage PATH {args.stage} --now, or --start T, --end T")
    first, last = start or started, end or ended
    if first is not None and last is not None and last < first:
        raise UsageError(
            f"{args.stage} would end {iso(last)}, before it starts {iso(first)}: check the times, or state both --start and --end"
        )
    life.tell_place(book, args.path)
    written = note(
        incident_id, at, "stage", args.why.strip(), {"stage": args.stage, "started_at": iso(start), "ended_at": iso(end)}, by=args.by
    )
    record = fold(life.written_down(book, args.path, written)[1])
    write([f"{incident_id}: {_said(args.stage, record['stages'])}", "", *record_lines(record)])
    life.tell_closed(record, args.path)
    return 0


def _now(start: datetime | None, end: datetime | None, started: datetime | None, at: datetime) -> tuple[datetime | None, datetime | None]:
    """What `--now` stands for: the end of a stage that has begun, else its beginning."""
    from rca.errors import UsageError

    if end is not None:
        raise UsageError("--now and --end both say when it ends: give one")
    return (start, at) if start is not None or started is not None else (at, None)


def _said(name: str, stages: Sequence[Mapping[str, Any]]) -> str:
    stage = next(one for one in stages if one["stage"] == name)
    return f"{name} {'ended ' + stage['ended_at'] if stage['ended_at'] else 'began ' + stage['started_at']}"
