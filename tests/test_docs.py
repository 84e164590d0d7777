"""The documents are true: generated pages are current, every plugin is described, commands and links exist, README shows real output."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from apps.cli import EXIT_TEXT, main
from rca import plugins
from rca.causes import ACTIONS, ATTRIBUTIONS, CAUSES, LAYERS
from rca.tables import GROUP_KINDS, TABLES

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "data").rglob("*.md")])
DESCRIBED = [
    *(("verbs.md", f"## {name}") for name in plugins.names("apps.verbs")),
    *(("collectors.md", f"## {name}") for name in plugins.names("collectors")),
    *(("analyses.md", f"## {name}") for name in plugins.names("rca.analyses")),
    *(("drills.md", f"## {name}") for name in plugins.names("rca.drills")),
    *(("tables.md", f"## {name}") for name in TABLES),
    *(("causes.md", f"| `{name}` |") for name in CAUSES),
]
MAX_README_LINES = 80
MAX_DECISION_LINES = 60
RED = "#cf222e"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CHANGE = re.compile(r"- \[(FEATURE|ENHANCEMENT|BUGFIX)\] [a-z][a-z_, ]*: \S.*[^.\s]( \(#\d+\))?")
MACHINE_PATH = re.compile(rb"(?<![\w.\-/])/(?:work|root)/|/tmp/(?:lead)")
REGISTRY = re.compile(rb"index-(?:url)|https?://(?!pypi\.org\b)[^/\s\"']*(?:pypi|artifactory|nexus|registry)[^/\s\"']*", re.IGNORECASE)
HOLDS_PATHS = {"tests/drills/test_live_drills.py"}  # shows that such paths are taken out of a capture


def read(path: Path) -> str:
    return path.read_text("utf-8")


def tracked() -> list[Path]:
    """Files that git knows; an unpacked archive without git has none to ask for."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files are published is not known")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", read(path)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_generated_pages_are_current() -> None:
    done = subprocess.run([sys.executable, str(DOCS / "generate.py"), "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("page", "heading"), DESCRIBED)
def test_everything_that_exists_is_described(page: str, heading: str) -> None:
    assert any(line == heading or (heading.startswith("|") and line.startswith(heading)) for line in read(DOCS / page).splitlines())


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for link in LINK.findall(FENCED.sub("", read(page))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link}: no such file"
        assert target.is_relative_to(ROOT), f"{link}: leads out of the project"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def test_readme_fits_one_screen_and_names_commands_that_exist() -> None:
    readme = read(ROOT / "README.md")
    targets = set(re.findall(r"^([a-z]+):", read(ROOT / "Makefile"), re.MULTILINE))
    commands = set(re.findall(r"^ {4}make ([a-z]+)", readme, re.MULTILINE))
    assert len(readme.splitlines()) <= MAX_README_LINES
    assert {"demo", "test"} <= commands <= targets
    assert EXIT_TEXT.removeprefix("exit codes of diagnose: ") in " ".join(readme.split())


def test_contributing_names_commands_that_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", read(ROOT / "Makefile"), re.MULTILINE))
    assert set(re.findall(r"^ {4}make ([a-z]+)", read(ROOT / "CONTRIBUTING.md"), re.MULTILINE)) <= targets


def test_readme_shows_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    block = re.search(r"```text\n\$ \.venv/bin/rca diagnose data/cases/(\w+)\n(.*?)```", read(ROOT / "README.md"), re.DOTALL)
    assert block is not None
    folder = tmp_path / block[1]
    shutil.copytree(ROOT / "data" / "cases" / block[1], folder, ignore=shutil.ignore_patterns("case.duckdb*"))
    assert main(["diagnose", str(folder)]) == 0
    printed = iter(capsys.readouterr().out.splitlines())
    shown = [line for line in block[2].splitlines() if line.strip() not in ("", "[...]")]
    for line in shown:
        assert line in printed, f"not printed, or not in this order: {line!r}"


def test_picture_shows_every_rank_and_one_root() -> None:
    circles = [e for e in ET.parse(DOCS / "wait_graph.svg").iter() if e.tag.endswith("circle")]
    assert len(circles) == 8
    assert [e.get("fill") for e in circles].count(RED) == 1


def test_glossary_knows_the_closed_words() -> None:
    words = set(re.findall(r"\w+", read(DOCS / "glossary.md")))
    assert {*GROUP_KINDS, *ACTIONS, *LAYERS, *ATTRIBUTIONS} <= words


@pytest.mark.parametrize("page", DECISIONS, ids=lambda path: path.stem)
def test_decision_says_context_choice_consequence_on_one_page(page: Path) -> None:
    text = read(page)
    assert text.startswith(f"# {page.name[:4]} ")
    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == ["Context", "Choice", "Consequence"]
    assert len(text.splitlines()) <= MAX_DECISION_LINES


def test_decisions_are_numbered_without_gaps() -> None:
    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))


def test_changelog_lines_have_the_form() -> None:
    lines = [line for line in read(ROOT / "CHANGELOG.md").splitlines() if line.startswith("-")]
    assert lines
    assert [line for line in lines if not CHANGE.fullmatch(line)] == []


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = {}
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        data = path.read_bytes()
        hits = [*REGISTRY.findall(data), *([] if name in HOLDS_PATHS else MACHINE_PATH.findall(data))]
        if hits:
            found[name] = hits[:3]
    assert found == {}
