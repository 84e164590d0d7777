"""What the kernels say of storage: of a server that several hosts share nobody is to blame; of one host its stuck ranks, where they show."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from _kernel_case import kernel_case

from rca.analyses import fatal_xid
from rca.causes import is_stale, means

SILENT = "2026-03-01T10:00:0{n},000000+00:00 nfs: server filer-1 not responding, still trying\n"
HANGS = "2026-03-01T10:00:20,{pid}000+00:00 INFO: task python:{pid} blocked for more than 120 seconds.\n"
RANKS = [{"evidence_id": "map", "rank": n, "host": f"host-{'ab'[n // 2]}"} for n in range(4)]
READS = {"thread_name": "MainThread", "is_active": False, "dump_status": "ok", "sample": 0, "role": "trainer"}


def refused(*ranks: int) -> list[dict[str, Any]]:
    told = {"signature": "python_traceback", "exception": "OSError", "message": "[Errno 116] Stale file handle: '/data/x'"}
    return [{"evidence_id": f"log {n}", "rank": n, "logged_at": datetime(2026, 3, 1, 10, 0, 30, tzinfo=UTC), **told} for n in ranks]


WAITS = [{**row, "signature": "nccl_watchdog_timeout", "exception": None, "message": "timed out"} for row in refused(0)]


@pytest.mark.parametrize(
    ("files", "rows", "ranks", "hosts"),
    [
        ({"host-a": SILENT.format(n=1), "host-b": SILENT.format(n=5)}, refused(0, 2), (), ()),
        ({"host-a": SILENT.format(n=1)}, refused(0, 2), (), ()),  # another host's rank met the same
        ({"host-a": SILENT.format(n=1)}, refused(0), (0,), ("host-a",)),
        ({"host-a": SILENT.format(n=1)}, WAITS, (), ("host-a",)),
        ({"host-a": SILENT.format(n=1) + HANGS.format(pid=101) + HANGS.format(pid=102)}, WAITS, (0, 1), ("host-a",)),
        ({"host-a": SILENT.format(n=1) + HANGS.format(pid=101)}, WAITS, (), ("host-a",)),
    ],
)
def test_whom_storage_hit(
    tmp_path: Path, files: dict[str, str], rows: Sequence[dict[str, Any]], ranks: tuple[int, ...], hosts: tuple[str, ...]
) -> None:
    case = kernel_case(tmp_path, {f"{h}.log": t for h, t in files.items()}, {f"{h}.log": h for h in files}, ranks=RANKS, log_events=rows)
    (found,) = fatal_xid.analyse(case)
    assert (found.sign, found.ranks, found.hosts) == ("storage_record", ranks, hosts)


@pytest.mark.parametrize("waits", [True, False])
def test_a_rank_that_waits_for_storage_dates_the_errors_of_its_mount(tmp_path: Path, *, waits: bool) -> None:
    stacks = [
        {"evidence_id": "s", "rank": n, "host": RANKS[n]["host"], "stack_id": "w" if waits and n == 1 else "c", **READS} for n in range(4)
    ]
    frames = [
        {"evidence_id": "s", "stack_id": "w", "activity": "checkpoint", "wait_kind": "io", "leaf": "save:write"},
        {"evidence_id": "s", "stack_id": "c", "activity": "train_step", "wait_kind": "collective", "leaf": "train:step"},
    ]
    case = kernel_case(tmp_path, {"a.log": SILENT.format(n=1)}, {"a.log": "host-a"}, ranks=RANKS, stacks=stacks, stack_frames=frames)
    (found,) = fatal_xid.analyse(case)
    assert (found.sign, found.ranks) == (("storage_record", (1,)) if waits else ("doubtful_record", ()))


@pytest.mark.parametrize(("rows", "signs"), [(refused(0, 2), ["server_away"]), ([], [])])
def test_a_server_that_answered_again_is_told_beside_the_refusals(tmp_path: Path, rows: Sequence[dict[str, Any]], signs: list[str]) -> None:
    back = SILENT.format(n=1) + "2026-03-01T10:00:09,000000+00:00 nfs: server filer-1 OK\n"
    case = kernel_case(tmp_path, {"a.log": back, "b.log": back}, {"a.log": "host-a", "b.log": "host-b"}, ranks=RANKS, log_events=rows)
    found = fatal_xid.analyse(case)
    assert [one.sign for one in found] == signs
    assert all("filer-1 from 10:00:01" in one.says and "answered again" in one.says and len(one.cites) == 2 for one in found)


def test_stale_handles_ask_for_a_fresh_mount() -> None:
    assert is_stale(["OSError: [Errno 116] Stale file handle: '/data/x'"])
    assert not is_stale(["OSError: [Errno 28] No space left on device"])
    assert means("storage_stall", ["storage_error"]) != means("storage_stall", ["storage_record"])
