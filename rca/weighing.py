"""How strongly the findings speak for each cause and suspect. Pure.

Bits add up over families; what follows from an earlier record in the causal order does not accuse anybody, and does not change why.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rca import plugins
from rca.catalogues import cached, is_sites, rows
from rca.types import Finding, Outcome, Sign

__all__ = [
    "FIRM_BITS",
    "SLOWING",
    "Gain",
    "Gains",
    "Key",
    "Losses",
    "Support",
    "Suspects",
    "Weights",
    "bits",
    "by_hand",
    "explained",
    "gains",
    "set_by_hand",
    "sign_of",
    "strength",
    "support",
    "weights",
]

CAUSAL_ORDER = ("stop", "peer", "device", "death", "exception")  # families of records that explain what comes after; all others come last
PEER = "peer"  # records that a GPU suffers from another one: they explain errors of its device, and nothing else
SIGNS_OF_LIFE = ("job_motion", "process_death")  # questions that are clear only when the job moved, or all of it ended well
FOLLOWING = ("silent", "stack", "stuck", "ring", "tie", "network")  # families that show who stands still or apart, for whatever reason
SLOWING = ("slowness", "imbalance", "pace", "transfers")  # families of what makes a job slow: that ends none
BROKEN = "network"  # family of what tells that connections were lost
ENDING = ("device", "death", "exception")  # families of records that do
FIRM_BITS = 8.0  # strength from which a record explains others
LEADING_BITS = 12.0  # strength from which it names the cause of its suspects' trouble
Suspects = tuple[int, ...]
Key = tuple[str, str, str]  # (analysis, sign, cause): a row of bits.csv
Support = dict[tuple[str, Suspects], tuple[float, tuple[str, ...]]]  # (cause, suspects) -> bits, and the findings they come from


@dataclass(frozen=True)
class Gain:
    """What one finding gives a hypothesis: the largest bits of these rows, less what it takes to pick a part of the accused."""

    keys: tuple[Key, ...]
    penalty: float
    finding: str  # its id; "" = a question that looked and found nothing


@dataclass(frozen=True)
class Weights:
    """What findings weigh: bits of every row; and how a probability is stated that is honest on kinds of faults that nobody weighed for."""

    bits: Mapping[Key, float]
    surprise: float  # 0..1, stays with `unknown`: how often a sure answer is wrong all the same, for reasons that no sign shows
    undated: float = 0.0  # 0..1, stays with `unknown` beside that, of an answer that rests on lines without an instant alone
    sharpness: float = (
        1.0  # factor of every score before it becomes a stated probability; above 1: answers were right more often than they said
    )


Gains = dict[tuple[str, Suspects], dict[str, list[Gain]]]  # (cause, suspects) -> family -> what speaks for it
Losses = dict[tuple[str, Suspects], list[Key]]  # (cause, suspects) -> what speaks against it


@cached
def bits() -> Mapping[Key, float]:
    """(analysis, sign, cause) -> bits, from catalogue/bits.csv."""
    return {(r["analysis"], r["sign"], r["cause"]): float(r["bits"]) for r in rows("bits")}


@cached
def set_by_hand() -> Mapping[Key, float]:
    """(analysis, sign, cause) -> bits before calibration. Which records explain others is a rule, and must not move when a weight is fitted."""
    told = {(r["analysis"], r["sign"], r["cause"]): r for r in rows("bits")}
    return {
        key: float(r["bits"] if is_sites("bits", key, "bits") or not r.get("set_by_hand") else r["set_by_hand"]) for key, r in told.items()
    }


@cached
def weights() -> Weights:
    """Those that count: calibrated where `rca drill campaign --calibrate` has been, else set by hand."""
    figures = {r["figure"]: float(r["value"]) for r in rows("calibration")}
    return Weights(bits(), figures["surprise"], figures["undated"], figures["sharpness"])


def by_hand() -> Weights:
    """Those before calibration."""
    return Weights(set_by_hand(), 0.0)


def gains(findings: Sequence[Finding], outcomes: Sequence[Outcome]) -> tuple[Gains, Losses]:
    """What speaks for and against every (cause, suspect set), by families, before any bits are looked up.

    A finding that accuses a larger set speaks for each part of it too, less the bits it takes to pick the part; one that accuses nobody
    speaks for its causes whoever the suspect is, or whoever of the ranks that it leaves open (those of one host); but not of whom only a
    doubtful record or a remark names: what tells a cause and nobody is not pinned on them. That why is open is said once, however many signs
    say so. Where a record names the cause of a suspect's trouble, what comes later in the causal order is its consequence (a GPU off the bus
    also kills): it still says who, not why.
    A record that clears (a clean replay) takes bits from its causes for the ranks it looked at, and for nobody else.
    That nothing was found speaks for health only where the job was seen alive, or seen to end well.
    """
    told: Gains = defaultdict(lambda: defaultdict(list))
    against: Losses = defaultdict(list)
    all_suspects = sorted({(), *(f.ranks for f in findings)})
    accused = {f.ranks for f in findings if _accuses(sign_of(f))}
    leading = {suspects: _leading(findings, suspects) for suspects in all_suspects}
    for f in findings:
        sign = sign_of(f)
        if sign.is_against:
            for cause in sign.causes:
                for suspects in (s for s in all_suspects if _clears(f, s)):
                    against[cause, suspects].append((f.analysis, f.sign, cause))
            continue
        for suspects in all_suspects:
            if suspects != f.ranks and f.ranks and not (suspects and set(suspects) < set(f.ranks)):
                continue
            fitting = f.numbers.get("candidates")
            if not f.ranks and suspects and fitting and not set(suspects) <= set(fitting):
                continue  # a record of one host is no evidence against a rank of another
            if not f.ranks and suspects and suspects not in accused:
                continue
            penalty = math.log2(len(f.ranks) / len(suspects)) if f.ranks and suspects else 0.0
            lead = leading[suspects]
            follows = lead is not None and bool(f.ranks) and _place(f) > _place(lead)
            for cause in sign_of(lead).causes if lead and follows else sign.causes:
                if cause == "unknown" and not f.ranks and suspects:
                    continue
                keys = tuple((f.analysis, f.sign, c) for c in (sign.causes if follows else (cause,)))
                told[cause, suspects][sign.family].append(Gain(keys, penalty, f.id))
    clear = [outcome.analysis for outcome in outcomes if outcome.status == "clear"]
    if any(analysis in SIGNS_OF_LIFE for analysis in clear):
        for key in sorted(key for key in bits() if key[1] == "clear" and key[0] in clear):
            told[key[2], ()][f"clear/{key[0]}"].append(Gain((key,), 0.0, ""))
    return told, against


def support(findings: Sequence[Finding], outcomes: Sequence[Outcome], weighed: Mapping[Key, float] | None = None) -> Support:
    """(cause, suspect set) -> bits and the findings they come from: `gains` summed up, of one family only the strongest, of `unknown` the one
    strongest of all; less what speaks against it."""
    weighed = bits() if weighed is None else weighed
    told, against = gains(findings, outcomes)
    found: Support = {}
    for key, families in told.items():
        best = [max(((_worth(gain, weighed), gain.finding) for gain in family), key=lambda one: one[0]) for family in families.values()]
        best = [one for one in best if one[0] > 0]
        if best:
            together = max if key[0] == "unknown" else sum
            found[key] = (together(worth for worth, _ in best), tuple(sorted(i for _, i in best if i)))
    for key, losses in against.items():
        have, ids = found.get(key, (0.0, ()))
        found[key] = (have - max(weighed.get(loss, 0.0) for loss in losses), ids)
    return found


def _worth(gain: Gain, weighed: Mapping[Key, float]) -> float:
    return max((weighed.get(key, 0.0) for key in gain.keys), default=0.0) - gain.penalty


def _accuses(sign: Sign) -> bool:
    """Whether it speaks for a named cause, or shows who stands still or apart: for whatever reason."""
    if sign.is_note or sign.is_against:
        return False
    return sign.family in FOLLOWING or any(cause != "unknown" for cause in sign.causes)


def _clears(finding: Finding, suspects: Suspects) -> bool:
    """Whether a record that speaks against a cause looked at all of these suspects; nobody named may be anybody."""
    return set(suspects) <= set(finding.numbers["cleared_ranks"]) if suspects else bool(finding.numbers["clears_all"])


def _leading(findings: Sequence[Finding], suspects: Suspects) -> Finding | None:
    """The record that names the cause of what happened to these suspects: the earliest in the causal order, of those the strongest."""
    told = [
        f for f in findings if suspects and set(suspects) <= set(f.ranks) and strength(f) >= LEADING_BITS and _place(f) < len(CAUSAL_ORDER)
    ]
    return min(told, key=lambda f: (_place(f), -strength(f), f.id), default=None)


def _place(finding: Finding) -> int:
    """Place of a finding's family in the causal order."""
    family = sign_of(finding).family
    return CAUSAL_ORDER.index(family) if family in CAUSAL_ORDER else len(CAUSAL_ORDER)


