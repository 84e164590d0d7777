"""Logs of trainers, launchers and schedulers: who says what, when, and what it can mean."""

from __future__ import annotations

import csv
import json
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from _sources import FIXTURES, rows_of, source_of

from collectors import _log_signatures, trainer_log, xid
from collectors._log_prefix import parse, pieces
from collectors._log_scheduler import announcement
from rca.causes import LAYERS

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "cases"
Row = dict[str, Any]


def tables(folder: Path, text: str, name: str = "x.log") -> dict[str, list[Row]]:
    """Rows by table, a column without a value left out."""
    found, skips = rows_of(trainer_log, source_of(folder, text.encode(), name))
    assert skips == []
    return {table: [{k: v for k, v in row.items() if v is not None} for row in rows] for table, rows in found.items()}


def events(folder: Path, text: str, name: str = "x.log") -> list[Row]:
    return tables(folder, text, name)["log_events"]


def one(folder: Path, text: str, name: str = "x.log") -> Row:
    (row,) = events(folder, text, name)
    return row


def fixture(folder: Path, name: str) -> dict[str, list[Row]]:
    return tables(folder, (FIXTURES / name).read_text("utf-8"), name)


# Prefixes and clocks


@pytest.mark.parametrize(
    ("raw", "local", "level", "rank", "host"),
    [
        ("2026-03-04 05:06:07,089 [host-a][rank5] INFO x", "2026-03-04T05:06:07.089", "info", 5, "host-a"),
        ("2026-03-04T05:06:07.5Z x", "2026-03-04T05:06:07.5", None, None, None),
        ("[rank12]:[E304 05:06:07.123456789 Watch.cpp:5] [Rank 1] x", "03-04T05:06:07.123456", "error", 12, None),
        ("[rank0]:[W1206 05:06:07.1 a.cpp:5] x", "12-06T05:06:07.1", "warning", 0, None),
        ("I20260304 05:06:07.1 991 a.cpp:5] x", "2026-03-04T05:06:07.1", "info", None, None),
        ("host-b: [2026-03-04 05:06:07,089] [INFO] [log.py:9:out] [Rank 0] x", "2026-03-04T05:06:07.089", "info", 0, "host-b"),
        ("  | 2026-03-04T05:06:07.089Z | trainer - INFO - RANK 3 - x", "2026-03-04T05:06:07.089", "info", 3, None),
        ("Mar  4 05:06:07 host-a x", "03-04T05:06:07", None, None, "host-a"),
        ("[03/04 05:06:07 d2.data]: x", "03-04T05:06:07", None, None, None),
        ("host-a:71:72 [0] NCCL WARN x", None, None, None, "host-a"),
        ("[17] [rank4]: x", None, None, 4, None),
        ("[2026-03-04 05:06:07,089] [INFO] [rank4] x", "2026-03-04T05:06:07.089", "info", 4, None),
        ("g002: [rank4]: x", None, None, 4, "g002"),
        ("fp16: x", None, None, None, None),
        ("\x1b[32m05:06:07 \x1b[0mWARNING: x", "05:06:07", "warning", None, None),
        ("WARNING:torch.distributed.api:x", None, "warning", None, None),
        ('time="2026-03-04T05:06:07Z" level=error msg="x"', "2026-03-04T05:06:07", "error", None, None),
        ("[default1]:[rank9]: x", None, None, 9, None),
    ],
)
def test_prefixes_in_any_order_give_clock_level_rank_and_host(
    raw: str, local: str | None, level: str | None, rank: int | None, host: str | None
) -> None:
    line = parse(next(iter(pieces(raw))), 1)
    assert (line.local, line.level, line.rank, line.host) == (local, level, rank, host)


def test_only_a_stamp_with_a_zone_is_an_instant() -> None:
    assert parse("2026-03-04T05:06:07Z x", 1).at == datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    assert parse("2026-03-04T05:06:07+02:00 x", 1).at == datetime(2026, 3, 4, 3, 6, 7, tzinfo=UTC)
    assert parse("2026-03-04 05:06:07 x", 1).at is None
    assert parse("2026-02-30T05:06:07Z x", 1).at is None


def test_words_before_a_colon_are_no_host_and_text_keeps_its_indentation() -> None:
    for text in ("step12: x", "python3: x", "frame: x", "RuntimeError: x"):
        assert parse(text, 1).host is None
    assert parse("[rank0]:     y = f(x)", 1).text == "     y = f(x)"


# Ranks


def test_a_group_rank_is_never_a_global_one_but_in_the_default_group(tmp_path: Path) -> None:
    rows = {row["record"]: row for row in fixture(tmp_path, "log_interleaved.log")["log_events"]}
    assert (rows["L5"]["rank"], rows["L5"]["group_rank"]) == (0, 1)
    assert "rank" not in rows["L7"]
    assert rows["L7"]["group_rank"] == 5
    assert rows["L8"]["rank"] == 2


