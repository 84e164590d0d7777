"""Make up the records of a fleet at published failure rates, to try `rca report` and the explorer before there are own incidents.

`rca fleet generate --out DIR` writes rca.incident/1 and rca.attempt/1 records as `rca close` would: interruptions at the rates and shares of a paper,
stage times around those of ByteRobust, a few hosts that fail again and again. The same seed gives the same records.
"""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca fleet generate --out DIR`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    make = actions.add_parser("generate", help="write made-up records of some weeks")
    make.add_argument("--out", type=Path, required=True, metavar="DIR", help="a folder without records")
    make.add_argument("--rates", default="llama3", metavar="NAME", help="whose shares: llama3 or byterobust (default llama3)")
    make.add_argument("--weeks", type=int, default=8, metavar="N", help="how many (default 8)")
    make.add_argument("--hosts", type=int, default=256, metavar="N", help="hosts of 8 GPUs (default 256)")
    make.add_argument("--seed", type=int, default=0, metavar="S", help="another seed, another fleet (default 0)")
    make.add_argument("--end-week", default="2026-W47", metavar="WEEK", help="the last week (default 2026-W47)")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, or 2 where the fleet cannot be made up or written."""
    from apps.text import write
    from rca.drills._synthetic_fleet import Fleet
    from rca.drills._synthetic_fleet import write as write_fleet
    from rca.reliability.window import week

    fleet = Fleet(week(args.end_week).end, rates=args.rates, days=7 * args.weeks, hosts=args.hosts, seed=args.seed)
    counts = write_fleet(fleet, args.out)
    write([f"{args.out}: {counts['incidents']} incidents, {counts['attempts']} launches (made up); next: rca report --fleet {args.out}"])
    return 0
