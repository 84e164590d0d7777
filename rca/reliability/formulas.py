"""The formulas of reliability, over plain numbers: rates with their intervals, expected training time, spares. docs/reliability.md explains them.

Nothing here knows a table or a paper: `figures` feeds it a fleet's own records, `published` the figures of papers, so that both
are computed by the same code. Hours in, hours out, unless the name says otherwise.
"""

from __future__ import annotations

import math

__all__ = [
    "CONFIDENCE",
    "best_interval",
    "expected_ratio",
    "lower_ratio",
    "mean_time",
    "mean_time_to_failure",
    "per_1000",
    "poisson_interval",
    "share",
    "spares",
]

CONFIDENCE = 0.95  # of every interval printed
DAY_H = 24.0


def mean_time(count: int, hours: float) -> float | None:
    """Mean time between `count` events in `hours` of observation, h. No event: None, never infinity; `poisson_interval` bounds it.

    Observation that is still going on counts in `hours` and adds no event (right-censored): the maximum-likelihood estimate of a constant
    rate.
    """
    return hours / count if count and hours > 0 else None


def per_1000(count: int, node_hours: float) -> float | None:
    """Events per 1,000 node-days. Source: Meta, HPCA'25, section on failure rates (there r_f)."""
    return count / (node_hours / DAY_H) * 1000.0 if node_hours > 0 else None


def share(part: float, whole: float) -> float | None:
    """part / whole; None of nothing."""
    return part / whole if whole else None


def poisson_interval(count: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Exact two-sided interval of the expected number of events when `count` were seen (Garwood 1936, by quantiles of chi-square).

    Of no event it is (0, 3.69) at 95 %: what was not seen in T hours may still happen 3.69 times in T.
    """
    from scipy.stats import chi2  # type: ignore[import-untyped]

    tail = (1.0 - confidence) / 2.0
    low = float(chi2.ppf(tail, 2 * count)) / 2.0 if count else 0.0
    return low, float(chi2.ppf(1.0 - tail, 2 * count + 2)) / 2.0


def mean_time_to_failure(nodes: float, per_1000_node_days: float) -> float:
    """MTTF of a job on so many nodes that each fail at this rate, h: 1 / (N r_f). Source: Meta, HPCA'25."""
    return DAY_H * 1000.0 / (nodes * per_1000_node_days)


def lower_ratio(*, mttf_h: float, recover_h: float, interval_h: float, write_h: float = 0.0) -> float:
    """Expected share of time that trains, closed form: (1 - (u0 + dt/2) / M) / (1 + w / dt). Source: Meta, HPCA'25.

    A lower bound where writing costs nothing (w = 0), and far too low at high loss: it lets no failure fall into a recovery.
    """
    return (1.0 - (recover_h + interval_h / 2.0) / mttf_h) / (1.0 + write_h / interval_h)


def expected_ratio(*, mttf_h: float, recover_h: float, interval_h: float, write_h: float = 0.0) -> float:
    """The same by renewal, exact when failures come at a constant rate: dt / (exp(u0 / M) M (exp((dt + w) / M) - 1))."""
    return interval_h / (math.exp(recover_h / mttf_h) * mttf_h * math.expm1((interval_h + write_h) / mttf_h))


def best_interval(*, mttf_h: float, write_h: float) -> float:
    """Time between checkpoints that loses least, h: sqrt(2 w M) (Young 1974, Daly 2006, first order)."""
    return math.sqrt(2.0 * write_h * mttf_h)


def spares(machines: int, daily: float, *, quantile: float = 0.99) -> int:
    """Machines to hold in reserve: the 99th percentile of a day's failures, Binomial(machines, daily). Source: ByteRobust, SOSP'25."""
    from scipy.stats import binom

    return int(binom.ppf(quantile, machines, daily))
