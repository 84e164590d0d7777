"""The questions about logs and kernel records: first_exception, process_death, planned_stop, fatal_xid. Small tables, one story each."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from _house import FOLDERS, ROOT, memory_case, read_folder, truth

from rca.belonging import foreign_logs
from rca.case import MemoryCase
from rca.judge import judge
from rca.questions import ask
from rca.tables import TABLES
from rca.types import Finding, Outcome
from rca.weighing import support

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
QUESTIONS = ("first_exception", "process_death", "planned_stop", "fatal_xid", "quiet_log")
HOSTS = ("host-a", "host-b", "host-c", "host-d")
Rows = list[dict[str, Any]]


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


class Job:
    """Eight ranks on four hosts that step every second until something happens; rank r is process 100 + r."""

    def __init__(self, *, steps: int = 20) -> None:
        self.rows: dict[str, Rows] = {name: [] for name in TABLES}
        for rank in range(8):
            host = HOSTS[rank // 2]
            self.add("ranks", "map", rank=rank, host=host, local_rank=rank % 2, gpu=str(rank % 2))
            self.add("ranks", f"log-{rank}", rank=rank, host=host, pid=100 + rank)
            self.log(rank, "worker_started", -5)
        for step in range(steps):
            self.add("progress", "log-0", rank=0, step=step, ended_at=at(step))

    def add(self, table: str, evidence: str, **values: Any) -> Job:
        line = 1 + sum(row["evidence_id"] == evidence for row in self.rows[table])
        place = {"log_events": 1000, "scheduler_events": 1000}.get(table, 0)
        both = sum(row["evidence_id"] == evidence for t in ("log_events", "scheduler_events") for row in self.rows[t])
        self.rows[table].append({"evidence_id": evidence, "record": f"L{place + both if place else line}", **values})
        return self

    def log(self, rank: int, signature: str, seconds: float | None, text: str = "", **values: Any) -> Job:
        """A line of a rank's own log."""
        moment = at(seconds) if seconds is not None else None
        host = HOSTS[rank // 2]
        return self.add("log_events", f"log-{rank}", rank=rank, host=host, signature=signature, logged_at=moment, message=text, **values)

    def agent(self, signature: str, seconds: float, text: str = "", **values: Any) -> Job:
        """A line of the launcher's log."""
        return self.add("log_events", "agent", signature=signature, logged_at=at(seconds), message=text, **values)

    def died(self, rank: int, seconds: float, code: int, signal: str) -> Job:
        return self.agent(
            "process_signal", seconds, f"exitcode {code}", rank=rank, pid=100 + rank, host=HOSTS[rank // 2], exit_code=code, signal=signal
        )

    def closed(self, ranks: Iterable[int], seconds: float) -> Job:
        """The launcher stops these workers."""
        for rank in ranks:
            self.agent("elastic_sigterm_victim", seconds, pid=100 + rank)
            self.died(rank, seconds + 0.1, -15, "SIGTERM")
        return self

    def lost_peer(self, ranks: Iterable[int], seconds: float | None) -> Job:
        """An exception that communication raised."""
        for rank in ranks:
            frames = [
                "all_reduce (/venv/torch/distributed/distributed_c10d.py:3252)",
                "wrapper (/venv/torch/distributed/c10d_logger.py:83)",
            ]
            text = "Connection closed by peer [192.0.2.1]:1234"
            self.log(rank, "python_traceback", seconds, text, exception="RuntimeError", frames=frames)
        return self

    def kernel(self, host: str | None, kind: str, seconds: float | None, **values: Any) -> Job:
        moment = at(seconds) if seconds is not None else None
        return self.add("kernel_events", f"dmesg-{host}", host=host, kind=kind, logged_at=moment, message=kind, num_folded=1, **values)

    def case(self, **without: bool) -> MemoryCase:
        names = {row["evidence_id"] for rows in self.rows.values() for row in rows}
        evidence = [{"evidence_id": name, "path": name, "is_stale": False} for name in sorted(names)]
        frames = {t: TABLES[t].rows([] if t in without else rows) for t, rows in self.rows.items()}
        foreign = sorted(foreign_logs(MemoryCase(frames)))  # as the case does when it is built
        kept = {
            t: frame.filter(~pl.col("evidence_id").is_in(foreign)) if "evidence_id" in frame.columns else frame
            for t, frame in frames.items()
        }
        return MemoryCase({**kept, "evidence": TABLES["evidence"].rows(evidence)})

    def ask(self, question: str, **without: bool) -> Outcome:
        outcome = ask(self.case(**without), question)
        assert outcome.status != "failed", outcome.why
        return outcome

    def only(self, question: str, **without: bool) -> Finding:
        (finding,) = self.ask(question, **without).findings
        assert finding.cites
        return finding

    def quiet(self, *questions: str) -> None:
        for question in questions:
            assert self.ask(question).findings == (), question


def killed() -> Job:
    """Rank 1 is killed; its neighbours lose their connections, first in the files; the launcher closes the rest later."""
    return Job().lost_peer((0, 3, 5), 19.5).died(1, 20, -9, "SIGKILL").closed((0, 2, 3, 4, 5, 6, 7), 40)


def announced(state: str = "draining", **values: Any) -> Job:
    """An operator drains the job while it makes progress."""
    job = Job().add("scheduler_events", "agent", state=state, reason="maintenance tonight", is_planned=True, changed_at=at(19.5), **values)
    return job.agent("elastic_agent_signal", 19.6, "Received 15 death signal").closed(range(8), 19.6).lost_peer((2, 6), 19.7)


class TestProcessDeath:
    @pytest.mark.parametrize(("host", "pid", "module"), [("host-b", 103, "libnccl.so.2"), ("host-c", 103, None), ("host-b", 999, None)])
    def test_a_crash_names_the_library_that_the_kernel_of_its_host_names(self, host: str, pid: int, module: str | None) -> None:
        job = Job().died(3, 20, -11, "SIGSEGV").kernel(host, "segfault", 20, pid=pid)
        job.rows["kernel_events"][-1]["message"] = f"python[{pid}]: segfault at 8 ip 0 sp 0 error 4 in libnccl.so.2[7f00+d3d3000]"
        found = job.only("process_death")
        assert (found.sign, found.ranks, found.numbers["module"]) == ("crashed", (3,), module)
        assert any(cite.table == "kernel_events" for cite in found.cites) == (module is not None)

    def test_a_signal_accuses_its_rank_and_explains_the_rest(self) -> None:
        found = killed().only("process_death")
        assert (found.sign, found.ranks, found.hosts) == ("killed", (1,), ("host-a",))
        assert found.explains == (0, 2, 3, 4, 5, 6, 7)
        killed().quiet("first_exception")

    def test_the_kernels_record_of_this_very_process_says_why(self) -> None:
        found = killed().kernel("host-a", "oom", 19.9, pid=101).only("process_death")
        assert (found.sign, found.ranks) == ("killed_for_memory", (1,))
        assert {cite.table for cite in found.cites} == {"kernel_events", "log_events"}

    def test_the_record_alone_is_enough(self) -> None:
        found = Job().kernel("host-a", "oom", 19.9, pid=101).only("process_death")
        assert (found.sign, found.ranks) == ("killed_for_memory", (1,))
        assert found.says.startswith("rank 1 on host-a died")

    @pytest.mark.parametrize(("host", "pid"), [("host-b", 101), ("host-x", 101), ("host-x", 4711)])
    def test_a_process_of_another_host_is_another_process(self, host: str, pid: int) -> None:
        job = killed().add("host_logs", "dmesg", host="host-a", num_lines=9)
        assert job.kernel(host, "oom", 19.9, pid=pid).only("process_death").sign == "killed"

    @pytest.mark.parametrize(("seconds", "sign"), [(19.9, "killed_for_memory"), (-3600, "killed")])
    def test_a_kernel_may_call_its_host_by_another_name(self, seconds: float, sign: str) -> None:
        found = killed().kernel("ip-10-0-0-7", "oom", seconds, pid=101).only("process_death")
        assert (found.sign, found.ranks, found.hosts) == (sign, (1,), ("host-a",))

    def test_a_loader_worker_is_known_by_the_rank_that_misses_it(self) -> None:
        job = Job().log(
            5, "dataloader_worker_killed", 20, "DataLoader worker (pid 777) is killed by signal: Killed", pid=777, signal="SIGKILL"
        )
        assert job.only("process_death").sign == "loader_killed"
        found = job.kernel("host-c", "oom", 19.9, pid=777).only("process_death")
        assert (found.sign, found.ranks) == ("killed_for_memory", (5,))
        assert found.says.startswith("a data-loader worker (pid 777) of rank 5 (pid 105) on host-c died"), found.says

    def test_a_memory_kill_that_no_rank_is_tied_to_accuses_nobody(self) -> None:
        found = Job().kernel("host-a", "oom", 19.9, pid=4711).only("process_death")
        assert (found.sign, found.ranks, found.hosts) == ("memory_killed_on_host", (), ("host-a",))

    @pytest.mark.parametrize("process", ["python", "python3.11", "pt_main_thread", "pt_data_worker", "ray::Trainer", "(python)", None])
    def test_a_name_that_a_trainer_can_have_ties_its_process(self, process: str | None) -> None:
        found = Job().kernel("host-a", "oom", 19.9, pid=101, process=process).only("process_death")
        assert (found.sign, found.ranks) == ("killed_for_memory", (1,))

    @pytest.mark.parametrize("process", ["firefox", "node_exporter", "java", "Xorg"])
    def test_a_name_that_no_trainer_has_is_no_rank_whatever_its_number(self, process: str) -> None:
        job = Job().kernel("host-a", "oom", 19.9, pid=101, process=process)
        found = job.only("process_death")
        assert (found.sign, found.ranks, found.hosts) == ("other_killed_on_host", (), ())  # memory was short, and that is all
        assert judge(job.case()).verdict.cause == "unknown"

    def test_a_name_that_the_driver_gives_the_same_process_is_its_own(self) -> None:
        job = (
            Job()
            .kernel("host-a", "xid", 1, pid=101, process="my-model", code=43)
            .kernel("host-a", "oom", 19.9, pid=101, process="my-model")
        )
        assert job.only("process_death").ranks == (1,)

    def test_a_log_that_tells_the_same_end_settles_whose_process_it_was(self) -> None:
        found = killed().kernel("host-a", "oom", 19.9, pid=101, process="my-model").only("process_death")
        assert (found.sign, found.ranks) == ("killed_for_memory", (1,))

    def seen_after_the_kill(self, what: str, ranks: Iterable[int], seconds: float = 40) -> Job:
        job = Job().kernel("host-a", "oom", 19.9, pid=101, process="python")
        for rank in ranks:
            if what == "stack":
                job.add("stacks", f"st-{rank}", rank=rank, pid=100 + rank, role="trainer", dump_status="ok", sampled_at=at(seconds))
            elif what == "step":
                job.add("steps", f"t-{rank}", rank=rank, step=99, started_at=at(seconds), step_s=1.0)
            else:
                job.add("dumps", f"fr-{rank}", rank=rank, first_at=at(0), last_at=at(seconds))
        return job

    @pytest.mark.parametrize("what", ["stack", "step", "call"])
    def test_who_is_seen_alive_afterwards_was_not_killed(self, what: str) -> None:
        assert self.seen_after_the_kill(what, (0, 1)).ask("process_death").findings == ()
        found = self.seen_after_the_kill(what, (1,)).only("process_death")
        assert (found.sign, found.ranks) == ("memory_killed_on_host", ())

    def test_last_words_within_moments_of_the_kill_are_no_life(self) -> None:
        assert self.seen_after_the_kill("step", (0, 1), 20.5).only("process_death").ranks == (1,)

    def test_the_life_of_another_process_of_the_rank_is_not_its_own(self) -> None:
        job = Job().kernel("host-a", "oom", 19.9, pid=101, process="python")
        job.add("stacks", "st-1", rank=1, pid=4711, role="dataloader_worker", dump_status="ok", sampled_at=at(40))
        assert job.only("process_death").ranks == (1,)

    def test_one_of_last_week_is_none_of_this_job(self) -> None:
        assert Job().kernel("host-a", "oom", -7 * 86400, pid=4711).ask("process_death").findings == ()

    def test_an_abort_is_what_watchdogs_do(self) -> None:
        assert Job().died(2, 20, -6, "SIGABRT").closed((0, 1, 3, 4, 5, 6, 7), 40).ask("process_death").status == "blind"

    def test_who_was_closed_by_the_launcher_is_a_victim_whatever_killed_it(self) -> None:
        job = Job().lost_peer((1,), 19).closed((0, 1, 2), 20).died(2, 50, -9, "SIGKILL")
        assert job.ask("process_death").status == "blind"

    def test_two_deaths_that_no_clock_orders_accuse_nobody(self) -> None:
        job = Job()
        for rank, seconds in ((1, 20.0), (6, 20.5)):
            job.add(
                "log_events",
                f"agent-{rank}",
                rank=rank,
                pid=100 + rank,
                host=HOSTS[rank // 2],
                signature="process_signal",
                exit_code=-9,
                signal="SIGKILL",
                logged_at=at(seconds),
                message="killed",
            )
        found = job.only("process_death")
        assert (found.ranks, found.numbers["candidates"]) == ((), [1, 6])

    def test_a_lost_host_takes_all_its_ranks(self) -> None:
        found = (
            Job()
            .add("scheduler_events", "slurm", state="node_failure", host="host-c", is_planned=False, changed_at=at(20))
            .only("process_death")
        )
        assert (found.sign, found.ranks) == ("host_lost", (4, 5))

    def captured(self, gone: Iterable[int]) -> Job:
        """All but these ranks left a dump and a stack; two of them had lost their connection."""
        job = Job().lost_peer((6, 7), 20)
        for rank in set(range(8)) - set(gone):
            job.add("dumps", f"fr-{rank}", rank=rank, first_at=at(0), last_at=at(20))
            job.add("stacks", f"stack-{rank}", rank=rank, pid=100 + rank, role="trainer", dump_status="ok")
        return job

    @pytest.mark.parametrize(("gone", "sign"), [((2,), "rank_gone"), ((2, 3), "host_gone")])
    def test_who_left_nothing_when_the_others_were_captured_is_gone(self, gone: tuple[int, ...], sign: str) -> None:
        found = self.captured(gone).only("process_death")
        assert (found.sign, found.ranks) == (sign, gone)

    @pytest.mark.parametrize(("gone", "sign"), [((2, 3), "host_silent"), ((2,), None)])
    def test_all_of_a_host_that_leave_nothing_are_named_where_others_only_ran_out_of_time(
        self, gone: tuple[int, ...], sign: str | None
    ) -> None:
        """One rank that leaves nothing may hang as well."""
        job = self.captured(gone)
        job.rows["log_events"] = [row for row in job.rows["log_events"] if row["signature"] == "worker_started"]
        for rank in set(range(8)) - set(gone):
            job.log(rank, "nccl_watchdog_timeout", 620)
        found = [(f.sign, f.ranks) for f in job.ask("process_death").findings]
        assert found == ([(sign, gone)] if sign else [])

    @pytest.mark.parametrize("gone", [(), (2, 4), (2, 3, 4), (6,)])
    def test_no_roll_call_that_does_not_fit_one_rank_or_host(self, gone: tuple[int, ...]) -> None:
        """Nobody; ranks of two hosts; more than a host; one that itself complained."""
        assert self.captured(gone).ask("process_death").status == "blind"

    @pytest.mark.parametrize("what", ["torn", "lost"])
    def test_how_one_ended_whose_log_was_not_read_to_its_end_is_open(self, what: str) -> None:
        """The same roll-call that makes a rank gone when its whole log was read."""
        job = self.captured((2,))
        if what == "torn":
            job.log(2, "log_breaks_off", None, "the log breaks off here")
        else:
            job.rows["log_events"] = [row for row in job.rows["log_events"] if row["evidence_id"] != "log-2"]
        found = job.only("process_death")
        assert (found.sign, found.ranks, found.numbers["candidates"]) == ("end_unread", (), [2])
        assert support([found], []).keys() == {("user_exception", ())}

    def test_clear_only_when_every_end_was_seen_and_good(self) -> None:
        job = Job()
        assert job.ask("process_death").status == "blind"
        for rank in range(8):
            assert job.ask("process_death").status == "blind"
            job.agent("worker_finished", 21, rank=rank, pid=100 + rank)
        assert job.ask("process_death").status == "clear"

    @pytest.mark.parametrize(("starts", "status"), [(1, "clear"), (2, "blind")])
    def test_a_launcher_that_starts_workers_anew_has_not_finished(self, starts: int, status: str) -> None:
        job = Job()
        for host in HOSTS:
            text = "[default] starting workers for entrypoint: python"
            job.add("log_events", f"agent-{host}", signature="worker_started", logged_at=at(-6), message=text, num_folded=starts)
            text = "[default] worker group successfully finished."
            job.add("log_events", f"agent-{host}", signature="worker_finished", logged_at=at(21), message=text, num_folded=1)
        assert job.ask("process_death").status == status

    @pytest.mark.parametrize(("silent", "status"), [((), "clear"), ((3,), "blind")])
    def test_clear_when_the_launchers_of_all_hosts_say_so(self, silent: tuple[int, ...], status: str) -> None:
        job = Job()
        for place, host in enumerate(HOSTS):
            if place not in silent:
                text = "[default] worker group successfully finished."
                job.add("log_events", f"agent-{host}", signature="worker_finished", logged_at=at(21), message=text)
        assert job.ask("process_death").status == status
        assert ("the job came to its end" in judge(job.case()).verdict.summary) == (status == "clear")


class TestPlannedStop:
    def test_an_announcement_while_the_job_moves_explains_everything(self) -> None:
        found = announced().only("planned_stop")
        assert (found.sign, found.ranks, found.explains) == ("announced_stop", (), tuple(range(8)))
        announced().quiet("process_death", "first_exception")

    def test_a_preemption_is_one(self) -> None:
        assert announced("preempted").only("planned_stop").sign == "preempted"

    def test_after_a_death_it_only_cleans_up(self) -> None:
        job = killed().add("scheduler_events", "agent", state="cancelled", reason="scancel", is_planned=True, changed_at=at(39.9))
        assert job.only("planned_stop").sign == "stop_after_fault"
        assert job.only("process_death").ranks == (1,)

    def test_after_a_stall_it_only_cleans_up(self) -> None:
        job = Job().add("scheduler_events", "agent", state="cancelled", reason="it hangs", is_planned=True, changed_at=at(60))
        assert job.closed(range(8), 60.1).only("planned_stop").sign == "stop_after_fault"

    @pytest.mark.parametrize(
        ("idle_s", "sign"),
        [
            (1, "announced_stop"),
            (80, "stop_after_fault"),
            (3610, "stall_or_zone"),  # an hour and a step: it stood still, or two zones
            (3900, "stop_after_fault"),
            (-3590, "announced_only"),
        ],
    )
    def test_stamps_without_a_zone_tell_how_long_it_had_stood(self, idle_s: float, sign: str) -> None:
        job = Job(steps=0)
        for step in range(20):
            job.add("progress", "log-0", rank=0, step=step, ended_at_local=f"{at(10 * step):%Y-%m-%dT%H:%M:%S}")
        told = f"{at(190 + idle_s):%m-%dT%H:%M:%S}"
        job.rows["log_events"] = [row | {"logged_at": None} for row in job.rows["log_events"]]
        job.add("scheduler_events", "agent", state="cancelled", reason="scancel", is_planned=True, changed_at_local=told)
        job.add("log_events", "agent", signature="elastic_agent_signal", message="Received 15 death signal", logged_at_local=told)
        assert job.only("planned_stop").sign == sign

    @pytest.mark.parametrize(("is_sampled", "sign"), [(False, "announced_stop"), (True, "stall_or_zone")])
    def test_a_job_that_was_sampled_may_have_stood_still_for_whole_hours(self, *, is_sampled: bool, sign: str) -> None:
        """A scheduler's local stamp two hours behind the last step may be of another zone, or of two hours of a hang."""
        job = Job()
        told = f"{at(7200 + 19):%Y-%m-%dT%H:%M:%S}"
        job.add("log_events", "slurm", signature="slurm_cancelled", message="*** STEP 7.0 ON a CANCELLED ***", logged_at_local=told)
        if is_sampled:
            job.add("dumps", "recorder", rank=1)
        assert job.only("planned_stop").sign == sign

    @pytest.mark.parametrize(
        ("ends", "sign"),
        [((-7, 1), "announced_stop"), ((-7,), "announced_only"), ((-7, 900), "announced_only"), ((-900,), "stall_or_zone")],
    )
    def test_of_few_steps_only_one_that_ended_soon_after_the_stop_shows_that_the_job_moved(self, ends: tuple[int, ...], sign: str) -> None:
        job = Job(steps=0)
        for step, end in enumerate(ends):
            job.add("progress", "log-0", rank=0, step=10 * step, ended_at_local=f"{at(190 + end):%Y-%m-%dT%H:%M:%S}")
        told = f"{at(190):%m-%dT%H:%M:%S}"
        job.rows["log_events"] = [row | {"logged_at": None} for row in job.rows["log_events"]]
        job.add("scheduler_events", "agent", state="draining", reason="drain", is_planned=True, changed_at_local=told)
        job.add("log_events", "agent", signature="elastic_agent_signal", message="Received 15 death signal", logged_at_local=told)
        assert job.only("planned_stop").sign == sign

    def test_a_local_stamp_is_held_against_those_of_steps_that_other_lines_date(self) -> None:
        job = Job(steps=0)
        for step in range(20):
            moment = at(10 * step)
            job.add("progress", "log-0", rank=0, step=step, ended_at=moment, ended_at_local=f"{moment:%Y-%m-%dT%H:%M:%S}")
        job.add(
            "scheduler_events", "agent", state="cancelled", reason="scancel", is_planned=True, changed_at_local=f"{at(990):%m-%dT%H:%M:%S}"
        )
        assert job.only("planned_stop").sign == "stop_after_fault"

    @pytest.mark.parametrize(("idle_s", "sign"), [(1, "announced_stop"), (80, "stop_after_fault")])
    def test_a_dated_stop_is_held_against_steps_without_a_zone_by_its_own_local_stamp(self, idle_s: float, sign: str) -> None:
        job = Job(steps=0)
        for step in range(20):
            job.add("progress", "log-0", rank=0, step=step, ended_at_local=f"{at(10 * step):%Y-%m-%dT%H:%M:%S}")
        told = at(190 + idle_s)
        stamps = {"logged_at": told, "logged_at_local": f"{told:%m-%dT%H:%M:%S}"}
        job.add("scheduler_events", "agent", state="cancelled", reason="scancel", is_planned=True)
        job.add("log_events", "agent", signature="elastic_agent_signal", message="Received 15 death signal", **stamps)
        assert job.only("planned_stop").sign == sign

    def test_dated_steps_and_a_stop_without_a_stamp_show_no_motion(self) -> None:
        job = Job().add("scheduler_events", "agent", state="cancelled", reason="scancel", is_planned=True)
        assert job.only("planned_stop").sign == "announced_only"

    def test_a_pause_that_was_usual_before_is_no_stall(self) -> None:
        job = Job(steps=0)
        for step in range(20):
            job.add("progress", "log-0", rank=0, step=step, ended_at=at(step + (30 if step > 9 else 0)))
        job.add("scheduler_events", "agent", state="time_limit", reason="time limit", is_planned=True, changed_at=at(85)).closed(
            range(8), 85.1
        )
        assert job.only("planned_stop").sign == "announced_stop"

    def test_after_a_time_out_it_only_cleans_up(self) -> None:
        job = announced().log(3, "nccl_watchdog_timeout", 19.0)
        assert job.only("planned_stop").sign == "stop_after_fault"

    def test_a_bare_signal_says_little(self) -> None:
        job = Job().agent("elastic_agent_signal", 19.5, "Received 15 death signal").closed(range(8), 19.6)
        assert job.only("planned_stop").sign == "bare_stop"

    def test_without_a_trace_of_progress_it_counts_for_less(self) -> None:
        assert announced().only("planned_stop", progress=True).sign == "announced_only"

    def test_a_drain_of_another_host_or_one_taken_back_is_none(self) -> None:
        assert announced(host="host-z").only("planned_stop").sign == "bare_stop"
        job = Job().add("scheduler_events", "agent", state="draining", is_planned=True, changed_at=at(5))
        assert job.add("scheduler_events", "agent", state="resumed", changed_at=at(6)).ask("planned_stop").findings == ()

    def test_a_job_that_was_through_was_not_stopped(self) -> None:
        job = Job().add("scheduler_events", "agent", state="draining", is_planned=True, changed_at=at(5))
        for rank in range(8):
            job.agent("worker_finished", 21, rank=rank, pid=100 + rank)
        assert job.ask("planned_stop").status == "clear"


class TestFirstException:
    def raised(self, rank: int = 3, **values: Any) -> Job:
        """A rank raises; its peers lose it, earlier by the files' clocks."""
        line = {"exception": "ValueError", "frames": ["forward (model.py:10)"], "text": "bad shape", **values}
        return Job().lost_peer((0, 1, 2), 19.9).log(rank, "python_traceback", 20, **line).lost_peer((4, 5, 6, 7), 20.1)

    def test_the_only_exception_of_its_own_accuses_its_rank(self) -> None:
        found = self.raised().only("first_exception")
        assert (found.sign, found.ranks, found.hosts) == ("raised", (3,), ("host-b",))
        assert found.explains == (0, 1, 2, 4, 5, 6, 7)
        assert found.numbers["failed_at"] == at(20).isoformat()

    def test_a_line_of_the_kernel_is_no_exception_of_a_program(self) -> None:
        said = {"signature": "storage_timeout", "logged_at": at(20), "message": "Lustre: Request sent has timed out"}
        job = Job().add("log_events", "dmesg-host-b", **said)
        assert [f.sign for f in job.ask("first_exception").findings] == ["storage_error"]
        record = job.rows["log_events"][-1]["record"]
        job.rows["kernel_events"].append(
            {
                "evidence_id": "dmesg-host-b",
                "record": record,
                "host": "host-b",
                "kind": "storage_lustre",
                "logged_at": at(20),
                "num_folded": 1,
            }
        )
        assert job.ask("first_exception").findings == ()

    @pytest.mark.parametrize(
        ("steps_to", "next_at", "ended_at", "failed_at", "failed_after"),
        [
            (None, None, None, None, -5),  # a stamp far above is that of another moment
            (600, None, None, None, 600),  # steps are dated lines too
            (600, 630, None, 600, None),
            (600, 1200, None, None, 600),
            (600, 1200, 604, 604, None),  # the launcher saw the very rank end
            (600, 1200, 500, None, 600),  # an earlier end of it than its last step is of another launch
        ],
    )
    def test_a_traceback_without_a_stamp_is_dated_by_what_stands_next_to_it(
        self, steps_to: int | None, next_at: int | None, ended_at: int | None, failed_at: int | None, failed_after: int | None
    ) -> None:
        job = Job().log(3, "python_traceback", None, "bad shape", exception="ValueError", frames=["forward (model.py:10)"])
        if steps_to is not None:
            for second in (steps_to - 300, steps_to):
                job.add("progress", "log-3", rank=3, step=second, ended_at=at(second))
        if next_at is not None:
            job.log(3, "process_signal", next_at, "aborted", signal="SIGABRT")
        if ended_at is not None:
            job.agent("elastic_root_cause", ended_at, rank=3, pid=103, host="host-b", exit_code=1)
        numbers = next(f.numbers for f in job.ask("first_exception").findings if f.ranks == (3,))
        told = (numbers["failed_at"], numbers.get("failed_after"))
        assert told == tuple(None if second is None else at(second).isoformat() for second in (failed_at, failed_after))

    @pytest.mark.parametrize("text", ["CUDA error: too big\nsee the manual", "RuntimeError: CUDA error: too big\nsee the manual"])
    def test_an_exception_is_cited_as_the_line_that_names_it(self, text: str) -> None:
        found = Job().log(3, "python_traceback", 20, text, exception="RuntimeError").only("first_exception")
        assert found.cites[0].text == "RuntimeError: CUDA error: too big"
        assert "(RuntimeError: CUDA error: too big\nsee" in found.says

    @pytest.mark.parametrize(("ranks", "signature", "logs", "sign"), [
        ((4, 5), "cuda_launch_failure", (), "gpus_of_host"),
        ((4, 6), "cuda_launch_failure", (), "unspecified_failure"),
        ((4,), "cuda_launch_failure", ("host-c",), "unspecified_failure"),
        ((4,), "cuda_contained", (), "gpu_error"),
        ((4,), "cuda_illegal_access", ("host-a",), "illegal_access_alone"),
        ((4,), "cuda_illegal_access", ("host-c",), "illegal_access"),
    ])  # fmt: skip
    def test_what_the_gpus_of_one_host_share_and_what_its_kernel_would_know(
        self, ranks: tuple[int, ...], signature: str, logs: tuple[str, ...], sign: str
    ) -> None:
        job = Job()
        for rank in ranks:
            job.log(rank, signature, 20)
        for host in logs:
            job.add("host_logs", f"dmesg-{host}", host=host, num_lines=9)
        found = job.only("first_exception")
        assert found.sign == sign
        assert ("none was read" in found.says) is (sign == "unspecified_failure" and not logs)

    @pytest.mark.parametrize(
        ("signature", "values", "sign"),
        [
            ("cuda_ecc", {}, "gpu_memory_error"),
            ("cuda_contained", {}, "gpu_error"),
            ("cuda_unknown_error", {}, "unspecified_failure"),
            ("cuda_illegal_access", {}, "illegal_access_alone"),  # no log of its kernel
            ("cuda_oom", {"exception": "OutOfMemoryError"}, "gpu_memory_used_up"),
            ("host_out_of_memory", {"exception": "MemoryError"}, "host_memory_used_up"),
            ("storage_timeout", {"exception": "OSError"}, "storage_error"),
            ("shm_full", {}, "storage_error"),
            ("loss_nan", {"exception": "FloatingPointError"}, "not_finite"),
            ("python_traceback", {"exception": "ValueError", "sample_ids": ["doc-17"]}, "bad_sample"),
            ("python_traceback", {"exception": "UnicodeDecodeError", "frames": ["__getitem__ (data/dataset.py:5)"]}, "unreadable_data"),
            ("python_traceback", {"exception": "AttributeError", "frames": ["__getitem__ (data/dataset.py:5)"]}, "in_data_code"),
            ("python_traceback", {"exception": "RuntimeError", "text": "DataLoader timed out after 120 seconds"}, "loader_timed_out"),
            (
                "python_traceback",
                {
                    "exception": "RuntimeError",
                    "text": "unexpected EOF, the file may be corrupted",
                    "frames": ["load (torch/serialization.py:1)"],
                },
                "checkpoint_unreadable",
            ),
            (
                "nccl_socket_closed",
                {"exception": "ConnectionResetError", "frames": ["read (/venv/botocore/response.py:9)"]},
                "storage_error",
            ),
        ],
    )
    def test_what_it_says_tells_the_kind(self, signature: str, values: dict[str, Any], sign: str) -> None:
        found = Job().log(3, signature, 20, **values).lost_peer((0, 1, 2), 20.1).only("first_exception")
        assert (found.sign, found.ranks) == (sign, (3,))

    @pytest.mark.parametrize(
        "values",
        [
            {"exception": "RuntimeError", "text": "Timed out waiting 18000ms for recv operation to complete"},
            {"exception": "DistBackendError", "text": "NCCL error"},
            {"exception": "ChildFailedError", "text": "train.py FAILED"},
            {"exception": "SignalException", "text": "Process 12 got signal: 15"},
            {"exception": "RuntimeError", "text": "anything", "frames": ["wait (/venv/torch/distributed/distributed_c10d.py:3)"]},
        ],
    )
    def test_what_only_follows_is_never_first(self, values: dict[str, Any]) -> None:
        Job().log(3, "python_traceback", 20, **values).quiet("first_exception", "process_death")

    def test_watchdogs_and_closed_connections_are_never_first(self) -> None:
        job = Job()
        for rank, signature in enumerate(("nccl_watchdog_timeout", "nccl_heartbeat_timeout", "nccl_socket_closed", "tcpstore_broken")):
            job.log(rank, signature, 20)
        job.quiet("first_exception", "process_death")

    def test_a_sample_is_named_in_the_answer(self) -> None:
        found = self.raised(sample_ids=["doc-17"], step=19).only("first_exception")
        assert (found.numbers["sample_ids"], found.numbers["step"]) == (["doc-17"], 19)

    def test_step_and_time_come_from_what_surrounds_a_bare_traceback(self) -> None:
        job = Job().log(3, "worker_started", 12).log(3, "python_traceback", None, exception="KeyError").lost_peer((0,), 20)
        for step in range(7):
            job.add("steps", "t-3", rank=3, step=step, started_at=at(step), step_s=1.0)
        found = job.only("first_exception")
        told = tuple(found.numbers[name] for name in ("step", "failed_at", "failed_after"))
        assert told == (7, None, at(12).isoformat()), "a start is no stamp of a traceback: it only tells after what it was"

    def test_ranks_that_read_the_same_sample_fail_together(self) -> None:
        job = self.raised(2, sample_ids=["doc-17"]).log(4, "python_traceback", 20.01, exception="ValueError", sample_ids=["doc-17"])
        assert job.only("first_exception").ranks == (2, 4)

    def caught(self, seconds: float = 10, **values: Any) -> Job:
        """Rank 0 logs an exception in the middle of its steps; nobody else complains."""
        line = {"exception": "ValueError", "frames": ["log (metrics.py:10)"], "text": "cannot send metrics", **values}
        return Job().log(0, "python_traceback", seconds, **line)

    def test_an_exception_that_the_rank_outlived_is_mentioned_and_accuses_nobody(self) -> None:
        found = self.caught().only("first_exception")
        assert (found.sign, found.ranks, found.numbers) == ("outlived", (), {"logged_by": [0]})
        assert support([found], []) == {}
        self.caught().quiet("process_death")

    @pytest.mark.parametrize("step", [17, 18, 25])
    def test_one_near_the_end_of_its_steps_was_not_outlived(self, step: int) -> None:
        assert self.caught(step + 0.5).only("first_exception").sign == "raised"

    def test_steps_of_its_own_timings_show_that_it_went_on(self) -> None:
        job = Job(steps=0).log(3, "python_traceback", 10, exception="ValueError", text="x")
        for step in range(3):
            assert job.only("first_exception").sign == "raised"
            job.add("steps", "t-3", rank=3, step=step, started_at=at(9 + step), step_s=1.0)
        job.add("steps", "t-3", rank=3, step=3, started_at=at(12), step_s=1.0)
        assert job.only("first_exception").sign == "outlived"

    def test_a_rank_that_ended_well_outlived_whatever_it_logged(self) -> None:
        job = Job().log(3, "python_traceback", None, exception="ValueError", text="x").agent("worker_finished", 30, rank=3, pid=103)
        assert job.only("first_exception").sign == "outlived"

    @pytest.mark.parametrize(
        ("signature", "text", "sign"),
        [
            ("slurm_requeued", "slurmstepd: error: *** JOB 7 ON a CANCELLED AT 2026-01-01T12:00:25 DUE TO JOB REQUEUE ***", "raised"),
            ("slurm_preempted", "slurmstepd: error: *** STEP 7.0 ON a CANCELLED AT 2026-01-01T12:00:25 DUE TO PREEMPTION ***", "raised"),
            ("slurm_cancelled", "scancel: Signal 10 to batch job 7", "outlived"),  # a signal ends no launch
            (None, "", "outlived"),
        ],
    )
    @pytest.mark.parametrize("is_dated", [True, False])
    def test_steps_behind_the_end_of_a_launch_are_of_the_next(self, signature: str | None, text: str, sign: str, *, is_dated: bool) -> None:
        """One file of two launches: what was raised at the end of the first was outlived by nobody, and the requeue is its effect."""
        job = Job(steps=0)
        for step in range(40):
            at_ = {"ended_at": at(step if step < 20 else step + 300)} if is_dated else {}
            job.add("progress", "slurm", rank=0, step=step, **at_)
        raised = {"signature": "python_traceback", "exception": "IndexError", "message": "list index out of range"}
        rows: Rows = [{"record": "L21", "rank": 5, "logged_at": at(20) if is_dated else None, **raised}]
        if signature:
            rows.append({"record": "L22", "signature": signature, "message": text, "logged_at": at(25) if is_dated else None})
        for row in job.rows["progress"]:
            number = int(str(row["record"])[1:])
            row["record"] = f"L{number if number <= 20 else number + 2}"
        job.rows["log_events"] += [{"evidence_id": "slurm", **row} for row in rows]
        assert [f.sign for f in job.ask("first_exception").findings] == [sign]
        if sign == "raised":
            assert [f.sign for f in job.ask("planned_stop").findings] == ["stop_after_fault"]

    def test_a_job_may_go_on_without_the_rank_that_failed(self) -> None:
        job = Job(steps=400).log(3, "python_traceback", 10, exception="ValueError", text="x")
        assert job.only("first_exception").sign == "outlived"
        assert job.died(3, 11, 1, "").only("first_exception").ranks == (3,)

    def test_what_is_tried_again_has_not_failed_yet(self) -> None:
        retried = Job(steps=0).log(3, "python_traceback", 10, exception="OSError", text="short read", is_retried=True)
        assert retried.only("first_exception").sign == "outlived"
        last = retried.log(3, "python_traceback", 12, exception="OSError", text="short read")
        assert [f.ranks for f in last.ask("first_exception").findings if f.sign == "storage_error" or f.sign == "raised"] == [(3,)]

    @pytest.mark.parametrize(("last_call", "signs"), [(400, ["outlived"]), (19, ["raised"])])
    def test_an_exception_without_a_stamp_is_of_the_end_that_a_launcher_dates(self, last_call: float, signs: list[str]) -> None:
        """Where the rank calls on after that end, its process was one of an earlier launch."""
        job = Job(steps=0).log(3, "python_traceback", None, exception="ValueError", text="bad schedule").died(3, 20, 1, "")
        job.add("dumps", "fr-3", rank=3, first_at=at(0), last_at=at(last_call))
        assert [f.sign for f in job.ask("first_exception").findings] == signs

    def test_an_error_of_the_device_is_never_outlived(self) -> None:
        assert Job().log(0, "cuda_ecc", 10).only("first_exception").sign == "gpu_memory_error"

    def test_a_later_exception_of_a_rank_that_outlived_one_still_counts(self) -> None:
        job = self.caught().log(0, "python_traceback", 30, exception="KeyError", text="lr").lost_peer((1, 2), 30.1)
        first, mention = sorted(job.ask("first_exception").findings, key=lambda f: f.sign, reverse=True)
        assert (first.sign, first.ranks, first.numbers["exception"]) == ("raised", (0,), "KeyError")
        assert mention.sign == "outlived"

    def test_a_traceback_torn_before_its_last_line_says_who_and_not_what(self) -> None:
        job = self.raised(exception=None, text="").log(3, "log_breaks_off", None, "the log breaks off here")
        found = job.only("first_exception")
        assert (found.sign, found.ranks) == ("cut_off", (3,))
        told = support([found], [])
        assert max(told, key=lambda key: told[key][0]) == ("unknown", (3,))

    def test_a_torn_one_accuses_nobody_where_other_logs_were_not_read_either(self) -> None:
        job = self.raised(exception=None, text="").log(3, "log_breaks_off", None).log(6, "log_breaks_off", None)
        found = job.only("first_exception")
        assert (found.sign, found.ranks, found.numbers["candidates"]) == ("cut_off", (), [3])

    def test_an_exception_that_is_told_goes_before_a_torn_one(self) -> None:
        job = self.raised().log(0, "python_traceback", None, "", frames=["forward (model.py:10)"]).log(0, "log_breaks_off", None)
        told = {f.sign: f for f in job.ask("first_exception").findings}
        assert told["raised"].ranks == (3,)
        assert "(torn before it says what), and nothing dates it before the first fault, that of rank 3" in told["followed"].says

    def test_what_followed_the_first_fault_is_mentioned_and_counts_for_nothing(self) -> None:
        """Whoever searches the logs for exceptions meets it first."""
        job = Job().died(1, 20, -9, "SIGKILL").agent("elastic_failed", 21)
        job.add("log_events", "agent", rank=6, signature="python_traceback", exception="AttributeError", message="no item")
        found = job.only("first_exception")
        assert (found.sign, found.ranks, support([found], [])) == ("followed", (), {})
        assert "rank 6 raised an exception too (AttributeError: no item), after the first fault, that of rank 1" in found.says

    def test_those_that_raised_the_same_as_nearly_all_are_counted_though_their_launcher_closed_them(self) -> None:
        job = Job()
        for rank in range(8):
            job.log(rank, "python_traceback", None, exception="OSError", text="[Errno 116] Stale file handle")
        assert job.closed((7,), 30).only("first_exception").says.startswith("ranks 0, 1, 2, 3, 4, 5, 6, 7: ")

    def test_torn_logs_without_a_word_leave_the_question_open(self) -> None:
        assert Job().ask("first_exception").status == "clear"
        assert Job().log(3, "log_breaks_off", None).ask("first_exception").status == "blind"

    def test_the_same_on_all_ranks_accuses_nobody(self) -> None:
        job = Job()
        for rank in range(8):
            job.log(rank, "python_traceback", 20, exception="KeyError", text="lr")
        found = job.only("first_exception")
        assert (found.sign, found.ranks) == ("raised", ())

    def test_two_that_no_clock_orders_are_a_tie(self) -> None:
        job = self.raised(3).log(6, "cuda_oom", 20.5, exception="OutOfMemoryError")
        found = job.only("first_exception")
        assert (found.sign, found.ranks, found.numbers["candidates"]) == ("tie", (), [3, 6])

    def test_clocks_that_agree_closely_order_them(self) -> None:
        job = self.raised(3).log(6, "cuda_oom", 20.5, exception="OutOfMemoryError")
        for rank in range(8):
            for step in range(5):
                job.add("steps", f"t-{rank}", rank=rank, step=step, started_at=at(step), step_s=0.1)
        assert {f.sign: f.ranks for f in job.ask("first_exception").findings} == {"raised": (3,), "followed": ()}

    def test_an_exception_while_the_job_is_stopped_is_part_of_the_stop(self) -> None:
        announced().log(2, "python_traceback", 19.8, exception="ValueError", text="I/O operation on closed file").quiet("first_exception")

    def test_the_logs_of_another_job_accuse_nobody(self) -> None:
        job = Job()
        for rank in range(8):
            job.add("ranks", f"foreign-{rank}", rank=rank, host=f"host-{rank}x", pid=900 + rank)
            job.add("stacks", "stack", rank=rank, pid=100 + rank, role="trainer")
        job.add("log_events", "foreign-3", rank=3, host="host-3x", pid=903, signature="cuda_ecc", logged_at=at(15), message="ECC")
        job.quiet("first_exception", "process_death", "planned_stop")


class TestFatalXid:
    def covered(self) -> Job:
        """The kernel logs of all hosts were read."""
        job = Job()
        for host in HOSTS:
            job.add("host_logs", f"dmesg-{host}", host=host, first_at=at(-9000), last_at=at(60), num_lines=100)
        return job

    @pytest.mark.parametrize(
        ("callers", "number", "ranks"),
        [
            ((105, 999), 1, (5,)),  # the trainer and a monitor: rank 5 is the second of its host
            ((999, 105), 1, (5,)),
            ((105, 999), 0, ()),  # the driver calls it another GPU than that rank's
            ((104, 105), 1, ()),  # two ranks ask
            ((999, 998), 1, ()),  # monitors alone
        ],
    )
    def test_the_one_rank_that_calls_a_dead_gpu_is_its_user(self, callers: tuple[int, ...], number: int, ranks: tuple[int, ...]) -> None:
        job, text = self.covered(), f"Timeout after 6s of waiting for RPC response from GPU{number} GSP! Expected function 76"
        for second, pid in enumerate(callers):
            job.kernel("host-c", "xid", 18 + 45 * second, code=119, gpu="0000:3b:00", pid=pid)
            job.rows["kernel_events"][-1]["message"] = text
        found = job.only("fatal_xid")
        assert (found.sign, found.ranks, found.hosts) == ("gpu_record", ranks, ("host-c",))

    def test_a_processor_that_one_rank_keeps_and_tasks_that_hang_are_of_the_host(self) -> None:
        job = self.covered().kernel("host-c", "lockup", 19, pid=104, process="python")
        job.rows["kernel_events"][-1]["num_folded"] = 3
        for rank in (4, 5):
            job.kernel("host-c", "hung_task", 140, pid=100 + rank, process="python", unit="nvidia")
        assert job.only("fatal_xid").ranks == (4, 5)

    def test_clear_only_when_every_kernel_log_was_read(self) -> None:
        assert self.covered().ask("fatal_xid").status == "clear"
        assert Job().add("host_logs", "dmesg-host-a", host="host-a", num_lines=9).ask("fatal_xid").status == "blind"

    @pytest.mark.parametrize(
        ("codes", "sign"),
        [
            ((79, 45, 154), "gpu_record"),
            ((48, 63, 94, 45), "gpu_memory_record"),
            ((31, 48), "gpu_memory_record"),
            ((13, 43, 109), "application_record"),
            ((74, 45), "nvlink_record"),
            ((62, 45, 119, 154), "gpu_record"),
        ],
    )
    def test_the_root_of_the_chain_counts(self, codes: tuple[int, ...], sign: str) -> None:
        job = self.covered()
        for number, code in enumerate(codes):
            job.kernel("host-c", "xid", 15 + number, code=code, gpu="0000:3b:00", pid=105 if number == 0 else None)
        found = job.only("fatal_xid")
        assert (found.sign, found.ranks, found.hosts) == (sign, (5,), ("host-c",))

    @pytest.mark.parametrize("code", [43, 45, 154, 63])
    def test_what_only_follows_or_repairs_accuses_nobody(self, code: int) -> None:
        assert self.covered().kernel("host-c", "xid", 15, code=code, gpu="0000:3b:00").ask("fatal_xid").status == "clear"

    @pytest.mark.parametrize(
        ("host", "seconds", "values"),
        [
            ("host-c", -3600, {"kind": "xid", "code": 79}),
            ("host-c", 7200, {"kind": "xid", "code": 79}),
            ("host-z", 15, {"kind": "xid", "code": 79}),
            ("host-c", 15, {"kind": "aer", "severity": "corrected"}),
            ("host-c", 15, {"kind": "edac", "severity": "corrected"}),
            ("host-c", 15, {"kind": "nic", "recovery": "none"}),
            ("host-c", 15, {"kind": "xid", "code": 45, "caused_by": 79}),
        ],
    )
    def test_old_foreign_and_corrected_records_accuse_nobody(self, host: str, seconds: float, values: dict[str, Any]) -> None:
        assert self.covered().kernel(host, seconds=seconds, **values).ask("fatal_xid").status == "clear"

    def test_a_stamp_of_whole_seconds_is_outlived_only_by_the_next_second(self) -> None:
        """The last step ended at 19.4 s: a record of 19.2 s did not end the job, one that prints second 19 may have."""
        values = {"code": 79, "gpu": "0000:3b:00", "pid": 100}
        for local, seconds, status in (
            (None, 19.2, "clear"),
            (None, 19.6, "found"),
            ("12:00:19", None, "found"),
            ("12:00:17", None, "clear"),
        ):
            job = self.covered().add("hosts", "hosts", host="host-a", boot_at=at(-9e5), zone_offset_s=0.0)
            for n in range(1, 5):
                job.add("steps", "timings", rank=0, host="host-a", step=19 + n, started_at=at(19.4 - 0.05 * (5 - n)), step_s=0.05)
            stamp = f"2026-03-01T{local}" if local else None
            assert job.kernel("host-a", "xid", seconds, logged_at_local=stamp, **values).ask("fatal_xid").status == status, (local, seconds)

    def test_switch_errors_are_roots_by_their_number_and_followers_of_a_lost_gpu(self) -> None:
        job = self.covered().kernel("host-c", "sxid", 27, code=20034, gpu="0000:05:00", severity="fatal")
        assert job.only("fatal_xid").sign == "nvlink_record"
        assert job.kernel("host-c", "xid", 15, code=79, gpu="0000:3b:00", pid=105).only("fatal_xid").sign == "gpu_record"
        assert self.covered().kernel("host-c", "sxid", 15, code=22013, gpu="0000:05:00").ask("fatal_xid").status == "clear"

    def test_an_unknown_number_is_mentioned_and_never_ignored(self) -> None:
        assert self.covered().kernel("host-c", "xid", 15, code=9999, pid=105).only("fatal_xid").sign == "doubtful_record"

    def test_without_a_process_the_address_of_the_gpu_tells_the_rank(self) -> None:
        job = self.covered().add("ranks", "map", rank=4, host="host-c", gpu="00000000:3B:00.0")
        assert job.kernel("host-c", "xid", 15, code=79, gpu="0000:3b:00").only("fatal_xid").ranks == (4,)

    def addressed(self) -> Job:
        """The same, and a map gives the address of every rank's GPU."""
        job = self.covered()
        for rank in range(8):
            job.add("ranks", "slots", rank=rank, host=HOSTS[rank // 2], gpu=f"0000:{('3b', '86')[rank % 2]}:00")
        return job

    def test_gpus_and_processes_of_others_accuse_nobody(self) -> None:
        """A GPU that no rank uses, and a program that is no rank, where the job's own are known."""
        mine, other = "0000:3b:00", "0000:99:00"
        for sign, values in (
            ("lost_beside_record", {"code": 79, "gpu": other}),
            ("lost_beside_record", {"code": 79, "gpu": other, "pid": 777, "process": "python"}),
            ("bystander_record", {"code": 94, "gpu": other, "pid": 777, "process": "python"}),
            ("bystander_record", {"code": 48, "gpu": other}),
            ("bystander_record", {"code": 13, "gpu": mine, "pid": 777, "process": "Xorg"}),
            ("bystander_record", {"code": 31, "gpu": mine, "pid": 777, "process": "dcgmproftester"}),
            ("bystander_record", {"code": 94, "gpu": mine, "pid": 777, "process": "dcgmproftester"}),
        ):
            job = self.addressed().kernel("host-c", "xid", 15, **values)
            found = job.only("fatal_xid")
            assert (found.sign, found.ranks, found.hosts) == (sign, (), ()), values
            assert "no rank of the job uses" in found.says
            assert job.kernel("host-b", "xid", 16, code=79, gpu=mine).only("fatal_xid").ranks == (2,), values

    def test_a_gpu_of_the_job_counts_whoever_the_line_names(self) -> None:
        mine = "0000:3b:00"
        for sign, values in (
            ("gpu_record", {"code": 79, "pid": 777, "process": "Xorg"}),  # the device is gone, for everybody
            ("application_record", {"code": 31, "pid": 777, "process": "python"}),  # an id from outside a container may be the rank's
            ("application_record", {"code": 31, "pid": 104, "process": "a.out"}),
        ):
            found = self.addressed().kernel("host-c", "xid", 15, gpu=mine, **values).only("fatal_xid")
            assert (found.sign, found.ranks, found.hosts) == (sign, (4,), ("host-c",)), values

    @pytest.mark.parametrize("code", [13, 31, 43])
    @pytest.mark.parametrize("process", ["python", "a.out", None])
    @pytest.mark.parametrize("when", [None, 15.0, 19.5])
    def test_a_programs_fault_of_which_nobody_in_the_job_complains_accuses_nobody(
        self, code: int, process: str | None, when: float | None
    ) -> None:
        """No map tells whose GPU it is, and the job's own log goes on without an error."""

        def job() -> Job:
            found = self.covered().kernel("host-c", "xid", when, code=code, gpu="0000:3b:00", pid=777, process=process)
            return found.kernel("host-c", "xid", when, code=45, gpu="0000:3b:00", pid=777)

        outcome = job().ask("fatal_xid")
        assert {finding.sign for finding in outcome.findings} <= {"not_counted", "bystander_record"}
        if code != 43 and when is not None:  # 43 follows from others
            illegal = job().log(4, "python_traceback", 16, "CUDA error: an illegal memory access was encountered", exception="RuntimeError")
            expected = "bystander_record" if process == "a.out" else "application_record"
            assert illegal.only("fatal_xid").sign == expected
            assert job().log(0, "nccl_watchdog_timeout", 16).only("fatal_xid").sign == expected

    def test_a_fault_of_some_program_ends_no_job_that_was_stopped_on_purpose(self) -> None:
        """The launcher's lines of a stop that was announced are no word of trouble."""
        job = announced().kernel("host-c", "xid", 19, code=31, gpu="0000:3b:00", pid=777, process="python")
        job.rows["log_events"] = [row for row in job.rows["log_events"] if row["signature"].startswith("elastic_")]
        job.add("host_logs", "dmesg-host-c", host="host-c", num_lines=9)
        assert {finding.sign for finding in job.ask("fatal_xid").findings} <= {"not_counted", "not_counted_unread"}
        job.rows["scheduler_events"] = []
        assert job.only("fatal_xid").sign == "application_record"

    def test_a_lost_gpu_beside_the_job_that_broke_its_links_counts(self) -> None:
        job = (
            self.addressed().kernel("host-c", "xid", 15, code=79, gpu="0000:99:00").kernel("host-c", "xid", 15.5, code=74, gpu="0000:3b:00")
        )
        found = job.only("fatal_xid")
        assert (found.sign, found.hosts, found.numbers["gpu"]) == ("gpu_record", ("host-c",), "0000:99:00")

    def test_without_all_addresses_a_gpu_may_be_any_ranks(self) -> None:
        job = self.covered().add("ranks", "slots", rank=4, host="host-c", gpu="0000:3b:00")
        found = job.kernel("host-c", "xid", 15, code=79, gpu="0000:99:00").only("fatal_xid")
        assert (found.sign, found.hosts, found.numbers["candidates"]) == ("gpu_record", ("host-c",), [4, 5])

    def test_where_process_and_address_differ_the_device_is_of_the_address_and_the_program_of_its_process(self) -> None:
        for code, rank, gpu in ((79, 5, "0000:86:00"), (48, 5, "0000:86:00"), (31, 4, "0000:86:00")):
            job = self.addressed().kernel("host-c", "xid", 15, code=code, gpu="0000:86:00", pid=104, process="python")
            found = job.only("fatal_xid")
            assert (found.ranks, found.numbers["gpu"]) == ((rank,), gpu), code
            assert "its process 104 is of rank 4, and its GPU that of rank 5" in found.says
            verdict = judge(job.case()).verdict
            assert (verdict.ranks, verdict.gpus) == ((rank,), (gpu,)), code

    def test_bus_errors_are_of_the_device_that_the_line_names(self) -> None:
        fatal, other = "severity=Uncorrected (Fatal), type=Transaction Layer", "severity=Uncorrected (Non-Fatal), type=Transaction Layer"
        for sign, rank, severity, message in (
            ("weak_storage_record", (), "uncorrected", f"nvme 0000:05:00.0: PCIe Bus Error: {other}"),
            ("storage_record", (), "fatal", f"nvme 0000:05:00.0: PCIe Bus Error: {fatal}"),
            ("weak_network_record", (), "uncorrected", f"mlx5_core 0000:06:00.1: AER: PCIe Bus Error: {other}"),
            ("network_record", (), "fatal", f"mlx5_core 0000:06:00.1: AER: PCIe Bus Error: {fatal}"),
            ("weak_gpu_bus_record", (), "uncorrected", f"nvidia 0000:3b:00.0: PCIe Bus Error: {other}"),
            ("pcie_record", (4,), "fatal", f"nvidia 0000:3b:00.0: PCIe Bus Error: {fatal}"),
            ("weak_bus_record", (), "uncorrected", f"pcieport 0000:10:01.0: PCIe Bus Error: {other}"),
            ("pcie_record", (5,), "fatal", "pcieport 0000:10:01.0: AER: Uncorrected (Fatal) error message received from 0000:86:00.0"),
            ("pcie_record", (), "uncorrected", "pcieport 0000:10:01.0: DPC: containment event, status:0x1f01 source:0x0000"),
            ("bystander_record", (), "uncorrected", f"nvidia 0000:99:00.0: PCIe Bus Error: {other}"),
        ):
            job = self.addressed().add(
                "kernel_events",
                "dmesg-host-c",
                host="host-c",
                kind="aer",
                logged_at=at(15),
                severity=severity,
                message=message,
                num_folded=1,
            )
            if sign == "bystander_record":  # the driver spoke of that GPU before: it is one
                job.kernel("host-c", "xid", -8000, code=63, gpu="0000:99:00")
            found = job.only("fatal_xid")
            assert (found.sign, found.ranks) == (sign, rank), message
            if sign.startswith("weak"):
                assert judge(job.case()).verdict.cause == "unknown", message

    def test_one_short_stall_of_a_processor_is_only_a_sign(self) -> None:
        stuck = "watchdog: BUG: soft lockup - CPU#12 stuck for {}s! [kworker/12:1:400]"
        for sign, message, times in (
            ("short_stall_record", stuck.format(23), 1),
            ("host_record", stuck.format(23), 6),
            ("host_record", stuck.format(134), 1),
            ("host_record", "NMI watchdog: Watchdog detected hard LOCKUP on cpu 12", 1),
        ):
            job = self.addressed().add(
                "kernel_events", "dmesg-host-c", host="host-c", kind="lockup", logged_at=at(15), message=message, num_folded=times
            )
            verdict = judge(job.case()).verdict
            assert (job.only("fatal_xid").sign, verdict.cause) == (sign, "host_fault" if sign == "host_record" else "unknown"), message

    def test_a_process_id_ties_a_nameless_log_only_to_a_host_without_one(self) -> None:
        """Ids repeat from container to container: what a host's own log does not tell is not of that host."""
        values = {"code": 79, "gpu": "0000:86:00", "pid": 103}
        assert self.covered().kernel(None, "xid", 15, **values).ask("fatal_xid").status == "clear"
        both = self.covered().kernel(None, "xid", 15, **values).kernel("host-b", "xid", 15, **values)
        assert both.only("fatal_xid").ranks == (3,)
        alone = Job().kernel(None, "xid", 15, **values).add("host_logs", "dmesg-None", num_lines=5)
        assert alone.only("fatal_xid").ranks == (3,)

    def test_a_record_after_the_time_outs_of_its_host_is_no_root_where_a_rank_had_raised_before_its_own(self) -> None:
        """The traceback has no stamp; a kernel that notices late counts where nothing else came first."""
        for raises, seconds, found in ((True, 700, False), (True, 300, True), (False, 700, True)):
            job = self.addressed()
            if raises:
                job.log(0, "python_traceback", None, "bad sample", exception="ValueError")
            for rank in range(8):
                job.log(rank, "nccl_watchdog_timeout", 650, "ran for 600021 milliseconds before timing out")
            job.kernel("host-c", "xid", seconds, code=79, gpu="0000:86:00")
            signs = [f.sign for f in job.ask("fatal_xid").findings if f.ranks]
            assert signs == (["gpu_record"] if found else []), (raises, seconds)
            assert judge(job.case()).verdict.ranks == ((5,) if found else (0,)), (raises, seconds)

    def test_else_the_rank_of_the_host_that_failed_by_its_log(self) -> None:
        job = self.covered().log(5, "cuda_unknown_error", 15.5).kernel("host-c", "xid", 15, code=79, gpu="0000:3b:00")
        assert job.only("fatal_xid").ranks == (5,)

    def test_else_the_host_and_no_rank(self) -> None:
        finding = self.covered().kernel("host-c", "xid", 15, code=79, gpu="0000:3b:00").only("fatal_xid")
        assert (finding.ranks, finding.hosts, finding.numbers["candidates"]) == ((), ("host-c",), [4, 5])

    def test_the_same_application_fault_on_most_gpus_is_the_program(self) -> None:
        job = self.covered()
        for slot in range(4):
            job.kernel("host-c", "xid", 15, code=31, gpu=f"0000:{slot}b:00")
        assert [finding.sign for finding in job.ask("fatal_xid").findings] == ["not_counted"], "nobody in the job complains of it"
        found = job.log(0, "nccl_watchdog_timeout", 16).only("fatal_xid")
        assert (found.sign, found.ranks) == ("node_wide_record", ())

    def test_a_job_that_was_through_was_not_broken(self) -> None:
        job = self.covered().kernel("host-c", "nic", 15, device="eth0")
        assert job.ask("fatal_xid").status == "found"
        for rank in range(8):
            job.agent("worker_finished", 21, rank=rank, pid=100 + rank)
        assert job.ask("fatal_xid").status == "clear"

    def test_a_record_after_the_stop_is_of_the_stop(self) -> None:
        job = announced()
        job.add("host_logs", "dmesg-host-a", host="host-a", num_lines=9)
        found = job.kernel("host-a", "xid", 500, code=79, gpu="0000:3b:00").only("fatal_xid")
        assert (found.sign, found.ranks, found.hosts) == ("not_counted_unread", (), ())
        assert "was stopped by then" in found.says

    @pytest.mark.parametrize(("seconds", "beside"), [(5000, ["host-c"]), (-5000, [])])
    def test_a_gpu_lost_after_the_job_is_met_by_a_restart(self, seconds: int, beside: list[str]) -> None:
        """It did not end the job, and one lost before the job was back when that ran."""
        found = self.covered().kernel("host-c", "xid", seconds, code=79, gpu="0000:3b:00").only("fatal_xid")
        assert (found.sign, [row["host"] for row in found.numbers.get("broken_beside", ())]) == ("not_counted", beside)

    def test_seconds_since_boot_place_a_record(self) -> None:
        job = self.covered().add("hosts", "hosts", host="host-c", boot_at=at(-1000))
        assert job.kernel("host-c", "xid", None, uptime_s=1015.0, code=79, pid=104).only("fatal_xid").ranks == (4,)
        old = self.covered().add("hosts", "hosts", host="host-c", boot_at=at(-1000))
        outcome = old.kernel("host-c", "xid", None, uptime_s=15.0, code=79, pid=104).ask("fatal_xid")
        assert (outcome.status, [f.sign for f in outcome.findings]) == ("clear", ["not_counted"])
        assert "(before the job)" in outcome.why

    def test_a_root_without_a_time_is_only_mentioned(self) -> None:
        assert self.covered().kernel("host-c", "xid", None, code=79, pid=104).only("fatal_xid").sign == "doubtful_record"

    def test_a_lost_gpu_of_a_boot_that_nothing_dates_needs_more_of_its_host(self) -> None:
        """Neither the record nor the job bears an instant: the GPU may have been lost after the job stood, or the log be an old one."""
        for rank, sign in ((None, "doubtful_record"), (0, "doubtful_record"), (5, "gpu_record")):
            job = Job(steps=0).add("host_logs", "dmesg-host-c", host="host-c", last_uptime_s=1015.0)
            if rank is not None:
                job.log(rank, "gpu_handle_lost", None, "CUDA error: GPU is lost")
            for line in job.rows["log_events"]:
                line["logged_at"] = None
            found = job.kernel("host-c", "xid", None, uptime_s=1015.0, code=79, gpu="0000:3b:00").only("fatal_xid")
            assert (found.sign, found.hosts) == (sign, ("host-c",)), rank


class TestQuietLog:
    def waiting(self, ranks: Iterable[int]) -> Job:
        """These ranks time out, and the launcher ends all."""
        job = Job()
        for rank in ranks:
            job.log(rank, "nccl_watchdog_timeout", 40)
        return job.agent("elastic_agent_signal", 60).closed(range(8), 60.1)

    def test_who_alone_did_not_complain_never_came(self) -> None:
        found = self.waiting(range(1, 8)).only("quiet_log")
        assert (found.sign, found.ranks, found.explains) == ("quiet_rank", (0,), tuple(range(1, 8)))

    def test_first_stamps_of_hosts_that_lie_minutes_apart_are_told_as_such(self) -> None:
        """What timed out first is then a matter of clocks."""
        says = {}
        for late in (40.0, 400.0):
            job = Job()
            for rank in range(8):
                job.log(rank, "nccl_watchdog_timeout", late if rank < 2 else 40.0)
            says[late] = job.only("quiet_log").says
        assert "every rank timed out so" in says[40.0]
        assert "apart:" not in says[40.0]
        assert "lie up to 360 s apart" in says[400.0]

    @pytest.mark.parametrize("ranks", [range(8), range(2, 8), range(4)])
    def test_no_answer_when_nobody_or_several_are_quiet(self, ranks: range) -> None:
        assert {f.sign for f in self.waiting(ranks).ask("quiet_log").findings} <= {"only_waited"}

    def test_a_number_that_nobody_bears_is_of_another_job(self) -> None:
        job = self.waiting(range(1, 8)).add("log_events", "log-x", rank=12, signature="nccl_watchdog_timeout", logged_at=at(40))
        assert job.only("quiet_log").ranks == (0,)

    def test_a_lost_log_is_not_quiet(self) -> None:
        job = self.waiting(range(1, 8))
        job.rows["log_events"] = [row for row in job.rows["log_events"] if row["evidence_id"] != "log-0"]
        assert job.only("quiet_log").sign == "only_waited", "what was read is of those that waited"

    def test_a_torn_log_is_not_quiet(self) -> None:
        found = self.waiting(range(1, 8)).log(0, "log_breaks_off", None).only("quiet_log")
        assert (found.sign, found.ranks, found.numbers["timed_out"]) == ("only_waited", (), [1, 2, 3, 4, 5, 6, 7])
        assert "the log of rank 0 would tell more" in found.says

    def test_connections_lost_in_a_stop_are_no_complaint_of_waiting(self) -> None:
        announced().lost_peer((0, 1, 3, 4, 5, 6, 7), 19.9).quiet("quiet_log")

    def test_trouble_of_its_own_is_told_elsewhere(self) -> None:
        self.waiting(range(1, 8)).log(0, "cuda_oom", 20).quiet("quiet_log")

    def test_ends_that_disagree_say_why(self) -> None:
        found = Job().log(2, "nccl_desync_report", 20, "Received data size doesn't match expected size").only("quiet_log")
        assert (found.sign, found.ranks) == ("ends_disagree", ())


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_shipped_cases_accuse_nobody_who_is_not_at_fault(name: str, question: str) -> None:
    outcome = ask(memory_case(name), question)
    assert outcome.status != "failed", outcome.why
    accused = {rank for finding in outcome.findings if not finding.hosts for rank in finding.ranks}
    assert accused <= set(truth(name)["first_failing_ranks"])
    assert {host for finding in outcome.findings for host in finding.hosts} <= set(truth(name)["hosts"])  # a host's record: any rank on it


def test_the_shipped_kill_is_told_by_the_launchers_log_alone() -> None:
    (finding,) = ask(memory_case("rank_killed"), "process_death").findings
    assert (finding.sign, list(finding.ranks)) == ("killed", truth("rank_killed")["first_failing_ranks"])
    assert finding.numbers["exit_code"] == -9


BUNDLES = ROOT.parent / "shared" / "cases" / "incidents"


@pytest.mark.parametrize(
    ("name", "question", "sign", "ranks"),
    [("sigkill_s0", "process_death", "killed_for_memory", (1,)), ("planned_stop_s0", "planned_stop", "announced_stop", ())],
)
def test_handed_incidents(name: str, question: str, sign: str, ranks: tuple[int, ...]) -> None:
    if not (BUNDLES / name).is_dir():
        pytest.skip("the handed incidents are not here")
    with read_folder(BUNDLES / name) as tables:
        case = MemoryCase(tables)
        (finding,) = ask(case, question).findings
        others = [f for q in QUESTIONS if q != question for f in ask(case, q).findings if f.ranks]
    assert (finding.sign, finding.ranks, others) == (sign, ranks, [])


# Sources that cannot both be right


def disagreements(job: Job) -> Outcome:
    return ask(MemoryCase({name: TABLES[name].rows(rows) for name, rows in job.rows.items()}), "sources_disagree")


def test_a_rank_on_two_hosts_is_shown_and_nobody_accused() -> None:
    job = Job().add("stacks", "dump-3", rank=3, host="host-d", pid=103, dump_status="ok")
    (finding,) = disagreements(job).findings
    assert (finding.sign, finding.ranks, finding.numbers["candidates"]) == ("host_disagrees", (), [3])
    assert finding.numbers["hosts"] == {"3": ["host-b", "host-d"]}


def test_a_rank_seen_long_after_its_death_is_shown_one_just_before_is_not() -> None:
    for later, expected in ((3600.0, "found"), (-1.0, "clear")):
        job = Job().died(3, 10, -9, "SIGKILL")
        job.add("stacks", "dump-3", rank=3, host="host-b", pid=103, dump_status="ok", sampled_at=at(10 + later))
        outcome = disagreements(job)
        assert outcome.status == expected
        assert all(f.ranks == () and f.numbers["candidates"] == [3] and len(f.cites) == 2 for f in outcome.findings)


def test_sources_of_a_sound_job_agree() -> None:
    assert disagreements(Job()).status == "clear"


# What speaks for whom


def test_a_record_of_one_host_is_no_evidence_against_a_rank_of_another() -> None:
    slow = Finding("slow_rank", "slow_compute", "rank 5 is slow", ranks=(5,))
    for on_host, counts in (([0, 1], False), ([4, 5], True)):
        record = Finding("fatal_xid", "gpu_record", "Xid 79", numbers={"candidates": on_host})
        _, supports = support([slow, record], [])["gpu_fault", (5,)]
        assert (record.id in supports) is counts


def test_a_long_print_of_steps_is_weighed_in_stretches() -> None:
    times = [0.25 if step < 30_000 else 0.5 for step in range(60_000)]
    rows = [{"evidence_id": "log-0", "record": f"L{n}", "step": n, "logged_step_s": s} for n, s in enumerate(times)]
    outcome = ask(MemoryCase({"progress": TABLES["progress"].rows(rows)}), "printed_pace")
    (finding,) = outcome.findings
    assert (finding.numbers["before_s"], finding.numbers["after_s"]) == (0.25, 0.5)
    assert abs(finding.numbers["step"] - 30_000) <= 60_000 / 400
