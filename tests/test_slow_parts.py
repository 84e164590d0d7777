"""Which part of the steps grew: told by the rank that has least of it, as whoever waits spends the time in communication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from _paced import noise

from rca.case import MemoryCase
from rca.questions import ask
from rca.tables import TABLES
from rca.types import Outcome

Parts = tuple[float, float, float]  # computation, transfer, data, s


def timed(
    of: Callable[[int, int], Parts], *, num: int = 8, length: int = 40, without: tuple[str, ...] = (), hole: int = 0, known: int = 0
) -> Outcome:
    """Every rank ends a step when the last one has computed and the transfer is over; until then it waits inside communication. `hole`: steps
    that nobody wrote, in the middle."""
    rows: list[dict[str, Any]] = []
    for step in range(length):
        number = step + (hole if step >= length // 2 else 0)
        parts = [[value * (1 + 0.02 * noise(rank, step, n)) for n, value in enumerate(of(rank, step))] for rank in range(num)]
        whole = max(compute + data for compute, _, data in parts) + max(transfer for _, transfer, _ in parts)
        rows += [
            {"evidence_id": f"t-{rank}", "record": f"L{step + 1}", "rank": rank, "step": number, "step_s": whole, "compute_s": compute,
             "data_s": data, "comm_s": whole - compute - data}
            for rank, (compute, _, data) in enumerate(parts)
        ]  # fmt: skip
    kept = [{key: value for key, value in row.items() if key not in without} for row in rows]
    named = [{"evidence_id": "map", "record": f"L{rank}", "rank": rank} for rank in range(known)]
    outcome = ask(MemoryCase({"steps": TABLES["steps"].rows(kept), "ranks": TABLES["ranks"].rows(named)}), "slow_parts")
    assert outcome.status != "failed", outcome.why
    return outcome


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (lambda rank, step: (0.5, 0.3 if step >= 20 else 0.1, 0.01), "communication_grew"),
        (lambda rank, step: (0.5, 0.1, 0.3 if step >= 20 else 0.01), "data_grew"),
        (lambda rank, step: (0.8 if step >= 20 else 0.5, 0.1, 0.01), "computation_grew"),
        (lambda rank, step: (0.8 if step >= 20 and rank == 3 else 0.5, 0.1, 0.01), None),  # the others wait for it
        (lambda rank, step: (0.5, 0.1, 0.3 if step >= 20 and rank == 3 else 0.01), None),
        (lambda rank, step: (0.8 if step >= 20 and rank == 3 else 0.5, 0.2 if step >= 20 else 0.1, 0.01), None),  # both
        (lambda rank, step: (0.5, 0.3 if step >= 36 else 0.1, 0.01), None),  # the last ones before the end
        (lambda rank, step: (0.5, 0.5 if step % 9 == 0 else 0.1, 0.01), None),
        (lambda rank, step: (0.5, 0.1, 0.01), None),
    ],
)
def test_the_part_that_grew_on_all_ranks_is_named(of: Callable[[int, int], Parts], expected: str | None) -> None:
    found = timed(of).findings
    assert [(f.sign, f.ranks) for f in found] == ([(expected, ())] if expected else [])
    if found:
        assert found[0].numbers["step"] in (20, 21, 22)
        assert found[0].cites


def test_a_rank_without_times_may_be_what_all_others_wait_for() -> None:
    def waits(rank: int, step: int) -> Parts:
        return 0.5, 0.3 if step >= 20 else 0.1, 0.01

    assert [f.sign for f in timed(waits, known=8).findings] == ["communication_grew"]
    outcome = timed(waits, known=9)
    assert outcome.status == "blind"
    assert "rank 8" in outcome.why


def test_without_the_times_of_computation_the_part_is_open() -> None:
    grown = timed(lambda rank, step: (0.5, 0.3 if step >= 20 else 0.1, 0.01), without=("compute_s",))
    assert grown.status == "blind"
    assert timed(lambda rank, step: (0.5, 0.3 if step >= 20 else 0.1, 0.01), num=1).status == "blind"


@pytest.mark.parametrize(("hole", "expected"), [(0, 1), (9, 1), (3_000, 0)])
def test_no_change_is_dated_into_steps_that_nobody_wrote(hole: int, expected: int) -> None:
    """Of another launch, with another layout or batch, as far as anybody knows."""
    assert len(timed(lambda rank, step: (0.5, 0.3 if step >= 20 else 0.1, 0.01), hole=hole).findings) == expected
