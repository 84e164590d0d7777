"""Helpers of test_recorder_traps.py: make a folder of dumps, ask `rca diagnose`, read the JSON document."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rca.drills._synthetic import Fault, Job, Recorder, Truth, write

RCA = Path(sys.executable).with_name("rca")
Dump = dict[str, Any]

# Two tensor groups of four, so that the odd one out of a group can be told; rank 5 is nowhere the first of a group.
TP4 = Job(tp=4, dp=2)
STOP = Fault("stop", (5,))


@dataclass(frozen=True)
class Answer:
    """The document that `rca diagnose --json` printed, and its exit code."""

    doc: dict[str, Any]
    exit_code: int

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.doc["verdict"]["first_failing"]["ranks"])

    @property
    def cause(self) -> str:
        return str(self.doc["verdict"]["cause"])

    @property
    def layer(self) -> str:
        return str(self.doc["verdict"]["layer"])

    def skipped(self, name: str) -> list[str]:
        """Why records of the file, or all of it, were left out."""
        return [skip["why"] for skip in self.doc["skipped"] if skip["path"] == name]


def diagnose(folder: Path) -> Answer:
    """Ask the command in this process."""
    from apps.cli import main

    case = folder.parent / f"{folder.name}.duckdb"
    out, before = io.StringIO(), sys.argv
    sys.argv = ["rca", "diagnose", str(folder), "--json", "--case", str(case)]
    try:
        with contextlib.redirect_stdout(out):
            code = main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.argv = before
    doc = json.loads(out.getvalue() or "{}")
    failed = [outcome for outcome in doc.get("outcomes", ()) if outcome["status"] == "failed"]
    assert code in (0, 1, 3), f"exit {code}: {failed}"
    return Answer(doc, code)


@dataclass(frozen=True)
class Run:
    """The command in a process of its own."""

    answer: Answer
    peak_bytes: int
    stderr: str


def run(folder: Path, *, timeout_s: float = 60.0) -> Run:
    """Ask the command itself and note its peak memory."""
    command = [str(RCA), "diagnose", str(folder), "--json", "--case", str(folder.parent / f"{folder.name}.duckdb")]
    out, err = folder.parent / "stdout", folder.parent / "stderr"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(["timeout", str(timeout_s), *command], stdout=stdout, stderr=stderr)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)  # reaped here: nothing is left to wait for
    assert process.returncode in (0, 1, 3), f"exit {process.returncode}: {err.read_text()[-2000:]}"
    answer = Answer(json.loads(out.read_text() or "{}"), process.returncode)
    return Run(answer, usage.ru_maxrss * 1024, err.read_text())


def stopped(folder: Path, *, edit: Callable[[int, Dump], Dump | bytes | None] | None = None, recorder: Recorder | None = None) -> Truth:
    """The standard hang: rank 5 of 8 stops before a tensor-parallel call."""
    return hang(folder, TP4, STOP, edit=edit, recorder=recorder)


def hang(folder: Path, job: Job, fault: Fault | list[Fault], **options: Any) -> Truth:
    """Dumps of a job that the fault has brought to a halt."""
    truth = write(job, fault, folder, **options)
    assert truth.waiting, "the fault has no effect"
    return truth


def path(folder: Path, rank: int) -> Path:
    return folder / f"nccl_trace_rank_{rank}"


def pickled(*parts: bytes) -> bytes:
    """A pickle that starts as a dump does and goes on with `parts` as the value of `entries`."""

    def text(value: str) -> bytes:
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    return b"\x80\x02}(" + text("version") + text("2.10") + text("entries") + b"".join(parts) + b"u."
