"""Uneven work of jobs that tell neither layout nor tokens: what the places of heavy ranks and the shape of the times let know, and what not."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES
from rca.types import Outcome

STEPS = 40


def job(compute: Any, *, a_host: int = 8, **more: Any) -> MemoryCase:
    """Seconds of computation by rank and step; `more`: further columns, by rank and step."""
    rank, step = (grid.ravel() for grid in np.indices(compute.shape))
    columns = {
        "evidence_id": "a" * 16,
        "record": "L" + pl.Series(step + 1).cast(pl.String),
        "rank": pl.Series(rank),
        "step": pl.Series(step),
    }
    columns |= {name: pl.Series(np.broadcast_to(values, compute.shape).ravel()) for name, values in more.items()}
    columns |= {"compute_s": pl.Series(compute.ravel()), "host": "host-" + pl.Series(rank // a_host).cast(pl.String)}
    return MemoryCase({"steps": TABLES["steps"].frame(columns, height=compute.size)})


def asked(case: MemoryCase, question: str = "uneven_work") -> Outcome:
    outcome = ask(case, question)
    assert outcome.status != "failed", outcome.why
    return outcome


def signs(outcome: Outcome) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.sign, finding.ranks) for finding in outcome.findings]


def steady(ranks: int, seed: int = 1) -> Any:
    return 2.0 * np.exp(np.random.default_rng(seed).normal(0, 0.01, (ranks, STEPS)))


def drawn(spread: float, ranks: int, seed: int) -> Any:
    """Work of eight micro-batches a step, as their lengths make it."""
    lengths = np.random.default_rng(seed).lognormal(0, spread, (ranks, STEPS, 8))
    return lengths.mean(axis=2) * steady(ranks, seed + 50)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("spread", "ranks"), [(0.5, 8), (0.8, 16)])
def test_work_that_is_dealt_out_anew_shows_in_the_shape_of_the_times(spread: float, ranks: int, seed: int) -> None:
    outcome = asked(job(drawn(spread, ranks, seed)))
    assert signs(outcome) == [("uneven_draws", ())], outcome.why
    assert outcome.findings[0].numbers["correlation"] is None
    assert asked(job(drawn(spread, ranks, seed)), "slow_rank").status == "blind"  # a slower rank may hide in it


def noise_that_adds(seed: int) -> Any:
    return steady(8, seed) * (1 + np.random.default_rng(seed).exponential(0.15, (8, STEPS)))


def hosts_unlike_each_other(seed: int) -> Any:
    return steady(8, seed) * np.exp(np.random.default_rng(seed).normal(0, 1, (8, STEPS)) * np.array([[0.05], [0.3]] * 4))


def hosts_busy_for_a_while(seed: int) -> Any:
    return steady(8, seed) * np.exp(np.repeat(np.random.default_rng(seed).normal(0, 0.2, (8, STEPS // 4)), 4, axis=1))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [noise_that_adds, hosts_unlike_each_other, hosts_busy_for_a_while])
def test_noise_has_another_shape(noise: Any, seed: int) -> None:
    outcome = asked(job(noise(seed)))
    assert (outcome.status, signs(outcome)) == ("blind", []), outcome.why


def test_ranks_of_one_batch_that_are_not_long_together_are_noise() -> None:
    compute = drawn(0.5, 16, 3)
    outcome = asked(job(compute, dp=(np.arange(16) // 2)[:, None]))  # two ranks a batch, of one host
    assert (outcome.status, signs(outcome)) == ("blind", [])
    assert "same batch" in outcome.why


def test_heavy_ranks_that_recur_as_a_stage_does() -> None:
    compute = steady(64)
    heavy = [rank for rank in range(64) if rank // 2 % 8 == 7]  # tensor groups of two, eight stages, four replicas
    compute[heavy] *= 1.5
    found = asked(job(compute)).findings[0]
    assert (found.sign, found.numbers["stage_ranks"], found.numbers["num_stages"]) == ("heavy_places", heavy, 8)
    assert signs(asked(job(compute), "slow_rank")) == []
    compute[20, 15:] *= 1.5  # and one that became slow
    assert signs(asked(job(compute), "slow_rank")) == [("slow_compute", (20,))]


@pytest.mark.parametrize(
    "heavy",
    [
        range(48, 64),  # the last hosts: another kind of machine, or the last stage
        [rank for rank in range(64) if rank // 2 % 8 == 3],  # a stage in the middle has no more to do: a replica, or chance
        [1, 9, 20, 33],
        [5, 37],
    ],
    ids=["block", "middle", "no distance", "two"],
)
def test_other_places_are_no_stage(heavy: Any) -> None:
    compute = steady(64)
    compute[list(heavy)] *= 1.5
    outcome = asked(job(compute))
    assert (outcome.status, signs(outcome)) == ("blind", [])
    assert "heavier stage, or slower machines" in outcome.why


def test_what_became_heavier_is_no_stage() -> None:
    compute = steady(64)
    compute[14::16, 15:] *= 1.5
    compute[15::16, 15:] *= 1.5
    assert all(sign != "heavy_places" for sign, _ in signs(asked(job(compute))))


def late(share: float, *, grows: bool, ranks: Any = (3,)) -> Outcome:
    """One rank waits longer for its batch from step 15 on; the steps become longer with it, or it was idle anyway."""
    data, step = np.full((8, STEPS), 0.02), np.full((8, STEPS), 3.0)
    data[list(ranks), 15:] += 3.0 * share
    step[:, 15:] += 3.0 * share * grows
    return asked(job(steady(8), stage=0, data_s=data, step_s=step, dp=(np.arange(8) // 4)[:, None]), "slow_rank")


def test_a_rank_that_began_to_wait_for_data_counts_from_a_tenth_of_a_step() -> None:
    assert signs(late(0.3, grows=True)) == signs(late(0.18, grows=True)) == [("slow_data", (3,))]
    assert late(0.18, grows=False).status == late(0.05, grows=True).status == "clear"


def test_those_that_load_for_their_replicas_are_no_exception() -> None:
    outcome = late(0.5, grows=True, ranks=(0, 4))
    assert (outcome.status, signs(outcome)) == ("blind", [])
    assert "late for all" in outcome.why


def at_place(place: int, factor: float, *, a_host: int = 8, since: int = 0) -> Any:
    compute = steady(32)
    compute[place::a_host, since:] *= factor
    return compute


@pytest.mark.parametrize(("place", "factor", "since"), [(7, 1.2, 0), (7, 1.3, 20), (0, 1.15, 0)])
def test_the_same_local_rank_of_every_host_accuses_nobody(place: int, factor: float, since: int) -> None:
    found = asked(job(at_place(place, factor, since=since), stage=0), "slow_rank")
    assert signs(found) == [("same_place", ())], found.why
    assert found.findings[0].numbers["candidates"] == list(range(place, 32, 8))
    assert f"local rank {place} of each of 4 hosts" in found.findings[0].says


def test_without_a_layout_a_place_that_became_slower_accuses_nobody() -> None:
    assert signs(asked(job(at_place(7, 1.5, since=20)), "slow_rank")) == [("same_place", ())]


def test_without_a_layout_a_place_that_always_was_heavier_is_no_stage() -> None:
    outcome = asked(job(at_place(7, 1.4)))
    assert (outcome.status, signs(outcome)) == ("blind", [])
    assert "what those ranks do besides" in outcome.why
    assert signs(asked(job(at_place(7, 1.4)), "slow_rank")) == []
    pair = at_place(6, 1.4) * at_place(7, 1.4) / steady(32)
    assert signs(asked(job(pair))) == [("heavy_places", ())]  # a tensor group of two on every host


def test_a_place_excuses_no_other_rank_and_not_what_is_beyond_it() -> None:
    compute = at_place(0, 1.3)
    compute[13] *= 1.5  # another place
    compute[16] *= 2.0  # local rank 0 of a host, and slow itself
    assert signs(asked(job(compute, stage=0), "slow_rank")) == [("same_place", ()), ("slow_compute", (13, 16))]


@pytest.mark.parametrize(("slow", "a_host"), [([3, 19], 8), ([7, 14, 23, 31], 8), ([7, 15, 23], 8), ([0, 8, 16, 24], 32), ([5, 21], 1)])
def test_other_ranks_are_no_place_of_every_host(slow: Any, a_host: int) -> None:
    """Of two hosts of four, of unlike places, of three of four, all on one host, and one rank a host."""
    compute = steady(32)
    compute[slow] *= 1.5
    ranks = tuple(slow)
    assert [found for found in signs(asked(job(compute, a_host=a_host, stage=0), "slow_rank")) if found[1]] == [("slow_compute", ranks)]


def test_a_place_that_waits_for_data_on_every_host_accuses_nobody() -> None:
    data = np.full((32, STEPS), 0.02)
    data[::8] += 1.0
    outcome = asked(job(steady(32), stage=0, data_s=data, step_s=3.0), "slow_rank")
    assert signs(outcome) == [("same_place", ())], outcome.why
    data[5] += 1.5
    outcome = asked(job(steady(32), stage=0, data_s=data, step_s=3.0), "slow_rank")
    assert ("slow_data", (5,)) in signs(outcome)


def varying(seed: int, factor: float, *, since: int, until: int | None = None) -> Any:
    """Normal work, 9 % wide, of 120 steps; one rank longer for some of them."""
    compute = 4.0 * np.exp(np.random.default_rng(seed).normal(0, 0.09, (16, 120)))
    compute[6, since:until] *= factor
    return compute


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_became_slower_among_varying_work_is_no_draw(seed: int) -> None:
    case = job(varying(seed, 1.25, since=60))
    outcome = asked(case)
    assert (outcome.status, signs(outcome)) == ("blind", [])
    assert "that of rank 6 rose to 1.2" in outcome.why
    assert signs(asked(case, "slow_rank")) in ([("slow_compute", (6,))], [])


@pytest.mark.parametrize(("factor", "since", "until"), [(1.0, 0, None), (1.25, 50, 75)])
def test_varying_work_of_which_no_rank_rose_and_stayed_is_drawn(factor: float, since: int, until: int | None) -> None:
    assert signs(asked(job(varying(4, factor, since=since, until=until)))) == [("uneven_draws", ())]


def test_a_host_that_became_slower_among_varying_work_is_not_named_in_part() -> None:
    """Without two peers of a stage nothing is named by means alone: five ranks of a small sound job may differ as much for ten steps."""
    compute = 4.0 * np.exp(np.random.default_rng(5).normal(0, 0.075, (32, 120)))
    compute[8:16, 60:] *= 1.22  # some of its ranks lie below a fifth, by chance
    assert signs(asked(job(compute), "slow_rank")) == []
    assert (asked(job(compute)).status, signs(asked(job(compute)))) == ("blind", [])
