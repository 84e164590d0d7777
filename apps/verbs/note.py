"""Write down, with the time, what you see or do on an open incident.

TEXT is taken as it is; `-` reads it from stdin. Notes are only ever appended.
"""

from __future__ import annotations

import argparse

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca note PATH TEXT [--id INC] [--by NAME]`."""
    from apps.incidents.life import common

    common(parser)
    parser.add_argument("text", nargs="+", metavar="TEXT", help="in words; - reads stdin")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, or 2 when there is no incident or the note cannot be written."""
    from pathlib import Path

    from apps.incidents import life, moments
    from apps.incidents.notebook import notebook
    from apps.text import write
    from rca.incidents.records import note

    book = notebook(Path(args.path))
    incident_id, _ = life.chosen(book, args.path, args.id)
    text = life.text_of(args.text)
    life.tell_place(book, args.path)
    file, notes = life.written_down(book, args.path, note(incident_id, moments.now(), "note", text, by=args.by))
    write([f"{incident_id}: noted ({len(notes)} notes in {file})"])
    return 0
