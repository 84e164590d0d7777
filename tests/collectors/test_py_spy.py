"""py-spy, faulthandler and debug-server dumps: real captures, their variants, failed dumps, hostile bytes, and the shared cases."""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from pathlib import Path

import pytest
from _sources import FIXTURES, rows_of, source_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors import native_stacks, py_spy
from rca.errors import EvidenceError
from rca.types import Source

CASES = Path(__file__).parents[3] / "shared" / "cases"
CAPTURES = sorted(path for path in FIXTURES.iterdir() if path.name.startswith("stack_"))
MIN_LABELS_RIGHT = 0.92
LOG = """[rank0]:   File "/job/train.py", line 10, in <module>
Traceback (most recent call last):
  File "/job/train.py", line 25, in <module>
    main()
  File "/job/train.py", line 20, in main
    step()
  File "/job/net.py", line 7, in step
    raise RuntimeError("shape mismatch")
RuntimeError: shape mismatch
"""


def captured(name: str) -> Source:
    return Source(name, FIXTURES / name, (FIXTURES / name).stat().st_size)


def read_text(folder: Path, text: str):
    tables, _ = rows_of(py_spy, source_of(folder, text.encode()))
    return tables["stacks"], {row["stack_id"]: row for row in tables["stack_frames"]}


def labels(rows, frames, name: str = "MainThread") -> set[tuple[str, str, str]]:
    stacks = [frames[row["stack_id"]] for row in rows if row["thread_name"] == name]
    return {(stack["leaf"], stack["activity"], stack["wait_kind"]) for stack in stacks}


@pytest.mark.parametrize("path", CAPTURES, ids=[path.name for path in CAPTURES])
def test_captures_are_claimed_and_every_record_leads_to_its_thread(path: Path) -> None:
    source = captured(path.name)
    assert py_spy.claims(path.name, source.head)
    assert not native_stacks.claims(path.name, source.head)
    tables, skips = rows_of(py_spy, source)
    assert not skips
    lines = path.read_text().splitlines()
    for row in tables["stacks"]:
        if row["record"].startswith("L"):
            assert lines[int(row["record"][1:]) - 1].lstrip().startswith(("Thread ", "Current thread ", "Process ", "Error: "))
        else:
            thread = json.loads(path.read_text())[int(row["record"][1:])]
            assert (row["thread_id"], row["pthread_id"]) == (thread["os_thread_id"], str(thread["thread_id"]))


def test_text_json_and_faulthandler_of_one_process_agree() -> None:
    seen = []
    for name in ("stack_save_one.txt", "stack_save.json", "stack_fh.txt"):
        tables, _ = rows_of(py_spy, captured(name))
        seen.append(sorted(row["stack_id"] for row in tables["stacks"]))
        main = [row for row in tables["stacks"] if row["thread_name"] == "MainThread"]
        assert len(main) == 1
        assert main[0]["role"] == "trainer"
        assert main[0]["lines"] == "27,43,149,23,39"
    assert seen[0] == seen[1] == seen[2]


def test_subprocess_blocks_are_processes_of_their_own() -> None:
    tables, _ = rows_of(py_spy, captured("stack_save.txt"))
    by_pid = {(row["pid"], row["role"]) for row in tables["stacks"]}
    assert len(by_pid) == 2
    assert {role for _, role in by_pid} == {"trainer", "other"}
    assert not any("popen_fork" in frame for row in tables["stack_frames"] if row["leaf"] == "job:write_shards" for frame in row["frames"])


def test_locals_are_no_frames() -> None:
    tables, _ = rows_of(py_spy, captured("stack_eval_locals.txt"))
    assert [len(row["frames"]) for row in tables["stack_frames"]] == [4, 4, 6]


def test_native_frames_tell_a_lock() -> None:
    rows, _ = rows_of(py_spy, captured("stack_lock_native.txt"))
    frames = {row["stack_id"]: row for row in rows["stack_frames"]}
    assert labels(rows["stacks"], frames) == {("job:log_metrics", "unknown", "lock")}
    plain, _ = rows_of(py_spy, captured("stack_lock.json"))
    frames = {row["stack_id"]: row for row in plain["stack_frames"]}
    assert labels(plain["stacks"], frames) == {("job:log_metrics", "unknown", "unknown")}


