"""Replay the same steps on groups of hosts, bit by bit, and name the host that computes otherwise: plan, run, judge.

`plan` prints which hosts replay together in two phases (or, with too few hosts, each on its own, twice); `run` does it on this machine or
through a launcher; `judge` reads the records.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.plain import one_line

if TYPE_CHECKING:
    from rca.replay import Judged

__all__ = ["arguments", "run"]

MAX_SHOWN = 12  # hosts or groups on one line


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca replay plan --hosts N --pp P [--k K]`, `rca replay plan PATH`, `rca replay run PLAN --out DIR`, `rca replay judge DIR`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    plan = actions.add_parser("plan", help="which hosts replay together, from sizes or from a case")
    plan.add_argument("path", nargs="?", metavar="PATH", help="evidence of the job: its hosts in pipeline order, suspects first")
    plan.add_argument("--hosts", type=int, metavar="N", help="number of hosts (each a tensor-parallel unit), instead of PATH")
    plan.add_argument("--pp", type=int, metavar="P", help="hosts of one pipeline")
    plan.add_argument("--k", type=int, metavar="K", help="pipelines of a group (default 1)")
    plan.add_argument("--mode", default="auto", metavar="MODE", help="auto, dual_phase or double_run (default auto)")
    plan.add_argument("--repeats", type=int, metavar="R", help="how often each group runs (default 1, double run 2)")
    plan.add_argument("--reproduction", type=float, metavar="Q", help="probability that one replay shows the fault")
    plan.add_argument("--out", type=Path, metavar="FILE", help="write the plan there")
    plan.add_argument("--case", metavar="FILE", help="where the case file goes (default: beside the evidence, else the cache folder)")
    plan.add_argument("--json", action="store_true", help="one JSON document (rca.replay_plan/1) on stdout")
    run_parser = actions.add_parser("run", help="run a plan: every host a process on this machine, or through a launcher")
    run_parser.add_argument("plan", type=Path, metavar="PLAN", help="file of `rca replay plan --out`")
    run_parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="a new folder for the records; below the evidence: PATH/replay"
    )
    run_parser.add_argument("--steps", type=int, default=4, metavar="N", help="steps of each repeat (default 4)")
    run_parser.add_argument("--repeats", type=int, metavar="R", help="how often each group runs (default: as planned)")
    run_parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="seconds a group may take (default 300)")
    run_parser.add_argument("--parallel", type=int, metavar="G", help="groups side by side (default: by the cores)")
    run_parser.add_argument("--launcher", metavar="WORDS", help="starts a command on a host, as 'ssh {host}'; DIR must be shared")
    run_parser.add_argument(
        "--torchrun", action="store_true", help="on this machine: one torchrun for each group, a worker for each host, instead of forks"
    )
    run_parser.add_argument("--python", default=sys.executable, metavar="EXE", help="interpreter of the hosts; torch must be there")
    run_parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and data (default 0)")
    run_parser.add_argument(
        "--inject", action="append", default=[], metavar="FAULT",
        help="a fault, to try it: host=3,step=2,bit=17[,probability=0.5][,where=gradient|parameter|activation] or host=3,step=2,kill",
    )  # fmt: skip
    judge = actions.add_parser("judge", help="who computed otherwise, from the records of a run")
    judge.add_argument("path", metavar="DIR", help="folder with the records")
    judge.add_argument("--case", metavar="FILE", help="where the case file goes (default: beside the records, else the cache folder)")
    for printing in (run_parser, judge):
        printing.add_argument("--json", action="store_true", help="one JSON document (rca.replay_judgement/1) on stdout")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, 2 sizes that do not fit or a run that cannot start, 3 no record of a replay. Whether it is decided stands in the answer."""
    return {"plan": _plan, "run": _run, "judge": _judge}[args.action](args)


def _plan(args: argparse.Namespace) -> int:
    from apps.document import to_json
    from apps.text import write
    from rca import plugins
    from rca.errors import UsageError
    from rca.files import put

    probe = plugins.load("rca.probes", "dual_phase_replay")
    wanted: dict[str, Any] = {"k": args.k, "mode": args.mode, "repeats": args.repeats, "reproduction": args.reproduction}
    if (args.path is None) == (args.hosts is None):
        raise UsageError("name the evidence (PATH) or the number of hosts (--hosts N): one of the two")
    if args.path is not None:
        hosts, pp, suspects = _from_case(args)
        plan = probe.plan(len(hosts), pp, hosts=hosts, suspects=suspects, prefers_double_run=True, **wanted)
    elif args.pp is None:
        raise UsageError("--pp P is missing: how many hosts make one pipeline")
    else:
        plan = probe.plan(args.hosts, args.pp, **wanted)
    if args.out is not None:
        if args.out.exists() and not args.out.is_file():
            raise UsageError(f"--out {args.out}: a folder, pipe or device; name a file, or take the plan from stdout with --json")
        put(args.out, to_json(plan) + "\n")
    write([to_json(plan)] if args.json else _plan_lines(plan))
    return 0


def _from_case(args: argparse.Namespace) -> tuple[list[str], int, tuple[str, ...]]:
    """Hosts in pipeline order, hosts of one pipeline, suspects of the verdict."""
    from apps.session import open_session
    from rca.probes._replay_case import hosts_in_order

    with open_session(args.path, args.case) as session:
        case = session.case()
        try:
            judgement = session.judgement(case)
            hosts, pp = hosts_in_order(case, judgement.roster.hosts, args.pp)
        finally:
            case.close()
    return hosts, pp, judgement.verdict.hosts


