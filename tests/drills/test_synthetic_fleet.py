"""The made-up fleet: its records have the form of real ones, and the report gets back the rates they were drawn from."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rca.causes import CAUSES
from rca.drills._synthetic_fleet import Fleet, records, write
from rca.drills._synthetic_fleet_rates import RATES, components, path_of, per_host_day
from rca.errors import UsageError
from rca.linking import frames_of, read_all
from rca.parts import Parts
from rca.reliability.figures import figures
from rca.reliability.ledger import Ledger, open_ledger
from rca.reliability.published import statement
from rca.reliability.window import Window, week
from rca.sources import inventory

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "incident.schema.json").read_text("utf-8"))
END = week("2026-W10").end
SMALL = Fleet(END, days=42.0, hosts=200, seed=3)
LLAMA3 = Fleet(END, days=statement("llama3_days"), hosts=2048, seed=0)


@cache
def made(fleet: Fleet) -> tuple[tuple[str, dict[str, Any]], ...]:
    return tuple(records(fleet))


def incidents(fleet: Fleet) -> list[dict[str, Any]]:
    return [record for path, record in made(fleet) if path.startswith("incidents/")]


def attempts(fleet: Fleet) -> list[dict[str, Any]]:
    return [record for path, record in made(fleet) if path.startswith("attempts/")]


@pytest.fixture(scope="module")
def llama3(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """The ledger of a fleet like Llama 3's, read from its files as any other evidence."""
    folder = tmp_path_factory.mktemp("fleet")
    write(LLAMA3, folder / "fleet")
    parts = Parts(folder / "parts")
    read = read_all(inventory(folder / "fleet", folder / "archives"), parts)
    frames = frames_of(parts, read.frames)
    return open_ledger(frames["incidents"], frames["stages"], frames["attempts"])


@pytest.mark.parametrize("rates", RATES)
def test_records_fit_the_schema_and_lie_at_their_place(rates: str) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for record in incidents(Fleet(END, rates=rates, days=14.0, hosts=300, seed=1)):
        validator.validate(record)
    assert len({path for path, _ in made(SMALL)}) == len(made(SMALL))


def test_same_seed_same_bytes_another_seed_another_fleet() -> None:
    assert json.dumps(list(records(SMALL))) == json.dumps(made(SMALL))
    assert json.dumps(list(records(Fleet(END, days=42.0, hosts=200, seed=4)))) != json.dumps(made(SMALL))


def test_54_days_of_llama3_give_back_its_counts_within_their_poisson_error(llama3: Ledger) -> None:
    told = figures(llama3, Window(END - timedelta(days=LLAMA3.days), END))
    for name, expected in (("failures", 419), ("planned_interruptions", 47), ("interruptions", 466)):
        value = told[name].value
        assert value is not None
        assert abs(value - expected) <= 3 * math.sqrt(expected), name
    assert told["job_hours"].value == pytest.approx(54 * 24, abs=0.1)
    for name, printed in (("mtbi", 2.78), ("mtbf", 54 * 24 / 419)):
        low, high = told[name].low, told[name].high
        assert low is not None
        assert high is not None
        assert low <= printed <= high, name


def test_shares_of_causes_are_those_of_the_table(llama3: Ledger) -> None:
    counts = Counter(llama3.incidents["cause"].to_list())
    total = sum(counts.values())
    expected = Counter[str]()
    for part in components("llama3"):
        expected[part.cause] += part.share * total
    for cause, number in expected.items():
        assert abs(counts[cause] - number) <= 3.5 * math.sqrt(number) + 1, cause


@pytest.mark.parametrize("rates", RATES)
def test_components_are_shares_that_sum_to_one(rates: str) -> None:
    assert sum(part.share for part in components(rates)) == pytest.approx(1.0)
    assert per_host_day() * 54 * 2048 == pytest.approx(466)


def test_planned_share_of_byterobust_is_the_printed_one() -> None:
    assert sum(part.share for part in components("byterobust") if CAUSES[part.cause].attribution == "planned") == pytest.approx(
        0.173, abs=5e-4
    )


def test_one_job_runs_at_a_time_without_a_hole_and_the_last_one_still_runs() -> None:
    rows = sorted(attempts(SMALL), key=lambda row: row["started_at"])
    assert [row["ended_at"] for row in rows].count(None) == 1
    assert rows[-1]["ended_at"] is None
    assert {row["job_id"] for row in rows} == {"job-0", "job-1"}
    for before, after in itertools.pairwise(rows):
        assert before["ended_at"] <= after["started_at"]
        if before["job_id"] == after["job_id"]:
            assert after["attempt"] == before["attempt"] + 1
            assert after["resumed_from_step"] <= before["last_step"]


def test_recomputed_steps_lie_between_checkpoint_and_fault() -> None:
    by_launch = {(row["job_id"], row["attempt"]): row for row in attempts(SMALL)}
    known = [row for row in incidents(SMALL) if row["recomputed_steps"] is not None]
    assert known
    for row in known:
        launch = by_launch[row["job_id"], row["attempt"]]
        after = by_launch.get((row["job_id"], row["attempt"] + 1))
        assert after is None or row["recomputed_steps"] == launch["last_step"] - after["resumed_from_step"]
        assert row["attribution"] != "planned" or row["recomputed_steps"] == 0


def test_stages_follow_each_other_and_suit_the_cause() -> None:
    for row in incidents(SMALL):
        stages = row["stages"]
        told = row["diagnosis"]["cause"] if not row["is_overruled"] else row["cause"]
        assert [stage["stage"] for stage in stages] in (list(path_of(told, has_spare=True)), list(path_of(told, has_spare=False)))
        for one, then in itertools.pairwise(stages):
            assert one["ended_at"] in (None, then["started_at"])
            assert one["started_at"] < then["started_at"]


def test_bad_hosts_fail_again_and_people_overrule() -> None:
    rows = incidents(LLAMA3)
    assert any(row["recurs_incident_id"] for row in rows)
    assert any(row["is_overruled"] and row["history"][1]["kind"] == "overrule" for row in rows)
    worst = Counter(host for row in rows if row["attribution"] == "platform" for host in row["hosts"]).most_common(1)[0][1]
    assert worst >= 3  # 300 failures on 2048 equal hosts would hardly hit one three times


def test_made_up_records_never_mix_with_others(tmp_path: Path) -> None:
    write(Fleet(END, days=1.0, hosts=50), tmp_path)
    with pytest.raises(UsageError, match="holds records already"):
        write(Fleet(END, days=1.0, hosts=50), tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rates": "nobody"}, {"hosts": 0}, {"days": 0.0}, {"days": 7 * 99_999_999}, {"days": 7 * 10**400}, {"days": float("nan")},
        {"days": 20_000.0, "hosts": 1}, {"hosts": 10**30}, {"seed": -1},
    ],
)  # fmt: skip
def test_fleets_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Fleet(END, **wrong)
