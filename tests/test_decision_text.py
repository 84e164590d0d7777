"""The decision in words: a few lines under the answer, the whole under `--why`; lines to paste stay one command whatever a name holds."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from _decision import ALIVE, WHO, advised, history, past, verdict
from _house import memory_case, to_text

from apps.decision import eviction_words, first_lines, recovery_words, why_parts
from apps.document import diagnosis_document
from apps.text import advice_lines, decision_lines
from rca.commands import commands, host_list
from rca.decision.advise import advise
from rca.judge import judge
from rca.settings import Settings
from rca.types import Finding


def test_the_first_screen_says_what_comes_next_and_how_long_the_way_back_is_where_that_is_known_of_this_size() -> None:
    advice = advised(verdict("gpu_fault"))
    told = "\n".join(advice_lines(advice))
    assert "if it fails: stop-time checks, then one restart as it is, then roll the code back, then dual-phase replay" in told
    assert "way back" not in told  # 454 s are published for 128 machines, and these are four: under --why
    assert "this job has 4" in " ".join(" ".join(decision_lines(advice)).split())
    own = history(*(past(n, repair_s=60.0 * n, stage_s={"queue": 5.0}) for n in (1, 2, 3)))
    assert "way back: cold restart, about 120 s (60 s to 180 s); median of 3" in " ".join(
        first_lines(advised(verdict("gpu_fault"), history=own))
    )


def test_where_nothing_failed_nothing_is_added() -> None:
    assert first_lines(advised(verdict("healthy", ()))) == []
    assert decision_lines(advised(verdict("healthy", ()))) == ["", "Where in the tree", "  nothing: nothing failed"]


def test_why_tells_every_part() -> None:
    lines = decision_lines(judge(memory_case("slow_rank")).advice)
    headings = [line for line in lines if line and not line.startswith(" ")]
    assert headings == [
        *("Where in the tree", "If it fails", "Restarts so far", "Go on slower, or replace"),
        *("If no spare takes their place", "The way back", "Before the restart"),
    ]
    assert any(line.startswith("  $ pdsh -w ") and "dcgmi diag" in line for line in lines)
    assert any("data not readable: not looked" in line for line in lines)
    assert any("tp 2 and pp 2 stay" in line for line in lines)


def test_why_folds_what_was_looked_for_and_not_seen_and_keeps_what_nobody_looked_for() -> None:
    advice = judge(memory_case("slow_rank")).advice
    told = dict(why_parts(advice))["Before the restart"]
    by = {status: [check for check in advice.before_restart if check["status"] == status] for status in ("not_seen", "not_looked")}
    assert by["not_seen"]
    assert by["not_looked"]
    assert told[-1] == f"looked for, and not seen: {', '.join(check['check'] for check in by['not_seen'])}"
    assert all(f"{check['check']}: not looked; {check['says']}" in told for check in by["not_looked"])


def test_the_document_holds_what_the_text_says() -> None:
    judged = judge(memory_case("slow_rank"))
    advice = json.loads(to_text(diagnosis_document(judged, [], {})))["advice"]
    assert (advice["action"], advice["branch"]) == ("replace", "degrade_or_replace")
    assert advice["degrade_or_replace"]["says"] in " ".join(first_lines(judged.advice))
    assert advice["recovery"]["path"] == "cold"
    assert {check["status"] for check in advice["before_restart"]} <= {"seen", "not_seen", "not_looked"}
    assert advice["retries"]["restarts"] is None  # nothing tells: not 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(spares=1), "warm spare, about 46 s"),
        (Settings(spares=0), "cold restart, about 454 s"),
    ],
)
def test_a_path_with_its_seconds(settings: Settings, words: str) -> None:
    way = advised(verdict("gpu_fault"), settings=settings).recovery
    assert way is not None
    assert recovery_words(way).startswith(words)


def test_names_of_hosts_and_samples_stay_words() -> None:
    evil = "h; reboot"
    who = replace(WHO, hosts={**WHO.hosts, 5: evil, 4: evil})
    told = verdict("gpu_fault", hosts=(evil,))
    found = advise(told, who, outcomes=ALIVE)
    runs = [line for step in found.next for line in step["run"]] + [line for check in found.before_restart for line in check["run"]]
    assert runs
    assert not any(evil in line for line in runs)
    assert host_list([evil, "-n", "all"], 4) == ""
    bad = commands(verdict("bad_sample", data={"shard": None, "sample_ids": ["a b; reboot", "--release", "7"]}), WHO, ())
    (line,) = [line for line in bad if "--add" in line]
    assert shlex.split(line, comments=True) == ["rca", "quarantine", "PATH", "--add", "a b; reboot", "7", "--because", "rca: bad_sample"]


def test_what_is_quoted_is_cut_behind_a_word() -> None:
    from rca.analyses._words import quoted

    said = "CUDA kernel errors might be reported later, so the trace may be wrong. For debugging consider passing CUDA_LAUNCH_BLOCKING=1"
    assert quoted(said, 90).endswith("For debugging\N{HORIZONTAL ELLIPSIS}")
    assert quoted(said) == said
    assert all(len(quoted(said, most)) <= most for most in range(10, 120))
    assert len(quoted("x" * 300)) == 160


def test_findings_are_alike_where_only_numbers_differ_and_nobody_is_accused() -> None:
    from apps.text import _likeness
    from rca.types import Finding

    one, two = (Finding("stuck_collective", "all_arrived", f"all 4 members arrived at #7 (ranks {n}, 9) and none finished") for n in (1, 2))
    assert _likeness((one, "")) == _likeness((two, ""))
    named = [Finding("slow_rank", "slow_compute", f"rank {n} is slow", ranks=(n,)) for n in (1, 2)]
    assert _likeness((named[0], "")) != _likeness((named[1], ""))


def test_the_way_with_fewer_hosts_has_its_own_commands_and_its_hours_say_what_they_are_made_of() -> None:
    """Three hosts of two ranks each stand apart, one does not only wait: 2 x 2 GPUs x 24 h go with the group, a wait and a remnant without it."""
    part = {"group": "pp:0", "kind": "pp", "ranks": [0, 1, 2, 3, 4, 5], "outliers": [0, 1, 2, 3, 4, 5], "suspects": [4, 5]}
    told = Finding("outlier_group", "group_apart", "a group stands apart", numbers={"cover": [part]})
    advice = advised(verdict("unknown", ()), (told,))
    assert (advice.action, advice.evict_hosts) == ("replace", ("host-a", "host-b", "host-c"))
    assert "2 are probably sound (96 GPU-hours of tests: 2 x 2 GPUs x 24 h)" in advice.because
    assert advice.eviction is not None
    lines = eviction_words(advice.eviction)
    way = next(n for n, line in enumerate(lines) if line.startswith("or, cheaper, where the job can wait: evict host-c only, 90 %"))
    assert "all 8 GPUs wait 2 min longer on average" in lines[way]
    assert lines[way + 1].startswith("$ scontrol update nodename=host-c state=drain")
    assert lines[way + 2].startswith("then, if the fault comes back, replay the 2 other hosts")
    assert [line.split()[1:4] for line in lines[way + 3 : way + 6]] == [
        ["rca", "replay", "plan"],
        ["rca", "replay", "run"],
        ["rca", "diagnose", "PATH"],
    ]


def test_what_is_done_with_a_group_is_one_decision_in_text_and_document() -> None:
    """The whole group goes, and the replay tells who of it is sound; the way with fewer comes after, as another way."""
    part = {"group": "pp:0", "kind": "pp", "ranks": [0, 1, 2, 3, 4, 5], "outliers": [0, 1, 2, 3, 4, 5], "suspects": [4, 5]}
    told = Finding("outlier_group", "group_apart", "a group stands apart", numbers={"cover": [part]})
    advice = advised(verdict("unknown", ()), (told,))
    assert advice.replay is not None
    assert advice.replay["suspects"] == ["host-a", "host-b", "host-c"]
    screen = advice_lines(advice)
    assert screen[0] == f"What to do: {advice.action}"
    starts = ("  evict host-a, host-b, host-c", f"  $ {advice.commands[0]}", "  $ rca replay plan", "  or, cheaper, where the job can wait")
    places = [next(n for n, line in enumerate(screen) if line.startswith(start)) for start in starts]
    assert places == sorted(places)
    assert sum("rca replay plan" in line for line in screen) == 1


@pytest.mark.parametrize(
    ("cause", "ranks", "finding", "says", "command"),
    [
        ("config_drift", (5,), {"numbers": {"components": ["driver"]}, "hosts": ("host-c",)}, "give host-c the driver of the others", ""),
        (
            "storage_stall",
            (5,),
            {"says": "storage refused a write (OSError: [Errno 28] No space left on device)"},
            "free space",
            "df -h; df -i",
        ),
        ("storage_stall", (5,), {"says": "storage refused a read (OSError: [Errno 5])"}, "storage did not answer", "/proc/mounts"),
        ("network_fault", (5,), {}, "a restart there would meet it again", "ibstat"),
        ("network_fault", (3, 5), {}, "look first at what they share", "ibstat"),
    ],
)
def test_what_to_do_fits_what_failed(cause: str, ranks: tuple[int, ...], finding: dict[str, Any], says: str, command: str) -> None:
    found = advised(verdict(cause, ranks), (Finding("config_drift", "complained", **{"says": "", **finding}),))
    assert says in found.because
    assert any(command in line for line in found.commands) or not command


def test_a_network_is_looked_at_where_calls_that_nobody_ends_reach() -> None:
    calls = tuple(Finding("stuck_collective", "all_arrived", "", scope=f"{rank}", numbers={"members": [rank, rank + 4]}) for rank in (2, 3))
    for hosts, whom in ((WHO.hosts, "what host-b,host-d share"), ({}, "what the hosts of ranks 2-3, 6-7 share")):
        found = advise(verdict("network_fault", (), hosts=()), replace(WHO, hosts=hosts), calls)
        assert whom in found.because


def test_a_retry_is_not_followed_by_the_same_restart() -> None:
    assert all(step["branch"] != "reattempt" for step in advised(verdict("host_out_of_memory")).next)
    assert any(step["branch"] == "reattempt" for step in advised(verdict("gpu_fault")).next)
