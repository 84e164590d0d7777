"""Whom a replay names: over many layouts and faults, with repeats, killed groups, ties, two faulty hosts, and steps that are not deterministic."""

from __future__ import annotations

import random
from typing import Any

import pytest
from _replays import Fault, rows_of

from rca import plugins
from rca.probes._replay_plan import double_run, dual_phase, plan_document
from rca.replay import Judged, judge_replays, references

SIZES = [(4, 6), (6, 4), (12, 6), (1, 5), (2, 3), (3, 3), (2, 2), (5, 2), (8, 9)]


def judged(plan: dict[str, Any], *faults: Fault, **more: Any) -> Judged:
    (found,) = judge_replays(rows_of(plan, faults, **more))
    return found


def dual(m: int, n: int) -> dict[str, Any]:
    return {"phases": dual_phase(m, n)}


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_one_faulty_host_is_named_wherever_it_is(m: int, n: int) -> None:
    for host in range(m * n):
        found = judged(dual(m, n), Fault(host))
        assert (found.outcome, found.hosts) == ("culprit", (f"n{host}",)), found.because
        assert found.shown == (2, 2)


@pytest.mark.parametrize(("m", "n"), [size for size in SIZES if size[1] > 2])
def test_a_fault_that_spreads_at_once_is_named_by_the_intersection(m: int, n: int) -> None:
    for host in range(m * n):
        found = judged(dual(m, n), Fault(host, spreads_at_once=True))
        suspects = {x for x in range(m * n) if x // m == host // m and x % n == host % n}
        assert set(found.hosts) == {f"n{x}" for x in suspects}
        assert found.outcome == ("culprit" if len(suspects) == 1 else "candidates")
        assert bool(found.then) == (len(suspects) > 1)


def test_the_example_of_the_paper_says_which_groups_differ() -> None:
    found = judged(dual(4, 6), Fault(13, spreads_at_once=True))
    assert {(g.phase, g.number) for g in found.groups if g.outcome == "differs"} == {("horizontal", 3), ("vertical", 1)}
    assert found.hosts == ("n13",)
    assert "horizontal group 3 and vertical group 1" in found.because


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_without_a_fault_it_is_clean(m: int, n: int) -> None:
    found = judged(dual(m, n), repeats=2)
    assert (found.outcome, found.hosts) == ("clean", ())
    assert {group.outcome for group in found.groups} == {"equal"}


def test_order_of_rows_and_names_of_hosts_do_not_matter() -> None:
    names = dict(enumerate(random.Random(3).sample([f"node-{n}" for n in range(24)], 24)))
    rows = rows_of(dual(4, 6), [Fault(13)], names=names)
    expected = judge_replays(rows)
    assert expected[0].hosts == (names[13],)
    for seed in range(4):
        assert judge_replays(random.Random(seed).sample(rows, len(rows))) == expected


def test_a_fault_that_shows_now_and_then_takes_repeats() -> None:
    """As often as the formula says: with q = 0.3 and 4 repeats (1 - 0.7^4)^2 = 0.577, with 8 repeats 0.888, never a wrong host."""
    for repeats, wanted in ((4, 0.577), (8, 0.888)):
        found = [judged(dual(4, 6), Fault(13, probability=0.3), repeats=repeats, seed=seed) for seed in range(400)]
        named = [one for one in found if one.outcome == "culprit"]
        assert {one.hosts for one in named} == {("n13",)}
        assert abs(len(named) / len(found) - wanted) < 0.07
        rest = {one.outcome for one in found} - {"culprit"}
        assert rest <= {"clean", "candidates"}


def test_a_difference_in_one_phase_alone_proves_nothing() -> None:
    rows = rows_of(dual(4, 6), [Fault(13, spreads_at_once=True)])
    clean = rows_of(dual(4, 6))
    (found,) = judge_replays([r for r in rows if r["phase"] == "horizontal"] + [r for r in clean if r["phase"] == "vertical"])
    assert (found.outcome, found.hosts) == ("candidates", ("n12", "n13", "n14", "n15"))
    assert "did not show it again" in found.because
    assert "repeat the other phase" in found.then


def test_a_killed_group_is_missing_and_never_equal() -> None:
    found = judged(dual(4, 6), killed=[("vertical", 2)])
    assert found.outcome == "undecided"
    assert {(g.phase, g.number, g.outcome) for g in found.groups if g.outcome != "equal"} == {("vertical", 2, "missing")}
    assert "vertical group 2" in found.because
    half = judged(dual(4, 6), Fault(13), killed=[("vertical", 1)])
    assert half.outcome == "candidates"
    assert "no whole record" in half.because


def test_a_planned_group_without_a_record_is_missing() -> None:
    rows = [row for row in rows_of(dual(2, 3)) if (row["phase"], row["group_number"]) != ("horizontal", 1)]
    planned = {"step": None, "fingerprint": None, "repeat": None, "outcome": "missing", "ran_at": None}
    plan = [{**row, **planned} for row in rows_of(dual(2, 3), steps=1)]
    (found,) = judge_replays([*rows, *plan])
    assert found.outcome == "undecided"
    assert [(g.phase, g.number, g.hosts) for g in found.groups if g.outcome == "missing"] == [("horizontal", 1, ("n2", "n3"))]
    (nothing,) = judge_replays(plan)
    assert nothing.outcome == "undecided"


def test_a_repeat_that_only_one_group_lacks_is_missing() -> None:
    rows = [row for row in rows_of(dual(2, 3), repeats=3) if (row["phase"], row["group_number"], row["repeat"]) != ("vertical", 0, 2)]
    (found,) = judge_replays(rows)
    assert found.outcome == "undecided"
    assert next(g for g in found.groups if (g.phase, g.number) == ("vertical", 0)).repeats == {"equal": 2, "missing": 1}


def test_two_faulty_hosts_that_leave_four_candidates_are_not_decided() -> None:
    """Hosts 0 and 7 of six groups of six lie in groups whose four crossings all hold a host."""
    found = judged(dual(6, 6), Fault(0, spreads_at_once=True), Fault(7, spreads_at_once=True))
    assert found.outcome == "candidates"
    assert found.hosts == ("n0", "n1", "n6", "n7")
    assert "4 hosts fit" in found.because
    assert "each on its own" in found.then
    assert "--mode double_run" in found.then


def test_two_faulty_hosts_that_show_before_they_spread_are_both_named() -> None:
    found = judged(dual(6, 6), Fault(0), Fault(7, step=2))
    assert (found.outcome, found.hosts) == ("culprit", ("n0", "n7"))


def test_two_faulty_hosts_are_never_turned_into_an_innocent_one() -> None:
    rng = random.Random(5)
    outcomes = set()
    for _ in range(300):
        m, n = rng.choice([(2, 5), (4, 6), (6, 6), (3, 4)])
        a, b = rng.sample(range(m * n), 2)
        faults = [Fault(host, step=rng.randrange(3), spreads_at_once=rng.random() < 0.5) for host in (a, b)]
        found = judged(dual(m, n), *faults)
        outcomes.add(found.outcome)
        if found.outcome == "culprit":
            assert set(found.hosts) <= {f"n{a}", f"n{b}"}, (m, n, faults, found)
    assert {"culprit", "candidates"} <= outcomes


def test_a_double_run_names_the_host_outside_the_majority() -> None:
    for count in (3, 4, 6):
        for host in range(count):
            found = judged({"phases": double_run(count)}, Fault(host), repeats=2)
            assert (found.outcome, found.hosts) == ("culprit", (f"n{host}",))
    assert judged({"phases": double_run(3)}, repeats=2).outcome == "clean"


def test_two_hosts_that_differ_are_a_tie_unless_one_differs_from_itself() -> None:
    rows = rows_of({"phases": double_run(2)}, [Fault(1)], repeats=2)
    (tie,) = judge_replays(rows)
    assert (tie.outcome, tie.hosts) == ("undecided", ())
    assert "a tie, or one host alone" in tie.because
    assert "n0, n1" in tie.then
    once = [row for row in rows if (row["host"], row["repeat"]) != ("n1", 0)]
    once += [row for row in rows_of({"phases": double_run(2)}, repeats=1) if row["host"] == "n1"]
    (found,) = judge_replays(once)
    assert (found.outcome, found.hosts) == ("culprit", ("n1",))


def test_steps_that_are_not_deterministic_name_nobody() -> None:
    rows = [{**row, "fingerprint": f"{number}"} for number, row in enumerate(rows_of(dual(2, 4), repeats=2))]
    (found,) = judge_replays(rows)
    assert (found.outcome, found.hosts) == ("undecided", ())
    assert "not deterministic" in found.because
    (single,) = judge_replays([{**row, "fingerprint": f"{number}"} for number, row in enumerate(rows_of(dual(2, 4)))])
    assert single.outcome == "undecided"


def test_repeats_of_one_host_are_no_second_opinion() -> None:
    rows = rows_of({"phases": double_run(3)}, [Fault(0)], repeats=1)
    rows += [{**row, "repeat": repeat} for row in rows if row["host"] == "n0" for repeat in range(1, 9)]
    assert references(rows)[True, 0, 1] == "0 1 "
    (found,) = judge_replays(rows)
    assert found.hosts == ("n0",)


def test_each_replay_is_judged_for_itself() -> None:
    rows = rows_of(dual(2, 3), [Fault(1)], replay_id="b") + rows_of(dual(2, 3), replay_id="a")
    assert [(one.replay_id, one.outcome) for one in judge_replays(rows)] == [("a", "clean"), ("b", "culprit")]


def test_the_probe_offers_plan_run_and_judge() -> None:
    probe = plugins.load("rca.probes", "dual_phase_replay")
    assert probe.judge is judge_replays
    assert probe.plan is plan_document
    assert callable(probe.run)
    assert "dual_phase_replay" in plugins.names("rca.probes")


@pytest.mark.parametrize("repeats", [2, 5])
def test_a_host_with_nobody_beside_it_is_not_clean(repeats: int) -> None:
    """A chip that is always wrong gives the same wrong bits in every repeat: only others can tell."""
    for phases in (double_run(1), dual_phase(2, 1)):
        (found,) = judge_replays(rows_of({"phases": phases}, repeats=repeats))
        assert (found.outcome, found.hosts) == ("undecided", ())
        assert "one host alone" in found.because
