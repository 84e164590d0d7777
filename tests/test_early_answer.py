"""The early answer against that of the full read, on incidents of the campaign: it names the same ranks, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from rca.building import build
from rca.case import Case
from rca.drills import simulated
from rca.drills._campaign_plan import Wanted, played
from rca.judge import Judgement, judge
from rca.sources import inventory
from rca.triage import triage

KINDS = ("mismatched_size", "healthy_running")


def answers(kind: str, ranks: int, seed: int, folder: Path) -> tuple[Judgement | None, Judgement]:
    """Early and full; the early one of however few bytes."""
    simulated.write(played(Wanted(kind, ranks, seed, "files")), folder / "evidence")
    found = inventory(folder / "evidence", folder / "archives")
    early = triage(found, folder, min_bytes=0)
    build(found, folder / "case.duckdb")
    case = Case.open(folder / "case.duckdb")
    try:
        return early, judge(case)
    finally:
        case.close()


def test_groups_that_no_header_names_are_told_by_a_few_whole_dumps(tmp_path: Path) -> None:
    early, _ = answers("lock_hang", 32, 6, tmp_path)
    assert early is not None
    assert early.verdict.ranks


@pytest.mark.parametrize("kind", KINDS)
def test_the_early_answer_is_that_of_the_full_read_or_none(kind: str, tmp_path: Path) -> None:
    early, full = answers(kind, 32, 5, tmp_path)
    if early is not None:
        assert (early.verdict.ranks, early.verdict.cause) == (full.verdict.ranks, full.verdict.cause)
        assert early.verdict.ranks
