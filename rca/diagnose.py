"""Outcomes -> verdict: which ranks failed first, why, and how sure that is. Pure.

A hypothesis is a cause together with the set of ranks it accuses. Its score is the log2 prior odds of the cause plus the bits of the signs
that speak for it, of each family only the strongest; the scores are turned into probabilities that sum to 1, `unknown` among them with and
without ranks. Who and why are answered separately: ranks are named when the set has half of the probability, a cause when it has half of
what falls to the answer. A verdict never accuses below that.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from importlib import resources
from typing import Any, Literal, cast

from rca import plugins
from rca.causes import CAUSES
from rca.roster import Roster
from rca.types import Finding, Hypothesis, Outcome, Sign, Verdict

__all__ = ["bits", "diagnose", "explained"]

ENOUGH = 0.5  # probability from which ranks or a cause are named
CONCURRENT_BITS = 7.0  # own support of a second, disjoint set of ranks to count as a fault of its own
MAX_HYPOTHESES = 12
CAUSAL_ORDER = (
    "stop",
    "device",
    "death",
    "exception",
)  # families of records that explain what comes after; all others come last, as equals
FIRM_BITS = 8.0  # strength from which a record explains others
LEADING_BITS = 12.0  # strength from which it names the cause of its suspects' trouble
WAITING = frozenset({"silent", "ring", "stuck", "tie"})  # families that rest on who waits for whom
Suspects = tuple[int, ...]


@lru_cache(maxsize=1)
def bits() -> Mapping[tuple[str, str, str], float]:
    """(analysis, sign, cause) -> bits, from catalogue/bits.csv."""
    text = resources.files("rca.catalogue").joinpath("bits.csv").read_text("utf-8")
    return {(r["analysis"], r["sign"], r["cause"]): float(r["bits"]) for r in csv.DictReader(text.splitlines())}


def diagnose(outcomes: Sequence[Outcome], roster: Roster) -> Verdict:
    """The verdict with all hypotheses, best first.

    1. Every set of ranks that a finding accuses is a suspect set, and so is nobody.
    2. Score every (cause, suspect set) and turn the scores into probabilities.
    3. Take the most probable set; of it the most probable cause; name each only when it is probable enough.
    """
    findings = [f for o in outcomes for f in o.findings]
    followed = explained(findings)
    support = _support([f for f in findings if f.id not in followed], outcomes)
    probabilities = _softmax(
        {
            (cause, s): math.log2(CAUSES[cause].prior) + support.get((cause, s), (0.0, ()))[0]
            for cause in CAUSES
            for s in _sets(findings, cause)
        }
    )
    by_set: dict[Suspects, float] = defaultdict(float)
    for (_, suspects), p in probabilities.items():
        by_set[suspects] += p
    ranks = max(sorted(by_set), key=lambda s: by_set[s])
    if ranks and by_set[ranks] < ENOUGH:
        ranks = ()
    cause, p_cause = _best_cause(probabilities, ranks)
    hypotheses = _hypotheses(probabilities, support, findings, roster, (cause, ranks))
    return _verdict(cause, p_cause, ranks, by_set.get(ranks, 0.0), findings, hypotheses, roster)


def _sets(findings: Sequence[Finding], cause: str) -> list[Suspects]:
    """Nobody, and every accused set (a healthy job or a stop by a person accuses nobody)."""
    if cause in ("healthy", "planned_stop", "preemption"):
        return [()]
    return sorted({(), *(f.ranks for f in findings)})


Support = dict[tuple[str, Suspects], tuple[float, tuple[str, ...]]]


def _support(findings: Sequence[Finding], outcomes: Sequence[Outcome]) -> Support:
    """(cause, suspect set) -> bits and the findings they come from; of one family only the strongest counts.

    A finding that accuses a larger set speaks for each part of it too, less the bits it takes to pick the part; one that accuses nobody
    speaks for its causes whoever the suspect is. That why is open is said once, however many signs say so. Where a record names the cause of a
    suspect's trouble, what comes later in the causal order is its consequence (a GPU off the bus also kills): it still says who, not why.
    """
    best: dict[tuple[str, Suspects], dict[str, tuple[float, str]]] = defaultdict(dict)
    all_suspects = sorted({(), *(f.ranks for f in findings)})
    leading = {suspects: _leading(findings, suspects) for suspects in all_suspects}
    for f in findings:
        sign = _sign(f)
        for suspects in all_suspects:
            if suspects != f.ranks and f.ranks and not (suspects and set(suspects) < set(f.ranks)):
                continue
            penalty = math.log2(len(f.ranks) / len(suspects)) if f.ranks and suspects else 0.0
            lead = leading[suspects]
            follows = lead is not None and bool(f.ranks) and _place(f) > _place(lead)
            for cause in _sign(lead).causes if lead and follows else sign.causes:
                if cause == "unknown" and not f.ranks and suspects:
                    continue
                gain = (_loudness(f) if follows else bits().get((f.analysis, f.sign, cause), 0.0)) - penalty
                if gain > best[cause, suspects].get(sign.family, (0.0, ""))[0]:
                    best[cause, suspects][sign.family] = (gain, f.id)
    for outcome in outcomes:
        if outcome.status == "clear":
            for (analysis, sign_name, cause), gain in bits().items():
                if analysis == outcome.analysis and sign_name == "clear":
                    best[cause, ()][f"clear/{analysis}"] = (gain, "")
    together = {key: max if key[0] == "unknown" else sum for key in best}
    return {key: (together[key](gain for gain, _ in v.values()), tuple(sorted(i for _, i in v.values() if i))) for key, v in best.items()}


def _leading(findings: Sequence[Finding], suspects: Suspects) -> Finding | None:
    """The record that names the cause of what happened to these suspects: the earliest in the causal order, of those the strongest."""
    told = [
        f for f in findings if suspects and set(suspects) <= set(f.ranks) and _strength(f) >= LEADING_BITS and _place(f) < len(CAUSAL_ORDER)
    ]
    return min(told, key=lambda f: (_place(f), -_strength(f), f.id), default=None)


def _place(finding: Finding) -> int:
    """Place of a finding's family in the causal order."""
    family = _sign(finding).family
    return CAUSAL_ORDER.index(family) if family in CAUSAL_ORDER else len(CAUSAL_ORDER)


