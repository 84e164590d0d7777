"""Ask one question of the evidence and show its findings with their figures.

`rca analyse --list` names the questions; each is a module of rca/analyses whose text says how it is answered.
"""

from __future__ import annotations

import argparse

from apps.site import EVIDENCE, option

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca analyse QUESTION PATH [--json] [--case FILE] [--site FOLDER]`."""
    parser.add_argument("question", metavar="QUESTION", nargs="?", help="a name from --list")
    parser.add_argument("path", metavar="PATH", nargs="?", help=EVIDENCE)
    parser.add_argument("--list", action="store_true", help="name the questions")
    parser.add_argument("--json", action="store_true", help="one JSON document (rca.analysis/1) on stdout")
    parser.add_argument("--case", metavar="FILE", help="where the case file goes")
    option(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 found or clear, 1 blind, 4 failed."""
    from apps.document import analysis_document, to_json
    from apps.session import open_session
    from apps.text import columns, outcome_lines, write
    from rca import plugins
    from rca.errors import UsageError
    from rca.judge import with_hosts
    from rca.questions import ask, questions
    from rca.roster import roster

    if args.list:
        docs = [(name, (plugins.load("rca.analyses", name).__doc__ or "").strip().splitlines()[0]) for name in questions()]
        write(columns(("question", "asks"), docs))
        return 0
    if not args.question:
        raise UsageError(f"name a question and a path: rca analyse QUESTION PATH. Questions: {', '.join(questions())}")
    if args.question not in questions():
        raise UsageError(f"no question is called {args.question!r}: choose one of {', '.join(questions())}")
    if not args.path:
        raise UsageError("name the folder, file or archive to ask about: rca analyse QUESTION PATH")
    with open_session(args.path, args.case, args.site) as session:
        case = session.case()
        try:
            outcome = with_hosts(ask(case, args.question), roster(case))
        finally:
            case.close()
    write([to_json(analysis_document(outcome))] if args.json else outcome_lines(outcome))
    return {"found": 0, "clear": 0, "blind": 1, "failed": 4}[outcome.status]
