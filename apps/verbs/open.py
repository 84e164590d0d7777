"""Open an incident: diagnose the evidence, note what it said and when, show the stages so far against their budgets.

The note lies in PATH/notes (or, where PATH must stay as it is, in the user's data folder). Add to it with `rca note`, `rca stage` and
`rca overrule`; `rca close` makes the record.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apps.incidents.notebook import Notebook

__all__ = ["arguments", "run"]

LATE = timedelta(hours=1)  # evidence is collected within minutes while somebody deals with it


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca open PATH [--id INC] [--again] [--detected-at T] [--job NAME] [--attempt N] [--gpus N] [--tokens-per-step N] [--by NAME] [--json]`."""
    from apps.incidents.life import common
    from apps.incidents.moments import FORMS, takes_times_ago

    common(parser)
    takes_times_ago(parser)
    parser.add_argument("--again", action="store_true", help="open one more incident on evidence that has one")
    parser.add_argument("--detected-at", metavar="T", help=f"when somebody noticed: {FORMS}")
    parser.add_argument("--job", metavar="NAME", help="the job as your scheduler knows it")
    parser.add_argument("--attempt", type=int, metavar="N", help="which launch of the job")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of the job, where the evidence has no map of all ranks")
    parser.add_argument("--tokens-per-step", type=int, metavar="N", help="tokens of one step of the whole job")
    parser.add_argument("--json", action="store_true", help="one JSON document (rca.incident/1, revision 0) on stdout")
    parser.add_argument("--case", metavar="FILE", help="where the case file goes")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, 2 when it is open already or cannot be opened, 3 when nothing in the evidence can be read."""
    from pathlib import Path

    from apps.document import to_json
    from apps.incidents import life, moments
    from apps.incidents.notebook import notebook
    from apps.incidents.text import next_lines, record_lines, span
    from apps.plain import complain
    from apps.text import write
    from rca.incidents.incident import fold
    from rca.incidents.records import default_id, instant, iso, note

    asked_at = moments.now()
    book = notebook(Path(args.path))
    _refuse_second(book, args)
    given = _given(args)
    by_hand = moments.moment(args.detected_at, asked_at, "--detected-at") if args.detected_at else None
    seen = life.look(args.path, args.case, given)
    if seen.is_blind:
        complain(f"no readable evidence in {args.path}: nothing tells what a rank did, so no incident was opened (`rca inspect` says why)")
        return 3
    opened_at = moments.now()
    opening = life.opening(seen, asked_at, opened_at, by_hand)
    began = instant(seen.diagnosis["at"] or opening["began_at"]) or opened_at
    name = args.id or default_id(seen.facts["job_id"], began, seen.course.fingerprint)
    incident_id = name if args.id else _free(name, book, is_again=args.again)
    if by_hand is not None and by_hand < began:
        complain(f"--detected-at lies before the fault, which began {iso(began)}: the stage `detect` is left out")
    life.tell_place(book, args.path)
    opened = note(incident_id, opened_at, "open", seen.headline, {**opening, "given": {**given, "detected_at": iso(by_hand)}}, by=args.by)
    file = book.append(opened)
    record = fold([opened])
    if args.json:
        write([to_json(record)])
        return 0
    write([f"{incident_id} is open; notes: {file}", seen.headline, "", *record_lines(record), "", *next_lines(args.path)])
    if by_hand is None and seen.course.last_at is not None and asked_at - seen.course.last_at > LATE:
        complain(
            f"opened {span((asked_at - seen.course.last_at).total_seconds())} after the last sign of life in the evidence: if that is not when it "
            "was dealt with, give --detected-at, and `rca stage PATH localize --end T`"
        )
    if seen.verdict.cause == "unknown":
        complain("the cause is open: more evidence into the folder, or `rca overrule` when somebody knows")
    return 0


def _refuse_second(book: Notebook, args: argparse.Namespace) -> None:
    """A second incident on the same evidence is opened only on purpose."""
    from apps.incidents.life import check_name
    from rca.errors import UsageError

    if args.id is not None:
        check_name(args.id, "--id")
    opened = {i: notes for i, notes in book.notes.items() if any(note["kind"] == "open" for note in notes)}
    same = args.id if args.id in opened else None
    if same is None and (args.id or args.again or not opened):
        return
    incident = same or max(opened)
    since = next(note["at"] for note in opened[incident] if note["kind"] == "open")
    closed = [note["at"] for note in opened[incident] if note["kind"] == "close"]
    state = f"was opened {since} and closed {closed[-1]}" if closed else f"is open since {since}"
    raise UsageError(
        f"{incident} {state} on {args.path}, and was left as it is. Add to it: rca note {shlex.quote(args.path)} TEXT. "
        "For one more on the same evidence: --again, or --id with another name."
    )


def _free(name: str, book: Notebook, *, is_again: bool) -> str:
    """The name, or with --again the name with a number that no incident here has."""
    number = 2
    found = name
    while is_again and found in book.notes:
        found, number = f"{name}-{number}", number + 1
    return found


def _given(args: argparse.Namespace) -> Mapping[str, Any]:
    from apps.incidents.life import given_facts

    return given_facts(job_id=args.job, attempt=args.attempt, num_gpus=args.gpus, tokens_per_step=args.tokens_per_step)
