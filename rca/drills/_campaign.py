"""Runs drills one after the other, lets the public pipeline diagnose each capture, and compares the answers with the truth."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rca.drills._capture import write_json
from rca.drills._harness import Drill, run_live
from rca.drills._judge import PARTS, judge
from rca.errors import ProbeError

__all__ = ["run_campaign", "totals"]

DIAGNOSE_WAIT_S = 300.0

Row = dict[str, Any]


def run_campaign(drills: Sequence[Drill], out: Path, diagnose: Sequence[str], *, say: Callable[[str], object]) -> Iterator[Row]:
    """One row per drill as soon as it is judged; `out`/campaign.json holds all rows so far.

    The capture of a drill lies in `out`/FAULT_sSEED; one that lies there already is judged anew and not made again. `diagnose` is the
    command that takes a folder and `--json`. A drill that fails to run gives a row with `error` and without marks.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    made_with = {"cpus": os.cpu_count(), **_versions(drills[0].python)}
    for drill in drills:
        rows.append(_one(drill, out / f"{drill.fault}_s{drill.seed}", diagnose, say))
        document = {"schema_version": "rca.campaign/1", "made_with": made_with, "totals": totals(rows), "runs": rows}
        write_json(out / "campaign.json", document)
        yield rows[-1]


def _versions(python: str) -> dict[str, str]:
    """Of the interpreter that runs the jobs, and of what it has installed."""
    program = "import json, platform, importlib.metadata as m; v = {n: m.version(n) for n in ('torch', 'py-spy')}; "
    program += "print(json.dumps({'python': platform.python_version(), **v}))"
    try:
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ProbeError(f"{python} has no torch and py-spy: install firstfault[drill] there") from error
    versions: dict[str, str] = json.loads(done.stdout)
    return versions


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """How many answers are right, open, wrong, or are missing; and the same of each part."""
    judged = [row["marks"] for row in rows if row["marks"]]
    return {
        "runs": len(rows),
        "errors": len(rows) - len(judged),
        **_count([marks["whole"] for marks in judged]),
        "parts": {part: _count([marks[part] for marks in judged]) for part in PARTS},
    }


def _count(marks: Sequence[str]) -> dict[str, int]:
    counted = Counter(marks)
    return {mark: counted[mark] for mark in ("right", "open", "wrong")}


def _one(drill: Drill, folder: Path, diagnose: Sequence[str], say: Callable[[str], object]) -> Row:
    layout, began = drill.layout, time.monotonic()
    row: Row = {"fault": drill.fault, "seed": drill.seed, "layout": {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp}}
    row |= {"truth": None, "verdict": None, "advice": None, "marks": None, "capture_s": None, "diagnose_s": None, "error": None}
    try:
        if not (folder / "truth.json").exists():
            run_live(drill, folder, say=say)
            row["capture_s"] = round(time.monotonic() - began, 1)
        row["truth"] = json.loads((folder / "truth.json").read_text())
        began = time.monotonic()
        answer = _ask(folder, diagnose)
    except ProbeError as error:
        return row | {"error": str(error)}
    whole, marks = judge(row["truth"], answer["verdict"], answer["advice"])
    answered = {"verdict": answer["verdict"], "advice": answer["advice"], "diagnose_s": round(time.monotonic() - began, 1)}
    return row | answered | {"marks": {"whole": whole, **marks}}


def _ask(folder: Path, diagnose: Sequence[str]) -> Mapping[str, Any]:
    """What the pipeline says of a copy without the truth, in a process of its own."""
    with tempfile.TemporaryDirectory() as place:
        case = Path(place) / "case"
        shutil.copytree(folder, case, ignore=shutil.ignore_patterns("truth.json"))
        try:
            done = subprocess.run([*diagnose, str(case), "--json"], capture_output=True, text=True, timeout=DIAGNOSE_WAIT_S, check=False)
            document: Mapping[str, Any] = json.loads(done.stdout)
        except subprocess.TimeoutExpired as error:
            raise ProbeError(f"no answer in {DIAGNOSE_WAIT_S:.0f} s for {folder}") from error
        except json.JSONDecodeError as error:
            raise ProbeError(f"no document for {folder} (exit code {done.returncode}): {done.stderr.strip()[-300:]}") from error
    return document
