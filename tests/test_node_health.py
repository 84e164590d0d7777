"""The question about reports of clusters and health services: what counts, whom it names, and what it leaves alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rca.case import MemoryCase
from rca.judge import judge
from rca.questions import ask
from rca.tables import TABLES
from rca.types import Finding

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HOSTS = ("host-a", "host-b")
GPUS = ("0000:17:00", "0000:b4:00")
LAST_STEP_S = 20
Row = dict[str, Any]


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def job(*events: Row, times_out: bool = True, ends_well: bool = False, maps: bool = True) -> MemoryCase:
    """Four ranks on two hosts that step every second until 20 s, and then time out."""
    rows: dict[str, list[Row]] = {"ranks": [], "log_events": [], "progress": [], "node_events": []}
    for rank in range(4):
        host = HOSTS[rank // 2] if maps else None
        gpu = GPUS[rank % 2] if maps else None
        rows["ranks"].append(
            {"evidence_id": "map", "record": f"L{rank + 2}", "rank": rank, "host": host, "local_rank": rank % 2, "gpu": gpu}
        )
        said = [("worker_started", -5.0)]
        said += [("nccl_watchdog_timeout", 140.0)] if times_out else []
        said += [("worker_finished", 21.0)] if ends_well else []
        for place, (signature, moment) in enumerate(said):
            rows["log_events"].append(
                {"evidence_id": f"log-{rank}", "record": f"L{place + 1}", "rank": rank, "host": host, "signature": signature,
                 "logged_at": at(moment), "message": signature}
            )  # fmt: skip
    for step in range(LAST_STEP_S):
        rows["progress"].append({"evidence_id": "log-0", "record": f"L{step + 100}", "rank": 0, "step": step, "ended_at": at(step)})
    rows["node_events"] = [{"evidence_id": "health", "record": f"E{n}", **row} for n, row in enumerate(events)]
    return MemoryCase({name: TABLES[name].rows(found) for name, found in rows.items()})


def report(seconds: float | None = LAST_STEP_S + 1, **changes: Any) -> Row:
    """NVSentinel's event of an Xid 79 of rank 3's GPU."""
    moment = None if seconds is None else at(seconds)
    return {
        "host": "host-b", "source": "nvsentinel", "object": "GPU", "logged_at": moment, "first_at": moment, "reason": "SysLogsXIDError",
        "kind": "xid", "code": "79", "gpu": GPUS[1], "is_fatal": True, "is_healthy": False, "recommended_action": "RESTART_BM",
        "message": "GPU lost", "num_folded": 1, "attribution": "platform",
    } | changes  # fmt: skip


def finding(case: MemoryCase) -> Finding | None:
    outcome = ask(case, "node_health")
    assert outcome.status in ("found", "clear"), outcome.why
    return outcome.findings[0] if outcome.findings else None


def test_a_fatal_report_of_a_gpu_names_its_rank_and_quotes_the_service() -> None:
    found = finding(job(report()))
    assert found is not None
    assert (found.sign, found.ranks, found.hosts) == ("gpu_reported", (3,), ("host-b",))
    assert "NVSentinel reports Xid 79" in found.says
    assert "it recommends RESTART_BM" in found.says
    verdict = judge(job(report())).verdict
    assert (verdict.cause, verdict.ranks) == ("gpu_fault", (3,))


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (report(None), "when is not told"),
        (report(-600), "from before the job"),
        (report(900), "from after the job's end"),
        (report(5, host="host-a"), "the job made steps after it"),  # by the clock of that very host
        (report(is_fatal=False), "no fault that ends a job by itself"),
        (report(kind="thermal", code="DCGM_FR_CLOCK_THROTTLE_THERMAL", is_fatal=False, reason="GpuThermalWatch"), "no fault that ends"),
        (report(code="13", attribution="workload"), "no fault that ends a job by itself"),
        (report(code="45", attribution="unknown"), "no fault that ends a job by itself"),
    ],
)
def test_what_does_not_count_accuses_nobody_and_says_why(event: Row, why: str) -> None:
    found = finding(job(event))
    assert found is not None
    assert (found.sign, found.ranks) == ("not_counted", ())
    assert why in found.says
    assert judge(job(event)).verdict.ranks == ()


def test_hosts_that_carry_no_rank_are_nobodys() -> None:
    assert finding(job(report(host="host-z"))) is None
    assert finding(job(report(host=None))) is None  # of which of the two hosts is not told
    assert judge(job(report(), maps=False)).verdict.ranks == ()


def test_a_job_that_ended_well_has_no_fault_whatever_services_said() -> None:
    assert finding(job(report(19), times_out=False, ends_well=True)) is None


def test_steps_long_after_a_report_outlive_it() -> None:
    case = job(report(-50))
    rows = case.table("progress").collect()
    late = TABLES["progress"].rows(
        [{"evidence_id": "log-0", "record": f"L{n + 200}", "rank": 0, "step": 20 + n, "ended_at": at(60.0 + n)} for n in range(10)]
    )
    tables = {name: case.table(name).collect() for name in ("ranks", "log_events", "node_events")}
    found = finding(MemoryCase(tables | {"progress": rows.vstack(late)}))
    assert found is not None
    assert "the job made steps after it" in found.says


def test_a_recovery_before_the_end_takes_a_report_back_and_one_of_another_gpu_does_not() -> None:
    recovery = report(30, is_healthy=True, is_fatal=False, kind="none", attribution="none")
    taken_back = finding(job(report(), recovery))
    assert taken_back is not None
    assert "taken back before the job's end" in taken_back.says
    of_other = finding(job(report(), recovery | {"gpu": GPUS[0]}))
    assert of_other is not None
    assert of_other.ranks == (3,)
    too_late = finding(job(report(), recovery | {"logged_at": at(600)}))
    assert too_late is not None
    assert too_late.ranks == (3,)


def test_reports_of_several_hosts_accuse_nobody() -> None:
    found = finding(job(report(), report(22, host="host-a")))
    assert found is not None
    assert (found.sign, found.ranks, found.hosts) == ("several_reported", (), HOSTS)


def test_a_gpu_that_nothing_ties_to_a_rank_leaves_the_ranks_of_its_host_open() -> None:
    found = finding(job(report(gpu="5")))
    assert found is not None
    assert (found.ranks, found.numbers["candidates"]) == ((), [2, 3])


def test_a_node_that_the_cluster_lost_concerns_all_of_its_ranks_even_minutes_later() -> None:
    lost = report(400, source="node_condition", kind="host_lost", code=None, gpu=None, is_fatal=None, reason="NodeStatusUnknown")
    found = finding(job(lost))
    assert found is not None
    assert (found.sign, found.ranks) == ("host_lost_reported", (2, 3))


def test_the_kernels_record_and_a_service_that_repeats_it_count_once() -> None:
    kernel = {"evidence_id": "kern", "record": "L5", "host": "host-b", "logged_at": at(LAST_STEP_S + 1), "kind": "xid", "code": 79,
              "gpu": GPUS[1], "message": "GPU has fallen off the bus.", "num_folded": 1}  # fmt: skip
    log = {"evidence_id": "kern", "record": "L1", "host": "host-b"}
    both = job(report())
    tables = {name: both.table(name).collect() for name in ("ranks", "log_events", "progress", "node_events")}
    tables |= {"kernel_events": TABLES["kernel_events"].rows([kernel]), "host_logs": TABLES["host_logs"].rows([log])}
    alone = judge(MemoryCase({name: rows for name, rows in tables.items() if name != "node_events"})).verdict
    together = judge(MemoryCase(tables)).verdict
    assert (together.cause, together.ranks, together.probability) == (alone.cause, alone.ranks, alone.probability)


def test_a_preemption_near_the_end_speaks_for_itself_where_nothing_was_wrong_before() -> None:
    taken = report(19, source="kubernetes_event", kind="preemption", code=None, gpu=None, is_fatal=None, is_healthy=None, reason="Preempted",
                   attribution="planned")  # fmt: skip
    found = finding(job(taken, times_out=False))
    assert found is not None
    assert (found.sign, found.ranks) == ("preemption_reported", ())
    assert finding(job(taken)) is None  # ranks had timed out: the drain may only clean up
    drained = taken | {"kind": "planned", "reason": "NodeNotSchedulable", "first_at": at(21), "logged_at": at(21)}
    with_fault = finding(job(report(), drained, times_out=False))
    assert with_fault is not None
    assert with_fault.sign == "gpu_reported"
