"""An exception in a log that does not say whose it is: the cause is told, the rank stays open, and nothing says that all is clear."""

from __future__ import annotations

from test_event_questions import Job, at

from rca.analyses._faults import story
from rca.judge import judge

RAISED: dict[str, object] = {
    "signature": "python_traceback",
    "exception": "ValueError",
    "message": "bad thing",
    "frames": ["main (train.py:10)"],
}


def _job(*rows: dict[str, object], place: str = "train.out") -> Job:
    job = Job()
    for row in rows:
        job.add("log_events", place, **row)
    return job


def test_kinds_without_a_rank() -> None:
    oom = {"signature": "cuda_oom", "exception": "torch.cuda.OutOfMemoryError", "message": "CUDA out of memory."}
    ecc = {"signature": "cuda_ecc", "message": "CUDA error: uncorrectable ECC error encountered"}
    for row, sign, cause in (
        (RAISED, "raised", "user_exception"),
        (oom, "gpu_memory_used_up", "gpu_out_of_memory"),
        (ecc, "gpu_memory_error", "gpu_memory_fault"),
    ):
        job = _job({**row, "logged_at": at(30)})
        found = job.only("first_exception")
        assert (found.sign, found.ranks, found.hosts) == (sign, (), ()), row
        assert "the log does not say which rank" in found.says
        assert str(row["message"]) in found.says
        assert found.cites[0].evidence_id == "train.out"
        assert found.numbers["frames"] == row.get("frames", [])
        verdict = judge(job.case()).verdict
        assert (verdict.cause, verdict.ranks) == (cause, ()), row


def test_what_only_follows_without_a_rank_stays_a_consequence() -> None:
    failed = {"signature": "python_traceback", "exception": "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"}
    lost = {"signature": "python_traceback", "exception": "RuntimeError", "message": "Connection closed by peer [192.0.2.1]:1234"}
    watchdog = {"signature": "nccl_watchdog_timeout", "message": "Watchdog caught collective operation timeout"}
    for row in (failed, lost, watchdog, {"signature": "process_signal", "signal": "SIGTERM", "exit_code": -15}):
        _job({**row, "logged_at": at(30)}).quiet("first_exception")
    found = _job(*({**row, "logged_at": at(28)} for row in (failed, watchdog)), {**RAISED, "logged_at": at(30)}).only("first_exception")
    assert found.sign == "raised"
    assert found.numbers["exception"] == "ValueError"


def test_host_of_a_line_without_rank_is_told() -> None:
    found = _job({**RAISED, "host": "host-c", "logged_at": at(30)}).only("first_exception")
    assert found.hosts == ("host-c",)
    assert found.ranks == ()
    assert found.numbers["candidates"] == [4, 5]


def test_a_rank_that_is_known_goes_before_and_the_other_is_mentioned() -> None:
    job = Job().log(3, "python_traceback", 20, "sample 7 broken", exception="KeyError")
    job.add("log_events", "train.out", **{**RAISED, "logged_at": at(25)})
    found = job.ask("first_exception").findings
    assert [(f.sign, f.ranks) for f in found] == [("raised", (3,)), ("unplaced", ())]
    assert "bad thing" in found[1].says
    job = Job().log(3, "python_traceback", 20, "bad thing", exception="ValueError")  # the same, copied into the file of all ranks
    job.add("log_events", "train.out", **{**RAISED, "logged_at": at(20)})
    assert [f.ranks for f in job.ask("first_exception").findings] == [(3,)]
    job = Job().died(3, 20, -9, "SIGKILL")
    job.add("log_events", "train.out", **{**RAISED, "logged_at": at(25)})
    assert [f.sign for f in job.ask("first_exception").findings] == ["unplaced"]


def test_outlived_without_a_rank_is_mentioned() -> None:
    job = _job({**RAISED, "record": "L4"})
    for step in range(10):
        job.add("progress", "train.out", step=step)  # in lines 1 to 10: they go on behind it
    found = job.only("first_exception")
    assert found.sign == "outlived"
    assert found.ranks == ()
    assert judge(job.case()).verdict.cause != "user_exception"


def test_several_kinds_without_order_are_a_tie() -> None:
    job = _job(RAISED)
    job.add(
        "log_events",
        "other.out",
        signature="python_traceback",
        exception="IndexError",
        message="list index",
        frames=["read (dataset.py:1)"],
    )
    found = job.only("first_exception")
    assert found.sign == "tie"
    assert "nor which of these was first" in found.says
    assert len(job.case().derive(story).unplaced) == 2