def explained(findings: Sequence[Finding]) -> dict[str, str]:
    """finding id -> id of the finding that it only follows from: one earlier in the causal order, that stands firm and explains its ranks.

    A planned end, a kernel record, a death or an exception of its own explains why others fell silent, left their loop or lost connections;
    never the other way round.
    """
    firm = [f for f in findings if _place(f) < len(CAUSAL_ORDER) and _strength(f) >= FIRM_BITS]
    found = {}
    for f in findings:
        for cause in firm:
            if _place(cause) < _place(f) and f.ranks and set(f.ranks) <= set(cause.explains) and not set(f.ranks) & set(cause.ranks):
                found[f.id] = cause.id
                break
    return found


def _loudness(finding: Finding) -> float:
    """How strongly it accuses its ranks, whatever the cause."""
    return max((bits().get((finding.analysis, finding.sign, c), 0.0) for c in _sign(finding).causes), default=0.0)


def _strength(finding: Finding) -> float:
    return max((bits().get((finding.analysis, finding.sign, c), 0.0) for c in _sign(finding).causes if c != "unknown"), default=0.0)


def _sign(finding: Finding) -> Sign:
    signs: Mapping[str, Sign] = plugins.load("rca.analyses", finding.analysis).SIGNS
    return signs[finding.sign]


def _softmax(scores: Mapping[Any, float]) -> dict[Any, float]:
    top = max(scores.values())
    weights = {key: 2.0 ** (score - top) for key, score in scores.items()}
    total = sum(weights.values())
    return {key: weight / total for key, weight in weights.items()}


def _best_cause(probabilities: Mapping[tuple[str, Suspects], float], ranks: Suspects) -> tuple[str, float]:
    """The cause that has at least half of what falls to these ranks; else `unknown`."""
    of_set = {cause: p for (cause, s), p in probabilities.items() if s == ranks}
    total = sum(of_set.values())
    cause = max(sorted(of_set), key=lambda c: of_set[c])
    if of_set[cause] < ENOUGH * total or (not ranks and of_set[cause] < ENOUGH):
        return "unknown", of_set["unknown"]
    return cause, of_set[cause]


def _hypotheses(
    probabilities: Mapping[tuple[str, Suspects], float],
    support: Support,
    findings: Sequence[Finding],
    roster: Roster,
    answer: tuple[str, Suspects],
) -> tuple[Hypothesis, ...]:
    """The most probable ones, best first; the answer itself and `unknown` are always among them."""
    ranked = sorted(probabilities, key=lambda k: (-probabilities[k], k[0], k[1]))
    order = [key for place, key in enumerate(ranked) if place < MAX_HYPOTHESES or key in (answer, ("unknown", ()))]
    found = []
    for cause, suspects in order:
        supports = support.get((cause, suspects), (0.0, ()))[1]
        against = tuple(sorted(f.id for f in findings if f.id not in supports and f.ranks and not set(f.ranks) & set(suspects)))
        found.append(
            Hypothesis(cause, CAUSES[cause].layer, probabilities[cause, suspects], suspects, roster.hosts_of(suspects), supports, against)
        )
    return tuple(found)


