"""The command as people and scripts meet it: exit codes, one JSON document, help, a closed pipe."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from _house import HEALTHY, RCA, ROOT, SAMPLE, call, copy_case, copy_dumps, finish, start

from rca import __version__, plugins
from rca.causes import ACTIONS, ATTRIBUTIONS, CAUSES, LAYERS
from rca.drills.simulated import KINDS
from rca.questions import questions
from rca.tables import TABLES

VERBS = plugins.names("apps.verbs")
DIAGNOSIS: dict[str, Any] = {
    "schema_version": None,
    "job_id": None,
    "attempt": None,
    "verdict": {
        "cause": None,
        "layer": None,
        "attribution": None,
        "probability": None,
        "summary": None,
        "proven": None,
        "concurrent": None,
        "first_failing": dict.fromkeys(
            ["ranks", "hosts", "gpus", "probability", "at", "after", "step", "last_collective", "data", "ordered_by"],
        ),
    },
    "advice": {
        "action": None,
        "evict": dict.fromkeys(["hosts", "ranks", "group", "innocent_hosts"]),
        "checkpoint": None,
        "replay": None,
        "because": None,
        "commands": None,
        "branch": None,
        "checks": None,
        "next": None,
        "retries": None,
        "degrade_or_replace": None,
        "shrink": None,
        "spares": None,
        "recovery": None,
        "before_restart": None,
        "eviction": None,
        "keep_out": None,
    },
    "hypotheses": None,
    "findings": None,
    "outcomes": None,
    "coverage": dict.fromkeys(["world_size", "ranks_with", "ranks_missing"]),
    "skipped": None,
    "timing": dict.fromkeys(["build_s", "diagnose_s"]),
}
OF_LISTS = {
    "hypotheses": ["cause", "layer", "probability", "ranks", "hosts", "supports", "against", "is_prior"],
    "findings": ["id", "analysis", "sign", "scope", "ranks", "hosts", "groups", "explains", "says", "numbers", "cites"],
    "outcomes": ["analysis", "status", "why"],
    "skipped": ["path", "record", "why"],
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    return copy_dumps(SAMPLE, tmp_path / "evidence")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A case that only readers use."""
    folder = copy_case(SAMPLE, tmp_path_factory.mktemp("built") / "evidence")
    (folder / "notes.txt").write_text("copied in a hurry\n")
    assert call("build", folder).code == 0
    return folder


def keys(document: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(document) == list(expected)
    for key, inner in expected.items():
        if inner is not None:
            keys(document[key], inner)


# Exit codes


def test_exit_0_is_a_verdict_healthy_included(built: Path, tmp_path: Path) -> None:
    assert call("diagnose", built).code == 0
    assert call("diagnose", copy_case(HEALTHY[0], tmp_path / "healthy")).code == 0


def test_exit_1_is_an_honest_unknown(tmp_path: Path) -> None:
    folder = copy_case(SAMPLE, tmp_path / "part")
    for path in [*(folder / "stacks").rglob("*"), *(folder / "fr").iterdir()]:
        if path.is_file() and "rank_0" not in path.name:
            path.unlink()
    done = call("diagnose", folder, "--json")
    assert done.code == 1
    assert done.doc["verdict"]["cause"] == "unknown"
    assert done.doc["verdict"]["first_failing"]["ranks"] == []
    assert done.doc["advice"]["action"] == "human"


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("no_such_verb",),
        ("diagnose",),
        ("diagnose", "{built}", "--no-such-flag"),
        ("diagnose", "{built}/nowhere"),
        ("inspect", "{built}", "--table", "no_such_table"),
        ("tables", "no_such_table"),
        ("analyse", "no_such_question", "{built}"),
        ("analyse",),
        ("analyse", "job_motion"),
        ("drill", "run", "no_such_drill", "--out", "{built}/x"),
    ],
)
def test_exit_2_is_usage_and_says_what_to_do(built: Path, words: tuple[str, ...]) -> None:
    done = call(*(word.format(built=built) for word in words))
    assert (done.code, done.out) == (2, "")
    assert done.err.strip().splitlines()[-1].startswith("rca")
    assert "Traceback" not in done.err


