"""Slow ranks, numbers that go wrong, replicas that part: made-up jobs of several sizes, and what must not be taken for any of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from _house import ROOT, frames

from collectors import step_timing, topology
from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES
from rca.types import Finding, Outcome, Skip, Source

AT_FAULT = {"fail_slow_s0": ("slow_rank", (5,), 8), "sdc_s0": ("replica_divergence", (10,), 6)}
INCIDENTS = ROOT.parent / "shared" / "cases" / "incidents"
SIZES = ((8, 2), (12, 2), (64, 4))  # ranks, stages


def rows_of(ranks: Sequence[int], num_steps: int, **matrices: Any) -> dict[str, Any]:
    """Columns of a table with one row per rank and step; a matrix of ranks x steps each."""
    return {
        "evidence_id": [f"{rank:016d}" for rank in ranks for _ in range(num_steps)],
        "record": [f"L{step + 1}" for _ in ranks for step in range(num_steps)],
        "rank": [rank for rank in ranks for _ in range(num_steps)],
        "step": [step for _ in ranks for step in range(num_steps)],
    } | {name: [value for row in matrix for value in row] for name, matrix in matrices.items()}


def timed(compute: Any, *, num_stages: int = 0, hosts: int = 0, **more: Any) -> MemoryCase:
    """A job whose ranks compute for these seconds; without stages nothing says which ranks are peers."""
    num_ranks, num_steps = compute.shape
    steps = TABLES["steps"].frame(rows_of(range(num_ranks), num_steps, compute_s=compute.tolist(), **more))
    if num_stages:
        steps = steps.with_columns((pl.col("rank") // (num_ranks // num_stages)).alias("stage"))
    if hosts:
        steps = steps.with_columns(pl.format("host-{}", pl.col("rank") // (num_ranks // hosts)).alias("host"))
    return MemoryCase({"steps": steps})


def pace(seed: int, num_ranks: int, num_steps: int, *, noise: float, spikes: float = 0.0, waves: float = 0.0) -> Any:
    """Seconds of computation: log-normal noise, a share of spikes of up to 15 times, noise that comes in waves."""
    rng = np.random.default_rng(seed)
    wild = rng.standard_normal((num_ranks, num_steps))
    for step in range(1, num_steps):
        wild[:, step] = waves * wild[:, step - 1] + math.sqrt(1 - waves**2) * wild[:, step]
    return 0.1 * np.exp(noise * wild) * np.where(rng.random(wild.shape) < spikes, rng.uniform(2, 15, wild.shape), 1.0)


def accused(outcome: Outcome) -> list[tuple[str, tuple[int, ...]]]:
    assert outcome.status != "failed", outcome.why
    return [(finding.sign, finding.ranks) for finding in outcome.findings]


def only(outcome: Outcome) -> Finding:
    assert outcome.status == "found", outcome.why
    (finding,) = outcome.findings
    return finding


class TestSlowRank:
    @pytest.mark.parametrize(
        ("factor", "since", "step_s", "sign"),
        [
            (1.13, 0, 0.4, "slow_a_little"),  # 13 ms of 400, and never otherwise
            (1.13, 20, 0.4, "slow_compute"),  # it became slow
            (1.13, 0, None, "slow_compute"),  # how much of a step it is nothing tells
            (1.13, 0, 0.12, "slow_compute"),  # steps are a tenth longer
            (1.3, 0, 0.6, "slow_a_little"),
            (2.0, 0, 0.6, "slow_compute"),
        ],
    )
    def test_what_costs_little_of_a_step_and_always_did_is_told_apart(
        self, factor: float, since: int, step_s: float | None, sign: str
    ) -> None:
        compute = pace(3, 8, 60, noise=0.01)
        compute[0, since:] *= factor
        whole = {} if step_s is None else {"step_s": np.full((8, 60), step_s).tolist()}
        assert accused(ask(timed(compute, num_stages=1, **whole), "slow_rank")) == [(sign, (0,))]

    @pytest.mark.parametrize(("num_ranks", "num_stages"), SIZES)
    @pytest.mark.parametrize("factor", [1.3, 2.0, 3.0])
    @pytest.mark.parametrize("seed", [1, 2])
    def test_slow_rank_is_found_with_its_first_step(self, num_ranks: int, num_stages: int, factor: float, seed: int) -> None:
        at_fault, step = (seed * 7 + num_ranks // 2) % num_ranks, 9 + seed
        compute = pace(seed, num_ranks, 60, noise=0.05, spikes=0.01)
        compute[at_fault, step:] *= factor
        finding = only(ask(timed(compute, num_stages=num_stages), "slow_rank"))
        assert (finding.sign, finding.ranks) == ("slow_compute", (at_fault,))
        assert abs(finding.numbers["step"] - step) <= 1
        assert finding.numbers["ratio"] == pytest.approx(factor, rel=0.1)
        assert set(finding.explains) == set(range(num_ranks)) - {at_fault}

    @pytest.mark.parametrize("seed", range(4))
    def test_without_a_map_a_rank_that_changed_is_found(self, seed: int) -> None:
        compute = pace(seed, 8, 50, noise=0.04)
        compute[4:] *= 1.5  # another stage
        compute[seed, 15:] *= 1.8
        assert accused(ask(timed(compute), "slow_rank")) == [("slow_compute", (seed,))]

    def test_slow_from_the_start_takes_peers_to_tell(self) -> None:
        compute = pace(3, 8, 50, noise=0.04)
        compute[6] *= 2
        assert accused(ask(timed(compute, num_stages=2), "slow_rank")) == [("slow_compute", (6,))]
        assert ask(timed(compute), "slow_rank").status == "blind"

    @pytest.mark.parametrize(
        ("slow", "mirror", "heavy", "found"),
        [
            ((9,), 1.0, (), [("slow_compute", (9,))]),
            ((9,), 0.0, (), []),  # nobody waits for it
            ((9, 10), 1.0, (), []),  # may be a stage
            ((9,), 1.0, (12, 13, 14, 15), []),  # stages differ here
            ((15,), 1.0, (), []),  # the end of a pipeline has more to do
        ],
    )
    def test_without_a_map_one_rank_alone_for_which_all_others_wait_is_found(
        self, slow: tuple[int, ...], mirror: float, heavy: tuple[int, ...], found: list[tuple[str, tuple[int, ...]]]
    ) -> None:
        compute = pace(4, 16, 30, noise=0.01)
        compute[list(heavy)] *= 1.3
        comm = np.full(compute.shape, 0.07) + (0.1 - compute)
        compute[list(slow)] += 0.05
        comm[list(slow)] -= 0.05 * mirror
        outcome = ask(timed(compute, comm_s=comm.tolist()), "slow_rank")
        assert accused(outcome) == found
        assert (outcome.status == "blind") is not bool(found)

    @pytest.mark.parametrize(
        ("noise", "spikes", "waves"), [(0.03, 0.0, 0.0), (0.3, 0.0, 0.0), (0.3, 0.03, 0.0), (0.1, 0.05, 0.0), (0.2, 0.0, 0.8)]
    )
    @pytest.mark.parametrize("seed", range(6))
    def test_noise_spikes_and_waves_are_no_slowness(self, noise: float, spikes: float, waves: float, seed: int) -> None:
        num_ranks, num_stages = SIZES[seed % 3]
        compute = pace(seed, num_ranks, (20, 70, 300)[seed // 2], noise=noise, spikes=spikes, waves=waves)
        assert ask(timed(compute, num_stages=num_stages), "slow_rank").status == "clear"
        assert accused(ask(timed(compute), "slow_rank")) == []

    def test_warm_up_and_a_slowness_that_passed_are_left_out(self) -> None:
        compute = pace(5, 8, 60, noise=0.03)
        compute[3, :2] *= 30
        compute[2, 20:32] *= 1.6
        assert ask(timed(compute, num_stages=2), "slow_rank").status == "clear"

    def test_all_ranks_slower_at_once_accuse_nobody(self) -> None:
        compute = pace(6, 8, 60, noise=0.03)
        compute[:, 20:] *= 2
        assert ask(timed(compute, num_stages=2), "slow_rank").status == "clear"

    def test_waiting_is_no_slowness(self) -> None:
        """Whole steps are long on all ranks, the wait for the others most of it; the one that waits least is not the slow one."""
        compute = pace(7, 8, 40, noise=0.03)
        whole = [[0.5 + 0.01 * rank] * 40 for rank in range(8)]
        assert ask(timed(compute, num_stages=2, step_s=whole, comm_s=whole), "slow_rank").status == "clear"

    def test_ranks_of_one_host_are_the_host_and_a_lesser_slowness_is_its_victim(self) -> None:
        compute = pace(8, 16, 60, noise=0.03)
        compute[4:6, 20:] *= 2.2
        finding = only(ask(timed(compute, num_stages=2, hosts=8), "slow_rank"))
        assert (finding.sign, finding.ranks, finding.hosts) == ("slow_host", (4, 5), ("host-2",))
        compute[5, 20:] /= 2.2 / 1.3
        assert accused(ask(timed(compute, num_stages=2, hosts=8), "slow_rank")) == [("slow_compute", (4,))]

    def test_heavy_stage_accuses_nobody(self) -> None:
        compute = pace(9, 8, 40, noise=0.05)
        compute[4:] *= 1.6
        case = timed(compute, num_stages=2)
        assert accused(ask(case, "uneven_work")) == [("heavy_stage", ())]
        assert (ask(case, "slow_rank").status, accused(ask(case, "slow_rank"))) == ("blind", [])

    def test_rank_that_waits_for_its_batches(self) -> None:
        compute = pace(10, 8, 40, noise=0.03)
        data = 0.2 * pace(11, 8, 40, noise=0.5)
        data[3, 10:] += 0.15
        finding = only(ask(timed(compute, num_stages=2, data_s=data.tolist(), step_s=[[0.3] * 40] * 8), "slow_rank"))
        assert (finding.sign, finding.ranks) == ("slow_data", (3,))
        assert abs(finding.numbers["step"] - 10) <= 1

    def test_one_long_wait_for_data_in_the_last_step_is_no_slowness(self) -> None:
        compute = pace(12, 8, 40, noise=0.03)
        data = 0.2 * pace(13, 8, 40, noise=0.5)
        data[3, -1] = 300.0
        assert ask(timed(compute, num_stages=2, data_s=data.tolist(), step_s=[[0.3] * 40] * 8), "slow_rank").status == "clear"

    def test_few_steps_and_missing_times_leave_it_open(self) -> None:
        assert ask(timed(pace(1, 8, 8, noise=0.03), num_stages=2), "slow_rank").status == "blind"
        assert "waiting" in ask(timed(np.full((8, 40), np.nan), num_stages=2), "slow_rank").why
        compute = pace(2, 8, 40, noise=0.03)
        compute[5, 30:] = np.nan  # killed: its last steps are missing, and the others' hold
        assert ask(timed(compute, num_stages=2), "slow_rank").status == "clear"
        compute[6] = np.nan
        outcome = ask(timed(compute, num_stages=2), "slow_rank")
        assert (outcome.status, "ranks 6" in outcome.why) == ("blind", True), "a rank that was not compared is not fine"

    @pytest.mark.filterwarnings("error::RuntimeWarning")
    @pytest.mark.parametrize("zeros", [(6,), (0, 1, 2, 4, 5, 6, 7), range(8)], ids=["one", "all-but-one", "all"])
    def test_steps_without_any_computation_are_none(self, zeros: Sequence[int]) -> None:
        compute = pace(2, 8, 40, noise=0.03)
        compute[3, 10:] *= 2
        compute[list(zeros)] = 0.0
        outcome = ask(timed(compute, num_stages=2), "slow_rank")
        if len(zeros) == 1:
            assert accused(outcome) == [("slow_compute", (3,))]
        else:
            assert outcome.status == "blind"


def with_clock(compute: Any, *, step_s: float = 0.3) -> dict[str, Any]:
    """What makes every rank begin its steps at the same pace, and say so."""
    num_ranks, num_steps = compute.shape
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    return {
        "step_s": [[step_s] * num_steps for _ in range(num_ranks)],
        "started_at": [[begin + timedelta(seconds=step_s * step) for step in range(num_steps)] for _ in range(num_ranks)],
    }


class TestUnitsOfTimes:
    @pytest.mark.parametrize("factor", [1e3, 1e6, 1e-3])
    @pytest.mark.parametrize("has_clock", [True, False])
    @pytest.mark.parametrize("since", [0, 20])
    def test_rank_in_another_unit_is_shown_and_accuses_nobody(self, factor: float, since: int, *, has_clock: bool) -> None:
        compute = pace(3, 8, 40, noise=0.03)
        more = with_clock(compute)
        compute[2, since:] *= factor
        more["step_s"][2][since:] = [0.3 * factor] * (40 - since)
        if not has_clock:
            del more["started_at"]
        finding = only(ask(timed(compute, num_stages=2, **more), "slow_rank"))
        assert (finding.sign, finding.ranks, finding.numbers["candidates"]) == ("units_disagree", (), [2])

    def test_slow_rank_beside_one_in_another_unit_is_still_found(self) -> None:
        compute = pace(4, 12, 40, noise=0.03)
        more = with_clock(compute)
        compute[7, 12:] *= 2
        compute[8] *= 1000
        assert sorted(accused(ask(timed(compute, num_stages=2, **more), "slow_rank"))) == [("slow_compute", (7,)), ("units_disagree", ())]

    def test_rank_that_is_as_slow_as_its_clock_says_is_accused(self) -> None:
        compute = pace(5, 8, 40, noise=0.03)
        compute[6, 12:] *= 200
        more = with_clock(compute)
        late = [more["started_at"][0][0] + timedelta(seconds=0.3 * min(step, 12) + 25.0 * max(0, step - 12)) for step in range(40)]
        more["started_at"] = [late] * 8
        more["step_s"] = [[0.3] * 12 + [25.0] * 28 for _ in range(8)]
        assert accused(ask(timed(compute, num_stages=2, **more), "slow_rank")) == [("slow_compute", (6,))]

    def test_all_in_another_unit_are_compared_with_each_other(self) -> None:
        compute = pace(6, 8, 40, noise=0.03)
        more = with_clock(compute)
        compute[6, 12:] *= 2
        assert accused(ask(timed(compute * 1000, num_stages=2, **more), "slow_rank")) == [("slow_compute", (6,))]


class TestHealthyTakesTimingsOfAll:
    @pytest.mark.parametrize("case", ["none", "slow_rank"])
    def test_a_rank_without_timings_leaves_open_whether_the_job_is_slow(self, case: str) -> None:
        tables = frames(case)
        assert ask(MemoryCase(tables), "job_motion").status == "clear"
        rest = tables["steps"].filter(pl.col("rank") != 5)
        outcome = ask(MemoryCase(tables | {"steps": rest}), "job_motion")
        assert (outcome.status, "ranks 5" in outcome.why) == ("blind", True)
        uncounted = tables["steps"].with_columns(pl.when(pl.col("rank") != 5).then("compute_s"))
        assert ask(MemoryCase(tables | {"steps": uncounted}), "job_motion").status == "blind"


def written(num_ranks: int, num_steps: int, seed: int = 0, **columns: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    loss = (3 - 0.01 * np.arange(num_steps) + 0.05 * rng.standard_normal((num_ranks, num_steps))).tolist()
    norm = rng.uniform(0.4, 0.6, (num_ranks, num_steps)).tolist()
    finite = [[True] * num_steps for _ in range(num_ranks)]
    samples = [[[f"{rank}-{step}"] for step in range(num_steps)] for rank in range(num_ranks)]
    return rows_of(range(num_ranks), num_steps, loss=loss, grad_norm=norm, is_finite=finite, sample_ids=samples, **columns)


def progress_case(data: dict[str, Any], **tables: pl.DataFrame) -> MemoryCase:
    return MemoryCase({"rank_progress": TABLES["rank_progress"].frame(data)} | tables)


def spoil(data: dict[str, Any], rank: int, step: int, num_steps: int, **values: Any) -> None:
    for name, value in values.items():
        data[name][rank * num_steps + step] = value


class TestLossAnomaly:
    @pytest.mark.parametrize(("num_ranks", "at_fault"), [(8, 5), (12, 0), (64, 33)])
    def test_gradient_that_is_not_finite_on_one_rank_first(self, num_ranks: int, at_fault: int) -> None:
        data = written(num_ranks, 20)
        spoil(data, at_fault, 12, 20, grad_norm=None, is_finite=False)
        for rank in range(num_ranks):
            for step in range(13, 20):
                spoil(data, rank, step, 20, grad_norm=None, loss=None, is_finite=False)
        finding = only(ask(progress_case(data), "loss_anomaly"))
        assert (finding.sign, finding.ranks, finding.numbers["step"]) == ("nonfinite_local", (at_fault,), 12)
        assert finding.numbers["sample_ids"] == [f"{at_fault}-12"]

    def test_averaged_gradient_hides_the_rank_and_the_local_loss_names_it(self) -> None:
        data = written(8, 20)
        for rank in range(8):
            spoil(data, rank, 19, 20, grad_norm=None, is_finite=False)
        assert accused(ask(progress_case(data), "loss_anomaly")) == [("nonfinite_global", ())]
        spoil(data, 6, 19, 20, loss=None)
        assert accused(ask(progress_case(data), "loss_anomaly")) == [("nonfinite_local", (6,))]

    def test_ranks_that_share_a_batch_stay_candidates(self) -> None:
        data = written(8, 20)
        for rank in (2, 3):
            for step in range(15, 20):
                spoil(data, rank, step, 20, loss=None, grad_norm=None, is_finite=False, sample_ids=["7"])
        finding = only(ask(progress_case(data), "loss_anomaly"))
        assert (finding.sign, finding.ranks, finding.numbers["candidates"]) == ("nonfinite_local", (), [2, 3])
        assert finding.numbers["sample_ids"] == ["7"]

    def test_alone_beside_an_unseen_model_peer_is_not_proof(self) -> None:
        data = written(8, 20)
        for step in range(15, 20):
            spoil(data, 3, step, 20, loss=None, grad_norm=None, is_finite=False)
        coordinates = {"rank": list(range(8)), "tp": [r % 2 for r in range(8)], "dp": [r // 2 for r in range(8)], "record": "E0"}
        ranks = TABLES["ranks"].frame(coordinates)
        assert accused(ask(progress_case(data, ranks=ranks), "loss_anomaly")) == [("nonfinite_local", (3,))]
        unseen = {name: [v for v, rank in zip(values, data["rank"], strict=True) if rank != 2] for name, values in data.items()}
        assert accused(ask(progress_case(unseen, ranks=ranks), "loss_anomaly")) == [("nonfinite_local", ())]

    def test_single_overflow_of_loss_scaling_is_none(self) -> None:
        data = written(8, 20)
        for rank in range(8):
            spoil(data, rank, 4, 20, grad_norm=None, is_finite=False)
        assert ask(progress_case(data), "loss_anomaly").status == "clear"

    def test_jump_that_stays_counts_and_one_that_heals_does_not(self) -> None:
        data = written(8, 40)
        spoil(data, 1, 20, 40, loss=40.0, grad_norm=9.0)
        for last in (21, 24, 25):
            for step in range(20, last):
                spoil(data, 1, step, 40, loss=40.0, grad_norm=9.0)
            outcome = ask(progress_case(data), "loss_anomaly")
            assert (outcome.status, accused(outcome)) == ("clear", [("healed", ())]), last
        for rank in range(8):
            for step in range(20, 30):
                spoil(data, rank, step, 40, loss=40.0, grad_norm=9.0)
        assert accused(ask(progress_case(data), "loss_anomaly")) == [("healed", ())], "all at once, and it came back"
        data = written(8, 40)
        for step in range(20, 30):
            spoil(data, 1, step, 40, loss=40.0, grad_norm=9.0)
        assert accused(ask(progress_case(data), "loss_anomaly"))[0] == ("spike_local", (1,)), (
            "ten batches in a row on one rank are no chance"
        )
        for step in range(20, 40):
            spoil(data, 1, step, 40, loss=40.0, grad_norm=9.0)
        finding = only(ask(progress_case(data), "loss_anomaly"))
        assert (finding.sign, finding.ranks, finding.numbers["step"]) == ("spike_local", (1,), 20)
        for rank in range(8):
            for step in range(20, 40):
                spoil(data, rank, step, 40, loss=40.0, grad_norm=9.0)
        assert accused(ask(progress_case(data), "loss_anomaly")) == [("spike_global", ())]

    def test_nothing_written_is_no_sound_loss(self) -> None:
        data = {name: values for name, values in written(4, 20).items() if name not in ("loss", "grad_norm", "is_finite")}
        assert ask(progress_case(data), "loss_anomaly").status == "blind"


@pytest.mark.parametrize("question", ["slow_rank", "loss_anomaly", "replica_divergence"])
def test_all_is_well_only_when_every_rank_was_seen(question: str) -> None:
    data = written(8, 40, param_checksum=[[f"{rank % 2}-{step}" for step in range(40)] for rank in range(8)])
    tables = {
        "rank_progress": TABLES["rank_progress"].frame(data),
        "steps": timed(pace(1, 8, 40, noise=0.03), num_stages=2).frames["steps"],
        "ranks": TABLES["ranks"].frame(
            {"rank": list(range(8)), "tp": [rank % 2 for rank in range(8)], "dp": [rank // 2 for rank in range(8)]}
        ),
    }
    assert ask(MemoryCase(tables), question).status == "clear"
    lost = {name: frame.filter(pl.col("rank") != 7) if name != "ranks" else frame for name, frame in tables.items()}
    outcome = ask(MemoryCase(lost), question)
    assert (outcome.status, "(ranks 7)" in outcome.why) == ("blind", True)


class TestLossDivergence:
    def printed(self, loss: Sequence[float | None], **more: Any) -> MemoryCase:
        num = len(loss)
        data = {
            "evidence_id": "0" * 16, "record": [f"L{i + 1}" for i in range(num)], "step": list(range(num)), "loss": list(loss),
            "is_finite": [value is not None for value in loss],
        }  # fmt: skip
        return MemoryCase({"progress": TABLES["progress"].frame(data | more)})

    def test_printed_nan_tells_the_step_and_accuses_nobody(self) -> None:
        finding = only(ask(self.printed([2.0] * 12 + [None] * 3), "loss_divergence"))
        assert (finding.sign, finding.ranks, finding.numbers["step"]) == ("loss_not_finite", (), 12)

    def test_skipped_step_is_none(self) -> None:
        loss = [2.0] * 12 + [None] + [2.0] * 3
        assert ask(self.printed(loss, is_skipped=[value is None for value in loss]), "loss_divergence").status == "clear"

    def test_jump_that_stays(self) -> None:
        assert accused(ask(self.printed([2.0] * 12 + [30.0] * 5), "loss_divergence")) == [("loss_jumped", ())]
        assert ask(self.printed([2.0] * 12 + [30.0] + [2.0] * 5), "loss_divergence").status == "clear"

    @pytest.mark.parametrize(
        ("loss", "norm", "signs"),
        [
            ([2.7] * 12 + [6.3 * 1.1**n for n in range(8)], None, ["loss_jumped"]),  # it climbs
            ([2.7] * 12 + [6.3, 9.1, 6.1, 12.0, 7.2, 11.5, 6.4, 12.2], None, ["loss_jumped"]),  # it swings
            ([2.7] * 12 + [3.0, 4.2] + [7.0 + 0.01 * n for n in range(12)], None, ["loss_jumped"]),  # it got there step by step
            ([2.7] * 12 + [6.3 - 0.05 * n for n in range(8)], None, ["level_moved"]),  # as calm as before from its first step on
            ([2.7] * 12 + [6.3] * 40 + [14.0 * 1.1**n for n in range(12)], None, ["loss_jumped"]),  # a level does not hide what follows
            ([2.7] * 12 + [6.3] * 40 + [None] * 3, None, ["loss_not_finite"]),
            ([2.7] * 12 + [6.3] * 8 + [None] * 3, None, ["loss_not_finite"]),  # nor one right behind it
            ([2.7] * 12 + [6.3] * 8, 0.6, []),  # gradients of the usual size: other data
            ([2.7] * 12 + [6.3] * 4, None, []),  # too short to tell
            ([2.7] * 12 + [6.3] * 8 + [2.8] * 4, None, []),  # it came back
            ([2.7] * 12 + [4.3] * 8, None, []),  # other data
            ([2.7, 2.7, 2.7, 5.0] * 8 + [6.3] * 8, None, []),  # it goes up and down
        ],
    )
    def test_a_loss_without_norms_may_jump_by_less(self, loss: list[float], norm: float | None, signs: list[str]) -> None:
        assert [sign for sign, _ in accused(ask(self.printed(loss, grad_norm=norm), "loss_divergence"))] == signs

    def test_a_jump_is_counted_in_losses_where_the_learning_rate_has_lines_of_its_own(self) -> None:
        losses = [2.7] * 12 + [6.3 * 1.1**n for n in range(8)]
        steps = [step for step in range(len(losses)) for _ in range(2)]
        rows = {"step": steps, "learning_rate": [3e-4, None] * len(losses), "is_finite": [None, True] * len(losses)}
        found = only(ask(self.printed([value for loss in losses for value in (None, loss)], **rows), "loss_divergence"))
        assert (found.sign, found.numbers["step"]) == ("loss_jumped", 12)

    @pytest.mark.parametrize(
        ("pause_s", "load", "sign"),
        [
            (5, None, "loss_jumped"),  # five times as high, with no word of a resume
            (5, "L13", "level_moved"),  # a checkpoint is read between the two steps
            (5, "L9", "loss_jumped"),  # read before steps that kept the old level
            (400, None, "level_moved"),  # as long as a launch takes
            (50, None, "loss_jumped"),  # as a save takes
        ],
    )
    def test_a_resume_begins_a_new_level(self, pause_s: int, load: str | None, sign: str) -> None:
        """The loss alone, and with norms that rose too; behind the resume at line 13, a climb counts all the same."""
        times = [datetime(2026, 3, 4) + timedelta(seconds=5 * n + (pause_s if n >= 12 else 0)) for n in range(24)]
        records = [f"L{n + 1 + (n >= 12)}" for n in range(24)]
        event = {"evidence_id": "0" * 16, "record": load, "signature": "checkpoint_load"}
        events = {"log_events": TABLES["log_events"].frame({name: [value] for name, value in event.items()})} if load else {}
        for norms in (None, [0.5] * 12 + [6.0] * 12):
            for climb, wanted in ((1.0, sign), (1.1, "loss_jumped")):
                told = {"record": records, "ended_at_local": [f"{at:%Y-%m-%dT%H:%M:%S}" for at in times], "grad_norm": norms or [None] * 24}
                case = self.printed([2.0] * 12 + [11.0 * climb**n for n in range(12)], **told)
                frames = {"progress": case.table("progress").collect()} | events
                assert [found for found, _ in accused(ask(MemoryCase(frames), "loss_divergence"))] == [wanted], (norms, climb)


def replicas_case(
    *, dp: int, parts: int, flipped: dict[int, int] | None = None, lost: Sequence[int] = (), mapped: bool = True, num_steps: int = 12
) -> MemoryCase:
    """dp replicas of a model in `parts` parts; rank = replica * parts + part. `flipped`: rank -> step after which its bits are others."""
    rows = [
        {
            "evidence_id": f"{rank:016d}", "record": f"L{step + 1}", "rank": rank, "step": step,
            "param_checksum": f"{rank % parts}-{step}" + (f"-{rank}" if step >= (flipped or {}).get(rank, num_steps) else ""),
        }
        for rank in range(dp * parts) if rank not in lost for step in range(num_steps)
    ]  # fmt: skip
    tables = {"rank_progress": TABLES["rank_progress"].rows(rows)}
    if mapped:
        tables["ranks"] = TABLES["ranks"].rows(
            [{"record": f"E{r}", "rank": r, "host": f"host-{r // 2}", "dp": r // parts, "tp": r % parts} for r in range(dp * parts)]
        )
    return MemoryCase(tables)


@pytest.mark.parametrize(("later", "num"), [(0, 1), (3_000, 0)])
def test_no_jump_of_the_loss_is_dated_into_steps_that_nobody_wrote(later: int, num: int) -> None:
    rows = [
        {"evidence_id": f"{rank:016d}", "record": f"L{n + 1}", "rank": rank, "step": n + (later if n >= 30 else 0),
         "loss": (2.0 if n < 30 else 40.0) * (1 + 0.01 * ((n * 7 + rank) % 5))}
        for rank in range(4) for n in range(60)
    ]  # fmt: skip
    assert len(ask(MemoryCase({"rank_progress": TABLES["rank_progress"].rows(rows)}), "loss_anomaly").findings) == num


class TestReplicaDivergence:
    @pytest.mark.parametrize("mapped", [True, False])
    @pytest.mark.parametrize(("dp", "parts", "at_fault"), [(3, 4, 10), (4, 2, 0), (16, 4, 41)])
    def test_odd_replica_is_voted_out(self, dp: int, parts: int, at_fault: int, mapped: Any) -> None:
        finding = only(ask(replicas_case(dp=dp, parts=parts, flipped={at_fault: 6}, mapped=mapped), "replica_divergence"))
        assert (finding.sign, finding.ranks) == ("replica_differs", (at_fault,))
        assert (finding.numbers["step"], finding.numbers["last_agreed_step"], finding.explains) == (6, 5, ())

    def test_two_replicas_cannot_vote(self) -> None:
        finding = only(ask(replicas_case(dp=2, parts=4, flipped={5: 6}), "replica_divergence"))
        assert (finding.sign, finding.ranks, finding.numbers["candidates"]) == ("replicas_disagree", (), [1, 5])

    def test_lost_files_turn_no_majority(self) -> None:
        """Of five replicas two that were hit and one sound one are on record: two against one is not more than half of five."""
        finding = only(ask(replicas_case(dp=5, parts=1, flipped={0: 6}, lost=(3, 4)), "replica_divergence"))
        assert (finding.sign, finding.ranks) == ("replicas_disagree", ())
        finding = only(ask(replicas_case(dp=5, parts=1, flipped={0: 6}, lost=(4,)), "replica_divergence"))
        assert (finding.sign, finding.ranks) == ("replica_differs", (0,))

    def test_replicas_that_all_differ_show_no_wrong_chip(self) -> None:
        """As by a map that is not that launch's. Where it is the last step, a gradient was not averaged."""
        assert ask(replicas_case(dp=4, parts=2, flipped=dict.fromkeys(range(8), 6)), "replica_divergence").status == "blind"
        assert accused(ask(replicas_case(dp=4, parts=2, flipped=dict.fromkeys(range(8), 11)), "replica_divergence")) == [
            ("parted_at_the_end", ())
        ]

    @pytest.mark.parametrize(("later", "status"), [(0, "found"), (9, "found"), (2_000, "blind")])
    def test_what_agreed_before_a_hole_in_the_record_is_of_another_launch(self, later: int, status: str) -> None:
        case = replicas_case(dp=3, parts=2, flipped={1: 6})
        far = case.table("rank_progress").collect().with_columns(pl.col("step") + pl.when(pl.col("step") < 6).then(0).otherwise(later))
        assert ask(MemoryCase({"rank_progress": far, "ranks": case.table("ranks").collect()}), "replica_divergence").status == status

    def test_only_the_first_step_counts(self) -> None:
        assert accused(ask(replicas_case(dp=3, parts=2, flipped={1: 6, 0: 8}), "replica_divergence")) == [("replica_differs", (1,))]

    def test_replicas_that_agree_are_clear_and_those_that_never_did_are_not_compared(self) -> None:
        assert ask(replicas_case(dp=3, parts=2), "replica_divergence").status == "clear"
        assert ask(replicas_case(dp=3, parts=2, mapped=False), "replica_divergence").status == "clear"
        assert ask(replicas_case(dp=3, parts=2, flipped=dict.fromkeys(range(6), 0)), "replica_divergence").status == "blind"
        assert ask(replicas_case(dp=1, parts=4), "replica_divergence").status == "blind"
        assert ask(replicas_case(dp=3, parts=2, lost=(0, 2, 3, 4)), "replica_divergence").status == "blind"

    def test_checksum_that_differs_once_and_agrees_again_is_no_divergence(self) -> None:
        case = replicas_case(dp=3, parts=2)
        odd = (pl.col("rank") == 3) & (pl.col("step") == 6)
        rows = case.frames["rank_progress"].with_columns(
            pl.when(odd).then(pl.lit("torn")).otherwise("param_checksum").alias("param_checksum")
        )
        assert ask(MemoryCase(case.frames | {"rank_progress": rows}), "replica_divergence").status == "clear"


