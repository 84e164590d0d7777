"""Fits the weights of the signs to incidents whose truth is known, and only as far as these carry.

What is maximised is the probability of the truth, with a prior around the weights set by hand: they are judgement about real fleets, and a simulation
knows less than that. A weight that few incidents touch stays as it was.

1. Incidents count so that causes come as often as they are published to (rca/causes.py), and kinds of one cause equally.
2. A step for each weight that enough incidents touch, with a normal prior of `spread` bits around the one set by hand. Not for a cause that none of
   them has: nothing there could speak for it. No common scale: it would move rows that no incident has touched by what others say.
3. `spread` is chosen by what the weights say of kinds left out, of those that gain more there than chance among kinds would give (twice the standard
   error of the gain); where none does, all weights stay as set by hand.
4. How a probability is stated: the sharpness (a factor of all scores) and the share that stays with `unknown` (surprise) under which answers to kinds
   left out are most likely to be as right as they were; with a prior around 1, and half a kind more wrong than was seen (the prior of Jeffreys for a
   share). A kind counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rca.causes import CAUSES
from rca.drills._campaign_evidence import Evidence
from rca.weighing import Key

__all__ = ["Fit", "fit"]

LN2 = float(np.log(2.0))
SPREADS = (0.25, 0.5, 1.0, 2.0)  # bits, of the prior around a weight set by hand
MIN_SEEN = 8  # incidents that a weight must touch to be moved
MIN_KINDS = 2  # kinds that they must come from: what one kind shows may be how that kind is simulated
LOWEST, HIGHEST = 0.1, 20.0  # bits of a row
IN_FIT = 0.02  # surprise while fitting, so that an incident no weight explains pulls at none
SURPRISES = np.linspace(0.002, 0.1, 50)
SHARPNESSES = np.exp(np.linspace(-1.1, 1.1, 89))  # a third to triple
SHARPNESS_SPREAD = float(np.log(2.0))  # of its logarithm: the prior takes a factor of two, either way, for ordinary
MORE_WRONG = (
    0.5  # kinds that were wrong beyond those seen (Jeffreys): with a whole one the sure answers are stated lower than they prove to be
)
NAMED = 0.5  # probability from which a verdict names its answer
MAX_WEIGHT = 4.0  # of one incident against the mean one
FOLDS = 5
SURE_GAIN = 2.0  # standard errors, over kinds, that a gain on kinds left out must exceed
Array = NDArray[Any]


@dataclass(frozen=True)
class Fit:
    """The weights, and what they were chosen by."""

    bits: Mapping[Key, float]
    seen: Mapping[Key, int]  # incidents that a row takes part in
    surprise: float
    undated: float
    sharpness: float
    spread: float  # of the prior that was chosen; 0: the weights stay as set by hand
    loss_by_hand: float  # mean log2 loss of the truth on kinds left out: with the weights set by hand
    loss_fitted: float  # and with weights fitted without those kinds
    incidents: int
    kinds: int


class _Problem:
    """The incidents as flat arrays: entries (a row of bits.csv) in slots (a family of a hypothesis) in hypotheses in incidents."""

    def __init__(self, told: Sequence[Evidence], keys: Sequence[Key], weights: Array) -> None:
        number = {key: place for place, key in enumerate(keys)}
        slots: dict[tuple[int, str], int] = {}
        entry_slot, entry_key, penalty, loss_hyp, loss_key = [], [], [], [], []
        prior: list[float] = []
        right: list[bool] = []
        unknown: list[bool] = []
        is_max: list[bool] = []
        start, self.starts = 0, list[int]()
        for one in told:
            self.starts.append(start)
            for hypothesis, family, key, cost in one.gains:
                entry_slot.append(slots.setdefault((start + hypothesis, family), len(slots)))
                entry_key.append(number[key])
                penalty.append(cost)
            for hypothesis, key in one.losses:
                loss_hyp.append(start + hypothesis)
                loss_key.append(number[key])
            prior += one.log2_prior
            right += one.is_right
            unknown += one.is_nobody_unknown
            is_max += [cause == "unknown" for cause in one.causes]
            start += len(one.causes)
        self.entry_slot, self.entry_key = np.array(entry_slot, int), np.array(entry_key, int)
        self.penalty, self.prior = np.array(penalty, float), np.array(prior, float)
        self.slot_hyp = np.array([hypothesis for hypothesis, _ in slots], int)
        self.loss_hyp, self.loss_key = np.array(loss_hyp, int), np.array(loss_key, int)
        self.right, self.unknown, self.is_max = np.array(right, bool), np.array(unknown, bool), np.array(is_max, bool)
        self.weights, self.size, self.num_keys = weights, start, len(keys)
        self.incident = np.repeat(np.arange(len(told)), np.diff([*self.starts, start]))

    def probabilities(self, bits: Array) -> tuple[Array, Array, Array, Array]:
        """Of each hypothesis; and, for the gradient, how much of each entry, slot and loss counts."""
        worth = bits[self.entry_key] - self.penalty
        slot, entry_part = _segment_max(worth, self.entry_slot, len(self.slot_hyp))
        slot_is_open = slot > 0
        slot = np.where(slot_is_open, slot, 0.0)
        top, slot_part = _segment_max(slot, self.slot_hyp, self.size)
        total = np.bincount(self.slot_hyp, slot, self.size)
        score = self.prior + np.where(self.is_max, np.maximum(top, 0.0), total)
        slot_part = np.where(self.is_max[self.slot_hyp], slot_part, 1.0) * slot_is_open
        loss, loss_part = _segment_max(bits[self.loss_key], self.loss_hyp, self.size)
        score = score - np.where(np.isfinite(loss), loss, 0.0)
        score = (score - np.maximum.reduceat(score, self.starts)[self.incident]) * LN2
        odds = np.exp(score)
        shares = odds / np.add.reduceat(odds, self.starts)[self.incident]
        return shares, entry_part, slot_part, loss_part

    def told(self, bits: Array) -> Array:
        """Of each incident, without surprise: probability of the truth; whether the likeliest answer is right, and whether it is named; then its
        probability at every sharpness."""
        shares, *_ = self.probabilities(bits)
        top = np.maximum.reduceat(shares, self.starts)
        is_top = shares == top[self.incident]
        right, unknown = (np.logical_or.reduceat(is_top & which, self.starts) for which in (self.right, self.is_max))
        plain = np.add.reduceat(shares * self.right, self.starts)
        odds = np.log(np.maximum(shares, 1e-300) / top[self.incident])
        sharp = [1 / np.add.reduceat(np.exp(sharpness * odds), self.starts) for sharpness in SHARPNESSES]
        found: Array = np.stack([plain, right, ~unknown & (top >= NAMED), *sharp])
        return found

    def loss(self, bits: Array) -> tuple[float, Array]:
        """Weighted -log2 probability of the truth, and its gradient by row."""
        shares, entry_part, slot_part, loss_part = self.probabilities(bits)
        plain = np.add.reduceat(shares * self.right, self.starts)
        lucky = np.add.reduceat((self.right & self.unknown).astype(float), self.starts)
        told = (1 - IN_FIT) * plain + IN_FIT * lucky + 1e-12
        value = float(-(self.weights * np.log2(told)).sum())
        pull = -(self.weights / told * (1 - IN_FIT))[self.incident] * shares * (self.right - plain[self.incident])  # d loss / d score
        by_slot = pull[self.slot_hyp] * slot_part
        gradient = np.bincount(self.entry_key, by_slot[self.entry_slot] * entry_part, self.num_keys)
        gradient -= np.bincount(self.loss_key, pull[self.loss_hyp] * loss_part, self.num_keys)
        return value, gradient


def _segment_max(values: Array, segment: Array, count: int) -> tuple[Array, Array]:
    """The largest value of each segment (-inf of an empty one), and the part of each value in it: equal ones share."""
    top = np.full(count, -np.inf)
    np.maximum.at(top, segment, values)
    is_top = values == top[segment]
    number = np.bincount(segment, is_top, count)
    return top, is_top / np.maximum(number[segment], 1.0)


def fit(told: Sequence[Evidence], by_hand: Mapping[Key, float]) -> Fit:
    """The weights that say most of the truth of these incidents. Deterministic: the same incidents, the same weights."""
    kinds = sorted({one.kind for one in told})
    seen = Counter(key for one in told for key in one.keys)
    held = {spread: np.zeros((3 + len(SHARPNESSES), len(told))) for spread in (0.0, *SPREADS)}  # 0: as set by hand
    for turn in range(min(FOLDS, len(kinds))):
        out = set(kinds[turn::FOLDS])
        inside = [one for one in told if one.kind not in out]
        outside = [number for number, one in enumerate(told) if one.kind in out]
        for spread in held:
            bits = _fitted(inside, by_hand, spread) if inside and spread else by_hand
            held[spread][:, outside] = _said([told[number] for number in outside], bits)
    weights = _weights(told)
    each = {spread: -(weights * np.log2((1 - IN_FIT) * of[0] + 1e-6)) for spread, of in held.items()}
    losses = {spread: float(loss.mean()) for spread, loss in each.items()}
    sure = [spread for spread in held if not spread or _is_sure(each[0.0] - each[spread], told)]
    best = min(sure, key=lambda spread: losses[spread])
    bits = _fitted(told, by_hand, best) if best else dict(by_hand)
    of_kind = Counter(one.kind for one in told)
    weights = np.array([1 / of_kind[one.kind] for one in told])
    of = np.array([one.kind for one in told])
    _, sharpness = _stating(held[best], weights, of)
    is_undated = np.array([one.is_undated for one in told], bool)
    dated, not_dated = (_stating(held[best][:, which], weights[which], of[which], sharpness)[0] for which in (~is_undated, is_undated))
    return Fit(bits, seen, dated, max(0.0, not_dated - dated), sharpness, best, losses[0.0], losses[best], len(told), len(kinds))


def _is_sure(gains: Array, told: Sequence[Evidence]) -> bool:
    """Whether gains of incidents are more than chance among kinds: incidents of one kind resemble each other, so a kind is one draw."""
    _, place = np.unique([one.kind for one in told], return_inverse=True)
    by_kind = np.bincount(place, gains)
    return len(by_kind) > 1 and bool(by_kind.mean() > SURE_GAIN * by_kind.std(ddof=1) / np.sqrt(len(by_kind)))


def _weights(told: Sequence[Evidence]) -> Array:
    """Causes as often as published, kinds of one cause alike, mean 1; none more than MAX_WEIGHT, so that no one incident leads."""
    of_cause = Counter(cause for cause, _ in {(one.cause, one.kind) for one in told})
    of_kind = Counter(one.kind for one in told)
    raw = np.array([CAUSES[one.cause].prior / of_cause[one.cause] / of_kind[one.kind] for one in told])
    capped: Array = np.minimum(raw / raw.mean(), MAX_WEIGHT)
    return capped


def _fitted(told: Sequence[Evidence], by_hand: Mapping[Key, float], spread: float) -> dict[Key, float]:
    """Every weight with its step, from where the hand left them."""
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    keys = sorted(by_hand)
    hand = np.array([by_hand[key] for key in keys])
    seen = Counter(key for one in told for key in one.keys)
    in_kinds = Counter(key for key, _ in {(key, one.kind) for one in told for key in one.keys})
    causes = {cause for one in told for cause, is_right in zip(one.causes, one.is_right, strict=True) if is_right}
    moves = np.array([seen[key] >= MIN_SEEN and in_kinds[key] >= MIN_KINDS and key[2] in causes for key in keys])
    problem = _Problem(told, keys, _weights(told))

    def bits_of(steps: Array) -> Array:
        moved: Array = np.clip(hand + np.where(moves, steps, 0.0), LOWEST, HIGHEST)
        return moved

    def objective(steps: Array) -> tuple[float, Array]:
        bits = bits_of(steps)
        value, slope = problem.loss(bits)
        slope = slope * (moves & (bits > LOWEST) & (bits < HIGHEST))
        return value + float((steps**2).sum() / (2 * spread**2)), slope + steps / spread**2

    found = minimize(objective, np.zeros(len(keys)), jac=True, method="L-BFGS-B", options={"maxiter": 200})
    return dict(zip(keys, bits_of(found.x).tolist(), strict=True))


def _said(told: Sequence[Evidence], bits: Mapping[Key, float]) -> Array:
    """`_Problem.told` of each incident with these weights."""
    keys = sorted(bits)
    return _Problem(told, keys, np.ones(len(told))).told(np.array([bits[key] for key in keys]))


def _stating(held: Array, weights: Array, kinds: Array, sharpness: float | None = None) -> tuple[float, float]:
    """Surprise and sharpness (if that is not given) under which what was said of kinds left out is most likely to have been as right as it was. Half
    a kind more is half of what a kind has of these answers."""
    _, is_right, names, *sharp = held
    chosen = names > 0
    right, counts = is_right[chosen] > 0, weights[chosen]
    more_wrong = MORE_WRONG * counts.sum() / max(1, len(np.unique(kinds[chosen])))

    def likely(surprise: float, sharpness: float, stated: Array) -> float:
        told = (1 - surprise) * stated[chosen]
        prior = more_wrong * np.log(surprise) - np.log(sharpness) ** 2 / (2 * SHARPNESS_SPREAD**2)
        return float((counts * np.log(np.where(right, told, 1 - told) + 1e-12)).sum() + prior)

    options = [
        (likely(s, k, stated), float(s), float(k))
        for k, stated in zip(SHARPNESSES, sharp, strict=True)
        for s in SURPRISES
        if sharpness is None or k == sharpness
    ]
    _, surprise, sharpness = max(options)
    return surprise, sharpness
