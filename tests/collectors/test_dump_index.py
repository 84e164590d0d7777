"""The index of a capture."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from _sources import rows_of, source_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors import dump_index, py_spy
from rca.errors import EvidenceError

CASES = Path(__file__).parents[3] / "shared" / "cases"
T_NS = 1_700_000_000_123_456_789


def entry(**changes: object) -> dict[str, object]:
    return {
        "round": 0, "rank": 1, "host": "Host-A.example", "role": "main", "pid": 41, "t_ns": T_NS, "format": "json", "rc": 0, "err": "",
    } | changes  # fmt: skip


def read(folder: Path, entries: object):
    source = source_of(folder, json.dumps(entries, indent=1).encode(), "index.json")
    assert dump_index.claims("index.json", source.head)
    assert not py_spy.claims("index.json", source.head)
    return rows_of(dump_index, source)


def test_rows_and_processes(tmp_path: Path) -> None:
    tables, skips = read(tmp_path, [entry(), entry(format="txt"), entry(role="worker0", pid=42), entry(round=1)])
    assert not skips
    first = tables["dump_index"][0]
    assert first["record"] == "E0"
    assert first["host"] == "host-a"
    assert first["sampled_at"] == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    assert [row["sample"] for row in tables["dump_index"]] == [0, 0, 0, 1]
    assert [(row["rank"], row["host"], row["pid"], row["role"], row["record"]) for row in tables["ranks"]] == [
        (1, "host-a", 41, "trainer", "E0"),
        (1, "host-a", 42, "dataloader_worker", "E2"),
    ]


@pytest.mark.parametrize(
    ("rc", "err", "status"),
    [
        (0, "", "ok"),
        (1, "Error: Failed to get process executable name. Check that the process is running.", "process_gone"),
        (1, "   2: py_spy::python_spy::PythonSpy::new\n", "unknown"),
        (1, "Failed to suspend process / EPERM", "suspend_failed"),
        (124, "", "unknown"),
    ],
)
def test_status_of_a_failed_dump(tmp_path: Path, rc: int, err: str, status: str) -> None:
    tables, _ = read(tmp_path, [entry(rc=rc, err=err)])
    assert [row["dump_status"] for row in tables["dump_index"]] == [status]


def test_synonyms_and_units_of_time(tmp_path: Path) -> None:
    other = {
        "sample": 2,
        "global_rank": 7,
        "hostname": "n1",
        "kind": "agent",
        "process_id": 9,
        "timestamp": 1_700_000_000.5,
        "returncode": 0,
    }
    tables, _ = read(tmp_path, [other])
    row = tables["dump_index"][0]
    assert (row["sample"], row["rank"], row["host"], row["pid"], row["dump_status"]) == (2, 7, "n1", 9, "ok")
    assert row["sampled_at"] == datetime(2023, 11, 14, 22, 13, 20, 500000, tzinfo=UTC)
    assert tables["ranks"][0]["role"] == "agent"


def test_odd_entries_are_skipped_not_fatal(tmp_path: Path) -> None:
    tables, skips = read(tmp_path, [entry(), 3, {"x": 1}, entry(pid=2**80, t_ns="yesterday", host="\ud800")])
    assert [skip.record for skip in skips] == ["E1", "E2"]
    assert (tables["dump_index"][1]["pid"], tables["dump_index"][1]["sampled_at"]) == (None, None)


@pytest.mark.parametrize(
    ("noted", "read_as"),
    [
        ({"voluntary_switches": 12, "involuntary_switches": 900, "cpu_s": 1.25}, (12, 1.25)),
        ({"voluntary_switches": 0, "cpu_s": 0}, (0, 0.0)),
        ({}, (None, None)),
        ({"voluntary_switches": -1, "cpu_s": -0.5}, (None, None)),
        ({"voluntary_switches": "many", "cpu_s": True}, (None, None)),
        ({"voluntary_switches": 2**80, "cpu_s": 1e300}, (None, None)),
    ],
)
def test_what_the_kernel_counted_of_the_main_thread(noted: dict[str, object], read_as: tuple[object, object], tmp_path: Path) -> None:
    row = read(tmp_path, [entry(**noted)])[0]["dump_index"][0]
    assert (row["num_switches"], row["cpu_s"]) == read_as


def test_torn_index_keeps_its_good_beginning(tmp_path: Path) -> None:
    data = json.dumps([entry(), entry(rank=2)]).encode()[:-20]
    tables, skips = rows_of(dump_index, source_of(tmp_path, data))
    assert [row["rank"] for row in tables["dump_index"]] == [1]
    assert [skip.record for skip in skips] == ["E1"]


@pytest.mark.parametrize("text", ["[]", "{}", '[{"rank": 1, "loss": 2.0}]', '[{"pid": 1, "frames": []}]', "rank pid rc\n"])
def test_other_json_is_not_claimed(text: str) -> None:
    assert not dump_index.claims("index.json", text.encode())


@given(st.binary(max_size=300))
def test_random_bytes_are_not_claimed(data: bytes) -> None:
    assert not dump_index.claims("x", data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3)
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(entries=st.lists(st.dictionaries(st.sampled_from(sorted(entry())), JSON), max_size=4), cut=st.floats(0, 1))
def test_hostile_entries_raise_nothing_but_evidence_error(tmp_path: Path, entries: list[dict[str, object]], cut: float) -> None:
    data = json.dumps(entries).encode()
    source = source_of(tmp_path, data[: int(cut * len(data)) + 1])
    try:
        assert rows_of(dump_index, source) == rows_of(dump_index, source)
    except EvidenceError:
        return


@pytest.mark.skipif(not (CASES / "incidents").is_dir(), reason="the shared cases (../shared/cases) are not there")
def test_indexes_of_the_shared_cases() -> None:
    for path in sorted((CASES / "incidents").glob("*/stacks/index.json")):
        source = dump_index.Source(path.name, path, path.stat().st_size)
        assert dump_index.claims(path.name, source.head)
        tables, skips = rows_of(dump_index, source)
        assert not skips
        listed = json.loads(path.read_text())
        assert len(tables["dump_index"]) == len(listed)
        assert {row["role"] for row in tables["ranks"]} == {"trainer", "dataloader_worker"}
        assert [row["dump_status"] == "ok" for row in tables["dump_index"]] == [one["rc"] == 0 for one in listed]
