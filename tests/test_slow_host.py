"""Ranks of one host that became slow together, some of them by a little less than what is told of a rank alone; and whose stage is told by others."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from rca.analyses._kernel_undated import past
from rca.analyses._layout import stages
from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES

RANKS, A_HOST, STEPS, BEGAN = 32, 8, 60, 30
NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


def steps(times: Mapping[int, float], stage: Mapping[int, int] | None = None, *, began: int = BEGAN) -> MemoryCase:
    """All ranks compute 1 s, some of them so many times as long from step `began` on."""
    chance = np.random.default_rng(5)
    rows = [
        {
            "evidence_id": f"t{rank}", "record": f"L{step}", "rank": rank, "host": f"host-{rank // A_HOST}", "step": step,
            "stage": (stage or {}).get(rank), "compute_s": took, "step_s": 2.0,
        }
        for rank in range(RANKS)
        for step in range(STEPS)
        for took in [(times.get(rank, 1.0) if step >= began else 1.0) * (1 + 0.002 * chance.standard_normal())]
    ]  # fmt: skip
    ranks = [{"evidence_id": "map", "record": f"E{rank}", "rank": rank, "host": f"host-{rank // A_HOST}"} for rank in range(RANKS)]
    groups = [{"evidence_id": "map", "record": "E0", "group_id": f"tp:{g}", "kind": "tp", "size": 4} for g in range(RANKS // 4)]
    members = [{"evidence_id": "map", "record": "E0", "group_id": f"tp:{rank // 4}", "rank": rank} for rank in range(RANKS)]
    tables = {"steps": rows, "ranks": ranks} | ({"groups": groups, "memberships": members} if stage else {})
    return MemoryCase({name: TABLES[name].rows(of) for name, of in tables.items()})


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (1.19, ("slow_host", tuple(range(8, 16)))),  # too little for a rank alone, and nearly as much as the two
        (1.06, ("slow_compute", (8, 12))),  # a quarter of it: they share the host with them, and no more is known
        (1.0, ("slow_compute", (8, 12))),
    ],
)
def test_ranks_of_a_host_that_are_nearly_as_slow_at_the_same_time_are_slow_too(
    others: float, expected: tuple[str, tuple[int, ...]]
) -> None:
    case = steps({rank: 1.25 if rank in (8, 12) else others for rank in range(8, 16)}, dict.fromkeys(range(RANKS), 0))
    assert [(one.sign, one.ranks) for one in ask(case, "slow_rank").findings] == [expected]


def test_a_stage_that_one_rank_of_a_tensor_group_tells_is_that_of_the_group() -> None:
    told = {rank: rank // 16 for rank in range(0, RANKS, 4)}
    assert stages(steps({}, told)) == {rank: rank // 16 for rank in range(RANKS)}
    case = steps({9: 1.13}, told)  # mild, and told against the peers of its stage alone
    assert [(one.sign, one.ranks) for one in ask(case, "slow_rank").findings] == [("slow_compute", (9,))]


@pytest.mark.parametrize(("days", "is_past"), [(10.0, True), (2.0, False)])
def test_where_nothing_dates_the_job_a_record_days_before_the_end_of_its_log_is_of_another_time(days: float, *, is_past: bool) -> None:
    at = NOON - timedelta(days=days)
    log = {"evidence_id": "k", "record": "L1", "host": "host-0", "first_at": at, "last_at": NOON, "num_lines": 2}
    event = {"evidence_id": "k", "record": "L1", "host": "host-0", "logged_at": at, "kind": "xid", "code": 79}
    case = MemoryCase({"host_logs": TABLES["host_logs"].rows([log]), "kernel_events": TABLES["kernel_events"].rows([event])})
    assert (("k", "L1") in past(case, None)) is is_past
    assert past(case, (at, NOON)) == frozenset()  # where the job is dated, the instant itself decides


@pytest.mark.parametrize(
    ("began", "says"), [(0, "at least since step 2, the first that was compared, to 59"), (BEGAN, "from step 30 to 59")]
)
def test_of_a_rank_that_is_slow_where_the_record_begins_no_onset_is_told(began: int, says: str) -> None:
    (finding,) = ask(steps({9: 1.5}, dict.fromkeys(range(RANKS), 0), began=began), "slow_rank").findings
    assert says in finding.says
    assert finding.numbers.get("is_from_start", False) == (began == 0)
