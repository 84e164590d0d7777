"""Figures in print: what agrees, what does not, and that all of ours is computed from the tables."""

from __future__ import annotations

import json
import re
from importlib import resources

import pytest
from _house import call

from rca.causes import CAUSES, STAGES
from rca.reliability.published import Compared, compared, statement, table

ROWS = {row.figure: row for row in compared()}
FOLDER = resources.files("rca.catalogue").joinpath("published")
TABLES = sorted(path.name.removesuffix(".csv") for path in FOLDER.iterdir() if path.name.endswith(".csv"))


def test_llama3_comes_first_with_its_18_rows() -> None:
    first = list(ROWS.values())[:18]
    assert all(row.figure.startswith("Llama 3: ") and row.figure.endswith(", share") for row in first)
    assert [row.figure for row in first if not row.agrees] == ["Llama 3: Faulty GPU, share"]


@pytest.mark.parametrize(
    ("figure", "published", "ours", "agrees"),
    [
        ("Llama 3: Faulty GPU, share", 30.1, 100 * 148 / 419, False),
        ("Llama 3: unexpected interruptions", 419, 419, True),
        ("Llama 3: all interruptions", 466, 47 + 419, True),
        ("Llama 3: hours between failures", 2.78, 54 * 24 / 419, False),
        ("Llama 3: hours between interruptions, planned ones included", 2.78, 54 * 24 / 466, True),
        ("Llama 3: share of GPUs", 58.7, 100 * 268 / 419, False),
        ("Llama 3: failures per 1,000 node-days", None, 419 / (54 * 2048) * 1000, None),
        ("ByteRobust: explicit failures", 38236, 39687, False),
        ("ByteRobust: implicit failures", 5948, 6096, False),
        ("ByteRobust: all incidents", None, 55365, None),
        ("ByteRobust: Code/Data Adjustment, share", 17.3, 100 * 9582 / 55365, True),
        ("ByteRobust: spare machines for 1024, P99", 4, 4, True),
        ("Meta: MTTF of 16,384 GPUs, projected", 1.8, 24000 / (2048 * 6.5), True),
        ("Meta: MTTF of 1,024 GPUs, measured", 7.9, 24000 / (128 * 6.5), False),
        ("FT-HSDP: sum of the printed shares", 100, 100, True),
        ("FT-HSDP: minutes between interruptions of the largest job", 18, 24 * 60 / (2.3 * 12.5), False),
        ("Delta: hours between Xid 95 (Uncontained memory) anywhere", 0.53, 855 * 24 / 38905, True),
    ],
)
def test_figure_as_printed_and_as_computed(figure: str, published: float | None, ours: float, agrees: bool | None) -> None:  # noqa: FBT001
    row = ROWS[figure]
    assert row.published == published
    assert row.ours == pytest.approx(ours)
    assert row.agrees is agrees


def test_rows_that_disagree_say_more_than_those_that_agree() -> None:
    wrong = [row for row in ROWS.values() if row.agrees is False]
    assert len(wrong) >= 10
    assert all(len(row.why) > 20 for row in wrong)
    assert "126 of 419 would be 30.1 %" in ROWS["Llama 3: Faulty GPU, share"].why
    assert "47 planned ones" in ROWS["Llama 3: hours between failures"].why


def test_every_row_of_every_table_names_its_source() -> None:
    for name in TABLES:
        column = "reason" if name == "causes" else "source"
        assert all(row[column].strip() for row in table(name)), name


def test_components_lead_to_causes_and_stages_that_exist() -> None:
    assert {row["cause"] for row in table("causes")} <= set(CAUSES)
    assert {row["stage"] for row in table("stage_times")} <= set(STAGES)
    assert {row["cause"] for row in table("stage_times")} <= {*CAUSES, "*"}
    named = {row["component"] for row in table("causes") if row["source"] == "llama3"}
    assert named == {row["component"] for row in table("llama3_interruptions")} | {"planned"}
    assert {row["component"] for row in table("causes") if row["source"] == "byterobust"} == {
        r["symptom"] for r in table("byterobust_incidents")
    }


def test_stage_times_are_in_order() -> None:
    for row in table("stage_times"):
        assert 0 < float(row["least_s"]) <= float(row["usual_s"]) <= float(row["most_s"]), row


def test_command_prints_one_document() -> None:
    done = call("published", "--json")
    assert done.code == 0
    assert done.err == ""
    assert done.doc["schema_version"] == "rca.published/1"
    assert [Compared(**row) for row in done.doc["figures"]] == list(ROWS.values())
    assert {"figure", "source", "published", "ours", "agrees", "why"} <= set(done.doc["figures"][0])
    assert json.loads(done.out) == call("published", "--json").doc


def test_command_shows_both_numbers() -> None:
    done = call("published")
    line = next(line for line in done.out.splitlines() if line.startswith("Llama 3: hours between failures"))
    assert re.search(r"2\.78\s+3\.09\s+h\s+NO", line)
    assert statement("llama3_planned") == 47