@pytest.mark.parametrize(
    ("name", "status"),
    [("stack_stopped.txt", "suspend_failed"), ("stack_notpy.txt", "permission_denied"), ("stack_gone.txt", "process_gone")],
)
def test_failed_captures(name: str, status: str) -> None:
    tables, _ = rows_of(py_spy, captured(name))
    assert [row["dump_status"] for row in tables["stacks"]] == [status]
    assert not tables["stack_frames"]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("Error: Failed to find python version from target process\n", "not_python"),
        (
            "Process 7: /usr/bin/python3 x.py\nPermission Denied: Try running again with elevated permissions by going 'sudo'\n",
            "permission_denied",
        ),
        ("Permission Denied: Try running again with elevated permissions by going 'sudo env \"PATH=$PATH\" !!'\n", "permission_denied"),
        ("Error: Unsupported version of Python: 3.14.0\n", "unsupported_version"),
        ("Error: Failed to suspend process\nReason: EPERM: Operation not permitted\n", "suspend_failed"),
        ("Process 12: \n", "process_gone"),
        ("Process 12: /usr/bin/python3 train.py\nPython v3.11.7 (/usr/bin/python3)\n", "unknown"),
    ],
)
def test_failed_dumps(tmp_path: Path, text: str, status: str) -> None:
    assert py_spy.claims("x", text.encode())
    rows, frames = read_text(tmp_path, text)
    assert [row["dump_status"] for row in rows] == [status]
    assert rows[0]["stack_id"] is None
    assert not frames


def test_one_failed_process_among_others(tmp_path: Path) -> None:
    text = 'Process 7: python\nPython v3.11.7 (x)\n\nThread 7 (idle): "MainThread"\n    f (x.py:1)\n\nProcess 8: \n'
    rows, _ = read_text(tmp_path, text)
    assert [(row["pid"], row["dump_status"]) for row in rows] == [(7, "ok"), (8, "process_gone")]


def test_a_dump_that_failed_before_its_header_is_a_row_too(tmp_path: Path) -> None:
    text = (FIXTURES / "stack_save_one.txt").read_text() + (FIXTURES / "stack_gone.txt").read_text()
    rows, _ = read_text(tmp_path, text)
    assert [row["dump_status"] for row in rows] == ["ok", "ok", "ok", "process_gone"]


def test_debug_server_blocks_give_rank_and_host(tmp_path: Path) -> None:
    text = """PARTIAL DATA: 2/3 workers responded

=== Rank 4: http://Host-A.cluster.local:4000/handler/dump_traceback? ===
Thread 0x00007f0000000001 (most recent call first):
  <no Python frame>

Thread 0x00007f0000000002 (most recent call first):
  File "/job/a/train.py", line 61 in <module>

=== Rank 5: http://10.0.0.7:4001/handler/dump_traceback? ===
Error: 404
"""
    assert py_spy.claims("x", text.encode())
    rows, frames = read_text(tmp_path, text)
    told = [(row["rank"], row["host"], row["dump_status"], row["thread_name"], row["format"]) for row in rows]
    assert told == [
        (4, "host-a", "ok", None, "debug_server"),
        (4, "host-a", "ok", "MainThread", "debug_server"),
        (5, "10.0.0.7", "unknown", None, "debug_server"),
    ]
    assert {row["leaf"] for row in frames.values()} == {"train:<module>"}


def test_log_prefixes_separate_interleaved_ranks(tmp_path: Path) -> None:
    text = """[rank0]: Thread 7 (idle): "MainThread"
[rank1]: Thread 8 (idle): "MainThread"
[rank0]:     broadcast (torch/distributed/distributed_c10d.py:1191)
[rank1]:     f (job.py:3)
[rank1]:     evaluate (job.py:9)
[rank0]:     train_step (job.py:5)
"""
    assert py_spy.claims("x", text.encode())
    rows, frames = read_text(tmp_path, text)
    assert [(row["rank"], row["record"]) for row in rows] == [(0, "L1"), (1, "L2")]
    assert [frames[row["stack_id"]]["activity"] for row in rows] == ["train_step", "eval"]


