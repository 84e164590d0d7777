"""What a replay is asked to do: the plan, the options of the run, the faults to put in. All of it is checked before anything is started."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rca.errors import ProbeError, UsageError
from rca.probes._replay_plan import PLAN_VERSION

__all__ = ["WHERE", "RunOptions", "check_launcher", "check_numbers", "check_torch", "checked", "load_plan", "parse_injection"]

WHERE: Final = ("gradient", "parameter", "activation")
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,200}")  # what may stand in the command of a launcher
MAX_PLAN_BYTES: Final = 1 << 28
MAX_TIMEOUT_S: Final = 7 * 86_400.0
MAX_SEED: Final = 1 << 40  # what is drawn from it must fit torch's 64 bits


def load_plan(path: Path) -> dict[str, Any]:
    """A plan from its file. Raises UsageError where it is none."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("not a regular file")  # reading a pipe or device would not end
        if path.stat().st_size > MAX_PLAN_BYTES:
            raise OSError(f"more than {MAX_PLAN_BYTES:,} bytes")
        plan = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: no plan can be read ({error}); make one with: rca replay plan --out FILE") from None
    if not isinstance(plan, dict) or plan.get("schema_version") != PLAN_VERSION:
        raise UsageError(f"{path}: no {PLAN_VERSION}; make one with: rca replay plan --out FILE")
    return checked(plan, str(path))


def checked(plan: dict[str, Any], name: str) -> dict[str, Any]:
    """The plan with names for its hosts, if every group of each phase is made of hosts that exist, once each."""
    try:
        count, repeats = int(plan["num_hosts"]), int(plan["repeats"])
        hosts = plan.get("hosts") or [f"host-{number}" for number in range(count)]
        labels = {_label(str(host)) for host in hosts}
        members = [sorted(host for group in phase["groups"] for host in group) for phase in plan["phases"]]
        orders = [sorted(phase["order"]) == list(range(len(phase["groups"]))) for phase in plan["phases"]]
        sizes = {len(group) for phase in plan["phases"] for group in phase["groups"]}
        pipelines = all(size % (plan["pp"] if plan["k"] else 1) == 0 for size in sizes)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UsageError(f"{name}: the plan is damaged ({type(error).__name__}: {error}); make it again") from None
    if not members or any(found != list(range(count)) for found in members) or not all(orders) or len(sizes) != 1 or not pipelines:
        raise UsageError(f"{name}: the groups do not hold every host once in each phase; make the plan again")
    if len(hosts) != count or len(labels) != count:
        raise UsageError(f"{name}: {len(labels)} different names (up to the first dot) for {count} hosts")
    if repeats < 1:
        raise UsageError(f"{name}: {repeats} repeats are no run; make the plan again")
    return {**plan, "hosts": [str(host) for host in hosts], "repeats": repeats}


def _label(host: str) -> str:
    """A host as the tables name it: lower-case first label; an address stays whole."""
    return host if host.replace(".", "").isdigit() else host.lower().partition(".")[0]


@dataclass(frozen=True)
class RunOptions:
    """How to run a plan."""

    steps: int = 4
    repeats: int | None = None  # None: as planned
    timeout_s: float = 300.0  # of one group, all its repeats
    inject: tuple[str, ...] = ()  # faults, as `host=3,step=2,bit=17`
    launcher: str | None = None  # words before the command of a host, {host} in them replaced
    with_torchrun: bool = False  # without a launcher: one torchrun for each group instead of a fork for each host
    parallel: int | None = None  # groups side by side; None: by the cores
    seed: int = 0
    hidden: int = 64
    layers: int = 2  # of each stage
    batch: int = 8
    microbatches: int = 2
    python: str = field(default=sys.executable)


def parse_injection(text: str, hosts: Sequence[str], steps: int) -> dict[str, Any]:
    """`host=3,step=2,bit=17[,probability=0.5][,where=gradient]`, or `host=3,step=2,kill`: a host by number or name."""
    words = {part.partition("=")[0].strip(): part.partition("=")[2].strip() for part in text.split(",")}
    wrong = f"--inject {text}: wanted is host=N,step=S,bit=B[,probability=Q][,where={'|'.join(WHERE)}] or host=N,step=S,kill"
    if not {"host", "step"} <= set(words) or ("kill" in words) == ("bit" in words):
        raise UsageError(wrong)
    if set(words) - {"host", "step", "bit", "kill", "probability", "where"} or words.get("where", WHERE[0]) not in WHERE:
        raise UsageError(wrong)
    try:
        host = hosts.index(words["host"]) if words["host"] in hosts else int(words["host"])
        step, bit, probability = int(words["step"]), int(words.get("bit", 0)), float(words.get("probability", 1.0))
    except ValueError:
        raise UsageError(wrong) from None
    if not 0 <= host < len(hosts):
        raise UsageError(f"--inject {text}: there is no host {host}, they go from 0 to {len(hosts) - 1}")
    if not 0 <= step < steps or not 0 <= bit < 32 or not 0.0 <= probability <= 1.0:
        raise UsageError(f"--inject {text}: steps go from 0 to {steps - 1}, bits from 0 to 31, a probability from 0 to 1")
    where = words.get("where", WHERE[0])
    return {"host": host, "step": step, "bit": bit if "bit" in words else None, "probability": probability, "where": where}


def check_numbers(options: RunOptions) -> None:
    counts = {"steps": options.steps, "repeats": options.repeats, "parallel": options.parallel}
    for name, value in counts.items():
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value}: at least 1 is wanted")
    if not 0 < options.timeout_s <= MAX_TIMEOUT_S:  # not of a number either
        raise UsageError(f"--timeout {options.timeout_s:g}: wanted are seconds above 0 and at most {MAX_TIMEOUT_S:,.0f}")
    if abs(options.seed) > MAX_SEED:
        raise UsageError(f"--seed {options.seed}: wanted is a whole number of at most {MAX_SEED:,}")


def check_launcher(options: RunOptions, hosts: Sequence[str]) -> None:
    if options.launcher is None:
        return
    if options.with_torchrun:
        raise UsageError("--torchrun is for a run on this machine; with --launcher torchrun starts on every host anyway: leave it out")
    if "{host}" not in options.launcher:
        raise UsageError(f"--launcher {options.launcher!r}: {{host}} must stand where the name of the host goes")
    if strange := [host for host in hosts if not NAME.fullmatch(host)]:
        raise UsageError(f"host {strange[0]!r} is no name that a launcher can be given: rename it in the plan")


def check_torch(options: RunOptions) -> None:
    if options.launcher is None:
        probe = [options.python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"]
        if subprocess.run(probe, capture_output=True, check=False).returncode:
            raise ProbeError(f"{options.python} has no torch, which the replay needs: install firstfault[drill] there")
