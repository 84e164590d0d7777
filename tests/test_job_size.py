"""How many ranks a job has: what tells it, and the least that it can be where nothing does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from _decision import WHO, advised, frames, verdict

from rca.decision.facts import NO_FACTS
from rca.decision.job_size import JobSize, job_size
from rca.roster import Roster
from rca.types import Finding

SEEN = Roster(None, {rank: f"host-{rank // 2}" for rank in (0, 1, 6, 7)}, {}, {}, {}, {}, frozenset(), "job-0", 0, {})
SAYS = (
    ({"configs": [{"host": "host-0", "component": "env:WORLD_SIZE", "value": "64"}]}, 64, "a setting of the job"),
    ({"attempts": [{"world_size": 32}]}, 32, "the record of its launch"),
    ({"log_events": [{"evidence_id": "a", "message": "init_process_group: rank=3, world_size=16"}]}, 16, "a log line"),
    ({"log_events": [{"evidence_id": "a", "message": "global_world_sizes=[24, 24]"}]}, 24, "a log line"),
    ({"job_records": [{"num_gpus": 48, "is_step": False}]}, 48, "the accounting's GPUs, one a rank"),
    ({"nccl_ras": [{"ranks_per_comm": 4}, {"ranks_per_comm": 128}]}, 128, "the largest communicator"),
    ({"checkpoints": [{"step": 1, "world_size": 8}, {"step": 9, "world_size": 40}]}, 40, "the savers of its newest checkpoint"),
)


@pytest.mark.parametrize(("rows", "size", "told_by"), SAYS)
def test_a_size_that_is_told_counts(rows: dict[str, list[dict[str, Any]]], size: int, told_by: str) -> None:
    assert job_size(frames(**rows), SEEN) == JobSize(size, told_by, is_least=False)


@pytest.mark.parametrize(
    "rows",
    [
        {},
        {"configs": [{"component": "env:LOCAL_WORLD_SIZE", "value": "8"}]},
        {"attempts": [{"world_size": 4}]},
        {"configs": [{"component": "env:WORLD_SIZE", "value": "64"}, {"component": "env:WORLD_SIZE", "value": "32"}]},
    ],
    ids=["nothing", "that of a host", "of another launch: rank 7 was seen", "two that differ"],
)
def test_else_the_highest_rank_is_the_least(rows: dict[str, list[dict[str, Any]]]) -> None:
    assert job_size(frames(**rows), SEEN) == JobSize(8, "the highest rank that was seen", is_least=True)


def test_groups_or_a_map_go_first_and_no_rank_is_no_size() -> None:
    assert job_size(frames(attempts=[{"world_size": 99}]), WHO).num_ranks == 8
    assert job_size(frames(), replace(SEEN, hosts={})).num_ranks is None


def test_losses_and_shrink_count_the_whole_job_and_not_the_ranks_seen() -> None:
    """Eight ranks on four hosts were seen of 64: 32 hosts, and one of them goes."""
    slow = Finding("slow_rank", "slow_compute", "", ranks=(5,), numbers={"own_s": 1.5, "others_s": 1.0})
    told = replace(NO_FACTS, size=JobSize(64, "a setting of the job", is_least=False), step_s=2.0)
    found = advised(verdict("slow_rank"), (slow,), facts=told)
    assert found.losses is not None
    assert (found.losses["num_gpus"], found.losses["num_gpus_told_by"]) == (64, "a setting of the job")
    assert found.shrink is not None
    assert (found.shrink["hosts_left"], found.shrink["ranks_left"]) == (31, 62)
