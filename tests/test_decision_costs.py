"""What the decision costs: going on slower or replacing, the way back, a smaller job. Figures by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from _decision import ALIVE, ENDED, advised, history, past, verdict

from rca.decision.facts import NO_FACTS, Layout
from rca.decision.job_size import MAPPED, JobSize
from rca.decision.losses import loss, slow_tax
from rca.decision.recovery import ENOUGH, reference_s
from rca.decision.shrink import shrink
from rca.settings import NOT_SAID, Settings
from rca.types import Finding, Outcome


def gpus(count: int) -> JobSize:
    return JobSize(count, MAPPED, is_least=False)


class TestLosses:
    """Figures by hand."""

    SLOW = Finding("slow_rank", "slow_compute", "", ranks=(5,), numbers={"own_s": 1.5, "others_s": 1.0})

    def told(self, **more: Any) -> dict[str, Any]:
        known: dict[str, Any] = {
            "step_s": 2.0, "size": gpus(1024), "repair_h": 8.0, "recovery_s": 450.0, "again_s": 900.0, "is_running": False,
        }  # fmt: skip
        found = loss(verdict("slow_rank"), [self.SLOW], **known | more)
        assert found is not None
        return found

    def test_a_slow_rank_costs_its_share_of_each_step_until_the_repair(self) -> None:
        found = self.told()
        assert found["tax_least"] == found["tax_most"] == 0.25  # 0.5 s of 2 s
        assert found["degrade_gpu_h"] == [2048.0, 2048.0]  # 0.25 x 8 h x 1024
        assert found["replace_gpu_h"] == 384.0  # (450 + 900) s x 1024
        assert found["break_even_h"] == [1.5, 1.5]  # 0.375 h / 0.25
        assert found["prefers"] == "replace"
        assert "2,048 GPU-hours in 8 h" in found["says"]
        assert "384 GPU-hours" in found["says"]

    def test_where_a_what_if_analysis_looked_it_tells_the_tax(self) -> None:
        job = Finding("straggler_what_if", "straggling", "", numbers={"S": 1.25, "waste": 0.2})
        worker = Finding("straggler_what_if", "slow_worker", "", ranks=(5,), numbers={"ratio": 1.5, "share": 0.9})
        found = loss(
            verdict("slow_rank"),
            [self.SLOW, job, worker],
            step_s=2.0,
            size=gpus(100),
            repair_h=1.0,
            recovery_s=1.0,
            again_s=0.0,
            is_running=True,
        )
        assert found is not None
        assert found["degrade_gpu_h"] == pytest.approx([18.0, 18.0])  # 0.2 x 0.9 x 1 h x 100
        assert "90 % of that goes with it" in found["tax_basis"]

    def test_a_size_of_which_only_some_ranks_were_seen_is_a_lower_bound_and_says_what_it_rests_on(self) -> None:
        seen = self.told(size=JobSize(61, "the highest rank that was seen", is_least=True))["says"]
        assert "of at least 61 GPUs (the highest rank that was seen)" in seen
        assert "of 64 GPUs (a setting of the job)" in self.told(size=JobSize(64, "a setting of the job", is_least=False))["says"]

    def test_a_short_repair_is_waited_for(self) -> None:
        found = self.told(repair_h=1.0)
        assert (found["degrade_gpu_h"], found["prefers"]) == ([256.0, 256.0], "degrade")

    def test_of_a_job_that_runs_nothing_is_computed_again(self) -> None:
        assert self.told(is_running=True)["replace_gpu_h"] == 128.0

    def test_without_the_length_of_a_step_the_tax_is_the_most_that_it_can_be(self) -> None:
        found = self.told(step_s=None)
        assert found["tax_most"] == pytest.approx(1 / 3)
        assert found["tax_basis"].startswith("at most")

    def test_what_is_not_known_is_none_and_the_break_even_time_is_told(self) -> None:
        found = self.told(repair_h=None)
        assert (found["degrade_gpu_h"], found["prefers"]) == (None, None)
        assert "longer than 1.5 h, which is not told" in found["says"]
        assert self.told(again_s=None)["replace_gpu_h"] is None

    def test_a_link_has_the_published_tax(self) -> None:
        found = loss(
            verdict("network_fault"), [], step_s=None, size=gpus(1000), repair_h=10.0, recovery_s=360.0, again_s=0.0, is_running=False
        )
        assert found is not None
        assert found["degrade_gpu_h"] == pytest.approx([50.0, 860.0])  # 0.5 and 8.6 % of 10,000 GPU-hours
        assert found["replace_gpu_h"] == 100.0
        assert found["prefers"] is None  # between the two it is open

    @pytest.mark.parametrize(
        ("cause", "sign", "outcomes", "is_priced"),
        [
            ("slow_rank", "slow_compute", ALIVE, True),
            ("slow_rank", "slow_compute", (), True),
            ("slow_rank", "slow_compute", ENDED, False),
            ("slow_rank", "slow_a_little", ENDED, True),  # it keeps its host
            ("network_fault", "network_record", ALIVE, True),
            ("network_fault", "network_record", (), False),  # whether it moves is not told
            ("network_fault", "job_hangs", ALIVE, False),
            ("nvlink_fault", "nvlink_record", ENDED, False),
        ],
    )
    def test_a_job_that_stands_or_ended_has_no_price_of_going_on(
        self, cause: str, sign: str, outcomes: tuple[Outcome, ...], *, is_priced: bool
    ) -> None:
        found = advised(verdict(cause), (replace(self.SLOW, sign=sign),), outcomes=outcomes)
        assert (found.losses is not None) is is_priced
        if (cause, sign) == ("slow_rank", "slow_compute"):
            assert ("or go on slower" in found.because) is is_priced

    def test_the_share_that_is_lost_is_of_the_present_step_and_never_more_than_all(self) -> None:
        timed = replace(self.SLOW, numbers={**self.SLOW.numbers, "tax": 0.32, "step_s": 1.035, "is_step_measured": True})
        job = Finding("straggler_what_if", "straggling", "", numbers={"S": 1.25, "waste": 0.2})
        worker = Finding("straggler_what_if", "slow_worker", "", ranks=(5,), numbers={"share": 1.15})
        assert slow_tax([timed, job, worker], (5,), 0.7) == (0.32, "a step takes 1.03 s, 32.0 % of it lost against the steps before")
        told = slow_tax([self.SLOW, job, worker], (5,), 0.7)
        assert told is not None
        assert told[0] == pytest.approx(0.2)
        assert "100 % of that" in told[1]

    def test_no_other_cause_is_gone_on_with(self) -> None:
        assert loss(verdict("gpu_fault"), [], step_s=1.0, size=gpus(8), repair_h=1.0, recovery_s=1.0, again_s=0.0, is_running=True) is None

    def test_the_action_is_to_go_on_only_where_the_site_says_how_long_the_repair_takes(self) -> None:
        told = replace(NO_FACTS, step_s=20.0)  # 0.5 s of 20 s: 2.5 %
        slow = verdict("slow_rank")
        without = advised(slow, (self.SLOW,), facts=told, outcomes=ALIVE)
        with_ = advised(slow, (self.SLOW,), facts=told, outcomes=ALIVE, settings=Settings(repair_h=2.0))
        assert (without.action, without.evict_hosts) == ("replace", ("host-c",))
        assert (with_.action, with_.evict_hosts, with_.branch) == ("degrade", (), "degrade_or_replace")
        assert "go on until then" in with_.because

    def test_a_rank_that_was_a_little_slower_from_the_start_keeps_its_host(self) -> None:
        slow = verdict("slow_rank")
        told = replace(NO_FACTS, step_s=2.0)
        little = replace(self.SLOW, sign="slow_a_little", numbers={"own_s": 1.1, "others_s": 1.0})
        found = advised(slow, (little,), facts=told, outcomes=ALIVE, settings=Settings(repair_h=1000.0))
        assert (found.action, found.evict_hosts, found.branch) == ("degrade", (), "degrade_or_replace")
        assert "5.0 % of" in found.because
        assert "nothing shows that another host would be faster" in found.because
        of_another = advised(replace(slow, ranks=(4,)), (little,), facts=told, outcomes=ALIVE)
        assert of_another.action == "replace"


class TestRecovery:
    @pytest.mark.parametrize(
        ("machines", "cold", "hot"),
        [(128, 454.0, 46.0), (256, 545.0, 51.0), (512, 635.0, 54.0), (1024, 768.0, 65.0), (8, 454.0, 46.0), (5000, 768.0, 65.0)],
    )
    def test_published_seconds(self, machines: int, cold: float, hot: float) -> None:
        assert (reference_s("cold", machines)[0], reference_s("hot_standby", machines)[0]) == (cold, hot)

    @pytest.mark.parametrize(("machines", "between"), [(181, (454, 545, 499.5)), (362, (545, 635, 590.0)), (724, (635, 768, 701.5))])
    def test_between_two_sizes_it_is_interpolated_over_the_doubling(self, machines: int, between: tuple[float, float, float]) -> None:
        expected, least, most = reference_s("cold", machines)
        assert (least, most) == between[:2]
        assert expected == pytest.approx(between[2], abs=0.3)  # half of a doubling is 1.414 times the size

    def test_a_job_of_unknown_size_has_a_range(self) -> None:
        assert reference_s("cold", None) == (None, 454.0, 768.0)
        assert reference_s("hot_standby", None) == (None, 46.0, 65.0)

    def test_the_parts_are_those_of_initialisation(self) -> None:
        parts = {part["part"]: part for part in (advised(verdict("user_exception")).recovery or {})["parts"]}
        assert parts["load"]["share"] == pytest.approx(0.692 * 0.351, abs=1e-4)
        assert parts["warmup"]["share"] == pytest.approx(0.28, abs=0.001)  # of the restart
        assert parts["rebuild"]["expected_s"] == pytest.approx(454 * 0.692 * 0.245, abs=0.1)

    @pytest.mark.parametrize(("count", "source", "expected"), [(ENOUGH - 1, "published", 454.0), (ENOUGH, "own", 300.0)])
    def test_the_sites_own_history_counts_from_three_incidents_on(self, count: int, source: str, expected: float) -> None:
        own = [past(n, stage_s={"queue": 200.0, "load": 40.0}, repair_s=290.0 + 10.0 * n) for n in range(count)]
        told = advised(verdict("user_exception"), history=history(*own)).recovery or {}
        assert (told["source"], told["expected_s"]) == (source, expected)
        assert told["n"] == (count if source == "own" else None)
        if source == "own":
            assert next(part for part in told["parts"] if part["part"] == "load")["expected_s"] == 40.0
        else:
            assert "this site has 2 timed so far" in told["says"]

    def test_incidents_of_another_path_do_not_count(self) -> None:
        spares = [past(n, stage_s={"replace": 50.0}, repair_s=60.0) for n in range(5)]
        assert (advised(verdict("user_exception"), history=history(*spares)).recovery or {})["source"] == "published"


class TestShrink:
    LAYOUT = Layout(tp=2, pp=2, dp=4)

    def told(self, gone: int, world: int = 16, hosts: int = 8, layout: Layout = LAYOUT, **settings: Any) -> dict[str, Any]:
        found = shrink(layout, Settings(**settings), world_size=world, num_hosts=hosts, num_gone=gone)
        assert found is not None
        return found

    def test_replicas_go_and_the_rest_waits(self) -> None:
        found = self.told(1)
        assert (found["tp"], found["pp"], found["dp"], found["dp_after"], found["ranks_left"], found["ranks_spare"]) == (2, 2, 4, 3, 14, 2)
        assert found["step_time_factor"] == pytest.approx(4 / 3, abs=1e-4)

    def test_batch_accumulation_and_learning_rate(self) -> None:
        found = self.told(2, global_batch=96, micro_batch=2, learning_rate=4e-4)
        assert found["dp_after"] == 3
        assert (found["accumulation"], found["accumulation_kept_batch"]) == (12.0, 16.0)
        assert found["global_batch_kept_accumulation"] == 72.0
        assert found["lr_linear"] == pytest.approx(3e-4)
        assert found["lr_sqrt"] == pytest.approx(4e-4 * 0.75**0.5)

    def test_an_accumulation_that_is_no_whole_number_is_said(self) -> None:
        assert "no whole number" in self.told(2, global_batch=32, micro_batch=2)["says"]

    def test_memory_and_network_of_a_sharded_optimizer(self) -> None:
        found = self.told(2, model_params=8e9, is_optimizer_sharded=True, reshard_gb_s=24.0)
        assert found["rank_gb"] == 14.0  # 2e9 x 4 B + 2e9 x 12 B / 4
        assert found["rank_gb_after"] == 16.0  # ... / 3
        assert (found["moved_gb"], found["moved_s"]) == (96.0, 4.0)  # 8e9 x 12 B; at 24 GB/s

    def test_an_optimizer_that_every_replica_holds_is_not_moved(self) -> None:
        found = self.told(2, model_params=8e9, is_optimizer_sharded=False)
        assert (found["rank_gb"], found["rank_gb_after"], found["moved_gb"]) == (32.0, 32.0, 0.0)

    def test_without_the_size_of_the_model_the_formula_and_what_is_missing(self) -> None:
        found = self.told(1)
        assert found["rank_gb"] is None
        assert "P / (tp x pp)" in found["memory_formula"]
        assert any("model_params" in name for name in found["missing"])

    @pytest.mark.parametrize(
        ("layout", "layers", "gone", "pp", "each"),
        [
            (Layout(tp=2, pp=8, dp=1), None, 1, 7, None),
            (Layout(tp=2, pp=8, dp=1), 32, 1, 4, 8),  # 7, 6 and 5 do not divide 32
            (Layout(tp=2, pp=8, dp=1), 30, 1, 6, 5),
        ],
    )
    def test_where_no_replica_is_left_stages_are_split_anew(
        self, layout: Layout, layers: int | None, gone: int, pp: int, each: int | None
    ) -> None:
        found = self.told(gone, layout=layout, num_layers=layers)
        assert (found["keeps_layout"], found["pp_after"], found["layers_per_stage"]) == (False, pp, each)
        assert f"8 to {pp}" in found["resplit"]

    def test_where_not_even_a_tensor_group_is_left_that_is_said(self) -> None:
        assert "tp has to shrink" in self.told(1, world=16, hosts=2, layout=Layout(tp=16, pp=1, dp=1))["resplit"]

    def test_an_unknown_layout_is_told_as_such(self) -> None:
        found = self.told(1, layout=Layout())
        assert (found["dp_after"], found["keeps_layout"]) == (None, None)
        assert "give a rank map" in found["says"]

    def test_nothing_goes_nothing_follows(self) -> None:
        assert shrink(self.LAYOUT, NOT_SAID, world_size=16, num_hosts=8, num_gone=0) is None
        assert shrink(self.LAYOUT, NOT_SAID, world_size=None, num_hosts=8, num_gone=1) is None
