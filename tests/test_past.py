"""What happened before, from disk to advice: records of a fleet, notes beside the evidence, and a site's own numbers."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from _house import memory_case

from apps.incidents.notebook import notebook
from apps.past import history_of
from rca.catalogues import read_site, settings, site, use_site
from rca.errors import UsageError
from rca.incidents.records import iso, note
from rca.judge import Judgement, judge
from rca.settings import NOT_SAID


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("RCA_FLEET", raising=False)


def write(fleet: Path, judged: Judgement, number: int = 1, **more: Any) -> None:
    """An incident of the fleet: the same fault, an hour before."""
    verdict = judged.verdict
    assert verdict.failed_at is not None
    record = {
        "schema_version": "rca.incident/1", "incident_id": f"INC-{number}", "job_id": "train-7", "attempt": number, "cause": verdict.cause,
        "action": "retry", "ranks": list(verdict.ranks), "hosts": list(verdict.hosts), "diagnosis": {"step": verdict.step},
        "began_at": iso(verdict.failed_at - timedelta(hours=number)), "evidence": {"fingerprint": f"{number:016x}"}, "history": [], "stages": [],
    }  # fmt: skip
    week = fleet / "incidents" / "2026-W01"
    week.mkdir(parents=True, exist_ok=True)
    (week / f"INC-{number}.json").write_text(json.dumps(record | more))


def noted(evidence: Path, kind: str, text: str, **data: Any) -> None:
    evidence.mkdir(exist_ok=True)
    book = notebook(evidence)
    book.append(note("INC-9", datetime.fromisoformat("2026-01-02T03:04:05+00:00"), kind, text, data))


def test_a_fault_that_the_fleet_knows_of_this_job_is_not_retried_again(tmp_path: Path) -> None:
    case = memory_case("rank_killed")
    plain = judge(case)
    fleet, evidence = tmp_path / "data" / "firstfault" / "fleet", tmp_path / "evidence"
    write(fleet, plain)
    noted(evidence, "open", "", given={"job_id": "train-7"})
    noted(evidence, "note", "Pending change: new tokenizer")
    noted(evidence, "note", "all pending: nothing")  # words, no change
    told = history_of(str(evidence))
    assert (told.job_id, told.pending_changes, len(told.past)) == ("train-7", ("new tokenizer",), 1)
    again = judge(case, told)
    assert (plain.advice.action, again.advice.action) == ("retry", "human")
    assert again.verdict == plain.verdict  # history moves the advice, never the verdict
    assert again.advice.retries is not None
    assert again.advice.retries["incidents"] == ["INC-1"]
    assert str(fleet) in told.where
    assert any(check["check"] == "pending changes" for check in again.advice.before_restart)


def test_without_a_fleet_and_notes_nothing_is_known(tmp_path: Path) -> None:
    told = history_of(str(tmp_path))
    assert (told.past, told.where, told.job_id, told.pending_changes) == ((), "", None, ())
    assert history_of(str(tmp_path / "nowhere")).past == ()
    assert history_of("s3://bucket/evidence").past == ()


def test_damaged_records_and_what_is_no_week_are_passed_over(tmp_path: Path) -> None:
    judged = judge(memory_case("rank_killed"))
    fleet = tmp_path / "fleet"
    write(fleet, judged)
    week = fleet / "incidents" / "2026-W01"
    (week / "torn.json").write_text('{"incident_id": "INC-2", ')
    (week / "list.json").write_text("[1, 2]")
    (week / "link.json").symlink_to(week / "INC-1.json")
    (fleet / "incidents" / "other").mkdir()
    (fleet / "incidents" / "other" / "INC-3.json").write_text((week / "INC-1.json").read_text())
    assert [past.incident_id for past in history_of(str(tmp_path), str(fleet)).past] == ["INC-1"]


class TestSite:
    def test_its_numbers_count_as_long_as_it_does(self, tmp_path: Path) -> None:
        (tmp_path / "rca.toml").write_text("[decision]\nspares = 0\n")
        case = memory_case("host_lost")
        assert judge(case).advice.action == "replace"
        use_site(read_site(tmp_path))
        try:
            told = site()
            assert told is not None
            assert "rca.toml (1 changed, 0 new)" in told.says
            advice = judge(case).advice
            assert (settings().spares, advice.action, advice.evict_hosts) == (0, "shrink", ("host-c",))
            assert advice.shrink is not None
            assert (advice.shrink["dp"], advice.shrink["dp_after"]) == (2, 1)
        finally:
            use_site(None)
        assert settings() == NOT_SAID

    def test_another_toml_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "decision.toml").write_text("[decision]\n")
        with pytest.raises(UsageError, match=r"The one in TOML is rca\.toml"):
            read_site(tmp_path)

    def test_a_wrong_number_names_file_and_field(self, tmp_path: Path) -> None:
        (tmp_path / "rca.toml").write_text("[decision]\nspares = 'four'\n")
        with pytest.raises(UsageError, match=r"rca\.toml: spares = 'four' is no number"):
            read_site(tmp_path)
