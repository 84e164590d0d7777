"""Figures of a campaign on numbers whose answer is known: intervals, calibration, the fit of weights, the tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rca.catalogues import rows
from rca.causes import CAUSES
from rca.drills._campaign_calibration import Answers, auroc, brier, ece, interval, reliability, skill
from rca.drills._campaign_evidence import Evidence
from rca.drills._campaign_fit import HIGHEST, LOWEST, MIN_SEEN, SHARPNESSES, _is_sure, _Problem, _stating, fit
from rca.drills._campaign_shares import at_least, at_most, wilson
from rca.drills._campaign_tables import short, tables
from rca.drills._campaign_torchfrtrace import first_finding
from rca.drills._judge import PARTS, judge
from rca.weighing import by_hand, weights


def test_interval_of_a_share_is_wilsons() -> None:
    """Newcombe 1998, table I: 81 of 263 and 15 of 148, and the ends."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(44, 44) == pytest.approx((0.9197, 1.0), abs=1e-4)


def test_no_hit_in_n_proves_about_three_in_n() -> None:
    assert at_most(0, 200) == pytest.approx(1 - 0.05 ** (1 / 200))
    assert at_most(0, 300) == pytest.approx(3 / 300, rel=0.01)
    assert at_least(10, 10) == pytest.approx(0.05**0.1)
    assert (at_most(7, 7), at_most(0, 0), at_least(0, 0)) == (1.0, 1.0, 0.0)


def answers(*told: tuple[float, int, int]) -> Answers:
    """(stated, right, wrong), each a kind of its own."""
    return Answers.of(
        [(p, n < right, f"kind {k}") for k, (p, right, wrong) in enumerate(told) for n in range(right + wrong)],
    )


def test_honest_probabilities_have_no_calibration_error_and_dishonest_ones_theirs() -> None:
    honest = answers((0.9, 90, 10), (0.6, 60, 40))
    boasting = answers((0.99, 90, 10), (0.99, 60, 40))
    assert ece(honest) == pytest.approx(0)
    assert ece(boasting) == pytest.approx(0.99 - 0.75)
    assert brier(honest) == pytest.approx((0.09 + 0.24) / 2)
    assert skill(honest) == pytest.approx(1 - 0.165 / 0.1875)
    assert skill(boasting) < 0
    assert np.isnan(skill(answers((0.9, 5, 0)))), "a constant is perfect there: nothing to compare with"


def test_auroc_counts_pairs() -> None:
    told = answers((0.9, 3, 1), (0.5, 1, 2), (0.7, 1, 0))
    good, bad = told.stated[told.is_right], told.stated[~told.is_right]
    pairs = [(g > b) + 0.5 * (g == b) for g in good for b in bad]
    assert auroc(told) == pytest.approx(sum(pairs) / len(pairs))
    assert np.isnan(auroc(answers((0.9, 3, 0))))


def test_equal_probabilities_stay_in_one_bin_and_all_are_counted() -> None:
    bins = reliability(answers((0.9, 30, 10), (0.95, 1, 1), (0.2, 3, 2)), bins=10)
    assert [b.count for b in bins] == [5, 40, 2]
    assert sum(b.right for b in bins) == 34
    assert all(b.low <= b.stated <= b.high for b in bins)


def test_interval_over_kinds_is_wider_than_over_as_many_independent_answers() -> None:
    alike = answers(*[(0.8, 20, 0)] * 8, *[(0.8, 0, 20)] * 2)
    apart = replace(alike, kinds=np.array([str(n) for n in range(len(alike))]))
    (low, high), (least, most) = interval(alike, brier), interval(apart, brier)
    assert high - low > 2 * (most - least)
    assert low <= brier(alike) <= high
    assert interval(alike, brier) == (low, high), "the same every time"


BY_HAND = {
    ("asked", "hit", "gpu_fault"): 3.0,
    ("asked", "hit", "code_hang"): 6.0,
    ("asked", "rare", "data_stall"): 5.0,
    ("asked", "off", "gpu_fault"): 4.0,
}


def incident(kind: str, cause: str, *, is_rare: bool = False) -> Evidence:
    """A sign that speaks for two causes, by hand more for the one that it never is."""
    causes = ("gpu_fault", "code_hang", "data_stall", "unknown")
    gains = [(0, "a", ("asked", "hit", "gpu_fault"), 0.0), (1, "a", ("asked", "hit", "code_hang"), 0.0)]
    gains += [(2, "b", ("asked", "rare", "data_stall"), 1.0)] if is_rare else []
    return Evidence(
        kind=kind, causes=causes, log2_prior=tuple(float(np.log2(CAUSES[c].prior)) for c in causes), is_right=tuple(c == cause for c in causes),
        is_nobody_unknown=(False, False, False, True), gains=tuple(gains), losses=((0, ("asked", "off", "gpu_fault")),), cause=cause,
        keys=frozenset(key for _, _, key, _ in gains) | {("asked", "off", "gpu_fault")},
    )  # fmt: skip


