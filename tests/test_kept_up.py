"""An exception without an instant, of a rank that was found waiting with all others: it ended a launch before this one."""

from __future__ import annotations

from typing import Any

import pytest

from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES

RAISED = {
    "evidence_id": "old",
    "record": "L9",
    "rank": 2,
    "signature": "python_traceback",
    "exception": "ValueError",
    "frames": ["f (t.py:1)"],
}
WAIT, WORK = "torch/distributed/distributed_c10d:all_reduce", "train:forward"


def job(*, calls: tuple[int, ...] = (), done: int = 40, waits: str = "", samples: int = 2) -> MemoryCase:
    """Four ranks of one group: the calls that each had made, `done` of them over; or samples of main threads, rank 2 in `waits`."""
    tables: dict[str, list[dict[str, Any]]] = {"log_events": [RAISED]}
    tables["ranks"] = [{"evidence_id": "map", "record": str(rank), "rank": rank} for rank in range(4)]
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
        for rank in range(4) for sample in range(samples) if waits
    ]  # fmt: skip
    return MemoryCase({name: TABLES[name].rows(rows) for name, rows in tables.items()})


@pytest.mark.parametrize(
    ("case", "sign"),
    [
        (job(calls=(41, 41, 41, 41)), "outlived"),  # it waits in the call that all had made
        (job(calls=(41, 40, 41, 41)), "outlived"),  # and others wait for somebody else
        (job(calls=(42, 40, 41, 42)), "outlived"),  # it waits for one, and others for it
        (job(calls=(42, 42, 41, 42)), "raised"),  # the others wait for it
        (job(calls=(40, 40, 40, 40)), "raised"),  # nobody waits: it may have raised after this
        (job(waits="collective"), "outlived"),
        (job(waits="collective", samples=1), "raised"),  # whether it stood still one sample does not tell
        (job(waits="unknown"), "raised"),
        (job(), "raised"),
    ],
)
def test_what_nothing_dates_ended_no_rank_that_waited_with_the_others(case: MemoryCase, sign: str) -> None:
    assert [finding.sign for finding in ask(case, "first_exception").findings] == [sign]
