"""Write a case out for other tools or other people: every table as Parquet, CSV or JSONL, a case file, a timeline for Perfetto; anonymised if asked.

An export as Parquet and a case file are evidence again: `rca diagnose` reads them. With --anonymise, hosts, users, addresses, serial numbers and jobs
have neutral names, the same everywhere; --key writes down which is which.

In CSV, text that a spreadsheet would run as a formula (it begins with =, +, -, @ or a tab) has an apostrophe before it, and what cannot be printed
is spelled out (a line break as \\n). Numbers stay as they are; the other formats keep text letter by letter.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from apps.site import EVIDENCE, option

if TYPE_CHECKING:
    from rca.anonymise import Renaming
    from rca.case import Case

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca export PATH [--to OUT] [--format F] [--table T ...] [--anonymise [--key FILE]] [--timeline FILE] [--force]`."""
    parser.add_argument("path", metavar="PATH", help=EVIDENCE)
    parser.add_argument("--to", type=Path, metavar="OUT", help="folder to write (with --format case: the file)")
    parser.add_argument("--format", choices=("parquet", "csv", "jsonl", "case"), default="parquet", help="default: parquet")
    parser.add_argument("--table", action="append", default=[], metavar="T", help="only this table (may be repeated)")
    parser.add_argument("--anonymise", action="store_true", help="neutral names for hosts, users, addresses, serial numbers, jobs")
    parser.add_argument("--key", type=Path, metavar="FILE", help="with --anonymise: write which name is which there, for yourself")
    parser.add_argument("--timeline", type=Path, metavar="FILE.json", help="also (or only) write a timeline that ui.perfetto.dev opens")
    parser.add_argument("--force", action="store_true", help="write over an earlier export")
    parser.add_argument("--case", metavar="FILE", help="where the case file goes (default: beside the evidence, else the cache folder)")
    option(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, 2 when something cannot be written, 3 when no file was recognised."""
    from apps.exports import write_key
    from apps.plain import complain
    from apps.session import open_session

    _check(args)
    with open_session(args.path, args.case, args.site) as session:
        case = session.case()
        try:
            if not case.table("readings").select("collector").drop_nulls().collect().height:
                complain(f"no readable evidence in {args.path}: there is nothing to export (`rca inspect` says why)")
                return 3
            if not args.anonymise:
                return _write(case, args)
            renaming, renamed = _anonymised(case, session.spool / "anonymised.duckdb")
            try:
                code = _write(renamed, args)
            finally:
                renamed.close()
            if args.key:
                write_key(args.key, renaming.key(), is_forced=args.force)
            return code
        finally:
            case.close()


def _check(args: argparse.Namespace) -> None:
    from apps.exports import refuse_to_lose
    from rca.errors import UsageError
    from rca.tables import TABLES

    if unknown := [name for name in args.table if name not in TABLES]:
        raise UsageError(f"no table is called {', '.join(unknown)}: `rca tables` lists them")
    if not args.to and not args.timeline:
        raise UsageError("name where to write: --to OUT for the tables, --timeline FILE.json for a timeline, or both")
    if args.table and args.format == "case":
        raise UsageError("a case file has all tables: leave --table out, or choose another --format")
    if args.key and not args.anonymise:
        raise UsageError("--key says which neutral name is which: it needs --anonymise")
    if args.key and args.to and args.key.resolve().is_relative_to(args.to.resolve()):
        raise UsageError(f"--key {args.key}: lies in the export and would be given away with it; name another place")
    for file, what in ((args.timeline, "timeline"), (args.key, "key"), (args.to if args.format == "case" else None, "case")):
        if file:
            refuse_to_lose(file, what, is_forced=args.force)


def _anonymised(case: Case, target: Path) -> tuple[Renaming, Case]:
    """The case under neutral names, as a file that ends with the session, judged anew."""
    from apps.exports import ANONYMISED
    from rca.anonymise import Renaming, gather
    from rca.building import copy
    from rca.case import Case
    from rca.judge import judge

    renaming = Renaming(*gather(case.chunks))
    rows = case.chunks
    copy(
        lambda name: (renaming.frame(name, frame) for frame in rows(name)), target, {"fingerprint": ANONYMISED}, lambda t: judge(t).frames()
    )
    return renaming, Case.open(target)


def _write(case: Case, args: argparse.Namespace) -> int:
    from apps.exports import new_folder, write_case, write_tables
    from apps.plain import safe_json
    from apps.text import write
    from rca.files import put
    from rca.judge import judge
    from rca.tables import TABLES
    from rca.timeline import timeline

    said = []
    if args.to and args.format == "case":
        write_case(case, args.to, is_anonymised=args.anonymise)
        said.append(f"{args.to}: a case file; `rca diagnose {args.to}` reads it")
    elif args.to:
        with new_folder(args.to, is_forced=args.force) as folder:
            counts = write_tables(case, folder, args.format, args.table or TABLES, is_anonymised=args.anonymise)
        said.append(f"{args.to}: {sum(counts.values()):,} rows of {sum(map(bool, counts.values()))} tables as {args.format}")
    if args.timeline:
        import json

        document = timeline(case, judge(case).verdict)
        put(args.timeline, safe_json(json.dumps(document, ensure_ascii=False)) + "\n", else_="Name another --timeline")
        left = document["otherData"]["left_out"]
        missing = "; ".join(f"{name}: {', '.join(f'{n:,} {why}' for why, n in counts.items() if n)}" for name, counts in left.items())
        said.append(
            f"{args.timeline}: {len(document['traceEvents']):,} events for ui.perfetto.dev{f'; left out: {missing}' if missing else ''}"
        )
    write(said)
    return 0
