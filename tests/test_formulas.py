"""The formulas of reliability, against closed forms, tables of others and brute force."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson

from rca.reliability import formulas


def test_mean_time_is_observation_over_events_and_unknown_without_an_event() -> None:
    assert formulas.mean_time(4, 100.0) == 25.0
    assert formulas.mean_time(0, 100.0) is None
    assert formulas.mean_time(3, 0.0) is None


def test_rate_per_1000_node_days() -> None:
    assert formulas.per_1000(2, 24.0 * 500) == pytest.approx(4.0)  # 2 in 500 node-days
    assert formulas.per_1000(2, 0.0) is None


def test_interval_of_no_event_ends_where_seeing_none_has_a_chance_of_one_in_forty() -> None:
    low, high = formulas.poisson_interval(0)
    assert low == 0.0
    assert high == pytest.approx(-math.log(0.025))


@given(st.integers(1, 500))
def test_interval_is_exact_in_its_tails(count: int) -> None:
    low, high = formulas.poisson_interval(count)
    assert low < count < high
    assert poisson.sf(count - 1, low) == pytest.approx(0.025, rel=1e-6)  # at the lower end so many or more
    assert poisson.cdf(count, high) == pytest.approx(0.025, rel=1e-6)  # at the upper end so few or fewer


def test_mean_time_to_failure_of_published_sizes() -> None:
    assert formulas.mean_time_to_failure(2048, 6.5) == pytest.approx(1.803, abs=5e-4)
    assert formulas.mean_time_to_failure(16384, 6.5) == pytest.approx(0.2254, abs=5e-5)


@pytest.mark.parametrize(
    ("nodes", "rate", "recover", "interval", "closed", "exact"),
    [
        (2000, 6.5, 5, 60, 0.684, 0.720),
        (2000, 6.5, 5, 5, 0.932, 0.934),
        (1000, 6.5, 5, 30, 0.910, 0.913),
        (12500, 6.5, 5, 7, 0.520, 0.615),
        (12500, 2.34, 2, 2, 0.939, 0.941),
    ],
)
def test_expected_training_time_ratio(nodes: int, rate: float, recover: float, interval: float, closed: float, exact: float) -> None:
    told = {"mttf_h": formulas.mean_time_to_failure(nodes, rate), "recover_h": recover / 60, "interval_h": interval / 60}
    assert formulas.lower_ratio(**told) == pytest.approx(closed, abs=6e-4)
    assert formulas.expected_ratio(**told) == pytest.approx(exact, abs=6e-4)


@given(st.floats(0.1, 1000.0), st.floats(0.001, 1.0), st.floats(0.001, 1.0))
def test_closed_form_is_a_lower_bound_where_writing_costs_nothing(mttf: float, recover: float, interval: float) -> None:
    told = {"mttf_h": mttf, "recover_h": recover, "interval_h": interval}
    assert formulas.lower_ratio(**told) <= formulas.expected_ratio(**told) + 1e-9
    assert 0.0 <= formulas.expected_ratio(**told) <= 1.0


def test_best_interval_is_better_than_its_neighbours() -> None:
    told = {"mttf_h": 50.0, "write_h": 0.01}
    best = formulas.best_interval(**told)

    def ratio(interval: float) -> float:
        return formulas.expected_ratio(recover_h=0.1, interval_h=interval, **told)

    assert ratio(best) > max(ratio(best * 2), ratio(best / 2))


@pytest.mark.parametrize(("daily", "spares"), [(0.00116, [1, 2, 3, 4]), (0.0012, [2, 2, 3, 4]), (0.00126, [2, 2, 3, 5])])
def test_spares_are_the_99th_percentile_of_a_day(daily: float, spares: list[int]) -> None:
    assert [formulas.spares(machines, daily) for machines in (128, 256, 512, 1024)] == spares
