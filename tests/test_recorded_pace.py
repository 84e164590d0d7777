"""The pace of a job, who is late and which transfers are slow, from recorded calls alone; 8 to 1,024 ranks, and runs without a fault."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from _paced import BEGAN, noise, paced

from rca.analyses._call_period import iterations, period
from rca.analyses._own_time import call_times
from rca.case import MemoryCase
from rca.drills._synthetic_job import Job
from rca.questions import ask
from rca.tables import TABLES
from rca.types import Finding

LAYOUTS = (
    Job(tp=2, pp=2, dp=2, steps=20),
    Job(tp=1, pp=1, dp=8, steps=20),
    Job(tp=4, pp=2, dp=4, steps=20, p2p="coalesced", embedding=True),
)


SMALL = LAYOUTS[:2]


def found(question: str, tables: dict[str, pl.DataFrame]) -> list[Finding]:
    evidence = TABLES["evidence"].rows([{"evidence_id": "dump-0", "path": "rank_0"}])
    outcome = ask(MemoryCase({"evidence": evidence} | tables), question)
    assert outcome.status != "failed", outcome.why
    return list(outcome.findings)


# The period


def test_the_period_is_the_whole_iteration_and_not_a_loop_inside_it() -> None:
    layers, step = [1, 2] * 30, 3
    ids: list[int] = []
    for number in range(33):
        ids += [*layers, step, *([7, 8, 9] if number % 10 == 9 else [])]  # an evaluation now and then
    of = period(np.array(ids))
    assert of is not None
    assert of.length == 61
    took = iterations(np.arange(len(ids)) * 0.1, of)
    assert {round(one.seconds, 6) for one in took} == {6.1}, "those around an evaluation are left out"
    assert len(took) >= 25


def test_calls_of_every_tenth_step_do_not_hide_that_each_step_repeats() -> None:
    ids = [id_ for step in range(30) for id_ in (*([9] if step % 10 == 0 else []), 1, 1, 1, 2, 3)]
    of = period(np.array(ids))
    assert of is not None
    assert of.length == 5
    assert len(iterations(np.arange(len(ids), dtype=float), of)) >= 28


def test_calls_in_no_order_have_no_period() -> None:
    assert period(np.random.default_rng(7).integers(0, 9, 800)) is None


# Who is late


@pytest.mark.parametrize("job", LAYOUTS, ids=lambda job: f"tp{job.tp}-pp{job.pp}-dp{job.dp}")
@pytest.mark.parametrize("rank", [0, 5])
def test_a_rank_that_computes_longer_is_named_and_the_slow_down_is_dated_by_its_call(job: Job, rank: int) -> None:
    tables = paced(job, work=lambda r, step: 1.6 if r == rank and step >= 9 else 1.0, skew_s=lambda r: 0.5 * (r // 4))
    by_sign = {f.sign: f for f in found("recorded_pace", tables)}
    late, dropped = by_sign["owns_longer"], by_sign["pace_dropped"]
    assert late.ranks == (rank,)
    assert late.numbers["own_s"] > 1.4 * late.numbers["others_s"]
    assert dropped.ranks == ()
    calls = tables["collectives"].filter((pl.col("rank") == rank) & pl.col("group_id").str.starts_with("world")).sort("created_at")
    begins, ends = calls["created_at"][7], calls["created_at"][10]  # an iteration about the tenth step's beginning
    for at in (late.numbers["failed_at"], dropped.numbers["failed_at"]):
        moment = pl.Series([at]).str.to_datetime(time_zone="UTC")[0]
        own = abs((begins - moment).total_seconds()), abs((ends - moment).total_seconds())
        assert begins <= moment <= ends or min(own) < 2.0, "of another rank's clock, which is off"


@pytest.mark.parametrize("job", SMALL, ids=lambda job: f"tp{job.tp}-pp{job.pp}-dp{job.dp}")
@pytest.mark.parametrize(
    "usual",
    [
        {},
        {"work": lambda rank, step: 1.5 if step % 7 == 3 else 1.0},  # evaluations
        {"work": lambda rank, step: 2.0 if rank == 3 and step in (5, 6, 12) else 1.0},  # spikes of one rank
        {"jitter": 0.3},
        {"skew_s": lambda rank: 0.02 * rank},
        {"timing": False},
    ],
    ids=["plain", "evaluations", "spikes", "noise", "skew", "no_starts"],
)
def test_nobody_is_late_and_nothing_slowed_in_a_run_without_a_fault(job: Job, usual: dict[str, Any]) -> None:
    tables = paced(job, **usual)
    for question in ("recorded_pace", "sibling_groups", "delay_matrix"):
        assert [f.sign for f in found(question, tables)] == [], question


def test_ranks_whose_recorder_tells_no_ends_are_not_measured_beside_those_that_are_timed() -> None:
    tables = paced(Job(tp=2, pp=1, dp=8, steps=20), work=lambda rank, step: 1.0 if rank < 2 else 0.4)
    untimed = pl.col("rank") < 2  # both of one group of one host: Gloo's calls would end when the last of the two comes
    ends = (pl.when(~untimed).then(pl.col(name)).alias(name) for name in ("started_at", "completed_at"))
    tables["collectives"] = tables["collectives"].with_columns(ends)
    assert found("recorded_pace", tables) == []
    assert set(call_times(MemoryCase(tables)).own["rank"]) == set(range(2, 16))


def test_a_heavier_stage_and_ranks_that_read_for_their_group_are_no_slow_ranks() -> None:
    job = Job(tp=4, pp=2, dp=4, steps=16)
    heavy = paced(job, work=lambda rank, step: 1.4 if rank >= 16 else 1.0)
    reads = paced(job, work=lambda rank, step: 1.5 if rank % 4 == 0 else 1.0)
    batches = paced(LAYOUTS[2])
    for tables in (heavy, reads, batches):
        assert found("recorded_pace", tables) == []


def test_a_host_whose_ranks_are_all_late_is_named_as_one() -> None:
    job = Job(tp=2, pp=1, dp=16, steps=16)
    (late,) = [f for f in found("recorded_pace", paced(job, work=lambda r, s: 1.5 if 8 <= r < 16 else 1.0)) if f.ranks]
    assert (late.sign, late.ranks, late.hosts) == ("host_owns_longer", tuple(range(8, 16)), ("n1",))
    assert "failed_at" not in late.numbers, "slow from the first recorded call on"


def test_few_iterations_on_record_are_compared_part_by_part() -> None:
    job = Job(tp=4, pp=1, dp=4, steps=6)
    (late,) = [f for f in found("recorded_pace", paced(job, work=lambda r, s: 1.5 if r == 6 else 1.0)) if f.ranks]
    assert late.ranks == (6,)


def test_a_thousand_ranks() -> None:
    job = Job(tp=8, pp=4, dp=32, steps=9, microbatches=1, tp_ops=2, dp_ops=2)
    tables = paced(job, work=lambda rank, step: 1.5 if rank == 700 else 1.0)
    (late,) = [f for f in found("recorded_pace", tables) if f.ranks]
    assert (late.ranks, late.hosts) == ((700,), ("n87",))
    assert replace(late, ranks=()).explains


@pytest.mark.parametrize("slower", [1.0, 1.4])
def test_batches_of_the_inspector_tell_the_pace_too(slower: float) -> None:
    """Five processes write what ended every 10 s; in the second half an iteration of seven calls takes longer."""
    rows: list[dict[str, Any]] = []
    for process in range(5):
        clock, written = 0.0, 10.0
        for number in range(300):
            clock += (1.0 if number < 150 else slower) * (1 + 0.02 * noise(process, number))
            written = max(written, 10.0 * -(-clock // 10))
            rows += [
                {"evidence_id": f"i-{process}", "record": f"L{7 * number + k}", "comm": "0xa" if k < 5 else "0xb", "group_rank": process,
                 "group_size": 8, "pid": 100 + process, "op": "AllGather" if k % 2 else "ReduceScatter", "is_p2p": False, "size_bytes": 64,
                 "collective_seq_id": number, "exec_s": 0.01, "logged_at": BEGAN + timedelta(seconds=written)}
                for k in range(7)
            ]  # fmt: skip
    told = found("recorded_pace", {"nccl_calls": TABLES["nccl_calls"].rows(rows)})
    if slower == 1.0:
        assert told == []
        return
    (dropped,) = told
    assert (dropped.sign, dropped.ranks, dropped.numbers["calls"]) == ("pace_dropped", (), 7)
    assert dropped.numbers["after_s"] / dropped.numbers["before_s"] == pytest.approx(1.4, abs=0.06)
    assert dropped.cites[0].table == "nccl_calls"


def test_a_cpu_that_runs_ahead_hides_what_the_gpus_own() -> None:
    tables = paced(LAYOUTS[1], work=lambda rank, step: 1.6 if rank == 5 else 1.0, timing=False)
    synced = pl.when(pl.col("group_id").str.starts_with("world")).then("completed_at").forward_fill().shift(1).over("rank")
    place = pl.int_range(pl.len()).over("rank", synced.rle_id())
    calls = tables["collectives"].sort("rank", "record_id")
    ahead = calls.with_columns(created_at=pl.coalesce(synced + pl.duration(microseconds=100 * place), "created_at"))
    outcome = ask(
        MemoryCase(tables | {"collectives": ahead, "evidence": TABLES["evidence"].rows([{"evidence_id": "d", "path": "d"}])}),
        "recorded_pace",
    )
    assert [f for f in outcome.findings if f.ranks] == []
    assert (outcome.status, "TORCH_NCCL_ENABLE_TIMING" in outcome.why) == ("blind", True)


def test_without_the_end_of_any_call_only_the_pace_is_told() -> None:
    tables = paced(Job(tp=2, pp=1, dp=4, steps=24), work=lambda rank, step: 1.6 if rank == 5 and step >= 9 else 1.0)
    blank = tables["collectives"].with_columns(pl.lit(None).cast(pl.Datetime("us", "UTC")).alias(c) for c in ("started_at", "completed_at"))
    scattered = tables["ranks"].with_columns(host=pl.lit("n") + pl.col("rank").cast(pl.String))
    assert [f.sign for f in found("recorded_pace", tables | {"collectives": blank, "ranks": scattered})] == ["pace_dropped"]
    together = found("recorded_pace", tables | {"collectives": blank})
    assert [f.ranks for f in together if f.ranks] == [(5,)], "on one host arrivals can be compared, as calls of such a record block"
