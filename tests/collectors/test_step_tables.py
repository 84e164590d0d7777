"""Tables and series of steps, whatever the file: what the headings mean, and that nobody is accused by them who is not slow."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from _house import ROOT, call
from _sources import FIXTURES, rows_of, source_of

from collectors import golden_values, kineto_trace, parquet_tables, step_tables, tensorboard_events
from collectors._step_table import layout

CASES = ROOT.parent / "shared" / "cases" / "timings"
US = 1e-6


@pytest.mark.parametrize(
    ("text", "table", "expected"),
    [
        (
            "step,rank,stage,compute\n5,3,1,2.5\n",
            "steps",
            {"record": "L2", "step": 5, "rank": 3, "stage": 1, "compute_s": 2.5, "step_s": None},
        ),
        ("iteration\titeration-time\tlm loss\n5\t2.5\tnan\n", "progress", {"step": 5, "rank": None, "loss": None, "logged_step_s": 2.5}),
        ("iteration;rank;step_time_ms\n5;0;1000,5\n", "steps", {"step_s": 1.0005}),
        ('"Step","run-1 - train/loss"\n"5","1.5"\n', "progress", {"step": 5, "loss": 1.5}),
        ("global_step,rank,compute_fwd_us,compute_bwd_us\n5,0,1,2\n", "steps", {"compute_s": 3 * US}),
        ("step,train_loss\n5,inf\n", "progress", {"loss": None, "is_finite": False}),
        ("step,global_rank,loss\n5,7,1.5\n", "rank_progress", {"rank": 7, "loss": 1.5}),
        ("step,step_time_ms,compute\n5,2000,500\n", "steps", {"step_s": 2.0, "compute_s": 0.5}),  # the unit of the step's time
        ("step,iteration_time_s\n5,\n", "steps", {"step_s": None}),
        ("_step,_timestamp,mfu(%),lr\n5,1772445600,42.5,1e-4\n", "progress", {"mfu_ratio": 0.425, "learning_rate": 1e-4}),
    ],
)
def test_headings_are_understood(tmp_path: Path, text: str, table: str, expected: dict[str, object]) -> None:
    assert step_tables.claims("x", text.encode())
    tables, skips = rows_of(step_tables, source_of(tmp_path, text.encode()))
    assert len(tables[table]) == 1
    assert {name: tables[table][0][name] for name in expected} == pytest.approx(expected)
    assert not skips


def test_what_is_no_table_of_steps_is_not_claimed() -> None:
    for text in (
        "step,name\n1,a\n",
        "time,loss\n1,2\n",
        "step,loss\n",
        "step,loss\nx,1\n",
        "step,phase,ms\n1,fwd,2\n",
        "a step, a loss\nand text\n",
    ):
        assert not step_tables.claims("steps.csv", text.encode()), text
    assert layout(["step", "elapsed_s"]) is None  # it may count up from the first row
    assert layout(["step", "elapsed_time_ms_step"]) is None  # the optimizer's, of DeepSpeed


def test_torn_and_foreign_rows_are_skipped_with_their_line(tmp_path: Path) -> None:
    text = b"# a comment\nstep,loss\n1,2\n\nstep,loss\n2,3\n3\n"
    tables, skips = rows_of(step_tables, source_of(tmp_path, text))
    assert [row["record"] for row in tables["progress"]] == ["L3", "L6"]
    assert [skip.record for skip in skips] == ["L5", "L7"]


def test_operations_are_summed_up_by_rank_and_step(tmp_path: Path) -> None:
    data = (FIXTURES / "ops.parquet").read_bytes()
    tables, _ = rows_of(parquet_tables, source_of(tmp_path, data, "ops.parquet"))
    assert (len(tables["ops"]), len(tables["steps"])) == (32, 8)
    assert {row["compute_s"] for row in tables["steps"]} == {0.5}
    assert {row["op"]: row["kind"] for row in tables["ops"]} == {
        "forward-compute": "compute", "params-all-gather": "collective", "optimizer": "optimizer",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["golden_new.json", "golden_old.json"])
def test_golden_values_are_of_nobody(tmp_path: Path, name: str) -> None:
    tables, _ = rows_of(golden_values, source_of(tmp_path, (FIXTURES / name).read_bytes()))
    assert {row["rank"] for rows in tables.values() for row in rows} == {None}
    told = {row["step"]: row["step_s"] for row in tables["steps"]}
    assert told == ({1: 31.5, 2: 4.25, 3: None, 4: 4.5, 5: 4.25} if "new" in name else {10: 4.25, 15: 4.5})


def test_a_trace_tells_steps_and_communication(tmp_path: Path) -> None:
    tables, _ = rows_of(kineto_trace, source_of(tmp_path, (FIXTURES / "trace_nccl.json").read_bytes()))
    first = tables["steps"][0]
    wanted = {
        "rank": 3,
        "step": 12,
        "step_s": 900 * US,
        "compute_s": 400 * US,
        "comm_s": 250 * US,
        "data_s": 40 * US,
    }  # overlap counts once
    assert {name: first[name] for name in wanted} == pytest.approx(wanted)
    ops = [(row["kind"], row["group_desc"], row["seq_id"], row["size_bytes"], row["step"]) for row in tables["ops"]]
    assert ops == [("collective", "DATA_PARALLEL_GROUP", 17, 2048, 12), ("p2p", "PIPELINE_MODEL_PARALLEL_GROUP", 4, 1024, 13)]
    tables, _ = rows_of(kineto_trace, source_of(tmp_path, (FIXTURES / "trace_gloo.json").read_bytes()))
    assert [(row["rank"], row["step"], row["compute_s"]) for row in tables["steps"]] == [(1, 2, None), (1, 3, None)]


def test_scalars_of_tensorboard_are_read(tmp_path: Path) -> None:
    tables, _ = rows_of(tensorboard_events, source_of(tmp_path, (FIXTURES / "scalars.tfevents").read_bytes()))
    assert [(row["step"], row["step_s"], row["data_s"]) for row in tables["steps"]] == [
        (1, 2.625, 0.125),
        (2, 2.75, 0.125),
        (3, 2.875, 0.125),
    ]
    assert tables["progress"][0]["mfu_ratio"] == pytest.approx(0.425)


def named(verdict: dict[str, Any]) -> list[int]:
    """The accused ranks of a verdict."""
    return list((verdict.get("first_failing") or {}).get("ranks") or [])


def table(*, slow: int | None = None, heavy: int | None = None, longer: bool = False) -> str:
    """40 steps of 4 replicas x 4 stages: a slow rank, a heavy stage, or batches of uneven length that all stages of a replica feel."""
    rng, rows = random.Random(3), ["step,rank,dp_rank,stage,compute"]
    for step in range(0, 400, 10):
        batch = [math.exp(rng.gauss(0, 0.25)) if longer else 1.0 for _ in range(4)]
        for rank in range(16):
            replica, stage = rank % 4, rank // 4
            time = 2.0 * batch[replica] * (1 + rng.random() / 50) * (2.2 if rank == slow else 1.0) * (1.6 if stage == heavy else 1.0)
            rows.append(f"{step},{rank},{replica},{stage},{time:.6f}")
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    ("text", "ranks", "cause"),
    [
        (table(slow=5), [5], "slow_rank"),
        (table(heavy=3), [], "stage_imbalance"),
        (table(longer=True), [], "data_imbalance"),
        (table(), [], None),
    ],
)
def test_only_a_slow_rank_is_named(tmp_path: Path, text: str, ranks: list[int], cause: str | None) -> None:
    (tmp_path / "table.csv").write_text(text)
    verdict = call("diagnose", tmp_path / "table.csv", "--json", "--case", tmp_path / "case").doc["verdict"]
    assert named(verdict) == ranks
    assert cause is None or verdict["cause"] == cause


def test_a_series_of_the_job_names_nobody_and_is_no_timing_of_ranks(tmp_path: Path) -> None:
    rng = random.Random(4)
    rows = [f"{step},{12 + rng.random() / 4 + (80 if step % 50 == 0 else 0):.5f},{12 - step / 100:.4f}" for step in range(1, 300)]
    (tmp_path / "table.csv").write_text("step,iteration_time_s,lm_loss\n" + "\n".join(rows) + "\n")
    document = call("diagnose", tmp_path / "table.csv", "--json", "--case", tmp_path / "case").doc
    assert (named(document["verdict"]), document["verdict"]["cause"]) == ([], "unknown")


def test_published_series_name_whom_they_should(tmp_path: Path) -> None:
    if not CASES.is_dir():
        pytest.skip("../shared/cases is not there: published series are not tried")
    for name, ranks in (("bytedance_AR_rank_step", [0]), ("bytedance_SE_rank_step", []), ("bytedance_ST_rank_step", [])):
        verdict = call("diagnose", CASES / f"{name}.csv", "--json", "--case", tmp_path / name).doc["verdict"]
        assert named(verdict) == ranks, name