def _verdict(
    cause: str,
    p_cause: float,
    ranks: Suspects,
    p_ranks: float,
    findings: Sequence[Finding],
    hypotheses: tuple[Hypothesis, ...],
    roster: Roster,
) -> Verdict:
    about = CAUSES[cause]
    awaited = _awaited(findings, ranks)
    telling = _telling(findings, cause, ranks, hypotheses)
    return Verdict(
        cause=cause, layer=about.layer, attribution=about.attribution, probability=p_cause,
        summary=_summary(cause, ranks, findings, roster), ranks=ranks, hosts=roster.hosts_of(ranks),
        gpus=tuple(roster.gpus[rank] for rank in ranks if rank in roster.gpus), ranks_probability=p_ranks if ranks else 0.0,
        failed_at=_failed_at(telling, ranks, roster), step=_first_number(telling, "step"), data=_data(telling), last_collective=awaited,
        ordered_by=_ordered_by(awaited, telling, ranks),
        concurrent=_has_second_fault(ranks, findings), proven=False, hypotheses=hypotheses,
    )  # fmt: skip


def _telling(findings: Sequence[Finding], cause: str, ranks: Suspects, hypotheses: Sequence[Hypothesis]) -> list[Finding]:
    """The findings that the answer rests on, those that speak loudest for its cause first."""
    ids = {i for h in hypotheses if (h.cause, h.ranks) == (cause, ranks) for i in h.supports}
    chosen = [f for f in findings if f.id in ids]
    return sorted(chosen, key=lambda f: (-bits().get((f.analysis, f.sign, cause), 0.0), f.id))


def _first_number(telling: Sequence[Finding], name: str) -> int | None:
    return next((int(f.numbers[name]) for f in telling if f.numbers.get(name) is not None), None)


def _failed_at(telling: Sequence[Finding], ranks: Suspects, roster: Roster) -> datetime | None:
    """When a record says so; else the last call that the accused made."""
    said = [datetime.fromisoformat(f.numbers["failed_at"]) for f in telling if f.numbers.get("failed_at")]
    moments = [roster.last_call_at[rank] for rank in ranks if rank in roster.last_call_at]
    return said[0] if said else min(moments, default=None)


def _data(telling: Sequence[Finding]) -> Mapping[str, Any] | None:
    """The samples that the accused worked on, where a finding names them."""
    for f in telling:
        if f.numbers.get("sample_ids") or f.numbers.get("data_shard"):
            return {"shard": f.numbers.get("data_shard"), "sample_ids": list(f.numbers.get("sample_ids") or ())}
    return None


def _ordered_by(
    awaited: Mapping[str, Any] | None, telling: Sequence[Finding], ranks: Suspects
) -> Literal["collective", "wait", "clock", "log"] | None:
    """What put the accused first: collective numbers, who waits for whom, clocks, or a record that names it outright."""
    if not ranks:
        return None
    said = next((f.numbers["ordered_by"] for f in telling if f.numbers.get("ordered_by")), None)
    if said is not None:
        return cast('Literal["collective", "wait", "clock", "log"]', said)
    waits = any(_sign(f).family in WAITING for f in telling)
    return "collective" if awaited else "wait" if waits else "log"


def _awaited(findings: Sequence[Finding], ranks: Suspects) -> Mapping[str, Any] | None:
    """The collective the accused did not join (or, with nobody accused, the one that is stuck)."""
    for f in sorted(findings, key=lambda f: f.analysis != "first_silent_rank"):
        if f.ranks == ranks and isinstance(f.numbers.get("awaited"), Mapping):
            return dict(f.numbers["awaited"])
    return None


def _has_second_fault(ranks: Suspects, findings: Sequence[Finding]) -> bool:
    """Another set of ranks, disjoint and not explained by the first, with strong support of its own."""
    followed = {r for f in findings if set(f.ranks) & set(ranks) for r in f.explains}
    for f in findings:
        if ranks and f.ranks and not set(f.ranks) & set(ranks) and not set(f.ranks) <= followed and _strength(f) >= CONCURRENT_BITS:
            return True
    return False


def _summary(cause: str, ranks: Suspects, findings: Sequence[Finding], roster: Roster) -> str:
    if ranks:
        shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        hosts = roster.hosts_of(ranks)
        where = f" on {', '.join(hosts)}" if hosts else ""
        why = f"{cause.replace('_', ' ')}: {CAUSES[cause].means}" if cause != "unknown" else "why is not told by this evidence"
        return f"rank{'s' if len(ranks) > 1 else ''} {shown}{where} failed first; {why}"
    if cause == "healthy":
        return "no fault in what was looked at: the job was moving"
    if CAUSES[cause].attribution == "planned":
        return f"{cause.replace('_', ' ')}: {CAUSES[cause].means}; nothing failed"
    if cause != "unknown":
        return f"{cause.replace('_', ' ')}: {CAUSES[cause].means}; no single rank is to blame as far as this evidence shows"
    ties = [f for f in findings if f.sign in ("tie", "wait_ring", "pair_disagrees")]
    return f"unknown; {ties[0].says}" if ties else "unknown: the evidence accuses no rank and shows no cause"