def test_the_file_name_gives_the_rank_only_where_no_line_gives_another(tmp_path: Path) -> None:
    assert one(tmp_path, "CUDA error: an illegal memory access was encountered\n", "rank_7.log")["rank"] == 7
    mixed = events(tmp_path, "[rank1]: RuntimeError: x\nstd::bad_alloc\n", "rank_7.log")
    assert [row.get("rank") for row in mixed] == [1, None]
    assert "rank" not in one(tmp_path, "failed (exitcode: 1) local_rank: 0 (pid: 5) of binary\n", "node_rank_0.log")


@pytest.mark.parametrize(
    "body", ["[E ProcessGroupNCCL.cpp:632] [Rank 2] {}", "[Rank 2] {}", "  what():  [Rank 2] {}", "RuntimeError: [Rank 2] {}"]
)
@pytest.mark.parametrize(
    ("name", "before", "wanted"),
    [
        ("rank_15.stderr.log", "", (15, 2)),  # the group's rank beside the file's own
        ("rank_2.log", "", (2, 2)),
        ("rank_1.log", "", (2, None)),  # no rank is below that of a group: the name counts something else
        ("rank_15.log", "[rank3]: MemoryError\n", (2, None)),  # lines of others too
        ("all.log", "[rank9]:[E304 05:06:07.1 a.cpp:5] [Rank 1] {}\n", (None, 2)),  # a group of other ranks is at work
        ("all.log", "[rank1]:[E304 05:06:07.1 a.cpp:5] [Rank 1] {}\n", (2, None)),
    ],
)
def test_what_a_process_group_calls_itself_gives_way_to_the_rank_of_the_file(
    tmp_path: Path, name: str, before: str, wanted: tuple[int | None, int | None], body: str
) -> None:
    watchdog = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
    row = events(tmp_path, (before + body).replace("{}", watchdog) + "\n", name)[-1]
    assert (row["signature"], row.get("rank"), row.get("group_rank")) == ("nccl_watchdog_timeout", *wanted)


def test_a_task_of_srun_is_a_rank_unless_the_tasks_are_launchers(tmp_path: Path) -> None:
    assert one(tmp_path, "12: MemoryError\n")["rank"] == 12
    launched = "1: INFO starting workers for entrypoint\n1: failed (exitcode: 1) local_rank: 3 (pid: 5) of binary\n1: MemoryError\n"
    assert [row.get("rank") for row in events(tmp_path, launched)] == [None, None, None]
    assert [row.get("rank") for row in events(tmp_path, "1: [rank9]: MemoryError\n1: std::bad_alloc\n")] == [9, None]


@pytest.mark.parametrize(
    "said",
    [
        "***** Running training *****",
        "[after training is done] datetime: 2026-03-04 05:06:07",
        "Training starts at step 1.",
        "training done",
    ],
)
def test_what_a_trainer_prints_of_itself_makes_no_node_of_its_task(tmp_path: Path, said: str) -> None:
    read = events(tmp_path, f' 0: {said}\n29: Traceback (most recent call last):\n29:   File "/job/a.py", line 3, in f\n29: KeyError: 7\n')
    assert [row.get("rank") for row in read if row["signature"] == "python_traceback"] == [29]


def test_tasks_that_turn_out_to_be_nodes_never_were_ranks(tmp_path: Path) -> None:
    torn = '3: Traceback (most recent call last):\n3:   File "/job/a.py", line 3, in f\n3: KeyError: 7\n'
    for later in ("3: [rank25]: std::bad_alloc\n", "3: INFO starting workers for entrypoint\n"):
        assert next(row for row in events(tmp_path, torn + later) if row["signature"] == "python_traceback").get("rank") is None, later


# Tracebacks


def test_a_chain_is_one_row_named_after_its_first_exception_and_a_victim_is_none_of_its_own(tmp_path: Path) -> None:
    found = fixture(tmp_path, "log_victim.log")
    start, steps, failure = found["log_events"]
    assert (start["signature"], start["pid"], start["rank"], start["host"]) == ("worker_started", 4103, 3, "host-a")
    assert (steps["signature"], steps["num_folded"]) == ("train_progress", 2)
    assert (failure["signature"], failure["exception"], failure["record"]) == ("nccl_socket_closed", "RuntimeError", "L7")
    assert failure["frames"] == ["call (/job/comm.py:12)"]
    assert failure["peer"] == "192.0.2.7"
    assert failure["message"].endswith("Connection reset by peer")
    assert found["ranks"] == [{"record": "L1", "rank": 3, "host": "host-a", "pid": 4103, "role": "trainer"}]


def test_interleaved_tracebacks_keep_their_own_lines(tmp_path: Path) -> None:
    row = next(row for row in fixture(tmp_path, "log_interleaved.log")["log_events"] if row["record"] == "L6")
    assert (row["signature"], row["rank"], row["frames"]) == ("cuda_oom", 1, ["main (/job/train.py:8)"])


