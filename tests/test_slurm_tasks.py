"""Ends of srun's tasks: whose they are, and what the cancelled step after them means."""

from __future__ import annotations

import pytest

from rca.analyses._slurm_tasks import with_ranks
from rca.case import MemoryCase
from rca.judge import judge
from rca.questions import ask
from rca.tables import TABLES

EIGHT_EACH = {rank: f"host-{'ab'[rank // 8]}" for rank in range(16)}
ONE_EACH = {rank: f"host-{'abcd'[rank]}" for rank in range(4)}
MEMORY = "slurmstepd: error: Job 7 exceeded memory limit (9338240 > 8388608), being killed"
BY_SRUN = {"signature": "slurm_step_failed", "message": "srun: Terminating StepId=7.0"}
CANCELLED = "slurmstepd: error: *** STEP 7.0 ON host-a CANCELLED AT 2026-03-04T05:06:07 ***"


def end(host: str, tasks: str) -> dict[str, object]:
    host_named = host if "[" not in host else None
    return {
        "signature": "slurm_task_exit",
        "message": f"srun: error: {host}: {tasks}: Killed",
        "host": host_named,
        "rank": None,
        "exit_code": -9,
    }


@pytest.mark.parametrize(
    ("rows", "hosts", "ranks"),
    [
        ([end("host-b", "task 11")], EIGHT_EACH, [11]),
        ([end("host-a", "task 1")], EIGHT_EACH, [1]),  # the second launcher would sit on host-b
        ([end("host-b", "task 1")], EIGHT_EACH, [None]),
        ([end("host-a", "task 0")], EIGHT_EACH, [None]),
        ([end("host-a", "task 0"), end("host-a", "tasks 1-7")], EIGHT_EACH, [0, None]),
        ([end("host-b", "task 1")], ONE_EACH, [1]),
        ([end("host-a", "task 1")], {}, [None]),
        ([end("host-[a-b]", "tasks 3,5")], EIGHT_EACH, [None]),
        (
            [end("host-b", "task 11"), {"signature": "elastic_child_failed", "message": "", "host": None, "rank": None}],
            EIGHT_EACH,
            [None, None],
        ),
    ],
)
def test_a_task_is_a_rank_where_the_host_says_so(rows: list[dict[str, object]], hosts: dict[int, str], ranks: list[int | None]) -> None:
    assert [row["rank"] for row in with_ranks(rows, hosts)] == ranks


@pytest.mark.parametrize(
    ("lines", "sign"),
    [
        ([end("host-a", "task 5"), {"signature": "slurm_cancelled", "message": CANCELLED}], "stop_after_fault"),
        ([{"signature": "slurm_cancelled", "message": CANCELLED}, end("host-a", "tasks 0-15")], "announced_only"),
        ([BY_SRUN, {"signature": "slurm_cancelled", "message": CANCELLED}], "stop_after_fault"),  # srun ends what one bad task is part of
        ([{"signature": "slurm_cancelled", "message": CANCELLED}, BY_SRUN], "announced_only"),
        (
            [end("host-a", "tasks 0-7") | {"exit_code": -15}, BY_SRUN, {"signature": "slurm_cancelled", "message": CANCELLED}],
            "announced_only",
        ),
        ([BY_SRUN, {"signature": "slurm_cancelled", "message": CANCELLED.replace("7.0", "8.0")}], "stop_after_fault"),
        ([end("host-a", "tasks 0-7") | {"exit_code": -15}, {"signature": "slurm_cancelled", "message": CANCELLED}], "announced_only"),
        (
            [{"signature": "host_out_of_memory", "message": MEMORY}, {"signature": "slurm_cancelled", "message": CANCELLED}],
            "stop_after_fault",
        ),
    ],
)
def test_a_step_cancelled_behind_a_task_that_ended_is_clean_up(lines: list[dict[str, object]], sign: str) -> None:
    rows = [{"evidence_id": "slurm", "record": f"L{n}", **line} for n, line in enumerate(lines, 1)]
    found = ask(MemoryCase({"log_events": TABLES["log_events"].rows(rows)}), "planned_stop")
    assert [f.sign for f in found.findings] == [sign]


