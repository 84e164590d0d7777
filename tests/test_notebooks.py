"""The notebooks run over the shipped data, and print what stands in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from _house import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def printed(book: dict[str, Any]) -> list[str]:
    """Source and text of every output, cell by cell."""
    found = []
    for cell in book["cells"]:
        for output in cell.get("outputs", []):
            text = output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
            found.append("".join(text))
    return found


def test_there_is_one_for_an_incident_one_for_a_fleet_and_one_for_what_figures_are_worth() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["calibration", "fleet", "incident"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_prints_what_stands_in_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import notebooks  # type: ignore[import-not-found]

    kept = printed(json.loads(path.read_text("utf-8")))
    assert len(kept) >= 5
    assert printed(json.loads(json.dumps(notebooks.executed(path)))) == kept
