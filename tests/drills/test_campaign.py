"""Marks of a verdict against the truth, and a campaign over a capture that is there already."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from apps.verbs import drill as verb
from rca.drills._judge import PARTS, judge
from rca.errors import UsageError

CASES = Path(__file__).parents[2] / "data" / "cases"
TRUTH = {
    "first_failing_ranks": [3],
    "hosts": ["host-b"],
    "cause": ["slow_rank"],
    "layer": ["hardware"],
    "attribution": ["platform"],
    "action": ["replace", "degrade"],
}
ANSWER = {"cause": "slow_rank", "layer": "hardware", "attribution": "platform", "ranks": [3], "hosts": ["host-b"]}


def mark(action: str = "replace", evicted: tuple[str, ...] = (), **changed: Any) -> tuple[str, set[str]]:
    """The whole mark, and the parts that are not right."""
    said = ANSWER | changed
    verdict = {key: said[key] for key in ("cause", "layer", "attribution")}
    verdict["first_failing"] = {key: said[key] for key in ("ranks", "hosts")}
    whole, parts = judge(TRUTH, verdict, {"action": action, "evict": {"hosts": list(evicted)}})
    assert set(parts) == set(PARTS)
    return whole, {part for part, mark in parts.items() if mark != "right"}


def test_all_parts_right_is_right() -> None:
    assert mark() == ("right", set())
    assert mark(action="degrade", evicted=("host-b",)) == ("right", set())


def test_not_knowing_is_open() -> None:
    assert mark(cause="unknown", layer="unknown", attribution="unknown", action="human") == (
        "open",
        {"cause", "layer", "attribution", "action"},
    )
    assert mark(ranks=[], hosts=[]) == ("open", {"ranks", "hosts"})
    assert mark(cause="process_killed") == ("open", {"cause"})


def test_what_follows_from_a_right_cause_is_at_worst_open() -> None:
    assert mark(action="retry") == ("open", {"action"})


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"ranks": [2]}, "ranks"),
        ({"ranks": [2, 3]}, "ranks"),
        ({"hosts": ["host-a"]}, "hosts"),
        ({"cause": "code_hang"}, "cause"),
        ({"evicted": ("host-a", "host-b")}, "evicted"),
    ],
)
def test_an_accusation_of_the_innocent_or_another_cause_is_wrong(changed: dict[str, Any], part: str) -> None:
    assert mark(**changed) == ("wrong", {part})


def test_naming_a_rank_of_a_healthy_job_is_wrong() -> None:
    healthy = {"first_failing_ranks": [], "hosts": [], "cause": ["healthy"], "layer": ["none"], "attribution": ["none"], "action": ["none"]}
    verdict = {"cause": "healthy", "layer": "none", "attribution": "none", "first_failing": {"ranks": [], "hosts": []}}
    assert judge(healthy, verdict, {"action": "none"})[0] == "right"
    assert judge(healthy, verdict | {"first_failing": {"ranks": [1], "hosts": []}}, {"action": "none"})[0] == "wrong"


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verb.arguments(parser)
    return parser.parse_args(words)


def test_a_campaign_judges_captures_that_are_there_already(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(CASES / "mismatched_size", tmp_path / "mismatched_size_s0")
    code = verb.run(parse("campaign", "--live", "--out", str(tmp_path), "--faults", "mismatched_size", "--views", "whole", "only:kernel"))
    lines = capsys.readouterr().out.splitlines()
    document = json.loads((tmp_path / "campaign.json").read_text())
    whole, blind = document["runs"]
    assert code == 0
    assert lines[0].split()[:4] == ["fault", "seed", "view", "mark"]
    assert lines[1].split()[:6] == ["mismatched_size", "0", "whole", "right", "1", "collective_mismatch"]
    assert lines[2].split()[:4] == ["mismatched_size", "0", "only:kernel", "open"]
    assert whole["truth"] == json.loads((CASES / "mismatched_size" / "truth.json").read_text())
    assert whole["verdict"]["first_failing"]["ranks"] == [1]
    assert (whole["view"], whole["layout"], whole["error"]) == ("whole", {"tp": 2, "pp": 2, "dp": 2}, None)
    assert whole["marks"] == {"whole": "right", **dict.fromkeys(PARTS, "right")}
    assert blind["marks"]["cause"] == "open"
    assert document["totals"]["whole"]["right"] == document["totals"]["only:kernel"]["open"] == 1
    assert set(document["made_with"]) == {"cpus", "python", "torch", "py-spy"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--views", "only:fr"), "are of live campaigns"),
        (("--kinds", "flood"), "no simulated kind is called 'flood'"),
        (("--kinds", "gpu_lost", "--jobs", "0"), "at least one process"),
        (("--kinds", "gpu_lost", "--ranks", "9"), "no kind has a layout of 9 ranks"),
        (("--calibrate", "--seeds", "1"), "takes its own sizes and seeds"),
        (("--calibrate", "--kinds", "gpu_lost"), "none of these kinds is for the fit"),
        (("--live", "--faults", "flood"), "no drill is called 'flood'"),
        (("--live", "--views", "sideways"), "no view is called 'sideways'"),
        (("--live", "--faults", "rank_killed", "--ranks", "8"), "--ranks is of simulated drills"),
    ],
)
def test_a_campaign_that_cannot_be_meant_starts_nothing(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        verb.run(parse("campaign", "--out", str(tmp_path / "out"), *words))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--simulated", "--tp", "3"), "--tp: of live drills; .* of 8 ranks among .*tp2 dp4"),
        (("--simulated", "--ranks", "64", "--dp", "2", "--pp", "3"), "--pp, --dp: of live drills; .* of 64 ranks among .*tp8 dp8"),
        (("--simulated", "--ranks", "7", "--tp", "2"), "none of 7 ranks: choose of 8, 16"),
        (("--simulated", "--small", "--neutral"), "--small, --neutral: of live drills"),
        (("--live", "--ranks", "16"), "--ranks is of simulated drills"),
    ],
)
def test_an_option_of_the_other_kind_of_drill_is_never_passed_over(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        verb.run(parse("run", "rank_killed", "--out", str(tmp_path / "out"), *words))
    assert not (tmp_path / "out").exists()