@pytest.mark.parametrize(
    ("lines", "signs"),
    [
        ([("host-a", "tasks 0-7", -15), ("host-b", "tasks 8-15", -15)], ["bare_stop"]),
        ([("host-a", "task 0", -15), ("host-b", "task 1", -15)], ["bare_stop"]),  # launchers
        ([("host-a", "tasks 0-7", -15)], []),
        ([("host-a", "tasks 0-4,6-7", -15), ("host-b", "tasks 8-15", -15), ("host-a", "task 5", 1)], []),
    ],
)
def test_sigterm_of_every_task_is_a_stop_that_nobody_explains(lines: list[tuple[str, str, int]], signs: list[str]) -> None:
    ranks = [{"evidence_id": "map", "record": f"L{r}", "rank": r, "host": host} for r, host in EIGHT_EACH.items()]
    ends = [
        {
            "evidence_id": "slurm",
            "record": f"L{n}",
            **end(host, tasks),
            "exit_code": code,
            "message": f"srun: error: {host}: {tasks}: Ended",
        }
        for n, (host, tasks, code) in enumerate(lines, 1)
    ]
    case = MemoryCase({"ranks": TABLES["ranks"].rows(ranks), "log_events": TABLES["log_events"].rows(ends)})
    assert [f.sign for f in ask(case, "planned_stop").findings] == signs
    assert judge(case).verdict.cause == "unknown"
    assert ("SIGTERM from outside ended every task" in judge(case).verdict.summary) == bool(signs)


@pytest.mark.parametrize(
    ("kills", "rank"),
    [
        ([("python", 7)], 5),
        ([("python", 7), ("pt_main_thread", 9)], None),  # which of them is not told
        ([("python", 7), ("chrome", 9)], 5),
        ([("chrome", 9)], None),
    ],
)
def test_the_one_trainer_that_memory_cost_is_the_one_rank_that_was_killed(kills: list[tuple[str, int]], rank: int | None) -> None:
    ranks = [{"evidence_id": "map", "record": f"L{r}", "rank": r, "host": host, "local_rank": r % 8} for r, host in EIGHT_EACH.items()]
    oom = [
        {"evidence_id": "dmesg", "record": f"L{pid}", "host": "host-a", "kind": "oom", "process": name, "pid": pid} for name, pid in kills
    ]
    log = [{"evidence_id": "slurm", "record": "L1", **end("host-a", "task 5")}]
    rows = {"ranks": ranks, "kernel_events": oom, "log_events": log}
    found = ask(MemoryCase({name: TABLES[name].rows(made) for name, made in rows.items()}), "process_death")
    assert [f.ranks for f in found.findings if f.sign == "killed_for_memory"] == ([(rank,)] if rank is not None else [])


@pytest.mark.parametrize(
    ("host", "tasks", "signs"),
    [
        ("host-x", "task 3", ["of_others"]),
        ("host-a", "task 16", ["of_others"]),
        ("host-a", "tasks 4-7", ["task_killed"]),
        ("host-a", "task -7", []),  # srun prints no such number
        ("host-b", "task 1", ["task_killed"]),  # a launcher's
    ],
)
def test_a_task_on_a_host_or_of_a_number_that_the_job_does_not_have_is_of_another(host: str, tasks: str, signs: list[str]) -> None:
    ranks = [{"evidence_id": "map", "record": f"L{r}", "rank": r, "host": on, "local_rank": r % 8} for r, on in EIGHT_EACH.items()]
    log = [{"evidence_id": "slurm", "record": "L1", **end(host, tasks)}]
    rows = {"ranks": TABLES["ranks"].rows(ranks), "log_events": TABLES["log_events"].rows(log)}
    assert [f.sign for f in ask(MemoryCase(rows), "slurm_ends").findings] == signs
    assert host not in judge(MemoryCase(rows)).verdict.hosts or signs == ["task_killed"]
    unmapped = {"ranks": TABLES["ranks"].rows([{**row, "local_rank": None} for row in ranks[:8]]), "log_events": rows["log_events"]}
    assert "of_others" not in [f.sign for f in ask(MemoryCase(unmapped), "slurm_ends").findings]  # there may be more ranks


def ends_of(line: str, code: int | None) -> dict[str, object]:
    host, tasks, _ = line.split(": ")
    return end(host, tasks) | {"exit_code": code, "message": f"srun: error: {line}"}


