"""Figures over a fleet's records: hand-made cases with answers in closed form, and properties that must hold for any records."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from _fleets import MONDAY, WEEK, attempt, hour, hours, incident, ledger, stage, tables
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rca.errors import UsageError
from rca.reliability.breakdowns import bad_hosts, counts_by_week, lost_by, stage_times
from rca.reliability.effective import unexplained_h
from rca.reliability.figures import figures
from rca.reliability.ledger import Ledger, clipped, length_s, open_ledger, union
from rca.reliability.window import Figure, Window, week

ADDITIVE = (
    *("interruptions", "failures", "platform_interruptions", "planned_interruptions", "job_hours", "node_days"),
    *("lost_gpu_h", "lost_gpu_h_planned", "recomputed_tokens", "recomputed_steps"),
)


def of(book: Ledger, window: Window = WEEK) -> dict[str, Figure]:
    return figures(book, window)


def one_fault(**more: Any) -> Ledger:
    """A job of 16 GPUs on 2 hosts that trains the whole week but for one hour, 100 h after its beginning; then 30 min again."""
    return ledger(
        [incident("INC-1", 100, lost_gpu_s=16 * 3600.0, recomputed_steps=180, recomputed_s=1800.0, recomputed_tokens=1000) | more],
        [
            stage("INC-1", "detect", 100, 100 + 90 / 3600, budget_s=60.0),
            stage("INC-1", "localize", 100 + 90 / 3600, 100.5, budget_s=300.0),
            stage("INC-1", "load", 100.5, None, budget_s=120.0),
            stage("INC-1", "resume", 100.9, 101),
        ],
        [attempt(0, 0, 100.25), attempt(1, 100.5, None)],
    )


def test_one_job_one_failure_gives_every_figure_in_closed_form() -> None:
    told = of(one_fault())
    assert told["interruptions"].value == told["failures"].value == told["platform_interruptions"].value == 1
    assert told["planned_interruptions"].value == told["workload_interruptions"].value == 0
    assert told["job_hours"].value == 168
    assert told["node_days"].value == pytest.approx(14)
    assert (told["mtbf"].value, told["mtbf"].numerator, told["mtbf"].denominator) == (168, 168, 1)
    assert told["failures_per_1000_node_days"].value == pytest.approx(1 / 14 * 1000)
    assert told["mttr_mean"].value == told["mttr_median"].value == told["mttr_p90"].value == 3600
    assert told["over_budget_share"].value == 1
    assert told["effective_ratio"].value == pytest.approx((168 - 1 - 0.5) / 168)
    assert told["effective_ratio"].denominator == pytest.approx(168 * 16)
    assert told["lost_gpu_h"].value == pytest.approx(16)
    assert told["recomputed_tokens"].value == 1000
    assert told["recomputed_steps"].value == 180
    assert told["recurrence_share"].value == told["overruled_share"].value == told["unknown_share"].value == 0


def test_bounds_of_mtbf_are_those_of_the_exact_poisson_interval() -> None:
    mtbf = of(one_fault())["mtbf"]
    low, high = 0.025317807984289, 5.571643390938898  # of one event at 95 %, from tables
    assert mtbf.low == pytest.approx(168 / high)
    assert mtbf.high == pytest.approx(168 / low)


def test_no_failure_is_no_infinite_mtbf() -> None:
    told = of(ledger(attempts=[attempt(0, 0, None)]))
    assert told["failures"].value == 0
    assert told["mtbf"].value is None
    assert told["mtbf"].why is not None
    assert told["mtbf"].why.startswith("0 in 168.0 h")
    assert told["mtbf"].low == pytest.approx(168 / -math.log(0.025))
    assert told["mtbf"].high is None
    assert told["mttr_mean"].value is None
    assert told["effective_ratio"].value == 1
    assert told["lost_gpu_h"].value == 0


def test_week_without_records_knows_nothing_and_says_no_zero() -> None:
    for figure in of(one_fault(), WEEK.back(3)).values():
        assert figure.value is None, figure.name
        assert figure.why or figure.name.startswith(("lost", "recomputed"))


def test_week_of_planned_stops_has_no_failure() -> None:
    told = of(one_fault(attribution="planned", cause="planned_stop"))
    assert (told["interruptions"].value, told["planned_interruptions"].value, told["failures"].value) == (1, 1, 0)
    assert told["mtbf"].value is None
    assert told["mtbi"].value == 168
    assert told["lost_gpu_h"].value == 0
    assert told["lost_gpu_h_planned"].value == pytest.approx(16)
    assert told["effective_ratio"].value == pytest.approx((168 - 1.5) / 168)
    assert told["effective_ratio_unplanned"].value == pytest.approx(1.0)
    assert told["mttr_mean"].value is None


def test_alarm_that_was_nothing_is_no_interruption() -> None:
    told = of(one_fault(attribution="none", cause="healthy"))
    assert (told["interruptions"].value, told["failures"].value, told["false_alarms"].value) == (0, 0, 1)
    assert told["lost_gpu_h"].value == 0


def test_unattributed_failure_is_a_failure_of_nobody() -> None:
    told = of(one_fault(attribution=None, cause=None))
    assert (told["failures"].value, told["unknown_interruptions"].value, told["platform_interruptions"].value) == (1, 1, 0)
    assert told["unknown_share"].value == told["unattributed_share"].value == 1
    assert told["mtbf_platform"].value is None


def test_running_job_is_observed_up_to_the_end_of_the_window_and_not_beyond() -> None:
    book = ledger(attempts=[attempt(0, 160, None)])
    assert of(book)["job_hours"].value == 8
    assert of(book, WEEK.back(-1))["job_hours"].value == 168
    assert of(book, WEEK.back(1))["job_hours"].value is None


def test_launch_that_was_never_closed_ends_where_the_next_begins() -> None:
    told = of(ledger(attempts=[attempt(0, 0, None), attempt(1, 10, 20)]))
    assert told["job_hours"].value == 20
    assert told["effective_ratio"].value == 1


def test_downtime_after_the_last_recorded_launch_is_time_under_way() -> None:
    book = ledger(
        [incident("INC-1", 10, lost_gpu_s=16 * 7200.0, recomputed_s=0.0)],
        [stage("INC-1", "resume", 11, 12)],
        [attempt(0, 0, 10.1, end_kind="failed")],  # the launch that followed is not recorded
    )
    assert of(book)["job_hours"].value == 12
    assert of(book)["effective_ratio"].value == pytest.approx(10 / 12)


def test_gap_between_launches_trains_nothing_and_is_reported() -> None:
    book = ledger(attempts=[attempt(0, 0, 80), attempt(1, 90, 100)])
    assert of(book)["effective_ratio"].value == pytest.approx(0.9)
    assert unexplained_h(book, WEEK) == pytest.approx(10)


def test_incident_across_the_week_end_is_counted_once_and_its_time_is_cut() -> None:
    book = ledger(
        [incident("INC-1", 167, lost_gpu_s=3 * 16 * 3600.0, recomputed_tokens=7)],
        [stage("INC-1", "resume", 169, 170)],
        [attempt(0, 0, None)],
    )
    now, then = of(book), of(book, WEEK.back(-1))
    assert (now["failures"].value, then["failures"].value) == (1, 0)
    assert (now["lost_gpu_h"].value, then["lost_gpu_h"].value) == (pytest.approx(16), pytest.approx(32))
    assert (now["mttr_mean"].value, then["mttr_mean"].value) == (3 * 3600, None)
    assert (now["recomputed_tokens"].value, then["recomputed_tokens"].value) == (7, 0)
    assert now["effective_ratio"].value == pytest.approx(167 / 168)
    assert then["effective_ratio"].value == pytest.approx(166 / 168)


def test_overlapping_incidents_hold_up_a_job_once() -> None:
    book = ledger(
        [incident("INC-1", 10, recomputed_s=0.0), incident("INC-2", 11, recomputed_s=0.0)],
        [stage("INC-1", "resume", 11, 12), stage("INC-2", "resume", 12, 13)],
        [attempt(0, 0, 100)],
    )
    assert of(book)["effective_ratio"].value == pytest.approx(0.97)


def test_ratio_weighs_jobs_by_their_gpus() -> None:
    book = ledger(
        [incident("INC-1", 0, recomputed_s=0.0)],
        [stage("INC-1", "resume", 0, 50)],
        [attempt(0, 0, 100, num_gpus=30), attempt(0, 0, 100, job_id="job-1", num_gpus=10)],
    )
    assert of(book)["effective_ratio"].value == pytest.approx((50 * 30 + 100 * 10) / (100 * 40))


def test_newest_revision_counts_in_any_order_of_rows() -> None:
    old = incident("INC-1", 100, revision=1, evidence_id="aa", attribution="unknown", lost_gpu_s=1.0)
    new = incident("INC-1", 100, revision=2, evidence_id="bb", attribution="platform", lost_gpu_s=3600.0)
    stages = [stage("INC-1", "resume", 100, 150, evidence_id="aa"), stage("INC-1", "resume", 100, 101, evidence_id="bb")]
    for rows in ([old, new], [new, old], [new, old, new]):
        book = ledger(rows, stages, [attempt(0, 0, None)])
        told = of(book)
        assert (told["failures"].value, told["platform_interruptions"].value, told["lost_gpu_h"].value) == (1, 1, 1)
        assert told["mttr_mean"].value == 3600
        assert book.num_older == len(rows) - 1


def test_what_is_not_recorded_is_left_out_and_counted() -> None:
    book = ledger(
        [incident("INC-1", 10), incident("INC-2", 20, lost_gpu_s=7200.0), incident("INC-3", 30, job_id="job-9")],
        [stage("INC-1", "detect", 10, None), stage("INC-2", "resume", 20, 21)],
        [attempt(0, 0, None, num_gpus=None)],
    )
    told = of(book)
    assert (told["mttr_mean"].value, told["mttr_mean"].n, told["mttr_mean"].left_out) == (3600, 1, 2)
    assert (told["lost_gpu_h"].value, told["lost_gpu_h"].left_out) == (2, 2)
    assert told["recomputed_tokens"].value is None
    assert (told["mtbf"].value, told["mtbf"].left_out) == (84, 1)  # the failure of a job whose time nobody recorded
    assert told["effective_ratio"].value is None


def test_ratio_with_unknown_ends_is_said_to_be_at_most_that() -> None:
    told = of(ledger([incident("INC-1", 10)], [], [attempt(0, 0, None)]))["effective_ratio"]
    assert told.value == 1
    assert told.left_out == 1
    assert told.why is not None
    assert told.why.startswith("at most")


def test_values_that_cannot_be_are_not_recorded() -> None:
    wild = {"recomputed_s": 1e300, "lost_gpu_s": -5.0, "recomputed_steps": -1, "cause": "<b>", "attribution": "me"}
    book = ledger(
        [incident("INC-1", 10) | wild, incident("INC-2", 10) | {"began_at": MONDAY.replace(year=9999)}],
        [],
        [attempt(0, 0, 20) | {"ended_at": MONDAY.replace(year=9998)}, attempt(1, 0, 30)],
    )
    told = of(book)
    assert book.num_strange == 7
    assert told["job_hours"].value == 30
    assert (told["failures"].value, told["unknown_interruptions"].value) == (1, 1)
    assert told["lost_gpu_h"].value is None


@pytest.mark.parametrize(
    ("column", "odd"),
    [
        ("num_hosts", -3), ("num_hosts", 0), ("num_hosts", 10**15), ("num_gpus", -1), ("world_size", -1), ("attempt", -1), ("last_step", -5),
        ("resumed_from_step", -1), ("tokens_per_step", -1), ("step_s", -0.5), ("step_s", math.inf), ("exit_code", 10**12),
    ],
)  # fmt: skip
def test_amounts_of_a_launch_that_cannot_be_are_not_recorded(column: str, odd: float) -> None:
    book = ledger([], [], [attempt(0, 0, 84) | {column: odd}, attempt(1, 84, None)])
    told = of(book)
    assert (book.num_strange, told["job_hours"].value) == (1, 168)
    is_unsized = column == "num_hosts"
    assert (told["node_days"].value, told["node_days"].left_out) == ((7, 1) if is_unsized else (14, 0))


def test_a_stage_with_a_negative_budget_has_none() -> None:
    book = ledger([incident("INC-1", 0)], [stage("INC-1", "load", 0, 1, budget_s=-60.0)], [attempt(0, 0, None)])
    assert (book.stages["budget_s"].to_list(), book.num_strange) == ([None], 1)


def test_failures_on_hosts_that_nobody_counted_are_left_out_of_both_sides() -> None:
    book = ledger(
        [incident("INC-1", 10), incident("INC-2", 10, job_id="job-1"), incident("INC-3", 100, job_id="job-2")],
        [],
        [
            attempt(0, 0, None, num_hosts=None),
            attempt(0, 0, None, job_id="job-1"),
            attempt(0, 0, 50, job_id="job-2"),
            attempt(1, 50, None, job_id="job-2", num_hosts=None),
        ],
    )
    told = of(book)["failures_per_1000_node_days"]
    node_days = 2 * (168 + 50) / 24
    assert (told.numerator, told.left_out, told.value) == (1, 2, pytest.approx(1 / node_days * 1000))


def test_nothing_repeats_itself() -> None:
    book = ledger([incident("INC-1", 10, recurs_incident_id="INC-1")], [], [attempt(0, 0, None)])
    assert of(book)["recurrence_share"].value == 0


@pytest.mark.parametrize("odd", [math.inf, math.nan, -1.0, 1e300])
def test_costs_that_are_no_amount_do_not_spoil_the_sum(odd: float) -> None:
    book = ledger([incident("INC-1", 10, lost_gpu_s=odd), incident("INC-2", 20, lost_gpu_s=3600.0)], [], [attempt(0, 0, None)])
    told = of(book)["lost_gpu_h"]
    assert (told.value, told.left_out) == (1, 2)
    assert book.num_strange == 1


def test_stage_times_tell_known_unknown_and_absent_apart() -> None:
    rows = {row["stage"]: row for row in stage_times(one_fault(), WEEK).to_dicts()}
    assert rows["detect"]["median_s"] == pytest.approx(90)
    assert (rows["detect"]["num"], rows["detect"]["num_over"]) == (1, 1)
    assert (rows["load"]["num"], rows["load"]["num_unknown"], rows["load"]["num_absent"], rows["load"]["median_s"]) == (0, 1, 0, None)
    assert (rows["queue"]["num_absent"], rows["queue"]["num_over"]) == (1, None)
    assert (rows["whole"]["median_s"], rows["whole"]["budget_s"], rows["whole"]["num_over"]) == (3600, 600, 1)


def test_median_and_p90_of_stages() -> None:
    incidents = [incident(f"INC-{n}", n) for n in range(11)]
    stages = [stage(f"INC-{n}", "resume", n, n + (n + 1) / 3600) for n in range(11)]  # 1 to 11 s
    row = stage_times(ledger(incidents, stages, [attempt(0, 0, None)]), WEEK).filter(pl.col("stage") == "whole").to_dicts()[0]
    assert (row["median_s"], row["p90_s"], row["mean_s"]) == (pytest.approx(6), pytest.approx(10), pytest.approx(6))


def test_recurrence_is_the_same_cause_on_the_same_host_or_what_the_record_states() -> None:
    rows = [
        incident("INC-1", -27 * 24),
        incident("INC-2", 1),  # within 28 days of the first
        incident("INC-3", 2, hosts=["host-b"]),
        incident("INC-4", 3, cause="host_fault"),
        incident("INC-5", 4, attribution="planned", cause="planned_stop"),
        incident("INC-6", 5, hosts=["host-c"], recurs_incident_id="INC-0"),
        incident("INC-7", 6, attribution="workload", cause="user_exception", hosts=["host-d"], code_version="v1"),
        incident("INC-8", 7, attribution="workload", cause="user_exception", hosts=["host-e"], code_version="v1"),
        incident("INC-9", 40 * 24),  # the first is too long ago, the second is not
    ]
    book = ledger(rows, [], [attempt(0, 0, None)])
    repeats = dict(book.incidents.filter(pl.col("repeats").is_not_null()).select("incident_id", "repeats").iter_rows())
    assert repeats == {"INC-2": "INC-1", "INC-6": "INC-0", "INC-8": "INC-7"}
    share = of(book)["recurrence_share"]
    assert (share.numerator, share.denominator) == (3, 6)


def test_bad_hosts_are_those_of_28_days_and_never_the_workloads() -> None:
    rows = [
        incident("INC-1", -20 * 24),
        incident("INC-2", 1, cause="host_fault"),
        incident("INC-3", 2, hosts=["host-b"]),
        incident("INC-4", -30 * 24, hosts=["host-b"]),  # too long ago
        *(incident(f"INC-{n}", n, hosts=["host-c"], attribution="workload", cause="user_exception") for n in (5, 6)),
    ]
    assert bad_hosts(ledger(rows), WEEK).select("host", "num", "causes", "incidents").rows() == [
        ("host-a", 2, ["gpu_fault", "host_fault"], ["INC-1", "INC-2"])
    ]


def test_costs_are_told_by_cause_with_the_costliest_first() -> None:
    rows = [
        incident("INC-1", 1, lost_gpu_s=10.0),
        incident("INC-2", 2, lost_gpu_s=50.0, cause="network_fault"),
        incident("INC-3", 3, cause="network_fault"),
        incident("INC-4", 4, cause="storage_stall"),
    ]
    found = lost_by(ledger(rows), WEEK, "cause").select("cause", "num", "lost_gpu_s", "num_unknown").rows()
    assert found == [("network_fault", 2, 50.0, 2), ("gpu_fault", 1, 10.0, 1), ("storage_stall", 1, None, 1)]


def test_counts_by_week_have_a_row_for_every_pair() -> None:
    found = counts_by_week(one_fault(), [WEEK, WEEK.back(1)])
    assert found.height == 8
    assert found.filter(pl.col("num") > 0).rows() == [("2026-W10", "platform", 1)]


BAD_WEEKS = ("2026-W54", "2026-W00", "2026-47", "W47", "", "2026-W4", "1-W01", "99999-W01", "\uff12026-W10", "2026-W10-1", "0001-W01")


@pytest.mark.parametrize("name", BAD_WEEKS)
def test_bad_week_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="as in 2026-W47"):
        week(name)


def test_week_is_seven_days_from_monday() -> None:
    assert week("2026-W53").start.isoformat() == "2026-12-28T00:00:00+00:00"  # a year of 53 weeks
    assert week("2026-W10").end - week("2026-W10").start == timedelta(days=7)
    assert week("2026-W10").back(1).name == "2026-W09"


# Properties

HOURS = st.integers(0, 200)


@st.composite
def fleets(draw: st.DrawFn) -> Ledger:
    """Any records: jobs, launches that end or not, incidents anywhere, known or not."""
    attempts, at = [], 0
    for number in range(draw(st.integers(0, 4))):
        at += draw(st.integers(0, 30))
        end = None if draw(st.booleans()) else at + draw(st.integers(0, 60))
        attempts.append(attempt(number, at, end, job_id=f"job-{draw(st.integers(0, 1))}"))
    incidents, stages = [], []
    for number in range(draw(st.integers(0, 5))):
        began, name = draw(HOURS), f"INC-{number}"
        took = draw(st.one_of(st.none(), st.integers(0, 40)))
        who = draw(st.sampled_from(["platform", "workload", "planned", "none", "unknown"]))
        known = {"recomputed_tokens": draw(st.integers(0, 9)), "recomputed_steps": 1, "recomputed_s": float(draw(st.integers(0, 9000)))}
        lost = {} if took is None else {"lost_gpu_s": took * 3600.0}
        incidents.append(incident(name, began, attribution=who, job_id=f"job-{draw(st.integers(0, 1))}", **known, **lost))
        if took is not None:
            stages.append(stage(name, "resume", began, began + took))
    return ledger(incidents, stages, attempts)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleets(), st.integers(1, 199))
def test_two_halves_of_a_window_add_up(book: Ledger, middle: int) -> None:
    whole, parts = of(book, hours(0, 200)), [of(book, hours(0, middle)), of(book, hours(middle, 200))]
    for name in ADDITIVE:
        assert sum(part[name].value or 0 for part in parts) == pytest.approx(whole[name].value or 0, abs=1e-6), name
    for side in ("numerator", "denominator"):
        halves = sum(getattr(part["effective_ratio"], side) or 0 for part in parts)
        assert halves == pytest.approx(getattr(whole["effective_ratio"], side) or 0, abs=1e-6), side


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleets())
def test_parts_sum_to_the_whole_and_ratios_are_ratios(book: Ledger) -> None:
    told = of(book, hours(0, 200))
    if told["failures"].value is not None:
        assert told["failures"].value == sum(told[f"{kind}_interruptions"].value or 0 for kind in ("platform", "workload", "unknown"))
        assert told["interruptions"].value == told["failures"].value + (told["planned_interruptions"].value or 0)
    for name in ("effective_ratio", "effective_ratio_unplanned", "recurrence_share", "over_budget_share", "unknown_share"):
        value = told[name].value
        assert value is None or -1e-9 <= value <= 1 + 1e-9, name
    first, second = told["effective_ratio"].value, told["effective_ratio_unplanned"].value
    assert first is None or second is None or second >= first - 1e-9


@given(st.lists(st.tuples(HOURS, HOURS), max_size=8))
def test_union_covers_what_its_parts_cover_and_nothing_twice(pairs: list[tuple[int, int]]) -> None:
    joined = union((hour(min(pair)), hour(max(pair))) for pair in pairs)
    covered = {n for a, b in pairs for n in range(min(a, b), max(a, b))}
    assert length_s(joined) == len(covered) * 3600
    assert length_s(clipped(joined, (hour(50), hour(60)))) == len(covered & set(range(50, 60))) * 3600


def test_order_of_rows_changes_nothing() -> None:
    told = tables(
        [incident("INC-1", 1, lost_gpu_s=1.0), incident("INC-2", 1, cause="host_fault"), incident("INC-3", 2)],
        [stage("INC-1", "resume", 1, 2), stage("INC-3", "resume", 2, 3), stage("INC-3", "detect", 2, 2.5)],
        [attempt(0, 0, 1), attempt(1, 2, None)],
    )
    turned = {name: frame.reverse() for name, frame in told.items()}
    books = [open_ledger(t["incidents"], t["stages"], t["attempts"]) for t in (told, turned)]
    assert of(books[0]) == of(books[1])
    assert stage_times(books[0], WEEK).equals(stage_times(books[1], WEEK))
    assert bad_hosts(books[0], WEEK).equals(bad_hosts(books[1], WEEK))
