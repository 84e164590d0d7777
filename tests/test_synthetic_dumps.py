"""The simulated dumps are what a recorder would have left: causal, in the right format, and cheap to write."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from rca.drills._synthetic import Fault, Job, Recorder, write
from rca.drills._synthetic_pickle import Pickler

JOBS = {
    "tp_dp": Job(tp=4, dp=2),
    "pp2": Job(tp=2, pp=2, dp=2),
    "pp4_coalesced": Job(tp=2, pp=4, dp=2, p2p="coalesced", embedding=True),
    "pp4_other_order": Job(tp=2, pp=4, dp=2, order="tp-pp-dp", extra=2, microbatches=5),
    "gloo": Job(tp=2, pp=2, dp=2, backend="gloo"),
}


def _load(folder: Path, rank: int) -> dict[str, Any]:
    return dict(pickle.loads((folder / f"nccl_trace_rank_{rank}").read_bytes()))  # noqa: S301 - written here


@pytest.mark.parametrize("name", sorted(JOBS))
def test_job_without_fault_finishes(name: str, tmp_path: Path) -> None:
    assert write(JOBS[name], None, tmp_path).waiting == ()


@pytest.mark.parametrize("kind", ["stop", "skip", "extra", "size", "dtype", "op", "stuck", "no_dump"])
@pytest.mark.parametrize("name", sorted(JOBS))
def test_every_fault_halts_the_job(name: str, kind: Any, tmp_path: Path) -> None:
    truth = write(JOBS[name], Fault(kind, (1,)), tmp_path)
    assert set(truth.waiting) | {1} == set(range(JOBS[name].world_size))
    assert 1 in truth.members
    assert (tmp_path / "nccl_trace_rank_1").exists() == (kind != "no_dump")


def test_members_wait_where_the_truth_says(tmp_path: Path) -> None:
    truth = write(JOBS["tp_dp"], Fault("stop", (5,)), tmp_path)
    for rank in truth.members:
        calls = [e for e in _load(tmp_path, rank)["entries"] if e["process_group"][0] == truth.group_name]
        last = [e for e in calls if e["state"] != "completed"]
        assert (not last) if rank == 5 else (last[0]["collective_seq_id"], last[0]["state"]) == (truth.seq, "started")


def test_calls_end_in_causal_order(tmp_path: Path) -> None:
    write(JOBS["pp4_coalesced"], None, tmp_path)
    for rank in range(JOBS["pp4_coalesced"].world_size):
        entries = _load(tmp_path, rank)["entries"]
        ends = [e["time_discovered_completed_ns"] for e in entries if e["state"] == "completed"]
        assert ends == sorted(ends)
        assert all(e["time_created_ns"] < (e["time_discovered_completed_ns"] or 1 << 62) for e in entries)


def test_stop_that_the_rank_cannot_reach_is_refused(tmp_path: Path) -> None:
    faults = [Fault("stop", (5,), "tp", 2), Fault("stop", (4,), "tp", -1)]
    with pytest.raises(ValueError, match="already waits"):
        write(JOBS["tp_dp"], faults, tmp_path)


def test_ring_keeps_the_newest_records(tmp_path: Path) -> None:
    write(JOBS["pp4_coalesced"], None, tmp_path, recorder=Recorder(buffer=25))
    for rank in range(16):
        ids = [entry["record_id"] for entry in _load(tmp_path, rank)["entries"]]
        assert ids == list(range(ids[0], ids[0] + 25))
        assert ids[0] > 0


def test_transfers_inside_a_batch_never_complete(tmp_path: Path) -> None:
    write(JOBS["pp4_coalesced"], None, tmp_path)
    entries = [e for e in _load(tmp_path, 5)["entries"] if e["is_p2p"]]
    assert {e["state"] for e in entries if e["profiling_name"] != "nccl:coalesced"} == {"scheduled"}
    assert {e["state"] for e in entries if e["profiling_name"] == "nccl:coalesced"} == {"completed"}


def test_status_of_a_group_with_transfers_counts_transfers(tmp_path: Path) -> None:
    write(JOBS["pp2"], None, tmp_path, recorder=Recorder(timing=False))
    dump = _load(tmp_path, 1)
    last = [e for e in dump["entries"] if e["is_p2p"]][-1]
    status = dump["pg_status"][str(last["pg_id"])]
    assert status == {
        "last_enqueued_collective": last["p2p_seq_id"],
        "last_started_collective": -1,
        "last_completed_collective": last["p2p_seq_id"],
    }


def test_gloo_leaves_no_transfers_and_no_members(tmp_path: Path) -> None:
    write(JOBS["gloo"], None, tmp_path)
    dump = _load(tmp_path, 0)
    assert dump["pg_config"] == {"": {"name": "", "desc": "", "ranks": "[]"}}
    assert not any(entry["is_p2p"] for entry in dump["entries"])
    assert {(entry["state"], entry["retired"]) for entry in dump["entries"]} == {("scheduled", True)}


def test_json_form_follows_the_recorder(tmp_path: Path) -> None:
    write(JOBS["pp2"], Fault("stop", (1,)), tmp_path, recorder=Recorder(format="json"))
    dump = json.loads((tmp_path / "nccl_trace_rank_0").read_text())
    assert all("frames" not in entry for entry in dump["entries"])
    assert dump["entries"][-1]["time_discovered_completed_ns"] == 0
    assert all(isinstance(number, str) for status in dump["pg_status"].values() for number in status.values())


def test_pickler_writes_what_pickle_reads() -> None:
    frame = {"name": "f", "filename": "a.py", "line": 70_000}
    value = {"a": [1, -1, 255, 256, 65_536, 1 << 62, None, True, False, 0.5], "b": ("x", "y"), "frames": [frame, frame]}
    raw = Pickler().dump(value)
    assert pickle.loads(raw) == value  # noqa: S301 - written here
    assert raw.count(b"a.py") == 1


def test_writing_needs_the_memory_of_one_dump(tmp_path: Path) -> None:
    tracemalloc.start()
    write(Job(tp=2, dp=16, steps=40), Fault("stop", (3,)), tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8e6
