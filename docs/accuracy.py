"""The page docs/accuracy.md: how often answers are right, from what `rca drill campaign` wrote of live drills and of simulated incidents."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rca.drills._campaign_shares import wilson
from rca.drills._campaign_tables import tables as tables_of

__all__ = ["INTRODUCTION", "LIVE", "SIMULATED", "keep", "live", "sections", "simulated"]

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
INTRODUCTION = """How often answers are right: on small real jobs with an injected fault ([live drills](#live-drills)), and on simulated
incidents of 8 to 16,384 ranks ([simulated](#simulated-incidents)). The two are never added up.

An answer is *right* when ranks, hosts, cause, layer, attribution, action and evictions all are; *wrong* when it accuses a rank or host that is
not at fault, evicts one, or names another cause; else *open*: an honest unknown, or right but incomplete. A job that stopped on purpose or ran
well is right only when nobody is accused. Intervals of shares are Wilson's, bounds of what was never seen Clopper and Pearson's, both at 95 %.

`make accuracy` plays the simulated incidents and writes this page. The live drills are made anew by `rca drill campaign --live --seeds 2 3
--views all --out DIR` and `python docs/generate.py --campaign DIR/campaign.json`."""
ABOUT_LIVE = """Each drill is a small real training job with one injected fault ([drills](drills.md)); `rca diagnose` answers from its capture
without the truth.

The views show the same captures with evidence taken away: one kind of it alone, one kind removed, names scrambled (`flat` keeps the rank in the
name, `nameless` nothing), 40 % of the ranks lost, another job's logs beside.

All drills run one program on one machine with gloo, and the rules were written by people who knew these faults: the figures bound what goes
wrong here, not on another cluster. Whole answers for these seeds were right before any of these captures had been looked at; six wrong answers
of an earlier run, in views of seed 2, led to rules that are in force here."""
ABOUT_SIMULATED = """Each incident is played by what physically happens: who stops, who then waits, what each process prints and when; then its
evidence is written as a fleet of its own would (framework, launcher, backend, pace, samples and gaps drawn from the seed), and one to three
confusions are laid over two thirds of them. Most are handed over as tables, a share as files that every collector reads.

Small ones are played once more *thinned*: of every source (logs of ranks, launchers and scheduler, kernel logs, recorder dumps, stacks, timings,
map, files of services) all, a part or nothing is left, by chance, whether it tells or not. Often nobody could know then; what counts is that hardly
anything wrong is said, and how sure.

Weights are fitted on other incidents than those counted here: `rca drill campaign --calibrate` takes its own kinds (half of each layer), sizes
(16, 60, 128 and 512 ranks) and seeds. *Kinds unseen in the fit* are the rows that tell what a stated probability is worth; no figure here comes
from a size or seed of the fit. Intervals of calibration figures are drawn over kinds, since incidents of one kind resemble each other. The
method, and what it cannot know: [decision 0025](decisions/0025-weights-are-fitted-around-the-hand-set-ones.md). The rules were mended while incidents
of these kinds were looked at; only their seeds are new.

A probability is stated of what an answer names, and, where it names nothing, of the likeliest cause that a sign speaks for: what it *suspects* (`rca
diagnose` shows both). Right is what is so as a whole: the cause, with just these ranks. Of what is *named* with all the evidence hardly anything is
wrong: a constant that states the share of right answers then has a Brier score that only certainty could beat, and an AUROC rests on one or two
answers. Their intervals say how little these two are worth there; what tells is the row of all that is named or suspected, and thinned evidence.

The simulator and the rules were made by the same people: a figure here says how often the rules err on what they were told can happen, not how
often a cluster surprises them. Every row can be made anew: `rca drill run KIND --simulated --ranks N --seed N --out DIR` writes its files and
its truth, with `--thinned` those that are left."""
Run = Mapping[str, Any]
Table = tuple[Sequence[str], list[tuple[object, ...]]]


def keep(campaign: Path) -> None:
    """Put what the page needs of a campaign, live or simulated, into data/accuracy: every run with its marks, and of the texts only what was
    answered."""
    document = json.loads(campaign.read_text("utf-8"))
    if document["schema_version"].startswith("rca.campaign.simulated/"):
        order = ("kind", "ranks", "seed", "way")
        path, runs = SIMULATED, sorted(document["runs"], key=lambda r: [*(r[key] for key in order), r.get("is_thinned", False)])
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


def sections() -> list[tuple[str, str, dict[str, Table]]]:
    """Heading, text and tables of the two halves of the page."""
    (made, of_live), (played, of_simulated) = live(), simulated()
    return [
        ("Live drills", f"{made}.\n\n{ABOUT_LIVE}", of_live),
        ("Simulated incidents", f"{played}.\n\n{ABOUT_SIMULATED}", of_simulated),
    ]


def simulated() -> tuple[str, dict[str, Table]]:
    """What the simulated campaign was made with, and its tables; no tables where none is kept."""
    if not SIMULATED.exists():
        return "no campaign is kept", {}
    document = json.loads(SIMULATED.read_text("utf-8"))
    runs: list[Run] = document["runs"]
    seeds = sorted({run["seed"] for run in runs})
    kinds, sizes = {run["kind"] for run in runs}, sorted({run["ranks"] for run in runs})
    thinned = sum(run.get("is_thinned", False) for run in runs)
    made = (
        f"{len(runs) - thinned} simulated incidents of {len(kinds)} kinds, {sizes[0]} to {sizes[-1]} ranks, seeds {seeds[0]} to {seeds[-1]}"
    )
    made += f", and {thinned} with a part of their evidence"
    return f"{made}; python {document['made_with']['python']}", tables_of(runs)


def live() -> tuple[str, dict[str, Table]]:
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
