"""Which incidents a campaign plays: what was named is played as asked, and what is left out is said."""

from __future__ import annotations

import pytest

from rca.drills._campaign_plan import plan_lines, reported


@pytest.mark.parametrize(
    ("kind", "ranks", "is_named", "seeds"),
    [
        ("network_down", 32, False, {43}),  # a size that is played once
        ("network_down", 32, True, {43, 71, 72}),
        ("network_down", 64, False, {43, 71, 72}),
        ("healthy_running", 64, False, {43, 71, 72, 73, 101, 102}),  # more jobs in which nothing failed
        ("healthy_running", 64, True, {43, 71, 72}),
    ],
)
def test_named_kinds_and_sizes_are_played_with_every_seed_and_no_other(kind: str, ranks: int, *, is_named: bool, seeds: set[int]) -> None:
    wanted = reported([kind], [ranks], [43, 71, 72], is_named=is_named)
    assert {one.seed for one in wanted if not one.is_thinned} == seeds
    assert [one.seed for one in sorted(wanted, key=lambda one: one.seed) if one.is_thinned] == [43, 71, 72]
    told = plan_lines(wanted, [43, 71, 72])
    assert told[0] == f"{len(seeds)} incidents of 1 kind; seeds asked for: 43, 71, 72"
    assert ("played once" in told[1], "more seeds than asked for" in told[1]) == (len(seeds) == 1, len(seeds) > 3)
    assert told[2] == f"  and 3 with a part of their evidence: every seed at {ranks} ranks"
