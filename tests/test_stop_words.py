"""How an end from outside is told: each kind in words of its own, none as another."""

from __future__ import annotations

import pytest
from test_event_questions import announced, at

from rca.judge import judge
from rca.stop_words import STOPS, stop_kind, stop_words
from rca.types import Finding

SAID = (
    ("slurm_time_limit", "*** STEP 7.0 ON host-0 CANCELLED AT 2026-02-20T03:50:31 DUE TO TIME LIMIT ***", False, "time_limit"),
    ("time_limit", "job killed: walltime 86400 exceeded limit 86400", False, "time_limit"),
    ("slurm_preempted", "*** JOB 7 ON host-0 CANCELLED AT 2026-02-20T03:50:31 DUE TO PREEMPTION ***", True, "preempted"),
    ("preempted", "interruption notice received, instance will be reclaimed in 120 seconds", True, "reclaimed"),
    ("slurm_cancelled", "*** JOB 7 ON host-0 CANCELLED AT 2026-02-20T03:50:31 ***", False, "cancelled"),
    ("stopping", "received stop request from user via web console", False, "cancelled"),
    ("draining", "slurm-hook: host-0001 set to DRAIN, signalling job", False, "drained"),
    ("draining", "drain requested for host-0001 (firmware rollout), stopping workload", False, "maintenance"),
    ("stopping", "autoscaler: scaling down worker group from 8 to 4 replicas", False, "scaled_down"),
    ("slurm_requeued", "*** JOB 7 ON host-0 CANCELLED DUE TO REQUEUE ***", False, "requeued"),
    ("stopping", "operator: stopping run 12", False, "stopped"),
)


@pytest.mark.parametrize(("signature", "text", "is_preemption", "kind"), SAID)
def test_kind_of_an_announcement(signature: str, text: str, kind: str, *, is_preemption: bool) -> None:
    assert stop_kind(signature, text, is_preemption=is_preemption) == kind


def test_only_what_somebody_decided_is_called_on_purpose() -> None:
    assert [kind for kind, words in STOPS.items() if "on purpose" in words.says + words.then] == ["stopped"]


def test_words_are_those_of_the_cause_and_the_sharper_kind_goes_first() -> None:
    told = [
        Finding("planned_stop", "announced_stop", "", numbers={"stop_kind": kind}, cites=())
        for kind in ("stopped", "cancelled", "preempted")
    ]
    assert stop_words(told, "planned_stop") is STOPS["cancelled"]
    assert stop_words(told, "preemption") is STOPS["preempted"]
    assert stop_words([], "planned_stop") is None


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("*** STEP 7.0 ON host-a CANCELLED AT 2026-03-04T05:06:07 ***", "maintenance"),
        ("accounting: job 7 CANCELLED by 0", "maintenance"),
        ("accounting: job 7 CANCELLED by 1031", "cancelled"),
        ("scancel issued by uid=1031", "cancelled"),
    ],
)
def test_a_cancellation_in_a_window_is_of_it_unless_a_person_is_named(reason: str, kind: str) -> None:
    told = [
        Finding("planned_stop", "announced_stop", "", numbers={"stop_kind": "cancelled", "reason": reason}),
        Finding("planned_window", "in_window", "", numbers={"stop_kind": "maintenance"}),
    ]
    assert stop_words(told, "planned_stop") is STOPS[kind]


def test_a_lost_gpu_is_to_be_mended_after_an_end_on_purpose_too() -> None:
    job = announced().kernel("host-c", "xid", 12.2, code=79, gpu="0000:3b:00")
    for host in ("host-a", "host-b", "host-c", "host-d"):
        job.add("host_logs", f"dmesg-{host}", host=host, first_at=at(-9000), last_at=at(60), num_lines=100)
    told = judge(job.case())
    assert (told.verdict.cause, told.advice.action, told.advice.evict_hosts) == ("planned_stop", "none", ())
    assert "no fault ended it" in told.verdict.summary
    assert "keep host-c out of the restart" in told.advice.because
    assert "nothing failed" in judge(announced().case()).verdict.summary
