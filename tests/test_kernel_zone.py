"""May the record of a lost device be of the end of a log whose stamps tell no zone?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rca.analyses._kernel_zone import may_be_at_the_end
from rca.case import MemoryCase
from rca.tables import TABLES

LAST = datetime(2026, 3, 2, 8, 9, 55)  # as the trainer stamps it, by whatever zone
ZONES = (0, -5, 3, 5.5, 5.75, -12, 13)


def printed(every_s: float, steps: int = 30) -> MemoryCase:
    stamps = [f"{LAST - timedelta(seconds=every_s * n):%Y-%m-%dT%H:%M:%S}" for n in range(steps)]
    rows = [{"evidence_id": "log", "record": f"L{n}", "step": n, "ended_at_local": stamp} for n, stamp in enumerate(reversed(stamps))]
    return MemoryCase({"progress": TABLES["progress"].rows(rows)})


@pytest.mark.parametrize("zone_h", ZONES)
@pytest.mark.parametrize(
    ("every_s", "after_s", "may_be"), [(5, 3, True), (5, 50, True), (5, 300, False), (5, -240, False), (30, 140, True)]
)
def test_whatever_the_zone(zone_h: float, every_s: float, after_s: float, *, may_be: bool) -> None:
    at = (LAST - timedelta(hours=zone_h) + timedelta(seconds=after_s)).replace(tzinfo=UTC)
    assert may_be_at_the_end(printed(every_s), at) is may_be


def test_few_or_rare_steps_rule_nothing_out() -> None:
    at = (LAST + timedelta(seconds=400)).replace(tzinfo=UTC)
    assert may_be_at_the_end(printed(5, steps=5), at)
    assert may_be_at_the_end(printed(120), at)
