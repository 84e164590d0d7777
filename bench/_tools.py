"""The programs that are compared: how each is called, and how its answer is read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rca.drills._campaign_torchfrtrace import PROGRAM, first_finding

__all__ = ["TOOLS", "Measurement", "measure"]

BIN = Path(sys.executable).parent  # not resolved: the scripts stand beside the interpreter of this environment
UNPICKLE = """
import gc, pathlib, pickle, sys
gc.disable()
for path in pathlib.Path(sys.argv[1]).iterdir():
    with path.open("rb") as file:
        pickle.load(file)
"""
PLAIN = """
import sys
import collectors._dump_compiled as compiled
from apps.cli import main
if __name__ == "__main__":
    compiled.is_there = lambda: False
    sys.exit(main(sys.argv[1:]))
"""
# Each takes the folder of dumps and a scratch folder that is empty before every run.
TOOLS: Mapping[str, Any] = {
    "pickle.load": lambda dumps, scratch: [sys.executable, "-c", UNPICKLE, str(dumps)],
    "rca --fast": lambda dumps, scratch: [
        BIN / "rca",
        "diagnose",
        dumps,
        "--fast",
        "--json",
        "--case",
        scratch / "c.duckdb",
    ],
    "rca": lambda dumps, scratch: [BIN / "rca", "diagnose", dumps, "--json", "--case", scratch / "c.duckdb"],
    "rca, plain reader": lambda dumps, scratch: [
        *(sys.executable, _program(scratch, PLAIN), "diagnose", dumps, "--json", "--case", scratch / "c.duckdb")
    ],
    "torchfrtrace": lambda dumps, scratch: [PROGRAM, dumps, "-p", "nccl_trace_rank_"],
}


@dataclass(frozen=True)
class Measurement:
    """One run of one program. CPU: user and system, children included; the peak is that of all its processes together, looked at ten times a second,
    and no less than that of the largest."""

    tool: str
    cpu_s: float
    wall_s: float
    peak_bytes: int
    exit_code: int
    ranks: str  # right, wrong, none (it names nobody), failed, - (it does not answer)
    group: str
    answer: str  # what it says, for the reader
    build_s: float | None = None  # wall: reading and storing; told by `rca` alone
    diagnose_s: float | None = None  # wall: all analyses


def measure(tool: str, dumps: Path, scratch: Path, truth: Mapping[str, Any]) -> Measurement:
    """Run the program once, in a process of its own."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    command = [str(part) for part in TOOLS[tool](dumps, scratch)]
    out = scratch / "out"
    with out.open("wb") as stdout, (scratch / "err").open("wb") as stderr:
        begun = time.monotonic()
        # Python keeps what it compiles, as it does for a user.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=env, start_new_session=True)
        with _watched(process.pid) as peaks:
            _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    text = out.read_text() + ("" if tool.startswith("rca") else (scratch / "err").read_text())
    ranks, group, answer = _judged(tool, text, truth)
    if process.returncode not in (0, 1):  # 1 is an honest "unknown"
        ranks, group, answer = "failed", "-", f"exit {process.returncode}"
    peak = max(usage.ru_maxrss * 1024, *peaks)
    return Measurement(
        tool,
        usage.ru_utime + usage.ru_stime,
        wall_s,
        peak,
        process.returncode,
        ranks,
        group,
        answer,
        *_timing(text if tool == "rca" else ""),
    )


@contextmanager
def _watched(session: int) -> Iterator[list[int]]:
    """Bytes that the processes of a session held at most, together; filled in when the block is left."""
    found, has_ended = [0], threading.Event()

    def watch() -> None:
        while not has_ended.wait(0.1):
            found[0] = max(found[0], sum(_held(session)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        has_ended.set()
        watcher.join()


def _held(session: int) -> Iterator[int]:
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if int((place / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                yield int((place / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            continue  # it has ended


def _program(scratch: Path, text: str) -> Path:
    path = scratch / "program.py"
    path.write_text(text)
    return path


def _timing(text: str) -> tuple[float | None, float | None]:
    try:
        timing = json.loads(text)["timing"]
    except (ValueError, KeyError):
        return None, None
    return timing["build_s"], timing["diagnose_s"]


def _judged(tool: str, text: str, truth: Mapping[str, Any]) -> tuple[str, str, str]:
    """(ranks right?, group right?, the answer in short)."""
    if tool == "pickle.load":
        return "-", "-", ""
    if tool == "torchfrtrace":
        named, group = first_finding(text)  # it ranks nothing
        is_group = group == f"{truth['group_name']}:{truth['group_desc']}"
    else:
        named, group, is_group = _verdict(text, truth)
    if not named:
        return "none", "-", group
    ranks = "right" if sorted(named) == sorted(truth["ranks"]) else "wrong"
    return ranks, "right" if is_group else "wrong", f"ranks {sorted(named)[:8]} at {group}"


def _verdict(text: str, truth: Mapping[str, Any]) -> tuple[list[int], str, bool]:
    """The verdict of `rca diagnose --json`; the group is right when call and number are."""
    try:
        failing = json.loads(text)["verdict"]["first_failing"]
    except (ValueError, KeyError):
        return [], "no answer", False
    last = failing.get("last_collective") or {}
    told = (last.get("op"), last.get("seq")) == (truth["op"], truth["seq"])
    return failing["ranks"], f"{last.get('group')} {last.get('op')} {last.get('seq')}", told
