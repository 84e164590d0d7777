"""Runs the groups of a replay plan and writes what each host computed: `rca.replay/1`, one file for each run of a group.

Each group is one small torch job (`_replay_job.py`). Without a launcher every host is a process on this machine, forked from one import of torch or
started by torchrun, and as many groups run side by side as there are cores; with one (`ssh {host}`, `srun -w {host} -N 1`) torchrun starts it on
every host, and the folder must be shared between them. The plan lies in the folder before anything runs: what is killed later is missing,
never equal.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rca.errors import ProbeError, UsageError
from rca.probes._replay_plan import PLAN_VERSION
from rca.replay import DOUBLE_RUN, references
from rca.sources import WORKSPACE

__all__ = ["WHERE", "RunOptions", "load_plan", "parse_injection", "run_plan"]

RECORD_VERSION: Final = "rca.replay/1"
WHERE: Final = ("gradient", "parameter", "activation")
POLL_S: Final = 0.1
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,200}")  # what may stand in the command of a launcher
BASE_PORT: Final = 29_511
MAX_PLAN_BYTES: Final = 1 << 28
MAX_TIMEOUT_S: Final = 7 * 86_400.0
MAX_SEED: Final = 1 << 40  # what is drawn from it must fit torch's 64 bits
LAST_WORDS: Final = 300  # characters of a failed group's log that its record keeps
Say = Callable[[str], object]


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


@dataclass
class _Running:
    """A group that was started."""

    phase: str
    number: int
    members: Sequence[int]
    folder: Path
    agents: list[subprocess.Popen[bytes]]
    began_at: datetime
    deadline: float


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
    return _checked(plan, str(path))


def _checked(plan: dict[str, Any], name: str) -> dict[str, Any]:
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


def run_plan(plan: Mapping[str, Any], out: Path, options: RunOptions, *, say: Say = lambda _: None) -> str:
    """Run every group of every phase; the replay's id. What was written stays, also when it is stopped on the way.

    Raises UsageError before anything is started, ProbeError where torch is not there.
    """
    plan = _checked(dict(plan), "plan")
    repeats = plan["repeats"] if options.repeats is None else options.repeats
    _check_numbers(options)
    faults = [parse_injection(text, plan["hosts"], options.steps) for text in options.inject]
    _check_launcher(options, plan["hosts"])
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not an empty folder: name a new one")
    _check_torch(options)
    out.mkdir(parents=True, exist_ok=True)
    began = datetime.now(UTC)
    replay_id = f"{hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:8]}-{began:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:4]}"
    named = {**plan, "replay_id": replay_id, "repeats": repeats, "steps": options.steps, "started_at": _iso(began)}
    _write(out / "plan.json", named)
    with _work_folder(out) as work:
        for phase in plan["phases"]:
            _run_phase(phase, named, out, work, options, faults, say)
    _fill_in_expected(out)
    return replay_id


def _run_phase(
    phase: Mapping[str, Any],
    plan: Mapping[str, Any],
    out: Path,
    work: Path,
    options: RunOptions,
    faults: Sequence[Mapping[str, Any]],
    say: Say,
) -> None:
    """All groups of a phase, as many at once as the cores carry."""
    waiting = list(phase["order"])
    size = len(phase["groups"][0])
    limit = options.parallel or (len(waiting) if options.launcher else _side_by_side(size))
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < limit:
                number = waiting.pop(0)
                running.append(_start(phase["name"], number, phase["groups"][number], plan, work, options, faults))
            time.sleep(POLL_S)
            for group in list(running):
                is_late = time.monotonic() > group.deadline
                if is_late:
                    _end(group)
                if all(agent.poll() is not None for agent in group.agents):
                    running.remove(group)
                    whole = _record(group, plan, out, options, timed_out=is_late)
                    say(f"{group.phase.replace('_', ' ')} group {group.number}: {whole} of {plan['repeats']} repeats whole")
    finally:
        for group in running:
            _end(group)


def _side_by_side(size: int) -> int:
    """Groups of `size` hosts that this machine runs at once: the stages of a pipeline mostly wait for each other."""
    cores = os.cpu_count() or 1
    return max(1, min(cores, 4 * cores // size))


def _start(
    phase: str,
    number: int,
    members: Sequence[int],
    plan: Mapping[str, Any],
    work: Path,
    options: RunOptions,
    faults: Sequence[Mapping[str, Any]],
) -> _Running:
    folder = work / f"{phase}-{number}"
    folder.mkdir()
    pp = 1 if phase == DOUBLE_RUN else int(plan["pp"])
    _write(
        folder / "config.json",
        {
            "lines": str(folder), "run": f"{phase} {number}", "seed": options.seed, "steps": options.steps, "repeats": plan["repeats"],
            "pp": pp, "k": len(members) // pp, "hidden": options.hidden, "layers": options.layers, "batch": options.batch,
            "microbatches": options.microbatches, "timeout_s": options.timeout_s,
            "inject": [{**fault, "place": members.index(fault["host"])} for fault in faults if fault["host"] in members],
        },
    )  # fmt: skip
    names = [plan["hosts"][host] for host in members]
    with (folder / "log").open("wb") as log:
        agents = [
            subprocess.Popen(
                command, env=_environment(folder, is_local=options.launcher is None), cwd=folder, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True, preexec_fn=_end_with_parent(),
            )
            for command in _commands(names, number, folder / "config.json", options)
        ]  # fmt: skip
    return _Running(phase, number, members, folder, agents, datetime.now(UTC), time.monotonic() + options.timeout_s)


def _commands(names: Sequence[str], number: int, config: Path, options: RunOptions) -> list[list[str]]:
    """One program that becomes all hosts of the group, one torchrun that starts them all here, or torchrun on each host."""
    job = [str(Path(__file__).with_name("_replay_job.py")), str(config)]
    torchrun = [options.python, "-m", "torch.distributed.run", "--max-restarts=0"]
    if options.launcher is None and options.with_torchrun:
        here = "127.0.0.1"  # and a port that torchrun picks
        meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint={here}:0", f"--local-addr={here}")
        return [[*torchrun, "--nnodes=1", f"--nproc-per-node={len(names)}", *meeting, *job]]
    if options.launcher is None:
        return [[options.python, *job]]
    port = BASE_PORT + number % 1000  # groups of a phase share no host; a port of its own keeps a slow end apart from the next start
    return [
        [
            *(word.replace("{host}", name) for word in shlex.split(options.launcher)),
            *torchrun,
            *(f"--nnodes={len(names)}", f"--node-rank={at}", "--nproc-per-node=1", f"--master-addr={names[0]}", f"--master-port={port}"),
            *job,
        ]
        for at, name in enumerate(names)
    ]


def _environment(folder: Path, *, is_local: bool) -> dict[str, str]:
    """Ours without what would change the job; sums in one order on CPUs and GPUs."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("TORCH", "PYTHON", "GLOO_")) and key != "RANK"}
    own = {
        "OMP_NUM_THREADS": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "NCCL_ALGO": "Ring",
        "PYTHONWARNINGS": "ignore:Failed to initialize NumPy",  # the job needs none
    }
    return kept | own | ({"GLOO_SOCKET_IFNAME": "lo"} if is_local else {})


