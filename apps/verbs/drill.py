"""Inject a known fault into a small real training job and capture what a cluster would leave behind."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["arguments", "run"]

PACKAGE = "rca.drills"
SMALL_BUFFER = 64  # recorder entries: eight ranks, three rounds and the logs then fit into 300 kB


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca drill list`, `rca drill run FAULT --out DIR --live`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="the faults that can be injected")
    run_parser = actions.add_parser("run", help="run one drill and capture its evidence")
    run_parser.add_argument("fault", metavar="FAULT", help="a name from `rca drill list`")
    run_parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder for the evidence")
    run_parser.add_argument("--live", action="store_true", help="start a real job on this machine (torch, py-spy, root)")
    run_parser.add_argument("--seed", type=int, default=0, help="decides which rank is hit and when (default 0)")
    for axis in ("tp", "pp", "dp"):
        run_parser.add_argument(f"--{axis}", type=int, default=2, help="parallel size (default 2)")
    run_parser.add_argument("--small", action="store_true", help="keep it under 300 kB for eight ranks")
    run_parser.add_argument("--neutral", action="store_true", help="take this machine's paths out, to publish it")
    run_parser.add_argument("--python", default=sys.executable, metavar="EXE", help="interpreter of the job")
    run_parser.add_argument("--job-dir", type=Path, metavar="DIR", help="an empty folder for the training script")


def run(args: argparse.Namespace) -> int:
    """Exit code 0 when the drill was captured or listed."""
    return _list() if args.action == "list" else _run_live(args)


def _list() -> int:
    from rca import plugins

    for name in plugins.names(PACKAGE):
        doc = plugins.load(PACKAGE, name).__doc__ or ""
        sys.stdout.write(f"{name:20} {doc.strip().splitlines()[0]}\n")
    return 0


def _run_live(args: argparse.Namespace) -> int:
    from rca import plugins
    from rca.drills._harness import Drill, run_live
    from rca.drills._layout import Layout
    from rca.errors import UsageError

    known = plugins.names(PACKAGE)
    if args.fault not in known:
        raise UsageError(f"no drill is called {args.fault!r}: choose one of {', '.join(known)}")
    if not args.live:
        raise UsageError("a drill starts a real job on this machine: add --live if that is what you want")
    drill = Drill(
        args.fault,
        Layout(tp=args.tp, pp=args.pp, dp=args.dp),
        seed=args.seed,
        python=args.python,
        job_dir=args.job_dir,
        buffer_entries=SMALL_BUFFER if args.small else Drill.buffer_entries,
        json_rounds=1 if args.small else Drill.json_rounds,
        is_neutral=args.neutral,
    )
    result = run_live(drill, args.out, say=lambda line: sys.stderr.write(f"{line}\n"))
    sys.stdout.write(f"{args.out}: {len(result.dumped)} of {drill.layout.world_size} flight recorders, stacks, logs\n")
    return 0
