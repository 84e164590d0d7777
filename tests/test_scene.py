"""What the pictures of an incident show: which events are those of the job, and how many are not."""

from __future__ import annotations

from datetime import timedelta

import polars as pl
from _house import frames

from apps.scene import EARLY, first_events
from rca.case import MemoryCase
from rca.incidents.course import course
from rca.judge import judge
from rca.tables import TABLES


def test_events_from_long_before_the_job_are_counted_and_not_shown() -> None:
    tables = frames("lock_hang")
    case = MemoryCase(tables)
    judgement = judge(case)
    plain, _, num_early = first_events(case, judgement)
    assert num_early == 0
    began = course(case, judgement.verdict).launched_at
    assert began is not None
    about = {"host": "host-a", "kind": "thermal", "message": "throttled"}
    moments = {
        "long before": (began - timedelta(hours=5), 7),
        "just before": (began - EARLY / 2, 2),
        "in it": (began + timedelta(seconds=1), 1),
    }
    rows = [
        {"evidence_id": "e" * 16, "record": f"L{n}", "logged_at": at, "num_folded": count, **about}
        for n, (at, count) in enumerate(moments.values(), 1)
    ]
    more = MemoryCase({**tables, "kernel_events": pl.concat([tables["kernel_events"], TABLES["kernel_events"].rows(rows)])})
    shown, _, num_early = first_events(more, judgement)
    assert num_early == 7
    added = shown.filter(pl.col("what") == "thermal: throttled").row(0, named=True)
    assert (added["at"], added["count"]) == (began - EARLY / 2, 3)  # the first that counts, not the first that there was
    assert shown.height == plain.height + 1
