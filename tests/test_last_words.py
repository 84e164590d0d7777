"""What no program caught ends its process, whatever stamp a line before it bears; and how sure an answer is that no instant dates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rca.case import MemoryCase
from rca.dating import undated
from rca.diagnose import diagnose
from rca.questions import ask
from rca.roster import roster
from rca.tables import TABLES
from rca.types import Cite, Finding, Outcome
from rca.weighing import Weights, set_by_hand

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
UNCAUGHT = ["train_step (/train.py:80)", "main (/train.py:90)", "<module> (/train.py:99)"]


def job(frames: list[str], *, complaints: int, behind: bool = False) -> MemoryCase:
    """Rank 4 tells of an exception under a stamp of the first steps; ranks 0 to 3 print steps for an hour, and some of them time out."""
    raised = {"signature": "python_traceback", "exception": "KeyError", "frames": frames, "rank": 4, "logged_at": NOON}
    lines: list[dict[str, Any]] = [raised | {"evidence_id": "rank_4", "record": "L2"}]
    if behind:
        lines.append({"signature": "unknown", "rank": 4, "evidence_id": "rank_4", "record": "L9", "message": "saved"})
    lines += [
        {"signature": "nccl_watchdog_timeout", "rank": rank, "evidence_id": f"rank_{rank}", "record": "L99", "message": "timed out"}
        for rank in range(complaints)
    ]
    steps = [
        {"evidence_id": f"rank_{rank}", "record": f"L{step}", "rank": rank, "step": step, "ended_at": NOON + timedelta(minutes=step)}
        for rank in range(4)
        for step in range(1, 61)
    ]
    tables = {"log_events": lines, "progress": steps}
    return MemoryCase({name: TABLES[name].rows(rows) for name, rows in tables.items()})


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (job(UNCAUGHT, complaints=4), "raised"),
        (job(UNCAUGHT[:1], complaints=4), "outlived"),  # caught in the step, and logged
        (job(UNCAUGHT, complaints=0), "outlived"),  # nobody misses the rank
        (job(UNCAUGHT, complaints=4, behind=True), "outlived"),  # it wrote more
    ],
)
def test_what_no_program_caught_ends_a_rank_that_the_others_miss(case: MemoryCase, expected: str) -> None:
    assert [finding.sign for finding in ask(case, "first_exception").findings] == [expected]


def test_an_answer_that_no_instant_dates_is_stated_with_more_doubt() -> None:
    rows = [{"evidence_id": "log", "record": f"L{n}", "rank": 3, "logged_at": at} for n, at in enumerate([None, NOON])]
    case = MemoryCase({"log_events": TABLES["log_events"].rows(rows)})

    def raised(*records: str, table: str = "log_events") -> Finding:
        cites = tuple(Cite(table, "log", "", record, "") for record in records)
        return Finding("first_exception", "raised", "it raised", ranks=(3,), cites=cites)

    assert undated(case, [raised("L0")]) == {raised("L0").id}
    assert (
        undated(case, [raised("L0", "L1")])
        == undated(case, [raised("L0", table="collectives")])
        == undated(case, [raised()])
        == frozenset()
    )
    weighing = Weights(set_by_hand(), surprise=0.02, undated=0.05)
    outcomes = [Outcome("first_exception", "found", "", (raised("L0"),))]
    dated, not_dated = (diagnose(outcomes, roster(case), weighing, which) for which in (frozenset(), undated(case, [raised("L0")])))
    assert (dated.cause, dated.ranks) == (not_dated.cause, not_dated.ranks) == ("user_exception", (3,))
    assert not_dated.probability / dated.probability == pytest.approx(0.93 / 0.98)
    open_, more_open = (next(h.probability for h in v.hypotheses if (h.cause, h.ranks) == ("unknown", ())) for v in (dated, not_dated))
    assert more_open - open_ == pytest.approx(0.05, rel=0.01)