def _end_with_parent() -> Callable[[], object]:
    """For a launcher: SIGKILL when this process dies, however it dies."""
    prctl, set_pdeathsig = ctypes.CDLL(None).prctl, 1
    return lambda: prctl(set_pdeathsig, signal.SIGKILL)


def _end(group: _Running) -> None:
    """Kill the launchers of a group; their workers end with them."""
    for agent in group.agents:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()


def _record(group: _Running, plan: Mapping[str, Any], out: Path, options: RunOptions, *, timed_out: bool) -> int:
    """Write what the group left, a file for each repeat; how many are whole."""
    ended = datetime.now(UTC)
    codes = [agent.returncode for agent in group.agents]
    lines = [_lines(group.folder / f"place_{place}.jsonl") for place in range(len(group.members))]
    whole = 0
    for repeat in range(plan["repeats"]):
        hosts = []
        for place, index in enumerate(group.members):
            steps = [
                {"step": step, "fingerprint": told, "expected": None, "outcome": None}
                for step, told in sorted(lines[place].get(repeat, {}).items())
            ]
            missing = len(steps) < options.steps + 1
            hosts.append(
                {"host": plan["hosts"][index], "index": index, "place": place, "outcome": "missing" if missing else None, "steps": steps}
            )
        is_whole = all(host["outcome"] is None for host in hosts)
        whole += is_whole
        why = None if is_whole else "timed out" if timed_out else f"ended with {codes}: {_last_words(group.folder / 'log')}"
        document = {
            "schema_version": RECORD_VERSION, "replay_id": plan["replay_id"], "phase": group.phase, "group": group.number, "repeat": repeat,
            "outcome": None if is_whole else "missing", "why": why, "started_at": _iso(group.began_at), "ended_at": _iso(ended), "hosts": hosts,
            "plan": {key: plan[key] for key in ("mode", "num_hosts", "pp", "k", "m", "n", "repeats")},
        }  # fmt: skip
        _write(out / f"{group.phase}-{group.number}-r{repeat}.json", document)
    return whole


