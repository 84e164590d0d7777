"""From incidents to the catalogue: plays those of the fit, fits, and writes bits.csv and calibration.csv."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rca.case import MemoryCase
from rca.dating import undated
from rca.diagnose import diagnose
from rca.drills import simulated
from rca.drills._campaign_evidence import Evidence, evidence
from rca.drills._campaign_fit import MIN_KINDS, MIN_SEEN, Fit, fit
from rca.drills._campaign_plan import CALIBRATING, FITTED, Wanted, fitted, played
from rca.drills._campaign_simulated import gathered
from rca.errors import UsageError
from rca.questions import ask_all
from rca.roster import roster
from rca.weighing import by_hand, set_by_hand

__all__ = ["fitted_weights", "told", "write_weights"]

CATALOGUE = Path(__file__).resolve().parents[1] / "catalogue"
SEEDS = 3  # of each kind and size
SHOWN_BITS = 0.5  # a change from which on a weight is shown
COLUMNS = ("analysis", "sign", "cause", "bits", "why", "set_by_hand", "seen")


def told(wanted: Wanted) -> Evidence:
    """What one incident has to say to the fit."""
    scene = played(wanted)
    case = MemoryCase(simulated.frames(scene))
    outcomes = ask_all(case)
    verdict = diagnose(outcomes, roster(case), by_hand())
    return evidence(wanted.kind, outcomes, scene.truth, verdict, undated(case, [f for o in outcomes for f in o.findings]))


def fitted_weights(kinds: Sequence[str], *, jobs: int, say: Callable[[str], object]) -> Fit:
    """Plays the kinds that are for the fit, and fits."""
    chosen = sorted(set(kinds) & CALIBRATING)
    if not chosen:
        raise UsageError(f"none of these kinds is for the fit: those are {', '.join(sorted(CALIBRATING))}")
    wanted = fitted(chosen, FITTED, SEEDS)
    say(f"{len(wanted)} incidents of {len(chosen)} kinds at {', '.join(map(str, FITTED))} ranks")
    made = gathered([partial(told, one) for one in wanted], jobs)
    for one, (_, error) in zip(wanted, made, strict=True):
        if error is not None:
            say(f"{one.key}: left out, {type(error).__name__}: {error}")
    return fit([found for found, _ in made if found is not None], set_by_hand())


def write_weights(found: Fit) -> Iterator[str]:
    """Puts the weights into the catalogue, each file at once; says what moved. A row that was written since the fit began stays as it is."""
    before = set_by_hand()
    table = []
    for row in csv.DictReader(io.StringIO((CATALOGUE / "bits.csv").read_text("utf-8"))):
        key = (row["analysis"], row["sign"], row["cause"])
        hand = before.get(key, float(row["set_by_hand"] if row.get("set_by_hand") else row["bits"]))
        weight = {"bits": f"{found.bits.get(key, hand):.4g}", "set_by_hand": f"{hand:g}", "seen": str(found.seen.get(key, 0))}
        table.append({**{column: row[column] for column in ("analysis", "sign", "cause", "why")}, **weight})
    _write(CATALOGUE / "bits.csv", COLUMNS, table)
    why = f"most likely for answers to kinds left out, {found.incidents} simulated incidents of {found.kinds} kinds"
    figures = [
        {"figure": "surprise", "value": f"{found.surprise:.3f}", "why": f"{why}; half a kind more was wrong than was seen"},
        {"figure": "undated", "value": f"{found.undated:.3f}", "why": f"{why}: what those add that rest on lines without an instant alone"},
        {"figure": "sharpness", "value": f"{found.sharpness:.3f}", "why": f"{why}; prior around 1"},
    ]
    _write(CATALOGUE / "calibration.csv", ("figure", "value", "why"), figures)
    moved = {key: (before[key], bits) for key, bits in found.bits.items() if abs(bits - before[key]) >= SHOWN_BITS}
    width = (
        f"prior of {found.spread:g} bits around the weights set by hand"
        if found.spread
        else "no step gains more on kinds left out than chance among kinds: weights stay as set by hand"
    )
    yield f"{found.incidents} incidents of {found.kinds} kinds; {width}"
    yield f"weights that fewer than {MIN_SEEN} incidents or {MIN_KINDS} kinds touch stay as they are"
    yield f"mean loss of the truth on kinds left out: {found.loss_by_hand:.3f} bits by hand, {found.loss_fitted:.3f} fitted"
    yield f"surprise {found.surprise:.3f}, of what is not dated {found.undated:.3f} more; sharpness {found.sharpness:.3f}"
    counts = Counter("moved" if key in moved else "stays" for key in found.bits)
    yield f"{counts['moved']} of {len(found.bits)} weights move by {SHOWN_BITS:g} bits or more:"
    for key in sorted(moved, key=lambda k: (moved[k][1] - moved[k][0], k)):
        yield f"  {'/'.join(key)}: {moved[key][0]:g} -> {moved[key][1]:.2f} ({found.seen.get(key, 0)} incidents)"


def _write(path: Path, header: Sequence[str], table: Sequence[dict[str, str]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    draft = path.with_suffix(".tmp")
    draft.write_text(text.getvalue(), "utf-8")
    draft.replace(path)
