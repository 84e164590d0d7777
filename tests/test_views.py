"""The shipped cases with evidence taken away or disguised: never a wrong accusation, and right when everything is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from _house import CASES, DUMPED, FOLDERS, assert_probabilities, diagnose_in_memory, truth

from rca.drills._judge import judge
from rca.drills._views import VIEWS, view


def test_a_view_shows_what_its_name_says(tmp_path: Path) -> None:
    capture, other = (CASES / name for name in DUMPED[:2])
    for name in VIEWS:
        into = tmp_path / name.replace(":", "_")
        into.mkdir()
        shown = view(capture, name, into, beside=other)
        files = sorted(p for p in shown.rglob("*") if p.is_file())
        assert files, name
        assert not any(p.name == "truth.json" for p in files), name
    assert not (tmp_path / "without_fr" / "evidence" / "fr").exists()
    assert sorted(p.name for p in (tmp_path / "only_logs" / "evidence").iterdir()) == ["logs", "topology.json"]
    assert not any("rank" in p.name for p in (tmp_path / "nameless" / "files").iterdir())
    assert (tmp_path / "clutter" / "evidence" / "old" / "logs-of-another-job").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_less_evidence_never_makes_the_answer_wrong(name: str, tmp_path: Path) -> None:
    other = next(folder for folder in FOLDERS if folder != name)
    marks = {}
    for shown in VIEWS:
        into = tmp_path / shown.replace(":", "_")
        into.mkdir()
        document = diagnose_in_memory(view(CASES / name, shown, into, beside=CASES / other))
        assert [o["why"] for o in document["outcomes"] if o["status"] == "failed"] == [], shown
        assert_probabilities(document)
        marks[shown], _ = judge(truth(name), document["verdict"], document["advice"])
    assert marks["whole"] == "right"
    assert [shown for shown, mark in marks.items() if mark == "wrong"] == []
