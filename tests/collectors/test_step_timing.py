"""Step timings and local numbers, one JSON line per rank and step."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from _sources import FIXTURES, rows_of, source_of

from collectors import step_timing
from rca.errors import EvidenceError
from rca.types import Skip, Source

TIMED = {"rank": 3, "step": 7, "t_start_ns": 1_700_000_000_123_456_789, "dur_ms": 171.5, "detail": {"fwd_compute": 27, "bwd_compute": 45.5}}
LOCAL = {"rank": 3, "step": 7, "loss": 1.25, "grad_norm_local": 0.5, "param_crc": "0a1b2c3d", "samples": [8, 9]}


def read(folder: Path, *records: object, name: str = "x") -> tuple[dict[str, list[dict[str, Any]]], list[Skip]]:
    data = "\n".join(r if isinstance(r, str) else json.dumps(r) for r in records).encode()
    source = source_of(folder, data, name)
    assert step_timing.claims("x", source.head)
    return rows_of(step_timing, source)


def timed(folder: Path, record: object) -> dict[str, Any]:
    return read(folder, record)[0]["steps"][0]


def local(folder: Path, record: object) -> dict[str, Any]:
    return read(folder, record)[0]["rank_progress"][0]


def fixture(name: str) -> tuple[dict[str, list[dict[str, Any]]], list[Skip]]:
    file = FIXTURES / name
    source = Source(name, file, file.stat().st_size)
    assert step_timing.claims("x", source.head)
    return rows_of(step_timing, source)


def test_phases_of_several_ranks_in_one_file() -> None:
    tables, skips = fixture("timing_phases.jsonl")
    assert not skips
    assert not tables["rank_progress"]
    assert [(row["rank"], row["step"]) for row in tables["steps"]] == [(rank, step) for step in range(12) for rank in range(2)]
    first = tables["steps"][0]
    raw = json.loads((FIXTURES / "timing_phases.jsonl").read_text().splitlines()[0])
    assert first["record"] == "L1"
    assert first["started_at"] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert first["step_s"] == pytest.approx(raw["dur_ms"] / 1000)
    assert first["compute_s"] == pytest.approx((raw["detail"]["fwd_compute"] + raw["detail"]["bwd_compute"]) / 1000)
    assert first["comm_s"] == pytest.approx((raw["detail"]["tp_comm"] + raw["detail"]["dp_comm"]) / 1000)
    assert first["data_s"] == pytest.approx(raw["phases"]["data"] / 1000)
    assert (first["checkpoint_s"], first["host"], first["stage"]) == (None, None, None)


def test_local_numbers_with_nan_and_infinity() -> None:
    tables, skips = fixture("timing_local.jsonl")
    assert not skips
    assert not tables["steps"]
    rows = tables["rank_progress"]
    assert [row["is_finite"] for row in rows] == [True] * 8 + [False] * 2
    assert (rows[8]["loss"], rows[8]["grad_norm"] is None, rows[9]["grad_norm"]) == (None, False, None)
    assert rows[1]["sample_ids"] == ["80", "81", "82", "83"]
    assert {row["rank"] for row in rows} == {5}


def test_flat_records_with_other_names_and_units_fill_both_tables() -> None:
    tables, skips = fixture("timing_flat.jsonl")
    assert not skips
    step, progress = tables["steps"][3], tables["rank_progress"][3]
    raw = json.loads((FIXTURES / "timing_flat.jsonl").read_text().splitlines()[3])
    assert (step["rank"], step["step"], step["host"], step["stage"]) == (2, 103, "host-b", 1)
    assert step["started_at"] == datetime(2023, 11, 14, 22, 13, 23, 250000, tzinfo=UTC)
    assert (step["step_s"], step["compute_s"], step["comm_s"], step["data_s"], step["checkpoint_s"]) == (
        raw["step_time_s"], raw["compute_time_s"], raw["communication_time_s"], 0.05, pytest.approx(1.5),
    )  # fmt: skip
    assert (progress["param_checksum"], progress["data_shard"], progress["is_finite"]) == (raw["param_hash"], "part-0007", None)


def test_forward_and_backward_without_their_computation_are_no_compute_time(tmp_path: Path) -> None:
    """They include waiting for others."""
    row = timed(tmp_path, {"rank": 1, "step": 2, "dur_ms": 100, "phases": {"data": 5, "forward": 30, "backward": 60}})
    assert (row["step_s"], row["data_s"], row["compute_s"]) == (0.1, 0.005, None)


@pytest.mark.parametrize(
    ("changes", "step_s"),
    [
        ({"dur_us": 1500}, 0.0015),
        ({"dur_ns": 1500}, 1.5e-6),
        ({"step_time_ms": 12.5}, 0.0125),
        ({"duration": 2}, None),
        ({"step_s": 2.5}, 2.5),
        ({"elapsed_seconds": 3}, 3.0),
        ({"dur_ms": -4}, None),
        ({"dur_ms": float("nan")}, None),
        ({"dur_ms": True}, None),
    ],
)
def test_unit_is_in_the_name(tmp_path: Path, changes: dict[str, Any], step_s: float | None) -> None:
    row = timed(tmp_path, {"rank": 0, "step": 1, "detail_ms": {"fwd_compute": 4, "comm_us": 7}} | changes)
    assert row["step_s"] == (None if step_s is None else pytest.approx(step_s))
    assert (row["compute_s"], row["comm_s"]) == (pytest.approx(0.004), pytest.approx(7e-6))


def without_unit(num_steps: int = 12, *, per_second: int = 1000, start: bool = True) -> list[dict[str, Any]]:
    """Steps of 0.2 s, half of them computation, by a rank that names no unit anywhere."""
    record = {"rank": 3, "detail": {"fwd_compute": 0.04 * per_second, "bwd_compute": 0.06 * per_second, "dp_comm": 0.09 * per_second}}
    began = {"t_start_ns": 1_700_000_000_000_000_000} if start else {}
    return [record | {"step": step} | {key: at + step * 200_000_000 for key, at in began.items()} for step in range(num_steps)]


@pytest.mark.parametrize("per_second", [1, 10**3, 10**6, 10**9])
def test_unit_that_no_name_states_is_told_by_the_ranks_own_clock(tmp_path: Path, per_second: int) -> None:
    tables, skips = read(tmp_path, *without_unit(per_second=per_second))
    assert not skips
    assert [(row["compute_s"], row["comm_s"]) for row in tables["steps"]] == [(pytest.approx(0.1), pytest.approx(0.09))] * 12


def test_unit_that_nothing_tells_is_no_unit_whatever_other_ranks_write(tmp_path: Path) -> None:
    peers = [{**record, "rank": 4, "dur_ms": 200.0} for record in without_unit(start=False)]
    tables, skips = read(tmp_path, *peers, *without_unit(start=False))
    assert [(row["rank"], row["compute_s"]) for row in tables["steps"]] == [(4, pytest.approx(0.1))] * 12 + [(3, None)] * 12
    assert [skip.record for skip in skips] == [f"L{line}" for line in range(13, 25)]
    assert all("states no unit" in skip.why and "fwd_compute_ms" in skip.why for skip in skips)


def test_one_record_without_the_duration_has_the_unit_of_the_ranks_others(tmp_path: Path) -> None:
    whole = [record | {"dur_ms": 200.0} for record in without_unit(start=False)]
    torn = {key: value for key, value in whole[5].items() if key != "dur_ms"}
    tables, skips = read(tmp_path, *whole[:5], torn, *whole[6:])
    assert not skips
    assert [row["compute_s"] for row in tables["steps"]] == [pytest.approx(0.1)] * 12


@pytest.mark.parametrize("value", [-27, float("nan"), True, "soon", [1], 1e14])
def test_time_that_is_none_is_null_and_said(tmp_path: Path, value: object) -> None:
    tables, (skip,) = read(tmp_path, TIMED | {"detail": {"fwd_compute": value, "bwd_compute": 45.5}})
    assert (tables["steps"][0]["step_s"], tables["steps"][0]["compute_s"]) == (0.1715, None)
    assert (skip.record, "fwd_compute" in skip.why) == ("L1", True)


def test_total_beside_its_parts_counts_once(tmp_path: Path) -> None:
    assert timed(tmp_path, {"rank": 0, "step": 1, "compute_s": 3, "detail_s": {"fwd_compute": 1, "bwd_compute": 2}})["compute_s"] == 3.0


def test_sum_with_a_part_that_is_no_number_is_unknown(tmp_path: Path) -> None:
    assert timed(tmp_path, TIMED | {"detail": {"fwd_compute": 27, "bwd_compute": None}})["compute_s"] is None


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ({"t_start_ms": 1_700_000_000_500}, datetime(2023, 11, 14, 22, 13, 20, 500000, tzinfo=UTC)),
        ({"started_at": "2023-11-14T23:13:20.5+01:00"}, datetime(2023, 11, 14, 22, 13, 20, 500000, tzinfo=UTC)),
        ({"started_at": "2023-11-14T22:13:20"}, None),
        ({"t_start_ns": 123_456_789_000}, None),
        ({"t_start_s": 1e300}, None),
    ],
)
def test_start_only_where_the_clock_counts_from_1970_or_names_a_zone(
    tmp_path: Path, start: dict[str, Any], expected: datetime | None
) -> None:
    assert timed(tmp_path, {"rank": 0, "step": 1, "dur_ms": 1} | start)["started_at"] == expected


def test_torn_last_line_and_foreign_lines_are_skipped_and_the_rest_kept(tmp_path: Path) -> None:
    tables, skips = read(tmp_path, LOCAL, "restarted by hand", "", [1, 2], {"event": "checkpoint"}, LOCAL | {"step": 8}, '{"rank": 3, "st')
    assert [(row["step"], row["record"]) for row in tables["rank_progress"]] == [(7, "L1"), (8, "L6")]
    assert [skip.record for skip in skips] == ["L2", "L4", "L5", "L7"]


def test_rank_of_the_object_before_that_of_the_name(tmp_path: Path) -> None:
    without = {key: value for key, value in LOCAL.items() if key != "rank"}
    tables, _ = read(tmp_path, LOCAL, without, LOCAL | {"rank": -1}, name="rank_4.jsonl")
    assert [row["rank"] for row in tables["rank_progress"]] == [3, 4, 4]
    tables, _ = read(tmp_path, without, name="metrics-4.jsonl")
    assert [row["rank"] for row in tables["rank_progress"]] == [None], "a trailing number may be a process id"


@pytest.mark.parametrize(
    ("loss", "is_finite"), [("NaN", False), ("-inf", False), (1e999, False), ("1.5", True), (None, None), ("n/a", None), (True, None)]
)
def test_loss_that_is_not_finite_however_it_is_written(tmp_path: Path, loss: object, is_finite: object) -> None:
    row = local(tmp_path, {"rank": 0, "step": 1, "loss": loss, "samples": ["part-1:7", 8]})
    assert row["is_finite"] is is_finite
    assert row["loss"] == (1.5 if is_finite else None)
    assert row["sample_ids"] == ["part-1:7", "8"]


@pytest.mark.parametrize(
    "record",
    [
        {"step": 3, "t_ns": 1_700_000_000_000_000_000, "loss": 1.2, "grad_norm": 0.7, "lr": 0.1, "tokens": 512},
        {"step": 3, "loss": 1.2, "step_time_s": 0.4, "data_time_s": 0.1},
        {"rank": 0, "step": 3, "loss": 1.2, "step_time_s": 0.4},
        {"rank": 0, "step": 5, "time_us": 1_700_000_000_000_000, "log_type_name": "fwd_bwd_end", "value": 12.5, "delta_ms": 12.6},
        {"header": {"rank": 2, "n_ranks": 8}, "coll_perf": {"coll": "AllReduce", "coll_sn": 14, "coll_exec_time_us": 61974}},
        {"job_name": "run-1", "step_count": 0, "step_start_time": 1757800092.0},
        {"MESSAGE": "NVRM: Xid (PCI:0000:18:00): 79", "PRIORITY": "3", "_HOSTNAME": "host-a", "__REALTIME_TIMESTAMP": "1700000000000000"},
        {"rank": 0, "host": "host-a", "gpu": 0, "local_rank": 0},
        {"round": 0, "rank": 1, "pid": 41, "rc": 0, "t_ns": 1_700_000_000_123_456_789},
    ],
)
def test_global_metrics_events_and_other_records_are_not_claimed(record: dict[str, Any]) -> None:
    assert not step_timing.claims("rank_0.jsonl", (json.dumps(record) + "\n").encode() * 3)


def test_file_without_a_step_is_an_error(tmp_path: Path) -> None:
    source = source_of(tmp_path, b'{"rank": 1}\n' * 20, "x")
    with pytest.raises(EvidenceError, match="no step of a rank"):
        rows_of(step_timing, source)


def test_long_file_comes_in_batches_in_its_order(tmp_path: Path) -> None:
    num = step_timing.BATCH_ROWS + 10
    tables, _ = read(tmp_path, *({"rank": 0, "step": step, "dur_ms": 5} for step in range(num)))
    assert [row["step"] for row in tables["steps"]] == list(range(num))


def test_line_without_end_is_skipped_not_parsed(tmp_path: Path) -> None:
    tables, skips = read(tmp_path, LOCAL, json.dumps(LOCAL | {"samples": ["x" * step_timing.MAX_LINE_BYTES]}), LOCAL)
    assert len(tables["rank_progress"]) == 2
    assert [skip.record for skip in skips] == ["L2"]
