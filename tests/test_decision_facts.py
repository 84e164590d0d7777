"""What the decision rests on: launches, facts of the case, records of the fleet, the site, the checklist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from _decision import ALIVE, AT, WHO, advised, frames, history, verdict

from apps.decision import first_lines
from rca.case import MemoryCase
from rca.checkpoints import Rollback, Save
from rca.decision.facts import NO_FACTS, Layout, facts
from rca.decision.history import Fault, past_of
from rca.decision.job_size import ranks_per_host
from rca.decision.launches import Launches, launches
from rca.decision.restart_checks import BROKEN, restart_checks
from rca.decision.stop_time import stop_time_checks
from rca.incidents.records import iso
from rca.roster import roster
from rca.settings import NOT_SAID, parse
from rca.tables import TABLES
from rca.types import Cite, Finding, Hypothesis, Outcome


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

    def test_folded_tracebacks_count_for_the_launches_in_which_their_rank_failed(self) -> None:
        def log(folded: int, *ranks: int) -> MemoryCase:
            rows = [line(1, "worker_started"), line(2, "python_traceback", **self.RAISED, num_folded=folded)]
            for number, rank in enumerate(ranks):
                rows += [line(10 * number + 10, "elastic_child_failed", rank=rank), line(10 * number + 11, "worker_started")]
            return frames(log_events=rows)

        assert [launches(log(*told)).same_exception for told in ((3, 3, 3, 3), (3, 3, 5, 5), (1, 3, 3, 3), (2, 3, 3, 3))] == [2, 0, 0, 1]

    def test_the_same_exception_after_a_restart_is_the_same_fault_only_if_the_verdict_is_that_line(self) -> None:
        lines = {("a", "L3"): "f (data.py:7)", ("a", "L9"): "g (x.py:1)"}
        told = Launches(1, ("2 launches in one log (run.log L5)",), 1, "f (data.py:7)", ("run.log L3",), lines)
        counts = []
        for record in ("L3", "L9"):
            found = Finding("first_exception", "raised", "", ranks=(5,), cites=(Cite("log_events", "a", "run.log", record, ""),))
            carried = verdict("user_exception", hypotheses=(Hypothesis("user_exception", "software", 0.9, (5,), (), (found.id,), ()),))
            counts.append((advised(carried, (found,), facts=replace(NO_FACTS, launches=told)).retries or {})["same_fault"])
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

    @pytest.mark.parametrize(
        ("has_ended", "says"),
        [
            (None, "whether the job still ran then is not told"),
            (True, "the job has ended"),
            (False, "2 of 8 ranks were alive when captured"),
        ],
    )
    def test_of_a_job_that_may_still_run_no_end_is_told(self, says: str, *, has_ended: bool | None) -> None:
        told = restart_checks((), WHO, None, captured=frozenset({0, 1}), has_ended=has_ended, pending=())
        assert says in next(check["says"] for check in told if check["check"] == "leftover ranks")

    def test_every_host_is_asked_for_what_is_left(self) -> None:
        who = replace(WHO, hosts={rank: f"h{rank // 2:02}" for rank in range(16)})
        found = {check["check"]: check["run"] for check in restart_checks((), who, None, captured=frozenset(), has_ended=None, pending=())}
        assert "pdsh -w 'h[00-07]'" in found["leftover ranks"][1]
        assert "--ntasks-per-node=2 " in found["network trouble"][1]

    def test_one_rank_seen_of_each_host_tells_no_number_of_its_gpus(self) -> None:
        for hosts, per_host in (({0: "a", 8: "b"}, None), ({0: "a", 1: "b"}, 1), ({0: "a", 1: "a", 8: "c", 9: "c"}, 2)):
            assert ranks_per_host(replace(WHO, world_size=None, hosts=hosts)) == per_host
        assert "8 are assumed" in stop_time_checks(["a"], layer="hardware", gpus_per_host=None)[1]

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


class TestBrokenBeside:
    """A host with broken hardware is kept out of the restart, though it did not fail first."""

    MENTION = Finding("fatal_xid", "not_counted", "", numbers={"broken_beside": [{"host": "host-a", "record": "Xid 79 of GPU 0000:3b:00"}]})
    NAMED = Finding("fatal_xid", "gpu_record", "", ranks=(0,), hosts=("host-a",), numbers={"is_broken": True})

    @pytest.mark.parametrize(
        ("cause", "ranks", "finding", "named"),
        [
            ("user_exception", (5,), MENTION, True),
            ("user_exception", (5,), NAMED, True),
            ("network_fault", (5,), MENTION, True),  # that of the verdict goes, and this one must not take its place
            ("gpu_fault", (0,), NAMED, False),  # it is evicted
            ("gpu_fault", (0,), MENTION, False),
            ("user_exception", (5,), Finding("fatal_xid", "not_counted", ""), False),
        ],
    )
    def test_it_stands_in_the_checklist_and_in_what_to_do(
        self, cause: str, ranks: tuple[int, ...], finding: Finding, *, named: bool
    ) -> None:
        found = advised(verdict(cause, ranks), (finding,))
        told = [check for check in found.before_restart if check["check"] == BROKEN]
        assert [check["hosts"] for check in told] == ([["host-a"]] if named else [])
        assert any(line.startswith("keep host-a") for line in first_lines(found)) is named
