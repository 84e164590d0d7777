"""RAS reports, the Inspector's calls and Prometheus metrics, as rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from _sources import FIXTURES, rows_of, source_of

from collectors import nccl_inspector, nccl_ras, prometheus_json, prometheus_text
from rca.errors import EvidenceError


def read(collector: Any, folder: Path, data: bytes | str) -> tuple[dict[str, list[dict[str, Any]]], list[Any]]:
    if isinstance(data, str):
        data = (FIXTURES / data).read_bytes()
    assert collector.claims("x", data[:65536])
    return rows_of(collector, source_of(folder, data))


def told(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


def test_reports_one_behind_the_other_are_snapshots_with_the_time_that_stands_before_them(tmp_path: Path) -> None:
    tables, skips = read(nccl_ras, tmp_path, "ras_mismatch_twice.txt")
    assert not skips
    assert told(tables["nccl_ras"], "snapshot", "group", "comm", "num_comms", "num_ranks", "ranks_per_comm", "errors", "record") == [
        (1, 0, "00a1b2c3d4e5f607", 1, 8, 8, "MISMATCH", "L17"),
        (1, 1, None, 4, 8, 2, "OK", "L18"),
        (2, 0, "00a1b2c3d4e5f607", 1, 8, 8, "MISMATCH", "L59"),
    ]
    assert [row["taken_at"].isoformat() for row in tables["nccl_ras"]][1:] == ["2026-03-02T10:15:00+00:00", "2026-03-02T10:15:30+00:00"]


def test_who_is_behind_follows_from_the_counts_and_not_from_the_list(tmp_path: Path) -> None:
    tables, _ = read(nccl_ras, tmp_path, "ras_mismatch_twice.txt")
    columns = ("op", "group_rank", "num_calls", "num_behind", "count_behind", "num_ahead", "count_ahead")
    assert told(tables["nccl_ras_ops"], *columns) == [
        ("AllGather", None, 640, 7, 640, 1, 641),
        ("AllGather", 2, 641, None, None, None, None),
        ("AllReduce", None, 12, 1, 0, 7, 12),
        ("AllReduce", 5, 0, None, None, None, None),
        ("AllGather", None, 640, 6, 640, 2, 641),
        ("AllGather", 2, 641, None, None, None, None),
        ("AllGather", 4, 641, None, None, None, None),
    ]
    assert told(tables["nccl_ras_ranks"], "group_rank", "pid", "local_gpu")[1:] == [(5, 5005, 5), (2, 5002, 2), (4, None, None)]


def test_the_sections_of_errors_say_what_each_process_and_rank_is(tmp_path: Path) -> None:
    tables, _ = read(nccl_ras, tmp_path, "ras_errors.txt")
    columns = ("comm", "group_rank", "pid", "local_gpu", "status", "is_missing", "is_dead", "has_async_error")
    comm = "0123456789abcdef"
    assert told(tables["nccl_ras_ranks"], *columns) == [
        (None, None, 701, 0, None, True, False, None),
        (None, None, 702, None, None, True, False, None),  # of several GPUs none is the one
        (None, None, 703, 3, None, True, True, None),
        (comm, 1, 701, 1, None, True, None, None),
        (comm, 3, None, None, None, True, None, None),
        (comm, 6, 806, 2, "Initialization error: System error", False, None, None),
        (comm, 4, 804, 0, "Asynchronous error: Remote process error", False, None, True),
        (comm, 5, 805, 1, "Asynchronous error: Remote process error", False, None, True),
        (comm, 7, 807, 3, "NOCOMM", True, None, None),
        (comm, 0, 800, 0, "ABORT", False, None, None),
    ]
    assert told(tables["nccl_ras"], "status", "num_missing", "num_timeouts") == [("ABORT", 2, 1), ("INIT", None, 1)]
    assert tables["nccl_ras_ranks"][0]["host"] == "fd00::1"


def test_of_unknown_nothing_follows_and_calls_of_all_kinds_may_be_counted_as_one(tmp_path: Path) -> None:
    data = b"""Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2       1-2         3         3  FINALIZE  INCOMPLETE,MISMATCH

