"""What a count of right answers proves about their share: intervals of a binomial. Pure."""

from __future__ import annotations

import math

__all__ = ["Z95", "at_least", "at_most", "wilson"]

Z95 = 1.959964  # of the normal distribution, two-sided 95 %
ONE_SIDED = 0.05  # what a one-sided bound may miss


def wilson(right: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, 0..1; (0, 1) of nothing."""
    if not of:
        return 0.0, 1.0
    share, square = right / of, Z95 * Z95
    middle = share + square / (2 * of)
    half = Z95 * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    return max(0.0, (middle - half) / (1 + square / of)), min(1.0, (middle + half) / (1 + square / of))


def at_most(hits: int, of: int) -> float:
    """Upper bound of a share with 95 % confidence, one-sided (Clopper-Pearson): of no hit in n it is 1 - 0.05^(1/n), about 3/n."""
    from scipy.stats import beta  # type: ignore[import-untyped]

    return 1.0 if hits >= of else float(beta.ppf(1 - ONE_SIDED, hits + 1, of - hits))


def at_least(hits: int, of: int) -> float:
    """Lower bound of a share with 95 % confidence, one-sided (Clopper-Pearson)."""
    return 1.0 - at_most(of - hits, of) if of else 0.0
