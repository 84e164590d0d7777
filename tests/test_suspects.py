"""Whom a cause may be pinned on that is told of nobody."""

from __future__ import annotations

import pytest

from rca.diagnose import suspect_sets
from rca.types import Finding

STALL = Finding("slow_parts", "data_grew", "all ranks wait longer for data")


@pytest.mark.parametrize(
    ("analysis", "sign", "is_suspect"),
    [
        ("fatal_xid", "doubtful_record", False),  # it may be of an earlier launch
        ("node_health", "not_counted", False),  # a remark
        ("fatal_xid", "gpu_record", True),
        ("outlier_group", "lone_place", True),  # it stands apart, for whatever reason
        ("first_silent_rank", "never_joined", True),
    ],
)
def test_a_cause_that_names_nobody_is_pinned_on_those_whom_a_cause_or_their_place_accuses(
    analysis: str,
    sign: str,
    is_suspect: bool,  # noqa: FBT001
) -> None:
    named = Finding(analysis, sign, "", ranks=(3,))
    assert suspect_sets([STALL, named], "data_stall") == ([(), (3,)] if is_suspect else [()])
    assert suspect_sets([STALL, named], "unknown") == [(), (3,)]
    assert suspect_sets([STALL, named], "healthy") == [()]
