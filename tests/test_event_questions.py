"""The questions about logs and kernel records: first_exception, process_death, planned_stop, fatal_xid. Small tables, one story each."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES
from rca.types import Finding, Outcome

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
QUESTIONS = ("first_exception", "process_death", "planned_stop", "fatal_xid")
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
        return MemoryCase(
            {
                **{t: TABLES[t].rows([] if t in without else rows) for t, rows in self.rows.items()},
                "evidence": TABLES["evidence"].rows(evidence),
            }
        )

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

    @pytest.mark.parametrize(("host", "pid"), [("host-b", 101), ("host-x", 101), ("host-x", 4711)])
    def test_a_process_of_another_host_is_another_process(self, host: str, pid: int) -> None:
        assert killed().kernel(host, "oom", 19.9, pid=pid).only("process_death").sign == "killed"

    def test_a_memory_kill_that_no_rank_is_tied_to_accuses_nobody(self) -> None:
        found = Job().kernel("host-a", "oom", 19.9, pid=4711).only("process_death")
        assert (found.sign, found.ranks, found.hosts) == ("memory_killed_on_host", (), ("host-a",))

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

    def test_clear_only_when_every_end_was_seen_and_good(self) -> None:
        job = Job()
        assert job.ask("process_death").status == "blind"
        for rank in range(8):
            assert job.ask("process_death").status == "blind"
            job.agent("worker_finished", 21, rank=rank, pid=100 + rank)
        assert job.ask("process_death").status == "clear"


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
