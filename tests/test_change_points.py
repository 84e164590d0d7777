"""Change points of step times: what is found and where, and what is none. Rates against GREYHOUND's stand in docs/fail_slow.md."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rca.analyses._change_points import MIN_GAP, change_points


def steps(seed: int, number: int, *, noise: float = 0.02, spikes: float = 0.0) -> Any:
    """Step times about 10 s."""
    rng = np.random.default_rng(seed)
    return 10 * np.exp(noise * rng.standard_normal(number)) * np.where(rng.random(number) < spikes, rng.uniform(2, 15, number), 1.0)


@pytest.mark.parametrize("ratio", [0.7, 1.2, 1.6, 3.0])
@pytest.mark.parametrize(("number", "at"), [(24, 12), (200, 40), (200, 190), (5000, 3111)])
def test_a_change_is_found_at_its_place(ratio: float, number: int, at: int) -> None:
    values = steps(number, number)
    values[at:] *= ratio
    (found,) = change_points(values)
    assert (found.index, found.ratio) == (at, pytest.approx(ratio, rel=0.03))
    assert (found.before, found.after) == (pytest.approx(10, rel=0.02), pytest.approx(10 * ratio, rel=0.02))


def test_several_changes_and_gaps() -> None:
    values = steps(1, 300)
    values[60:90] *= 1.4
    values[200:] *= 1.25
    values[[5, 61, 120]] = math.nan
    values[[7, 130]] = 0.0
    assert [change.index for change in change_points(values)] == [60, 90, 200]


@pytest.mark.parametrize("seed", range(4))
def test_noise_spikes_and_short_bursts_are_none(seed: int) -> None:
    values = steps(seed, (20, 100, 500, 3000)[seed], noise=0.15, spikes=0.04)
    values[len(values) // 2 :][:4] *= 5  # in a row
    assert change_points(values) == []


def test_what_verification_drops() -> None:
    small, again, drift = (steps(2, 200, noise=0.01) for _ in range(3))
    small[100:] *= 1.1  # 9.1 % of the higher level
    assert change_points(small) == []
    assert [change.index for change in change_points(small, min_shift=0.05)] == [100]
    again[100 : 100 + MIN_GAP] *= 1.5  # its end is too near its beginning; what is left is no change
    assert change_points(again) == []
    drift *= np.interp(np.arange(200), [80, 110, 140], [1, 1.3, 1])
    assert change_points(drift) == []


@pytest.mark.parametrize("values", [[], [1.0] * 7, [1.0] * 50, [math.nan] * 50, [0.0] * 50, [-1.0] * 50, [math.inf] * 50])
def test_nothing_to_compare(values: list[float]) -> None:
    assert change_points(values) == []
