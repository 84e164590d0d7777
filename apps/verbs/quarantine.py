"""Keep the list of samples that a data loader must leave out, with its audit trail: what is proposed, accepted, released, and every time it failed.

Without options the list is shown: what the verdict proposes, which samples were in batches that went wrong, what people decided. Nothing is put on
the list unless you say so (--add). `--ids` prints the ids that are on it, one a line, for a data loader to read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apps.incidents.listbook import Listbook
    from rca.quarantine import Entry

__all__ = ["arguments", "run"]

MAX_SHOWN = 40  # samples in the text
MAX_ID = 1000  # characters of one


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca quarantine PATH [--add ID ... | --release ID ...] [--because TEXT] [--by NAME] [--ids | --json]`."""
    parser.add_argument("path", metavar="PATH", help="folder, file or archive with the evidence")
    change = parser.add_mutually_exclusive_group()
    change.add_argument("--add", nargs="+", action="extend", metavar="ID", help="put samples on the list")
    change.add_argument("--release", nargs="+", action="extend", metavar="ID", help="take samples off it again; they stay in its history")
    parser.add_argument("--because", metavar="TEXT", help="why: a person reads it later (with --add and --release)")
    parser.add_argument(
        "--shard", metavar="NAME", help="file or shard that the samples are in, where the evidence does not tell (with --add)"
    )
    parser.add_argument("--by", metavar="NAME", help="who says so; stays unknown if not given")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--ids", action="store_true", help="only the ids on the list, one a line; reads no other evidence")
    form.add_argument("--json", action="store_true", help="one JSON document (rca.quarantine_list/1) on stdout")
    parser.add_argument("--case", metavar="FILE", help="where the case file goes (default: beside the evidence, else the cache folder)")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, also with an empty list; 2 when nothing is there, a reason is missing, or a sample to release is not on the list."""
    from apps.incidents.listbook import listbook
    from apps.plain import complain
    from apps.text import write
    from rca.errors import UsageError
    from rca.quarantine import accepted, entries

    changes: Sequence[str] = args.add or args.release or ()
    if bool(changes) != bool(args.because and args.because.strip()):
        raise UsageError(
            "--because TEXT is missing: why these samples?" if changes else "--because says why samples are added or released: name them"
        )
    wrong = next((one for one in changes if not one.strip() or len(one) > MAX_ID or not one.isprintable()), None)
    if wrong is not None:  # an empty one too
        raise UsageError(f"{wrong[:40]!r} is no sample id: printable characters, {MAX_ID} at most")
    book = listbook(Path(args.path))
    for problem in book.skipped:
        complain(f"not read: {problem}")
    if args.ids and not changes:
        write(accepted(entries(book.rows)))
        return 0
    listed = _listed(args, book)
    if changes:
        _decide(args, book, listed)
        book = listbook(Path(args.path))
        listed = _listed(args, book) if args.json else entries(book.rows)
    if args.ids:
        write(accepted(listed))
    elif args.json:
        write([_document(listed)])
    else:
        write(_lines(listed, book, args, has_changed=bool(changes)))
    return 0


def _listed(args: argparse.Namespace, book: Listbook) -> list[Entry]:
    """The list with what the evidence shows now."""
    from apps.session import open_session
    from rca.analyses._failures import failures
    from rca.quarantine import entries

    with open_session(args.path, args.case) as session:
        case = session.case()
        try:
            judgement = session.judgement(case)
            failed = [(one.samples, one.shard, one.row()) for one in case.derive(failures) if one.origin != "told"]
            for _, _, row in failed:  # a line of a log seldom tells the step
                if row["step"] is None and judgement.verdict.ranks == (row["rank"],):
                    row["step"] = judgement.verdict.step
        finally:
            case.close()
    findings = [finding for outcome in judgement.outcomes for finding in outcome.findings]
    return entries(book.rows, failed=failed, verdict=judgement.verdict, findings=findings)


def _decide(args: argparse.Namespace, book: Listbook, listed: Sequence[Entry]) -> None:
    from apps.incidents.moments import now
    from rca.errors import UsageError
    from rca.incidents.records import iso
    from rca.quarantine import decision

    known = {entry.sample_id: entry for entry in listed}
    if args.release and (absent := [one for one in args.release if one not in known or known[one].state != "accepted"]):
        raise UsageError(f"{absent[0]!r} is not on the list: `rca quarantine {args.path}` shows what is")
    what, at = "add" if args.add else "release", iso(now())
    records: list[dict[str, Any]] = []
    for sample in dict.fromkeys(args.add or args.release):
        entry = known.get(sample)
        shard = args.shard or (entry.data_shard if entry else None)
        failed = entry.failures if entry and args.add else []
        records.append(decision(sample, at=at, what=what, because=args.because.strip(), by=args.by, shard=shard, failures=failed))
    book.append(records)


def _document(listed: Sequence[Entry]) -> str:
    from apps.document import to_json
    from rca.quarantine import accepted

    return to_json({"schema_version": "rca.quarantine_list/1", "ids": accepted(listed), "samples": [entry.as_row() for entry in listed]})


def _lines(listed: Sequence[Entry], book: Listbook, args: argparse.Namespace, *, has_changed: bool) -> list[str]:
    from apps.text import columns

    if not listed:
        return ["No sample is on the list, and no failure in this evidence names one."]
    rows = [
        (entry.sample_id, entry.data_shard or "-", entry.state, _times(entry), _last(entry))
        for entry in listed[:MAX_SHOWN]
    ]  # fmt: skip
    lines = [*columns(("sample", "shard", "state", "failed", "decided"), rows)]
    if (more := len(listed) - MAX_SHOWN) > 0:
        lines.append(f"  and {more} more (--json shows all)")
    states = {entry.state for entry in listed}
    if has_changed:
        lines += ["", f"Written to {book.file}. `rca quarantine {args.path} --ids` prints the list for a data loader."]
    elif "proposed" in states:
        ids = " ".join(entry.sample_id for entry in listed if entry.state == "proposed")
        lines += ["", f"Proposed, not yet on the list: rca quarantine {args.path} --add {ids[:200]} --because '...'"]
    if "suspected" in states and not has_changed:
        share = next((entry.probability for entry in listed if entry.state == "suspected"), None)
        odds = f" (a bad sample: {share:.0%})" if share is not None else ""
        lines += [
            "",
            f"Suspected: in a batch that went wrong; sample, program and chip are not told apart{odds}. Run the same step again on another GPU.",
        ]
    return lines


def _times(entry: Entry) -> str:
    """How often it failed, and where the first two times."""
    if not entry.failures:
        return "not in this evidence"
    shown = []
    for one in entry.failures[:2]:
        rank = f"rank {one['rank']}" if one["rank"] is not None else ""
        where = " ".join(filter(None, [rank, f"on {one['host']}" if one["host"] else ""]))
        step = f"step {one['step']}" if one["step"] is not None else ""
        attempt = f"attempt {one['attempt']}" if one["attempt"] is not None else ""
        place = f"({one['path']} {one['record'] or ''})".replace(" )", ")") if one["path"] else ""
        shown.append(" ".join(filter(None, [", ".join(filter(None, [where, step, attempt])), place])))
    more = f" and {len(entry.failures) - 2} more" if len(entry.failures) > 2 else ""
    return f"{len(entry.failures)}x: {'; '.join(shown)}{more}"


def _last(entry: Entry) -> str:
    if not entry.decisions:
        return "-"
    last = entry.decisions[-1]
    return f"{last['at']}{' by ' + last['by'] if last['by'] else ''}: {last['because'] or ''}"[:100]
