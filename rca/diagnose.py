"""Outcomes -> verdict: which ranks failed first, why, and how sure that is. Pure.

A hypothesis is a cause together with the set of ranks it accuses. Its score is the log2 prior odds of the cause plus the bits of the signs
that speak for it, of each family only the strongest; the scores are turned into probabilities that sum to 1, `unknown` among them with and
without ranks. Who and why are answered separately: ranks are named when the set has half of the probability, a cause when it has half of
what falls to the answer. A verdict never accuses below that.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from typing import Any, Literal

from rca.causes import CAUSES, did_first, is_late, means
from rca.roster import Roster
from rca.stop_words import stood_still, stop_words
from rca.types import Finding, Hypothesis, Outcome, Verdict
from rca.weighing import Support, Suspects, Weights, bits, explained, sign_of, strength, support, weights

__all__ = ["diagnose", "suspect_sets"]

ENOUGH = 0.5  # probability from which ranks or a cause are named
CONCURRENT_BITS = 7.0  # own support of a second, disjoint set of ranks to count as a fault of its own
MAX_HYPOTHESES = 12
PROVABLE = frozenset({"silent_data_corruption", "gpu_fault", "gpu_memory_fault", "host_fault"})  # causes that show as wrong bits
WAITING = frozenset({"silent", "ring", "stuck", "tie"})  # families that rest on who waits for whom


def diagnose(outcomes: Sequence[Outcome], roster: Roster, weighing: Weights | None = None, undated: Set[str] = frozenset()) -> Verdict:
    """The verdict with all hypotheses, best first; weighed as the catalogue says, unless other weights are given. `undated`: ids of findings that
    rest on lines without an instant (`rca.dating`).

    1. Every set of ranks that a finding accuses is a suspect set, and so is nobody.
    2. Score every (cause, suspect set) and turn the scores into probabilities. Prior odds are shares of interruptions: of a job that came to its
       end, whose replicas were compared and agree, and of which no sign speaks for a cause, only whether it was sound is left to ask.
    3. Take the most probable set; of it the most probable cause; name each only when it is probable enough.
    4. State the probabilities as they were found to be honest: sharper or flatter, with a share for what no sign knows, and a larger one where
       nothing dates what an answer rests on: it may be of another launch.
    """
    weighing = weighing or weights()
    findings = [f for o in outcomes for f in o.findings]
    followed = explained(findings)
    told = support([f for f in findings if f.id not in followed], outcomes, weighing.bits)
    is_through = _ended_well(findings) and _are_equal(outcomes) and all(cause == "healthy" for cause, _ in told)
    scores = {
        (cause, s): math.log2(CAUSES[cause].prior) + told.get((cause, s), (0.0, ()))[0]
        for cause in CAUSES
        for s in suspect_sets(findings, cause)
        if not is_through or cause in ("healthy", "unknown")
    }
    probabilities = _softmax(scores)
    by_set: dict[Suspects, float] = defaultdict(float)
    for (_, suspects), p in probabilities.items():
        by_set[suspects] += p
    ranks = max(sorted(by_set), key=lambda s: by_set[s])
    if ranks and by_set[ranks] < ENOUGH:
        ranks = ()
    cause = _best_cause(probabilities, ranks)
    doubtful = {key for key, (_, supports) in told.items() if supports and set(supports) <= undated}
    stated = _stated(scores, weighing, doubtful)
    hypotheses = _hypotheses(stated, told, findings, roster, (cause, ranks))
    p_ranks = sum(p for (_, s), p in stated.items() if s == ranks)
    return _verdict(cause, stated[cause, ranks], ranks, p_ranks, findings, hypotheses, roster)


def suspect_sets(findings: Sequence[Finding], cause: str) -> list[Suspects]:
    """Nobody, and every accused set (a healthy job or a stop by a person accuses nobody)."""
    if cause in ("healthy", "planned_stop", "preemption"):
        return [()]
    return sorted({(), *(f.ranks for f in findings)})


def _ended_well(findings: Sequence[Finding]) -> bool:
    """Whether the job was seen to come to its end by itself."""
    return any(f.sign == "ended_well" for f in findings)


def _are_equal(outcomes: Sequence[Outcome]) -> bool:
    """Whether the replicas were seen to agree bit by bit: a job whose numbers are wrong comes to its end as well."""
    return any(outcome.analysis == "replica_divergence" and outcome.status == "clear" for outcome in outcomes)


def _softmax(scores: Mapping[Any, float]) -> dict[Any, float]:
    top = max(scores.values())
    odds = {key: 2.0 ** (score - top) for key, score in scores.items()}
    total = sum(odds.values())
    return {key: one / total for key, one in odds.items()}


def _stated(
    scores: Mapping[tuple[str, Suspects], float], weighing: Weights, doubtful: Set[tuple[str, Suspects]]
) -> dict[tuple[str, Suspects], float]:
    """Probabilities as they are told; what is named was decided before, so a verdict does not change with how it is told."""
    sharp = _softmax({key: weighing.sharpness * score for key, score in scores.items()})
    told = {key: (1 - weighing.surprise - (weighing.undated if key in doubtful else 0.0)) * p for key, p in sharp.items()}
    told["unknown", ()] += weighing.surprise + weighing.undated * sum(p for key, p in sharp.items() if key in doubtful)
    return told


def _best_cause(probabilities: Mapping[tuple[str, Suspects], float], ranks: Suspects) -> str:
    """The cause that has at least half of what falls to these ranks; else `unknown`."""
    of_set = {cause: p for (cause, s), p in probabilities.items() if s == ranks}
    cause = max(sorted(of_set), key=lambda c: of_set[c])
    if of_set[cause] < ENOUGH * sum(of_set.values()) or (not ranks and of_set[cause] < ENOUGH):
        return "unknown"
    return cause


def _hypotheses(
    probabilities: Mapping[tuple[str, Suspects], float],
    told: Support,
    findings: Sequence[Finding],
    roster: Roster,
    answer: tuple[str, Suspects],
) -> tuple[Hypothesis, ...]:
    """The most probable ones, best first; the answer itself and `unknown` are always among them."""
    ranked = sorted(probabilities, key=lambda k: (-probabilities[k], k[0], k[1]))
    order = [key for place, key in enumerate(ranked) if place < MAX_HYPOTHESES or key in (answer, ("unknown", ()))]
    found = []
    for cause, suspects in order:
        supports = told.get((cause, suspects), (0.0, ()))[1]
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
    hosts = roster.hosts_of(ranks) or (() if roster.disputed & set(ranks) else _machine(about.layer, telling))
    failed_at = _failed_at(telling, ranks, roster)
    is_proven = cause in PROVABLE and bool(hosts) and set(hosts) == _proven_hosts(findings)
    return Verdict(
        cause=cause, layer=about.layer, attribution=about.attribution, probability=p_cause,
        summary=_proven(cause, ranks, hosts, roster) if is_proven else _summary(cause, ranks, findings, roster, hosts), ranks=ranks, hosts=hosts,
        gpus=_gpus(ranks, telling, roster), ranks_probability=p_ranks if ranks else 0.0,
        failed_at=failed_at, step=_first_number(telling, "step"), data=_data(telling), last_collective=awaited,
        ordered_by=_ordered_by(awaited, telling, ranks),
        concurrent=_has_second_fault(ranks, findings), proven=is_proven, hypotheses=hypotheses,
        failed_after=_failed_after(telling) if failed_at is None else None,
    )  # fmt: skip


def _gpus(ranks: Suspects, telling: Sequence[Finding], roster: Roster) -> tuple[str, ...]:
    """Those of the ranks; the one that the record names where it was seen to use another one than maps give."""
    if telling and telling[0].numbers.get("is_other_gpu") and telling[0].ranks == ranks:
        return (str(telling[0].numbers["gpu"]),)
    return tuple(roster.gpus[rank] for rank in ranks if rank in roster.gpus)


def _machine(layer: str, telling: Sequence[Finding]) -> tuple[str, ...]:
    """The one host that a hardware fault sits on where it is not told which of its ranks it hit, or those that a replay or a launcher names."""
    if telling and (telling[0].numbers.get("proven_hosts") or telling[0].numbers.get("names_host")):
        return telling[0].hosts
    return telling[0].hosts if layer == "hardware" and telling and len(telling[0].hosts) == 1 else ()


def _proven_hosts(findings: Sequence[Finding]) -> set[str]:
    """Hosts that a replay, not an inference, shows to compute wrong bits."""
    return {host for f in findings for host in f.numbers.get("proven_hosts", ())}


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


def _failed_after(telling: Sequence[Finding]) -> datetime | None:
    """The last dated line before a failure that has no date."""
    return next((datetime.fromisoformat(f.numbers["failed_after"]) for f in telling if f.numbers.get("failed_after")), None)


def _data(telling: Sequence[Finding]) -> Mapping[str, Any] | None:
    """The samples that the accused worked on, where a finding names them."""
    for f in telling:
        if f.numbers.get("sample_ids") or f.numbers.get("data_shard"):
            return {"shard": f.numbers.get("data_shard"), "sample_ids": list(f.numbers.get("sample_ids") or ())}
    return None


def _ordered_by(
    awaited: Mapping[str, Any] | None, telling: Sequence[Finding], ranks: Suspects
) -> Literal["collective", "wait", "clock", "log"] | None:
    """What put the accused first: collective numbers, who waits for whom, else a record that names it outright; of several such records the
    clocks, where nothing but them says which was earlier (outside their error)."""
    if not ranks:
        return None
    if awaited:
        return "collective"
    if any(sign_of(f).family in WAITING for f in telling):
        return "wait"
    return "clock" if any(f.numbers.get("ordered_by") == "clock" for f in telling) else "log"


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
        if ranks and f.ranks and not set(f.ranks) & set(ranks) and not set(f.ranks) <= followed and strength(f) >= CONCURRENT_BITS:
            return True
    return False


def _proven(cause: str, ranks: Suspects, hosts: Sequence[str], roster: Roster) -> str:
    """The summary of a proven verdict: a replay tells the host, also where no rank of it is known."""
    who = _summary(cause, ranks, (), roster) if ranks else f"{cause.replace('_', ' ')} on {', '.join(hosts)}: {CAUSES[cause].means}"
    return f"{who}; proven by replay"


def _summary(cause: str, ranks: Suspects, findings: Sequence[Finding], roster: Roster, machine: Sequence[str] = ()) -> str:
    signs = [f.sign for f in findings]
    meaning = means(cause, signs)
    if ranks:
        shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        hosts = roster.hosts_of(ranks)
        where = f" on {', '.join(hosts)}" if hosts else ""
        why = f"{cause.replace('_', ' ')}: {meaning}" if cause != "unknown" else "why is not told by this evidence"
        return f"rank{'s' if len(ranks) > 1 else ''} {shown}{where} {did_first(cause, len(ranks), comes_late=is_late(signs))}; {why}"
    if cause == "healthy":
        return f"no fault in what was looked at: the job {'came to its end' if _ended_well(findings) else 'was moving'}"
    if CAUSES[cause].attribution == "planned":
        ended = stop_words(findings, cause)
        is_sound = not any(f.numbers.get("is_broken") or f.numbers.get("broken_beside") for f in findings)
        what = "nothing failed" if is_sound else "no fault ended it"
        return f"{cause.replace('_', ' ')}: {ended.says if ended is not None else meaning}; {what}"
    if cause != "unknown" and machine:
        return f"{cause.replace('_', ' ')} on {', '.join(machine)}: {meaning}; which of its ranks it hit is not told"
    if cause != "unknown":
        return f"{cause.replace('_', ' ')}: {meaning}; no single rank is to blame as far as this evidence shows"
    if (stalled := stood_still(findings)) is not None:
        return f"{stalled}; why it stood still is open"
    ties = [
        f for f in findings if f.sign in ("tie", "wait_ring", "pair_disagrees", "group_apart", "sample_wanted", "level_moved", "bare_stop")
    ]
    if not ties and _ended_well(findings):
        return "no fault in what was looked at: the job came to its end; whether its numbers are right nothing here shows"
    return f"unknown; {ties[0].says}" if ties else "unknown: the evidence accuses no rank and shows no cause"
