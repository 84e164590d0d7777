"""Whom a cause may be pinned on that is told of nobody."""

from __future__ import annotations

import pytest

from rca.types import Finding
from rca.weighing import support

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
    told = support([STALL, Finding(analysis, sign, "", ranks=(3,))], [])
    assert told["data_stall", ()][1] == (STALL.id,)
    assert (STALL.id in told.get(("data_stall", (3,)), (0.0, ()))[1]) is is_suspect
