"""Work that is uneven itself: heavy stages and batches that differ, told from slow ranks and from the noise of hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from _house import ROOT, read_folder

from rca.case import MemoryCase
from rca.diagnose import diagnose
from rca.questions import ask
from rca.roster import roster
from rca.tables import TABLES
from rca.types import Outcome

TIMINGS = ROOT.parent / "shared" / "cases" / "timings"
PAI = ROOT.parent / "shared" / "figures" / "pai_minibatch" / "job_1_norm.csv"
DP, STEPS = 16, 40
PUBLISHED = {"AR": ("slow_rank", [0]), "ST": ("stage_imbalance", []), "SE": ("data_imbalance", [])}


def job(compute: Any, *, told: str = "", tokens: Any = None, squared: Any = None) -> MemoryCase:
    """Seconds by stage, replica and step; rank = replica + replicas x stage. `told`: dp, ways (forward and backward) or neither."""
    _, dp, _ = compute.shape
    stage, replica, step = (grid.ravel() for grid in np.indices(compute.shape))
    columns: dict[str, Any] = {
        "evidence_id": ["a" * 16] * compute.size,
        "record": [f"L{n + 1}" for n in range(compute.size)],
        "rank": (stage * dp + replica).tolist(),
        "step": step.tolist(),
        "stage": stage.tolist(),
        "compute_s": compute.ravel().tolist(),
        "dp": replica.tolist() if told == "dp" else None,
    }
    if told.startswith("ways"):
        own = np.exp(np.random.default_rng(1).normal(0, 0.3 if told == "ways apart" else 0.01, compute.shape))
        forward = compute * 0.33 * own
        columns |= {"forward_s": forward.ravel().tolist(), "backward_s": (compute - forward).ravel().tolist()}
    for name, values in (("num_tokens", tokens), ("squared_tokens", squared)):
        if values is not None:
            columns[name] = np.broadcast_to(values, compute.shape).ravel().tolist()
    return MemoryCase({"steps": TABLES["steps"].frame(columns)})


def noisy(seed: int, *shape: int, noise: float = 0.01) -> Any:
    return np.exp(np.random.default_rng(seed).normal(0, noise, shape))


def sequences(seed: int, dp: int = DP, steps: int = STEPS) -> tuple[Any, Any, Any]:
    """Tokens and squared lengths of the batches of each replica and step, and the work they make relative to the usual one."""
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(7, 0.8, (dp, steps, 24)).astype(int) + 1
    tokens, squared = lengths.sum(axis=2), (lengths.astype(float) ** 2).sum(axis=2)
    made = tokens / np.median(tokens) + 0.5 * squared / np.median(squared)
    return tokens, squared, made / np.median(made)


def asked(case: MemoryCase, question: str = "uneven_work") -> Outcome:
    outcome = ask(case, question)
    assert outcome.status != "failed", outcome.why
    return outcome


def accused(outcome: Outcome) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.sign, finding.ranks) for finding in outcome.findings]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_timings(name: str, tmp_path: Path) -> None:
    if not TIMINGS.is_dir():
        pytest.skip("the published timings lie outside this repository and are not there: nothing was compared")
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "steps.csv").write_bytes((TIMINGS / f"bytedance_{name}_rank_step.csv").read_bytes())
    with read_folder(tmp_path / "case") as tables:
        case = MemoryCase(tables)
        verdict = diagnose([ask(case, question) for question in ("slow_rank", "uneven_work")], roster(case))
    assert (verdict.cause, list(verdict.ranks)) == PUBLISHED[name]


@pytest.mark.parametrize(("told", "sign"), [("dp", "stages"), ("ways", "ways"), ("", "twins")])
def test_batches_that_differ(told: str, sign: str) -> None:
    """As sequences of all lengths make them: the same on every stage of a replica, and new in every step."""
    _, _, made = sequences(1)
    compute = 5 * noisy(2, 2, DP, STEPS) * made
    compute[1] *= 1.35  # the last stage is longer too, and costs less
    if told == "ways":
        compute = compute[:1]
    outcome = asked(job(compute, told=told))
    found = next(finding for finding in outcome.findings if finding.sign == "uneven_batches")
    assert (found.ranks, found.numbers["follows"]) == ((), sign)
    assert {sign for sign, _ in accused(outcome)} == {"uneven_batches", *(["lesser"] if told != "ways" else [])}
    assert (asked(job(compute, told=told), "slow_rank").status) == "blind"


@pytest.mark.parametrize("told", ["dp", "ways", "ways apart", ""])
def test_noise_of_hosts_is_no_uneven_batch(told: str) -> None:
    compute = 5 * noisy(3, 2, DP, STEPS, noise=0.25)
    if told == "ways":  # busy hosts slow both for some steps
        waves = np.repeat(np.random.default_rng(4).normal(0, 0.25, (2, DP, STEPS // 4)), 4, axis=2)
        compute = 5 * np.exp(waves)
    outcome = asked(job(compute, told=told))
    assert (outcome.status, accused(outcome)) == ("blind", []), outcome.why


def test_ranks_of_one_batch_on_one_host() -> None:
    """Tensor groups of two, four of them a host: noise of a host is of all its ranks, a batch of the two that work on it."""
    _, _, made = sequences(22)
    compute = 5 * noisy(23, 2, DP, STEPS) * made  # two ranks a batch
    case = job(compute, told="dp")
    places = {"stage": pl.lit(0), "host": pl.format("host-{}", pl.col("dp") // 4)}
    found = asked(MemoryCase({"steps": case.frames["steps"].with_columns(**places)}))
    assert found.findings[0].numbers["follows"] == "siblings"
    busy = np.repeat(np.exp(np.random.default_rng(24).normal(0, 0.3, (DP // 4, STEPS))), 4, axis=0)
    noise = job(5 * noisy(25, 2, DP, STEPS) * busy, told="dp").frames["steps"].with_columns(**places)
    assert accused(asked(MemoryCase({"steps": noise}))) == []


def test_even_work_and_a_slow_rank_are_no_uneven_work() -> None:
    compute = 5 * noisy(5, 2, DP, STEPS)
    assert asked(job(compute, told="dp")).status == "clear"
    compute[1, 3, 12:] *= 1.8
    assert accused(asked(job(compute, told="dp"))) == []
    assert accused(asked(job(compute, told="dp"), "slow_rank")) == [("slow_compute", (DP + 3,))]


def test_a_stage_of_two_with_one_slow_rank_is_not_heavy() -> None:
    compute = 5 * noisy(6, 4, 2, STEPS)
    compute[2, 1] *= 2
    assert accused(asked(job(compute, told="dp"))) == []
    compute[2] = 10 * noisy(7, 2, STEPS)
    assert accused(asked(job(compute, told="dp"))) == [("heavy_stage", ())]
    assert accused(asked(job(compute[:, :1]))) == []  # one rank a stage: it may be slow


def test_a_replica_that_is_longer_on_all_its_stages_has_longer_batches() -> None:
    compute = 5 * noisy(20, 4, DP, STEPS)
    compute[:, 6] *= 1.5
    case = job(compute, told="dp")
    assert accused(asked(case)) == [("uneven_batches", ())]
    assert asked(case).findings[0].numbers["candidates"] == [6 + DP * stage for stage in range(4)]
    assert (asked(case, "slow_rank").status, accused(asked(case, "slow_rank"))) == ("blind", [])
    one_host = case.frames["steps"].with_columns(
        host=pl.when(pl.col("dp") == 6).then(pl.lit("host-6")).otherwise(pl.format("host-{}", "rank"))
    )
    assert accused(asked(MemoryCase({"steps": one_host}), "slow_rank")) == [("slow_host", tuple(6 + DP * stage for stage in range(4)))]


def test_a_rank_that_was_slow_for_a_while_is_told_and_not_accused() -> None:
    """As in a published job: three workers a tenth slower all the time, and one that becomes slow in the middle and recovers."""
    compute = 5 * noisy(21, 1, 10, 300, noise=0.04)
    compute[0, :3] *= 1.1
    compute[0, 6, 181:195] *= 1.6
    outcome = asked(job(compute), "slow_rank")
    assert (outcome.status, accused(outcome)) == ("clear", [("was_slow_once", ())])
    numbers = outcome.findings[0].numbers
    assert numbers["candidates"] == [6]
    assert abs(numbers["step"] - 181) <= 1
    assert abs(numbers["last_step"] - 194) <= 1


def test_published_workers() -> None:
    """Mini-batch times of Alibaba's job 1, normalised: worker 6 turns straggler in the middle; workers 0 to 2 are steadily a tenth slower."""
    if not PAI.is_file():
        pytest.skip("the published series lies outside this repository and is not there: nothing was compared")
    rows = pl.read_csv(PAI)
    columns = {"rank": rows["worker"], "step": rows["time"], "compute_s": rows["batch_time_norm"].cast(pl.Float64)}
    places = {"evidence_id": ["a" * 16] * rows.height, "record": [f"L{n + 2}" for n in range(rows.height)]}
    outcome = asked(MemoryCase({"steps": TABLES["steps"].frame(columns | places)}), "slow_rank")
    assert accused(outcome) == [("was_slow", ())]
    numbers = outcome.findings[0].numbers
    assert numbers["candidates"] == [6]
    assert 1791 <= numbers["step"] < numbers["last_step"] <= 1971


