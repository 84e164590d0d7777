"""Collect from this host, during a hang, what `rca diagnose` needs: stacks, recorder dumps, logs, kernel log, facts. Changes nothing in the job."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.plain import complain, one_line

if TYPE_CHECKING:
    from collectors._capture.find import Asked

__all__ = ["IS_SUPERVISED", "arguments", "run"]

IS_SUPERVISED = False  # it reads no evidence, and takes signals itself


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca capture --out DIR`."""
    flag = argparse.BooleanOptionalAction
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where DIR/HOST is made; several hosts may share DIR")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="stack dumps of every process (default 3)")
    parser.add_argument("--gap", type=float, default=5.0, metavar="S", help="seconds between two rounds (default 5)")
    parser.add_argument(
        "--pid", action="append", default=[], metavar="PID[=RANK]",
        help="only this process and what is below it; with RANK, what its rank is. May be repeated",
    )  # fmt: skip
    parser.add_argument("--job", metavar="NAME", help="only the job of this run id, Slurm job id or name, or master port")
    parser.add_argument(
        "--logs",
        action=flag,
        default=True,
        help="the last 16 MB of each log that trainers and launchers write, and of other text that trainers hold open to write to",
    )
    parser.add_argument(
        "--trigger", action=flag, default=True,
        help="ask trainers for a recorder dump, where they were set up for it: by torch's dump pipe and debug server",
    )  # fmt: skip
    parser.add_argument("--native", action="store_true", help="once more with C frames, at the end; takes seconds where cores are few")
    parser.add_argument("--py-spy", metavar="EXE", help="the py-spy to use (default: beside this Python, else on PATH)")
    parser.add_argument("--host", metavar="NAME", help="call this host so (default: its own name, first label)")
    parser.add_argument("--json", action="store_true", help="a summary as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 captured; 2 usage, disk full or no stack taken; 3 no training process found; 130 stopped (what is there stays, as partial)."""
    from apps.names import host_name
    from collectors._capture.run import NothingFound, Options, capture
    from rca import __version__
    from rca.errors import UsageError

    if args.rounds < 0 or not 0 <= args.gap < 3600:
        raise UsageError("--rounds counts from 0 and --gap lies between 0 and 3600 s")
    if args.host is not None:
        host_name(args.host)
    options = Options(
        out=args.out, num_rounds=args.rounds, gap_s=args.gap, asked=tuple(map(_asked, args.pid)), job=args.job, with_logs=args.logs,
        may_trigger=args.trigger, with_native=args.native, py_spy=args.py_spy, host=args.host, version=__version__,
    )  # fmt: skip
    if not sys.platform.startswith("linux"):
        raise UsageError("capture needs Linux: it reads /proc")
    try:
        captured = [one.summary() for one in capture(options, complain)]
    except NothingFound as error:
        complain(str(error))
        return 3
    except KeyboardInterrupt:
        complain(f"stopped: what was taken lies in {args.out}, marked as partial; `rca diagnose {args.out}` reads it")
        return 130
    if args.json:
        sys.stdout.write(json.dumps({"schema_version": "rca.capture/1", "jobs": captured}, sort_keys=True, allow_nan=False) + "\n")
    else:
        for one in captured:
            _print(one)
    blind = [one for one in captured if args.rounds and not one["num_dumps"]]
    for one in blind:  # the rest was taken, but who counts on stacks must hear that there are none
        complain(f"{one['folder']}: no stack of any process was taken; the reasons stand in its rca-bundle.json")
    return 2 if blind or any(one["is_partial"] for one in captured) else 0


def _asked(text: str) -> Asked:
    from collectors._capture.find import Asked
    from rca.errors import UsageError

    pid, equals, rank = text.partition("=")
    if not pid.isdecimal() or (equals and not rank.isdecimal()):
        raise UsageError(f"--pid {text}: a process id is wanted, or PID=RANK")
    return Asked(int(pid), int(rank) if equals else None)


def _print(one: dict[str, Any]) -> None:
    ranks = ", ".join(map(str, one["ranks"])) or "unknown"
    recorders = ", ".join(map(str, one["recorders"])) or "none"
    lines = [
        f"{one['folder']}: job {one['job']}, ranks {ranks}{' (partial)' if one['is_partial'] else ''}",
        f"  stacks: {one['num_dumps']} dumps, {one['num_dumps_failed']} failed; recorders of ranks: {recorders}; logs: {one['num_logs']}",
        *(f"  failed: {failed['step']}: {failed['why']}" for failed in one["failed"]),
    ]
    sys.stdout.write("".join(f"{one_line(line)}\n" for line in lines))