def test_a_bare_traceback_belongs_to_the_error_line_above_it_and_replaces_that(tmp_path: Path) -> None:
    text = (
        "2026-03-04 05:06:07,089 [host-a][rank5] ERROR giving up\nTraceback (most recent call last):\n"
        '  File "/job/a.py", line 3, in f\n    g()\nKeyError: 7\n2026-03-04 05:06:08,000 [host-a][rank5] INFO step 3 | loss 1.0\n'
    )
    row = next(row for row in events(tmp_path, text) if row["signature"] != "train_progress")
    assert (row["signature"], row["rank"], row["exception"], row["message"]) == ("python_traceback", 5, "KeyError", "7")
    assert row["logged_at_local"] == "2026-03-04T05:06:07.089"
    assert "rank" not in one(tmp_path, text.partition("\n")[2].partition("2026")[0])


def test_the_exception_of_a_loader_process_comes_before_the_one_that_passes_it_on(tmp_path: Path) -> None:
    text = (
        'Traceback (most recent call last):\n  File "/job/train.py", line 3, in main\n    next(batches)\n'
        "RuntimeError: Caught ValueError in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n"
        '  File "/job/data.py", line 9, in __getitem__\n    raise ValueError\nValueError: corrupt samples [17, 19] in step 41\n'
    )
    row = one(tmp_path, text)
    assert (row["exception"], row["frames"]) == ("ValueError", ["__getitem__ (/job/data.py:9)"])
    assert (row["sample_ids"], row["step"]) == (["17", "19"], 41)


def test_the_exception_of_a_started_process_comes_before_that_of_its_parent(tmp_path: Path) -> None:
    text = (
        'Traceback (most recent call last):\n  File "/lib/spawn.py", line 3, in join\n    wait()\nspawn.ProcessRaisedException: \n\n'
        '-- Process 2 terminated with the following error:\nTraceback (most recent call last):\n  File "/job/a.py", line 9, in f\n    1 / 0\n'
        "ZeroDivisionError: division by zero\n\nContainer job exited with code 137\n"
    )
    failure, end = events(tmp_path, text)
    assert (failure["exception"], failure["frames"]) == ("ZeroDivisionError", ["f (/job/a.py:9)"])
    assert (end["signature"], end["signal"], end["exit_code"]) == ("process_signal", "SIGKILL", 137)


def test_an_exception_that_the_interpreter_ignores_is_no_event(tmp_path: Path) -> None:
    text = 'Exception ignored in: <function f at 0x7f>\nTraceback (most recent call last):\n  File "/job/a.py", line 3, in f\nKeyError: 5\n'
    assert events(tmp_path, text) == []


def test_a_boxed_and_a_cut_traceback_are_read(tmp_path: Path) -> None:
    boxed = "╭── Traceback (most recent call last) ──╮\n│ /job/a.py:3 in f │\n│   3 │ x = 1 │\n╰──╯\nTypeError: no\n"
    assert one(tmp_path, boxed)["frames"] == ["f (/job/a.py:3)"]
    cut = one(tmp_path, 'Traceback (most recent call last):\n  File "/job/a.py", line 3, in f\n')
    assert cut["signature"] == "python_traceback"
    assert "exception" not in cut


@pytest.mark.parametrize(
    ("last", "signature"),
    [
        ("MemoryError", "host_out_of_memory"),
        ("OSError: [Errno 28] No space left on device: '/data/x'", "storage_timeout"),
        ("OSError: [Errno 116] Stale file handle", "storage_timeout"),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", "tcpstore_broken"),
        ("BrokenPipeError: [Errno 32] Broken pipe", "nccl_socket_closed"),
        ("AssertionError: Rank 4: found NaN in local grad norm", "loss_nan"),
        ("RuntimeError: the wait timed out", "nccl_watchdog_timeout"),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error", "unknown"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "cuda_ecc"),
        ("ValueError: the wait is over", "python_traceback"),
    ],
)
def test_an_exception_is_what_its_text_says_else_the_process_s_own(tmp_path: Path, last: str, signature: str) -> None:
    frame = '  File "/lib/torch/distributed/distributed_c10d.py", line 1, in wait\n'
    row = one(tmp_path, f"Traceback (most recent call last):\n{frame}{last}\n")
    assert row["signature"] == signature
    assert row["exception"] == last.partition(":")[0]


def test_an_uncaught_c_plus_plus_exception_is_named(tmp_path: Path) -> None:
    row = one(
        tmp_path,
        "terminate called after throwing an instance of 'x::Mismatch'\n  what():  Received data size doesn't match expected size\n",
    )
    assert (row["signature"], row["exception"], row["record"]) == ("nccl_desync_report", "x::Mismatch", "L2")


# Launchers


