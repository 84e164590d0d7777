"""Show what papers print about failures beside what their own counts give, and why they differ.

Llama 3, ByteRobust, Meta's research clusters, FT-HSDP, Delta: shares, sums, hours between failures, spare machines, expected training time.
Ours is computed from the tables in rca/catalogue/published when you ask, by the formulas that `rca report` uses on your own records.
"""

from __future__ import annotations

import argparse

__all__ = ["arguments", "run"]

MARKS = {True: "yes", False: "NO", None: "-"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca published [--json]`."""
    parser.add_argument("--json", action="store_true", help="one JSON document (rca.published/1) on stdout")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0."""
    from apps.document import to_json
    from apps.text import columns, write
    from rca.reliability.published import compared

    rows = compared()
    if args.json:
        write([to_json({"schema_version": "rca.published/1", "figures": [row.as_row() for row in rows]})])
        return 0
    shown = [
        (row.figure, "-" if row.published is None else f"{row.published:,g}", _number(row.ours), row.unit, MARKS[row.agrees], row.why)
        for row in rows
    ]
    sources = sorted({row.source for row in rows})
    agree, differ = sum(row.agrees is True for row in rows), sum(row.agrees is False for row in rows)
    write(columns(("figure", "printed", "ours", "unit", "agrees", "why"), shown))
    write(
        [
            "",
            f"{agree} agree, {differ} do not, {len(rows) - agree - differ} are not printed. Sources:",
            *(f"  {source}" for source in sources),
        ]
    )
    return 0


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value == int(value) else f"{value:,.3g}" if abs(value) < 1 else f"{value:,.2f}"
