"""`rca drill campaign` over simulated incidents: measuring, fitting, and writing one of them out. Prints and keeps the tables."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from apps.text import columns

__all__ = ["calibrate", "measure", "write_incident"]

Say = Callable[[str], object]
TOLD_EVERY = 50  # answers
LEGEND = (
    "right, open, wrong: against the truth; open names nobody or no cause. Faults alone are counted by part, size, confusion "
    "and way; jobs in which nothing failed stand under what must not happen.",
    "At most (95 %): with so few incidents the true share may be as high. nan: too few answers. Median s: seconds for one answer "
    "from tables; 0.0 = under 0.05 s, or none was played so.",
    "Set by hand, fitted: the same answers with the weights as set by a person, and in force. Answers that are not right: the last table.",
)


def measure(
    kinds: Sequence[str], sizes: Sequence[int] | None, seeds: Sequence[int] | None, out: Path, *, jobs: int, say: Say, show: Say,
    are_named: bool = False,
) -> int:  # fmt: skip
    """Plays, marks, prints the tables, keeps them in `out`/campaign.json. `are_named`: the kinds were asked for one by one.
    0: no answer wrong; 1: a wrong one, or one that did not come."""
    from rca.drills._campaign_plan import REPORTED, SEEDS, plan_lines, reported
    from rca.drills._campaign_simulated import answers, made_with
    from rca.drills._campaign_tables import short, tables
    from rca.errors import UsageError

    wanted = reported(kinds, sizes or REPORTED, seeds or SEEDS, is_named=are_named and bool(sizes))
    if not wanted:
        raise UsageError(f"no kind has a layout of {', '.join(map(str, sizes or ()))} ranks: choose of {', '.join(map(str, REPORTED))}")
    for line in plan_lines(wanted, seeds or SEEDS):
        show(line)
    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    for number, row in enumerate(answers(wanted, out, jobs=jobs, say=say), 1):
        rows.append(row)
        if number % TOLD_EVERY == 0 or number == len(wanted):
            say(f"{number} of {len(wanted)} answers, {time.monotonic() - began:.0f} s")
    runs = [short(row) for row in rows]
    document = {"schema_version": "rca.campaign.simulated/1", "made_with": made_with(), "runs": runs}
    (out / "campaign.json").write_text(json.dumps(document, sort_keys=True), "utf-8")
    for line in ("", *LEGEND):
        show(line)
    for title, (header, lines) in tables(runs).items():
        show("")
        show(title)
        for line in columns(header, [[str(cell) for cell in line] for line in lines]) if lines else ("none",):
            show(line)
    return int(any(row.get("error") or row["marks"]["whole"] == "wrong" for row in rows))


def calibrate(
    kinds: Sequence[str], sizes: Sequence[int] | None, seeds: Sequence[int] | None, out: Path, *, jobs: int, say: Say, show: Say
) -> int:
    """Fits the weights on the kinds, sizes and seeds that no figure is reported on, and writes them into the catalogue."""
    from rca.drills._campaign_weights import fitted_weights, write_weights
    from rca.errors import UsageError

    if seeds or sizes:
        raise UsageError("--calibrate takes its own sizes and seeds, none that figures are reported on: leave --ranks and --seeds out")
    found = fitted_weights(kinds, jobs=jobs, say=say)
    for line in write_weights(found):
        show(line)
    return 0


def write_incident(kind: str, ranks: int, seed: int, out: Path, *, is_thinned: bool = False) -> str:
    """The files and the truth of one incident, in a new folder; says what it is."""
    from rca.drills import simulated
    from rca.drills._campaign_plan import Wanted, drawn, layout_text, played
    from rca.drills._capture import write_json
    from rca.errors import UsageError

    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} is not empty: name a new folder")
    wanted = Wanted(kind, ranks, seed, "files", is_thinned)
    world, confusions = drawn(wanted)
    scene = played(wanted)
    truth = out / "truth.json"
    try:
        simulated.write(scene, out)
        write_json(truth, scene.truth)
    except OSError as error:
        truth.unlink(missing_ok=True)
        raise UsageError(
            f"{out}: the incident cannot be written ({error.strerror or error}). Free some space, or name another --out."
        ) from None
    finally:
        if not truth.exists():
            shutil.rmtree(out, ignore_errors=True)  # half an incident has no truth
    return f"{kind}, {layout_text(world)}, confusions: {', '.join(confusions) or 'none'}{'; a part of the evidence' if is_thinned else ''}"