def test_a_launcher_s_block_tells_the_first_failure_from_the_stopped(tmp_path: Path) -> None:
    found = fixture(tmp_path, "log_launcher.log")
    rows = {(row["signature"], row.get("pid")): row for row in found["log_events"]}
    killed, root = rows["elastic_child_failed", 4102], rows["elastic_root_cause", 4102]
    victim, signal = rows["elastic_sigterm_victim", 4103], rows["process_signal", 4102]
    assert (killed["rank"], killed["exit_code"], killed["host"]) == (2, -9, "host-a")
    assert (root["rank"], root["logged_at_local"]) == (2, "2026-03-04T05:06:20")
    assert (victim["rank"], victim["exit_code"], victim["num_folded"]) == (3, -15, 2)
    assert (signal["signal"], signal["num_folded"]) == ("SIGKILL", 2)
    assert ("process_signal", 4103) not in rows
    assert {(row["rank"], row["pid"], row["host"]) for row in found["ranks"]} == {(2, 4102, "host-a"), (3, 4103, "host-a")}


def test_the_traceback_in_a_launcher_s_block_is_that_of_the_worker(tmp_path: Path) -> None:
    text = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-04_05:06:20\n  host      : host-a\n  rank      : 6 (local_rank: 0)\n"
        "  exitcode  : 1 (pid: 41)\n  error_file: /tmp/error.json\n  traceback : Traceback (most recent call last):\n"
        '    File "/job/a.py", line 3, in f\n      1 / 0\n  ZeroDivisionError: division by zero\n  \n==============\n'
    )
    root, why = events(tmp_path, text)
    assert (root["signature"], root["rank"], root["exit_code"]) == ("elastic_root_cause", 6, 1)
    assert (why["signature"], why["rank"], why["exception"], why["frames"]) == (
        "python_traceback",
        6,
        "ZeroDivisionError",
        ["f (/job/a.py:3)"],
    )


def test_a_worker_stopped_by_somebody_else_is_no_victim_of_its_launcher(tmp_path: Path) -> None:
    rows = events(tmp_path, "failed (exitcode: -15) local_rank: 0 global_rank: 4 host: host-a (pid: 5) of binary\n")
    assert [(row["signature"], row.get("signal")) for row in rows] == [("elastic_child_failed", None), ("process_signal", "SIGTERM")]


def test_the_end_of_all_workers_counts_only_where_none_failed(tmp_path: Path) -> None:
    well = "INFO worker global_rank: 1 (pid: 5) finished\nINFO all workers done\n"
    assert [row.get("rank") for row in events(tmp_path, well)] == [1, None]
    badly = "WARNING Received 15 death signal, shutting down workers\nINFO all workers done\n"
    assert [row["signature"] for row in events(tmp_path, badly)] == ["elastic_agent_signal"]


# Schedulers


def test_slurm_tells_why_a_job_ends(tmp_path: Path) -> None:
    found = fixture(tmp_path, "log_slurm.log")
    assert [row["rank"] for row in found["progress"]] == [0, 1]
    (event,) = found["scheduler_events"]
    assert (event["state"], event["is_planned"], event["changed_at_local"]) == ("time_limit", True, "2026-03-04T05:06:07")
    ends = [(row["host"], row["exit_code"]) for row in found["log_events"] if row["signature"] == "slurm_task_exit"]
    assert ends == [("host-b", 143), ("host-a", -15)]
    assert {row["signature"] for row in found["log_events"]} == {"train_progress", "slurm_time_limit", "slurm_task_exit"}


@pytest.mark.parametrize(
    ("text", "state", "is_planned", "by"),
    [
        ("operator: planned maintenance window M-1, draining job, requeue later", "draining", True, "operator"),
        ("stop requested by the owner of the job", "stopping", True, "user"),
        ("scaling down worker group from 8 to 4", "stopping", True, "autoscaler"),
        ("node host-7 drained: GPU unhealthy", "draining", False, None),
        ("maintenance window ended, job resumed", "resumed", True, "operator"),
        ("slurmctld: node host-7 drained by root: GPU fell off the bus", "draining", False, "scheduler"),
        ("drain requested for host-7 (firmware rollout), stopping workload", "draining", True, None),
        ("agent: evacuation of host-7 starts: ordered decommission", "draining", True, None),
        ("received stop request from user via web console", "stopping", True, "user"),
        ("host reserved by admin, stopping all jobs gracefully", "stopping", True, "operator"),
        ("TERM_OWNER: job killed by owner.", "cancelled", True, "user"),
        ("Exited by LSF: TERM_PREEMPT", "preempted", True, None),
    ],
)
def test_announcements_in_free_words(text: str, state: str, *, is_planned: bool, by: str | None) -> None:
    told = announcement(text, None)
    assert told is not None
    assert (told["state"], told["is_planned"], told["by"]) == (state, is_planned, by)


@pytest.mark.parametrize(
    "text",
    [
        "operator: maintenance window M-1 postponed",
        "operator: reminder, planned maintenance next week",
        "no maintenance scheduled",
        "draining the prefetch queue",
        "job may be preempted at any time",
        "received a request from user 1031 to stop profiling",
        "drain of the output buffer is complete, requested bytes: 7",
        "the driver was terminated by the user's editor",
        "learning rate scheduler: restart of the cycle",
        "Received 15 death signal, shutting down workers",
    ],
)
def test_what_announces_no_end(text: str) -> None:
    assert announcement(text, None) is None