def test_time_stamps_before_each_line_do_not_matter(tmp_path: Path) -> None:
    plain = (FIXTURES / "stack_save_one.txt").read_text().splitlines()
    text = "\n".join(f"2024-05-01T10:00:{i:02d}.123Z {line}" for i, line in enumerate(plain))
    assert py_spy.claims("x", text.encode())
    rows, _ = read_text(tmp_path, text)
    tables, _ = rows_of(py_spy, captured("stack_save_one.txt"))
    assert [row["stack_id"] for row in rows] == [row["stack_id"] for row in tables["stacks"]]


def test_lost_line_breaks_and_windows_line_ends(tmp_path: Path) -> None:
    text = (FIXTURES / "stack_save_one.txt").read_text()
    want = [row["stack_id"] for row in read_text(tmp_path, text)[0]]
    assert [row["stack_id"] for row in read_text(tmp_path, text.replace("\n", "\r\n"))[0]] == want
    assert [row["stack_id"] for row in read_text(tmp_path, " ".join(text.split()))[0]] == want


def test_old_py_spy_without_names_has_its_main_thread_by_root(tmp_path: Path) -> None:
    text = "Thread 0x7F01 (active)\n\t run (threading.py:864)\n\t _bootstrap (threading.py:884)\n"
    text += "Thread 0x7F02 (active)\n\t <module> (job.py:3)\n"
    rows, _ = read_text(tmp_path, text)
    assert [(row["thread_name"], row["pthread_id"], row["owns_gil"]) for row in rows] == [
        (None, str(0x7F01), None),
        ("MainThread", str(0x7F02), None),
    ]


def test_repeated_dumps_in_one_file_are_samples(tmp_path: Path) -> None:
    text = (FIXTURES / "stack_fh.txt").read_text()
    rows, _ = read_text(tmp_path, text + "\n" + text)
    assert [row["sample"] for row in rows] == [0, 0, 0, 1, 1, 1]
    assert [row["thread_name"] for row in rows].count("MainThread") == 2


