"""The whole product in one incident: a live fault is captured, named, proven by replay, closed, reported, and shown in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _house import ROOT

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = [pytest.mark.live, pytest.mark.browser]


@pytest.fixture
def story_script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/story.py, which plays the story and writes its page."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import story  # type: ignore[import-not-found]

    return story


def test_a_live_fault_becomes_a_line_of_the_weeks_report(story_script: ModuleType, tmp_path: Path) -> None:
    story = story_script.play(tmp_path)
    assert story.stopped == ()
    (rank,), (host,) = story.ranks, story.hosts

    answers = [told.output.splitlines()[0] for told in story.told if told.command.startswith("rca diagnose")]
    assert len(answers) == 2
    assert all(answer.startswith(f"Rank {rank} on {host} ") and "silent data corruption" in answer for answer in answers)
    assert ["proven by replay" in answer for answer in answers] == [False, True]
    verdict = story.ask("diagnose", "case")["verdict"]
    assert (verdict["proven"], verdict["first_failing"]["ranks"], verdict["first_failing"]["hosts"]) == (True, [rank], [host])

    (path,) = (tmp_path / "fleet" / "incidents" / story.week).glob("*.json")
    record = json.loads(path.read_text())
    assert (record["proven_cause"], record["attribution"], record["evicted"]) == ("silent_data_corruption", "platform", [host])
    assert {stage["stage"] for stage in record["stages"] if stage["ended_at"]} == {"detect", "localize", "replace", "resume"}
    assert record["lost_gpu_s"] > 0
    assert record["recomputed_tokens"] == record["recomputed_steps"] * 4096 > 0

    report = (tmp_path / "report" / f"report-{story.week}.md").read_text()
    line = next(line for line in report.splitlines() if record["incident_id"] in line)
    assert "silent data corruption" in line
    assert host in line
    assert record["incident_id"] in (tmp_path / "report" / f"report-{story.week}.html").read_text()

    shown = story_script.look(story, tmp_path / "pictures")
    assert shown["Incident"] == answers[1]
    assert " failure" in shown["Reliability"]
    for picture in (tmp_path / "pictures").iterdir():
        assert 20_000 < picture.stat().st_size < 200_000


def test_the_page_shows_the_commands_that_the_story_plays(story_script: ModuleType) -> None:
    page = (ROOT / "docs" / "story.md").read_text()
    typed = [line.removeprefix("$ rca ").split()[0] for line in page.splitlines() if line.startswith("$ rca ")]
    assert list(dict.fromkeys(typed)) == list(dict.fromkeys(prefix.split()[1] for prefix, _ in story_script.WORDS))
    for picture in (ROOT / "docs" / "pictures").glob("story_*.png"):
        assert picture.stat().st_size < 200_000
