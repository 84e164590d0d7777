"""What the weights of one incident add up from, as numbers: for the fit, which tries many weights on the same findings. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from rca.causes import CAUSES
from rca.diagnose import suspect_sets
from rca.types import Outcome, Verdict
from rca.weighing import Key, explained, gains

__all__ = ["Evidence", "evidence"]


@dataclass(frozen=True)
class Evidence:
    """Every hypothesis of an incident, with the rows of bits.csv that speak for and against it."""

    kind: str
    causes: tuple[str, ...]  # by hypothesis; with `log2_prior` and `is_right` of the same length
    log2_prior: tuple[float, ...]
    is_right: tuple[bool, ...]  # what the verdict should come to; several where the truth accepts several causes
    is_nobody_unknown: tuple[bool, ...]
    gains: tuple[tuple[int, str, Key, float], ...]  # (hypothesis, family, row, what it takes to pick a part of the accused)
    losses: tuple[tuple[int, Key], ...]
    cause: str  # the first that the truth accepts
    keys: frozenset[Key] = field(default_factory=frozenset)
    is_undated: bool = False  # the answer by the weights set by hand rests on lines without an instant alone


def evidence(kind: str, outcomes: Sequence[Outcome], truth: Mapping[str, Any], verdict: Verdict, undated: Set[str]) -> Evidence:
    """What `diagnose` weighs, before any weight is looked up. `verdict`: by the weights set by hand; `undated`: as `diagnose` takes it."""
    findings = [f for o in outcomes for f in o.findings]
    followed = explained(findings)
    told, against = gains([f for f in findings if f.id not in followed], outcomes)
    pairs = [(cause, suspects) for cause in CAUSES for suspects in suspect_sets(findings, cause)]
    place = {pair: number for number, pair in enumerate(pairs)}
    for_it = [
        (place[pair], family, key, gain.penalty)
        for pair, families in told.items()
        if pair in place
        for family, found in families.items()
        for gain in found
        for key in gain.keys
    ]
    losses = tuple((place[pair], key) for pair, keys in against.items() if pair in place for key in keys)
    right = _right(pairs, truth)
    answer = next((h for h in verdict.hypotheses if (h.cause, h.ranks) == (verdict.cause, verdict.ranks)), None)
    return Evidence(
        kind=kind,
        causes=tuple(cause for cause, _ in pairs),
        log2_prior=tuple(math.log2(CAUSES[cause].prior) for cause, _ in pairs),
        is_right=tuple(pair in right for pair in pairs),
        is_nobody_unknown=tuple(pair == ("unknown", ()) for pair in pairs),
        gains=tuple(for_it),
        losses=losses,
        cause=truth["cause"][0],
        keys=frozenset(key for _, _, key, _ in for_it) | frozenset(key for _, key in losses),
        is_undated=answer is not None and bool(answer.supports) and set(answer.supports) <= undated,
    )


def _right(pairs: Collection[tuple[str, tuple[int, ...]]], truth: Mapping[str, Any]) -> set[tuple[str, tuple[int, ...]]]:
    """The true cause with the true ranks. Where no finding accuses just these, the best that can be said: the cause of nobody, or not to know."""
    want = set(truth["first_failing_ranks"])
    if truth.get("any_of_ranks"):
        fitting = {pair for pair in pairs if pair[0] in truth["cause"] and pair[1] and set(pair[1]) <= want}
    else:
        fitting = {pair for pair in pairs if pair[0] in truth["cause"] and set(pair[1]) == want}
    if fitting:
        return fitting
    return {(cause, ()) for cause in (*truth["cause"], "unknown")}