def test_exit_3_is_no_readable_evidence(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "notes.txt").write_text("the night shift knows more\n")
    done = call("diagnose", tmp_path / "nothing", "--json")
    assert done.code == 3
    assert done.doc["verdict"]["cause"] == "unknown"
    assert [s["path"] for s in done.doc["skipped"]] == ["notes.txt"]


BROKEN = '''"""Does a question that fails end the run?

1. It raises.
"""
NEEDS, USES, SIGNS = ("dumps",), (), {}
__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]


def analyse(case):
    raise ValueError("no such thing")
'''


def test_exit_4_is_an_analysis_that_failed_and_the_rest_still_answers(built: Path, tmp_path: Path) -> None:
    """A plugin that raises, found as every plugin is: by listing the package's folders, one of which is added for this process."""
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "a_broken_question.py").write_text(BROKEN)
    code = "import sys, rca.analyses; rca.analyses.__path__.append(sys.argv[1]); from apps.cli import main; sys.exit(main(sys.argv[2:]))"
    words = [sys.executable, "-c", code, str(extra)]
    done = subprocess.run([*words, "diagnose", str(built), "--json"], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 4, done.stderr
    document = json.loads(done.stdout)
    outcomes = {o["analysis"]: o for o in document["outcomes"]}
    assert outcomes["a_broken_question"] == {"analysis": "a_broken_question", "status": "failed", "why": "ValueError: no such thing"}
    assert {name for name, o in outcomes.items() if o["status"] == "failed"} == {"a_broken_question"}
    assert document["verdict"]["first_failing"]["ranks"] == call("diagnose", built, "--json").doc["verdict"]["first_failing"]["ranks"]
    asked = subprocess.run(
        [*words, "analyse", "a_broken_question", str(built)], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    assert asked.returncode == 4
    assert "a_broken_question: failed" in asked.stdout
    shown = subprocess.run([*words, "diagnose", str(built)], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert "a_broken_question (failed): ValueError: no such thing" in shown.stdout


# JSON


def test_diagnosis_is_one_document_with_its_keys_in_order(built: Path) -> None:
    done = finish(start("diagnose", built, "--json"))
    assert (done.code, done.err) == (0, "")
    document = done.doc
    keys(document, DIAGNOSIS)
    assert document["schema_version"] == "rca.diagnosis/1"
    for name, expected in OF_LISTS.items():
        assert document[name], name
        for item in document[name]:
            assert list(item) == expected
    assert all(h["is_prior"] is not bool(h["supports"]) for h in document["hypotheses"])
    assert {h["is_prior"] for h in document["hypotheses"]} == {False, True}, "a cause that nothing speaks for has its share too"
    for finding in document["findings"]:
        assert finding["cites"]
        for cite in finding["cites"]:
            assert list(cite) == ["table", "path", "record", "text"]
    assert "NaN" not in done.out
    assert "Infinity" not in done.out


def test_words_of_a_diagnosis_are_those_of_the_vocabularies(whole: dict[str, Any]) -> None:
    document, verdict = whole, whole["verdict"]
    assert verdict["cause"] in CAUSES
    assert verdict["layer"] in LAYERS
    assert verdict["attribution"] in ATTRIBUTIONS
    assert document["advice"]["action"] in ACTIONS
    assert verdict["first_failing"]["ordered_by"] in ("collective", "wait", "clock", "log", None)
    assert {o["status"] for o in document["outcomes"]} <= {"found", "clear", "blind", "failed"}
    assert [o["analysis"] for o in document["outcomes"]] == list(questions())


def test_lists_of_a_diagnosis_are_sorted(whole: dict[str, Any]) -> None:
    document = whole
    for ranks in [*document["coverage"]["ranks_missing"].values(), *(h["ranks"] for h in document["hypotheses"])]:
        assert ranks == sorted(ranks)
    for finding in document["findings"]:
        assert finding["ranks"] == sorted(finding["ranks"])
        assert finding["hosts"] == sorted(finding["hosts"])
    assert document["skipped"] == sorted(document["skipped"], key=lambda s: (s["path"], s["record"] or "", s["why"]))


@pytest.fixture(scope="module")
def whole(built: Path) -> dict[str, Any]:
    return call("diagnose", built, "--json").doc


@pytest.mark.parametrize("question", questions())
def test_one_question_answers_as_one_document(built: Path, whole: dict[str, Any], question: str) -> None:
    done = call("analyse", question, built, "--json")
    assert done.code in (0, 1)
    assert list(done.doc) == ["schema_version", "analysis", "status", "why", "findings"]
    assert (done.doc["schema_version"], done.doc["analysis"]) == ("rca.analysis/1", question)
    assert done.doc["findings"] == [f for f in whole["findings"] if f["analysis"] == question]
    text = call("analyse", question, built).out
    assert text.startswith(f"{question}: {done.doc['status']}")


def test_a_question_without_its_evidence_is_blind_and_exit_1(tmp_path: Path) -> None:
    folder = copy_case(SAMPLE, tmp_path / "dumps")
    for path in [p for p in folder.rglob("*") if p.is_file() and p.parent.name != "fr"]:
        path.unlink()
    done = call("analyse", "stack_clusters", folder, "--json")
    assert (done.code, done.doc["status"], done.doc["why"]) == (1, "blind", "no rows in stacks")


# Inspect and tables


def test_inspect_shows_every_file_and_the_rows_asked_for(built: Path) -> None:
    done = call("inspect", built, "--json", "--table", "dumps", "--table", "ranks", "--table", "outcomes")
    assert done.code == 0
    document = done.doc
    assert list(document) == ["schema_version", "files", "tables", "open"]
    assert document["schema_version"] == "rca.inspect/1"
    blind = {row["analysis"] for row in document["tables"]["outcomes"] if row["status"] == "blind"}
    assert {question["question"] for question in document["open"]} == blind
    for question in document["open"]:
        assert question["asks"].endswith("?") or "?" in question["asks"]
        assert question["why"]
        assert all(
            document_rows == []
            for document_rows in (call("inspect", built, "--json", "--table", name).doc["tables"][name] for name in question["lacks"])
        )
    assert [f["path"] for f in document["files"]] == sorted(
        p.relative_to(built).as_posix() for p in built.rglob("*") if p.is_file() and p.name != "case.duckdb"
    )
    for file in document["files"]:
        spans = ["first_at", "last_at", "first_at_local", "last_at_local"]
        assert list(file) == ["path", "collector", "rows", "skipped", *spans, "ranks", "guess", "copy_of"]
        assert file["collector"] or file["skipped"]
    assert list(document["tables"]) == ["dumps", "ranks", "outcomes"]
    assert [row["rank"] for row in document["tables"]["dumps"]] == list(range(8))
    for name in ("dumps", "ranks"):
        for row in document["tables"][name]:
            assert list(row) == [*TABLES[name].schema.names(), "path"]
            assert (built / row["path"]).is_file()


def test_every_table_can_be_asked_for_and_is_there_even_when_empty(built: Path) -> None:
    words = [word for table in TABLES for word in ("--table", table)]
    tables = call("inspect", built, "--json", *words).doc["tables"]
    assert list(tables) == list(TABLES)
    assert all(isinstance(rows, list) for rows in tables.values())
    assert tables["ranks"]


def test_inspect_as_text_names_files_reasons_and_rows(built: Path) -> None:
    out = call("inspect", built, "--table", "dumps").out
    assert re.match(r".*: \d+ files, \d+ read by \d+ collectors\n\nfile +collector +ranks +when \(UTC, or local as marked\) +rows\n", out)
    assert re.search(r"^fr/nccl_trace_rank_\{0-7\} \(8 files\) +flight_recorder +0-7 +\d{4}-\d\d-\d\d ", out, re.MULTILINE)
    assert re.search(r"^Not read, or not all of it\n(?: .*\n)*?  notes.txt: no collector recognises it; \w+", out, re.MULTILINE)
    assert re.search(r"^  recorder dumps +8 of 8$", out, re.MULTILINE)
    assert re.search(r"^  also not there: .*replays \(replay_proof\)", " ".join(out.split("\n    ")), re.MULTILINE)
    every = call("inspect", built, "--all").out
    assert re.search(r"^  no replays; to bring: .*\n    replay_proof: ", every, re.MULTILINE)
    assert all(re.search(rf"^fr/nccl_trace_rank_{rank} +flight_recorder +{rank} ", every, re.MULTILINE) for rank in range(8))
    assert f"dumps: one row per {TABLES['dumps'].grain}" in out


def test_tables_lists_every_table_with_its_grain(tmp_path: Path) -> None:
    out = call("tables").out
    for name, table in TABLES.items():
        assert re.search(rf"^{name} +{re.escape(table.grain)}$", out, re.MULTILINE)
    shown = call("tables", "dumps").out
    for column in TABLES["dumps"].columns:
        assert re.search(rf"^{column.name} .*{re.escape(column.doc)}$", shown, re.MULTILINE)
    document = call("tables", "--json").doc
    assert list(document["tables"]) == list(TABLES)


def test_questions_are_listed_with_what_they_ask() -> None:
    lines = call("analyse", "--list").out.splitlines()
    assert [line.split()[0] for line in lines] == ["question", *questions()]
    assert all("?" in line for line in lines[1:])


def test_drills_are_listed() -> None:
    live, simulated = call("drill", "list").out.split("\nsimulated:\n")
    assert [line.split()[0] for line in live.splitlines() if line and not line.endswith(":")] == list(plugins.names("rca.drills"))
    assert [line.split()[0] for line in simulated.splitlines()] == sorted(KINDS)


# Help


@pytest.mark.parametrize("verb", VERBS)
def test_verb_has_help_that_begins_with_its_docstring(verb: str) -> None:
    first = (plugins.load("apps.verbs", verb).__doc__ or "").strip().splitlines()[0]
    done = call(verb, "--help")
    assert done.code == 0
    assert first.endswith((".", "?", ":"))
    described = [line for line in done.out.split("\n\n")[1].splitlines() if line.strip()]
    assert described[0] == first
    assert f" {verb} {first}" in " ".join(call("--help").out.split())


def test_help_tells_the_exit_codes() -> None:
    out = " ".join(call("--help").out.split())
    for words in ("0 a verdict", "1 an honest unknown", "2 usage", "3 no readable evidence", "4 an analysis failed"):
        assert words in out


def test_every_argument_has_help() -> None:
    import argparse

    for verb in VERBS:
        parser = argparse.ArgumentParser()
        plugins.load("apps.verbs", verb).arguments(parser)
        assert [a.dest for a in parser._actions if not a.help and not isinstance(a, argparse._SubParsersAction)] == []


def test_version_is_told() -> None:
    assert call("--version").out == f"firstfault {__version__}\n"


def test_the_installed_command_is_the_same_program() -> None:
    command = Path(sys.executable).with_name("rca")
    if not command.exists():
        pytest.skip("the package is not installed beside this interpreter")
    done = subprocess.run([str(command), "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"firstfault {__version__}\n"


# Terminals and pipes


@pytest.mark.parametrize("words", [("diagnose", "{built}"), ("inspect", "{built}", "--json", "--table", "collectives"), ("tables",)])
def test_a_reader_that_leaves_early_sees_no_traceback(built: Path, words: tuple[str, ...]) -> None:
    command = " ".join([*RCA, *(word.format(built=built) for word in words)])
    for reader in ("head -1", "true"):
        done = subprocess.run(
            ["bash", "-c", f'set -o pipefail; {command} | {reader}; echo "codes ${{PIPESTATUS[*]}}" >&2'],
            capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
        )  # fmt: skip
        assert re.fullmatch(r"codes 0 0\n", done.stderr), done.stderr


def test_a_terminal_that_knows_only_ascii_still_shows_the_answer(built: Path) -> None:
    done = finish(start("diagnose", built, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}))
    assert done.code == 0
    assert done.out.startswith("Rank ")


def test_json_is_utf8_wherever_it_is_written(evidence: Path) -> None:
    (evidence / "nötiz-日本.txt").write_text("x\n")
    done = finish(start("diagnose", evidence, "--json", env={"PYTHONIOENCODING": "utf-8"}))
    assert "nötiz-日本.txt" in {s["path"] for s in done.doc["skipped"]}
    plain = finish(start("diagnose", evidence, "--json", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}))
    assert plain.code == done.code
    assert {**plain.doc, "timing": None, "skipped": None} == {**done.doc, "timing": None, "skipped": None}


def test_nothing_is_written_to_stderr_when_it_is_no_terminal(evidence: Path) -> None:
    for words in (("diagnose", evidence, "--json"), ("inspect", evidence)):
        assert finish(start(*words)).err == ""


def test_a_home_that_cannot_be_written_is_no_obstacle(evidence: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    done = finish(start("diagnose", evidence, "--json", env={"XDG_CACHE_HOME": str(tmp_path / "file")}))
    assert done.code == 0, done.err


def test_a_case_that_cannot_be_written_says_where_and_what_to_do(evidence: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    done = finish(start("build", evidence, "--case", tmp_path / "file" / "case.duckdb"))
    assert (done.code, done.out) == (2, "")
    assert str(tmp_path / "file") in done.err
    assert "--case" in done.err
    assert "Traceback" not in done.err
    assert finish(start("diagnose", evidence, "--case", tmp_path / "file" / "case.duckdb", "--json")).code == 2


def unwritable(how: str, evidence: Path, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """Evidence whose case has no place; the folder that stderr must name, and the environment."""
    if how == "a folder bears the name":
        (evidence / "case.duckdb").mkdir()
        return evidence / "case.duckdb", {}
    (tmp_path / "file").write_text("no folder")
    evidence.chmod(0o555)
    return tmp_path / "file", {"XDG_CACHE_HOME": str(tmp_path / "file")}


@pytest.mark.parametrize("how", ["a folder bears the name", "read-only evidence and no cache"])
def test_a_verdict_needs_no_place_for_the_case(how: str, evidence: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 3 is for evidence that cannot be read, never for a case that cannot be written."""
    named, env = unwritable(how, evidence, tmp_path)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    try:
        for words in (
            ("diagnose", evidence, "--json"),
            ("inspect", evidence, "--json"),
            ("analyse", "first_silent_rank", evidence, "--json"),
        ):
            done = call(*words)
            assert done.code == 0, done.err
            assert len(done.err.splitlines()) == 1
            assert str(named) in done.err
            assert "--case" in done.err
            assert "temporary folder" in done.err
            if words[0] == "diagnose":
                assert done.doc["verdict"]["first_failing"]["ranks"] == [3]
        kept = call("build", evidence)
        assert (kept.code, kept.out) == (2, "")
        assert str(named) in kept.err
    finally:
        evidence.chmod(0o755)


def test_a_verdict_needs_no_room_on_any_disk(evidence: Path) -> None:
    """Held in memory, with the same answer."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        done = call("diagnose", evidence, "--json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (done.code, len(done.err.splitlines())) == (0, 1), done.err
    assert "in memory" in done.err
    assert not (evidence / "case.duckdb").exists()
    assert {**done.doc, "timing": None} == {**call("diagnose", evidence, "--json").doc, "timing": None}


def test_a_path_with_spaces_and_quotes_is_a_path(tmp_path: Path) -> None:
    folder = copy_case(SAMPLE, tmp_path / 'it\'s a "job" $(x)')
    assert call("diagnose", folder, "--json").code == 0
    assert not os.path.lexists(tmp_path / "x")


def test_the_early_answer_falls_back_to_the_full_one_on_small_evidence(evidence: Path) -> None:
    fast, full = (call("diagnose", evidence, "--json", *extra).doc for extra in (("--fast",), ()))
    assert {**fast, "timing": None} == {**full, "timing": None}


@pytest.mark.slow
def test_early_answer_and_full_answer_agree_on_many_large_dumps(tmp_path: Path) -> None:
    """Above the size from which headers are read first."""
    from rca.drills._synthetic import Fault, Job, Recorder, write
    from rca.triage import MIN_BYTES

    folder = tmp_path / "job"
    write(Job(tp=4, dp=4, steps=200), Fault("stop", (9,)), folder, recorder=Recorder(buffer=20_000))
    assert sum(p.stat().st_size for p in folder.iterdir()) > MIN_BYTES
    fast, full = (call("diagnose", folder, "--json", *extra) for extra in (("--fast",), ()))
    assert fast.doc["verdict"]["first_failing"]["ranks"] == full.doc["verdict"]["first_failing"]["ranks"] == [9]
    assert fast.doc["verdict"]["cause"] == full.doc["verdict"]["cause"]
    assert (folder / "case.duckdb").exists()
    text = call("diagnose", folder, "--case", tmp_path / "again.duckdb").out
    assert text.startswith("Rank 9 ")
    assert text.rstrip().endswith("Confirmed by the full read.")
