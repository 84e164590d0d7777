"""One simulated incident of a campaign: played, diagnosed, and marked against its truth. What is kept of it is a short row."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rca.building import build
from rca.case import Case, MemoryCase
from rca.diagnose import diagnose
from rca.drills import simulated
from rca.drills._campaign_plan import Wanted, drawn, layout_text, played
from rca.drills._campaign_torchfrtrace import beside
from rca.drills._judge import judge
from rca.judge import Judgement
from rca.judge import judge as answer_of
from rca.sources import inventory
from rca.types import Advice, Outcome, Verdict
from rca.weighing import by_hand

__all__ = ["MARK_LETTERS", "Row", "row", "stated", "suspected"]

Row = dict[str, Any]
MAX_SHOWN = 8  # ranks or hosts of a long list that a row keeps
MAX_SIGNS = 6
EVICTING = frozenset({"replace", "rollback", "degrade"})  # actions after which a host at fault is not used again
MARK_LETTERS = {"right": "r", "open": "o", "wrong": "w"}


def row(wanted: Wanted, *, is_beside: bool = False) -> Row:
    """Play it, ask, mark. With `is_beside` torchfrtrace is asked about the same files, where there are any."""
    began = time.monotonic()
    if wanted.way == "tables":
        scene = played(wanted)
        case = MemoryCase(simulated.frames(scene))
        made_s = time.monotonic() - began
        judgement, other = answer_of(case), None
        judged_s = time.monotonic() - began - made_s
    else:
        with tempfile.TemporaryDirectory() as place:
            scene, folder = played(wanted), Path(place) / "evidence"
            simulated.write(scene, folder)
            made_s = time.monotonic() - began
            judgement = _from_files(folder, Path(place))
            judged_s = time.monotonic() - began - made_s
            other = beside(folder, scene.truth) if is_beside else None
    world, confusions = drawn(wanted)
    return {
        "kind": wanted.kind,
        "ranks": wanted.ranks,
        "seed": wanted.seed,
        "way": wanted.way,
        "is_thinned": wanted.is_thinned,
        "layout": layout_text(world),
        "confusions": list(confusions),
        "class": simulated.class_of(wanted.kind),
        **_marked(scene.truth, judgement),
        "beside": other,
        "made_s": round(made_s, 2),
        "judged_s": round(judged_s, 2),
    }


def _from_files(folder: Path, place: Path) -> Judgement:
    """The whole pipeline, as `rca diagnose` runs it."""
    build(inventory(folder, place / "archives"), place / "case.duckdb")
    case = Case.open(place / "case.duckdb")
    try:
        return answer_of(case)
    finally:
        case.close()


def _marked(truth: Mapping[str, Any], judgement: Judgement) -> Row:
    verdict, advice = judgement.verdict, judgement.advice
    whole, marks = judge(truth, *documents(verdict, advice))
    said: Row = {"cause": verdict.cause, "layer": verdict.layer, "attribution": verdict.attribution, "action": advice.action}
    said |= {"ranks": _some(verdict.ranks), "hosts": _some(verdict.hosts)}
    before = diagnose(judgement.outcomes, judgement.roster, by_hand())
    return {
        "truth": {key: _some(truth[key]) for key in ("first_failing_ranks", "hosts", "cause", "layer", "action")},
        "said": said,
        "marks": {"whole": whole, **marks},
        "stated": stated(verdict, marks),
        "suspected": suspected(verdict, truth),
        "by_hand": stated(before, judge(truth, *documents(before, advice))[1]) or suspected(before, truth),
        "evicted": _evicted(truth, advice),
        "failed": [o.analysis for o in judgement.outcomes if o.status == "failed"],
        "signs": _signs(judgement.outcomes, verdict),
    }


def documents(verdict: Verdict, advice: Advice) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `_judge` reads of the document of `rca diagnose --json`."""
    first = {"ranks": list(verdict.ranks), "hosts": list(verdict.hosts)}
    said: Row = {"cause": verdict.cause, "layer": verdict.layer, "attribution": verdict.attribution, "first_failing": first}
    return said, {"action": advice.action, "evict": {"hosts": list(advice.evict_hosts)}}


def stated(verdict: Verdict, marks: Mapping[str, str]) -> tuple[float, bool] | None:
    """The probability that the answer states, and whether what it states is so. None where it says that it does not know.

    A cause is stated together with the ranks: both must be right. Where why is open, the ranks alone are stated.
    """
    if verdict.cause != "unknown":
        is_right = marks["cause"] == "right" and (marks["ranks"] == "right" or not verdict.ranks)
        return round(verdict.probability, 6), is_right
    return (round(verdict.ranks_probability, 6), marks["ranks"] == "right") if verdict.ranks else None


def suspected(verdict: Verdict, truth: Mapping[str, Any]) -> tuple[float, bool] | None:
    """Where nothing is named: the probability that is stated of the likeliest cause that any sign speaks for, and whether it is so."""
    if verdict.cause != "unknown" or verdict.ranks:
        return None
    first = next((h for h in verdict.hypotheses if h.cause != "unknown" and h.supports), None)
    if first is None:
        return None
    said = {"cause": first.cause, "first_failing": {"ranks": list(first.ranks), "hosts": list(first.hosts)}}
    _, marks = judge(truth, said, {})
    return round(first.probability, 6), marks["cause"] == "right" and (marks["ranks"] == "right" or not first.ranks)


def _evicted(truth: Mapping[str, Any], advice: Advice) -> Row:
    """Hosts told to go; of these the ones that may; how many must (where every accepted action takes them out) and are told; innocents.

    Of a group that goes whole, where it must go or hosts are told to: whether all of its hosts are.
    """
    may, named = {*(truth.get("evict_hosts") or ()), *truth["hosts"]}, set(advice.evict_hosts)
    must = set(truth.get("evict_hosts") or ()) if set(truth["action"]) <= EVICTING else set()
    told: Row = {"named": len(named), "hit": len(named & may), "must": len(must), "met": len(named & must)}
    told["innocent"] = len(named - set(truth["hosts"]))
    if truth.get("group") and truth.get("evict_hosts") and (must or named):
        told["group"] = "none" if not named else "right" if set(truth["evict_hosts"]) <= named else "wrong"
    return told


def _signs(outcomes: Sequence[Outcome], verdict: Verdict) -> list[str]:
    """What the answer rests on, and what spoke against it."""
    telling = {i for h in verdict.hypotheses[:1] for i in h.supports}
    found = [f for o in outcomes for f in o.findings]
    found.sort(key=lambda f: (f.id not in telling, f.id))
    return [
        f"{f.analysis}/{f.sign} {','.join(map(str, f.ranks[:4])) or '-'}{'' if f.id in telling else ' (aside)'}" for f in found[:MAX_SIGNS]
    ]


def _some(values: Sequence[Any]) -> list[Any]:
    return [*values[:MAX_SHOWN], "..."] if len(values) > MAX_SHOWN else list(values)
