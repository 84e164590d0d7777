"""Slurm's commands as text and JSON: hostlists, accounting, jobs, nodes. Written from the manual pages; no sample of a cluster is in it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _sources import FIXTURES, rows_of, source_of

from collectors import slurm_jobs, slurm_nodes, slurm_sacct
from collectors._hostlist import MAX_HOSTS, expand
from collectors._slurm_node_states import state_of
from collectors._slurm_values import duration_s
from collectors._slurm_values import state_of as job_state_of
from rca.errors import EvidenceError
from rca.types import Skip, Source

FULL = "JobID|State|ExitCode|Start|End|NodeList|Comment"


def read(collector: ModuleType, folder: Path, text: str) -> tuple[list[dict[str, Any]], list[Skip]]:
    source = source_of(folder, text.encode(), "x.txt")
    assert collector.claims("x", source.head), text[:200]
    tables, skips = rows_of(collector, source)
    return tables[collector.EMITS[0]], skips


def fixture(collector: ModuleType, name: str) -> tuple[list[dict[str, Any]], list[Skip]]:
    file = FIXTURES / name
    tables, skips = rows_of(collector, Source(name, file, file.stat().st_size))
    return tables[collector.EMITS[0]], skips


def test_hostlists() -> None:
    for text, names in (
        ("g3-[057,059-061]", ["g3-057", "g3-059", "g3-060", "g3-061"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("n[1-2]-ib,login", ["n1-ib", "n2-ib", "login"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("N1.example.org N2", ["n1", "n2"]),
        ("n1,n1", ["n1"]),
    ):
        assert expand(text).names == tuple(names), text
        assert expand(text).problem is None
    for text in (None, "", "(null)", "None assigned", "Unknown", "N/A"):
        assert (expand(text).names, expand(text).problem) == ((), None)
    for text, names in (
        ("n[1820-1822,...", ["n1820", "n1821", "n1822"]),
        ("n[1820-1821,18", ["n1820", "n1821"]),
        ("n1,n2,no+", ["n1", "n2"]),
        ("n[1820-18+", []),
        ("n1,n[a]", ["n1"]),
        ("n[2-1]", []),
    ):
        assert expand(text).names == tuple(names), text
        assert expand(text).problem, text
    for bomb in ("n[0-999999999]", "n[1-9999]m[1-9999]", f"n[1-{MAX_HOSTS}],m[1-2]", "n[" + "1-90000," * 40 + "5]"):
        assert expand(bomb).names == ()
        assert "more than" in (expand(bomb).problem or "")


def test_states_and_durations() -> None:
    for text, told in (
        ("CANCELLED by 5001", ("CANCELLED", "5001", False)),
        ("CANCELLED+", ("CANCELLED", None, True)),
        ("OUT_OF_ME+", ("OUT_OF_MEMORY", None, True)),
        ("NF", ("NODE_FAIL", None, False)),
        ("completing", ("COMPLETING", None, False)),
        ("COMPLET+", (None, None, False)),  # ED or ING
        ("RETIRED", (None, None, False)),
        ("", (None, None, False)),
    ):
        assert job_state_of(text) == told, text
    for text, seconds in (
        ("1-02:03:04", 93784.0),
        ("02:03:04", 7384.0),
        ("03:04.5", 184.5),
        ("0:00", 0.0),
        ("UNLIMITED", None),
        ("5", None),
    ):
        assert duration_s(text) == seconds, text


def test_every_end_and_whose_it_is(tmp_path: Path) -> None:
    lines = {
        "BOOT_FAIL|0:0": "platform",
        "NODE_FAIL|1:0": "platform",
        "PREEMPTED|0:15": "planned",
        "TIMEOUT|0:0": "planned",
        "DEADLINE|0:0": "planned",
        "CANCELLED by 0|0:0": "planned",
        "CANCELLED|0:15": "unknown",
        "OUT_OF_MEMORY|0:125": "workload",
        "FAILED|0:125": "workload",
        "FAILED|137:0": "unknown",
        "COMPLETED|0:0": "none",
        "REQUEUED|0:0": "unknown",
        "REVOKED|0:0": "none",
        "SPECIAL_EXIT|3:0": "unknown",
        "RUNNING|0:0": None,
        "PENDING|0:0": None,
        "SUSPENDED|0:0": None,
    }
    text = "JobID|State|ExitCode\n" + "".join(f"{7000 + n}|{line}\n" for n, line in enumerate(lines))
    rows, skips = read(slurm_sacct, tmp_path, text)
    assert not skips
    assert [row["attribution"] for row in rows] == list(lines.values())
    reserved = "JobID|State|Reservation\n" + "".join(
        f"1|{state}|{name}\n" for state in ("FAILED", "COMPLETED") for name in ("maint-1", "course")
    )
    assert [row["attribution"] for row in read(slurm_sacct, tmp_path, reserved)[0]] == ["planned", "unknown", "planned", "none"]


def test_ids_steps_and_requeues_stand_as_printed(tmp_path: Path) -> None:
    ids = ["55", "55.batch", "55.extern", "55.0", "56_7", "56_7.0", "56_[1-10%2]", "57+1", "57+1.batch"]
    rows, skips = read(slurm_sacct, tmp_path, "JobID|State\n" + "".join(f"{id_}|COMPLETED\n" for id_ in [*ids, "55", "55"]))
    assert not skips
    assert [row["job_id"] for row in rows] == [*ids, "55", "55"]
    assert [row["base_job_id"] for row in rows[:9]] == ["55", "55", "55", "55", "56_7", "56_7", "56_[1-10%2]", "57+1", "57+1"]
    assert [row["is_step"] for row in rows[:4]] == [False, True, True, True]
    both = read(slurm_sacct, tmp_path, "JobIDRaw|JobID|State\n60.0|59_1.0|FAILED\n")[0]
    assert both[0]["job_id"] == "59_1.0"
    assert [row["restarts"] for row in fixture(slurm_sacct, "slurm_sacct.psv")[0]] == [0, 1, None, None]


def test_delimiters_line_breaks_and_free_text(tmp_path: Path) -> None:
    for delimiter in ("|", ";", ",", "\t", "|#", "^", ":::"):
        text = "\n".join(delimiter.join(cells) for cells in (["JobID", "State", "NNodes"], ["1", "FAILED", "2"], ["2", "RUNNING", "3"]))
        assert [(row["job_id"], row["state"], row["num_hosts"]) for row in read(slurm_sacct, tmp_path, text)[0]] == [
            ("1", "FAILED", 2),
            ("2", "RUNNING", 3),
        ]
    closed = read(slurm_sacct, tmp_path, "JobID|State|NNodes|\n1|FAILED|2|\n2|FAILED||\n")[0]
    assert [row["num_hosts"] for row in closed] == [2, None]
    piped = read(slurm_sacct, tmp_path, f"{FULL}\n1|FAILED|1:0|2026-05-03T08:00:00|2026-05-03T09:00:00|n[1-2]|a | b\n")[0]
    assert (piped[0]["hosts"], piped[0]["comment"], piped[0]["elapsed_s"]) == (["n1", "n2"], "a | b", 3600.0)
    lines, skips = fixture(slurm_sacct, "slurm_sacct_lines.txt")
    assert ([row["record"] for row in lines], skips) == (["L2", "L5"], [])
    torn, skips = read(slurm_sacct, tmp_path, f"{FULL}\n1|FAILED|1:0\n2|FAILED|1:0|Unknown|None|None assigned|\n3|FAILED|")
    assert ([row["job_id"] for row in torn], [skip.record for skip in skips]) == (["2"], ["L2", "L4"])
    assert (torn[0]["hosts"], torn[0]["started_at_local"], torn[0]["elapsed_s"]) == (None, None, None)


def test_aligned_text() -> None:
    rows, skips = fixture(slurm_sacct, "slurm_sacct_aligned.txt")
    assert not skips
    assert [(row["job_id"], row["state"], row["exit_signal"], row["attribution"]) for row in rows] == [
        ("4103", "CANCELLED", 0, "planned"),
        ("4103.batch", "CANCELLED", 15, "unknown"),
        ("4104_7", "OUT_OF_MEMORY", 125, "workload"),
    ]


def test_running_rows_have_no_end(tmp_path: Path) -> None:
    (row,) = read(slurm_sacct, tmp_path, "JobID|State|Start|End|Elapsed\n1|RUNNING|2026-05-03T08:00:00|Unknown|1-00:00:01\n")[0]
    assert (row["started_at_local"], row["ended_at_local"], row["elapsed_s"]) == ("2026-05-03T08:00:00", None, 86401.0)
    (row,) = read(slurm_sacct, tmp_path, "JobID|State|Start|End\n1|FAILED|1777795200|1777795260\n")[0]  # SLURM_TIME_FORMAT=%s
    assert (row["started_at"], row["elapsed_s"]) == (datetime(2026, 5, 3, 8, 0, tzinfo=UTC), 60.0)


@pytest.mark.parametrize("wrapped", [False, True])
def test_json_of_accounting_old_and_new(tmp_path: Path, *, wrapped: bool) -> None:
    def n(value: int) -> Any:
        return {"set": True, "infinite": False, "number": value} if wrapped else value

    unset = {"set": False, "infinite": False, "number": 0} if wrapped else None
    job = {
        "job_id": 90, "array": {"job_id": 80, "task_id": n(3)}, "het": {"job_id": 0, "job_offset": unset}, "association": {"user": "user-a"},
        "derived_exit_code": {"return_code": n(0)}, "exit_code": {"status": ["ERROR"] if wrapped else "ERROR", "return_code": n(2)},
        "nodes": "n[1-2]", "allocation_nodes": 2, "restart_cnt": 1, "kill_request_user": None,
        "state": {"current": ["NODE_FAIL", "REQUEUED"] if wrapped else "NODE_FAIL", "reason": "None"},
        "time": {"start": 1777795200, "end": 1777795260, "elapsed": 60},
        "steps": [{"step": {"id": "90.0" if wrapped else {"job_id": 90, "step_id": 0}}, "state": "FAILED", "nodes": {"range": "n1"}, "time": {}}],
    }  # fmt: skip
    rows, skips = read(slurm_sacct, tmp_path, json.dumps({"meta": {}, "jobs": [job]}))
    assert not skips
    assert [(row["job_id"], row["state"], row["hosts"], row["exit_code"]) for row in rows] == [
        ("80_3", "NODE_FAIL", ["n1", "n2"], 2),
        ("80_3.0", "FAILED", ["n1"], None),
    ]
    assert (rows[0]["restarts"], rows[0]["ended_at"], rows[0]["attribution"]) == (1, datetime(2026, 5, 3, 8, 1, tzinfo=UTC), "platform")


def test_jobs_of_the_controller(tmp_path: Path) -> None:
    failed, waits = fixture(slurm_jobs, "slurm_job.txt")[0]
    assert (failed["job_id"], failed["restarts"], failed["attribution"], failed["num_gpus"]) == ("4100_3", 2, "platform", 16)
    assert (failed["comment"], failed["hosts"], failed["user"]) == ("note with blanks", ["host-01", "host-02"], "user-a")
    assert (waits["started_at_local"], waits["ended_at_local"], waits["hosts"], waits["num_hosts"]) == (None, None, None, 4)
    one = "JobId=9 JobName=a JobState=RUNNING Reason=None ExitCode=0:0 StartTime=2026-05-03T08:00:00 EndTime=2026-05-04T08:00:00 NodeList=n1\n"
    (row,) = read(slurm_jobs, tmp_path, one)[0]
    assert (row["started_at_local"], row["ended_at_local"], row["attribution"]) == ("2026-05-03T08:00:00", None, None)
    waiting, running = fixture(slurm_jobs, "slurm_queue.txt")[0]
    assert (waiting["state"], waiting["hosts"], waiting["job_name"]) == ("PENDING", None, "pre train")
    assert waiting["reason"].startswith("Nodes required")
    assert (running["state"], running["hosts"], running["elapsed_s"]) == ("RUNNING", ["host-01", "host-02"], 93784.0)
    queued = {"job_id": 9, "job_state": ["PENDING"], "start_time": 1777795200, "nodes": "", "exit_code": 9, "name": "a"}
    (row,) = read(slurm_jobs, tmp_path, json.dumps({"jobs": [queued]}))[0]
    assert (row["started_at"], row["exit_code"], row["exit_signal"]) == (None, 0, 9)


def test_states_of_nodes() -> None:
    for text, base, flags, answers in (
        ("MIXED+DRAIN+MAINTENANCE+RESERVED", "MIXED", ("DRAIN", "MAINTENANCE", "RESERVED"), True),
        ("DOWN*+RESERVED", "DOWN", ("RESERVED",), False),
        ("IDLE*+DRAIN", "IDLE", ("DRAIN",), False),
        ("drained*", "IDLE", ("DRAIN",), False),
        ("drng", None, ("DRAIN",), True),
        ("mix-", "MIXED", ("PLANNED",), True),
        ("idle~", "IDLE", ("POWERED_DOWN",), True),
        ("alloc$", "ALLOCATED", ("MAINTENANCE",), True),
        ("down$*", "DOWN", ("MAINTENANCE",), False),
        ("idle@", "IDLE", ("REBOOT_REQUESTED",), True),
    ):
        state = state_of(text)
        assert state is not None, text
        assert (state.base, state.flags, state.is_responding) == (base, flags, answers), text
    assert state_of("STATE") is None
    assert state_of("12 idle") is None


def test_nodes_of_the_controller(tmp_path: Path) -> None:
    rows = {row["host"]: row for name in ("slurm_nodes.txt", "slurm_nodes_one.txt") for row in fixture(slurm_nodes, name)[0]}
    assert {host: row["attribution"] for host, row in rows.items()} == {
        "host-01": "platform", "host-02": "planned", "host-03": None, "host-04": "planned", "host-05": "platform", "host-06": None,
    }  # fmt: skip
    assert (rows["host-02"]["reason"], rows["host-02"]["reason_by"]) == ("GPU=3 firmware update", "root")
    assert rows["host-02"]["reason_at_local"] == "2026-05-03T07:00:00"
    assert (rows["host-05"]["reason"], rows["host-05"]["is_drain"], rows["host-01"]["is_responding"]) == ("bad dimm in slot 3", True, False)
    down, drained = fixture(slurm_nodes, "slurm_nodes.json")[0]
    assert (down["reason_at"], down["is_responding"]) == (datetime(2026, 5, 3, 9, 2, tzinfo=UTC), False)
    assert (drained["is_drain"], drained["attribution"], drained["reason_at"]) == (True, "unknown", None)
    told = read(slurm_nodes, tmp_path, "NodeName=n1 State=IDLE+DRAIN Reason=asked by user-b [user-b@2026-05-03T07:00:00]\n")[0]
    assert (told[0]["reason"], told[0]["attribution"]) == ("asked by user-b", "unknown")


def test_tables_of_nodes(tmp_path: Path) -> None:
    rows = fixture(slurm_nodes, "slurm_sinfo.txt")[0]
    assert [(row["host"], row["attribution"]) for row in rows] == [
        ("host-01", "platform"), ("host-02", "planned"), ("host-03", "unknown"), ("host-04", None),
    ]  # fmt: skip
    reasons = fixture(slurm_nodes, "slurm_reasons.txt")[0]
    assert [(row["host"], row["reason"], row["base_state"]) for row in reasons] == [
        ("host-01", "Not responding", None), ("host-02", "Not responding", None), ("host-03", "maintenance: BMC fir", None),
    ]  # fmt: skip
    plain = "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\ngpu*         up   infinite      2  down* n[4-5]\ngpu*  up  infinite  1 idle n6\n"
    assert [(row["host"], row["base_state"]) for row in read(slurm_nodes, tmp_path, plain)[0]] == [
        ("n4", "DOWN"),
        ("n5", "DOWN"),
        ("n6", "IDLE"),
    ]


def test_other_files_are_left_alone() -> None:
    conf = b"ClusterName=c\nSlurmctldHost=h\nNodeName=n[1-4] CPUs=8 State=UNKNOWN\nPartitionName=p Nodes=ALL State=UP\n"
    for data in (
        conf,
        b"NodeName=n[1-4] CPUs=8 State=UNKNOWN\n",
        b"JobID,Loss\n1,2\n",
        b"step|state\n1|FAILED\n",
        b'{"jobs": [{"name": "build", "status": "ok"}]}',
        b'{"nodes": [{"name": "a", "state": "x"}]}',
        b"the STATE of NODES is good\n",
    ):
        for collector in (slurm_sacct, slurm_jobs, slurm_nodes):
            assert not collector.claims("x", data), (collector.__name__, data)


def test_a_header_alone_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="JobID and State"):
        read(slurm_sacct, tmp_path, "JobID|State\n")
