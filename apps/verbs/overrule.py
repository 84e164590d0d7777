"""Put your judgement in place of the tool's: the cause, whose it is, the action, the ranks or hosts, with the reason.

What the tool said stays in the record beside it, and so does the reason. A cause brings its layer, attribution and action unless you state
these too. A later overrule replaces an earlier one, field by field.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca overrule PATH [--cause C] [--attribution A] [--layer L] [--action A] [--ranks R ...] [--hosts H ...] --because TEXT`."""
    from apps.incidents.life import common

    common(parser)
    parser.add_argument("--cause", metavar="CAUSE", help="one of docs/causes.md")
    parser.add_argument("--attribution", metavar="WHOSE", help="platform, workload, planned, none, unknown")
    parser.add_argument("--layer", metavar="LAYER", help="layer of the cause")
    parser.add_argument("--action", metavar="ACTION", help="what has to be done first")
    parser.add_argument("--ranks", nargs="*", metavar="R", help="ranks that failed first; none at all: nobody did")
    parser.add_argument("--hosts", nargs="*", metavar="H", help="hosts that failed first")
    parser.add_argument("--because", required=True, metavar="TEXT", help="why: a person reads it later")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, or 2 when there is no incident, nothing is stated, or a word is not of the vocabulary."""
    from pathlib import Path

    from apps.incidents import life, moments
    from apps.incidents.notebook import notebook
    from apps.incidents.text import record_lines
    from apps.text import write
    from rca.causes import ACTIONS, ATTRIBUTIONS, CAUSES, LAYERS
    from rca.errors import UsageError
    from rca.incidents.incident import fold
    from rca.incidents.records import note

    stated: dict[str, Any] = {}
    for name, known in (("cause", CAUSES), ("attribution", ATTRIBUTIONS), ("layer", LAYERS), ("action", ACTIONS)):
        value = getattr(args, name)
        if value is not None and value not in known:
            raise UsageError(f"no {name} is called {value[:60]!r}: choose one of {', '.join(sorted(known))}")
        stated |= {name: value} if value is not None else {}
    stated |= {"ranks": _ranks(args.ranks)} if args.ranks is not None else {}
    stated |= {"hosts": life.hosts_named(args.hosts)} if args.hosts is not None else {}
    if not stated:
        raise UsageError("nothing is stated: give --cause, --attribution, --layer, --action, --ranks or --hosts")
    because = life.text_of([args.because])
    book = notebook(Path(args.path))
    incident_id, _ = life.chosen(book, args.path, args.id)
    life.tell_place(book, args.path)
    written = note(incident_id, moments.now(), "overrule", because, stated, by=args.by)
    record = fold(life.written_down(book, args.path, written)[1])
    write([f"{incident_id}: {record['summary']}", "", *record_lines(record)])
    life.tell_closed(record, args.path)
    return 0


def _ranks(words: Sequence[str]) -> list[int]:
    """Ranks as typed: numbers, ranges (4-7), also with commas between."""
    from rca.errors import UsageError

    found: set[int] = set()
    for part in (part.strip() for word in words for part in word.split(",") if part.strip()):
        first, _, last = part.partition("-")
        if not all(number.isascii() and number.isdigit() and len(number) < 7 for number in (first, last or first)):
            raise UsageError(f"--ranks {part[:40]!r} is no rank: give numbers or ranges, such as 3 or 4-7")
        found |= set(range(int(first), int(last or first) + 1))
    return sorted(found)
