"""Runs drills one after the other, lets the public pipeline diagnose each capture, and compares the answers with the truth."""

from __future__ import annotations

import json
import os
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
from rca.drills._views import view
from rca.errors import ProbeError

__all__ = ["run_campaign", "totals"]

DIAGNOSE_WAIT_S = 300.0

Row = dict[str, Any]


def run_campaign(
    drills: Sequence[Drill], views: Sequence[str], out: Path, diagnose: Sequence[str], *, say: Callable[[str], object]
) -> Iterator[Row]:
    """One row per drill and view as soon as it is judged; `out`/campaign.json holds all rows of the drills that are done.

    The capture of a drill lies in `out`/FAULT_sSEED; one that lies there already is judged anew and not made again. `diagnose` is the
    command that takes a folder and `--json`. A drill that fails to run, or an answer that does not come, gives a row with `error` and
    without marks.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    made_with = {"cpus": os.cpu_count(), **_versions(drills[0].python)}
    for drill in drills:
        for row in _judged(drill, views, out, diagnose, say):
            rows.append(row)
            yield row
        document = {"schema_version": "rca.campaign/1", "made_with": made_with, "totals": totals(rows), "runs": rows}
        write_json(out / "campaign.json", document)


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


def totals(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Of each view: how many answers are right, open, wrong, or are missing; and the same of each part."""
    return {view: _total([row for row in rows if row["view"] == view]) for view in dict.fromkeys(row["view"] for row in rows)}


def _total(rows: Sequence[Row]) -> dict[str, Any]:
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


def _judged(drill: Drill, views: Sequence[str], out: Path, diagnose: Sequence[str], say: Callable[[str], object]) -> Iterator[Row]:
    """The rows of one drill; the first one says how long its capture took."""
    layout, folder = drill.layout, out / f"{drill.fault}_s{drill.seed}"
    blank: Row = {"fault": drill.fault, "seed": drill.seed, "view": views[0]}
    blank |= {"layout": {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp}}
    blank |= dict.fromkeys(("truth", "verdict", "advice", "marks", "capture_s", "diagnose_s", "error"))
    began = time.monotonic()
    try:
        if not (folder / "truth.json").exists():
            run_live(drill, folder, say=say)
            blank["capture_s"] = round(time.monotonic() - began, 1)
        blank["truth"] = json.loads((folder / "truth.json").read_text())
    except ProbeError as error:
        yield blank | {"error": str(error)}
        return
    for name in views:
        yield blank | {"view": name} | _answer(folder, name, blank["truth"], diagnose)
        blank["capture_s"] = None


def _answer(folder: Path, name: str, truth: Mapping[str, Any], diagnose: Sequence[str]) -> Row:
    """What the pipeline says of a view of a capture, and its marks."""
    began = time.monotonic()
    try:
        document = _ask(folder, name, diagnose)
    except ProbeError as error:
        return {"error": str(error)}
    verdict, advice = document["verdict"], document["advice"]
    whole, marks = judge(truth, verdict, advice)
    diagnose_s = round(time.monotonic() - began, 1)
    return {"verdict": verdict, "advice": advice, "marks": {"whole": whole, **marks}, "diagnose_s": diagnose_s}


def _ask(folder: Path, name: str, diagnose: Sequence[str]) -> Mapping[str, Any]:
    """The document of the pipeline, run in a process of its own on a copy without the truth."""
    others = sorted(path.parent for path in folder.parent.glob("*/truth.json") if path.parent != folder)
    with tempfile.TemporaryDirectory() as place:
        shown = view(folder, name, Path(place), beside=others[0] if others else None)
        try:
            done = subprocess.run([*diagnose, str(shown), "--json"], capture_output=True, text=True, timeout=DIAGNOSE_WAIT_S, check=False)
            document: Mapping[str, Any] = json.loads(done.stdout)
        except subprocess.TimeoutExpired as error:
            raise ProbeError(f"no answer in {DIAGNOSE_WAIT_S:.0f} s for {folder}, {name}") from error
        except json.JSONDecodeError as error:
            raise ProbeError(f"no document for {folder}, {name} (exit code {done.returncode}): {done.stderr.strip()[-300:]}") from error
    return document
