"""The command `rca`: verbs are the modules of apps/verbs, each parses its arguments, calls the library and renders."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from apps.plain import complain
from apps.supervise import supervised
from rca import __version__, plugins
from rca.errors import RcaError

__all__ = ["main"]

EXIT_TEXT = (
    "exit codes of diagnose: 0 a verdict (healthy included), 1 an honest unknown, 2 usage, 3 no readable evidence, 4 an analysis failed"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - lives as long as the process
    parser = argparse.ArgumentParser(
        prog="rca", description="Which rank of a training job failed first, why, and what to do next.", epilog=EXIT_TEXT
    )
    parser.add_argument("--version", action="version", version=f"firstfault {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for name in plugins.names("apps.verbs"):
        verb = plugins.load("apps.verbs", name)
        first = (verb.__doc__ or "").strip().splitlines()[0]
        one = verbs.add_parser(name, help=first, description=verb.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        verb.arguments(one)
        one.set_defaults(run=verb.run, is_supervised=getattr(verb, "IS_SUPERVISED", True))
    args = parser.parse_args(argv)
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # thousands of small frames, one file at a time: more threads bring nothing
    return supervised(lambda: _call(args)) if args.is_supervised else _call(args)


def _call(args: argparse.Namespace) -> int:
    """Run a verb; what a person can act on becomes a sentence and an exit code."""
    try:
        return int(args.run(args))
    except RcaError as error:
        complain(str(error))
        return 2
    except BrokenPipeError:  # the reader has seen enough (head, less)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        complain(f"{error.filename or 'output'}: {error.strerror or error}")
        return 2
    except KeyboardInterrupt:
        complain("stopped; nothing half-written was left behind")
        return 130


if __name__ == "__main__":
    sys.exit(main())