REST = [ends_of("host-a: tasks 0-4,6-7: Terminated", -15), ends_of("host-b: tasks 8-15: Terminated", -15)]
KILLED_ALONE = ends_of("host-a: task 5: Killed", -9)
CANCELLED_JOB = CANCELLED.replace("STEP 7.0", "JOB 7")


@pytest.mark.parametrize(
    ("cancelled", "ends", "cause", "signs"),
    [
        (CANCELLED, [KILLED_ALONE, *REST], "process_killed", {"stop_after_fault", "killed"}),  # none was told to end before it
        (CANCELLED_JOB, [KILLED_ALONE, *REST], "planned_stop", {"announced_only"}),  # which srun does not do
        (CANCELLED, [*REST, KILLED_ALONE], "planned_stop", {"announced_only"}),  # left when KillWait was over, perhaps
        (
            CANCELLED,
            [*REST, ends_of("host-a: task 5: Out Of Memory", None)],
            "host_out_of_memory",
            {"stop_after_fault", "killed_for_memory"},
        ),
        (CANCELLED, [KILLED_ALONE], "unknown", {"announced_only", "task_killed"}),  # the others may have ended well
        (CANCELLED, [*REST, ends_of("host-a: task 5: Exited with exit code 1", 1)], "planned_stop", {"announced_stop"}),  # its own way
        (
            CANCELLED,
            [ends_of("host-a: tasks 0-7: Killed", -9), ends_of("host-b: tasks 8-15: Killed", -9)],
            "planned_stop",
            {"announced_stop"},
        ),
    ],
)
def test_one_task_that_was_killed_where_its_step_was_cancelled_is_told(
    cancelled: str, ends: list[dict[str, object]], cause: str, signs: set[str]
) -> None:
    stop = {"signature": "slurm_cancelled", "message": cancelled, "logged_at_local": "2026-03-04T05:06:07"}
    rows = [{"evidence_id": "slurm", "record": f"L{n}", **line} for n, line in enumerate([stop, *ends], 5)]
    printed = [{"evidence_id": "slurm", "record": f"L{n}", "step": n, "ended_at_local": f"2026-03-04T05:06:0{2 * n}"} for n in range(1, 4)]
    ranks = [{"evidence_id": "map", "record": f"L{r}", "rank": r, "host": on, "local_rank": r % 8} for r, on in EIGHT_EACH.items()]
    made = {"ranks": ranks, "log_events": rows, "progress": printed}
    judged = judge(MemoryCase({name: TABLES[name].rows(told) for name, told in made.items()}))
    found = [f for o in judged.outcomes for f in o.findings if f.analysis in ("planned_stop", "process_death", "slurm_ends")]
    assert (judged.verdict.cause, {f.sign for f in found}) == (cause, signs)
    assert all(" task 5 on host-a was killed" in f.says or "(task 5 on" in f.says for f in found if f.sign == "announced_only")


@pytest.mark.parametrize(("host", "sign"), [("host-a", ["killed_for_memory"]), ("host-b", [])])
def test_a_task_that_the_limit_of_its_step_killed_is_a_rank_that_memory_cost(host: str, sign: list[str]) -> None:
    """On another host than the rank of that number the task is a launcher: of which of its ranks is not told."""
    ranks = [{"evidence_id": "map", "record": f"L{r}", "rank": r, "host": on, "local_rank": r % 8} for r, on in EIGHT_EACH.items()]
    message = f"srun: error: {host}: task 5: Out Of Memory"
    log = [
        {"evidence_id": "slurm", "record": "L1", "signature": name, "host": host, "exit_code": code, "message": message}
        for name, code in (("slurm_task_exit", -9), ("host_out_of_memory", None))
    ]
    found = ask(MemoryCase({"ranks": TABLES["ranks"].rows(ranks), "log_events": TABLES["log_events"].rows(log)}), "process_death")
    assert [f.sign for f in found.findings if f.ranks == (5,)] == sign


FAILED = "srun: error: Node failure on host-d"
ENDED = "slurmstepd: error: *** JOB 1 ON host-a CANCELLED AT 2026-03-04T05:06:07 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"


