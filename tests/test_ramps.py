"""A job or a rank that grows slower little by little, against its own first steps and against baselines; no alarm on reference runs."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from _house import ROOT
from _paced import noise

from rca.analyses._ramp import ramp
from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES
from rca.types import Outcome

GOLDEN = ROOT.parent / "shared" / "cases" / "timings"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def series(
    num: int, *, grows: float = 0.0, at: int | None = None, wave: float = 0.0, width: float = 0.03, seed: int = 1
) -> np.ndarray[Any, Any]:
    """Times about 1 s: with a growth over the whole, or at one place; with spikes, as evaluations make them."""
    step = np.arange(num)
    shape = 1 + grows * (step / (num - 1) if at is None else step >= at)
    shape = shape * (1 + wave * np.sin(step / num * 14)) * np.exp(width * np.random.default_rng(seed).normal(size=num))
    shape[::40] *= 5
    return shape


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"grows": 0.2}, 1.2),
        ({"grows": 0.6}, 1.6),
        ({"grows": 0.0}, None),
        ({"grows": 0.05}, None),
        ({"grows": -0.3}, None),
        ({"grows": 0.5, "at": 200}, None),  # a step
        ({"grows": 0.5, "at": 370}, None),
        ({"wave": 0.1}, None),  # day and night
        ({"width": 0.3}, None),
    ],
)
def test_a_ramp_is_told_from_steps_waves_and_noise(given: dict[str, Any], expected: float | None) -> None:
    for seed in range(5):
        found = ramp(series(400, seed=seed, **given))
        assert (found.ratio if found else None) == (pytest.approx(expected, abs=0.07) if expected else None)
    assert ramp(series(30, grows=0.5)) is None, "too few"


def test_random_walks_are_no_ramps_but_rarely() -> None:
    rng = np.random.default_rng(3)
    assert sum(ramp(np.exp(np.cumsum(0.003 * rng.normal(size=400)) + 0.05 * rng.normal(size=400))) is not None for _ in range(200)) <= 2


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="the reference series (../shared/cases/timings) are not here")
@pytest.mark.parametrize("name", ["deepseekv3_proxy_h100", "mixtral_8x7b_h100"])
def test_no_alarm_on_reference_runs_and_none_missed_when_they_are_made_slower(name: str) -> None:
    with (GOLDEN / f"megatron_golden_{name}.csv").open() as file:
        times = [float(row["iteration_time_s"] or "nan") for row in csv.DictReader(file)]
    values = np.array([value for value in times if math.isfinite(value)])
    assert ramp(values) is None
    for width in (50, 100, 200, 500, 1000):
        for first in range(0, len(values) - width, width):
            part = values[first : first + width]
            assert ramp(part) is None, (width, first)
            assert first == 0 or width < 500 or ramp(part * np.linspace(1, 1.2, width)) is not None, (width, first)
    printed = [{"evidence_id": "log", "record": f"L{n}", "step": n, "logged_step_s": s} for n, s in enumerate(values.tolist())]
    assert ask(MemoryCase({"progress": TABLES["progress"].rows(printed)}), "printed_pace").status == "blind"


# Printed


def asked(rows: list[dict[str, Any]], readings: list[dict[str, Any]] | None = None) -> Outcome:
    told = [{"evidence_id": "log", "record": f"L{n}", **row} for n, row in enumerate(rows, 1)]
    outcome = ask(
        MemoryCase({"progress": TABLES["progress"].rows(told), "readings": TABLES["readings"].rows(readings or [])}), "printed_pace"
    )
    assert outcome.status != "failed", outcome.why
    return outcome


def steps(values: Any, first: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [{"step": first + n, "logged_step_s": float(s), **more} for n, s in enumerate(values)]


def test_a_print_that_grows_is_a_ramp_unless_its_work_grows_as_well() -> None:
    values = series(300, grows=0.4)
    (finding,) = asked(steps(values)).findings
    assert (finding.sign, finding.ranks, len(finding.cites)) == ("pace_ramps", (), 2)
    assert finding.numbers["after_s"] / finding.numbers["before_s"] == pytest.approx(1.4, abs=0.1)
    by_speed = [{**row, "tokens_per_s_per_gpu": 1000.0} for row in steps(values)]
    by_total = [{**row, "tokens_total": int(1e6 * (n + 0.2 * n * n / 300))} for n, row in enumerate(steps(values))]
    fixed = [{**row, "tokens_total": 10**6 * n} for n, row in enumerate(steps(values))]
    assert asked(by_speed).status == asked(by_total).status == "blind"
    assert [f.sign for f in asked(fixed).findings] == ["pace_ramps"]


def test_the_launch_before_is_a_baseline() -> None:
    before, now = series(60), series(40, seed=2)
    (finding,) = asked([*steps(before), *steps(now * 1.25, first=40)]).findings
    assert (finding.sign, finding.numbers["step"]) == ("slower_than_last_launch", 41)
    assert asked([*steps(before), *steps(now, first=40)]).status == "blind"
    several = [
        row for step in range(100) for row in ({"step": step, "logged_step_s": 1.0}, {"step": max(0, step - 1), "logged_step_s": 1.3})
    ]
    assert asked(several).status == "blind", "two ranks' lines in one file are no new launch"


def test_golden_values_are_told_beside_and_are_no_steps_of_the_run() -> None:
    golden = [{**row, "evidence_id": "ref", "record": f"E{n}"} for n, row in enumerate(steps(series(60)))]
    told = asked([*golden, *steps(series(60, seed=2) * 1.3)], [{"evidence_id": "ref", "collector": "golden_values"}])
    assert (told.status, [f.sign for f in told.findings]) == ("clear", ["slower_than_golden"])
    assert asked([*golden, *steps(series(60, seed=2))], [{"evidence_id": "ref", "collector": "golden_values"}]).findings == ()


# Rank by rank


def timed(cost: Callable[[int, int], float], *, num: int = 8, length: int = 120, waiting: bool = True) -> Outcome:
    rows = []
    for step in range(length):
        own = [cost(rank, step) * (1 + 0.03 * noise(rank, step)) for rank in range(num)]
        at = NOON + timedelta(seconds=2 * step)
        rows += [
            {"evidence_id": f"t-{rank}", "record": f"L{step + 1}", "rank": rank, "host": f"n{rank // 4}", "step": step, "stage": 0,
             "started_at": at, "compute_s": own[rank], "step_s": (max(own) if waiting else own[rank]) + 0.1}
            for rank in range(num)
        ]  # fmt: skip
    outcome = ask(MemoryCase({"steps": TABLES["steps"].rows(rows)}), "slow_ramp")
    assert outcome.status != "failed", outcome.why
    return outcome


def test_one_rank_that_grows_slower_is_named_and_a_job_that_does_names_nobody() -> None:
    (one,) = timed(lambda rank, step: 1 + (0.25 * step / 120 if rank == 5 else 0)).findings
    assert (one.sign, one.ranks, one.hosts) == ("rank_ramps", (5,), ("n1",))
    assert one.cites
    (job,) = timed(lambda rank, step: 1 + 0.25 * step / 120).findings
    assert (job.sign, job.ranks) == ("job_ramps", ())


@pytest.mark.parametrize(
    "cost",
    [
        lambda rank, step: 1.0,
        lambda rank, step: 1.0 if step % 20 else 4.0,
        lambda rank, step: 1.3 if rank == 5 else 1.0,  # slow from the start: another question
        lambda rank, step: 1.5 - 0.4 * step / 120,
    ],
)
def test_ranks_of_a_steady_job_do_not_grow(cost: Callable[[int, int], float]) -> None:
    assert timed(cost).status == "clear"


def test_short_runs_are_left_open() -> None:
    assert timed(lambda rank, step: 1 + 0.5 * step, length=40).status == "blind"


def test_a_thousand_ranks_are_looked_at_without_a_loop_over_all() -> None:
    rng = np.random.default_rng(5)
    values = 1 + 0.02 * rng.normal(size=(1024, 60))
    values[700] *= np.linspace(1, 1.3, 60)
    ranks, at = np.repeat(np.arange(1024), 60), np.tile(np.arange(60), 1024)
    frame = TABLES["steps"].frame(
        {"evidence_id": pl.Series(["t"] * ranks.size), "record": pl.Series([f"L{n}" for n in range(ranks.size)]), "rank": pl.Series(ranks),
         "step": pl.Series(at), "stage": pl.Series(ranks // 256), "compute_s": pl.Series(values.ravel())}
    )  # fmt: skip
    (finding,) = ask(MemoryCase({"steps": frame}), "slow_ramp").findings
    assert finding.ranks == (700,)
