"""The words of the terminal answer: they fit the cause, tell the state of the job, and cite what they say."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from _house import memory_case

from apps.headline import _in_short, condition, headline, ranks_ranges
from apps.text import alternative_lines
from rca.analyses._job_logs import Line
from rca.causes import CAUSES, did_first, is_late, means
from rca.decision.advise import advise
from rca.decision.job_size import UNKNOWN_SIZE, JobSize
from rca.judge import Judgement, judge
from rca.types import Finding, Hypothesis, Outcome

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def judged(name: str) -> Judgement:
    return judge(memory_case(name))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("lock_hang", "Rank 3 on host-b stalled first (98 %) at all_reduce #53 of its tp group; cause: code hang"),
        ("data_stall", "Rank 0 on host-a stalled first"),
        ("slow_rank", "Rank 5 on host-c GPU 1 slowed the job"),
        ("bad_sample", "Rank 3 on host-b raised first"),
        ("nan", "Rank 5 on host-c diverged first"),
        ("bit_flip", "Rank 2 on host-b GPU 0 computed wrong first"),
        ("rank_killed", "Rank 6 on host-d died first"),
        ("host_lost", "Both ranks of host-c were lost first"),
    ],
)
def test_the_first_line_says_what_the_rank_did(case: str, words: str) -> None:
    assert headline(judged(case)).startswith(words)


@pytest.mark.parametrize("case", ["lock_hang", "slow_rank", "bad_sample", "nan", "bit_flip", "rank_killed", "host_lost", "mismatched_size"])
def test_the_summary_and_the_record_of_the_incident_say_it_in_the_same_words(case: str) -> None:
    verdict = judged(case).verdict
    did = did_first(verdict.cause, len(verdict.ranks))
    assert f" {did}; {verdict.cause.replace('_', ' ')}: " in verdict.summary
    assert did in headline(judged(case)) or verdict.cause == "collective_mismatch"  # the headline says which call


def test_a_host_that_sources_dispute_is_not_drained_before_it_is_known_which_is_right() -> None:
    found = judged("slow_rank")
    verdict = replace(found.verdict, hosts=())
    open_host = advise(verdict, found.roster)
    disputed = advise(verdict, replace(found.roster, disputed=frozenset(verdict.ranks)))
    assert "give a rank map" in open_host.because
    assert "find out which is right before draining any" in disputed.because
    assert (disputed.action, disputed.evict_hosts, disputed.evict_ranks) == ("replace", (), ())


@pytest.mark.parametrize("cause", sorted(CAUSES))
def test_every_cause_makes_a_sentence_about_its_rank(cause: str) -> None:
    found = judged("lock_hang")
    line = headline(replace(found, verdict=replace(found.verdict, cause=cause)))
    assert re.match(r"Rank 3 on host-b(?: GPU 1)? ([a-z ]+ first|slowed the job|made another call than its peers) \(98 %\)", line)
    assert line.endswith("why is open" if cause == "unknown" else f"cause: {cause.replace('_', ' ')} (98 %)")


def test_a_mismatch_names_both_sides_with_their_sizes() -> None:
    assert (
        "it called all_reduce #13 of the dp group with [16896] -> [16896], where 2 sister ranks called it with [16512] -> [16512];"
        in headline(judged("mismatched_size"))
    )


@pytest.mark.parametrize(
    ("case", "state"),
    [
        ("lock_hang", "standing still since 2026-11-29 21:11:31 UTC (last call of any rank)"),
        ("rank_killed", "a process died, standing still since"),
        ("bad_sample", "the program raised, standing still since"),
        ("planned_stop", "stopped; told to stop at 2026-11-29 21:16:54 UTC"),
        ("none", "running when captured."),
    ],
)
def test_the_second_line_says_how_large_the_job_is_and_in_which_state(case: str, state: str) -> None:
    assert condition(judged(case)).startswith(f"Job of 8 ranks; {state}")


def test_the_second_line_tells_the_first_failing_moment_and_step() -> None:
    found = judged("rank_killed")
    line = condition(replace(found, verdict=replace(found.verdict, failed_at=AT, step=7)))
    assert line.endswith("; first failing at 2026-01-02 03:04:05 UTC, step 7.")
    assert "first failing" not in condition(replace(found, verdict=replace(found.verdict, failed_at=None, step=None)))


def test_a_hang_is_as_old_as_the_last_call_of_any_rank() -> None:
    found = judged("lock_hang")
    moments = {0: AT, 1: AT + timedelta(seconds=5)}
    assert "since 2026-01-02 03:04:10 UTC" in condition(replace(found, roster=replace(found.roster, last_call_at=moments)))
    assert "standing still when captured" in condition(replace(found, roster=replace(found.roster, last_call_at={})))


def test_an_unknown_size_or_state_is_not_made_up() -> None:
    found = judged("lock_hang")
    roster = replace(found.roster, world_size=None, ranks_with={}, hosts={})
    blank = replace(found, outcomes=(), roster=roster, size=UNKNOWN_SIZE)
    assert condition(blank).startswith("Job of unknown size; whether it still runs is not told")
    told = JobSize(61, "the highest rank that was seen", is_least=True)
    assert condition(replace(blank, size=told)).startswith("Job of at least 61 ranks; ")


@pytest.mark.parametrize(
    ("finding", "state"),
    [
        (Finding("quiet_log", "only_waited", "", numbers={"timed_out": list(range(8))}), "ended by time-outs"),
        (Finding("quiet_log", "only_waited", "", numbers={"timed_out": [2, 3]}), "time-outs ended 2 of its ranks"),
        (Finding("scheduler_record", "ended_as", "", numbers={"state": "FAILED"}), "ended, FAILED by the scheduler's books"),
        (Finding("scheduler_record", "ended_as", "", numbers={"state": "COMPLETED"}), "ended by the scheduler's books;"),  # its script
        (Finding("scheduler_record", "ended_as", "", numbers={"state": "RUNNING"}), "whether it still runs is not told"),
        (Finding("scheduler_record", "not_placed", "", numbers={"state": "FAILED"}), "whether it still runs is not told"),
    ],
)
def test_time_outs_and_books_tell_that_a_job_has_ended(finding: Finding, state: str) -> None:
    outcomes = (Outcome(finding.analysis, "clear", "", (finding,)),)
    assert condition(replace(judged("lock_hang"), outcomes=outcomes)).startswith(f"Job of 8 ranks; {state}")


@pytest.mark.parametrize(
    ("signs", "says", "did"),
    [
        (("slow_data", "pace_dropped"), "the data loader delivers its batches late", "slowed the job"),
        (("data_grew",), "the data loader delivers its batches late", "slowed the job"),
        (("slow_data", "job_hangs"), "the data loader delivers no batch", "stalled first"),
        (("in_dataloader",), "the data loader delivers no batch", "stalled first"),
    ],
)
def test_batches_that_come_late_are_told_apart_from_none_at_all(signs: tuple[str, ...], says: str, did: str) -> None:
    assert means("data_stall", signs) == says
    assert did_first("data_stall", 1, comes_late=is_late(signs)) == did


def other(cause: str, ranks: tuple[int, ...], probability: float) -> Hypothesis:
    return Hypothesis(cause, CAUSES[cause].layer, probability, ranks, (), ("some/finding/0",), ())


def test_one_cause_is_one_alternative_with_its_sets_of_ranks() -> None:
    found = judged("lock_hang")
    hypotheses = (
        *found.verdict.hypotheses[:1],
        other("data_stall", (3,), 0.2),
        other("data_stall", (), 0.1),
        other("code_hang", (2, 3), 0.05),
    )
    lines = alternative_lines(replace(found, verdict=replace(found.verdict, hypotheses=hypotheses)))
    assert lines[2:] == [
        "    30 %  data stall, rank 3 (20 %) or no rank to blame (10 %): the data loader delivers no batch",
        "     5 %  code hang, the same cause, but ranks 2, 3: a rank hangs in its own code (lock, loop, wait)",
    ]


def test_the_last_call_of_the_accused_is_cited() -> None:
    (silent,) = (f for o in judged("lock_hang").outcomes for f in o.findings if f.analysis == "first_silent_rank")
    assert "its own last call there was #52" in silent.says
    assert [c.text for c in silent.cites if "#52" in c.text] == ["rank 3: all_reduce #52 on tp:46584c88 [4,64] -> [4,64]"]


def test_stacks_are_cited_without_wrappers_and_repetitions() -> None:
    cites = [c.text for o in judged("data_stall").outcomes for f in o.findings for c in f.cites if c.table == "stacks"]
    assert any(text.startswith("torch/distributed/distributed_c10d:all_reduce < train:all_reduce < train:") for text in cites)
    assert any(text.startswith("selectors:select < torch/utils/data/dataloader:") for text in cites)
    assert not any("c10d_logger" in text for text in cites)


@pytest.mark.parametrize(
    ("signs", "said"),
    [
        (["passed", "loss_not_finite"], "no longer finite"),
        (["nonfinite_local"], "no longer finite"),
        (["loss_jumped"], "jumped and stayed"),
        (["spike_global"], "jumped and stayed"),
        (["spike_local", "not_finite"], "no longer finite"),
        (["always_skipped"], "not finite, or jumped"),
    ],
)
def test_a_numeric_cause_is_told_in_the_form_that_was_seen(signs: list[str], said: str) -> None:
    assert said in means("numeric_divergence", signs)
    assert means("code_hang", signs) == CAUSES["code_hang"].means


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([3], "rank 3"),
        ([0, 1, 2, 12], "ranks 0-2, 12"),
        ([*range(8), 12, *range(20, 60)], "ranks 0-7, 12 and 40 more"),
    ],
)
def test_many_ranks_are_told_as_ranges_and_a_count(ranks: list[int], said: str) -> None:
    assert ranks_ranges(ranks, 2) == said


def test_a_call_left_out_is_a_short_line_and_its_place_stands_in_the_evidence() -> None:
    says = "left out all_gather [4,8] -> [16,8] in its dp group (ranks 2, 18), which 4 sister ranks (ranks 3, 19) made before all_reduce #9"
    assert _in_short(says, "skipped_call") == "left out all_gather in its dp group"
    assert _in_short("called all_reduce #3 of the dp group (ranks 0, 1) with [8], where 2 peers called it with [16]", "odd_size") == (
        "called all_reduce #3 of the dp group with [8], where 2 peers called it with [16]"
    )


def test_a_record_that_is_later_than_the_stop_is_told_as_such() -> None:
    found = judged("lock_hang")
    still = max(found.roster.last_call_at.values())
    for later, says in ((-1, "; first failing at "), (20, "; the fault first on record, after the stop, at ")):
        assert says in condition(replace(found, verdict=replace(found.verdict, failed_at=still + timedelta(seconds=later))))


def test_the_zone_of_the_logs_is_told_where_it_is_not_that_of_the_answer() -> None:
    found = judged("rank_killed")
    shifted = [replace(o, findings=tuple(replace(f, numbers={**f.numbers, "zone_s": -12600}) for f in o.findings)) for o in found.outcomes]
    assert " UTC (logs there are in UTC-3:30)" in condition(replace(found, outcomes=tuple(shifted)))
    assert "logs there" not in condition(found)


@pytest.mark.parametrize(("local", "zone_s"), [("2026-01-02T05:04:05", 7200), ("23:34:05", -12600), (None, None)])
def test_a_stamp_without_zone_tells_it_where_its_instant_is_known(local: str | None, zone_s: int | None) -> None:
    line = Line("log_events", "a", "L1", 1, None, None, None, AT, "x", None, None, None, (), None, (), "", local=local)
    assert line.zone_s == zone_s
