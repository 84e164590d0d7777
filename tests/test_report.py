"""The weekly report: what it says of a small fleet, what a person wrote in it, and that no text of a record becomes mark-up."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from _fleets import WEEK, attempt, hour, incident, stage, tables
from _house import ROOT, call

from apps.document import to_json
from apps.report.document import Report, weekly
from apps.report.html import page
from apps.report.markdown import SECTIONS, escaped, markdown, written
from rca.drills._synthetic_fleet import Fleet, write

GOLDEN = ROOT / "tests" / "reports" / "report-2026-W10.md"
HOSTILE = (
    '<img src=x onerror="alert(1)"></td><script>bad()</script> | a `b` [c](http://evil.example) www.evil.example x@evil.example *d* '
    "\x1b[31m\n# e"
)
VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})


def small() -> dict[str, pl.DataFrame]:
    """Three weeks of a job of 16 GPUs: two faults of one host, an exception, a maintenance, one incident that nobody closed."""
    incidents = [
        incident("INC-0", -200, lost_gpu_s=16 * 1200.0, recomputed_steps=10, recomputed_s=20.0, recomputed_tokens=10_000),
        incident(
            "INC-1",
            10,
            lost_gpu_s=16 * 1800.0,
            recomputed_steps=90,
            recomputed_s=180.0,
            recomputed_tokens=90_000,
            evicted=["host-a"],
            summary="a GPU stopped working on host-a",
            attempt=1,
            ranks=[3],
        ),
        incident(
            "INC-2",
            50,
            attribution="workload",
            cause="user_exception",
            layer="software",
            hosts=[],
            ranks=[5],
            is_overruled=True,
            attempt=2,
            because="the traceback is in the loss",
            lost_gpu_s=16 * 300.0,
        ),
        incident(
            "INC-3",
            90,
            attribution="planned",
            cause="planned_stop",
            layer="operator",
            hosts=[],
            attempt=3,
            lost_gpu_s=16 * 7200.0,
            recomputed_steps=0,
            recomputed_s=0.0,
            recomputed_tokens=0,
        ),
        incident("INC-4", 120, attribution="unknown", cause="unknown", layer="unknown", hosts=[], attempt=4),
    ]
    stages = [
        stage("INC-0", "resume", -199.9, -200 + 1200 / 3600),
        stage("INC-1", "detect", 10, 10 + 45 / 3600, budget_s=60.0),
        stage("INC-1", "load", 10.25, 10.4, budget_s=120.0),
        stage("INC-1", "resume", 10.4, 10.5),
        stage("INC-2", "detect", 50, None, budget_s=60.0),
        stage("INC-2", "resume", 50.05, 50 + 300 / 3600),
        stage("INC-3", "resume", 91.9, 92),
    ]
    attempts = [
        attempt(0, -300, -199.8), attempt(1, -199.75, 10.2), attempt(2, 10.25, 50), attempt(3, 50.02, 90), attempt(4, 91.5, None),
    ]  # fmt: skip
    said = json.dumps({"diagnosis": {"cause": "code_hang"}})
    notes = [
        {"incident_id": "INC-2", "kind": "open", "noted_at": hour(50.1), "data": said},
        {"incident_id": "INC-5", "kind": "open", "noted_at": hour(160), "data": "no JSON"},
    ]
    return tables(incidents, stages, attempts, notes)


def report(**changes: Any) -> Report:
    return weekly(small(), WEEK, **changes)


def test_report_of_a_small_fleet_reads_as_before() -> None:
    assert markdown(report().document, {}) == GOLDEN.read_text("utf-8")


def test_document_is_one_of_finite_numbers_and_the_same_each_time() -> None:
    assert to_json(report().document) == to_json(report().document)
    document = json.loads(to_json(report().document))
    assert document["schema_version"] == "rca.report/1"
    assert {figure["name"]: figure["value"] for figure in document["figures"]}["failures"] == 3


def test_actions_and_gaps_of_the_records_are_named() -> None:
    told = report().document
    assert [row["host"] for row in told["hosts"]] == ["host-a"]
    assert [row["incident_id"] for row in told["still_open"]] == ["INC-5"]
    assert told["overruled"] == [
        {"incident_id": "INC-2", "said": "code_hang", "stands": "user_exception", "because": "the traceback is in the loss"}
    ]
    what = [row["what"] for row in told["actions"]]
    assert what[0].startswith("host-a: keep out until")  # it was taken out
    assert "find the cause, or the evidence that was missing" in what
    assert {row["what"]: row["num"] for row in told["quality"]}["interruptions of unknown cause"] == 1


def test_job_that_was_last_seen_failing_is_told() -> None:
    told = weekly(tables([incident("INC-1", 10)], [], [attempt(0, 0, 10, end_kind="failed")]), WEEK).document
    assert any(row["what"].startswith("jobs that were last seen to fail") and row["num"] == 1 for row in told["quality"])
    assert not any(row["what"].startswith("jobs that were last seen to fail") for row in report().document["quality"])


def test_weeks_before_are_those_that_were_recorded() -> None:
    told = report().document
    assert told["weeks_before"] == ["2026-W08", "2026-W09"]
    by_name = {figure["name"]: figure for figure in told["figures"]}
    assert by_name["failures"]["before"] == 0.5  # one in two weeks
    assert by_name["mttr_mean"]["before"] == 1200


def test_week_without_records_says_so_and_no_zero() -> None:
    for one in (weekly(small(), WEEK.back(30)), weekly(tables(), WEEK)):
        text = markdown(one.document, {})
        assert "Nothing is recorded of this week" in text
        assert "## Figures" not in text
        assert one.document["is_empty"]
        assert "Nothing is recorded of this week" in page(one.document, one.frames, {})


def test_week_that_is_not_over_says_so() -> None:
    told = report(until=WEEK.start + timedelta(hours=60)).document
    assert "the week is not over" in markdown(told, {})
    assert {figure["name"]: figure["value"] for figure in told["figures"]}["job_hours"] == 60


def test_what_a_person_wrote_survives_the_next_run() -> None:
    first = markdown(report().document, {})
    mine = "We were lucky: | <b>the spare</b> was warm.\n\n* one\n"
    edited = first.replace(f"{SECTIONS['assessment']}\n", mine)
    assert written(first) == {}
    assert written(edited) == {"assessment": mine}
    assert markdown(report().document, written(edited)) == edited
    assert written(edited.replace("\n", "\r\n")) == {"assessment": mine}


# Text from records


class Seen(HTMLParser):
    """Elements and attributes of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(sorted(name for name, _ in attrs))))
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action", "data", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text.append(data)


