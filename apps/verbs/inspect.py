"""Show what was read from each file, which questions the evidence leaves open, and the rows of any table.

Every file with its collector, ranks, span of time and rows, or of which file it is a copy; what could not be read and why, with the nearest known
format; which ranks each kind of evidence covers; and what to bring for the questions that could not be asked.
"""

from __future__ import annotations

import argparse

from apps.site import EVIDENCE, option

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca inspect PATH [--table T ...] [--all] [--json] [--case FILE] [--site FOLDER]`."""
    parser.add_argument("path", metavar="PATH", help=EVIDENCE)
    parser.add_argument("--table", action="append", default=[], metavar="T", help="also print the rows of this table (may be repeated)")
    parser.add_argument("--all", action="store_true", help="a line for every file, also where many are alike")
    parser.add_argument("--json", action="store_true", help="one JSON document (rca.inspect/1) on stdout")
    parser.add_argument("--case", metavar="FILE", help="where the case file goes")
    option(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, or 3 when no file was recognised."""
    from apps.document import coverage, inspect_document, to_json
    from apps.session import open_session
    from apps.text import columns, write
    from apps.tour import tour
    from rca.errors import UsageError
    from rca.roster import roster as roster_of
    from rca.tables import TABLES

    unknown = [name for name in args.table if name not in TABLES]
    if unknown:
        raise UsageError(f"no table is called {', '.join(unknown)}: `rca tables` lists them")
    with open_session(args.path, args.case, args.site) as session:
        case = session.case()
        try:
            document = inspect_document(case, session.inventory, args.table)
            roster = roster_of(case)
        finally:
            case.close()
    files = document["files"]
    if args.json:
        write([to_json(document)])
        return 0 if any(f["collector"] for f in files) else 3
    write(tour(args.path, document, coverage(roster), every_file=args.all))
    for name, table in document["tables"].items():
        header = [c for c in TABLES[name].schema.names() if c not in ("evidence_id", "job_id", "attempt")]
        cells = [[str(row.get(column) if row.get(column) is not None else "-")[:60] for column in header] for row in table]
        write(["", f"{name}: one row per {TABLES[name].grain}", *columns(header, cells)])
    return 0 if any(f["collector"] for f in files) else 3
