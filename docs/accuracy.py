"""The page docs/accuracy.md: how often the answers on live drills are right, from what `rca drill campaign` wrote."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "keep", "tables"]

RESULTS = Path(__file__).resolve().parents[1] / "data" / "accuracy" / "live.json"
PARTS = {
    "ranks": "first failing rank",
    "hosts": "host",
    "cause": "cause",
    "layer": "layer",
    "attribution": "attribution",
    "action": "action",
}
MARKS = ("right", "open", "wrong")
Z95 = 1.959964  # of the normal distribution, two-sided 95 %
Run = Mapping[str, Any]
Table = tuple[Sequence[str], list[tuple[object, ...]]]


def keep(campaign: Path) -> None:
    """Put what the page needs of a campaign into data/accuracy: every run with its marks, and of the texts only what was answered."""
    document = json.loads(campaign.read_text("utf-8"))
    runs = [_short(run) for run in document["runs"]]
    lines = ",\n".join(f"  {json.dumps(run, sort_keys=True)}" for run in sorted(runs, key=lambda r: (r["fault"], r["seed"], r["view"])))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(f'{{"made_with": {json.dumps(document["made_with"], sort_keys=True)},\n "runs": [\n{lines}\n ]}}\n', "utf-8")


def _short(run: Run) -> dict[str, Any]:
    verdict, advice = run["verdict"] or {}, run["advice"] or {}
    return {
        "fault": run["fault"],
        "seed": run["seed"],
        "view": run["view"],
        "marks": run["marks"],
        "error": run["error"],
        "said": {
            "cause": verdict.get("cause"),
            "ranks": verdict.get("first_failing", {}).get("ranks"),
            "action": advice.get("action"),
            "probability": verdict.get("probability"),
        },
    }


def tables() -> tuple[str, dict[str, Table]]:
    """What it was made with, and the tables of the page: by fault, by part, by view, and every answer that was wrong."""
    document = json.loads(RESULTS.read_text("utf-8"))
    runs: list[Run] = document["runs"]
    whole = [run for run in runs if run["view"] == "whole"]
    made = ", ".join(f"{name} {version}" for name, version in sorted(document["made_with"].items()))
    seeds = ", ".join(str(seed) for seed in sorted({run["seed"] for run in runs}))
    return f"{len(whole)} live drills, seeds {seeds}; {made}", {
        "By part of the answer": (("part", *MARKS, "of", "right, 95 % interval"), list(_parts(whole))),
        "By fault": (("fault", "runs", "rank right", "cause right", "whole answer right", "said otherwise"), list(_faults(whole))),
        "With evidence taken away": (("view", "answers", *MARKS), list(_views(runs))),
        "Wrong answers": (("fault", "seed", "view", "said"), list(_wrong(runs))),
    }


def _parts(whole: Sequence[Run]) -> Iterable[tuple[object, ...]]:
    for part, name in {**PARTS, "whole": "whole answer"}.items():
        counts = Counter(run["marks"][part] for run in whole if run["marks"])
        low, high = interval(counts["right"], len(whole))
        yield (name, *(counts[mark] for mark in MARKS), len(whole), f"{100 * low:.0f} to {100 * high:.0f} %")


def _faults(whole: Sequence[Run]) -> Iterable[tuple[object, ...]]:
    for fault in sorted({run["fault"] for run in whole}):
        own = [run for run in whole if run["fault"] == fault]
        right = [sum(run["marks"] is not None and run["marks"][part] == "right" for run in own) for part in ("ranks", "cause", "whole")]
        others = [_said(run) for run in own if run["marks"] is None or run["marks"]["whole"] != "right"]
        yield (fault, len(own), *right, "; ".join(others))


def _views(runs: Sequence[Run]) -> Iterable[tuple[object, ...]]:
    for view in dict.fromkeys(run["view"] for run in sorted(runs, key=lambda r: (r["view"] != "whole", r["view"]))):
        marks = Counter(run["marks"]["whole"] for run in runs if run["view"] == view and run["marks"])
        yield (view, sum(marks.values()), *(marks[mark] for mark in MARKS))


def _wrong(runs: Sequence[Run]) -> Iterable[tuple[object, ...]]:
    for run in runs:
        if run["marks"] is None or run["marks"]["whole"] == "wrong":
            yield run["fault"], run["seed"], run["view"], _said(run)


def _said(run: Run) -> str:
    if run["error"]:
        return f"no answer: {run['error']}"
    said = run["said"]
    ranks = ", ".join(map(str, said["ranks"] or ())) or "nobody"
    return f"{said['cause']}, {ranks} ({100 * said['probability']:.0f} %)"


def interval(right: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if not of:
        return 0.0, 1.0
    share, square = right / of, Z95 * Z95
    middle = share + square / (2 * of)
    half = Z95 * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    return (middle - half) / (1 + square / of), (middle + half) / (1 + square / of)
