"""Is a stated probability honest? Expected calibration error, Brier score and skill, and how well it tells right answers from wrong ones. Pure.

Answers of one kind of fault resemble each other, so intervals are drawn over kinds (a bootstrap that draws whole kinds), not over answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["BINS", "Answers", "Bin", "auroc", "brier", "ece", "interval", "reliability", "skill"]

BINS = 10  # of equal mass: fixed edges would leave most of them empty, since most answers are sure
DRAWS = 1000  # of the bootstrap
PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True)
class Answers:
    """Stated probabilities (0..1) of n answers, whether each was right, and of which kind of fault it was."""

    stated: NDArray[np.float64]
    is_right: NDArray[np.bool_]
    kinds: NDArray[np.str_]

    @classmethod
    def of(cls, rows: Sequence[tuple[float, bool, str]]) -> Answers:
        """From (stated, right, kind) of each answer."""
        return cls(np.array([r[0] for r in rows], float), np.array([r[1] for r in rows], bool), np.array([r[2] for r in rows], str))

    def __len__(self) -> int:
        return len(self.stated)


@dataclass(frozen=True)
class Bin:
    """Answers of neighbouring probabilities: how many, what they said on average, and how many were right."""

    count: int
    low: float
    high: float
    stated: float
    right: int


def reliability(answers: Answers, bins: int = BINS) -> list[Bin]:
    """Bins of equal mass, least sure first. Equal probabilities are never split: they would differ by the order of rows alone."""
    order = np.argsort(answers.stated, kind="stable")
    stated, right = answers.stated[order], answers.is_right[order]
    found, start = [], 0
    for number in range(1, bins + 1):
        end = round(len(stated) * number / bins)
        while start < end < len(stated) and stated[end] == stated[end - 1]:
            end += 1
        if end > start:
            part = stated[start:end]
            found.append(Bin(end - start, float(part[0]), float(part[-1]), float(part.mean()), int(right[start:end].sum())))
            start = end
    return found


def ece(answers: Answers, bins: int = BINS) -> float:
    """Expected calibration error: mean over bins of |stated - share right|, weighted by their answers; nan of nothing."""
    told = reliability(answers, bins)
    return sum(b.count * abs(b.stated - b.right / b.count) for b in told) / len(answers) if told else float("nan")


def brier(answers: Answers) -> float:
    """Mean square of stated probability minus what came true; 0 is perfect."""
    return float(np.mean((answers.stated - answers.is_right) ** 2)) if len(answers) else float("nan")


def skill(answers: Answers) -> float:
    """1 - Brier score / that of always stating the share that was right; above 0 = better than this constant. nan where all or none are right."""
    share = float(answers.is_right.mean()) if len(answers) else float("nan")
    constant = share * (1 - share)
    return 1 - brier(answers) / constant if constant > 0 else float("nan")


def auroc(answers: Answers) -> float:
    """Chance that a right answer was stated with a higher probability than a wrong one (ties count half); nan where all or none are right."""
    from scipy.stats import rankdata  # type: ignore[import-untyped]

    good, bad = int(answers.is_right.sum()), int((~answers.is_right).sum())
    if not good or not bad:
        return float("nan")
    ranks = rankdata(answers.stated)
    return float((ranks[answers.is_right].sum() - good * (good + 1) / 2) / (good * bad))


def interval(answers: Answers, figure: Callable[[Answers], float], draws: int = DRAWS) -> tuple[float, float]:
    """95 % interval of a figure by drawing whole kinds with replacement; the same every time. (nan, nan) where no draw has a figure."""
    chance = np.random.default_rng(0)
    names, place = np.unique(answers.kinds, return_inverse=True)
    of_kind = [np.flatnonzero(place == number) for number in range(len(names))]
    found = []
    for _ in range(draws if len(names) else 0):
        chosen = np.concatenate([of_kind[number] for number in chance.integers(0, len(names), len(names))])
        value = figure(Answers(answers.stated[chosen], answers.is_right[chosen], answers.kinds[chosen]))
        if np.isfinite(value):
            found.append(value)
    low, high = np.percentile(found, PERCENTILES) if found else (float("nan"), float("nan"))
    return float(low), float(high)
