"""Say which rank failed first, why, and what to do, from whatever evidence lies in a folder or archive.

PATH holds recorder dumps, stack dumps, step timings, logs, rank maps in any layout. The first line printed is the answer. With many large dumps it is
printed as soon as their headers and the deciding ranks are read; the rest is then read behind it and the answer confirmed.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from apps.site import EVIDENCE, memory_option, option

if TYPE_CHECKING:
    from rca.judge import Judgement

__all__ = ["arguments", "exit_code", "run"]

_PATH: Final = re.compile(r"\bPATH\b")


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca diagnose PATH [--json] [--fast] [--why] [--case FILE] [--memory SIZE] [--site FOLDER]`."""
    parser.add_argument("path", metavar="PATH", help=EVIDENCE)
    parser.add_argument("--json", action="store_true", help="one JSON document (rca.diagnosis/1) on stdout")
    parser.add_argument("--fast", action="store_true", help="stop at the early answer; build no case when there is one")
    parser.add_argument(
        "--why", action="store_true", help="also what the decision rests on: steps, restarts, losses, the way back, a checklist"
    )
    parser.add_argument("--case", metavar="FILE", help="where the case file goes (default: beside the evidence, else the cache folder)")
    memory_option(parser)
    option(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 a verdict, 1 unknown, 3 nothing readable, 4 an analysis failed."""
    from apps.document import collectors_of, diagnosis_document, skipped, to_json
    from apps.session import open_session
    from apps.text import blind_lines, decision_lines, diagnosis_lines, write

    with open_session(args.path, args.case, args.site, args.memory) as session:
        early = session.triage() if args.fast or not args.json else None
        if early is not None and args.fast:
            timing = {"build_s": 0.0, "diagnose_s": session.diagnose_s}
            write(
                [to_json(diagnosis_document(early, [], timing))]
                if args.json
                else _pasted(diagnosis_lines(early, [], is_why_told=args.why), args.path)
            )
            return exit_code(early)
        if early is not None:
            write([*_pasted(diagnosis_lines(early, []), args.path), ""])
            sys.stderr.write("rca: that is the early answer, from the headers and the deciding ranks; reading the rest to confirm it\n")
        case = session.case()
        try:
            judgement = session.judgement(case)
            skips = skipped(case, session.inventory)
            kinds = collectors_of(case)
            timing = {"build_s": session.build_s, "diagnose_s": session.diagnose_s}
        finally:
            case.close()
        if args.json:
            write([to_json(diagnosis_document(judgement, skips, timing))])
        elif exit_code(judgement) == 3:
            count = len(session.inventory.sources) + len(session.inventory.unreadable)
            write(blind_lines(args.path, count, kinds, [(one.path, one.why) for one in session.inventory.unreadable]))
        elif early is None or _answer(early) != _answer(judgement):
            told = _pasted(diagnosis_lines(judgement, skips, is_why_told=args.why), args.path)
            write([*(["Corrected by the full read:"] if early else []), *told])
        else:
            write(["Confirmed by the full read.", *(_pasted(decision_lines(judgement.advice), args.path) if args.why else [])])
        return exit_code(judgement)


def _pasted(lines: Sequence[str], path: str) -> list[str]:
    """Commands of rca with the place that was asked about in them, so that they can be pasted; JSON keeps `PATH`."""
    place = shlex.quote(path)
    return [_PATH.sub(lambda _: place, line) if line.startswith("  $ rca ") else line for line in lines]


def _answer(judgement: Judgement) -> tuple[object, ...]:
    return judgement.verdict.ranks, judgement.verdict.cause


def exit_code(judgement: Judgement) -> int:
    """0 a verdict (healthy included), 1 an honest unknown, 3 no readable evidence, 4 an analysis failed."""
    if any(o.status == "failed" for o in judgement.outcomes):
        return 4
    if judgement.is_blind:
        return 3
    return 0 if judgement.verdict.cause != "unknown" or judgement.verdict.ranks else 1