def test_ranks_that_write_every_tenth_step_and_not_the_same_ones() -> None:
    compute = 5 * noisy(26, 1, 8, 400)
    compute[0, 5, 150:] *= 1.5
    rows = job(compute).frames["steps"].filter((pl.col("step") + 3 * pl.col("rank")) % 10 == 0)
    outcome = asked(MemoryCase({"steps": rows}), "slow_rank")
    assert accused(outcome) == [("slow_compute", (5,))]
    assert abs(outcome.findings[0].numbers["step"] - 150) <= 10
    assert outcome.findings[0].cites


class TestTokens:
    def test_they_tell_batches(self) -> None:
        tokens, squared, made = sequences(8)
        for more in ({"tokens": tokens}, {"tokens": tokens, "squared": squared}):
            outcome = asked(job(5 * noisy(9, 1, DP, STEPS) * made, **more))
            assert accused(outcome) == [("uneven_batches", ())]
            assert outcome.findings[0].numbers["follows"] == "tokens"

    def test_that_do_not_go_with_it_speak_against(self) -> None:
        _, _, made = sequences(10)
        other, _, _ = sequences(11)
        outcome = asked(job(5 * noisy(12, 1, DP, STEPS) * made, told="ways", tokens=other))
        assert (outcome.status, "tokens" in outcome.why) == ("blind", True)

    def test_a_slow_rank_shows_beyond_its_tokens(self) -> None:
        """1.3 times as slow among batches that differ by 30 %: seen against what the tokens let expect."""
        tokens, squared, made = sequences(13)
        compute = 5 * noisy(14, 1, DP, STEPS) * made
        compute[0, 5, 10:] *= 1.3
        found = asked(job(compute, tokens=tokens, squared=squared), "slow_rank")
        assert accused(found) == [("slow_compute", (5,))]
        assert found.findings[0].numbers["ratio"] == pytest.approx(1.3, rel=0.05)

    def test_heavier_batches_of_one_rank_do_not_make_it_slow(self) -> None:
        tokens, squared, made = sequences(15)
        factor = np.where(np.arange(DP) == 4, 1.6, 1.0)[:, None]
        compute = 5 * noisy(16, 1, DP, STEPS) * made * factor
        assert accused(asked(job(compute), "slow_rank")) == [("slow_compute", (4,))]
        given = job(compute, tokens=(tokens * factor).astype(int), squared=squared * factor)
        assert accused(asked(given, "slow_rank")) == []

    def test_counted_from_the_beginning_they_are_not_those_of_a_step(self) -> None:
        tokens, _, made = sequences(17)
        compute = 5 * noisy(18, 1, DP, STEPS) * made
        outcome = asked(job(compute, told="ways", tokens=np.cumsum(tokens, axis=1)))
        assert outcome.findings[0].numbers["follows"] == "ways"