def test_gradient_of_the_fit_is_the_slope_of_its_loss() -> None:
    told = [incident(f"kind {n % 3}", "gpu_fault" if n % 3 else "data_stall", is_rare=n % 2 == 0) for n in range(9)]
    keys = sorted(BY_HAND)
    problem = _Problem(told, keys, np.ones(9))
    bits = np.array([BY_HAND[key] for key in keys]) + 0.01 * np.arange(4)
    value, slope = problem.loss(bits)
    for place in range(len(keys)):
        moved = bits.copy()
        moved[place] += 1e-6
        assert (problem.loss(moved)[0] - value) / 1e-6 == pytest.approx(slope[place], abs=1e-4)


def test_fit_moves_what_many_incidents_contradict_and_leaves_what_few_touch() -> None:
    told = [incident(f"kind {n % 5}", "gpu_fault", is_rare=n < MIN_SEEN - 1) for n in range(60)]
    found = fit(told, BY_HAND)
    assert found.bits["asked", "hit", "gpu_fault"] - found.bits["asked", "hit", "code_hang"] > 3.0 - 6.0 + 2.0
    assert found.loss_fitted < found.loss_by_hand - 0.5
    assert found.bits["asked", "rare", "data_stall"] == 5.0
    assert found.seen["asked", "rare", "data_stall"] == MIN_SEEN - 1
    assert all(LOWEST <= bits <= HIGHEST for bits in found.bits.values())
    assert (found.incidents, found.kinds) == (60, 5)
    assert fit(told, BY_HAND) == found, "the same incidents, the same weights"


def test_what_is_stated_is_sharper_where_answers_are_right_more_often_than_they_say() -> None:
    def held(stated: float, right: int, wrong: int) -> np.ndarray:
        number = right + wrong
        sharp = [stated**k / (stated**k + (1 - stated) ** k) for k in SHARPNESSES]
        return np.stack([np.full(number, stated), np.arange(number) < right, np.ones(number), *(np.full(number, p) for p in sharp)])

    surprise, sharpness = _stating(held(0.8, 95, 5), np.ones(100), np.arange(100))
    assert sharpness > 1.2
    assert (1 - surprise) * 0.8**sharpness / (0.8**sharpness + 0.2**sharpness) == pytest.approx(0.95, abs=0.05)
    assert _stating(held(0.9, 60, 40), np.ones(100), np.arange(100))[1] < 0.9
    surprise, sharpness = _stating(held(0.999, 95, 5), np.ones(100), np.arange(100))
    assert surprise == pytest.approx(0.05, abs=0.015)
    assert _stating(held(0.999, 95, 0), np.ones(95), np.arange(95))[0] < 0.02
    assert _stating(held(0.999, 95, 5), np.full(100, 0.1), np.arange(100))[0] == surprise, "how heavy a kind is changes nothing"


def test_weights_stay_as_set_by_hand_where_no_step_helps_on_kinds_left_out() -> None:
    told = [incident(f"kind {n % 5}", "code_hang") for n in range(40)]
    honest = {key: (9.0 if key[2] == "code_hang" else 1.0) for key in BY_HAND}
    odd = [incident("one of its own", "gpu_fault")] * 10
    found = fit([*told, *odd], honest)
    assert found.loss_fitted <= found.loss_by_hand
    assert found.spread or found.bits == honest


def test_a_gain_that_chance_among_kinds_would_give_moves_no_weight() -> None:
    told = [incident(f"kind {n % 5}", "code_hang") for n in range(40)]
    of_one = np.array([10.0 if n % 5 == 0 else -0.1 for n in range(40)])
    assert of_one.mean() > 0
    assert not _is_sure(of_one, told)
    assert _is_sure(np.full(40, 0.1) + of_one / 100, told)


def row(**changed: Any) -> dict[str, Any]:
    """A right answer about a dead GPU; `changed` as in a row of a campaign."""
    return {
        "kind": "gpu_lost", "ranks": 8, "seed": 1, "way": "tables", "layout": "dp8", "confusions": [], "class": "fault",
        "truth": {"first_failing_ranks": [3], "hosts": ["a"], "cause": ["gpu_fault"], "layer": ["hardware"], "action": ["replace"]},
        "said": {"cause": "gpu_fault", "layer": "hardware", "attribution": "platform", "action": "replace", "ranks": [3], "hosts": ["a"]},
        "marks": {"whole": "right", **dict.fromkeys(PARTS, "right")}, "stated": [0.98, True], "by_hand": [0.99, True],
        "evicted": {"named": 1, "hit": 1, "must": 1, "met": 1, "innocent": 0}, "failed": [], "signs": [],
        "beside": None, "made_s": 0.1, "judged_s": 0.2,
    } | changed  # fmt: skip


