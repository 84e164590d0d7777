"""The decision: verdict, findings, history and site in; action, branch, next steps, way back and costs out. Tables of cases, figures by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from rca.case import MemoryCase
from rca.causes import CAUSES
from rca.checkpoints import Rollback, Save
from rca.decision.advise import advise
from rca.decision.facts import NO_FACTS, Alerts, Facts, Layout, facts
from rca.decision.history import Fault, History, Past, past_of, repeats, same_fault
from rca.decision.launches import Launches, launches
from rca.decision.losses import loss
from rca.decision.recovery import ENOUGH, reference_s
from rca.decision.shrink import shrink
from rca.decision.tree import BRANCHES, FLAPS
from rca.incidents.records import iso
from rca.roster import Roster, roster
from rca.settings import NOT_SAID, SAME_FAULT_RESTARTS, Settings, parse
from rca.tables import TABLES
from rca.types import Advice, Finding, Hypothesis, Outcome, Verdict

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOSTS = {rank: f"host-{'abcd'[rank // 2]}" for rank in range(8)}
WHO = Roster(8, HOSTS, {}, {}, {}, {}, frozenset(), "job-0", 0, {})
ALIVE = (Outcome("job_motion", "found", ""),)
ENDED = (Outcome("process_death", "found", "", (Finding("process_death", "killed", "rank 5 died", ranks=(5,)),)),)


def verdict(cause: str, ranks: tuple[int, ...] = (5,), probability: float = 0.95, **more: Any) -> Verdict:
    about = CAUSES[cause]
    known: dict[str, Any] = {
        "cause": cause, "layer": about.layer, "attribution": about.attribution, "probability": probability, "summary": "", "ranks": ranks,
        "hosts": WHO.hosts_of(ranks), "gpus": (), "ranks_probability": probability if ranks else 0.0, "failed_at": AT, "step": 40, "data": None,
        "last_collective": None, "ordered_by": None, "concurrent": False, "proven": False, "hypotheses": (),
    }  # fmt: skip
    return Verdict(**known | more)


def past(number: int = 1, cause: str = "process_killed", **more: Any) -> Past:
    known: dict[str, Any] = {
        "incident_id": f"INC-{number}", "job_id": "train-7", "attempt": number, "fault": Fault(cause, ranks=(5,), step=40), "action": "retry",
        "began_at": AT - timedelta(hours=number),
    }  # fmt: skip
    return Past(**known | more)


def history(*incidents: Past, **more: Any) -> History:
    return History(past=incidents, where=f"{len(incidents)} incidents of a fleet", **{"job_id": "train-7", **more})


def advised(told: Verdict, findings: tuple[Finding, ...] = (), **more: Any) -> Advice:
    return advise(told, WHO, findings, **more)


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
    ("crash, no culprit", verdict("process_killed"), {"outcomes": ENDED}, "retry", "stop_time_checks", "cold", ("reattempt", "roll_back_code")),
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
    ("nobody idle", verdict("gpu_fault"), {"facts": replace(NO_FACTS, idle_hosts=())}, "shrink", "shrink", "cold", ()),
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


def frames(**rows: list[dict[str, Any]]) -> MemoryCase:
    evidence = [{"evidence_id": "a", "path": "logs/run.log"}]
    return MemoryCase({name: TABLES[name].rows(given) for name, given in {"evidence": evidence, **rows}.items()})


def line(number: int, signature: str, **more: Any) -> dict[str, Any]:
    return {"evidence_id": "a", "record": f"L{number}", "signature": signature, **more}


class TestLaunches:
    RAISED: Mapping[str, Any] = {"rank": 3, "exception": "IndexError", "frames": ["f (data.py:7)"]}

    def test_launches_in_one_log_are_counted_by_what_lies_between(self) -> None:
        starts = [
            line(1, "worker_started"),
            line(2, "worker_started"),
            line(3, "python_traceback", **self.RAISED),
            line(4, "elastic_child_failed"),
        ]
        again = [line(5, "worker_started"), line(6, "python_traceback", **self.RAISED), line(7, "elastic_child_failed")]
        third = [line(8, "worker_started"), line(9, "python_traceback", **self.RAISED | {"frames": ["g (other.py:2)"]})]
        told = launches(frames(log_events=[*third, *again, *starts]))
        assert told == Launches(2, ("3 launches in one log (logs/run.log L8)",), 1, "f (data.py:7)", ("logs/run.log L3", "logs/run.log L6"))

    def test_the_same_exception_after_a_restart_is_the_same_fault_only_if_the_verdict_is_that_line(self) -> None:
        told = Launches(1, ("2 launches in one log (run.log L5)",), 1, "f (data.py:7)", ("run.log L3",))
        mine = Finding("first_exception", "raised", "", ranks=(5,), numbers={"frames": ["f (data.py:7)"]})
        other = Finding("first_exception", "raised", "", ranks=(5,), numbers={"frames": ["g (x.py:1)"]})
        counts = [
            (advised(verdict("user_exception"), (f,), facts=replace(NO_FACTS, launches=told)).retries or {})["same_fault"]
            for f in (mine, other)
        ]
        assert counts == [1, 0]

    @pytest.mark.parametrize(
        ("table", "rows", "restarts"),
        [
            (
                "job_records",
                [{"base_job_id": "9", "restarts": 3, "is_step": False}, {"base_job_id": "9", "restarts": 3, "is_step": True}],
                3,
            ),
            (
                "job_records",
                [{"base_job_id": "9", "restarts": 3, "is_step": False}, {"base_job_id": "8", "restarts": 5, "is_step": False}],
                None,
            ),
            ("job_records", [{"base_job_id": "9", "restarts": 0, "is_step": False}], 0),
            ("scheduler_events", [{"state": "requeued"}, {"state": "requeued", "record": "L8"}], 2),
            (
                "trainer_events",
                [{"event": "x", "source": "nvrx", "cycle": 0}, {"event": "x", "source": "nvrx", "cycle": 2, "record": "L9"}],
                2,
            ),
            ("attempts", [{"attempt": 0, "job_id": "t"}, {"attempt": 1, "job_id": "t", "record": "E1"}], 1),
            ("log_events", [{"signature": "worker_started"}], None),
        ],
    )
    def test_restarts_that_are_told_outright(self, table: str, rows: list[dict[str, Any]], restarts: int | None) -> None:
        told = launches(frames(**{table: [{"evidence_id": "a", "record": "L1", **row} for row in rows]}))
        assert told.restarts == restarts
        assert bool(told.told_by) == (restarts is not None)


class TestLosses:
    """Figures by hand."""

    SLOW = Finding("slow_rank", "slow_compute", "", ranks=(5,), numbers={"own_s": 1.5, "others_s": 1.0})

    def told(self, **more: Any) -> dict[str, Any]:
        known: dict[str, Any] = {
            "step_s": 2.0, "num_gpus": 1024, "repair_h": 8.0, "recovery_s": 450.0, "again_s": 900.0, "is_running": False,
        }  # fmt: skip
        found = loss(verdict("slow_rank"), [self.SLOW], **known | more)
        assert found is not None
        return found

    def test_a_slow_rank_costs_its_share_of_each_step_until_the_repair(self) -> None:
        found = self.told()
        assert found["tax_least"] == found["tax_most"] == 0.25  # 0.5 s of 2 s
        assert found["degrade_gpu_h"] == [2048.0, 2048.0]  # 0.25 x 8 h x 1024
        assert found["replace_gpu_h"] == 384.0  # (450 + 900) s x 1024
        assert found["break_even_h"] == [1.5, 1.5]  # 0.375 h / 0.25
        assert found["prefers"] == "replace"
        assert "2,048 GPU-hours in 8 h" in found["says"]
        assert "384 GPU-hours" in found["says"]

    def test_a_short_repair_is_waited_for(self) -> None:
        found = self.told(repair_h=1.0)
        assert (found["degrade_gpu_h"], found["prefers"]) == ([256.0, 256.0], "degrade")

    def test_of_a_job_that_runs_nothing_is_computed_again(self) -> None:
        assert self.told(is_running=True)["replace_gpu_h"] == 128.0

    def test_without_the_length_of_a_step_the_tax_is_the_most_that_it_can_be(self) -> None:
        found = self.told(step_s=None)
        assert found["tax_most"] == pytest.approx(1 / 3)
        assert found["tax_basis"].startswith("at most")

    def test_what_is_not_known_is_none_and_the_break_even_time_is_told(self) -> None:
        found = self.told(repair_h=None)
        assert (found["degrade_gpu_h"], found["prefers"]) == (None, None)
        assert "longer than 1.5 h, which is not told" in found["says"]
        assert self.told(again_s=None)["replace_gpu_h"] is None

    def test_a_link_has_the_published_tax(self) -> None:
        found = loss(
            verdict("network_fault"), [], step_s=None, num_gpus=1000, repair_h=10.0, recovery_s=360.0, again_s=0.0, is_running=False
        )
        assert found is not None
        assert found["degrade_gpu_h"] == pytest.approx([50.0, 860.0])  # 0.5 and 8.6 % of 10,000 GPU-hours
        assert found["replace_gpu_h"] == 100.0
        assert found["prefers"] is None  # between the two it is open

    def test_no_other_cause_is_gone_on_with(self) -> None:
        assert loss(verdict("gpu_fault"), [], step_s=1.0, num_gpus=8, repair_h=1.0, recovery_s=1.0, again_s=0.0, is_running=True) is None

    def test_the_action_is_to_go_on_only_where_the_site_says_how_long_the_repair_takes(self) -> None:
        told = replace(NO_FACTS, step_s=20.0)  # 0.5 s of 20 s: 2.5 %
        slow = verdict("slow_rank")
        without = advised(slow, (self.SLOW,), facts=told, outcomes=ALIVE)
        with_ = advised(slow, (self.SLOW,), facts=told, outcomes=ALIVE, settings=Settings(repair_h=2.0))
        assert (without.action, without.evict_hosts) == ("replace", ("host-c",))
        assert (with_.action, with_.evict_hosts, with_.branch) == ("degrade", (), "degrade_or_replace")
        assert "go on until then" in with_.because


class TestRecovery:
    @pytest.mark.parametrize(
        ("machines", "cold", "hot"),
        [(128, 454.0, 46.0), (256, 545.0, 51.0), (512, 635.0, 54.0), (1024, 768.0, 65.0), (8, 454.0, 46.0), (5000, 768.0, 65.0)],
    )
    def test_published_seconds(self, machines: int, cold: float, hot: float) -> None:
        assert (reference_s("cold", machines)[0], reference_s("hot_standby", machines)[0]) == (cold, hot)

    @pytest.mark.parametrize(("machines", "between"), [(181, (454, 545, 499.5)), (362, (545, 635, 590.0)), (724, (635, 768, 701.5))])
    def test_between_two_sizes_it_is_interpolated_over_the_doubling(self, machines: int, between: tuple[float, float, float]) -> None:
        expected, least, most = reference_s("cold", machines)
        assert (least, most) == between[:2]
        assert expected == pytest.approx(between[2], abs=0.3)  # half of a doubling is 1.414 times the size

    def test_a_job_of_unknown_size_has_a_range(self) -> None:
        assert reference_s("cold", None) == (None, 454.0, 768.0)
        assert reference_s("hot_standby", None) == (None, 46.0, 65.0)

    def test_the_parts_are_those_of_initialisation(self) -> None:
        parts = {part["part"]: part for part in (advised(verdict("user_exception")).recovery or {})["parts"]}
        assert parts["load"]["share"] == pytest.approx(0.692 * 0.351, abs=1e-4)
        assert parts["warmup"]["share"] == pytest.approx(0.28, abs=0.001)  # of the restart
        assert parts["rebuild"]["expected_s"] == pytest.approx(454 * 0.692 * 0.245, abs=0.1)

    @pytest.mark.parametrize(("count", "source", "expected"), [(ENOUGH - 1, "published", 454.0), (ENOUGH, "own", 300.0)])
    def test_the_sites_own_history_counts_from_three_incidents_on(self, count: int, source: str, expected: float) -> None:
        own = [past(n, stage_s={"queue": 200.0, "load": 40.0}, repair_s=290.0 + 10.0 * n) for n in range(count)]
        told = advised(verdict("user_exception"), history=history(*own)).recovery or {}
        assert (told["source"], told["expected_s"]) == (source, expected)
        assert told["n"] == (count if source == "own" else None)
        if source == "own":
            assert next(part for part in told["parts"] if part["part"] == "load")["expected_s"] == 40.0
        else:
            assert "this site has 2 timed so far" in told["says"]

    def test_incidents_of_another_path_do_not_count(self) -> None:
        spares = [past(n, stage_s={"replace": 50.0}, repair_s=60.0) for n in range(5)]
        assert (advised(verdict("user_exception"), history=history(*spares)).recovery or {})["source"] == "published"


class TestShrink:
    LAYOUT = Layout(tp=2, pp=2, dp=4)

    def told(self, gone: int, world: int = 16, hosts: int = 8, layout: Layout = LAYOUT, **settings: Any) -> dict[str, Any]:
        found = shrink(layout, Settings(**settings), world_size=world, num_hosts=hosts, num_gone=gone)
        assert found is not None
        return found

    def test_replicas_go_and_the_rest_waits(self) -> None:
        found = self.told(1)
        assert (found["tp"], found["pp"], found["dp"], found["dp_after"], found["ranks_left"], found["ranks_spare"]) == (2, 2, 4, 3, 14, 2)
        assert found["step_time_factor"] == pytest.approx(4 / 3, abs=1e-4)

    def test_batch_accumulation_and_learning_rate(self) -> None:
        found = self.told(2, global_batch=96, micro_batch=2, learning_rate=4e-4)
        assert found["dp_after"] == 3
        assert (found["accumulation"], found["accumulation_kept_batch"]) == (12.0, 16.0)
        assert found["global_batch_kept_accumulation"] == 72.0
        assert found["lr_linear"] == pytest.approx(3e-4)
        assert found["lr_sqrt"] == pytest.approx(4e-4 * 0.75**0.5)

    def test_an_accumulation_that_is_no_whole_number_is_said(self) -> None:
        assert "no whole number" in self.told(2, global_batch=32, micro_batch=2)["says"]

    def test_memory_and_network_of_a_sharded_optimizer(self) -> None:
        found = self.told(2, model_params=8e9, is_optimizer_sharded=True, reshard_gb_s=24.0)
        assert found["rank_gb"] == 14.0  # 2e9 x 4 B + 2e9 x 12 B / 4
        assert found["rank_gb_after"] == 16.0  # ... / 3
        assert (found["moved_gb"], found["moved_s"]) == (96.0, 4.0)  # 8e9 x 12 B; at 24 GB/s

    def test_an_optimizer_that_every_replica_holds_is_not_moved(self) -> None:
        found = self.told(2, model_params=8e9, is_optimizer_sharded=False)
        assert (found["rank_gb"], found["rank_gb_after"], found["moved_gb"]) == (32.0, 32.0, 0.0)

    def test_without_the_size_of_the_model_the_formula_and_what_is_missing(self) -> None:
        found = self.told(1)
        assert found["rank_gb"] is None
        assert "P / (tp x pp)" in found["memory_formula"]
        assert any("model_params" in name for name in found["missing"])

    @pytest.mark.parametrize(
        ("layout", "layers", "gone", "pp", "each"),
        [
            (Layout(tp=2, pp=8, dp=1), None, 1, 7, None),
            (Layout(tp=2, pp=8, dp=1), 32, 1, 4, 8),  # 7, 6 and 5 do not divide 32
            (Layout(tp=2, pp=8, dp=1), 30, 1, 6, 5),
        ],
    )
    def test_where_no_replica_is_left_stages_are_split_anew(
        self, layout: Layout, layers: int | None, gone: int, pp: int, each: int | None
    ) -> None:
        found = self.told(gone, layout=layout, num_layers=layers)
        assert (found["keeps_layout"], found["pp_after"], found["layers_per_stage"]) == (False, pp, each)
        assert f"8 to {pp}" in found["resplit"]

    def test_where_not_even_a_tensor_group_is_left_that_is_said(self) -> None:
        assert "tp has to shrink" in self.told(1, world=16, hosts=2, layout=Layout(tp=16, pp=1, dp=1))["resplit"]

    def test_an_unknown_layout_is_told_as_such(self) -> None:
        found = self.told(1, layout=Layout())
        assert (found["dp_after"], found["keeps_layout"]) == (None, None)
        assert "give a rank map" in found["says"]

    def test_nothing_goes_nothing_follows(self) -> None:
        assert shrink(self.LAYOUT, NOT_SAID, world_size=16, num_hosts=8, num_gone=0) is None
        assert shrink(self.LAYOUT, NOT_SAID, world_size=None, num_hosts=8, num_gone=1) is None


class TestBeforeRestart:
    def checks(self, **more: Any) -> dict[str, str]:
        return {check["check"]: check["status"] for check in advised(verdict("user_exception"), **more).before_restart}

    def test_what_was_not_looked_at_is_never_fine(self) -> None:
        assert set(self.checks().values()) == {"not_looked"}

    def test_seen_and_not_seen(self) -> None:
        link = Finding("network_votes", "link", "host-a and host-b lost each other")
        drift = Finding("config_drift", "drift", "host-b runs another driver")
        seen = self.checks(
            outcomes=(Outcome("network_votes", "found", "", (link,)), Outcome("config_drift", "found", "", (drift,)), *ALIVE),
            facts=replace(NO_FACTS, captured=frozenset({0, 1})),
        )
        assert (seen["leftover ranks"], seen["network trouble"], seen["hosts that differ"]) == ("seen", "seen", "seen")
        clear = self.checks(
            outcomes=(Outcome("network_votes", "clear", ""), Outcome("config_drift", "clear", ""), Outcome("checkpoint_state", "clear", ""))
        )
        assert (clear["network trouble"], clear["hosts that differ"], clear["damaged or late checkpoint"]) == ("not_seen",) * 3

    def test_a_checkpoint_that_is_only_named_was_not_looked_at(self) -> None:
        named, whole = (Rollback(Save(30, "step_30", "run.log", "L4", is_whole=flag)) for flag in (False, True))
        assert self.checks(back=named)["damaged or late checkpoint"] == "not_looked"
        assert self.checks(back=whole)["damaged or late checkpoint"] == "not_seen"

    def test_changes_that_wait_are_named(self) -> None:
        found = advised(verdict("user_exception"), history=history(pending_changes=("new tokenizer",)))
        assert "new tokenizer" in found.before_restart[-1]["says"]
        assert "new tokenizer" in found.next[0]["says"]  # and in what is rolled back

    def test_nothing_is_checked_where_nothing_restarts(self) -> None:
        assert advised(verdict("healthy", ())).before_restart == ()


class TestFacts:
    def test_spares_are_idle_nodes_beside_those_of_the_job(self) -> None:
        nodes = [("host-a", "idle", False), ("n5", "idle", False), ("n6", "idle", True), ("n7", "allocated", False)]
        rows = [
            {"evidence_id": "a", "record": f"L{n}", "host": host, "base_state": state, "is_drain": drain}
            for n, (host, state, drain) in enumerate(nodes)
        ]
        case = frames(node_states=rows)
        assert facts(case, WHO).idle_hosts == ("n5",)
        assert facts(frames(node_states=rows[:1]), WHO).idle_hosts is None  # only nodes of the job: nobody asked for spares
        assert facts(frames(node_states=rows[3:]), WHO).idle_hosts == ()

    def test_alerts_within_five_minutes(self) -> None:
        def rows(*minutes: float | None) -> MemoryCase:
            times = [None if m is None else AT + timedelta(minutes=m) for m in minutes]
            told = [{"evidence_id": "a", "record": f"L{n}", "host": "host-c", "kind": "nic", "logged_at": at} for n, at in enumerate(times)]
            return frames(kernel_events=told)

        assert [facts(rows(*m), WHO).alerts["host-c"].most_in_window for m in ((0, 4), (0, 6), (0, 4, 8), (None, 1))] == [2, 1, 2, None]

    def test_the_layout_by_coordinates_and_by_groups(self) -> None:
        places = [{"evidence_id": "a", "record": f"L{r}", "rank": r, "tp": r % 2, "pp": r // 2 % 2, "dp": r // 4} for r in range(8)]
        assert facts(frames(ranks=places), WHO).layout == Layout(2, 2, None, 2, "a rank map")
        members = [{"evidence_id": "a", "record": f"E{r}", "rank": r, "group_id": f"{kind}:{r // size if kind == 'tp' else r % size}"}
                   for kind, size in (("tp", 2), ("dp", 2)) for r in range(8)]  # fmt: skip
        groups = [{"evidence_id": "a", "record": "E0", "group_id": g, "kind": g[:2]} for g in sorted({m["group_id"] for m in members})]
        assert facts(frames(memberships=members, groups=groups), WHO).layout.pp == 1  # dp of 4 times tp of 2 are all 8 ranks
        assert facts(frames(), WHO).layout == Layout()


class TestRecords:
    RECORD: Mapping[str, Any] = {
        "incident_id": "INC-1", "job_id": "train-7", "attempt": 2, "cause": "gpu_fault", "action": "replace", "ranks": [5], "hosts": ["host-c"],
        "began_at": iso(AT), "code_version": "v1", "evicted": ["host-c"], "diagnosis": {"step": 40},
        "stages": [
            {"stage": "localize", "started_at": iso(AT), "ended_at": iso(AT + timedelta(seconds=60))},
            {"stage": "replace", "started_at": iso(AT + timedelta(seconds=60)), "ended_at": iso(AT + timedelta(seconds=110))},
            {"stage": "resume", "started_at": None, "ended_at": iso(AT + timedelta(seconds=360))},
        ],
        "history": [{"data": {"diagnosis": {"sample_ids": ["x"], "code_line": "f (a.py:1)"}}}],
        "evidence": {"fingerprint": "0123456789abcdef"},
    }  # fmt: skip

    def test_an_incident_of_the_fleet(self) -> None:
        found = past_of(self.RECORD)
        assert found is not None
        assert (found.repair_s, dict(found.stage_s)) == (300.0, {"localize": 60.0, "replace": 50.0})
        assert found.fault == Fault("gpu_fault", (5,), ("host-c",), 40, ("x",), "f (a.py:1)")

    @pytest.mark.parametrize(
        "damage",
        [
            {"stages": "none"}, {"history": [None, {"data": 3}]}, {"ranks": {"5": 1}}, {"began_at": "yesterday", "opened_at": 7},
            {"diagnosis": []}, {"evidence": None}, {"stages": [{"stage": "resume", "ended_at": 5}, 9]},
        ],
    )  # fmt: skip
    def test_a_damaged_record_gives_what_is_sound_in_it(self, damage: Mapping[str, Any]) -> None:
        assert past_of({**self.RECORD, **damage}) is not None

    def test_what_is_no_record_is_none(self) -> None:
        assert past_of({"cause": "gpu_fault"}) is None
        assert past_of({"incident_id": 3, "cause": "gpu_fault"}) is None


class TestSettings:
    def test_a_file(self) -> None:
        told, count = parse("[decision]\nspares = 4\nhot_standby = true\nrepair_h = 6\nmodel_params = 70e9\n", "rca.toml")
        assert (told.spares, told.hot_standby, told.repair_h, told.model_params, count) == (4, True, 6, 70e9, 4)
        assert parse("", "rca.toml") == (NOT_SAID, 0)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("spares = 4\n", "stands outside"),
            ("[decision]\nspare = 4\n", "no setting is called 'spare'"),
            ("[decision]\nspares = -1\n", "not at least 0"),
            ("[decision]\nspares = 1.5\n", "no whole number"),
            ("[decision]\nhot_standby = 1\n", "neither true nor false"),
            ("[decision\n", "no TOML"),
            ("[decision]\nrepair_h = 0\n", "not above 0"),
            ("[decision]\nrepair_h = nan\n", "not above 0"),
            ("[decision]\nrepair_h = true\n", "no number"),
            ("decision = 3\n", "is no table"),
        ],
    )
    def test_a_wrong_file_says_what_is_wrong(self, text: str, says: str) -> None:
        from rca.errors import UsageError

        with pytest.raises(UsageError, match=says):
            parse(text, "rca.toml")


def test_a_case_without_anything_has_facts_that_are_all_unknown() -> None:
    told = facts(frames(), roster(frames()))
    assert (told.step_s, told.idle_hosts, told.launches.restarts, told.can_rejoin, dict(told.alerts)) == (None, None, None, None, {})
    assert isinstance(TABLES["evidence"].frame(), pl.DataFrame)


def test_the_group_that_stands_apart_is_a_plan_and_nobody_is_evicted_by_it() -> None:
    cover = [{"group": "pp:1", "kind": "pp", "ranks": [4, 5, 6, 7], "outliers": [4, 5, 6], "suspects": [5]}]
    found = advised(verdict("unknown", ()), (Finding("outlier_group", "outliers", "", numbers={"cover": cover}),))
    assert (found.action, found.branch, found.evict_hosts) == ("human", "over_evict", ())
    assert found.eviction is not None
    assert (found.eviction["hosts"], found.evict_group) == (("host-c", "host-d"), "pp:1")
    assert advised(verdict("code_hang", ()), (Finding("outlier_group", "outliers", "", numbers={"cover": cover}),)).eviction is None


def test_a_sure_host_of_wrong_bits_is_run_twice_before_it_comes_back() -> None:
    assert advised(verdict("silent_data_corruption", probability=0.99)).replay is not None
    assert advised(verdict("silent_data_corruption", probability=0.99, proven=True)).replay is None
    assert advised(verdict("gpu_fault", probability=0.99)).replay is None


def test_a_hypothesis_is_no_more_than_a_hypothesis() -> None:
    """The action of the answer counts, whatever a less probable hypothesis would ask for."""
    other = Hypothesis("gpu_fault", "hardware", 0.3, (3,), ("host-b",), (), ())
    assert advised(verdict("code_hang", hypotheses=(other,))).evict_hosts == ()
