"""The advice for uneven work: how much of a stage to move, how to make batches even, and what it wins, by hand-worked numbers."""

from __future__ import annotations

import pytest

from rca.decision.even_work import even_work
from rca.decision.facts import NO_LAYOUT, Layout
from rca.settings import NOT_SAID, Settings
from rca.types import Finding
from tests._decision import advised, verdict


def heavy(**numbers: object) -> Finding:
    return Finding("uneven_work", "heavy_stage", "a stage is heavy", scope="stage", numbers=numbers)


def batches(**numbers: object) -> Finding:
    return Finding("uneven_work", "uneven_batches", "batches differ", scope="batches", numbers=numbers)


@pytest.mark.parametrize(
    ("ratio", "stages", "percent"),
    [(2.0, 2, 25), (2.0, 4, 38), (1.63, 4, 29), (3.0, 8, 58)],  # (p - 1)(r - 1) / (p r)
)
def test_what_a_stage_gives_up_leaves_all_with_the_same(ratio: float, stages: int, percent: int) -> None:
    told = even_work(verdict("stage_imbalance", ()), (heavy(ratio=ratio, num_stages=stages, stage=1),), NO_LAYOUT, NOT_SAID)
    assert told.startswith(f"move about {percent} % of the work of pipeline stage 1 to ")
    part = (stages - 1) * (ratio - 1) / (stages * ratio)
    assert ratio * (1 - part) == pytest.approx(1 + ratio * part / (stages - 1))


def test_layers_are_told_where_the_site_says_how_many_there_are() -> None:
    found = heavy(ratio=2.0, share=0.8, costs=1.25, stage_ranks=[4, 5, 6, 7])
    told = even_work(verdict("stage_imbalance", ()), (found,), Layout(pp=2), Settings(num_layers=40))
    assert "(ranks 4-7) to the other stage, about 5 of its 20 layers if all weigh alike" in told
    assert "steps about 16 % shorter (uneven work costs 20 % of the time, and 80 % of that comes back)" in told


def test_a_what_if_analysis_prices_what_is_lost() -> None:
    lost = Finding("straggler_what_if", "straggling", "a step takes longer", scope="job", numbers={"waste": 0.3})
    told = even_work(verdict("data_imbalance", ()), (batches(share=0.5), lost), NO_LAYOUT, NOT_SAID)
    assert "15 % shorter (uneven work costs 30 % of the time, and 50 % of that comes back)" in told


def test_ranks_with_longer_batches_are_named_and_nothing_unmeasured_is_promised() -> None:
    told = even_work(verdict("data_imbalance", ()), (batches(candidates=[2, 3]),), NO_LAYOUT, NOT_SAID)
    assert "ranks 2, 3 get no longer ones" in told
    assert "%" not in told


def test_nothing_is_rolled_back_or_replayed_for_uneven_work() -> None:
    found = advised(verdict("data_imbalance", ()), (batches(share=0.9, costs=1.3),))
    assert (found.action, found.branch, [step["branch"] for step in found.next]) == ("fix_code", "even_out", ["stop_time_checks"])
    assert found.next[0]["when"] == "steps stay as long"
    assert found.because.startswith("make the micro-batches of a step even")
    assert even_work(verdict("user_exception"), (batches(share=0.9),), NO_LAYOUT, NOT_SAID) == ""
