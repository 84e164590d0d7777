"""Inject a known fault into a small real training job, or simulate one of up to 16,384 ranks, and mark verdicts against the truth."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.plain import one_line

if TYPE_CHECKING:
    from rca.drills._launch import Drill

__all__ = ["arguments", "run"]

PACKAGE = "rca.drills"
SMALL = {"buffer_entries": 48, "json_rounds": 1}  # eight ranks then fit into 300 kB
SMALL_GOING_ON = SMALL | {"num_rounds": 2, "round_gap_s": 1.0, "json_rounds": 0}  # its timings grow while it is looked at
RANKS = 8  # of a simulated job
USUAL = {"tp": 2, "pp": 2, "dp": 2}
SEEDS_HELP = (
    "seeds of every kind (default: live 0, simulated 0 1 2). Simulated: at 32, 1,024, 4,096 and 16,384 ranks a kind is played with the first seed "
    "only, kinds in which nothing failed with twice as many at other sizes, and at 4,096 and 16,384 every third kind; with --kinds and --ranks "
    "each is played with just these seeds; at 8, 32, 64 and 256 ranks every seed once more with a part of the evidence"
)
ROW = "{fault:19} {seed:>4}  {view:15}{mark:6}{ranks:22}{cause:48}{layer:28}{action:24}{p:>5} {seconds:>7}"


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca drill list`, `rca drill run FAULT --out DIR --live` or `--simulated`, `rca drill campaign` with or without `--live`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="the faults that can be injected, and the kinds that can be simulated")
    run_parser = actions.add_parser("run", help="run one drill and capture its evidence")
    run_parser.add_argument("fault", metavar="FAULT", help="a name from `rca drill list`")
    run_parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder for the evidence")
    run_parser.add_argument("--seed", type=int, default=0, help="decides which rank is hit and when (default 0)")
    for axis in USUAL:
        run_parser.add_argument(f"--{axis}", type=int, help="parallel size (default: that of the fault, mostly 2)")
    run_parser.add_argument("--neutral", action="store_true", help="take this machine's paths out, to publish it")
    run_parser.add_argument("--job-dir", type=Path, metavar="DIR", help="an empty folder for the training program")
    run_parser.add_argument("--simulated", action="store_true", help="write the evidence of a simulated kind; nothing is started")
    run_parser.add_argument("--ranks", type=int, metavar="N", help=f"size of a simulated job (default {RANKS})")
    run_parser.add_argument("--thinned", action="store_true", help="simulated: take a part of the evidence away, as the campaign does")
    campaign = actions.add_parser("campaign", help="play many drills, diagnose each, print truth against verdict")
    campaign.add_argument(
        "--out", type=Path, default=Path("campaign"), metavar="DIR", help="captures or rows, and campaign.json (default: campaign)"
    )
    campaign.add_argument("--seeds", type=int, nargs="+", metavar="N", help=SEEDS_HELP)
    campaign.add_argument("--faults", "--kinds", nargs="+", metavar="KIND", help="names from `rca drill list` (default: all)")
    campaign.add_argument(
        "--views", nargs="+", default=["whole"], metavar="VIEW", help="live: parts of the evidence to diagnose (default: whole; `all`)"
    )
    campaign.add_argument("--ranks", type=int, nargs="+", metavar="N", help="simulated: sizes of the jobs (default: 8 to 16,384)")
    campaign.add_argument("--jobs", type=int, default=2, metavar="N", help="simulated: processes (default 2)")
    campaign.add_argument("--calibrate", action="store_true", help="simulated: fit the weights of the signs instead of measuring them")
    for live in (run_parser, campaign):
        live.add_argument("--live", action="store_true", help="start real jobs on this machine (torch, py-spy, root)")
        live.add_argument("--small", action="store_true", help="keep it under 300 kB for eight ranks")
        live.add_argument("--python", default=sys.executable, metavar="EXE", help="interpreter of the job")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 listed, captured, fitted, or no answer of a campaign wrong; 1 a wrong or missing answer in a campaign."""
    if args.action == "list":
        return _list()
    if args.action == "run":
        return _run_simulated(args) if args.simulated else _run_live(args)
    return _run_campaign(args) if args.live else _simulated_campaign(args)


