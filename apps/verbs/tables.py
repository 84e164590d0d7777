"""List the tables of a case: what one row is, and every column with its type and meaning."""

from __future__ import annotations

import argparse

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca tables [TABLE ...] [--json]`."""
    parser.add_argument("table", metavar="TABLE", nargs="*", help="only these tables, with their columns")
    parser.add_argument("--json", action="store_true", help="one JSON document (rca.tables/1) on stdout")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0."""
    from apps.document import to_json
    from apps.text import columns, write
    from rca.errors import UsageError
    from rca.tables import TABLES

    unknown = [name for name in args.table if name not in TABLES]
    if unknown:
        raise UsageError(f"no table is called {', '.join(unknown)}: choose of {', '.join(TABLES)}")
    chosen = [TABLES[name] for name in args.table] or list(TABLES.values())
    if args.json:
        shown = {
            t.name: {"one_row_per": t.grain, "columns": [{"name": c.name, "type": str(c.dtype), "means": c.doc} for c in t.columns]}
            for t in chosen
        }
        write([to_json({"schema_version": "rca.tables/1", "tables": shown})])
    elif args.table:
        for t in chosen:
            rows = [(c.name, "instant" if str(c.dtype).startswith("Datetime") else str(c.dtype), c.doc) for c in t.columns]
            write([f"{t.name}: one row per {t.grain}", *columns(("column", "type", "means"), rows), ""])
    else:
        write(columns(("table", "one row per"), [(t.name, t.grain) for t in chosen]))
    return 0