def _plan_lines(plan: dict[str, Any]) -> list[str]:
    names = plan["hosts"] or [str(number) for number in range(plan["num_hosts"])]
    size = f"{plan['n']} groups of {plan['m']}" if plan["mode"] == "dual_phase" else f"{plan['n']} hosts, each on its own"
    lines = [
        f"{plan['mode'].replace('_', ' ')} of {plan['num_hosts']} hosts: {size}; at most {plan['max_suspects']} suspect left per fault"
    ]
    if plan["suspects"]:
        lines.append(f"suspects, first to run: {_some(plan['suspects'])}")
    for phase in plan["phases"]:
        lines += ["", f"{phase['name'].replace('_', ' ')}:"]
        lines += [f"  {number:4}  {_some([names[host] for host in phase['groups'][number]])}" for number in phase["order"][:MAX_SHOWN]]
        if (more := len(phase["order"]) - MAX_SHOWN) > 0:
            lines.append(f"  and {more} groups more (--json shows all)")
    odds = plan["detection"]
    if odds["reproduction"] is not None:
        lines += ["", f"A fault that one replay shows with probability {odds['reproduction']:g} is found with {odds['chance']:.4g} in "
                      f"{odds['repeats']} repeats; {odds['wanted']:g} takes {odds['repeats_needed']}."]  # fmt: skip
    else:
        lines += [
            "",
            "How often one replay shows the fault is not told (--reproduction Q): a clean result then has no known chance of being wrong.",
        ]
    return [*lines, *(f"Note: {note}." for note in plan["notes"])]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more


def _run(args: argparse.Namespace) -> int:
    from rca import plugins
    from rca.probes._replay_order import RunOptions, load_plan

    options = RunOptions(
        steps=args.steps, repeats=args.repeats, timeout_s=args.timeout, inject=tuple(args.inject), launcher=args.launcher,
        with_torchrun=args.torchrun, parallel=args.parallel, seed=args.seed, python=args.python,
    )  # fmt: skip
    plugins.load("rca.probes", "dual_phase_replay").run(load_plan(args.plan), args.out, options, say=_say)
    return _answer(str(args.out), None, is_json=args.json)


def _judge(args: argparse.Namespace) -> int:
    return _answer(args.path, args.case, is_json=args.json)


def _answer(path: str, case_file: str | None, *, is_json: bool) -> int:
    """Read the records as any evidence is read, and judge them."""
    from apps.document import skipped, to_json
    from apps.session import open_session
    from apps.text import write
    from rca import plugins

    with open_session(path, case_file) as session:
        case = session.case()
        try:
            found = plugins.load("rca.probes", "dual_phase_replay").judge(case.table("replays").collect().iter_rows(named=True))
            skips = skipped(case, session.inventory)
        finally:
            case.close()
    if is_json:
        write([to_json({"schema_version": "rca.replay_judgement/1", "replays": [_document(judged) for judged in found], "skipped": skips})])
    else:
        write([line for judged in found for line in _judged_lines(judged)] or [f"No record of a replay in {path}."])
        write(f"not read: {skip['path']}: {skip['why']}" for skip in skips[:MAX_SHOWN])
    return 0 if found else 3


def _document(judged: Judged) -> dict[str, Any]:
    differed, whole = judged.shown
    return {
        "replay_id": judged.replay_id,
        "outcome": judged.outcome,
        "hosts": list(judged.hosts),
        "because": judged.because,
        "then": judged.then or None,
        "runs_differed": differed if judged.hosts else None,
        "runs": whole if judged.hosts else None,
        "ran_at": judged.ran_at,
        "groups": [
            {
                "phase": group.phase, "group": group.number, "hosts": list(group.hosts), "outcome": group.outcome,
                "repeats": dict(sorted(group.repeats.items())), "first_differing": list(group.first), "step": group.step,
            }
            for group in judged.groups
        ],
    }  # fmt: skip


def _judged_lines(judged: Judged) -> list[str]:
    heads = {
        "culprit": f"Proven: {_some(list(judged.hosts))} compute{'s' if len(judged.hosts) == 1 else ''} wrong bits",
        "candidates": f"Not decided: one or more of {_some(list(judged.hosts))}",
        "clean": "No host computed otherwise",
        "undecided": "Not decided",
    }
    lines = [f"{heads[judged.outcome]}; {judged.because}."]
    if judged.hosts:
        differed, whole = judged.shown
        lines.append(f"  {differed} of {whole} whole runs of their groups differed")
    for group in judged.groups:
        if group.outcome != "equal":
            counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(group.repeats.items()))
            first = f"; first at {_some(list(group.first))}, step {group.step}" if group.first else ""
            lines.append(f"  {group.phase.replace('_', ' ')} group {group.number} ({_some(list(group.hosts))}): {counts}{first}")
    equal = sum(group.outcome == "equal" for group in judged.groups)
    lines.append(f"  {equal} of {len(judged.groups)} groups equal in every repeat (replay {judged.replay_id})")
    return [*lines, *([f"Next: {judged.then}."] if judged.then else [])]


def _say(line: str) -> None:
    sys.stderr.write(f"{one_line(line)}\n")