def poisoned(frames: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The same tables with hostile text wherever a record may hold any; identities stay distinct."""
    free = {"incidents": ("summary", "because", "code_version", "job_id"), "notes": ("text", "data"), "attempts": ("job_id",), "stages": ()}
    found = {}
    for name, frame in frames.items():
        columns = [pl.when(pl.col(c).is_not_null() | (pl.lit(c) != "job_id")).then(pl.lit(HOSTILE)).alias(c) for c in free[name]]
        if "incident_id" in frame.columns:
            columns.append((pl.col("incident_id") + HOSTILE).alias("incident_id"))
        for lists in {"hosts", "evicted"} & set(frame.columns):
            columns.append(pl.col(lists).list.eval(pl.element() + HOSTILE).alias(lists))
        found[name] = frame.with_columns(columns)
    return found


def skeleton(one: Report) -> list[tuple[str, tuple[str, ...]]]:
    return Seen(page(one.document, {}, {})).elements


def test_page_is_well_formed_and_loads_nothing() -> None:
    one = report()
    text = page(one.document, one.frames, {"assessment": "fine"})
    seen = Seen(text)
    assert seen.open == []
    assert seen.links == []
    assert "default-src 'none'" in text
    assert len(text.encode()) < 8_000_000
    assert "@import" not in text.partition("<body>")[0]
    assert "url(" not in text.partition("<body>")[0]


def test_no_element_or_attribute_of_the_page_comes_from_a_record() -> None:
    clean, bad = report(), weekly(poisoned(small()), WEEK)
    assert skeleton(bad) == skeleton(clean)
    shown = "".join(Seen(page(bad.document, {}, {})).text)
    assert '<img src=x onerror="alert(1)">' in shown  # as text
    assert "\x1b" not in shown


def test_page_without_plotly_has_its_tables_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    one = report()
    monkeypatch.setitem(sys.modules, "plotly", None)
    text = page(one.document, one.frames, {})
    assert "No pictures: plotly is not installed" in text
    assert "<script" not in text
    assert "<h2>What happened</h2>" in text


def test_charts_take_no_mark_up_from_a_record() -> None:
    pytest.importorskip("plotly")
    clean, bad = report(), weekly(poisoned(small()), WEEK)
    pages = [page(one.document, one.frames, {}) for one in (clean, bad)]
    assert Seen(pages[0]).elements == Seen(pages[1]).elements
    scripts = ["".join(re.findall(r"<script.*?</script>", text, re.DOTALL)) for text in pages]
    assert scripts[0].count("Plotly.newPlot") == 4
    assert "evil.example" not in scripts[1]


def test_written_text_is_text_on_the_page() -> None:
    seen = Seen(page(report().document, {}, {"assessment": HOSTILE, "actions": HOSTILE}))
    assert "script" not in [tag for tag, _ in seen.elements]
    assert sum(text.count("bad()") for text in seen.text) == 2


def test_markdown_of_hostile_records_has_the_same_lines_and_cells() -> None:
    clean, bad = (markdown(one.document, {}) for one in (report(), weekly(poisoned(small()), WEEK)))
    shape = [[len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines()] for text in (clean, bad)]
    assert shape[0] == shape[1]
    for mark in ("<img", "<script", "http://", "www.evil", "x@evil", "\x1b", " `b`", " *d*"):
        assert mark not in bad, mark
    assert not re.search(r"(?<!\\)\]\(", bad)
    assert written(bad) == {}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"),
        ("<!-- end: assessment -->", "&lt;!-- end: assessment --&gt;"),
        ("`x` *y* _z_", r"\`x\` \*y\* \_z\_"),
        ("[a](https://b.example)", r"\[a\](https&#58;//b.example)"),
        ("HTTP://x WWW.x", "HTTP&#58;//x www&#46;x"),
        ("two\nlines\r\n", r"two\\nlines\\r\\n"),
        ("&amp;", "&amp;amp;"),
    ],
)
def test_text_is_shown_letter_by_letter_in_markdown(text: str, shown: str) -> None:
    assert escaped(text) == shown


# The command


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet") / "fleet"
    write(Fleet(WEEK.end, days=21.0, hosts=120, seed=1), folder)
    return folder


def test_command_writes_both_files_and_keeps_what_was_written(fleet: Path, tmp_path: Path) -> None:
    args = ("report", "--fleet", fleet, "--week", "2026-W10", "--out", tmp_path)
    done = call(*args)
    assert (done.code, done.err) == (0, "")
    text = tmp_path / "report-2026-W10.md"
    assert {path.name for path in tmp_path.iterdir()} == {"report-2026-W10.md", "report-2026-W10.html"}
    text.write_text(text.read_text("utf-8").replace(SECTIONS["actions"], "host-7 by Friday"), "utf-8")
    before = text.read_text("utf-8")
    assert call(*args).code == 0
    assert text.read_text("utf-8") == before
    assert "host-7 by Friday" in (tmp_path / "report-2026-W10.html").read_text("utf-8")


def test_command_prints_markdown_or_one_document(fleet: Path) -> None:
    assert call("report", "--fleet", fleet, "--week", "2026-W10").out.startswith("# Training reliability, 2026-W10\n")
    done = call("report", "--fleet", fleet, "--week", "2026-W10", "--json")
    assert (done.code, done.err, done.doc["week"]) == (0, "", "2026-W10")
    assert done.doc["from"] == "2026-03-02T00:00:00Z"


def test_command_on_a_week_without_records_is_no_error(fleet: Path) -> None:
    done = call("report", "--fleet", fleet, "--week", "2020-W01")
    assert done.code == 0
    assert "Nothing is recorded of this week" in done.out
    assert "weeks with records: 2026-W" in done.err
    (named,) = re.findall(r"--week (\S+)$", done.err.strip())
    other = call("report", "--fleet", fleet, "--week", named)
    assert (other.code, other.err) == (0, "")
    assert "Nothing is recorded of this week" not in other.out


@pytest.mark.parametrize("wrong", [("--week", "2026-W99"), ("--week", "W10"), ("--week", "2190-W10"), ("--format", "html")])
def test_wrong_usage_is_told(fleet: Path, wrong: tuple[str, str]) -> None:
    done = call("report", "--fleet", fleet, *wrong)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("rca: ")


def test_fleet_that_is_not_there_or_empty(tmp_path: Path) -> None:
    assert call("report", "--fleet", tmp_path / "none").code == 2
    (tmp_path / "empty").mkdir()
    done = call("report", "--fleet", tmp_path / "empty")
    assert (done.code, done.out) == (3, "")


def test_fleet_command_makes_one_up_that_can_be_reported(tmp_path: Path) -> None:
    done = call(
        "fleet", "generate", "--out", tmp_path / "f", "--weeks", "2", "--hosts", "100", "--end-week", "2026-W10", "--rates", "byterobust"
    )
    assert done.code == 0
    assert call("report", "--fleet", tmp_path / "f", "--week", "2026-W10").code == 0
    assert call("fleet", "generate", "--out", tmp_path / "f").code == 2
    for wrong in (("--rates", "nobody"), ("--weeks", "99999999"), ("--hosts", "9" * 400), ("--weeks", "500", "--end-week", "1991-W01")):
        done = call("fleet", "generate", "--out", tmp_path / "g", *wrong)
        assert (done.code, done.out, done.err[:5]) == (2, "", "rca: ")
        assert not (tmp_path / "g").exists()


def test_launches_without_an_end_are_told(tmp_path: Path) -> None:
    found = tables(attempts=[attempt(0, -500, None), attempt(0, 10, None, job_id="job-1")])
    (line,) = [line for line in weekly(found, WEEK).document["quality"] if "without an end" in line["what"]]
    assert (line["num"], line["of"]) == (1, 2)


def test_launches_without_a_number_are_reported(tmp_path: Path) -> None:
    found = tables(attempts=[attempt(0, 0, 10) | {"attempt": None}, attempt(0, 20, 30) | {"attempt": None}, attempt(3, 40, 50)])
    told = {figure["name"]: figure["value"] for figure in weekly(found, WEEK).document["figures"]}
    assert told["job_hours"] == 50