# Steps


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (
            " [2026-03-04 05:06:07] iteration       71/     100 | consumed samples:         9088 | elapsed time per iteration (ms): 5361.6 | "
            "learning rate: 1.42E-05 | lm loss: 1.8188E+00 | loss scale: 1.0 | grad norm: 1.300 | number of skipped iterations:   1 | "
            "number of nan iterations:   0 |",
            {
                "step": 71,
                "loss": 1.8188,
                "grad_norm": 1.3,
                "learning_rate": 1.42e-05,
                "tokens_total": 9088,
                "logged_step_s": 5.3616,
                "is_skipped": True,
                "num_skipped": 1,
                "num_nan": 0,
            },
        ),
        (
            "step: 20  loss: 11.5  grad_norm:  9.5  tps: 4,376  mfu: 25.5%",
            {"step": 20, "loss": 11.5, "tokens_per_s_per_gpu": 4376.0, "mfu_ratio": 0.255},
        ),
        ("[Rank 0] step=3, skipped=0, lr=[0.1, 0.1]", {"step": 3, "learning_rate": 0.1, "rank": 0}),
        ("{'loss': 0.75, 'grad_norm': nan, 'epoch': 0.5}", {"loss": 0.75, "epoch": 0.5, "is_finite": False}),
        (
            "Epoch 0:   6%|#   | 320/5001 [6:28<94:39,  1.37it/s, loss=nan, reduced_train_loss=2.5, global_step=3.2e+2]",
            {"step": 320, "loss": 2.5, "epoch": 0.0, "is_finite": True},
        ),
        ("INFO - RANK 2 - EPOCH 1 BATCH 70/inf(0.00%): train_loss=0.5; lr=0.25", {"step": 70, "epoch": 1.0, "loss": 0.5, "rank": 2}),
        ("step 4 | loss 2.25 | grad norm 1.0 | 250 ms", {"step": 4, "loss": 2.25, "logged_step_s": 0.25}),
        (" 12%|#   | 12/100 [00:10<01:10,  1.20it/s]", {"step": 12}),
        ("Train Epoch: 1 [6400/60000 (11%)]\tLoss: 0.412", {"step": 6400, "epoch": 1.0, "loss": 0.412}),
        ("Epoch: [3][120/5005]\tTime 0.311 (0.320)\tLoss 4.1200e+00 (4.2)", {"step": 120, "epoch": 3.0, "loss": 4.12}),
        ("2026-03-04 05:06:07,123 - mmdet - INFO - Epoch [1][50/7330]\tlr: 1.000e-02, loss: 1.25", {"step": 50, "loss": 1.25}),
        ("2026-03-04 05:06:07 | INFO | train_inner | epoch 001:    100 / 4000 loss=12.5, ppl=5.0", {"step": 100, "loss": 12.5}),
        (" 40/500 [=>......] - ETA: 3:11 - loss: 1.25 - accuracy: 0.5", {"step": 40, "loss": 1.25}),
    ],
)
def test_steps_of_every_trainer_s_layout(tmp_path: Path, text: str, want: Row) -> None:
    (row,) = tables(tmp_path, text + "\n")["progress"]
    assert {name: row.get(name) for name in want} == want


@pytest.mark.parametrize(
    "text",
    [
        "val_loss: 3.0 at step 5 of nothing",
        "Loading shards:  12%|#   | 12/100 [00:10<01:10,  1.20it/s]",
        "loss scale: 5.0",
        "Epoch 3 done, validation [10/100] loss 0.5",
        "Test: [10/100]\tLoss 0.5",
    ],
)
def test_what_is_no_finished_step(tmp_path: Path, text: str) -> None:
    assert tables(tmp_path, text + "\n")["progress"] == []


def test_metrics_in_json_lines(tmp_path: Path) -> None:
    found = fixture(tmp_path, "log_metrics.jsonl")
    first, second = found["progress"]
    assert first["ended_at"] == datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    assert (first["tokens_total"], first["is_finite"]) == (4096, True)
    assert "loss" not in second
    assert second["is_finite"] is False
    assert [(row["signature"], row["step"]) for row in found["log_events"]] == [("train_progress", 1), ("loss_nan", 2)]


def test_messages_wrapped_in_json(tmp_path: Path) -> None:
    start, failure = fixture(tmp_path, "log_wrapped.jsonl")["log_events"]
    assert (start["signature"], start["rank"], start["pid"]) == ("worker_started", 6, 4106)
    assert (failure["exception"], failure["rank"], failure["sample_ids"]) == ("ValueError", 6, ["s-0042"])
    assert failure["logged_at"] == datetime(2026, 3, 4, 5, 6, 9, tzinfo=UTC)


