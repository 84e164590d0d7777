"""Show what was read from each file, and the rows of any table.

Every file with its collector, rows, ranks, and what could not be read and why, or of which file it is a copy; --json adds the span of time.
"""

from __future__ import annotations

import argparse

from apps.site import option

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca inspect PATH [--table T ...] [--json] [--case FILE] [--site FOLDER]`."""
    parser.add_argument("path", metavar="PATH", help="folder, file or .tar.gz with the evidence")
    parser.add_argument("--table", action="append", default=[], metavar="T", help="also print the rows of this table (may be repeated)")
    parser.add_argument("--json", action="store_true", help="one JSON document (rca.inspect/1) on stdout")
    parser.add_argument("--case", metavar="FILE", help="where the case file goes")
    option(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, or 3 when no file was recognised."""
    from apps.document import inspect_document, to_json
    from apps.session import open_session
    from apps.text import columns, write
    from rca.errors import UsageError
    from rca.tables import TABLES

    unknown = [name for name in args.table if name not in TABLES]
    if unknown:
        raise UsageError(f"no table is called {', '.join(unknown)}: `rca tables` lists them")
    with open_session(args.path, args.case, args.site) as session:
        case = session.case()
        try:
            document = inspect_document(case, session.inventory, args.table)
        finally:
            case.close()
    files = document["files"]
    if args.json:
        write([to_json(document)])
        return 0 if any(f["collector"] for f in files) else 3
    rows = []
    for f in files:
        what = ", ".join(f"{n} {table}" for table, n in sorted(f["rows"].items())) or "-"
        why = "; ".join(s["why"] for s in f["skipped"]) + (f" (looks like {f['guess']})" if f["guess"] else "")
        why = "; ".join(filter(None, (f"copy of {f['copy_of']}" if f["copy_of"] else "", why)))
        ranks = ",".join(map(str, f["ranks"][:6])) + ("..." if len(f["ranks"]) > 6 else "") or "-"
        rows.append((f["path"], f["collector"] or "-", ranks, what, why))
    write(columns(("file", "collector", "ranks", "rows", "not read"), rows))
    for name, table in document["tables"].items():
        header = [c for c in TABLES[name].schema.names() if c not in ("evidence_id", "job_id", "attempt")]
        cells = [[str(row.get(column) if row.get(column) is not None else "-")[:60] for column in header] for row in table]
        write(["", f"{name}: one row per {TABLES[name].grain}", *columns(header, cells)])
    return 0 if any(f["collector"] for f in files) else 3
