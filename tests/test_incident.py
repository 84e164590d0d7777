"""From notes to the record: what is folded, what a person may overrule, what it costs, what recurs; and the schema that others rely on."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonschema
import polars as pl
import pytest
from _house import CASES, FOLDERS, ROOT, frames, memory_case

from rca.case import MemoryCase
from rca.causes import ACTIONS, ATTRIBUTIONS, CAUSES, LAYERS, STAGES, WHOLE_BUDGET_S
from rca.errors import UsageError
from rca.incidents.course import course, evidence_stages, fingerprint, job_facts
from rca.incidents.incident import fold, incident_record, merged, recurrence, stages_of
from rca.incidents.records import (
    NOTE_KINDS,
    attempt_path,
    attempt_record,
    default_id,
    incident_path,
    instant,
    is_id,
    iso,
    job_of,
    joined,
    note,
    problem_of,
    week_of,
)  # fmt: skip
from rca.judge import judge
from rca.tables import TABLES

SCHEMA = json.loads((ROOT / "docs" / "incident.schema.json").read_text("utf-8"))
T = datetime(2026, 11, 20, 8, 0, tzinfo=UTC)
SAID = {
    "cause": "gpu_fault", "layer": "hardware", "attribution": "platform", "action": "replace", "probability": 0.97, "proven": False,
    "ranks": [3], "hosts": ["host-b"], "gpus": ["GPU-0000"], "at": "2026-11-20T08:00:00Z", "step": 12, "summary": "rank 3 failed first",
}  # fmt: skip


def at(seconds: float) -> datetime:
    return T + timedelta(seconds=seconds)


def opened(**changes: Any) -> dict[str, Any]:
    job = job_of(job_id="job-7", attempt=0, world_size=8, num_hosts=4, num_gpus=8, started_at=iso(at(-3600)), last_step=100, step_s=2.0)
    data = {"detected_at": iso(at(30)), "diagnosis": SAID, "job": job} | changes
    return note("INC-1", at(60), "open", "opened", data)


def stage(name: str, start: float | None, end: float | None, *, written: float = 500) -> dict[str, Any]:
    moments = {"started_at": None if start is None else iso(at(start)), "ended_at": None if end is None else iso(at(end))}
    return note("INC-1", at(written), "stage", "", {"stage": name, **moments})


def close(written: float = 900, **data: Any) -> dict[str, Any]:
    return note("INC-1", at(written), "close", "", data)


def valid(record: dict[str, Any]) -> dict[str, Any]:
    jsonschema.Draft202012Validator(SCHEMA).validate(record)
    return record


def test_schema_is_sound_and_its_words_are_those_of_the_library() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    words = {name: SCHEMA["$defs"][name]["enum"] for name in ("cause", "layer", "attribution", "action")}
    assert words == {"cause": sorted(CAUSES), "layer": list(LAYERS), "attribution": list(ATTRIBUTIONS), "action": list(ACTIONS)}
    assert SCHEMA["$defs"]["stage"]["properties"]["stage"]["enum"] == list(STAGES)
    assert SCHEMA["$defs"]["note"]["properties"]["kind"]["enum"] == list(NOTE_KINDS)
    assert set(TABLES["incidents"].schema) - {"evidence_id", "record"} <= set(SCHEMA["properties"])


def test_schema_refuses_what_a_record_must_not_be() -> None:
    record = valid(fold([opened()]))
    for change in (
        {"attribution": "gremlins"}, {"closed_at": "2026-11-20 08:00"}, {"incident_id": "../x"}, {"lost_gpu_s": -1}, {"more": 1},
        {"stages": [{"stage": "coffee"}]},
    ):  # fmt: skip
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(SCHEMA).validate(record | change)


def test_page_about_incidents_states_the_budgets_of_the_library() -> None:
    page = (ROOT / "docs" / "incidents.md").read_text("utf-8").replace("\n", " ")
    stated = page[page.index("Budgets: ") : page.index("A stage without both moments")]
    allowed = {name: budget for name, budget in STAGES.items() if budget is not None}
    parts = re.findall(r"((?:[a-z]+(?: and )?)+) (\d+) s\b", stated)
    found = {name: float(budget) for names, budget in parts for name in names.split(" and ")}
    assert found == {**allowed, "whole": WHOLE_BUDGET_S}


def test_open_incident_has_what_the_tool_said_and_no_end() -> None:
    record = valid(fold([opened()]))
    assert (record["revision"], record["closed_at"], record["opened_at"]) == (0, None, "2026-11-20T08:01:00Z")
    assert (record["cause"], record["attribution"], record["is_overruled"]) == ("gpu_fault", "platform", False)
    assert (record["because"], record["diagnosis"]) == (SAID["summary"], SAID)
    assert record["lost_gpu_s"] is None


def test_notes_without_an_open_one_are_no_incident() -> None:
    with pytest.raises(UsageError, match="rca open"):
        fold([close()])


def test_closing_again_is_the_next_revision_and_keeps_everything() -> None:
    notes = [opened(), close(900, action="retry", evicted=["host-b"], code_version="1.0")]
    first = valid(fold(notes))
    second = valid(fold([*notes, close(1800, code_version="1.1")]))
    assert (first["revision"], second["revision"]) == (1, 2)
    assert second["history"][:2] == first["history"]
    assert (second["action"], second["evicted"], second["code_version"]) == ("retry", ["host-b"], "1.1")
    assert (first["closed_at"], second["closed_at"]) == (iso(at(900)), iso(at(1800)))


def test_order_of_places_and_copies_of_notes_do_not_matter() -> None:
    notes = [opened(), stage("queue", 70, 80, written=81), note("INC-1", at(90), "note", "x"), close()]
    assert merged(notes[2:], notes[:2]) == merged(*([one] for one in notes[::-1])) == notes
    assert fold(merged(notes, notes[:2])) == fold(merged(notes[1:], notes)) == fold(notes)


def test_a_clock_that_was_ahead_does_not_win_over_what_was_written_later() -> None:
    ahead = note("INC-1", at(86400), "overrule", "clock was ahead", {"cause": "storage_stall"})
    right = note("INC-1", at(70), "overrule", "corrected", {"cause": "planned_stop"})
    notes = [opened(), ahead, right, close(900)]
    record = valid(fold(notes))
    assert (record["cause"], record["history"]) == ("planned_stop", notes)
    aside = [note("INC-1", at(80), "note", "from elsewhere")]
    again = valid(fold(merged(record["history"], aside, [*notes, close(1000)])))
    assert (again["cause"], again["revision"]) == ("planned_stop", 2)
    assert [one for one in again["history"] if one not in aside] == [*notes, close(1000)]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ((0, 10), (0, 20), (0, 20)),  # seen again
        ((0, 20), (0, 10), (0, 10)),  # the same beginning: what is read now counts
        ((5, 20), (0, 10), (0, 20)),  # one launch, of which other evidence tells more
        ((0, None), (5, 10), (0, 10)),  # it ran on
        ((0, 10), (20, 30), None),
        ((20, None), (0, 10), None),
    ],
)
def test_launches_of_one_number_are_one_only_if_they_can_be(
    old: tuple[int, int | None], new: tuple[int, int | None], expected: tuple[int, int] | None
) -> None:
    def launch(span: tuple[int, int | None], **more: Any) -> dict[str, Any]:
        end = None if span[1] is None else at(span[1])
        return attempt_record(job_id="job-7", attempt=0, started_at=at(span[0]), ended_at=end, **more)

    both = joined(launch(old, num_gpus=8), launch(new, num_hosts=2))
    assert both == (None if expected is None else launch(expected, num_gpus=8, num_hosts=2))
    told = joined(launch(old), launch(new), is_one=True)
    assert told is not None
    assert joined({"started_at": "never"}, launch(new)) == launch(new)


def test_histories_that_contradict_each_other_lose_no_note() -> None:
    notes = [note("INC-1", at(second), "note", str(second)) for second in (1, 2, 3)]
    assert sorted(one["text"] for one in merged(notes, notes[::-1])) == ["1", "2", "3"]


def test_overruled_cause_brings_what_follows_from_it_and_the_diagnosis_stays() -> None:
    record = valid(fold([opened(), note("INC-1", at(70), "overrule", "the mount hung", {"cause": "storage_stall"})]))
    assert (record["cause"], record["layer"], record["attribution"], record["action"]) == (
        "storage_stall",
        "storage_data",
        "platform",
        "retry",
    )
    assert (record["is_overruled"], record["because"], record["diagnosis"]) == (True, "the mount hung", SAID)
    assert (
        record["summary"] == "rank 3 on host-b stalled first; storage stall: reading or writing shared storage hangs (stated by a person)"
    )


def test_later_overrule_replaces_the_earlier_field_by_field() -> None:
    notes = [
        opened(),
        note("INC-1", at(70), "overrule", "maintenance", {"attribution": "planned"}),
        note("INC-1", at(80), "overrule", "of host-c", {"ranks": [5, 4], "hosts": ["host-c"]}),
        note("INC-1", at(90), "overrule", "no, ours", {"attribution": "platform"}),
    ]
    record = valid(fold(notes))
    assert (record["attribution"], record["ranks"], record["hosts"], record["gpus"]) == ("platform", [4, 5], ["host-c"], [])
    assert record["because"] == "maintenance; of host-c; no, ours"


def test_stating_other_ranks_leaves_their_hosts_open() -> None:
    record = valid(fold([opened(), note("INC-1", at(70), "overrule", "seen", {"ranks": [5]})]))
    assert (record["ranks"], record["hosts"], record["gpus"]) == ([5], [], [])


def test_saying_what_the_tool_said_overrules_nothing() -> None:
    record = fold([opened(), note("INC-1", at(70), "overrule", "agreed", {"cause": "gpu_fault"})])
    assert record["is_overruled"] is False
    other = fold([opened(), note("INC-1", at(70), "overrule", "no spare", {"action": "shrink"})])
    assert (other["is_overruled"], other["action"], other["cause"]) == (True, "shrink", "gpu_fault")


def test_doing_something_else_than_advised_overrules_nothing() -> None:
    record = valid(fold([opened(), close(action="retry")]))
    assert (record["is_overruled"], record["action"], record["diagnosis"]["action"]) == (False, "retry", "replace")


def test_what_is_proven_at_closing_counts_and_both_diagnoses_stay() -> None:
    proven = SAID | {"proven": True, "probability": 0.999}
    record = valid(fold([opened(), close(diagnosis=proven, job=opened()["data"]["job"])]))
    assert (record["proven_cause"], record["diagnosis"]) == ("gpu_fault", proven)
    assert record["history"][0]["data"]["diagnosis"] == SAID
    other = fold(
        [opened(), note("INC-1", at(70), "overrule", "no", {"cause": "host_fault"}), close(diagnosis=proven, job=opened()["data"]["job"])]
    )
    assert (other["cause"], other["proven_cause"]) == ("host_fault", "gpu_fault")


def test_typed_moments_go_before_told_ones_field_by_field() -> None:
    told = [{"stage": "detect", "started_at": iso(at(0)), "ended_at": iso(at(30)), "origin": "evidence", "why": "a line"}]
    notes = [
        opened(stages=told),
        stage("detect", None, 20),
        stage("replace", 70, None, written=80),
        stage("replace", None, 190, written=200),
    ]
    detect, replace = stages_of(notes)
    assert (detect["started_at"], detect["ended_at"], detect["origin"]) == (iso(at(0)), iso(at(20)), "hand")
    assert (replace["started_at"], replace["ended_at"], replace["budget_s"], replace["origin"]) == (
        iso(at(70)),
        iso(at(190)),
        120.0,
        "hand",
    )
    assert [s["origin"] for s in stages_of(notes[:1])] == ["evidence"]
    assert [s["stage"] for s in stages_of([stage("resume", 1, 2), stage("queue", 1, 2)])] == ["queue", "resume"]


def test_stated_moments_of_detect_are_those_of_the_fault_and_of_noticing() -> None:
    record = valid(fold([opened(diagnosis=SAID | {"at": None}), stage("detect", -100, 20), stage("resume", 100, 200)]))
    assert (record["began_at"], record["detected_at"], record["lost_gpu_s"]) == (iso(at(-100)), iso(at(20)), 8 * 300)
    assert fold([opened(), stage("detect", None, 20)])["began_at"] == SAID["at"]


def test_lost_gpu_time_runs_from_the_fault_to_resume_or_the_last_stage_that_ended() -> None:
    assert fold([opened(), stage("replace", 100, 200), stage("load", 200, None)])["lost_gpu_s"] == 8 * 200
    assert fold([opened(), stage("resume", 200, 300), stage("validate", 300, 400)])["lost_gpu_s"] == 8 * 300
    no_gpus = opened()["data"]["job"] | {"num_gpus": None}
    assert fold([opened(job=no_gpus), stage("resume", 200, 300)])["lost_gpu_s"] is None
    assert fold([opened(diagnosis=SAID | {"at": None}), stage("resume", 200, 300)])["lost_gpu_s"] is None
    assert fold([opened(diagnosis=SAID | {"at": None}, began_at=iso(at(100))), stage("resume", 200, 300)])["lost_gpu_s"] == 8 * 200
    assert fold([opened(), stage("resume", -200, -100)])["lost_gpu_s"] is None


def test_recomputed_steps_and_what_follows_from_them() -> None:
    job = opened()["data"]["job"] | {"tokens_per_step": 1000}
    record = valid(fold([opened(job=job), close(checkpoint_step=90)]))
    assert (record["recomputed_steps"], record["recomputed_s"], record["recomputed_tokens"]) == (10, 20.0, 10_000)
    assert fold([opened(job=job), close(checkpoint_step=90, recomputed_steps=0)])["recomputed_tokens"] == 0
    unknown = fold([opened(), close()])
    assert (unknown["recomputed_steps"], unknown["recomputed_s"], unknown["recomputed_tokens"]) == (None, None, None)
    assert fold([opened(), close(checkpoint_step=101)])["recomputed_steps"] is None


@pytest.mark.parametrize(
    "bad",
    [
        note("INC-1", at(70), "stage", "", {"stage": "coffee", "started_at": None, "ended_at": None}),
        note("INC-1", at(70), "stage", "", {}),
        note("INC-1", at(70), "stage", "", {"stage": "queue", "started_at": "noon"}),
        note("INC-1", at(70), "stage", "", {"stage": "queue", "started_at": "2026-11-20T08:00:00"}),
        note("INC-1", at(70), "stage", "", {"stage": ["queue"]}),
        note("INC-1", at(70), "overrule", "", {"cause": "gremlins"}),
        note("INC-1", at(70), "overrule", "", {"summary": "x"}),
        note("INC-1", at(70), "close", "", {"diagnosis": {"at": None}}),
        note("INC-1", at(70), "close", "", {"stages": 3}),
        note("INC-1", at(70), "stage", "", {"stage": "queue", "started_at": 17}),
    ],
)
def test_a_note_edited_into_nonsense_stays_in_the_history_and_counts_for_nothing(bad: dict[str, Any]) -> None:
    assert problem_of(bad)
    record = valid(fold([opened(), bad]))
    assert record["history"][1] == bad
    plain = fold([opened()])
    assert {k: v for k, v in record.items() if k != "history"} == {k: v for k, v in plain.items() if k != "history"}


def test_any_value_in_a_note_is_sorted_out_or_gives_a_valid_record() -> None:
    """Every field of an open and a close note, replaced by everything that trips code up."""
    whole = close(
        diagnosis=SAID, job=opened()["data"]["job"], evicted=["host-b"], code_version="1", checkpoint_step=1, recomputed_steps=1, action="retry",
        recurs_incident_id="INC-0", stages=[{"stage": "detect", "started_at": iso(T), "ended_at": iso(at(1)), "origin": "evidence", "why": "x"}],
        evidence={"files": 3, "fingerprint": "0" * 16}, began_at=iso(T), detected_at=iso(at(3)), given={},
    )  # fmt: skip
    valid(fold([opened(), whole]))
    places: list[tuple[Any, ...]] = [(k,) for k in whole["data"]] + [("stages", 0, f) for f in whole["data"]["stages"][0]]
    places += [(k, f) for k in ("diagnosis", "job", "evidence") for f in whole["data"][k]]
    nasty_ones = (
        None,
        "",
        "x",
        -1,
        10**400,
        True,
        1.5,
        [],
        [None],
        ["x", ""],
        ["x", "x"],
        [1, 1],
        {},
        {"a": []},
        [[]],
        "\ud800",
        "2026-01-01",
    )
    for nasty in (*nasty_ones, "9999-12-31T23:59:59-23:00"):
        for path in places:
            changed = json.loads(json.dumps(whole))
            inner = changed["data"]
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = nasty
            valid(json.loads(json.dumps(fold([opened(), changed]))))


def earlier(days: float, **changes: Any) -> dict[str, Any]:
    return fold([opened()]) | {"incident_id": f"INC-{days}", "began_at": iso(T - timedelta(days=days))} | changes


def test_recurs_with_the_newest_of_the_same_cause_on_a_shared_host_within_28_days() -> None:
    record = fold([opened()])
    assert recurrence(record, [earlier(20), earlier(3), earlier(5)]) == "INC-3"
    assert recurrence(record, [earlier(29)]) is None
    assert recurrence(record, [earlier(28)]) == "INC-28"
    assert recurrence(record, [earlier(-1)]) is None
    assert recurrence(record, [record]) is None
    assert recurrence(record, [earlier(3, cause="host_fault")]) is None
    assert recurrence(record, [earlier(3, hosts=["host-z"], gpus=[])]) is None
    assert recurrence(record, [earlier(3, hosts=["host-z"])]) == "INC-3", "the same GPU in another host"
    assert recurrence(record | {"gpus": ["1"]}, [earlier(3, hosts=["host-z"], gpus=["1"])]) is None, "an index is a slot, no GPU"
    assert recurrence(record, [earlier(3) | {"began_at": T - timedelta(days=3)}]) == "INC-3", "rows of the table hold instants"


def test_fault_of_the_workload_recurs_with_the_same_job_and_code_not_with_the_host() -> None:
    workload = {"cause": "code_hang", "attribution": "workload", "code_version": "1.0"}
    record = fold([opened()]) | workload
    assert recurrence(record, [earlier(3, **workload)]) == "INC-3"
    assert recurrence(record, [earlier(3, **workload | {"code_version": "0.9"})]) is None
    assert recurrence(record | {"code_version": None}, [earlier(3, **workload | {"code_version": None})]) is None
    for attribution, cause in (("planned", "planned_stop"), ("unknown", "process_killed"), ("platform", "unknown")):
        same = {"attribution": attribution, "cause": cause}
        assert recurrence(fold([opened()]) | same, [earlier(3, **same)]) is None


def test_places_in_a_fleet_go_by_the_week_in_utc() -> None:
    assert week_of(datetime(2027, 1, 1, tzinfo=UTC)) == "2026-W53"
    assert incident_path(fold([opened()])) == "incidents/2026-W47/INC-1.json"
    assert incident_path(fold([opened(diagnosis=SAID | {"at": None})])) == "incidents/2026-W47/INC-1.json"
    attempt = attempt_record(job_id="job-7", attempt=2, started_at=datetime(2026, 11, 22, 23, 59, tzinfo=UTC))
    assert attempt_path(attempt) == "attempts/2026-W47/job-7-2.json"
    assert attempt["ended_at"] is None


def test_default_name_is_of_the_job_the_minute_and_the_evidence() -> None:
    name = default_id("job-7", datetime(2026, 11, 29, 15, 32, tzinfo=UTC), "feed")
    assert name == default_id("job-7", datetime(2026, 11, 29, 15, 32, 59, tzinfo=UTC), "feed")
    assert name.startswith("INC-20261129-1532-")
    assert is_id(name)
    assert len({name, default_id("job-8", T, "feed")[-4:], default_id("job-7", T, "beef")[-4:]}) == 3


@pytest.mark.parametrize(
    "bad", ["", ".", "..", "../x", "a/b", "a\\b", "-x", ".x", "a..b", "a b", "a\n", "\u0130NC", "x" * 101, "a\0", "~", "$(x)"]
)
def test_hostile_names_are_none(bad: str) -> None:
    assert not is_id(bad)


def test_instants_need_a_zone() -> None:
    assert instant("2026-11-20T09:00:00+01:00") == T
    assert instant(None) is None
    with pytest.raises(ValueError, match="zone"):
        instant("2026-11-20T09:00:00")


def test_builders_refuse_fields_that_there_are_not() -> None:
    with pytest.raises(TypeError, match="favourite"):
        job_of(favourite=1)


def test_record_made_without_notes_is_valid_too() -> None:
    valid(
        incident_record(
            incident_id="INC-9",
            job=job_of(job_id="job-9", attempt=0),
            diagnosis=SAID,
            opened_at=T,
            closed_at=at(60),
            evicted=["host-b", "host-b"],
        )
    )


# What evidence tells of the course


@pytest.mark.parametrize("name", FOLDERS)
def test_course_of_every_case_is_in_order(name: str) -> None:
    case = memory_case(name)
    judgement = judge(case)
    told = course(case, judgement.verdict)
    assert told.first_at is not None
    assert told.last_at is not None
    assert told.first_at < told.last_at
    began = judgement.verdict.failed_at
    if began is not None:
        assert told.first_at <= began
        assert told.noticed_at is None or told.noticed_at >= began
    facts = job_facts(case, judgement.roster, told)
    truth = json.loads((CASES / name / "truth.json").read_text())
    assert facts["world_size"] == facts["num_gpus"] == truth.get("world_size", facts["world_size"])
    assert 0.1 < facts["step_s"] < 1
    assert facts["job_id"] == f"job-{told.fingerprint[:8]}"


def test_planned_stop_is_noticed_when_it_is_announced() -> None:
    case = memory_case("planned_stop")
    told = course(case, judge(case).verdict)
    assert told.noticed_at == datetime(2026, 11, 29, 21, 16, 54, 521000, tzinfo=UTC)
    assert "maintenance window" in (told.noticed_by or "")


def launched(**tables: list[dict[str, Any]]) -> datetime | None:
    rows = {name: [{"evidence_id": "a", "record": f"L{n}", **row} for n, row in enumerate(found, 1)] for name, found in tables.items()}
    case = MemoryCase({name: TABLES[name].rows(found) for name, found in rows.items()})
    return course(case, replace(judge(case).verdict, failed_at=at(0))).launched_at


def test_launch_begins_where_evidence_shows_it_and_never_at_a_dump() -> None:
    dumps = [{"rank": 0, "first_at": at(-5), "last_at": at(0)}]
    stacks = [{"rank": 0, "sampled_at": at(-1)}]
    events = [{"signature": "worker_started", "logged_at": at(-300)}, {"signature": "nccl_watchdog_timeout", "logged_at": at(-900)}]
    steps = [{"rank": 0, "step": 0, "started_at": at(-200), "step_s": 1.0}]
    births = [{"rank": 0, "started_at": at(-400)}, {"rank": 1, "started_at": at(-399)}, {"rank": 2}]
    assert launched(dumps=dumps, dump_index=stacks) is None
    assert launched(dumps=dumps, dump_index=stacks, log_events=events[1:]) is None  # a line of trouble is no beginning
    assert launched(dumps=dumps, steps=steps) == at(-200)
    assert launched(dumps=dumps, steps=steps, log_events=events) == at(-300)
    assert launched(dumps=dumps, steps=steps, log_events=events, ranks=births) == at(-400)
    later = [{"rank": 0, "started_at": at(60)}]  # the next launch was there when the capture came
    assert launched(dumps=dumps, ranks=later) is None
    assert launched(dumps=dumps, steps=steps, ranks=later) == at(-200)


def test_a_launchers_events_are_moments_of_the_course() -> None:
    said = [
        ("worker_start_started", -60), ("fwd_bwd_end", -1), ("failure_detected", 8), ("rendezvous_started", 20), ("rendezvous_completed", 41),
        ("rendezvous_completed", 42), ("worker_start_started", 43), ("rendezvous_completed", 900),
    ]  # fmt: skip
    rows = [
        {"evidence_id": "a", "record": f"L{n}", "event": event, "source": "nvrx", "logged_at": at(x)}
        for n, (event, x) in enumerate(said, 1)
    ]
    steps = [{"evidence_id": "b", "record": "L1", "step": 5, "ended_at": at(70)}]
    case = MemoryCase({"trainer_events": TABLES["trainer_events"].rows(rows), "progress": TABLES["progress"].rows(steps)})
    told = course(case, replace(judge(case).verdict, failed_at=at(0)))
    assert (told.launched_at, told.noticed_at, told.relaunched_at, told.resumed_at) == (at(-60), at(8), at(43), at(70))
    assert told.rebuilt == (at(20), at(42))
    stages = evidence_stages(at(0), at(8), "a line", at(15), told, is_by_hand=False)
    assert [(s["stage"], s["started_at"], s["ended_at"]) for s in stages if s["stage"] == "rebuild"] == [
        ("rebuild", iso(at(20)), iso(at(42)))
    ]


def test_notes_are_no_part_of_what_names_the_evidence() -> None:
    tables = frames("planned_stop")
    row = {"evidence_id": "f" * 16, "path": "notes/INC-1.jsonl", "kind": "notes"}
    more = {**tables, "evidence": pl.concat([tables["evidence"], TABLES["evidence"].rows([row])])}
    fewer = {**tables, "evidence": tables["evidence"].head(3)}
    assert fingerprint(MemoryCase(more)) == fingerprint(MemoryCase(tables)) != fingerprint(MemoryCase(fewer))


def test_next_launch_in_the_log_ends_the_incident() -> None:
    lines = [
        ("worker_started", -60, None), ("nccl_watchdog_timeout", 10, "timed out"), ("worker_started", 100, None), ("train_progress", 130, None),
    ]  # fmt: skip
    rows = [
        {"evidence_id": "a", "record": f"L{n}", "signature": s, "logged_at": at(x), "message": m} for n, (s, x, m) in enumerate(lines, 1)
    ]
    steps = [{"evidence_id": "a", "record": f"L{n}", "step": n, "ended_at": at(x)} for n, x in enumerate((-10, -5, 130, 131), 1)]
    case = MemoryCase({"log_events": TABLES["log_events"].rows(rows), "progress": TABLES["progress"].rows(steps)})
    told = course(case, judge(case).verdict)
    assert (told.noticed_at, told.relaunched_at, told.resumed_at) == (at(10), at(100), at(130))
    stages = evidence_stages(at(0), at(10), "a line", at(50), told, is_by_hand=False)
    assert [(s["stage"], s["ended_at"], s["origin"]) for s in stages] == [
        ("detect", iso(at(10)), "evidence"),
        ("localize", iso(at(50)), "evidence"),
        ("resume", iso(at(130)), "evidence"),
    ]
    late = evidence_stages(at(0), at(-1), "by hand", at(50), told, is_by_hand=True)
    assert [(s["stage"], s["origin"]) for s in late] == [("localize", "hand"), ("resume", "evidence")]
    assert job_facts(case, judge(case).roster, told)["num_gpus"] is None
