"""A group that is slow shows in rounds of stacks: how many rounds it takes, and what chance does in a sound job."""

from __future__ import annotations

import random

import pytest
from _group_jobs import Job, tables

from rca.analyses._group_cover import Part
from rca.analyses._group_votes import ROUNDS, vote
from rca.eviction import eviction_plan
from rca.questions import ask
from rca.roster import roster

JOB = Job({"tp": 2, "pp": 4, "dp": 16}, per_host=2)
PIPELINES = [Part("pp", (f"pp {number}",), frozenset(ranks)) for number, ranks in enumerate(JOB.groups(["tp", "pp"]))]
NOISE = 0.01  # of all ranks that are elsewhere in a round, whatever their group
LAGS = 0.3  # of the rounds in which some other pipeline stands apart as a whole


def _rounds(slow: Part | None, seen: float, num: int, rng: random.Random) -> list[set[int]]:
    """Ranks apart in each round: noise, now and then a group that only lags, and the slow one's with probability `seen`."""
    rounds = []
    for _ in range(num):
        odd = {rank for rank in range(JOB.size) if rng.random() < NOISE}
        odd |= set(rng.choice(PIPELINES).ranks if rng.random() < LAGS else ())
        rounds.append(odd | set(slow.ranks if slow is not None and rng.random() < seen else ()))
    return rounds


def share_right(seen: float, num: int, trials: int = 200) -> float:
    """Of simulated jobs with one slow pipeline of 16, those whose vote names it."""
    rng = random.Random(f"{seen} {num}")
    right = 0
    for _ in range(trials):
        slow = rng.choice(PIPELINES)
        won = vote(_rounds(slow, seen, num, rng), PIPELINES, JOB.size)
        right += won is not None and won.part == slow
    return right / trials


@pytest.mark.parametrize(("seen", "least"), [(0.2, 0.22), (0.5, 0.6), (0.7, 0.78), (0.9, 0.95)])
def test_five_rounds_find_the_group_the_oftener_the_more_it_shows(seen: float, least: float) -> None:
    """Measured over 400 trials: 30, 70, 86 and 99 % (docs/how_it_decides.md)."""
    assert share_right(seen, ROUNDS) >= least


def test_more_rounds_are_better() -> None:
    shares = [share_right(0.4, num) for num in (1, 5, 12)]
    assert shares == sorted(shares)
    assert shares[0] < 0.4 < shares[1] < 0.8 < shares[2]


def test_no_group_is_sure_where_none_is_slow() -> None:
    rng = random.Random("sound")
    won = [vote(_rounds(None, 0.0, ROUNDS, rng), PIPELINES, JOB.size) for _ in range(400)]
    assert [v for v in won if v is not None and v.chance <= 0.01] == []


def test_groups_that_hold_as_many_get_no_flag() -> None:
    assert vote([{0, 8}] * 5, PIPELINES, JOB.size) is None
    assert vote([], PIPELINES, JOB.size) is None


TURNS = [
    ("irecv", "irecv", "isend", "all_gather"),
    ("irecv", "isend", "all_gather", "compute"),
] * 3  # places of the four stages in each round


def _sampled(slow: int | None, num: int) -> list[dict[int, str]]:
    """A job on the move: everybody computes or waits in turns; the copy `slow` of the model computes while the others are in their sync."""
    rounds = []
    for number in range(num):
        usual = "grad_sync" if number % 2 else "device"
        rounds.append({rank: "compute" if at["dp"] == slow else usual for rank, at in enumerate(JOB.at)})
    return rounds


def test_a_running_job_names_the_slow_pipeline_and_accuses_nobody() -> None:
    case = tables(JOB, _sampled(5, 6))
    (finding,) = ask(case, "slow_group_votes").findings
    assert (finding.sign, finding.ranks, finding.numbers["kind"]) == ("slow_group", (), "mp")
    assert finding.hosts == ("m20", "m21", "m22", "m23")
    plan = eviction_plan([finding], roster(case))
    assert plan is not None
    assert plan.hosts == finding.hosts
    assert plan.innocent_hosts is None  # which of them is slow the stacks do not tell
    assert plan.num_innocent == 3


def test_a_copy_that_always_waits_at_the_end_of_the_step_is_the_fast_one() -> None:
    rounds = [{rank: "grad_sync" if at["dp"] == 5 else inside[at["pp"]] for rank, at in enumerate(JOB.at)} for inside in TURNS]
    outcome = ask(tables(JOB, rounds), "slow_group_votes")
    assert [(finding.sign, "cover" in finding.numbers) for finding in outcome.findings] == [("slow_group_hint", False)]


def test_a_sound_job_and_too_few_rounds_name_no_group() -> None:
    assert ask(tables(JOB, _sampled(None, 6)), "slow_group_votes").findings == ()
    few = ask(tables(JOB, _sampled(5, ROUNDS - 1)), "slow_group_votes")
    assert (few.status, few.findings) == ("blind", ())


def test_with_few_groups_the_same_one_is_first_by_chance_and_it_is_a_note() -> None:
    job = Job({"tp": 2, "pp": 2, "dp": 3}, per_host=2)
    rounds = [
        {rank: "compute" if at["dp"] == 1 else ("grad_sync" if n % 2 else "device") for rank, at in enumerate(job.at)} for n in range(5)
    ]
    outcome = ask(tables(job, rounds), "slow_group_votes")
    assert (outcome.status, [f.sign for f in outcome.findings]) == ("clear", ["slow_group_hint"])


def test_where_everybody_computes_a_group_that_computes_elsewhere_is_not_late() -> None:
    """As the slow copy above by its ranks apart; the others do not wait for it."""
    rounds = []
    for n in range(6):
        usual, other = ("compute", "loader") if n % 2 else ("loader", "compute")
        rounds.append({rank: other if at["dp"] == 5 else usual for rank, at in enumerate(JOB.at)})
    outcome = ask(tables(JOB, rounds), "slow_group_votes")
    assert [(finding.sign, "cover" in finding.numbers) for finding in outcome.findings] == [("slow_group_hint", False)]
    assert "do not wait for it" in outcome.findings[0].says