def test_torn_json_keeps_its_good_beginning(tmp_path: Path) -> None:
    data = (FIXTURES / "stack_save.json").read_bytes()
    tables, skips = rows_of(py_spy, source_of(tmp_path, data[: len(data) // 2]))
    assert tables["stacks"]
    assert skips[-1].record == f"E{len(tables['stacks'])}"


def test_torn_archive_keeps_its_good_beginning(tmp_path: Path) -> None:
    text = (FIXTURES / "stack_save.txt").read_bytes() * 2000
    packed = gzip.compress(text)[:-400]
    file = tmp_path / "dump.gz"
    file.write_bytes(packed)
    tables, skips = rows_of(py_spy, Source("dump.gz", file, len(packed), "gzip"))
    assert tables["stacks"]
    assert skips


@pytest.mark.parametrize(
    "text",
    [
        LOG,
        "step 1 loss 2.0\n" * 200 + LOG,
        "step 1 loss 2.0\n" * 400 + (FIXTURES / "stack_save_one.txt").read_text(),
        "Process 12 started\nstep 1\n",
        "Error: no such file\n",
        '[{"frames": 3}]',
        "",
        "# 1 item\n#2 other (x)\n",
    ],
)
def test_logs_and_other_files_are_not_claimed(text: str) -> None:
    assert not py_spy.claims("x", text.encode())
    assert not native_stacks.claims("x", text.encode())


@given(st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
def test_random_bytes_are_not_claimed(data: bytes) -> None:
    assert not py_spy.claims("x", data)
    assert not native_stacks.claims("x", data)


WORDS = st.sampled_from(
    [
        "Thread 1 (idle)",
        ': "MainThread"',
        "Process 3: ",
        "\n",
        "    f (x.py:1)",
        'File "a", line 3 in f',
        "[",
        "{",
        '"frames"',
        '"pid":',
        "]}",
        " (",
        "=== Rank 1: http://h:1/x ===",
        "#0  0x1 in f () from libc.so.6",
        "Traceback for thread 3 (x) [] (most recent call last):",
        "\x00",
        "é",
        ")",
    ]
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(parts=st.lists(WORDS, max_size=30), tail=st.binary(max_size=60))
def test_hostile_bytes_raise_nothing_but_evidence_error(tmp_path: Path, parts: list[str], tail: bytes) -> None:
    source = source_of(tmp_path, "".join(parts).encode() + tail)
    for collector in (py_spy, native_stacks):
        try:
            once = rows_of(collector, source)
        except EvidenceError:
            continue
        assert once == rows_of(collector, source)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(which=st.sampled_from(CAPTURES), cut=st.floats(0, 1), flip=st.integers(0, 255))
def test_truncated_and_damaged_captures(tmp_path: Path, which: Path, cut: float, flip: int) -> None:
    data = bytearray(which.read_bytes()[: int(cut * which.stat().st_size)])
    if data:
        data[len(data) // 2] ^= flip
    try:
        tables, _ = rows_of(py_spy, source_of(tmp_path, bytes(data)))
    except EvidenceError:
        return
    assert tables["stacks"] or not tables["stack_frames"]


@pytest.mark.parametrize(
    "data",
    [
        b'Thread 1 (idle): "MainThread"\n    f (' + b"a(" * 500_000 + b")\n",
        b'Thread 1 (idle): "MainThread" ' + b"f (x.py:1) " * 90_000,
        b'Thread 1 (idle): "MainThread"\n' + b"    save_save_save_checkpoint_ckpt_" * 30_000 + b" (x.py:1)\n",
        b'Thread 1 (idle): "MainThread"\n' + b"".join(b"    f%d_save_load_checkpointx (a/b/c/d%d.py:1)\n" % (i, i) for i in range(20_000)),
        b"#0  0x1 in " + b"a<" * 400_000 + b"\n",
        b'File "' + b"x" * 900_000,
        b"[" * 900_000,
        b'[{"frames": [], "thread_id": ' + b"9" * 900_000,
    ],
)
def test_a_hostile_megabyte_takes_at_most_two_seconds(tmp_path: Path, data: bytes) -> None:
    source = source_of(tmp_path, data)
    start = time.process_time()
    for collector in (py_spy, native_stacks):
        collector.claims("x", source.head)
        try:
            rows_of(collector, source)
        except EvidenceError:
            continue
    assert time.process_time() - start < 4.0  # two readers


@pytest.mark.skipif(not (CASES / "stack_expected.jsonl").is_file(), reason="the shared cases (../shared/cases) are not there")
def test_labels_of_the_shared_cases() -> None:
    tally: Counter[str] = Counter()
    for line in (CASES / "stack_expected.jsonl").read_text().splitlines():
        case = json.loads(line)
        if not case["score"]:
            continue
        path = CASES / case["file"]
        source = Source(case["file"], path, path.stat().st_size)
        readers = [collector for collector in (py_spy, native_stacks) if collector.claims(path.name, source.head)]
        assert len(readers) == 1, case["file"]
        tables, _ = rows_of(readers[0], source)
        frames = {row["stack_id"]: row for row in tables["stack_frames"]}
        threads = [{**frames.get(row["stack_id"], {}), **row} for row in tables["stacks"] if row["dump_status"] == "ok"]
        assert len(threads) == case["num_threads"], case["file"]
        if "dump_status" in case:
            tally["all"] += 1
            tally["right"] += [row["dump_status"] for row in tables["stacks"]] == [case["dump_status"]]
            continue
        key = [row for row in threads if row["thread_name"] == "MainThread"] or threads
        if "key_thread" in case:
            key = [row for row in threads if case["key_thread"] in (str(row["thread_id"]), row["thread_name"])]
        for column, alternatives in (("activity", "activity_alt"), ("wait_kind", "wait_alt")):
            tally["all"] += 1
            tally["right"] += bool({row.get(column) for row in key} & {case[column], *case.get(alternatives, [])})
    assert tally["right"] >= MIN_LABELS_RIGHT * tally["all"], tally