def test_tables_count_what_must_not_happen() -> None:
    calm = {"class": "healthy", "evicted": {"named": 0, "hit": 0, "must": 0, "met": 0, "innocent": 0}}
    accused = {
        "marks": row()["marks"] | {"whole": "wrong", "ranks": "wrong", "hosts": "wrong"},
        "said": row()["said"],
        "stated": [0.7, False],
    }
    rows = [row(), *(row(kind="calm", seed=n, **calm) for n in range(9)), row(kind="calm", seed=9, **calm | accused)]
    rows += [row(seed=3, stated=None, suspected=[0.2, False])]
    rows += [row(seed=2, is_thinned=True), row(kind="calm", seed=2, is_thinned=True, **calm | accused)]
    found = tables([short(r) for r in rows])
    never = {what: (seen, of) for what, seen, of, _ in found["What must not happen"][1]}
    assert never["healthy job: a rank or host accused"] == (1, 10)
    assert never["fault: another rank accused"] == (0, 2)
    (wrong,) = found["Answers that are not right"][1]
    assert wrong[:5] == ("calm", 8, 9, "tables", "none")
    assert dict(found["Eviction"][1][0:1] and [line[:2] for line in found["Eviction"][1]])["incidents with an eviction"] == 2
    assert [line[0] for line in found["By kind"][1]] == ["calm", "gpu_lost"]
    thinned = {what: (seen, of) for what, seen, of, _ in found["What must not happen, with a part of the evidence"][1]}
    assert thinned["healthy job: a rank or host accused"] == (1, 1)
    assert found["With a part of the evidence"][1][0][1:5] == (1, 0, 0, 1)
    assert [line[3] for line in found["Answers that are wrong with a part of the evidence"][1]] == ["thinned"]
    stated = {line[:3]: line[3:5] for line in found["Stated probability"][1]}
    assert stated["all", "whole and thinned", "what is named"] == (13, 11)
    assert stated["all", "whole", "what is named or suspected"] == (12, 10)
    assert stated["all", "thinned", "what is named"] == (2, 1)
    assert "Failures" not in found


def test_an_answer_that_did_not_come_is_told() -> None:
    found = tables([short(row()), {"kind": "gpu_lost", "ranks": 8, "seed": 2, "way": "tables", "error": "ValueError: no"}])
    assert found["Failures"][1] == [("gpu_lost: no answer, ValueError: no", 1)]
    assert found["By part of the answer"][1][0][-2] == 1


def test_where_nobody_can_tell_ranks_apart_some_of_them_are_enough() -> None:
    truth = {"first_failing_ranks": [2, 3], "hosts": ["a", "b"], "cause": ["code_hang"], "layer": ["software"], "attribution": ["workload"]}
    truth |= {"action": ["human"], "any_of_ranks": True, "evict_hosts": []}

    def marks(ranks: list[int], hosts: list[str], **more: Any) -> dict[str, str]:
        said = {"cause": "code_hang", "layer": "software", "attribution": "workload", "first_failing": {"ranks": ranks, "hosts": hosts}}
        return dict(judge(truth | more, said, {"action": "human"})[1])

    assert marks([3], ["b"])["ranks"] == marks([3], ["b"])["hosts"] == "right"
    assert marks([], [])["ranks"] == "open"
    assert marks([3, 4], ["b"])["ranks"] == "wrong"
    assert marks([3, 4], ["b"], tie=True)["ranks"] == "right"
    assert marks([4], ["c"], tie=True)["ranks"] == "wrong"


def test_a_group_that_must_go_whole_is_not_evicted_in_vain() -> None:
    truth = {
        "first_failing_ranks": [],
        "hosts": [],
        "cause": ["unknown"],
        "layer": ["unknown"],
        "attribution": ["unknown"],
        "action": ["replace"],
    }
    said = {"cause": "unknown", "layer": "unknown", "attribution": "unknown"}
    goes = {"action": "replace", "evict": {"hosts": ["a", "b"]}}
    assert judge(truth | {"evict_hosts": ["a", "b"]}, said, goes)[0] == "right"
    assert judge(truth | {"evict_hosts": ["a"]}, said, goes)[0] == "wrong"


def test_first_finding_of_torchfrtrace_is_read() -> None:
    text = "group info: 12:DP\ncollective: nccl:all_reduce\nmissing ranks: {3, 7}\ncollective stack trace:\n...\nmissing ranks: {1}\n"
    assert first_finding(text) == ([3, 7], "12:DP")
    assert first_finding("Culprit rank 4; reason\n")[0] == [4]
    assert first_finding("nothing\n") == ([], "no finding")


def test_shipped_weights_are_those_set_by_hand_where_the_fit_had_little_to_say() -> None:
    told = {(r["analysis"], r["sign"], r["cause"]): r for r in rows("bits")}
    fitted = {key: r for key, r in told.items() if r.get("set_by_hand")}
    for key, r in fitted.items():
        moved = float(r["bits"]) - float(r["set_by_hand"])
        assert int(r["seen"]) >= MIN_SEEN or abs(moved) < 1e-3, key
        assert LOWEST <= float(r["bits"]) <= HIGHEST, key
    assert by_hand().bits == {key: float(r.get("set_by_hand") or r["bits"]) for key, r in told.items()}
    assert by_hand().surprise == 0 <= weights().surprise <= 0.1
    assert SHARPNESSES[0] <= weights().sharpness <= SHARPNESSES[-1]
    assert by_hand().sharpness == 1
