"""Events of trainers and their launchers: torchtitan, DLRover, the goodput library, NVRx, torchft and OneLogger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _sources import FIXTURES, rows_of, source_of

from collectors import (
    dlrover_events,
    goodput_entries,
    nvrx_events,
    nvrx_restart_agent,
    nvrx_scores,
    one_logger,
    torchft_events,
    torchtitan_events,
)
from rca.errors import EvidenceError

TEN = datetime(2026, 1, 5, 10, tzinfo=UTC)
ALL = (
    (torchtitan_events, "event_torchtitan.jsonl"),
    (dlrover_events, "event_dlrover.log"),
    (dlrover_events, "event_dlrover_agent.jsonl"),
    (goodput_entries, "event_goodput.json"),
    (nvrx_events, "event_nvrx.log"),
    (nvrx_scores, "event_scores.txt"),
    (nvrx_scores, "event_scores.log"),
    (nvrx_restart_agent, "event_restart.json"),
    (torchft_events, "event_torchft.log"),
    (one_logger, "event_onelogger.jsonl"),
)


def read(folder: Path, collector: ModuleType, data: str | bytes, name: str = "x") -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    raw = (FIXTURES / data).read_bytes() if isinstance(data, str) else data
    assert collector.claims(name, raw[:65536])
    tables, skips = rows_of(collector, source_of(folder, raw, name))
    return tables, [f"{skip.record}: {skip.why}" for skip in skips]


def picked(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


def test_each_file_is_claimed_by_its_reader_alone() -> None:
    readers = {collector for collector, _ in ALL}
    for own, name in ALL:
        head = (FIXTURES / name).read_bytes()
        assert {reader.__name__ for reader in readers if reader.claims("x", head)} == {own.__name__}, name


def test_a_reader_without_anything_of_its_kind_says_so(tmp_path: Path) -> None:
    for collector in {collector for collector, _ in ALL} - {nvrx_scores, nvrx_events}:
        with pytest.raises(EvidenceError):
            rows_of(collector, source_of(tmp_path, b'{"a": 1}\n'))
    quiet = b"2026-01-05 10:00:00,101 [INFO] [ft_launcher80@host-a] starting\n"  # events come when something fails
    assert nvrx_events.claims("x", quiet)
    assert rows_of(nvrx_events, source_of(tmp_path, quiet)) == ({"trainer_events": []}, [])
    assert rows_of(nvrx_scores, source_of(tmp_path, b"StragglerDetectionCallback: no report yet\n")) == (
        {"rank_stats": [], "trainer_events": []},
        [],
    )


def test_torchtitan_sums_micro_batches_and_keeps_processes_apart(tmp_path: Path) -> None:
    tables, skips = read(tmp_path, torchtitan_events, "event_torchtitan.jsonl")
    assert len(tables["trainer_events"]) == 11
    metric = tables["trainer_events"][8]
    assert (metric["event"], metric["value"], metric["message"]) == ("metric_value", 2.5, "train.loss")
    assert picked(tables["steps"], "rank", "host", "step", "step_s", "compute_s", "data_s", "started_at") == [
        (0, "host-a", 3, 0.2, 0.1, 0.025, TEN),
        (1, "host-a", 3, None, None, pytest.approx(0.03), None),  # no value: from its two stamps
        (0, "host-b", 3, None, 0.09, None, None),  # another process of the same rank: a restart
    ]
    assert [skip.split(":")[0] for skip in skips] == ["L12"]  # torn


def test_torchtitan_never_counts_a_step_twice(tmp_path: Path) -> None:
    lines = [("step_start", 0, None), ("train_step_start", 1, None), ("train_step_end", 90, 89.0), ("step_end", 100, 100.0)]
    data = "".join(
        f'{{"rank": 4, "pid": 1, "step": 9, "log_type": "event", "log_type_name": "{name}", "time_us": {1767607200000000 + ms * 1000}'
        + (f', "value": {value}' if value is not None else "")
        + "}\n"
        for name, ms, value in lines
    )
    tables, _ = read(tmp_path, torchtitan_events, data.encode())
    assert picked(tables["steps"], "step_s", "started_at") == [(0.1, TEN)]


def test_a_step_of_torchtitan_that_never_ended_has_begun(tmp_path: Path) -> None:
    lines = [("step_start", 0), ("fwd_bwd_start", 1), ("fwd_bwd_error", 8000)]
    data = "".join(
        f'{{"rank": 4, "pid": 1, "step": 9, "log_type": "event", "log_type_name": "{name}", "time_us": {1767607200000000 + ms * 1000}}}\n'
        for name, ms in lines
    )
    tables, _ = read(tmp_path, torchtitan_events, data.encode())
    assert picked(tables["steps"], "record", "rank", "step", "step_s", "compute_s", "started_at") == [("L1", 4, 9, None, None, TEN)]


def test_dlrover_pairs_by_id_and_leaves_open_what_never_ended(tmp_path: Path) -> None:
    tables, skips = read(tmp_path, dlrover_events, "event_dlrover.log", "events_3_55.log")
    assert picked(tables["steps"], "rank", "step", "step_s", "started_at") == [(3, 7, 1.25, None), (3, 8, None, None)]
    assert picked(tables["spans"], "span", "step", "span_s", "started_at_local") == [
        ("init", None, 2.5, "2026-01-05T10:00:00"),
        ("persist_ckpt", 8, None, "2026-01-05T10:00:04.400000"),
        ("evaluate", 8, 1.0, "2026-01-05T10:00:05.100000"),
    ]
    assert picked(tables["progress"], "step", "loss", "grad_norm", "is_finite", "logged_step_s", "is_skipped", "num_skipped") == [
        (8, 2.5, None, False, 1.25, True, 1)
    ]
    assert picked(tables["trainer_events"], "event", "message") == [("evaluate_failed", "no batch"), ("exception", "ValueError: bad shape")]
    assert [skip.split(":")[0] for skip in skips] == ["L11", "L12"]  # an end alone; torn


def test_dlrover_takes_the_rank_of_a_name_only_when_its_process_is_the_one(tmp_path: Path) -> None:
    for name, rank in (("events_3_55.log", 3), ("events_3_56.log", None), ("events_0.log", None)):
        tables, _ = read(tmp_path, dlrover_events, "event_dlrover.log", name)
        assert {row["rank"] for row in tables["steps"]} == {rank}, name
    tables, _ = read(tmp_path, dlrover_events, "event_dlrover_agent.jsonl", "events_1_9.jsonl")
    assert picked(tables["spans"], "span", "rank", "span_s") == [("rendezvous", None, 12.0)]  # an agent counts nodes
    assert picked(tables["trainer_events"], "event", "rank") == [("process_restart", None)]


def test_dlrover_gives_rows_out_while_it_reads_and_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["[2026-01-05T10:00:00] [1] [t0] [Trainer] [#train] [BEGIN] {}"]
    for step in range(40):
        lines.append(f'[2026-01-05T10:00:{step:02d}] [1] [s{step}] [Trainer] [#step] [BEGIN] {{"global_step": {step}}}')
        lines.append(f'[2026-01-05T10:00:{step + 1:02d}] [1] [s{step}] [Trainer] [#step] [END] {{"global_step": {step + 1}}}')
    monkeypatch.setattr(dlrover_events, "BATCH_ROWS", 10)  # the limit alone is lowered: a few rows are then several batches
    tables, _ = read(tmp_path, dlrover_events, "\n".join(lines).encode())
    assert picked(tables["steps"], "step", "step_s") == [(step, 1.0) for step in range(40)]
    assert picked(tables["spans"], "span", "span_s") == [("train", None)]


def test_goodput_is_read_in_the_order_of_time_and_not_across_launches(tmp_path: Path) -> None:
    tables, skips = read(tmp_path, goodput_entries, "event_goodput.json")
    assert picked(tables["steps"], "record", "rank", "step", "step_s") == [
        ("E0", None, 4, None),
        ("E4", None, 4, None),
        ("E5", None, 3, 10.0),
    ]
    assert picked(tables["spans"], "span", "span_s") == [("job", None), ("eval", 1.0), ("job", None)]
    assert len(tables["trainer_events"]) == 2
    assert skips == []


def test_goodput_steps_that_are_not_neighbours_have_no_time(tmp_path: Path) -> None:
    for steps, times in (((5, 6), (10.0, None)), ((5, 4), (None, None)), ((5, 8), (None, None)), ((5, 5), (None, None))):
        data = "".join(f'{{"job_name": "a", "step_count": {n}, "step_start_time": {1767607200.0 + 10 * i}}}\n' for i, n in enumerate(steps))
        tables, _ = read(tmp_path, goodput_entries, data.encode())
        assert tuple(row["step_s"] for row in tables["steps"]) == times, steps


def test_nvrx_events_behind_a_loggers_prefix(tmp_path: Path) -> None:
    tables, skips = read(tmp_path, nvrx_events, "event_nvrx.log")
    assert picked(tables["trainer_events"], "record", "event", "cycle", "host", "pid", "logged_at") == [
        ("L3", "failure_detected", 2, "host-a", 80, datetime(2026, 1, 5, 9, 58, 0, 250000, UTC)),
        ("L4", "worker_start_started", 2, "host-a", 80, datetime(2026, 1, 5, 9, 59, 10, 500000, UTC)),
    ]
    assert skips == []


def test_scores_in_dictionaries(tmp_path: Path) -> None:
    tables, _ = read(tmp_path, nvrx_scores, "event_scores.txt")
    assert picked(tables["rank_stats"], "name", "rank", "score_ratio") == [
        ("fwd_individual", 0, 0.99),
        ("fwd_individual", 1, None),
        ("data_individual", 0, 1.0),
        ("data_individual", 1, 0.5),
        ("gpu", 0, 0.91),
        ("gpu", 1, 0.62),
    ]


def test_scores_as_programs_print_a_report(tmp_path: Path) -> None:
    data = (
        b"=== GPUs perf scores. Report from rank 0 ===\nGPU relative perf scores: {0: 0.97, 1: nan}\nGPU individual perf scores: {1: 0.5}\n"
        b"=== Sections perf scores. Report from rank 0 ===\nSections relative perf scores: {'fwd': {0: 0.99, 3: 0.4}}\n"
        b"Sections individual perf scores: {'fwd': {0: 1.0}}\n"
    )
    tables, _ = read(tmp_path, nvrx_scores, data)
    assert picked(tables["rank_stats"], "record", "name", "rank", "score_ratio") == [
        ("L2", "gpu", 0, 0.97),
        ("L2", "gpu", 1, None),
        ("L3", "gpu_individual", 1, 0.5),
        ("L5", "fwd", 0, 0.99),
        ("L5", "fwd", 3, 0.4),
        ("L6", "fwd_individual", 0, 1.0),
    ]


def test_scores_of_the_callback_and_of_a_report(tmp_path: Path) -> None:
    tables, _ = read(tmp_path, nvrx_scores, "event_scores.log")
    assert picked(tables["rank_stats"], "report", "num_ranks") == [(2, 512), (2, 512), (9, None), (9, None)]
    assert picked(tables["rank_stats"], "record", "name", "rank", "host", "score_ratio") == [
        ("L4", "gpu", 76, "host-a", 0.54),
        ("L6", "gpu", 1, "host-c", 0.99),
        ("L9", "gpu", 0, None, 0.71),
        ("L9", "fwd", 0, None, 0.5),
    ]
    assert picked(tables["trainer_events"], "event", "rank", "host", "logged_at", "logged_at_local") == [
        ("straggler_gpus_relative", 76, "host-a", None, "2026-01-05T10:00:01")
    ]


def test_torchft_in_its_three_forms_has_ranks_of_replicas_only(tmp_path: Path) -> None:
    tables, _ = read(tmp_path, torchft_events, "event_torchft.log")
    rows = tables["trainer_events"]
    assert picked(rows, "record", "event", "step", "value", "rank") == [
        ("L2", "quorum", 4, None, None),
        ("L14", "commit", 4, 0.0, None),
        ("L15", "error", 4, None, None),
    ]
    assert [row["logged_at"] for row in rows] == [TEN + timedelta(seconds=s) for s in range(3)]
    assert rows[2]["message"] == "replica replica_1, quorum 5, rank 2 of the replica, timed out"


def test_a_restart_decision_is_kept_as_what_another_tool_said(tmp_path: Path) -> None:
    tables, _ = read(tmp_path, nvrx_restart_agent, "event_restart.json")
    assert picked(tables["trainer_events"], "event", "rank", "message") == [
        ("restart_decision", None, "STOP: concrete_confirmation_retry_exhausted; line 12 again")
    ]


def test_one_logger_has_the_jobs_mean_step_and_moments(tmp_path: Path) -> None:
    tables, _ = read(tmp_path, one_logger, "event_onelogger.jsonl")
    assert picked(tables["progress"], "step", "logged_step_s", "rank") == [(100, 0.5125, None), (200, 0.51, None)]
    assert picked(tables["trainer_events"], "event", "value", "logged_at") == [
        ("app_train_loop_start_time", None, TEN),
        ("train_iterations_time_msecs_avg", 512.5, TEN + timedelta(seconds=60)),
        ("save_checkpoint_sync_time_total", 12.0, TEN + timedelta(seconds=60)),
        ("train_iterations_time_msecs_avg", 510.0, TEN + timedelta(seconds=120)),
    ]