def _lines(path: Path) -> dict[int, dict[int, str]]:
    """repeat -> step -> fingerprint of one host; a torn last line is left out."""
    found: dict[int, dict[int, str]] = {}
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                told = json.loads(line)
                found.setdefault(told["repeat"], {})[told["step"]] = told["fingerprint"]
    return found


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if re.search(r"(Error|exitcode|Signal)", line)]
    return lines[-1].strip()[-LAST_WORDS:] if lines else "nothing was said"


def _fill_in_expected(out: Path) -> None:
    """Compare all groups, and write into each record what its bits should be."""
    documents = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*-r*.json"))}
    rows = [
        {
            "phase": document["phase"],
            "group_number": document["group"],
            "repeat": document["repeat"],
            "host": host["host"],
            "place": host["place"],
            **step,
        }
        for document in documents.values()
        for host in document["hosts"]
        for step in host["steps"]
    ]
    expected = references(rows)
    for path, document in documents.items():
        outcomes = set()
        for host in document["hosts"]:
            for step in host["steps"]:
                wanted = expected.get((document["phase"] == DOUBLE_RUN, host["place"], step["step"]))
                step["expected"] = wanted
                step["outcome"] = None if wanted is None else "equal" if step["fingerprint"] == wanted else "differs"
                outcomes.add(step["outcome"])
        if "differs" in outcomes:
            document["outcome"] = "differs"
        elif document["outcome"] is None and outcomes == {"equal"}:
            document["outcome"] = "equal"
        _write(path, document)


def _write(path: Path, value: object) -> None:
    """The whole document or nothing."""
    part = path.with_name(f"{path.name}{WORKSPACE}{os.getpid()}")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


@contextlib.contextmanager
def _work_folder(out: Path) -> Iterator[Path]:
    """Room for the groups' lines and logs, in the shared folder; gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"work{WORKSPACE}{os.getpid()}-", dir=out.resolve()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_numbers(options: RunOptions) -> None:
    counts = {"steps": options.steps, "repeats": options.repeats, "parallel": options.parallel}
    for name, value in counts.items():
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value}: at least 1 is wanted")
    if not 0 < options.timeout_s <= MAX_TIMEOUT_S:  # not of a number either
        raise UsageError(f"--timeout {options.timeout_s:g}: wanted are seconds above 0 and at most {MAX_TIMEOUT_S:,.0f}")
    if abs(options.seed) > MAX_SEED:
        raise UsageError(f"--seed {options.seed}: wanted is a whole number of at most {MAX_SEED:,}")


def _check_launcher(options: RunOptions, hosts: Sequence[str]) -> None:
    if options.launcher is None:
        return
    if options.with_torchrun:
        raise UsageError("--torchrun is for a run on this machine; with --launcher torchrun starts on every host anyway: leave it out")
    if "{host}" not in options.launcher:
        raise UsageError(f"--launcher {options.launcher!r}: {{host}} must stand where the name of the host goes")
    if strange := [host for host in hosts if not NAME.fullmatch(host)]:
        raise UsageError(f"host {strange[0]!r} is no name that a launcher can be given: rename it in the plan")


def _check_torch(options: RunOptions) -> None:
    if options.launcher is None:
        probe = [options.python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"]
        if subprocess.run(probe, capture_output=True, check=False).returncode:
            raise ProbeError(f"{options.python} has no torch, which the replay needs: install firstfault[drill] there")


def _iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