#0-0 (9e17999afaa87dbb) INCOMPLETE
  Missing communicator data from 2 ranks
  The missing ranks: 1,2

#0-0 (9e17999afaa87dbb) MISMATCH
  Communicator ranks have different status
  Rank 1 has status UNKNOWN -- GPU 0 managed by process 11 on node 10.0.0.1
  Communicator ranks have different collective operation counts
  Rank 0 has launched up to operation 9 -- GPU 0 managed by process 10 on node 10.0.0.1
  Rank 1 has launched up to operation 8 -- GPU 0 managed by process 11 on node 10.0.0.1
"""
    tables, _ = read(nccl_ras, tmp_path, data)
    rows = told(tables["nccl_ras_ranks"], "group_rank", "status", "is_missing")
    assert rows == [(1, None, True), (2, None, True), (1, "UNKNOWN", None), (0, None, False), (1, None, False)]
    summary = tables["nccl_ras_ops"][0]
    assert (summary["op"], summary["num_calls"], summary["count_behind"], summary["count_ahead"]) == ("collective", None, 8, 9)


def test_json_reports_are_raw_and_get_the_words_of_the_text(tmp_path: Path) -> None:
    tables, _ = read(nccl_ras, tmp_path, "ras_two.json")
    assert told(tables["nccl_ras"], "comm", "num_ranks", "status", "errors", "num_missing") == [
        ("0xa1b2c3d4e5f607", 3, "ABORT", "INCOMPLETE,ERROR,MISMATCH", 1)
    ]
    assert told(tables["nccl_ras_ranks"], "group_rank", "host", "pid", "is_dead", "has_async_error", "status") == [
        (0, "10.0.0.1", 5000, False, True, "RUNNING"),
        (1, "10.0.0.1", 5001, False, False, "ABORT"),
        (2, None, None, True, None, None),
    ]
    assert told(tables["nccl_ras_ops"], "group_rank", "op", "num_calls")[2] == (1, "AllReduce", 8)


def test_a_report_of_nccl_2_28_lacks_a_comma_in_each_missing_rank(tmp_path: Path) -> None:
    rank = '{"rank": %d, "host": "10.0.0.4", "pid": %d, "cuda_dev": 1, "nvml_dev": 1\n   "status": {"unresponsive": true, "considered_dead": %s}}'
    missing = ",\n  ".join(rank % said for said in ((1, 17, "true"), (2, 18, "false")))
    report = f'{{\n "nccl_version": "2.28.9",\n "communicators": [{{"hash": "0xa1", "size": 3, "ranks": [],\n  "missing_ranks": [{missing}]}}]\n}}\n'
    tables, skips = read(nccl_ras, tmp_path, (report * 2).encode())
    assert not skips
    assert told(tables["nccl_ras"], "snapshot", "comm", "num_ranks") == [(1, "0xa1", 3), (2, "0xa1", 3)]
    assert told(tables["nccl_ras_ranks"], "group_rank", "pid", "is_dead")[:2] == [(1, 17, True), (2, 18, False)]
    broken = report.replace('"size": 3', '"size" 3')  # not what the comma is for
    assert [skip.why[:8] for skip in read(nccl_ras, tmp_path, (broken + report).encode())[1]] == ["not JSON"]


def test_a_report_without_communicators_still_tells_of_processes(tmp_path: Path) -> None:
    nothing = "Communicators... (0.00s)\n=============\n\nNo communicator data collected!\n\nErrors\n======\n\n"
    dead = "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n  Process 77 on node host-a managing GPU 3\n"
    tables, skips = read(nccl_ras, tmp_path, (nothing + dead).encode())
    assert not tables["nccl_ras"]
    assert told(tables["nccl_ras_ranks"], "pid", "host", "local_gpu", "is_dead", "record") == [(77, "host-a", 3, True, "L11")]
    assert [skip.record for skip in skips] == ["L4"]
    for empty in (nothing.encode(), b'{"nccl_version": "2.29.1", "communicators_count": 0, "communicators": []}'):
        tables, skips = read(nccl_ras, tmp_path, empty)
        assert not any(tables.values())
        assert [skip.why.split(":")[0] for skip in skips] == ["a report without communicators"]


@pytest.mark.parametrize("name", ["ras_monitor.txt", "ras_monitor.json"])
def test_events_of_the_monitor(tmp_path: Path, name: str) -> None:
    tables, skips = read(nccl_ras, tmp_path, name)
    assert not skips
    first, second = tables["trainer_events"]
    assert (first["event"], first["source"], first["host"], first["pid"], first["local_gpu"]) == (
        "PEER_DEAD",
        "nccl_ras",
        "10.0.0.1",
        5005,
        5,
    )
    assert (first["logged_at"], first["logged_at_local"]) == (None, "2026-03-02T10:20:07")
    assert second["local_gpu"] is None
    assert "gone" in second["message"]


def test_finished_calls_of_both_kinds_and_what_was_dropped(tmp_path: Path) -> None:
    tables, skips = read(nccl_inspector, tmp_path, "inspector_v5.jsonl")
    assert told(tables["nccl_calls"], "op", "is_p2p", "peer", "collective_seq_id", "exec_s", "comm_name", "host", "record") == [
        ("AllGather", False, None, 7, 0.00012, "TP 0", "host-a", "L2"),
        ("Send", True, 2, 3, 0.00008, None, "host-a", "L3"),
    ]
    assert [(skip.record, skip.why.split()[0]) for skip in skips] == [("L1", "3")]
    tables, skips = read(nccl_inspector, tmp_path, "inspector_pretty.json")
    assert told(tables["nccl_calls"], "op", "record") == [("Broadcast", "L1"), ("AllReduce", "L11")]
    assert len(skips) == 1, "the torn last object"


def test_since_v4_3_a_batch_has_one_header(tmp_path: Path) -> None:
    def batch(rank: int, num_calls: int, num_traces: int) -> str:
        return (
            f'{{"header":{{"id":"0xa{rank}","rank":{rank},"n_ranks":4}},"metadata":{{"inspector_output_format_version":"v4.3",'
            f'"dump_timestamp_us":1772446500000000,"hostname":"host-a","pid":5001}},'
            f'"dump_stats":{{"coll_records":{num_calls},"p2p_records":1,"proxy_records":{num_traces}}}}}\n'
        )

    call = '{"coll_perf":{"coll":"AllGather","coll_sn":%d,"coll_msg_size_bytes":8192,"coll_exec_time_us":120}}\n'
    sent = '{"p2p_perf":{"p2p":"Send","p2p_sn":3,"p2p_peer":2,"p2p_msg_size_bytes":16384,"p2p_exec_time_us":80}}\n'
    lines = batch(1, 2, 1) + call % 7 + call % 8 + sent + '{"proxy_trace":{"chan":0}}\n' + batch(3, 1, 0) + call % 9 + sent + call % 10
    tables, skips = read(nccl_inspector, tmp_path, lines.encode())
    assert not skips
    assert told(tables["nccl_calls"], "comm", "group_rank", "op", "collective_seq_id", "host", "record") == [
        ("0xa1", 1, "AllGather", 7, "host-a", "L2"),
        ("0xa1", 1, "AllGather", 8, "host-a", "L3"),
        ("0xa1", 1, "Send", 3, "host-a", "L4"),
        ("0xa3", 3, "AllGather", 9, "host-a", "L7"),
        ("0xa3", 3, "Send", 3, "host-a", "L8"),
        (None, None, "AllGather", 10, None, "L9"),  # more than the batch counts: nobody says whose
    ]
    assert tables["nccl_calls"][0]["logged_at"] is not None


def test_scrapes_one_behind_the_other(tmp_path: Path) -> None:
    tables, skips = read(prometheus_text, tmp_path, "prom_scrapes.prom")
    rows = tables["gpu_samples"]
    assert told(rows, "gpu", "scrape", "value", "code")[:2] == [("0000:18:00", 1, 0.0, None), ("0000:2a:00", 1, 0.0, None)]
    assert rows[2]["value"] is None, "NaN"
    assert (rows[4]["scrape"], rows[4]["code"], rows[4]["sampled_at"].isoformat()) == (2, 79, "2026-03-02T10:15:15+00:00")
    assert rows[3]["link"] == 3
    assert '"No \\"real\\" error, {none}\\\\"' in rows[1]["labels"]
    assert [skip.why.split(":")[0] for skip in skips] == ["2 samples of other metrics (go_*, node_*)"]


def test_the_inspectors_older_metrics(tmp_path: Path) -> None:
    line = 'nccl_algorithm_bandwidth_gbs{comm_id="0xa1",hostname="host-a",rank="1",collective="AllGather"} 12.5\n'
    tables, _ = read(prometheus_text, tmp_path, line.encode())
    assert told(tables["gpu_samples"], "value", "comm", "host", "op", "rank") == [(12.5, "0xa1", "host-a", "AllGather", None)]


def test_open_metrics_and_xpu_timer(tmp_path: Path) -> None:
    tables, skips = read(prometheus_text, tmp_path, "prom_open.prom")
    assert told(tables["gpu_samples"], "rank", "op", "exec_s", "value") == [
        (1, "AllReduce", 0.00037, 370.0),
        (None, "Send", 0.0000125, 12.5),
        (None, None, None, None),
    ]
    assert told(tables["rank_states"], "rank", "is_hang") == [(1, False), (2, True)]
    assert {row["logged_at"].isoformat() for row in tables["rank_states"]} == {"2026-03-02T10:15:00.250000+00:00"}, (
        "seconds and milliseconds"
    )
    assert [skip.record for skip in skips] == ["L5", "L8"], "a gauge without a rank, and a line that is cut"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("prom_range.json", [(1, 0.0), (2, 0.0), (3, 79.0), (4, None)]),
        ("prom_instant.json", [(1, 41.0)]),
        ("prom_export.jsonl", [(1, 1980.0), (2, None), (3, 1410.0), (1, 1980.0)]),
        ("prom_grafana.json", [(1, 40.0), (2, 42.0)]),
    ],
)
def test_answers_of_queries(tmp_path: Path, name: str, values: list[tuple[int, float | None]]) -> None:
    tables, _ = read(prometheus_json, tmp_path, name)
    assert told(tables["gpu_samples"], "scrape", "value") == values
    assert tables["gpu_samples"][0]["sampled_at"].isoformat().startswith("2026-03-02T10:15:00")


def test_metrics_of_hosts_alone_and_other_text_are_not_claimed(tmp_path: Path) -> None:
    for data in (
        b"node_load1 0.5\ngo_goroutines 12\n",
        b"DCGM_FI_DEV_GPU_TEMP is high\n",
        b'{"metric": {"__name__": "node_load1"}, "value": [1, "2"]}',
    ):
        assert not prometheus_text.claims("x", data)
        assert not prometheus_json.claims("x", data)
    for collector in (nccl_ras, nccl_inspector, prometheus_text, prometheus_json):
        with pytest.raises(EvidenceError):
            rows_of(collector, source_of(tmp_path, b"nothing of the kind\n"))


def test_a_key_that_no_text_can_hold_harms_nothing(tmp_path: Path) -> None:
    data = (FIXTURES / "prom_grafana.json").read_bytes().replace(b'"A": {', b'"\\ud800": {').replace(b'"gpu":', b'"\\ud800": "x", "gpu":')
    tables, _ = read(prometheus_json, tmp_path, data)
    assert len(tables["gpu_samples"]) == 2
