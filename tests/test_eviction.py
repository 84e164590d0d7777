"""The plan for a group that stands apart: hosts, innocents, GPU-hours, and the way with fewer hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rca.eviction import AGAIN_MIN, REPEAT_MIN, START_MIN, SUSPECT_HIT, eviction_plan
from rca.roster import Roster
from rca.types import Finding

PER_HOST = 8
REPLAY_MIN = 2 * (START_MIN + REPEAT_MIN)  # both phases, once


def _roster(num_hosts: int) -> Roster:
    hosts = {rank: f"h{rank // PER_HOST:04d}" for rank in range(num_hosts * PER_HOST)}
    return Roster(len(hosts), hosts, {}, {}, {}, {}, frozenset(), "job-0", 0, {})


def _ranks(hosts: Sequence[int]) -> list[int]:
    return [host * PER_HOST + at for host in hosts for at in range(PER_HOST)]


def _told(*parts: Mapping[str, Any]) -> Finding:
    return Finding("outlier_group", "group_apart", "", numbers={"cover": list(parts)})


def _part(hosts: Sequence[int], suspects: Sequence[int] = (), name: str = "pp:0") -> dict[str, Any]:
    return {"group": name, "kind": "pp", "ranks": _ranks(hosts), "outliers": _ranks(hosts), "suspects": _ranks(suspects)}


def test_byterobusts_pipeline_of_8_machines_takes_7_innocents_along() -> None:
    """9,600 GPUs, a pipeline group of 8 machines, one bad: a precision of 1/8, which ByteRobust accepts."""
    plan = eviction_plan([_told(_part(range(8)))], _roster(1200), test_h=24.0)
    assert plan is not None
    assert (len(plan.hosts), plan.num_innocent, plan.machine_precision) == (8, 7, 0.125)
    assert plan.cost_gpu_h == 7 * PER_HOST * 24
    assert plan.innocent_hosts is None, "which of them is sound the stacks do not tell"
    assert len(plan.ranks) == 64
    assert "8 hosts go, of which 7 are probably sound (1,344 GPU-hours of tests: 7 x 8 GPUs x 24 h)" in plan.because


def test_without_a_suspect_the_other_way_evicts_nobody_before_the_replay() -> None:
    plan = eviction_plan([_told(_part(range(8)))], _roster(1200), reproduction=0.9, repeats=1)
    assert plan is not None
    assert plan.alternative is not None
    assert (plan.alternative["hosts"], plan.alternative["probability"]) == ([], None)
    assert plan.alternative["expected_minutes"] == pytest.approx(REPLAY_MIN)
    assert plan.alternative["replay_probability"] == pytest.approx(0.81)
    assert plan.alternative["cost_gpu_h"] == pytest.approx(REPLAY_MIN / 60 * 9600 + 0.19 * plan.cost_gpu_h, abs=0.1)
    assert not plan.alternative_costs_less, "9,600 GPUs that wait some minutes cost more than 7 hosts of tests"


def test_a_fault_that_shows_in_2_percent_of_replays_is_not_found_by_one() -> None:
    plan = eviction_plan([_told(_part(range(8)))], _roster(64), reproduction=0.02, repeats=150)
    assert plan is not None
    assert plan.alternative is not None
    assert plan.alternative["replay_probability"] == pytest.approx(0.906, abs=1e-3)


def test_with_a_suspect_the_other_way_takes_its_host_first() -> None:
    plan = eviction_plan([_told(_part(range(8), suspects=[5]))], _roster(64))
    assert plan is not None
    assert plan.innocent_hosts == ("h0000", "h0001", "h0002", "h0003", "h0004", "h0006", "h0007")
    other = plan.alternative
    assert other is not None
    assert (other["hosts"], other["ranks"]) == (["h0005"], _ranks([5]))
    assert other["replay_hosts"] == list(plan.innocent_hosts or ())
    assert other["expected_minutes"] == pytest.approx((1 - SUSPECT_HIT) * (AGAIN_MIN + REPLAY_MIN), abs=0.05)
    assert other["found_probability"] == pytest.approx(SUSPECT_HIT + (1 - SUSPECT_HIT) * 0.81)
    assert plan.alternative_costs_less
    assert other["commands"][0].startswith("rca replay plan")
    parts = other["cost_parts"]
    assert parts["tests_gpu_h"] == 0.0, "the one host that goes is the faulty one"
    assert parts["job_waits_gpu_h"] == pytest.approx(other["expected_minutes"] / 60 * 512, abs=0.5)
    assert parts["job_waits_gpu_h"] + parts["group_after_all_gpu_h"] == pytest.approx(other["cost_gpu_h"], abs=0.2)


def test_two_groups_are_two_faults() -> None:
    plan = eviction_plan([_told(_part(range(4)), _part(range(8, 12), name="pp:2"))], _roster(64))
    assert plan is not None
    assert (plan.kind, plan.group, plan.num_innocent, plan.machine_precision) == ("pp", None, 6, 0.25)
    assert "fits into 2 pp groups of 64 ranks: 8 hosts go" in plan.because


def test_one_host_has_no_innocents_and_no_other_way() -> None:
    plan = eviction_plan([_told({**_part([3]), "kind": "host", "group": "h0003"})], _roster(8))
    assert plan is not None
    assert (plan.hosts, plan.num_innocent, plan.cost_gpu_h, plan.alternative) == (("h0003",), 0, 0.0, None)
    assert not plan.alternative_costs_less


def test_a_named_rank_a_finding_without_a_cover_or_unknown_hosts_have_no_plan() -> None:
    told = _told(_part(range(4)))
    assert eviction_plan([told], _roster(8), named=[3]) is None
    assert eviction_plan([Finding("slow_rank", "slow_compute", "", numbers={})], _roster(8)) is None
    assert eviction_plan([told], Roster(64, {}, {}, {}, {}, {}, frozenset(), "job-0", 0, {})) is None


def test_a_plan_is_plain_json() -> None:
    import json

    plan = eviction_plan([_told(_part(range(4), suspects=[1]))], _roster(8))
    assert plan is not None
    row = json.loads(json.dumps(plan.as_row()))
    assert (row["hosts"], row["alternative"]["then"]) == (["h0000", "h0001", "h0002", "h0003"], "dual_phase_replay")


def test_hosts_that_hold_the_whole_job_are_not_evicted() -> None:
    """Eight ranks that share their only host with 24 sound ones: the host tells nothing of them. Beside another host it does."""
    assert eviction_plan([_told(_part([0]))], _roster(1)) is None
    assert eviction_plan([_told(_part(range(2)))], _roster(2)) is None
    plan = eviction_plan([_told(_part([0]))], _roster(2))
    assert plan is not None
    assert plan.hosts == ("h0000",)
