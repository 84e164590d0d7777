"""Tasks that the kernel says hang: in the driver of the GPUs it is the host; in a file system, or where the trace tells no module, it stays open."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from _kernel_case import kernel_case

from rca.analyses import fatal_xid
from rca.types import Finding

HANGS = """\
2026-03-01T10:00:00,{n}00000+00:00 INFO: task python:{pid} blocked for more than 120 seconds.
2026-03-01T10:00:00,{n}00020+00:00       Tainted: P           OE     5.15.0-1064 #65
2026-03-01T10:00:00,{n}00030+00:00 task:python          state:D stack:    0 pid:{pid} ppid:     1 flags:0x00004002
2026-03-01T10:00:00,{n}00040+00:00 Call Trace:
2026-03-01T10:00:00,{n}00050+00:00  schedule+0x69/0x110
2026-03-01T10:00:00,{n}00060+00:00  ? nvidia_poll+0x10/0x20 [nvidia_uvm]
"""
FRAME = "2026-03-01T10:00:00,{n}00070+00:00  {frame}\n"
NVIDIA = "os_acquire_rwlock_write+0x35/0x50 [nvidia]"
NFS = "nfs_wait_bit_killable+0x22/0x40 [nfs]"
RANKS = [{"evidence_id": "map", "rank": n, "host": "host-a", "pid": 100 + n} for n in range(2)]


def hang(pid: int, frame: str, place: int = 1) -> str:
    return HANGS.format(pid=pid, n=place) + (FRAME.format(frame=frame, n=place) if frame else "")


def found(folder: Path, text: str) -> Finding:
    at = datetime(2026, 3, 1, 10, 0, 30, tzinfo=UTC)
    timed = [{"evidence_id": "log", "rank": 0, "signature": "nccl_watchdog_timeout", "logged_at": at, "message": "timed out"}]
    finding, *rest = fatal_xid.analyse(
        kernel_case(folder, {"host-a.dmesg.log": text}, {"host-a.dmesg.log": "host-a"}, ranks=RANKS, log_events=timed)
    )
    assert not rest
    return finding


@pytest.mark.parametrize(
    ("text", "sign", "ranks"),
    [
        (hang(100, NVIDIA) + hang(101, NVIDIA, 2), "host_record", (0, 1)),
        (hang(101, NVIDIA), "host_record", (1,)),
        (hang(101, NFS), "hung_task_record", (1,)),
        (hang(101, ""), "hung_task_record", (1,)),
        (hang(101, NFS) + FRAME.format(frame=NVIDIA, n=2), "hung_task_record", (1,)),  # the first module is where it waits
    ],
)
def test_where_a_task_hangs_tells_whose_it_is(tmp_path: Path, text: str, sign: str, ranks: tuple[int, ...]) -> None:
    finding = found(tmp_path, text)
    assert (finding.sign, finding.ranks, finding.hosts) == (sign, ranks, ("host-a",))


def test_every_task_that_hangs_behind_a_lockup_is_told_and_cited(tmp_path: Path) -> None:
    lockup = "2026-03-01T09:59:00,000000+00:00 watchdog: BUG: soft lockup - CPU#36 stuck for 82s! [python:100]\n"
    finding = found(tmp_path, lockup + hang(100, NVIDIA) + hang(101, NVIDIA, 2))
    assert "2 of its tasks are blocked in the driver of its GPUs at 10:00:00 UTC" in finding.says
    assert len(finding.cites) == 3