def incident(folder: Path) -> dict[str, pl.DataFrame]:
    """Timings and map of a real incident."""
    found: dict[str, list[pl.DataFrame]] = {}
    for file in sorted(folder.rglob("*.json*")):
        reader = step_timing if file.parent.name == "timings" else topology if file.name == "topology.json" else None
        source = Source(file.name, file, file.stat().st_size)
        for item in reader.read(source) if reader else ():
            assert not isinstance(item, Skip)
            found.setdefault(item[0].name, []).append(item[1].with_columns(pl.lit(source.evidence_id).alias("evidence_id")))
    return {name: pl.concat(frames) for name, frames in found.items()}


@pytest.mark.skipif(not INCIDENTS.is_dir(), reason="the recorded incidents are not beside this checkout")
class TestRecordedIncidents:
    @pytest.mark.parametrize("mapped", [True, False])
    def test_only_the_two_that_are_about_numbers_are_accused(self, mapped: Any) -> None:
        for folder in sorted(path.parent for path in INCIDENTS.glob("*/truth.json")):
            tables = {name: frame for name, frame in incident(folder).items() if mapped or name in ("steps", "rank_progress")}
            for question in ("slow_rank", "loss_anomaly", "replica_divergence"):
                outcome = ask(MemoryCase(tables), question)
                if AT_FAULT.get(folder.name, ("",))[0] == question:
                    finding = only(outcome)
                    assert (finding.analysis, finding.ranks, finding.numbers["step"]) == AT_FAULT[folder.name]
                    assert finding.numbers["failed_at"].endswith("+00:00")
                else:
                    assert accused(outcome) == [], folder.name

    def test_no_cut_of_a_sound_record_is_an_alarm(self) -> None:
        tables = incident(INCIDENTS / "none_s0")
        for first in range(0, 60, 10):
            for last in range(first + 12, 71, 6):
                cut = tables | {"steps": tables["steps"].filter(pl.col("step").is_between(first, last))}
                assert accused(ask(MemoryCase(cut), "slow_rank")) == [], (first, last)