def test_few_ranks_or_steps_leave_it_open() -> None:
    assert asked(job(5 * noisy(19, 1, 1, STEPS))).status == "blind"
    assert asked(job(5 * noisy(19, 2, 4, 8))).status == "blind"
    assert asked(MemoryCase({"steps": TABLES["steps"].frame({"rank": [0], "step": [1]})})).status == "blind"


TWICE = {5: 2.0}  # replica -> times as long or as many as the others


@pytest.mark.parametrize(
    ("longer", "more", "told", "slow", "uneven"),
    [
        (TWICE, TWICE, "tokens", [], [5]),  # as long for a token as all others
        (TWICE, TWICE, "counted up", [], [5]),
        (TWICE, {}, "tokens", [5], []),
        (TWICE, TWICE, "", [5], []),
        ({}, TWICE, "tokens", [], []),  # padded: it costs nothing
        ({5: 3.0}, TWICE, "tokens", [], []),  # long sequences may take so long, or the rank is slow: nobody
        ({5: 3.0}, TWICE, "tokens and squares", [5], []),  # sequences as long as those of others
        ({5: 4.8}, TWICE, "tokens", [5], []),  # no length of sequences makes that
        (TWICE | {9: 1.6}, TWICE, "tokens", [9], [5]),
        ({5: 2.0, 6: 2.0, 7: 2.0}, {5: 2.0, 6: 2.0, 7: 2.0}, "tokens", [], [5, 6, 7]),
        ({5: 2.0}, {6: 2.0}, "tokens", [5], []),
        ({}, {5: 0.5}, "tokens", [], []),
    ],
)
def test_a_rank_that_always_has_more_tokens(
    longer: dict[int, float], more: dict[int, float], told: str, slow: list[int], uneven: list[int]
) -> None:
    compute, tokens = 5 * noisy(31, 1, DP, STEPS), np.full((1, DP, STEPS), 4096)
    for replica, times in longer.items():
        compute[0, replica] *= times
    for replica, times in more.items():
        tokens[0, replica] = tokens[0, replica] * times
    if told == "counted up":
        tokens = tokens.cumsum(axis=2)
    squares = tokens * 4096.0 if told.endswith("squares") else None
    case = job(compute, tokens=tokens if told else None, squared=squares)
    work, pace = asked(case), asked(case, "slow_rank")
    assert [rank for finding in pace.findings for rank in finding.ranks] == slow
    assert [finding.numbers["candidates"] for finding in work.findings if finding.numbers.get("follows") == "load"] == (
        [uneven] if uneven else []
    )
    if more and longer and not slow:
        assert pace.status == "blind", "a slow rank may hide in it"


def test_a_rank_that_becomes_slow_beside_its_longer_batches() -> None:
    compute, tokens = 5 * noisy(32, 1, DP, STEPS), np.full((1, DP, STEPS), 4096)
    tokens[0, 5] *= 2
    compute[0, 5] *= 2
    compute[0, 5, 20:] *= 1.5
    found = asked(job(compute, tokens=tokens), "slow_rank").findings
    assert [(finding.ranks, finding.numbers["step"]) for finding in found] == [((5,), 20)]
