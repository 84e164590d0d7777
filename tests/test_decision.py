"""The decision: verdict, findings, history and site in; action, branch and next steps out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from _decision import ALIVE, AT, ENDED, advised, history, past, verdict

from rca.causes import CAUSES
from rca.decision.facts import NO_FACTS, Alerts, Facts
from rca.decision.history import Fault, Past, repeats, same_fault
from rca.decision.shrink import is_needed
from rca.decision.stop_time import stop_time_checks
from rca.decision.tree import BRANCHES, FLAPS
from rca.settings import SAME_FAULT_RESTARTS, Settings
from rca.types import Finding, Hypothesis, Verdict


def flaps(most: int | None) -> Facts:
    return replace(NO_FACTS, alerts={"host-c": Alerts(most or 1, most, ("kernel/host-c.log L3",))})


BROKEN = Finding("fatal_xid", "gone", "", ranks=(5,), numbers={"is_broken": True})
TREE: list[tuple[str, Verdict, dict[str, Any], str, str, str, tuple[str, ...]]] = [
    # what, verdict, with, action, branch, path, the first of what comes next
    ("sure machine event", verdict("gpu_fault"), {}, "replace", "evict_at_once", "cold", ("stop_time_checks", "reattempt")),
    ("its own record", verdict("gpu_fault", probability=0.6), {"findings": (BROKEN,)}, "replace", "evict_at_once", "cold", ("stop_time_checks",)),
    ("a mere suspicion", verdict("host_fault", probability=0.6), {}, "replace", "check_and_evict", "cold", ("stop_time_checks",)),
    ("a flap", verdict("network_transient"), {}, "retry", "tolerate_flap", "cold", ("evict_after_repeats", "stop_time_checks")),
    ("one alert", verdict("network_transient"), {"facts": flaps(1)}, "retry", "tolerate_flap", "cold", ("evict_after_repeats",)),
    ("undated alerts", verdict("network_transient"), {"facts": flaps(None)}, "retry", "tolerate_flap", "cold", ("evict_after_repeats",)),
    ("alerts repeat", verdict("network_transient"), {"facts": flaps(FLAPS)}, "replace", "evict_after_repeats", "cold", ("stop_time_checks",)),
    ("broken path", verdict("network_fault"), {}, "replace", "evict_at_once", "cold", ("stop_time_checks",)),
    ("code", verdict("user_exception"), {}, "fix_code", "fix_code", "cold", ("roll_back_code", "stop_time_checks")),
    ("hang in code", verdict("code_hang"), {"outcomes": ALIVE}, "fix_code", "fix_code", "cold", ("roll_back_code",)),
    ("crash, no culprit", verdict("process_killed"), {"outcomes": ENDED}, "retry", "stop_time_checks", "cold", ("roll_back_code",)),
    ("memory", verdict("host_out_of_memory"), {}, "retry", "reattempt", "cold", ("stop_time_checks",)),
    ("NaN", verdict("numeric_divergence"), {}, "rollback", "roll_back_state", "cold", ("stop_time_checks", "roll_back_code")),
    ("wrong bits", verdict("silent_data_corruption"), {}, "rollback", "isolate_and_replay", "cold", ("dual_phase_replay",)),
    ("bad sample", verdict("bad_sample"), {}, "quarantine_data", "quarantine_data", "cold", ("dual_phase_replay", "fix_code")),
    ("slow", verdict("slow_rank"), {"outcomes": ALIVE}, "replace", "degrade_or_replace", "cold", ("stop_time_checks",)),
    ("unknown end", verdict("unknown", ()), {"outcomes": ENDED}, "human", "stop_time_checks", "none", ("reattempt",)),
    ("nothing told", verdict("unknown", ()), {}, "human", "look", "none", ("stop_time_checks",)),
    ("healthy", verdict("healthy", ()), {}, "none", "nothing", "none", ()),
    ("planned", verdict("planned_stop", ()), {}, "none", "nothing", "none", ()),
    ("warm spare", verdict("gpu_fault"), {"settings": Settings(spares=2)}, "replace", "evict_at_once", "hot_standby", ("stop_time_checks",)),
    ("cold spare", verdict("gpu_fault"), {"settings": Settings(spares=2, hot_standby=False)}, "replace", "evict_at_once", "cold", ()),
    ("spares are out", verdict("gpu_fault"), {"settings": Settings(spares=0)}, "shrink", "shrink", "cold", ("stop_time_checks",)),
    ("nobody idle", verdict("gpu_fault"), {"facts": replace(NO_FACTS, idle_hosts=())}, "replace", "evict_at_once", "cold", ()),
    ("somebody idle", verdict("gpu_fault"), {"facts": replace(NO_FACTS, idle_hosts=("n9",))}, "replace", "evict_at_once", "hot_standby", ()),
    ("ranks rejoin", verdict("data_stall"), {"facts": replace(NO_FACTS, can_rejoin=True)}, "retry", "reattempt", "in_process", ()),
    ("site forbids", verdict("data_stall"), {"facts": replace(NO_FACTS, can_rejoin=True), "settings": Settings(in_process=False)}, "retry",
     "reattempt", "cold", ()),
    ("no machine named", verdict("gpu_fault", ()), {}, "human", "look", "none", ()),
]  # fmt: skip


@pytest.mark.parametrize(("told", "with_", "action", "branch", "path", "first"), [row[1:] for row in TREE], ids=[row[0] for row in TREE])
def test_the_tree(told: Verdict, with_: Mapping[str, Any], action: str, branch: str, path: str, first: tuple[str, ...]) -> None:
    found = advised(told, **with_)
    assert (found.action, found.branch, (found.recovery or {})["path"]) == (action, branch, path)
    assert tuple(step["branch"] for step in found.next)[: len(first)] == first
    assert all(step["when"] and step["says"] for step in found.next)
    assert bool(found.evict_hosts) == (action in ("replace", "shrink") or told.cause == "silent_data_corruption")


def test_a_spare_is_never_promised_where_none_stands_ready() -> None:
    none = Settings(spares=0, hot_standby=True)
    found = advised(verdict("gpu_fault", hosts=()), settings=none)  # its host is not known: one goes all the same
    assert (found.recovery or {})["path"] == "cold"
    chip = advised(verdict("silent_data_corruption"), settings=none)
    assert (chip.action, "no spares stand ready" in chip.because, chip.shrink is not None) == ("rollback", True, True)
    part = {"group": "pp:0", "kind": "pp", "ranks": [0, 1, 2, 3], "outliers": [0, 1, 2, 3], "suspects": [3]}
    apart = (Finding("outlier_group", "group_apart", "", numbers={"cover": [part]}),)
    for spares, action in ((1, "shrink"), (2, "replace"), (None, "replace")):
        found = advised(verdict("unknown", ()), apart, settings=Settings(spares=spares))
        assert (found.action, found.evict_hosts, "1 spare stands ready" in found.because) == (action, ("host-a", "host-b"), spares == 1)


def test_a_network_fault_without_a_host_points_at_what_the_hosts_share() -> None:
    ends = {"ends": ["host-1", "host-2", "host-3"], "candidates": []}
    stuck = Finding("stuck_collective", "all_arrived", "", numbers={"candidates": [0, 1, 2]})
    found = advised(verdict("network_fault", ()), (stuck, Finding("network_votes", "everywhere", "", numbers=ends)))
    assert (found.action, found.evict_hosts, "stacks" in found.because) == ("human", (), False)
    assert "what host-[1-3] share" in found.because


@pytest.mark.parametrize(
    ("gone", "spares", "needed"), [(1, None, False), (31, None, False), (32, None, True), (32, 40, False), (2, 1, True), (1, 1, False)]
)
def test_when_a_job_has_to_shrink(gone: int, spares: int | None, *, needed: bool) -> None:
    assert is_needed(gone, spares) is needed


@pytest.mark.parametrize("name", sorted(BRANCHES))
def test_every_branch_leads_to_branches_that_exist_and_comes_to_an_end(name: str) -> None:
    seen: set[str] = set()
    left = [name]
    while left:
        at = left.pop()
        assert at in BRANCHES
        left += [then for then in BRANCHES[at].then if then not in seen]
        seen.update(BRANCHES[at].then)
    assert name not in BRANCHES[name].then


@pytest.mark.parametrize("cause", sorted(CAUSES))
@pytest.mark.parametrize("ranks", [(), (5,)])
def test_every_cause_has_a_branch_and_no_action_but_that_of_the_cause_where_nothing_more_is_known(
    cause: str, ranks: tuple[int, ...]
) -> None:
    found = advised(verdict(cause, ranks))
    expected = "human" if CAUSES[cause].action == "replace" and not ranks else CAUSES[cause].action
    assert (found.action, found.branch in BRANCHES) == (expected, True)


def test_who_is_checked_after_an_eviction_are_the_hosts_that_stay() -> None:
    found = advised(verdict("gpu_fault"))
    assert found.evict_hosts == ("host-c",)
    checks = next(step for step in found.next if step["branch"] == "stop_time_checks")["run"]
    assert "-w host-a,host-b,host-d" in checks[0].replace("host-[a,b,d]", "host-a,host-b,host-d")
    assert any("alltoall_perf" in line and "-g 2" in line for line in checks)
    assert any("all_gather_perf" in line for line in checks)
    assert any("double_run" in line for line in checks)  # bits are compared where a chip may be wrong
    assert not any("double_run" in line for step in advised(verdict("user_exception")).next for line in step["run"])


def test_no_host_that_stays_is_left_unchecked() -> None:
    checks = stop_time_checks([f"node{n:03d}" for n in range(40)], layer="unknown", gpus_per_host=8)
    assert all("-w 'node[000-039]'" in line for line in checks[:2])


class TestRetries:
    def test_the_cap_is_that_of_the_paper_unless_the_site_says_otherwise(self) -> None:
        assert SAME_FAULT_RESTARTS == 1
        assert (advised(verdict("process_killed")).retries or {})["limit"] == 1
        assert (advised(verdict("process_killed"), settings=Settings(same_fault_restarts=4)).retries or {})["limit"] == 4

    @pytest.mark.parametrize(
        ("earlier", "limit", "action", "count"),
        [
            ((), 1, "retry", 0),
            ((past(1),), 1, "human", 1),
            ((past(1),), 2, "retry", 1),
            ((past(1), past(2)), 2, "human", 2),
            ((past(1, cause="data_stall"),), 1, "retry", 0),
            ((past(1, job_id="other"),), 1, "retry", 0),
            ((past(1, fault=Fault("process_killed", ranks=(3,), step=40)),), 1, "retry", 0),
            ((past(1, fault=Fault("process_killed", ranks=(5,), step=7)),), 1, "retry", 0),
            ((past(1, began_at=AT),), 1, "retry", 0),  # opened twice: it is this one
            ((past(1, code_version="v1"),), 1, "retry", 0),  # other code ran
        ],
    )
    def test_the_same_fault_is_not_retried_for_ever(self, earlier: tuple[Past, ...], limit: int, action: str, count: int) -> None:
        told = history(*earlier, code_version="v2")
        found = advised(verdict("process_killed"), history=told, settings=Settings(same_fault_restarts=limit), outcomes=ENDED)
        assert found.retries is not None
        assert (found.action, found.retries["same_fault"], found.retries["stopped"]) == (action, count, action == "human")
        if action == "human":
            assert "reattempt" not in [step["branch"] for step in found.next]
            assert "not restarted as it is again" in found.because

    def test_a_host_whose_network_failed_for_a_moment_again_and_again_goes(self) -> None:
        found = advised(verdict("network_transient"), history=history(past(1, cause="network_transient")))
        assert (found.action, found.evict_hosts) == ("replace", ("host-c",))

    def test_numbers_that_diverge_again_at_the_same_samples_leave_them_out(self) -> None:
        told = verdict("numeric_divergence", data={"shard": "s", "sample_ids": ["a7"]})
        again = past(1, fault=Fault("numeric_divergence", ranks=(2,), step=40, sample_ids=("a7",)))
        assert advised(told, history=history(again)).action == "quarantine_data"

    def test_a_program_that_is_wrong_stays_to_be_mended_however_often_it_came(self) -> None:
        again = past(1, cause="user_exception")
        found = advised(verdict("user_exception"), history=history(again, again))
        assert (found.action, found.branch) == ("fix_code", "fix_code")
        assert found.retries is not None
        assert found.retries["stopped"]

    def test_what_nothing_tells_is_told_as_such(self) -> None:
        told = advised(verdict("process_killed")).retries or {}
        assert (told["same_fault"], told["restarts"]) == (None, None)
        assert "is not told" in told["says"]

    @pytest.mark.parametrize(
        ("one", "other", "same"),
        [
            (Fault("user_exception", (1,), code_line="f (a.py:1)"), Fault("user_exception", (2,), code_line="f (a.py:1)"), True),
            (Fault("user_exception", (1,), code_line="f (a.py:1)"), Fault("user_exception", (1,), code_line="g (a.py:9)"), False),
            (Fault("bad_sample", (1,), sample_ids=("x",)), Fault("bad_sample", (6,), sample_ids=("x", "y")), True),
            (Fault("bad_sample", (1,), step=4, sample_ids=("x",)), Fault("bad_sample", (1,), step=4, sample_ids=("z",)), False),
            (Fault("gpu_fault", (1,)), Fault("gpu_fault", (1,)), True),
            (Fault("gpu_fault"), Fault("gpu_fault"), False),
            (Fault("code_hang", (1,), step=4), Fault("code_hang", (1,), step=4), True),
            (Fault("code_hang", (), step=4), Fault("code_hang", (1,), step=4), True),
            (Fault("code_hang", (1,), step=4), Fault("user_exception", (1,), step=4), False),
        ],
    )
    def test_what_makes_two_faults_the_same(self, one: Fault, other: Fault, *, same: bool) -> None:
        assert same_fault(one, other) is same
        assert same_fault(other, one) is same

    def test_a_job_without_a_name_has_no_earlier_incidents(self) -> None:
        assert repeats(Fault("process_killed", (5,), step=40), replace(history(past(1)), job_id=None), None) == ()
        assert len(repeats(Fault("process_killed", (5,), step=40), replace(history(past(1)), job_id=None), "train-7")) == 1

    def test_own_evidence_is_no_earlier_incident(self) -> None:
        own = past(1, fingerprint="0123456789abcdef")
        assert repeats(own.fault, history(own), None, fingerprint="0123456789abcdef") == ()


def test_where_only_a_group_stands_apart_it_goes_and_the_innocents_are_named() -> None:
    cover = [{"group": "pp:1", "kind": "pp", "ranks": [4, 5, 6, 7], "outliers": [4, 5, 6], "suspects": [5]}]
    found = advised(verdict("unknown", ()), (Finding("outlier_group", "outliers", "", numbers={"cover": cover}),))
    assert (found.action, found.branch, found.evict_hosts, found.evict_ranks) == (
        "replace",
        "over_evict",
        ("host-c", "host-d"),
        (4, 5, 6, 7),
    )
    assert (found.innocent_hosts, found.evict_ranks) == (("host-d",), (4, 5, 6, 7))
    assert found.eviction is not None
    assert (found.eviction["hosts"], found.evict_group) == (("host-c", "host-d"), "pp:1")
    assert advised(verdict("code_hang", ()), (Finding("outlier_group", "outliers", "", numbers={"cover": cover}),)).eviction is None


def test_a_sure_host_of_wrong_bits_is_run_twice_before_it_comes_back() -> None:
    assert advised(verdict("silent_data_corruption", probability=0.99)).replay is not None
    assert advised(verdict("silent_data_corruption", probability=0.99, proven=True)).replay is None
    assert advised(verdict("gpu_fault", probability=0.99)).replay is None


def test_hosts_of_which_one_may_compute_wrong_bits_are_told_to_machines_too() -> None:
    told = Finding("replica_divergence", "undecided", "", numbers={"suspects": [0, 5]})
    found = advised(verdict("silent_data_corruption", ()), (told,))
    assert (found.evict_hosts, found.keep_out) == ((), ("host-a", "host-c"))
    assert "one of host-a, host-c may hold it: keep them out of use" in found.because
    assert advised(verdict("silent_data_corruption"), (told,)).keep_out == (), "a machine that is named goes"
    assert advised(verdict("code_hang", ()), (told,)).keep_out == ()


def test_a_hypothesis_is_no_more_than_a_hypothesis() -> None:
    """The action of the answer counts, whatever a less probable hypothesis would ask for."""
    other = Hypothesis("gpu_fault", "hardware", 0.3, (3,), ("host-b",), (), ())
    assert advised(verdict("code_hang", hypotheses=(other,))).evict_hosts == ()


def test_an_exception_of_the_program_is_mended_where_it_was_raised() -> None:
    frames = {"raised_at": "train_step (/app/train.py:191)", "exception": "AssertionError"}
    told = Finding("first_exception", "raised", "rank 5 raised", ranks=(5,), numbers=frames)
    assert advised(verdict("user_exception"), (told,)).because.startswith(
        "the program raised in train_step (/app/train.py:191), AssertionError: mend"
    )
    assert advised(verdict("user_exception")).because.startswith("the fault is in the program")


@pytest.mark.parametrize(("program", "action"), [(0.28, "retry"), (0.05, "replace")])
def test_what_a_program_could_have_done_itself_evicts_no_host(program: float, action: str) -> None:
    """CUDA's "unspecified launch failure" is the same of a broken GPU and of a wrong kernel."""
    told = Finding("first_exception", "unspecified_failure", "rank 5: a command of its GPU failed", ranks=(5,))
    own = Hypothesis("gpu_fault", "hardware", 0.68, (5,), ("host-c",), (told.id,), ())
    rival = Hypothesis("user_exception", "software", program, (5,), ("host-c",), (told.id,), ())
    found = advised(verdict("gpu_fault", probability=0.68, hypotheses=(own, rival)), (told,))
    assert (found.action, bool(found.evict_hosts)) == (action, action == "replace")
    assert ("compute-sanitizer" in found.because) == (action == "retry")
    xid = replace(own, supports=(told.id, "a record of the device"))  # the hardware itself tells
    assert advised(verdict("gpu_fault", probability=0.68, hypotheses=(xid, rival)), (told,)).evict_hosts == ("host-c",)