def test_messages_of_clouds_journals_and_loggers_in_json(tmp_path: Path) -> None:
    ecc = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
    at = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    for entry, rank, host, is_stamped in (
        ({"severity": "ERROR", "timestamp": "2026-03-04T05:06:07Z", "textPayload": f"[rank3]: {ecc}"}, 3, None, True),
        ({"severity": "ERROR", "timestamp": "2026-03-04T05:06:07Z", "jsonPayload": {"message": ecc, "rank": 3}}, 3, None, True),
        ({"__REALTIME_TIMESTAMP": f"{at.timestamp():.0f}000000", "_HOSTNAME": "host-a", "MESSAGE": f"[rank3]: {ecc}"}, 3, "host-a", True),
        ({"event": ecc, "level": "error", "timestamp": "2026-03-04T05:06:07Z"}, None, None, True),
        (
            {"text": f"2026-03-04 05:06:07.000 | ERROR    | train:main:12 - {ecc}", "record": {"level": {"name": "ERROR"}}},
            None,
            None,
            False,
        ),
        ({"level": "ERROR", "message": ecc, "extra": {"rank": 3}}, 3, None, False),
    ):
        found = [row for row in tables(tmp_path, json.dumps(entry) + "\n")["log_events"] if row["signature"] == "cuda_ecc"]
        assert [(row.get("rank"), row.get("host"), row.get("logged_at")) for row in found] == [(rank, host, at if is_stamped else None)], (
            entry
        )
    for entry in ({"text": ecc, "label": 3}, {"event": ecc, "label": 3}, {"text": ecc, "record": 7}):
        assert tables(tmp_path, json.dumps(entry) + "\n")["log_events"] == [], entry


def test_events_of_torchelastic_tell_how_a_worker_ended(tmp_path: Path) -> None:
    error = {
        "message": {
            "message": "KeyError: 5",
            "extraInfo": {"py_callstack": 'Traceback (most recent call last):\n  File "a.py", line 3, in f\nKeyError: 5'},
        }
    }
    told = {"global_rank": 3, "worker_id": "41", "hostname": "Host-A.example", "raw_error": json.dumps(error)}
    text = "".join(
        f"INFO api: {json.dumps({'name': f'torchelastic.worker.status.{state}', 'metadata': told | {'state': state}})}\n"
        for state in ("FAILED", "SUCCEEDED")
    )
    failed, why, well = events(tmp_path, text)
    assert (failed["signature"], failed["rank"], failed["pid"], failed["host"]) == ("elastic_child_failed", 3, 41, "host-a")
    assert (why["exception"], why["rank"], why["frames"]) == ("KeyError", 3, ["f (a.py:3)"])
    assert (well["signature"], well["rank"]) == ("worker_finished", 3)


def test_lines_of_one_width_were_not_broken(tmp_path: Path) -> None:
    steps = "".join(
        f"[rank0]: [titan] 2026-01-03 15:4{n}:15,025 - root - INFO - step: 395{n}  loss:  2.6992  grad_norm:  0.58\n" for n in range(6)
    )
    (told,) = tables(tmp_path, steps + "scancel issued by uid=1031 at 2026-01-03 15:46:57\n")["scheduler_events"]
    assert told["state"] == "cancelled"


def test_lines_that_a_terminal_broke_are_put_together(tmp_path: Path) -> None:
    whole = [
        f"[rank{rank}]:[E304 05:06:07.123456789 ProcessGroup.cpp:1] [Rank {rank}] Watchdog caught collective operation" for rank in (4, 5)
    ]
    broken = "".join(f"{line[:75]}\n{line[75:]}\n" for line in whole)
    assert [(row["signature"], row["rank"], row["record"]) for row in events(tmp_path, broken)] == [
        ("nccl_watchdog_timeout", 4, "L1"),
        ("nccl_watchdog_timeout", 5, "L3"),
    ]


# Kinds of lines


def test_what_a_watchdog_wraps_counts_too(tmp_path: Path) -> None:
    rows = events(tmp_path, "[Rank 1] watchdog thread terminated with exception: CUDA error: unspecified launch failure\n")
    assert [(row["signature"], row["rank"]) for row in rows] == [("nccl_watchdog_terminated", 1), ("cuda_launch_failure", 1)]


def test_repeats_are_folded_and_a_flood_is_bounded(tmp_path: Path) -> None:
    assert one(tmp_path, "std::bad_alloc\n" * 5)["num_folded"] == 5
    rows = events(tmp_path, "".join(f"host-a:1:2 [0] Got completion from peer 192.0.2.1<{port}> with error 12\n" for port in range(1000)))
    assert len(rows) < 50
    assert sum(row["num_folded"] for row in rows) == 1000


def test_an_error_line_without_a_name_is_kept_as_unknown(tmp_path: Path) -> None:
    row = one(tmp_path, "2026-03-04 05:06:07 [host-a][rank5] ERROR cannot decode sample 7781\n")
    assert (row["signature"], row["level"], row["sample_ids"]) == ("unknown", "error", ["7781"])