def _list() -> int:
    from rca import plugins

    for name in plugins.names(PACKAGE):
        doc = plugins.load(PACKAGE, name).__doc__ or ""
        sys.stdout.write(f"{name:20} {doc.strip().splitlines()[0]}\n")
    from rca.drills.simulated import KINDS

    sys.stdout.write("\nsimulated:\n")
    for name in sorted(KINDS):
        sys.stdout.write(f"{name:28} {KINDS[name].about}\n")
    return 0


def _drill(args: argparse.Namespace, fault: str, seed: int, **more: Any) -> Drill:
    """What the options say about one drill; a fault may need another layout than the usual one."""
    from rca import plugins
    from rca.drills._launch import Drill
    from rca.drills._layout import Layout
    from rca.errors import UsageError

    known = plugins.names(PACKAGE)
    if fault not in known:
        raise UsageError(f"no drill is called {fault!r}: choose one of {', '.join(known)}")
    module = plugins.load(PACKAGE, fault)
    own = getattr(module, "LAYOUT", Layout(**USUAL))
    asked = {axis: getattr(args, axis, None) for axis in USUAL}
    layout = Layout(**{axis: getattr(own, axis) if size is None else size for axis, size in asked.items()})
    if args.small:
        more |= SMALL_GOING_ON if module.ENDS == "running" else SMALL
    return Drill(fault, layout, seed=seed, python=args.python, **more)


def _demand_live(args: argparse.Namespace) -> None:
    from rca.errors import UsageError

    if args.ranks is not None:
        raise UsageError("--ranks is of simulated drills: a live one has as many as its --tp, --pp and --dp")
    if not args.live:
        raise UsageError("a drill starts a real job on this machine: add --live if that is what you want")


def _run_live(args: argparse.Namespace) -> int:
    from rca.drills._harness import run_live

    if args.thinned:
        from rca.errors import UsageError

        raise UsageError("--thinned is of simulated drills: add --simulated if that is what you want")
    drill = _drill(args, args.fault, args.seed, job_dir=args.job_dir, is_neutral=args.neutral)
    _demand_live(args)
    result = run_live(drill, args.out, say=_say)
    _print(f"{args.out}: {len(result.dumped)} of {drill.layout.world_size} flight recorders, stacks, timings, logs")
    return 0


def _run_simulated(args: argparse.Namespace) -> int:
    """Writes the evidence that a campaign with this kind, size and seed has judged."""
    from apps.campaigns import write_incident

    kind, ranks = _kind(args.fault), RANKS if args.ranks is None else args.ranks
    _refuse_live_options(args, kind, ranks)
    written = write_incident(kind, ranks, args.seed, args.out, is_thinned=args.thinned)
    _print(f"{args.out}: {written}")
    return 0


def _refuse_live_options(args: argparse.Namespace, kind: str, ranks: int) -> None:
    """A simulated job has the layout that its seed draws of those of its size, and no process: no option that says otherwise is passed over."""
    from rca.drills._campaign_plan import layout_text
    from rca.drills.simulated import layouts
    from rca.errors import UsageError

    if asked := [f"--{axis}" for axis in USUAL if getattr(args, axis) is not None]:
        known = "; ".join(sorted({layout_text(world) for world in layouts(kind) if world.world_size == ranks}))
        sizes = ", ".join(map(str, sorted({world.world_size for world in layouts(kind)})))
        raise UsageError(
            f"{', '.join(asked)}: of live drills; the layout of a simulated {kind} is drawn by --seed, "
            + (f"of {ranks} ranks among {known}" if known else f"and there is none of {ranks} ranks: choose of {sizes}")
        )
    given = {"--live": args.live, "--small": args.small, "--neutral": args.neutral, "--job-dir": args.job_dir is not None}
    if strange := [name for name, is_given in given.items() if is_given]:
        raise UsageError(f"{', '.join(strange)}: of live drills, which --simulated is none of")


