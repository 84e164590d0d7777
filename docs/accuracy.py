"""The page docs/accuracy.md: how often answers are right, from what `rca drill campaign` wrote of live drills and of simulated incidents."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rca.drills._campaign_shares import wilson
from rca.drills._campaign_tables import tables as tables_of

__all__ = ["LIVE", "SIMULATED", "keep", "simulated", "tables"]

RESULTS = Path(__file__).resolve().parents[1] / "data" / "accuracy"
LIVE, SIMULATED = RESULTS / "live.json", RESULTS / "simulated.json"
PARTS = {
    "ranks": "first failing rank",
    "hosts": "host",
    "cause": "cause",
    "layer": "layer",
    "attribution": "attribution",
    "action": "action",
}
MARKS = ("right", "open", "wrong")
Run = Mapping[str, Any]
Table = tuple[Sequence[str], list[tuple[object, ...]]]


def keep(campaign: Path) -> None:
    """Put what the page needs of a campaign, live or simulated, into data/accuracy: every run with its marks, and of the texts only what was
    answered."""
    document = json.loads(campaign.read_text("utf-8"))
    if document["schema_version"].startswith("rca.campaign.simulated/"):
        order = ("kind", "ranks", "seed", "way")
        path, runs = SIMULATED, sorted(document["runs"], key=lambda r: [r[key] for key in order])
    else:
        path, runs = LIVE, sorted(map(_short, document["runs"]), key=lambda r: [r[key] for key in ("fault", "seed", "view")])
    lines = ",\n".join(f"  {json.dumps(run, sort_keys=True)}" for run in runs)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"made_with": {json.dumps(document["made_with"], sort_keys=True)},\n "runs": [\n{lines}\n ]}}\n', "utf-8")


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


def simulated() -> tuple[str, dict[str, Table]]:
    """What the simulated campaign was made with, and its tables; no tables where none is kept."""
    if not SIMULATED.exists():
        return "no campaign is kept", {}
    document = json.loads(SIMULATED.read_text("utf-8"))
    runs: list[Run] = document["runs"]
    seeds = sorted({run["seed"] for run in runs})
    kinds, sizes = {run["kind"] for run in runs}, sorted({run["ranks"] for run in runs})
    made = f"{len(runs)} simulated incidents of {len(kinds)} kinds, {sizes[0]} to {sizes[-1]} ranks, seeds {seeds[0]} to {seeds[-1]}"
    return f"{made}; python {document['made_with']['python']}", tables_of(runs)


def tables() -> tuple[str, dict[str, Table]]:
    """What the live campaign was made with, and its tables: by fault, by part, by view, and every answer that was wrong."""
    document = json.loads(LIVE.read_text("utf-8"))
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
        low, high = wilson(counts["right"], len(whole))
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
