"""The explorer without a browser: pages run, say what they should, and show text from evidence by nothing that interprets it; the verb's messages."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _hostile_case import ATTACK, hostile_case
from _house import FOLDERS, ROOT, SAMPLE, call, copy_built, copy_case, copy_dumps, slow_but
from _small_fleet import LAST_WEEK, small_fleet

from rca import plugins
from rca.errors import UsageError

if TYPE_CHECKING:
    from streamlit.testing.v1 import AppTest

INTERPRETED = ("markdown", "error", "warning", "info", "success", "caption", "title", "header", "subheader", "metric", "html")


def app(paths: list[str], fleet: str = "", page: str = "incident") -> AppTest:
    """A page of the explorer, run once."""
    from streamlit.testing.v1 import AppTest

    def script(paths: list[str], fleet: str, page: str) -> None:
        from apps.explorer import show_page

        show_page(page, paths, fleet)

    return AppTest.from_function(script, default_timeout=120, kwargs={"paths": paths, "fleet": fleet, "page": page}).run()


def said(at: AppTest) -> str:
    return "\n".join([*(one.value for one in at.text), *(one.value for one in at.code)])


def interpreted(at: AppTest) -> list[str]:
    """Text that streamlit reads as Markdown or HTML, labels of widgets among it."""
    found = [str(getattr(one, "value", "")) for kind in INTERPRETED for one in at.get(kind)]
    return [*found, *(str(getattr(one, "label", "")) for kind in ("expander", "button", "selectbox") for one in at.get(kind))]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_dumps(SAMPLE, tmp_path_factory.mktemp("explorer") / SAMPLE)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_fleet(tmp_path_factory.mktemp("explorer") / "fleet", host=ATTACK, summary=ATTACK)


def test_incident_page_gives_the_answer_first(case: Path) -> None:
    at = app([str(case)])
    assert not at.exception
    lines = [one.value for one in at.text]
    assert lines[1].startswith("Rank 3 on host-b ")
    assert "code hang" in lines[1]
    text = said(at)
    for words in ("no: concluded from evidence, not reproduced", "fix code", "software; workload", "2026-11-29 21:11:31.633 UTC"):
        assert words in text
    assert any(one.value.startswith("ssh host-b ") for one in at.code)


PAGES = tuple(dict.fromkeys(("none", "host_lost", "planned_stop", *FOLDERS[::2])))  # every second case: two seconds each


@pytest.mark.parametrize("name", slow_but("none", "host_lost", "planned_stop", of=PAGES))
def test_a_shipped_case_has_its_page(name: str, tmp_path: Path) -> None:
    at = app([str(copy_case(name, tmp_path / name))])
    assert not at.exception
    assert not at.error
    opened = at.get("expander")
    for number in range(1, len(opened) + 1):
        at.session_state[f"finding_{number}"] = True
    at.run()
    assert not at.exception
    headlines = call("diagnose", tmp_path / name).out.splitlines()
    assert [one.value for one in at.text][1:3] == headlines[:2]


def test_a_finding_is_read_from_its_file_when_it_is_opened(case: Path) -> None:
    at = app([str(case)])
    assert "fr/nccl_trace_rank_2 E47" not in said(at)
    at.session_state["finding_1"] = True
    at.run()
    assert "fr/nccl_trace_rank_2 E47" in said(at)
    assert "rank 2: all_reduce #53 on tp:46584c88 [4,64] -> [4,64]" in said(at)


def test_hostile_text_meets_nothing_that_interprets_it(tmp_path: Path) -> None:
    folder = hostile_case(tmp_path / "**case** :red[x] $y$")
    at = app([str(folder)])
    assert not at.exception
    at.session_state["finding_1"] = True
    at.run()
    assert ATTACK in said(at)
    assert f"rca open '{folder}'" in said(at)  # a command to copy: the shell must not read the name either
    shown = "".join(text for text in interpreted(at) if not text.startswith("<style>"))
    assert shown
    assert [mark for mark in ("<", "**", "](", "$", ":red", "javascript") if mark in shown] == []


def test_fleet_pages_show_figures_and_records(fleet: Path) -> None:
    at = app([], str(fleet), "reliability")
    assert not at.exception
    assert "5 interruptions: 4 failures, 1 planned" in said(at)
    assert at.selectbox(key="week").value == 0
    assert LAST_WEEK in at.selectbox(key="week").options[0]
    at.session_state["num_weeks"] = 1
    at.run()
    assert "2 interruptions: 2 failures, 0 planned" in said(at)
    record = app([str(fleet)])
    assert not record.exception
    assert ATTACK in said(record)
    assert "from the first stage to the end of the last: 420 s of 600 s allowed" in said(record)
    assert "<img" not in "".join(interpreted(record)).replace("<style>", "")


@pytest.mark.parametrize(("page", "words"), [("incident", "No evidence was named"), ("reliability", "No fleet was found")])
def test_without_anything_to_show_a_page_says_what_to_name(page: str, words: str) -> None:
    at = app([], "", page)
    assert not at.exception
    assert words in at.info[0].value


def test_evidence_that_cannot_be_read_is_a_message_on_the_page(tmp_path: Path) -> None:
    broken = tmp_path / "**case**.duckdb"
    broken.write_bytes(b"12345678DUCK" + bytes(5000))
    at = app([str(broken), str(tmp_path / "gone")])
    assert not at.exception
    assert "cannot be shown" in at.error[0].value
    assert "**case**.duckdb" in at.code[0].value
    at.selectbox(key="place_case").select_index(1).run()
    assert "gone" in at.code[0].value


def test_look_again_sees_what_was_added(case: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(case, tmp_path / "case"))
    at = app([str(folder)])
    before = at.text[0].value
    (folder / "more.log").write_text("nothing of interest\n")
    at.button[0].click().run()
    assert at.text[0].value != before


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"value": None, "unit": "h", "why": "no job hours are recorded"}, "not known: no job hours are recorded"),
        ({"value": 75.0, "unit": "h", "n": 4, "low": 29.25, "high": 275.3}, "75 h (of 4; 95 %: 29.2 h to 275.3 h)"),
        (
            {"value": 0.02, "unit": "h", "numerator": 0.04, "denominator": 2.0, "low": 0.005, "high": 0.9, "n": 2},
            "72 s (0.04 h / 2; 95 %: 18 s to 54.0 min)",
        ),
        ({"value": 0.5, "unit": "", "numerator": 2.0, "denominator": 4.0, "left_out": 1}, "50.0 % (2 / 4; 1 left out)"),
        ({"value": 0.998, "unit": "", "numerator": 343500.0, "denominator": 344064.0}, "99.8 % (343,500 / 344,064)"),
        ({"value": 0.19, "unit": "", "numerator": 0.0038, "denominator": 0.02}, "19.0 % (0.0038 / 0.02)"),
        ({"value": 0.9999, "unit": ""}, "> 99.9 %"),
        ({"value": 0.0, "unit": "GPU h", "n": 0}, "0 GPU h"),
        ({"value": 0.002, "unit": "GPU h"}, "7.2 GPU s"),
        ({"value": 1.0, "unit": "incidents", "n": 1}, "1 incident (of 1)"),
        (
            {"value": 12.0, "unit": "GPU h", "n": 2, "left_out": 1, "why": "at least: 1 not recorded"},
            "12 GPU h (of 2; 1 left out; at least: 1 not recorded)",
        ),
    ],
)
def test_a_figure_says_unit_base_and_what_is_left_out(fields: dict[str, Any], words: str) -> None:
    from rca.reliability.window import Figure

    assert plugins.load("apps.pages", "reliability").figure_text(Figure("name", "says", **fields)) == words


def test_pages_are_described() -> None:
    described = (ROOT / "docs" / "explorer.md").read_text("utf-8")
    for name in plugins.names("apps.pages"):
        assert f"\n## {plugins.load('apps.pages', name).TITLE}\n" in described


def test_pages_say_their_title_and_what_they_are_over() -> None:
    for name in plugins.names("apps.pages"):
        page = plugins.load("apps.pages", name)
        assert page.TITLE
        assert page.OVER in ("case", "fleet")


def test_evidence_reaches_the_page_through_the_words_alone() -> None:
    """In pages, calls of streamlit that interpret text get constants, or f-strings of numbers and words of our own listed here."""
    ours = {"number", "places", "odd", "num_usual", "usual", "MAX_OUTLIERS"}
    risky = {*INTERPRETED, "write", "button", "expander", "selectbox", "toast", "popover", "progress"}
    for file in sorted((ROOT / "apps" / "pages").glob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        assert "unsafe_allow_html" not in file.read_text("utf-8")
        if file.name == "_words.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in risky and node.args:
                names = {n.id for n in ast.walk(node.args[0]) if isinstance(n, ast.Name)}
                assert names <= ours, f"{file.name}:{node.lineno}: {names - ours}"


def test_settings_keep_it_on_this_machine() -> None:
    from streamlit import config

    from apps.explorer import ADDRESS, OPTIONS

    assert ADDRESS == "127.0.0.1"
    assert OPTIONS["server.address"] == OPTIONS["browser.serverAddress"] == ADDRESS
    assert OPTIONS["browser.gatherUsageStats"] is False
    assert OPTIONS["server.enableXsrfProtection"] is OPTIONS["server.enableCORS"] is True
    assert set(OPTIONS) <= set(config.get_config_options())


def test_script_lies_beside_no_folder_that_streamlit_takes_for_pages() -> None:
    """Else the first visit of /reliability runs that file alone, and shows nothing."""
    from apps.explorer import SCRIPT

    assert SCRIPT.is_file()
    assert not (SCRIPT.parent / "pages").exists()


def test_taken_port_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = call("explore", ROOT / "data" / "cases" / SAMPLE, "--port", str(port), "--no-browser")
    assert done.code == 2
    assert re.search(rf"port {port} is taken.*--port", done.err)


def test_two_explorers_that_start_together_do_not_share_a_port() -> None:
    """The first does not listen for seconds; the second must not be sent to its page."""
    from apps.explorer import ADDRESS
    from apps.verbs.explore import _free_port

    port, claim = _free_port(ADDRESS, None)
    with claim:
        other, second = _free_port(ADDRESS, None)
        second.close()
        assert other > port
        with pytest.raises(UsageError, match=f"port {port} is taken"):
            _free_port(ADDRESS, port)
    again, third = _free_port(ADDRESS, port)
    third.close()
    assert again == port


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("explore", "/no/such/case", "--no-browser"), "/no/such/case: no such file or folder"),
        (("explore", "--fleet", "/no/such/fleet", "--no-browser"), "there is no fleet at /no/such/fleet"),
        (("explore", "--port", "70000", "."), "from 1 to 65535"),
    ],
)
def test_what_cannot_be_shown_is_told(argv: tuple[str, ...], words: str) -> None:
    done = call(*argv)
    assert done.code == 2
    assert words in done.err


@pytest.mark.parametrize("name", ["streamlit", "plotly"])
def test_without_its_packages_it_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec

    def without(wanted: str, *rest: Any) -> Any:
        return None if wanted == name else real(wanted, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    done = call("explore", ROOT / "data" / "cases" / SAMPLE, "--no-browser")
    assert done.code == 2
    assert f"needs {name}: pip install 'firstfault[explore]'" in done.err


def test_evidence_in_which_nothing_can_be_read_has_no_verdict_but_the_words_of_diagnose(tmp_path: Path) -> None:
    folder = tmp_path / "case"
    folder.mkdir()
    for add in (lambda: None, lambda: (folder / "note.txt").write_text("nothing here\n"), lambda: os.mkfifo(folder / "pipe")):
        add()
        done = call("diagnose", folder)
        at = app([str(folder)])
        assert (done.code, bool(at.exception)) == (3, False)
        assert done.out.splitlines()[0] == at.text[0].value
        assert all(line.strip() in said(at) for line in done.out.splitlines())
        assert "accuses no rank" not in said(at)


def test_only_what_still_stands_is_shown_as_overruled(tmp_path: Path) -> None:
    """A later overrule replaces an earlier one, who agrees with the tool overrules nothing, and another incident has its own."""
    folder = copy_built("planned_stop", tmp_path / "case")

    def overruled(incident: int = 0) -> list[str]:
        at = app([str(folder)])
        at.button[0].click().run()
        if incident:
            next(box for box in at.selectbox if box.label == "Incident").select_index(incident).run()
        assert not at.exception
        return [one.value for one in at.text if one.value.endswith((": early", ": late", ": back")) and "overrule" not in one.value]

    def overrule(name: str, *words: str) -> None:
        assert call("overrule", folder, "--id", name, *words).code == 0

    assert call("open", folder, "--id", "A").code == 0
    assert overruled() == []
    overrule("A", "--attribution", "platform", "--because", "early")
    assert overruled() == ["attribution platform: early"]
    overrule("A", "--attribution", "workload", "--cause", "storage_stall", "--because", "late")
    assert overruled() == ["attribution workload, cause storage stall: late"]
    overrule("A", "--attribution", "planned", "--cause", "planned_stop", "--because", "back")
    assert overruled() == []
    assert call("open", folder, "--id", "B", "--again").code == 0
    overrule("B", "--attribution", "platform", "--because", "late")
    assert overruled() == []
    assert overruled(1) == ["attribution platform: late"]


def test_what_is_stated_stands_in_the_answer_beside_what_the_tool_said(tmp_path: Path) -> None:
    folder = copy_built("planned_stop", tmp_path / "case")
    assert call("open", folder, "--id", "A").code == 0
    before = [one.value for one in app([str(folder)]).text]
    assert call("overrule", folder, "--cause", "storage_stall", "--because", "the mount hung").code == 0
    at = app([str(folder)])
    at.button[0].click().run()
    assert not at.exception
    after = [one.value for one in at.text]
    (why,) = [line for line in after if line.startswith("storage stall: ")]
    assert "the tool said: planned stop" in why
    assert any(line.startswith("storage data; platform (stated by a person; the tool said: operator; planned") for line in after)
    assert any("retry (stated by a person; the tool said: " in line for line in after)  # what follows from the stated cause
    assert f"The tool said, and was overruled: {before[1]}" in after
    assert not any("overruled" in line or "stated by a person" in line for line in before)


@pytest.mark.parametrize("cause", ["no_such_cause", ["gpu_fault"], None])
def test_an_overrule_edited_into_nonsense_counts_for_nothing(cause: object, tmp_path: Path) -> None:
    folder = copy_built("planned_stop", tmp_path / "case")
    assert call("open", folder, "--id", "A").code == 0
    assert call("overrule", folder, "--cause", "storage_stall", "--because", "the mount hung").code == 0
    (file,) = (folder / "notes").glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[-1]["data"]["cause"] = cause
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    at = app([str(folder)])
    assert not at.exception
    assert not any("the tool said" in one.value.lower() for one in at.text)


def test_a_stage_is_told_with_its_moments_and_no_budget_is_none(tmp_path: Path) -> None:
    folder = copy_built("planned_stop", tmp_path / "case")
    assert call("open", folder, "--id", "A").code == 0
    assert call("stage", folder, "queue", "--start", "2026-11-29T21:18:00Z").code == 0
    assert call("stage", folder, "queue", "--end", "2026-11-29T21:19:00Z", "--why", "nodes came").code == 0
    at = app([str(folder)])
    assert not at.exception
    assert any(one.value.endswith("stage queue began 2026-11-29T21:18:00Z") for one in at.text)
    assert any(one.value.endswith("stage queue ended 2026-11-29T21:19:00Z: nodes came") for one in at.text)
    (rows,) = [frame.value for frame in at.dataframe if "budget, s" in frame.value.columns]
    assert dict(zip(rows["stage"], rows["budget, s"], strict=True))["queue"] == "none"
    headings = [one.value for one in at.subheader]
    assert headings.index("Stages") < headings.index("Notes")
    assert "to the last end told so far" in said(at)


def test_a_clock_that_was_ahead_does_not_make_an_overrule_the_last(tmp_path: Path) -> None:
    folder = copy_built("planned_stop", tmp_path / "case")
    assert call("open", folder, "--id", "A").code == 0
    assert call("overrule", folder, "--attribution", "platform", "--because", "early").code == 0
    (file,) = (folder / "notes").glob("*.jsonl")
    lines = file.read_text().splitlines()
    ahead = re.sub(r'"at": ?"[^"]*"', '"at": "2040-01-01T00:00:00Z"', lines[-1])
    assert ahead != lines[-1]
    file.write_text("\n".join([*lines[:-1], ahead, ""]))
    assert call("overrule", folder, "--attribution", "workload", "--because", "late").code == 0
    shown = [one.value for one in app([str(folder)]).text]
    assert "attribution workload: late" in shown


def test_a_table_spells_out_what_cannot_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    import polars as pl
    import streamlit as st

    from apps.pages._words import table

    shown: list[pl.DataFrame] = []
    monkeypatch.setattr(st, "dataframe", lambda frame, **_: shown.append(frame))
    table(pl.DataFrame({"host": ["x\u202egol", None], "rank": [1, 2]}), key="rows", labels=("host", "number"))
    assert shown[0].rows(named=True) == [{"host": "x\\u202egol", "number": 1}, {"host": None, "number": 2}]
