"""Replay the same steps on groups of hosts, bit by bit, and name the host that computes otherwise: plan, run, judge.

`plan` prints which hosts replay together in two phases (or, with too few hosts, each on its own, twice); `run` does it on this machine or
through a launcher; `judge` reads the records.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

__all__ = ["arguments", "run"]

MAX_SHOWN = 12  # hosts or groups on one line


def arguments(parser: argparse.ArgumentParser) -> None:
    """`rca replay plan --hosts N --pp P [--k K]`, `rca replay plan PATH`."""
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


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, 2 sizes that do not fit or a run that cannot start, 3 no readable evidence."""
    return {"plan": _plan}[args.action](args)


def _plan(args: argparse.Namespace) -> int:
    from apps.document import to_json
    from apps.text import write
    from rca import plugins
    from rca.errors import UsageError

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
        args.out.write_text(to_json(plan) + "\n", encoding="utf-8")
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
