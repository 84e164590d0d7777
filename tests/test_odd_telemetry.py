"""GPUs and hosts whose metrics stay apart: who, for how long, and in what words; and who is left alone."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES

BEGAN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
CLOCK, POWER, USE, HEAT = "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP"
USUAL = {CLOCK: 1980.0, POWER: 640.0, USE: 99.0, HEAT: 62.0}
THROTTLED = {CLOCK: 1110.0, POWER: 310.0}
HOSTS, PER_HOST = 2, 8


def _frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = TABLES[name].schema
    return pl.DataFrame([{column: row.get(column) for column in schema} for row in rows], schema=schema, orient="row")


Shift = Callable[[int, int], Mapping[str, float]]  # (GPU, minute) -> what it has instead of the usual


def _case(shift: Shift, *, minutes: int = 12, mapped: bool = True, stages: int = 1, seed: int = 0) -> MemoryCase:
    rng = random.Random(seed)
    rows = [
        {
            "evidence_id": "m", "record": f"L{1 + minute * 64 + gpu * 4 + at}", "name": name, "host": f"host-{gpu // PER_HOST}",
            "gpu_index": gpu % PER_HOST, "sampled_at": BEGAN + timedelta(minutes=minute),
            "value": {**USUAL, **shift(gpu, minute)}[name] * rng.gauss(1, 0.01),
        }
        for minute in range(minutes)
        for gpu in range(HOSTS * PER_HOST)
        for at, name in enumerate(USUAL)
    ]  # fmt: skip
    ranks = [
        {
            "evidence_id": "r",
            "record": f"L{g + 2}",
            "rank": g,
            "host": f"host-{g // PER_HOST}",
            "local_rank": g % PER_HOST,
            "gpu": str(g % PER_HOST),
        }
        | {"pp": g * stages // (HOSTS * PER_HOST)}
        for g in range(HOSTS * PER_HOST)
    ]
    return MemoryCase({"gpu_samples": _frame("gpu_samples", rows), "ranks": _frame("ranks", ranks if mapped else [])})


def test_a_throttled_gpu_is_told_in_words_and_its_rank_is_a_weak_suspect() -> None:
    outcome = ask(_case(lambda gpu, minute: THROTTLED if gpu == 11 else {}), "odd_telemetry")
    (finding,) = outcome.findings
    assert (finding.sign, finding.ranks, finding.hosts) == ("slow_clock_busy", (11,), ("host-1",))
    told = {d["metric"]: (d["own"], d["others"]) for d in finding.numbers["deviations"]}
    assert told["SM clock"] == pytest.approx((1110, 1980), rel=0.02)
    assert told["power"] == pytest.approx((310, 640), rel=0.02)
    assert "SM clock" in finding.says
    assert " MHz against 1,9" in finding.says
    assert "12 minutes" in finding.says


def test_a_clock_that_falls_during_the_look_is_found_by_the_stretch_since_then() -> None:
    (finding,) = ask(_case(lambda gpu, minute: {CLOCK: 990.0} if gpu == 11 and minute >= 24 else {}, minutes=30), "odd_telemetry").findings
    assert (finding.sign, finding.ranks) == ("slow_clock_busy", (11,))
    assert re.search(r"stood apart from 15 peers for the last 6 minutes: SM clock 9\d\d(\.\d)? MHz against 1,9", finding.says)


def test_a_gpu_that_came_to_rest_was_busy_before_and_is_no_suspect_for_it() -> None:
    rests = {USE: 0.0, POWER: 120.0, CLOCK: 345.0}
    (finding,) = ask(_case(lambda gpu, minute: rests if gpu == 3 and minute >= 20 else {}, minutes=30), "odd_telemetry").findings
    assert (finding.sign, finding.ranks, finding.numbers["candidates"]) == ("odd_gpu", (), [3])


def test_without_a_map_it_is_a_note() -> None:
    (finding,) = ask(_case(lambda gpu, minute: THROTTLED if gpu == 11 else {}, mapped=False), "odd_telemetry").findings
    assert (finding.sign, finding.ranks) == ("odd_gpu", ())


def test_a_gpu_that_rests_while_the_others_spin_is_a_note() -> None:
    """Its clock is low because it has nothing to do."""
    (finding,) = ask(_case(lambda gpu, minute: {USE: 0.0, POWER: 120.0, CLOCK: 345.0} if gpu == 3 else {}), "odd_telemetry").findings
    assert (finding.sign, finding.ranks, finding.numbers["candidates"]) == ("odd_gpu", (), [3])


def test_gpus_that_are_odd_alike_are_told_together_and_others_apart() -> None:
    found = ask(_case(lambda gpu, minute: THROTTLED if gpu in (2, 9) else {HEAT: 95.0} if gpu == 5 else {}), "odd_telemetry").findings
    assert sorted((f.sign, tuple(f.numbers["candidates"])) for f in found) == [("odd_gpu", (5,)), ("slow_clock_busy", (2, 9))]


@pytest.mark.parametrize(
    "shift",
    [
        pytest.param(lambda gpu, minute: {}, id="all alike"),
        pytest.param(lambda gpu, minute: THROTTLED if gpu == 11 and minute == 5 else {}, id="a spike"),
        pytest.param(lambda gpu, minute: THROTTLED if gpu == 11 and minute >= 9 else {}, id="the last three minutes"),
        pytest.param(lambda gpu, minute: THROTTLED if (gpu + minute) % 16 == 0 else {}, id="each in turn"),
        pytest.param(lambda gpu, minute: THROTTLED if minute % 2 else {}, id="all together"),
        pytest.param(lambda gpu, minute: THROTTLED if gpu < 8 else {}, id="half of them"),
        pytest.param(lambda gpu, minute: {CLOCK: 1900.0, HEAT: 66.0} if gpu == 7 else {}, id="a little lower"),
    ],
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nobody_is_odd(shift: Shift, seed: int) -> None:
    outcome = ask(_case(shift, seed=seed), "odd_telemetry")
    assert (outcome.status, outcome.findings) == ("clear", ())


def test_stages_differ_and_are_not_compared() -> None:
    """The second stage is less busy as a whole; within it one GPU is throttled."""
    light = {POWER: 400.0, USE: 60.0}
    found = ask(
        _case(lambda gpu, minute: (light if gpu >= 8 else {}) | ({CLOCK: 1110.0} if gpu == 12 else {}), stages=2), "odd_telemetry"
    ).findings
    assert [f.ranks for f in found] == [(12,)]


def test_a_short_look_shows_nothing_lasting() -> None:
    assert ask(_case(lambda gpu, minute: THROTTLED if gpu == 11 else {}, minutes=3), "odd_telemetry").status == "blind"


def _hosts(own: Mapping[str, float], minutes: int = 12) -> MemoryCase:
    rng = random.Random(1)
    usual = {"cpu_util": 22.0, "rx_gbps": 180.0, "device": 0}
    rows = [
        {
            "evidence_id": f"h{host}", "record": f"L{minute + 1}", "host": f"host-{host}", "logged_at": BEGAN + timedelta(minutes=minute),
            "metrics": json.dumps(
                {name: value * rng.gauss(1, 0.01) for name, value in {**usual, **(own if host == 4 else {})}.items()}
                | {"uptime_s": host * 1e6 + minute, "packets": host * 1e7 + minute}
            ),
        }
        for host in range(6)
        for minute in range(minutes)
    ]  # fmt: skip
    return MemoryCase({"host_samples": _frame("host_samples", rows)})


def test_a_loaded_host_is_a_note_and_counters_are_no_metrics() -> None:
    outcome = ask(_hosts({"cpu_util": 97.0}), "odd_host")
    (finding,) = outcome.findings
    assert (outcome.status, finding.hosts, finding.ranks) == ("clear", ("host-4",), ())
    assert [d["metric"] for d in finding.numbers["deviations"]] == ["cpu_util"]
    assert "cpu_util 97" in finding.says or "cpu_util 96" in finding.says
    assert ask(_hosts({}), "odd_host").findings == ()
    assert ask(_hosts({"cpu_util": 97.0}, minutes=2), "odd_host").status == "blind"
