"""A slow rank in a job that another rank's fault ended is a second matter."""

from __future__ import annotations

import pytest
from _decision import advised, verdict

from rca.types import Finding
from rca.weighing import explained

SLOW = Finding("slow_rank", "slow_compute", "slow", ranks=(4,))


@pytest.mark.parametrize(
    ("other", "is_second"),
    [
        (Finding("process_death", "killed", "dead", ranks=(3,)), True),
        (Finding("fatal_xid", "gpu_record", "lost", ranks=(3,)), True),
        (Finding("first_exception", "raised", "raised", ranks=(3,)), True),
        (Finding("network_votes", "gone", "closed connections", numbers={"candidates": [6, 7]}), True),
        (Finding("network_votes", "gone", "of its own host", numbers={"candidates": [4, 5]}), False),
        (Finding("network_votes", "closed", "a mere symptom"), False),
        (Finding("fatal_xid", "gpu_record", "its own GPU", ranks=(4,)), False),
        (Finding("first_silent_rank", "never_joined", "silent", ranks=(3,)), False),
        (Finding("first_exception", "outlived", "went on"), False),
        (Finding("planned_stop", "announced_stop", "stopped"), False),
    ],
)
def test_slowness_ends_no_job(other: Finding, *, is_second: bool) -> None:
    assert explained([SLOW, other]) == ({SLOW.id: other.id} if is_second else {})


def test_the_advice_names_what_ended_the_job_first_and_the_slow_rank_after_it() -> None:
    dead = Finding("process_death", "killed", "dead", ranks=(5,))
    because = advised(verdict("process_killed"), (dead, SLOW)).because
    assert because.startswith("by whom the process was killed is not told")
    assert "rank 4 (host-c) was slower than its peers; check that host or leave it out before the restart" in because
    assert "slower" not in advised(verdict("process_killed"), (dead, Finding("slow_rank", "was_slow", "", ranks=()))).because