def test_a_count_of_samples_names_none(tmp_path: Path) -> None:
    line = " iteration     1356/  500000 | consumed samples:    355467264 | elapsed time per iteration (ms): 335.0 | lm loss: nan |\n"
    rows = [row for row in events(tmp_path, f"[rank7]: {line}") if row["signature"] == "loss_nan"]
    assert [(row["rank"], row.get("sample_ids")) for row in rows] == [(7, None)]


def test_every_pattern_s_word_stands_in_what_it_fits_and_every_signature_is_described() -> None:
    with (ROOT / "rca" / "catalogue" / "signatures.csv").open(newline="", encoding="utf-8") as file:
        signatures = {row["signature"]: row for row in csv.DictReader(file)}
    assert {row["layer"] for row in signatures.values()} <= set(LAYERS) | {"unknown"}
    assert {row["role"] for row in signatures.values()} == {"symptom", "cause", "either", "info"}
    with (ROOT / "rca" / "catalogue" / "log_patterns.csv").open(newline="", encoding="utf-8") as file:
        patterns = list(csv.DictReader(file))
    assert {row["signature"] for row in patterns} <= {*signatures, ""}
    assert all(row["word"] == row["word"].lower() for row in patterns)
    assert set(_log_signatures.words()) == {row["word"] for row in patterns}


RAISED = """Mar  4 05:06:07 host-a step 3 | loss 2.0
[rank5]: Traceback (most recent call last):
[rank5]:   File "/opt/train.py", line 342, in <module>
[rank5]:     main()
[rank5]: AssertionError: rank 5: found NaN in local grad norm
"""


@pytest.mark.parametrize(
    ("kept", "exception", "text", "record"),
    [
        (RAISED, "AssertionError", "rank 5: found NaN in local grad norm", "L5"),  # where it says what, not where it begins to say it
        (RAISED[:-9], None, "", "L2"),
        (RAISED[: RAISED.index("[rank5]: Asser") + 12], None, "", "L2"),
        (RAISED[: RAISED.index("[rank5]: Asser")], None, "", "L2"),
    ],
)
def test_a_torn_log_says_where_and_a_line_cut_in_two_tells_no_exception(
    kept: str, exception: str | None, text: str, record: str, tmp_path: Path
) -> None:
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(kept.encode()) + packer.flush(zlib.Z_FULL_FLUSH)  # the end-of-stream marker never comes
    (tmp_path / "rank_5.log.gz").write_bytes(packed)
    source = trainer_log.Source("rank_5.log.gz", tmp_path / "rank_5.log.gz", len(packed), "gzip")
    found, skips = rows_of(trainer_log, source)
    raised = next(row for row in found["log_events"] if row["frames"])
    assert (raised["exception"], raised["message"], raised["rank"], raised["record"]) == (exception, text, 5, record)
    torn = found["log_events"][-1]
    assert (torn["signature"], torn["rank"], torn["record"]) == ("log_breaks_off", 5, f"L{len(kept.splitlines())}")
    assert len(skips) == 1


def test_a_log_that_is_whole_breaks_off_nowhere(tmp_path: Path) -> None:
    assert {row["signature"] for row in events(tmp_path, RAISED.rstrip())} == {"train_progress", "loss_nan"}


# Claims


@pytest.mark.parametrize(
    "text",
    [
        "[ 1843.308145] python3[5]: segfault at 0\n[ 1843.4] Out of memory: Killed process 5 (python3)\n",
        "Mar  4 05:06:07 host-a kernel: NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus. Connection reset by peer\n",
        '{"rank": 0, "step": 1, "t_start_ns": 5, "dur_ms": 7.0, "loss": 1.0}\n',
        '{"step": 1, "loss": 1.0, "param_crc": "00"}\n',
        '{\n  "why": "Connection reset by peer"\n}\n',
        "# Notes\n\nWhat a log says: Connection reset by peer\n\n# More\n\nCUDA out of memory\n",
        "The job was restarted at noon. Nobody knows why.\n",
    ],
)
def test_what_is_left_to_others(text: str) -> None:
    assert not trainer_log.claims("rank_0.log", text.encode())