def says(signature: str, message: str) -> dict[str, object]:
    return {"signature": signature, "message": message}


KILLED = says("slurm_task_exit", "srun: error: host-d: tasks 24-31: Killed")


@pytest.mark.parametrize(
    ("lines", "sign", "hosts"),
    [
        ([says("slurm_node_failure", FAILED), says("slurm_node_failure", ENDED)], "node_failed", ("host-d",)),
        ([says("slurm_node_failure", ENDED)], "node_failed", ()),  # host-a is where the batch script ran
        ([KILLED], "task_killed", ("host-d",)),
        (
            [KILLED, says("slurm_cancelled", CANCELLED), says("slurm_task_exit", "srun: error: host-a: task 0: Killed")],
            "task_killed",
            ("host-d",),
        ),
        ([KILLED, says("slurm_task_exit", "srun: error: host-b: tasks 8-15: Killed")], "task_killed", ()),  # at about the same time
        (
            [KILLED, BY_SRUN, says("slurm_task_exit", "srun: error: host-b: tasks 8-15: Killed")],
            "task_killed",
            ("host-d",),
        ),
        (
            [
                says("slurm_task_exit", "srun: error: host-d: task 3: Bus error"),
                says("slurm_task_exit", "srun: error: host-a: task 0: Killed"),
            ],
            "task_bus_error",
            ("host-d",),
        ),
        ([says("slurm_task_exit", "srun: error: host-d: task 3: Segmentation fault (core dumped)")], "task_crashed", ("host-d",)),
        ([says("slurm_task_exit", "srun: error: host-d: task 3: Bus error")], "task_bus_error", ("host-d",)),
        ([says("slurm_task_exit", "srun: error: host-d: task 3: Aborted (core dumped)")], "task_aborted", ()),  # by its watchdog, maybe
        ([says("slurm_node_failure", FAILED) | {"host": "host-d"}, says("slurm_time_limit", CANCELLED)], "node_failed", ("host-d",)),
        ([says("slurm_cancelled", CANCELLED), KILLED], None, ()),  # ordered
        ([says("slurm_task_exit", "srun: error: host-a: task 0: Exited with exit code 1"), KILLED], None, ()),  # srun's own kill
        ([says("elastic_child_failed", ""), KILLED], None, ()),
        ([says("slurm_node_failure", "slurmctld: error: Nodes host-d not responding, setting DOWN")], None, ()),  # may be of any job
    ],
)
def test_slurm_tells_a_lost_node_or_the_first_task_that_ended_without_a_map(
    lines: list[dict[str, object]], sign: str | None, hosts: tuple[str, ...]
) -> None:
    rows = [{"evidence_id": "slurm", "record": f"L{n}", **line} for n, line in enumerate(lines, 1)]
    found = ask(MemoryCase({"log_events": TABLES["log_events"].rows(rows)}), "slurm_ends").findings
    assert [(f.sign, f.hosts, f.ranks) for f in found] == ([(sign, hosts, ())] if sign else [])


def test_a_task_that_aborted_itself_tells_no_cause() -> None:
    line = {"evidence_id": "slurm", "record": "L1", **says("slurm_task_exit", "srun: error: host-d: task 3: Aborted")}
    verdict = judge(MemoryCase({"log_events": TABLES["log_events"].rows([line])})).verdict
    assert (verdict.cause, verdict.ranks, verdict.hosts) == ("unknown", (), ())


@pytest.mark.parametrize(
    ("death", "cause"), [("Killed", "process_killed"), ("Segmentation fault", "user_exception"), ("Bus error", "storage_stall")]
)
def test_one_end_that_srun_tells_names_its_host_and_the_cause_with_modest_certainty(death: str, cause: str) -> None:
    line = {"evidence_id": "slurm", "record": "L1", **says("slurm_task_exit", f"srun: error: host-d: task 3: {death}")}
    verdict = judge(MemoryCase({"log_events": TABLES["log_events"].rows([line])})).verdict
    assert (verdict.cause, verdict.ranks, verdict.hosts) == (cause, (), ("host-d",))
    assert 0.5 < verdict.probability < 0.95  # a sure answer has more
    assert f"{cause.replace('_', ' ')} on host-d: " in verdict.summary