def explained(findings: Sequence[Finding]) -> dict[str, str]:
    """finding id -> id of the finding that it only follows from: one earlier in the causal order, that stands firm and explains its ranks.

    A planned end, a kernel record, a death or an exception of its own explains why others fell silent, left their loop or lost connections;
    never the other way round. What was recorded on both sides of a call, or of the numbers, needs no such explanation. Who was slow in a job
    that another rank's fault ended, or whose connections broke elsewhere, is a second matter: slowness ends no job.
    """
    firm = [f for f in findings if _place(f) < len(CAUSAL_ORDER) and strength(f) >= FIRM_BITS]
    found = {}
    for f in (f for f in findings if sign_of(f).family in (*CAUSAL_ORDER, *FOLLOWING)):
        for cause in firm:
            if sign_of(cause).family == PEER and sign_of(f).family != "device":
                continue
            if _place(cause) < _place(f) and f.ranks and set(f.ranks) <= set(cause.explains) and not set(f.ranks) & set(cause.ranks):
                found[f.id] = cause.id
                break
    ends = [f for f in firm if sign_of(f).family in ENDING and f.ranks]
    ends += [f for f in findings if sign_of(f).family == BROKEN and strength(f) >= FIRM_BITS]
    for f in (f for f in findings if sign_of(f).family in SLOWING):
        if (other := next((end for end in ends if not set(f.ranks) & {*end.ranks, *end.numbers.get("candidates", ())}), None)) is not None:
            found[f.id] = other.id
    return found


def strength(finding: Finding) -> float:
    """Bits, as set by hand, that it gives to the named cause it speaks for most."""
    return max(
        (set_by_hand().get((finding.analysis, finding.sign, c), 0.0) for c in sign_of(finding).causes if c != "unknown"), default=0.0
    )


def sign_of(finding: Finding) -> Sign:
    """The sign that a finding shows."""
    signs: Mapping[str, Sign] = plugins.load("rca.analyses", finding.analysis).SIGNS
    return signs[finding.sign]
