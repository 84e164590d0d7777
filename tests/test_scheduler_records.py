"""Accounting rows, states of nodes and planned windows in the verdict: which are of this job and launch, and what they may say. One story each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from test_event_questions import HOSTS, Job, at

from apps.headline import headline
from rca.diagnose import diagnose
from rca.judge import judge
from rca.types import Outcome


def stamp(seconds: float, zone_h: float = 0.0) -> str:
    return (at(seconds) + timedelta(hours=zone_h)).replace(tzinfo=None).isoformat(timespec="seconds")


def row(job: Job, state: str, began: float, ended: float | None, *, zone_h: float | None = None, **values: Any) -> Job:
    """An accounting row: with instants, or with local stamps of a zone."""
    told: dict[str, Any] = {"job_id": "4101", "is_step": False, "hosts": list(HOSTS), "attribution": "unknown", **values}
    told.setdefault("base_job_id", told["job_id"])
    if state in ("PREEMPTED", "TIMEOUT", "DEADLINE") or told.get("cancelled_by"):
        told["attribution"] = "planned"
    for column, seconds in (("started", began), ("ended", ended)):
        if seconds is not None and zone_h is None:
            told[f"{column}_at"] = at(seconds)
        elif seconds is not None and zone_h is not None:
            told[f"{column}_at_local"] = stamp(seconds, zone_h)
    return job.add("job_records", "sacct", state=state, **told)


def node(job: Job, host: str, seconds: float | None, **values: Any) -> Job:
    told = {"base_state": "DOWN", "is_responding": False, "attribution": "platform", "reason": "Not responding", **values}
    return job.add("node_states", "scontrol", host=host, reason_at=at(seconds) if seconds is not None else None, **told)


def window(job: Job, began: float, ended: float, hosts: list[str] | None = None, **values: Any) -> Job:
    return job.add(
        "planned_windows", "ics", name="firmware", hosts=hosts, started_at=at(began), ended_at=at(ended), is_cancelled=False, **values
    )


def stopped(seconds: float = 19.6) -> Job:
    """Workers that end by SIGTERM while the job moves; nobody says why."""
    return Job().closed(range(8), seconds).lost_peer((2, 6), seconds + 0.1)


class TestStops:
    @pytest.mark.parametrize(
        ("state", "by", "sign"),
        [
            ("PREEMPTED", None, "preempted"),
            ("TIMEOUT", None, "announced_stop"),
            ("DEADLINE", None, "announced_stop"),
            ("CANCELLED", "700", "announced_stop"),
        ],
    )
    def test_the_books_say_why_the_workers_were_stopped(self, state: str, by: str | None, sign: str) -> None:
        job = row(stopped(), state, -60, 22, cancelled_by=by)
        found = job.only("planned_stop")
        assert (found.sign, found.ranks) == (sign, ())
        assert any(cite.table == "job_records" for cite in found.cites)
        assert judge(job.case()).verdict.attribution == "planned"

    @pytest.mark.parametrize(
        ("state", "says"), [("TIMEOUT", "with a longer limit"), ("DEADLINE", "with a longer limit"), ("CANCELLED", "it was cancelled")]
    )
    def test_nobody_decided_that_a_limit_ends_a_job(self, state: str, says: str) -> None:
        job = row(stopped(), state, -60, 22, cancelled_by="700" if state == "CANCELLED" else None)
        judged = judge(job.case())
        assert judged.verdict.cause == "planned_stop"
        assert says in judged.advice.because

    def test_a_killed_worker_within_the_wait_is_of_the_stop_and_an_earlier_one_is_not(self) -> None:
        job = row(Job().died(1, 19.5, -9, "SIGKILL"), "PREEMPTED", -60, 40)
        assert job.ask("process_death").findings == ()
        job = row(Job(steps=200).died(1, 19.5, -9, "SIGKILL"), "PREEMPTED", -60, 190)
        assert job.only("process_death").ranks == (1,)

    @pytest.mark.parametrize(
        "values",
        [
            {"hosts": ["host-w", "host-x", "host-y", "host-z"]},  # another job
            {"hosts": [*HOSTS, "host-e"]},  # nobody knows the id: a larger job is not this one
            {"job_id": "4101.batch", "base_job_id": "4101", "is_step": True},  # a step says nothing of its job
            {"began": -7200.0, "ended": -3600.0},  # an earlier launch
            {"began": 600.0, "ended": 900.0},  # a later one
            {"cancelled_by": None, "state": "CANCELLED"},  # by whom is not told
            {"state": "FAILED"},
            {"state": "REQUEUED"},
        ],
    )
    def test_a_row_of_another_job_or_launch_or_that_says_nothing_of_a_stop_is_none(self, values: dict[str, Any]) -> None:
        told = {"state": "PREEMPTED", "began": -60.0, "ended": 22.0} | values
        assert row(stopped(), told.pop("state"), told.pop("began"), told.pop("ended"), **told).ask("planned_stop").findings == ()

    def test_an_id_in_the_logs_decides(self) -> None:
        job = stopped().agent("slurm_task_exit", 19.7, "slurmstepd: error: StepId=4101.0 exits")
        assert row(job, "PREEMPTED", -60, 22, hosts=[*HOSTS, "host-e"]).only("planned_stop").sign == "preempted"
        job = stopped().agent("slurm_task_exit", 19.7, "slurmstepd: error: StepId=7777.0 exits")
        assert row(job, "PREEMPTED", -60, 22).ask("planned_stop").findings == ()

    def test_a_hung_job_that_runs_out_of_time_was_not_stopped_in_good_health(self) -> None:
        job = row(Job().closed(range(8), 3600), "TIMEOUT", -60, 3602)
        found = job.only("planned_stop")
        assert (found.sign, found.cites[0].table, found.cites[0].text) == ("stop_after_fault", "progress", "step 19, the last that ended")
        judged = judge(job.case())
        assert headline(judged) == "Its time limit ended it after standing still for 60 min since step 19; why it stood still is open"
        assert judged.advice.because.startswith("the stall is the fault, the stop only ended it: look at the minute of the last step")

    def test_local_stamps_need_a_zone_and_one_that_fits_by_the_end_is_found(self) -> None:
        assert row(stopped(), "PREEMPTED", -60, 22, zone_h=5.5).only("planned_stop").sign == "preempted"
        job = row(stopped(), "PREEMPTED", -60, 500, zone_h=2)  # ends at no multiple of a quarter of an hour from the logs
        assert job.ask("planned_stop").findings == ()
        assert job.only("scheduler_record").sign == "not_placed"
        assert job.ask("scheduler_record").status == "clear"
        told = job.add("hosts", "facts", host="host-a", zone_offset_s=7200.0)
        assert told.only("planned_stop").sign == "preempted"

    def test_without_logs_the_row_alone_is_worth_little(self) -> None:
        job = Job()
        for rank in range(8):
            job.add("dumps", f"dump-{rank}", rank=rank, first_at=at(0), last_at=at(20))
        job.rows["log_events"].clear()
        found = row(job, "PREEMPTED", -60, 22).only("scheduler_record")
        assert (found.sign, found.ranks, found.explains) == ("preempted_on_record", (), ())


def step(job: Job, name: str, state: str, began: float = -60, ended: float = 21, **values: Any) -> Job:
    return row(job, state, began, ended, job_id=f"4101.{name}", base_job_id="4101", is_step=True, **values)


class TestStepsAndSeveralJobs:
    @pytest.mark.parametrize(
        ("state", "values", "sign", "says"),
        [
            ("FAILED", {"exit_code": 1}, "ended_as", "its step 4101.0 FAILED with exit code 1"),
            ("OUT_OF_MEMORY", {"exit_signal": 125}, "out_of_memory", "its step 4101.0 OUT_OF_MEMORY"),
            ("CANCELLED", {"exit_signal": 9}, "ended_as", "its step 4101.0 CANCELLED by signal 9"),
            ("COMPLETED", {"exit_code": 0}, "ended_as", None),
            ("FAILED", {"exit_code": 1, "began": -7200, "ended": -3600}, "ended_as", None),  # of an earlier launch of this job
        ],
    )
    def test_the_worst_step_tells_how_the_job_ended(self, state: str, values: dict[str, Any], sign: str, says: str | None) -> None:
        job = step(step(row(Job(), "COMPLETED", -60, 22), "batch", "COMPLETED"), "0", state, **values)
        found = job.only("scheduler_record")
        assert (found.sign, found.numbers["state"]) == (sign, state if says else "COMPLETED")
        assert (says or "COMPLETED") in found.says
        assert [cite.text.split()[1] for cite in found.cites] == (["step", "job"] if says else ["job"])

    def test_a_stop_of_the_job_tells_why_its_steps_ended(self) -> None:
        assert step(row(Job(), "TIMEOUT", -60, 22), "0", "FAILED", exit_code=1).only("scheduler_record").numbers["state"] == "TIMEOUT"

    def test_of_two_jobs_at_that_time_on_these_hosts_neither_decides_and_both_are_named(self) -> None:
        found = row(row(Job(), "COMPLETED", -60, 22), "OUT_OF_MEMORY", -60, 23, job_id="4102").only("scheduler_record")
        assert (found.sign, len(found.cites)) == ("not_placed", 2)
        assert "job 4101 COMPLETED" in found.says
        assert "job 4102 OUT_OF_MEMORY" in found.says

    def test_a_row_that_is_told_twice_is_one(self) -> None:
        job = row(row(Job(), "FAILED", -60, 500, zone_h=2), "FAILED", -60, 500, zone_h=2)
        assert job.only("scheduler_record").sign == "not_placed"


class TestRowsThatAreNotUsed:
    @pytest.mark.parametrize(
        ("values", "says"),
        [
            ({"hosts": ["host-w", "host-x"]}, "other hosts (host-w, host-x)"),
            ({"hosts": [HOSTS[0]]}, f"1 of the {len(HOSTS)} hosts of this job only"),
            ({"hosts": [*HOSTS, "host-w"]}, "and 1 more"),
            ({"hosts": None}, "no hosts"),
            ({"began": -7200.0, "ended": -5000.0}, "before the last line of the logs: another launch"),
            ({"began": 3540.0, "ended": 3622.0}, "another zone"),
        ],
    )
    def test_why_is_told_and_weighs_nothing(self, values: dict[str, Any], says: str) -> None:
        told = {"began": -60.0, "ended": 22.0} | values
        job = row(stopped(), "PREEMPTED", told.pop("began"), told.pop("ended"), **told)
        found = job.only("scheduler_record")
        assert (found.sign, found.ranks, found.hosts) == ("not_used", (), ())
        assert says in found.says
        assert found.cites
        assert judge(job.case()).verdict.cause == judge(stopped().case()).verdict.cause

    def test_another_id_and_the_rows_that_come_near_are_told_first(self) -> None:
        job = stopped().agent("slurm_task_exit", 19.7, "slurmstepd: error: StepId=7777.0 exits")
        assert "the logs are of job 7777" in row(job, "PREEMPTED", -60, 22).only("scheduler_record").says
        job = stopped()
        for number in range(20):
            row(job, "FAILED", -60, 22, job_id=f"50{number:02}", hosts=["host-w"])
        says = row(job, "TIMEOUT", 3540, 3622).only("scheduler_record").says
        assert "and 18 more" in says
        assert says.index("job 4101") < says.index("job 50")

    def test_books_alone_are_no_evidence_of_the_job(self) -> None:
        job = row(Job(), "PREEMPTED", -60, 22)
        for table in set(job.rows) - {"job_records"}:
            job.rows[table].clear()
        outcome = job.ask("scheduler_record")
        assert outcome.status == "blind"
        assert "which hosts this job has is not told" in outcome.why

    @pytest.mark.parametrize(
        ("spoil", "cause"),
        [
            (lambda job: None, "unknown"),
            (lambda job: row(job, "FAILED", -60, 22, job_id="4101.0", base_job_id="4101", is_step=True, exit_code=1), "unknown"),
            (lambda job: job.died(1, 20, -9, "SIGKILL"), "process_killed"),
            (lambda job: job.log(3, "nccl_watchdog_timeout", 20), "unknown"),
            (lambda job: job.agent("elastic_agent_signal", 20, "Received 15 death signal"), "unknown"),
        ],
    )
    def test_a_job_that_completed_is_sound_where_its_replicas_agree_and_nothing_speaks_against_it(
        self, spoil: Callable[[Job], Any], cause: str
    ) -> None:
        job = row(Job(), "COMPLETED", -60, 22, exit_code=0, exit_signal=0, attribution="none")
        spoil(job)
        done = judge(job.case())
        assert done.verdict.cause == cause
        is_over = done.verdict.summary.startswith("no fault in what was looked at: the job came to its end; whether its numbers are right")
        assert is_over == any(f.sign == "ended_well" for o in done.outcomes for f in o.findings)
        equal = [Outcome(o.analysis, "clear", "", ()) if o.analysis == "replica_divergence" else o for o in done.outcomes]
        assert diagnose(equal, done.roster).cause == ("healthy" if is_over else cause)

    @pytest.mark.parametrize(
        ("ended", "values"),
        [
            (7200, {}),  # the script went on for long after the last word: the job may have stood still
            (22, {"exit_code": 1}),
            (22, {"job_id": "4102", "hosts": ["host-x"]}),
        ],
    )
    def test_a_script_that_completed_is_not_the_job_that_did(self, ended: float, values: dict[str, Any]) -> None:
        job = row(Job(), "COMPLETED", -60, ended, **{"exit_code": 0, "exit_signal": 0, "attribution": "none", **values})
        assert job.ask("process_death").status == "blind"

    def test_stamps_without_zone_on_both_sides_tell_which_row_it_is(self) -> None:
        job = Job(steps=0)
        job.rows["log_events"].clear()
        for step in range(20):
            job.add("progress", "log-0", rank=0, step=step, ended_at_local=stamp(step))
        job.log(0, "worker_finished", None, "training is done")
        row(job, "COMPLETED", -60, 22, zone_h=-7.0, exit_code=0, exit_signal=0)
        assert job.only("process_death").sign == "ended_well"

    def test_local_times_that_fit_no_zone_are_said_to(self) -> None:
        assert "in no zone" in row(stopped(), "PREEMPTED", -60, 500, zone_h=2).only("scheduler_record").says


class TestNodes:
    def test_a_failed_node_of_the_job_is_a_lost_host(self) -> None:
        job = node(Job().lost_peer((0, 1, 4, 5), 30), "host-b", 60)
        found = job.only("process_death")
        assert (found.sign, found.ranks, found.hosts) == ("host_lost", (2, 3), ("host-b",))
        assert judge(job.case()).verdict.cause == "host_lost"

    @pytest.mark.parametrize(
        ("host", "seconds", "values"),
        [
            ("host-z", 60, {}),  # no host of the job
            ("host-b", -86400, {}),  # long before
            ("host-b", 7200, {}),  # long after
            ("host-b", None, {}),  # when is not told
            ("host-b", 60, {"attribution": "planned", "reason": "maintenance"}),
            (
                "host-b",
                60,
                {"base_state": "IDLE", "is_responding": True, "is_drain": True},
            ),  # drained after a fault: no sign of one by itself
        ],
    )
    def test_other_nodes_other_times_and_plans_are_none(self, host: str, seconds: float | None, values: dict[str, Any]) -> None:
        assert node(Job().lost_peer((0, 1, 4, 5), 30), host, seconds, **values).ask("process_death").findings == ()

    def test_a_host_that_went_on_was_not_lost(self) -> None:
        job = node(Job().log(2, "train_progress", 600).log(3, "train_progress", 600), "host-b", 60)
        assert job.ask("process_death").findings == ()

    def test_two_stamps_of_the_schedulers_own_clock_need_no_zone(self) -> None:
        job = row(Job().lost_peer((0, 1, 4, 5), 30), "NODE_FAIL", -60, 32, zone_h=-7)
        node(job, "host-b", None, reason_at_local=stamp(330, -7))
        assert job.only("process_death").ranks == (2, 3)
        assert job.only("scheduler_record").sign == "node_failed"

    def test_a_failed_node_that_nobody_names_accuses_nobody(self) -> None:
        found = row(Job().lost_peer(range(8), 30), "NODE_FAIL", -60, 32).only("scheduler_record")
        assert (found.sign, found.ranks, found.hosts) == ("node_failed", (), ())

    def test_memory_of_the_group_ran_out(self) -> None:
        assert row(Job().lost_peer((0, 1), 30), "OUT_OF_MEMORY", -60, 32).only("scheduler_record").sign == "out_of_memory"


class TestWindows:
    def test_an_end_inside_a_window_of_its_hosts_may_be_planned(self) -> None:
        job = window(Job().lost_peer(range(8), 30), -600, 3600, ["host-b", "host-q"])
        found = job.only("planned_window")
        assert (found.sign, found.ranks, found.explains) == ("in_window", (), ())

    @pytest.mark.parametrize(
        ("began", "ended", "hosts", "values"),
        [
            (3600, 7200, None, {}),  # it has not begun
            (-7200, -3600, None, {}),  # it is over
            (-600, 3600, ["host-q"], {}),  # of other hosts
            (-600, 3600, None, {"is_cancelled": True}),
        ],
    )
    def test_other_windows_are_none(self, began: float, ended: float, hosts: list[str] | None, values: dict[str, Any]) -> None:
        job = Job().lost_peer(range(8), 30)
        told = {"is_cancelled": False} | values
        job.add("planned_windows", "ics", name="w", hosts=hosts, started_at=at(began), ended_at=at(ended), **told)
        assert job.ask("planned_window").findings == ()

    def test_a_fault_that_is_recorded_stays_the_cause(self) -> None:
        job = window(Job().died(1, 20, -9, "SIGKILL").closed((0, 2, 3, 4, 5, 6, 7), 40), -600, 3600)
        assert job.only("planned_window").sign == "window_beside"
        assert judge(job.case()).verdict.ranks == (1,)

    def test_a_job_that_nobody_complains_of_is_not_said_to_have_ended(self) -> None:
        assert window(Job(), -600, 3600).ask("planned_window").findings == ()
        assert window(row(Job(), "COMPLETED", -60, 30), -600, 3600).ask("planned_window").findings == ()

    def test_a_local_window_without_a_zone_is_only_told(self) -> None:
        job = Job().lost_peer(range(8), 30)
        job.add("planned_windows", "ics", name="w", started_at_local=stamp(-600), ended_at_local=stamp(3600), is_cancelled=False)
        assert job.only("planned_window").sign == "window_not_placed"
        assert job.ask("planned_window").status == "clear"
        job.add("hosts", "facts", host="host-a", zone_offset_s=0.0)
        assert job.only("planned_window").sign == "in_window"

    @pytest.mark.parametrize(
        ("began", "sign"), [(0, "in_window"), (-600, "in_window"), (-7200, "window_not_placed"), (900, "window_not_placed")]
    )
    def test_a_local_stop_just_as_a_local_window_begins_is_of_it(self, began: float, sign: str) -> None:
        job = Job()
        job.add("log_events", "agent", signature="elastic_agent_signal", logged_at_local=stamp(19)[5:], message="Received 15 death signal")
        job.add("planned_windows", "ics", name="w", started_at_local=stamp(19 + began), ended_at_local=stamp(9000), is_cancelled=False)
        assert job.only("planned_window").sign == sign

    @pytest.mark.parametrize(("began", "signs"), [(0, ["in_window"]), (-600, ["in_window"]), (-1200, []), (-7200, [])])
    def test_a_controller_may_run_in_utc_beside_hosts_of_another_zone(self, began: float, signs: list[str]) -> None:
        job = (
            Job()
            .agent("elastic_agent_signal", 19, "Received 15 death signal")
            .add("hosts", "facts", host="host-a", zone_offset_s=-25_200.0)
        )
        job.add("planned_windows", "scontrol", name="w", started_at_local=stamp(19 + began), ended_at_local=stamp(9000), is_cancelled=False)
        assert [f.sign for f in job.ask("planned_window").findings] == signs
