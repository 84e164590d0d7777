"""Ends without an instant, of ranks that were there when the job stood still, or of a job that came to its end: of another launch or job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES

Row = dict[str, Any]
RAISED: Row = {
    "evidence_id": "old",
    "record": "L9",
    "rank": 2,
    "signature": "python_traceback",
    "exception": "ValueError",
    "frames": ["f (t.py:1)"],
}
WAIT, WORK = "torch/distributed/distributed_c10d:all_reduce", "train:forward"


TOP = {**RAISED, "frames": ["f (t.py:1)", "<module> (t.py:9)"]}  # no program caught it
KILLED = {"evidence_id": "old", "record": "L9", "rank": 2, "signature": "process_signal", "signal": "SIGKILL"}
NOBODYS = {**TOP, "rank": None}


def job(
    *,
    calls: tuple[int, ...] = (),
    done: int = 40,
    waits: str = "",
    samples: int = 2,
    told: Row = RAISED,
    seen: int = 4,
    logs: Sequence[Row] = (),
) -> MemoryCase:
    """Four ranks of one group: the calls that each had made, `done` of them over; or samples of main threads of `seen` ranks, rank 2 in `waits`."""
    tables: dict[str, list[Row]] = {"log_events": [told, *logs]}
    tables["ranks"] = [{"evidence_id": "map", "record": str(rank), "rank": rank, "host": f"host-{rank // 2}"} for rank in range(4)]
    tables["group_status"] = [
        {"evidence_id": f"fr-{rank}", "record": "pg", "rank": rank, "group_id": "world:0", "last_enqueued": made, "last_completed": done}
        for rank, made in enumerate(calls)
    ]
    tables["group_status"] += [  # the stages of a pipeline make as many transfers as they have neighbours
        {
            "evidence_id": f"fr-{rank}",
            "record": "pp",
            "rank": rank,
            "group_id": "pp:1",
            "last_enqueued": made,
            "last_completed": made,
            "counts": "calls",
        }
        for rank, made in enumerate((16, 32, 16, 32) if calls else ())
    ]
    frames = {"collective": WAIT, "unknown": WORK}
    tables["stack_frames"] = [
        {"stack_id": kind, "frames": [leaf, "train:loop", "train:<module>"], "leaf": leaf, "wait_kind": kind}
        for kind, leaf in frames.items()
    ]
    tables["stacks"] = [
        {"evidence_id": f"st-{rank}-{sample}", "record": "main", "rank": rank, "sample": sample, "stack_id": waits if rank == 2 else "collective",
         "thread_name": "MainThread", "role": "trainer", "dump_status": "ok", "lines": "1"}
        for rank in range(seen) for sample in range(samples) if waits
    ]  # fmt: skip
    return MemoryCase({name: TABLES[name].rows(rows) for name, rows in tables.items()})


def log(host: int, *signatures: str, rank: int | None = None) -> list[Row]:
    """The log of a launcher, or of a rank."""
    return [{"evidence_id": f"log-{host}", "record": f"L{n}", "rank": rank, "signature": name} for n, name in enumerate(signatures, 1)]


@pytest.mark.parametrize(
    ("case", "sign"),
    [
        (job(calls=(41, 41, 41, 41)), "elsewhere"),  # it waits in the call that all had made
        (job(calls=(41, 40, 41, 41)), "elsewhere"),  # and others wait for somebody else
        (job(calls=(42, 40, 41, 42)), "elsewhere"),  # it waits for one, and others for it
        (job(calls=(42, 42, 41, 42)), "raised"),  # the others wait for it
        (job(calls=(42, 42, 41, 42), told=TOP), "elsewhere"),  # its recorder answered all the same
        (job(calls=(40, 40, 40, 40)), "raised"),  # nobody waits: it may have raised after this
        (job(calls=(40, 40, 40, 40), told=TOP), "raised"),
        (job(waits="collective"), "elsewhere"),
        (job(waits="collective", samples=1), "raised"),  # whether it stood still one sample does not tell
        (job(waits="unknown"), "raised"),
        (job(waits="unknown", told=TOP), "elsewhere"),  # what had ended its program would not have left it there
        (job(waits="unknown", told=NOBODYS), "elsewhere"),  # all are there
        (job(waits="unknown", told=NOBODYS, seen=3), "raised"),  # it may be of the one that is not
        (job(), "raised"),
        (job(told=TOP, logs=log(0, "worker_started") + log(1, "worker_started")), "elsewhere"),  # launchers, and none saw a worker fail
        (job(told=TOP, logs=log(0, "worker_started")), "raised"),  # of one host alone
        (job(told=TOP, logs=log(0, "worker_started") + log(1, "worker_started", "log_breaks_off")), "raised"),
        (job(told=TOP, logs=log(0, "train_progress", "worker_finished", rank=0)), "elsewhere"),  # the program says that it was done
        (job(told=TOP, logs=log(0, "worker_finished", "worker_started", rank=0)), "raised"),  # and was begun again
        (
            job(told=RAISED, logs=log(0, "train_progress", "worker_finished", rank=0)),
            "raised",
        ),  # what was caught ended nothing, as far as known
    ],
)
def test_what_nothing_dates_ended_no_rank_that_was_there_afterwards(case: MemoryCase, sign: str) -> None:
    assert [finding.sign for finding in ask(case, "first_exception").findings] == [sign]


def test_an_exception_of_nobody_is_left_to_ranks_that_were_not_there() -> None:
    (finding,) = ask(job(waits="unknown", told=NOBODYS, seen=3), "first_exception").findings
    assert finding.numbers["candidates"] == [3]


@pytest.mark.parametrize(
    ("case", "sign"),
    [
        (job(waits="unknown", told=KILLED), "elsewhere"),
        (job(told=KILLED), "killed"),
        (job(told=KILLED, logs=log(0, "train_progress", "worker_finished", rank=0)), "elsewhere"),  # the program had been done
        (job(told=KILLED, logs=log(0, "worker_finished", rank=0) + log(1, "nccl_watchdog_timeout", rank=3)), "killed"),  # others missed it
    ],
)
def test_who_was_there_when_the_job_stood_still_was_not_killed_before(case: MemoryCase, sign: str) -> None:
    assert [finding.sign for finding in ask(case, "process_death").findings] == [sign]
