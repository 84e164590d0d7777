"""What-if analysis of traced operations: the published traces where they lie beside this repository, and made-up ones whose answer is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from _house import ROOT, read_folder
from _pipeline import Took, pipeline

from rca.case import MemoryCase
from rca.diagnose import diagnose
from rca.questions import ask
from rca.roster import roster
from rca.tables import TABLES
from rca.types import Outcome

TRACES = ROOT.parent / "shared" / "figures" / "straggler"
BASE = {"forward": 0.1, "backward": 0.2}
SIZE: dict[str, int] = {"dp": 4, "pp": 4, "batches": 8, "steps": 10}
PUBLISHED = {"AR": ("slow_worker", [0], "slow_rank"), "ST": ("heavy_stage", [], "stage_imbalance")}


def asked(took: Took, *, drop: Any = None, ranks: pl.DataFrame | None = None, **size: Any) -> Outcome:
    ops = pipeline(took, **(SIZE | size))
    tables = {"ops": ops if drop is None else ops.filter(~drop)}
    outcome = ask(MemoryCase(tables | ({"ranks": ranks} if ranks is not None else {})), "straggler_what_if")
    assert outcome.status != "failed", outcome.why
    return outcome


def numbers(outcome: Outcome) -> dict[str, Any]:
    return next(dict(finding.numbers) for finding in outcome.findings if "S" in finding.numbers)


def accused(outcome: Outcome) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.sign, finding.ranks) for finding in outcome.findings if finding.sign != "straggling"]


def slow(replica: int, stage: int, times: float) -> Took:
    return lambda way, r, s, step, batch, chunk: BASE[way] * (times if (r, s) == (replica, stage) else 1)


def test_operations_that_took_no_time_compare_with_nothing() -> None:
    ops = pipeline(lambda *_: 0.1, **(SIZE | {"steps": 2})).with_columns(pl.lit(0.0).alias("op_s"))
    found = ask(MemoryCase({"ops": ops}), "straggler_what_if")
    assert (found.status, "no operation took any time" in found.why) == ("blind", True), found.why


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_traces(name: str, tmp_path: Path) -> None:
    """S, S_t, S_dp, S_stage, M_W and M_S as their authors have them, within 1 %."""
    if not TRACES.is_dir():
        pytest.skip("the published traces lie outside this repository and are not there: nothing was compared")
    sign, ranks, cause = PUBLISHED[name]
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "trace.parquet").write_bytes((TRACES / f"trace-{name}.parquet").read_bytes())
    with read_folder(tmp_path / "case") as tables:
        case = MemoryCase(tables)
        outcomes = [ask(case, question) for question in ("straggler_what_if", "slow_rank", "uneven_work")]
        verdict = diagnose(outcomes, roster(case))
    found = outcomes[0].findings
    mine = next(finding.numbers for finding in found if finding.sign == "straggling")
    told = {kind: json.loads((TRACES / f"{kind}-{name}.json").read_text()) for kind in ("expected", "mw", "ms")}
    assert mine["S"] == pytest.approx(told["expected"]["blocking_slowdown"], rel=0.01)
    for key, column in (("S_t", "optype"), ("S_dp", "dp_rank"), ("S_stage", "stage")):
        assert mine[key] == {
            at: pytest.approx(value, rel=0.01) for at, value in told["expected"][f"blocking_decompose_by_{column}"].items()
        }
    for key, kind in (("M_W", "mw"), ("M_S", "ms")):
        assert mine[key] == pytest.approx(told[kind]["rem"], rel=0.01)
    assert [(finding.sign, list(finding.ranks)) for finding in found if finding.sign != "straggling"] == [(sign, ranks)]
    assert (verdict.cause, list(verdict.ranks)) == (cause, ranks)


def test_even_work_wastes_nothing() -> None:
    outcome = asked(lambda way, *_: BASE[way])
    told = numbers(outcome)
    assert (outcome.status, accused(outcome)) == ("clear", [("no_straggler", ())])
    assert (told["S"], told["waste"]) == (pytest.approx(1), pytest.approx(0, abs=1e-9))
    transfers = 2 * (SIZE["pp"] - 1) * 0.001
    assert told["step_s"] == pytest.approx((SIZE["batches"] + SIZE["pp"] - 1) * 0.3 + transfers + 0.03, rel=0.01)


@pytest.mark.parametrize(
    ("size", "replica", "stage"),
    [
        ({}, 1, 2),
        ({"dp": 2}, 1, 2),
        ({"dp": 8, "pp": 1}, 5, 0),
        ({"chunks": 2}, 3, 0),
        ({"has_transfers": False}, 0, 3),
        ({"steps": 2}, 2, 1),
    ],
)
def test_a_slow_rank_is_named(size: dict[str, Any], replica: int, stage: int) -> None:
    outcome = asked(slow(replica, stage, 2), **size)
    assert accused(outcome) == [("slow_worker", (replica + size.get("dp", SIZE["dp"]) * stage,))]
    told = numbers(outcome)
    assert told["M_W"] == pytest.approx(1, abs=0.25)
    assert next(iter(told["S_w"])) == str(outcome.findings[0].ranks[0])


def test_known_slowdown() -> None:
    """Replicas without a pipeline: a step lasts as long as the slowest replica, and the ideal is the mean."""
    outcome = asked(slow(5, 0, 2), dp=8, pp=1)
    work, tail = SIZE["batches"] * 0.3, 0.03
    assert numbers(outcome)["S"] == pytest.approx((2 * work + tail) / (9 / 8 * work + tail), rel=1e-6)


def test_work_that_is_uneven_accuses_nobody() -> None:
    heavy = asked(lambda way, r, s, *_: BASE[way] * (1.6 if s == 3 else 1))
    assert accused(heavy) == [("heavy_stage", ())]
    assert heavy.findings[0].numbers["stage"] == 3
    rng = np.random.default_rng(3)
    long, noise = np.exp(rng.normal(0, 0.4, (16, 16, 8))), np.exp(rng.normal(0, 0.4, (2, 16, 2, 16, 8)))
    size = {"dp": 16, "pp": 2, "batches": 4, "steps": 12}
    both = asked(lambda way, r, s, t, b, c: BASE[way] * long[r, t, b] * (1.4 if s == 1 else 1), **size)
    assert accused(both) == [("uneven_batches", ())]
    assert next(f for f in both.findings if f.sign == "uneven_batches").numbers["correlation"] > 0.99
    alone = asked(lambda way, r, s, t, b, c: BASE[way] * noise[int(way == "forward"), r, s, t, b], **size)
    assert (accused(alone), alone.status) == ([], "found")


def test_a_replica_with_longer_batches_is_no_slow_rank() -> None:
    outcome = asked(lambda way, r, *_: BASE[way] * (1.5 if r == 2 else 1))
    assert accused(outcome) == [("uneven_batches", ())]


def test_a_slow_rank_among_uneven_batches() -> None:
    long = np.exp(np.random.default_rng(4).normal(0, 0.15, (8, 16, 8)))
    outcome = asked(lambda way, r, s, t, b, c: BASE[way] * long[r, t, b] * (2 if (r, s) == (3, 1) else 1), dp=8, pp=2, steps=16)
    assert accused(outcome) == [("slow_worker", (11,))]


def test_what_a_map_tells_and_what_is_missing() -> None:
    ops = pipeline(slow(1, 2, 2), **SIZE)
    where = ops.select("rank", "dp", "stage").unique().rename({"stage": "pp"})
    told = TABLES["ranks"].frame(where.with_columns(evidence_id=pl.lit("b" * 16), record=pl.lit("L1")).to_dict())
    bare = MemoryCase({"ops": ops.with_columns(dp=pl.lit(None, pl.Int64), stage=pl.lit(None, pl.Int64)), "ranks": told})
    assert accused(ask(bare, "straggler_what_if")) == [("slow_worker", (9,))]
    assert ask(MemoryCase({"ops": ops.with_columns(dp=pl.lit(None, pl.Int64))}), "straggler_what_if").status == "blind"
    torn = (pl.col("step") == 4) & (pl.col("rank") == 3) & (pl.col("microbatch") == 7)  # a step that was cut: the others are looked at
    outcome = asked(slow(1, 2, 2), drop=torn)
    assert accused(outcome) == [("slow_worker", (9,))]
    assert numbers(outcome)["num_steps_left_out"] == 1
    assert (
        asked(slow(1, 2, 2), drop=(pl.col("op") == "forward-recv") & (pl.col("microbatch").is_null()) & (pl.col("stage") == 1)).status
        == "found"
    )
    assert asked(slow(1, 2, 2), drop=pl.col("kind") == "compute").status == "blind"
    assert asked(slow(1, 2, 2), drop=(pl.col("step") > 0) | (pl.col("dp") > 0)).status == "blind"


def test_starts_that_clocks_put_wrong_or_nobody_tells() -> None:
    ops = pipeline(slow(1, 2, 2), **SIZE)
    skewed = ops.with_columns(pl.col("start_s") + pl.when(pl.col("rank") == 6).then(50.0).otherwise(0.0))
    unknown = ops.with_columns(start_s=pl.lit(None, pl.Float64))
    for rows in (skewed, unknown):
        outcome = ask(MemoryCase({"ops": rows}), "straggler_what_if")
        assert ("slow_worker", (9,)) in accused(outcome), outcome.why
