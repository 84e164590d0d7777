"""Read the evidence into a case file (DuckDB) for notebooks, SQL and the other verbs.

The case is a build product: it can be deleted and built again at any time. `rca diagnose` builds it by itself.
"""

from __future__ import annotations

import argparse

from apps.site import EVIDENCE, memory_option, option

__all__ = ["arguments", "run"]

NOT_ROWS = ("evidence", "readings", "outcomes", "findings", "cites", "hypotheses")  # what is always there, or was concluded


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca build PATH [--case FILE] [--memory SIZE] [--site FOLDER]`."""
    parser.add_argument("path", metavar="PATH", help=EVIDENCE)
    parser.add_argument("--case", metavar="FILE", help="where the case file goes (default: beside the evidence, else the cache folder)")
    memory_option(parser)
    option(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, 2 when the case cannot be written, 3 when no file was recognised."""
    import polars as pl

    from apps.session import open_session
    from apps.text import write
    from rca.tables import TABLES

    with open_session(args.path, args.case, args.site, args.memory) as session:
        case = session.case(is_kept=True)
        try:
            counts = {name: case.table(name).select(pl.len()).collect().item() for name in TABLES}
        finally:
            case.close()
        state = f"built in {session.build_s:.1f} s" if session.was_built else "already up to date"
        shown = ", ".join(f"{n:,} {name}" for name, n in counts.items() if n and name not in NOT_ROWS)
        write([f"{session.target}: {state}", f"  {counts['evidence']} files; {shown or 'no rows'}"])
    return 0 if shown else 3