@pytest.mark.parametrize(
    ("name", "before"), [("notes.txt", ""), ("a/README.md", ""), ("todo", ""), ("2026-03 NOTES.rst.gz", ""), ("mail", "> ")]
)
def test_what_people_quote_of_logs_is_none(name: str, before: str) -> None:
    says = "[rank4]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
    quoted = (
        f"anna: last month it was\n{before}{says}\n{before}host-a kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    )
    assert not trainer_log.claims(name, quoted.encode())
    assert before or not xid.claims(name, quoted.encode())
    for log in ("notes.log", "rank_4.txt", "footnotes"):  # the same from a program
        assert trainer_log.claims(log, says.encode()), log


@pytest.mark.parametrize("text", ["step 1 | loss 2.0\n", "[rank1] INFO loading data\n", "host-a:1:2 [0] NCCL INFO cudaDriverVersion 12\n"])
def test_a_log_in_which_nothing_happened_is_claimed(text: str) -> None:
    assert trainer_log.claims("x", text.encode())


# Size


def test_a_long_line_is_cut_and_the_lines_after_it_keep_their_numbers(tmp_path: Path) -> None:
    quiet = "".join(f"2026-03-04 05:06:{i % 60:02d},000 [host-a][rank{i % 8}] INFO prefetch depth {i}\n" for i in range(200_000))
    found = tables(tmp_path, quiet + "x" * 5_000_000 + "\nstd::bad_alloc\n")
    assert [row["record"] for row in found["log_events"]] == ["L200002"]


def test_hostile_lines_come_to_an_end_and_hide_nothing_after_them(tmp_path: Path) -> None:
    lines = (
        "loss nan " * 4000,
        "error: " + "a" * 16_000,
        "sample " + "1" * 16_000,
        "loss " + "a b " * 4000,
        "worker pid " * 2000,
        "[" * 16_000 + " error ",
    )
    found = tables(tmp_path, "\n".join(lines * 3) + "\nstd::bad_alloc\n")
    assert found["log_events"][-1]["signature"] == "host_out_of_memory"
    assert found["log_events"][-1]["record"] == "L19"


# Public cases, where they lie beside the repository


def test_public_logs_are_read_as_labelled() -> None:
    if not (SHARED / "score.py").is_file():
        pytest.skip("the public cases do not lie beside the repository")
    expected = [json.loads(line) for line in (SHARED / "log_expected.jsonl").read_text("utf-8").splitlines()]
    found = wanted = 0
    for case in expected:
        path = SHARED / case["file"]
        rows = [
            row for row in rows_of(trainer_log, trainer_log.Source(path.name, path, path.stat().st_size))[0]["log_events"] if case["score"]
        ]
        for entry in case["signatures"] if case["score"] else ():
            mine = [row for row in rows if row["signature"] == entry["signature"]]
            if not entry.get("optional"):
                wanted += 1
                found += sum(row["num_folded"] for row in mine) >= entry["min_count"] and set(entry.get("ranks", [])) <= {
                    r["rank"] for r in mine
                }
            named = {row["rank"] for row in mine} - {None}
            assert "ranks" not in entry or named <= {*entry["ranks"], *entry.get("ranks_alt", [])}, case["file"]
    assert found >= 0.95 * wanted > 0


# What is tried again


AGAIN = """2026-11-03 10:00:05,423 WARNING reader: read of shard-0017 failed (attempt 1/3), retrying in 2 s
Traceback (most recent call last):
  File "/opt/train/reader.py", line 88, in read
    return self.client.get(url)
OSError: short read
2026-11-03 10:00:08,001 INFO reader: opened shard-0017
"""


@pytest.mark.parametrize(
    ("text", "retried"),
    [
        (AGAIN, [True]),
        (AGAIN.replace("(attempt 1/3), retrying in 2 s", "(attempt 3/3)"), [None]),
        (AGAIN.replace(", retrying in 2 s", "").replace("opened shard-0017", "shard-0017 ok after 2 retries"), [True]),
        (AGAIN.replace("(attempt 1/3), retrying in 2 s", "").replace("opened", "loaded"), [None]),
        (AGAIN + AGAIN.replace("(attempt 1/3), retrying in 2 s", "for good, giving up after 3 retries"), [True, None]),
        ("2026-11-03 10:00:05 ERROR OSError: short read; trying again in 5 s\n", [True]),
        ("2026-11-03 10:00:05 ERROR no such policy: retry\n" + AGAIN[AGAIN.index("Trace") :].replace("OSError", "KeyError"), [None]),
        ("[rank3]: will retry\n" + "".join(f"[rank4]: {line}\n" for line in AGAIN.splitlines()[1:5]), [None]),
    ],
)
def test_an_exception_that_is_tried_again_says_so(tmp_path: Path, text: str, retried: list[bool | None]) -> None:
    found = [row for row in events(tmp_path, text) if row["signature"] != "unknown"]
    assert [row.get("is_retried") for row in found] == retried


@pytest.mark.parametrize("again", [False, True])
def test_a_logger_that_is_given_a_formatted_traceback_writes_its_prefix_once(tmp_path: Path, *, again: bool) -> None:
    prefix = "2026-03-04 05:06:07,089 ERROR "
    lines = [f"{prefix}Traceback (most recent call last):", '  File "/x/train.py", line 9, in <module>', "    main()", "KeyError: 'labels'"]
    row = one(tmp_path, "\n".join(line if n == 0 or not again else prefix + line for n, line in enumerate(lines)))
    assert (row["record"], row["exception"], row["frames"]) == ("L4", "KeyError", ["<module> (/x/train.py:9)"])
    assert row["logged_at_local"] == "2026-03-04T05:06:07.089"