def _simulated_campaign(args: argparse.Namespace) -> int:
    from apps.campaigns import calibrate, measure
    from rca.drills.simulated import KINDS
    from rca.errors import UsageError

    if args.views != ["whole"] or args.small:
        raise UsageError("--views and --small are of live campaigns: add --live if that is what you want")
    if args.jobs < 1:
        raise UsageError("--jobs needs at least one process")
    kinds = [_kind(name) for name in args.faults or sorted(KINDS)]
    if args.calibrate:
        return calibrate(kinds, args.ranks, args.seeds, args.out, jobs=args.jobs, say=_say, show=_print)
    return measure(kinds, args.ranks, args.seeds, args.out, jobs=args.jobs, say=_say, show=_print, are_named=args.faults is not None)


def _kind(name: str) -> str:
    from rca.drills.simulated import KINDS
    from rca.errors import UsageError

    if name not in KINDS:
        raise UsageError(f"no simulated kind is called {name!r}: choose one of {', '.join(sorted(KINDS))}")
    return name


def _run_campaign(args: argparse.Namespace) -> int:
    from rca import plugins
    from rca.drills._campaign import run_campaign, totals
    from rca.drills._views import VIEWS
    from rca.errors import UsageError

    views = VIEWS if args.views == ["all"] else args.views
    if strange := sorted(set(views) - set(VIEWS)):
        raise UsageError(f"no view is called {strange[0]!r}: choose of {', '.join(VIEWS)}, or all")
    drills = [_drill(args, fault, seed) for fault in args.faults or plugins.names(PACKAGE) for seed in args.seeds or [0]]
    _demand_live(args)
    heads = {"mark": "mark", "ranks": "first ranks", "p": "p", "seconds": "s"}
    _print(ROW.format(fault="fault", seed="seed", view="view", cause="cause", layer="layer", action="action", **heads))
    rows = []
    for row in run_campaign(drills, views, args.out, (sys.executable, "-m", "apps.cli", "diagnose"), say=_say):
        rows.append(row)
        _print(_line(row))
    sums = totals(rows)
    for name, total in sums.items():
        _print("")
        _print(f"{name}: {total['runs']} answers, " + ", ".join(f"{total[key]} {key}" for key in ("right", "open", "wrong", "errors")))
        for part, counts in total["parts"].items():
            _print(f"  {part:12}" + ", ".join(f"{count} {mark}" for mark, count in counts.items()))
    return 1 if any(total["wrong"] or total["errors"] for total in sums.values()) else 0


def _line(row: dict[str, Any]) -> str:
    """Truth against verdict; a part that is not right shows what was wanted after a slash."""
    if row["error"]:
        return f"{row['fault']:19} {row['seed']:>4}  {row['view']:15}error {row['error'].splitlines()[0]}"
    verdict, truth, marks = row["verdict"], row["truth"], row["marks"]

    def cell(part: str, said: str, wanted: list[str]) -> str:
        return said if marks[part] == "right" else f"{said} / {' or '.join(wanted)}"

    seconds = sum(row[key] or 0.0 for key in ("capture_s", "diagnose_s"))
    return ROW.format(
        fault=row["fault"], seed=row["seed"], view=row["view"], mark=marks["whole"], p=f"{verdict['probability']:.2f}", seconds=f"{seconds:.1f}",
        ranks=cell("ranks", _ranks(verdict["first_failing"]["ranks"]), [_ranks(truth["first_failing_ranks"])]),
        cause=cell("cause", verdict["cause"], truth["cause"]),
        layer=cell("layer", verdict["layer"], truth["layer"]),
        action=cell("action", row["advice"]["action"], truth["action"]),
    )  # fmt: skip


def _ranks(ranks: list[int]) -> str:
    return ",".join(map(str, ranks)) or "none"


def _say(line: str) -> None:
    sys.stderr.write(f"{one_line(line)}\n")


def _print(line: str) -> None:
    sys.stdout.write(f"{one_line(line.rstrip())}\n")
    sys.stdout.flush()
