"""A device that breaks on another host than the one whose program failed by itself: which of the two ended the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from _house import diagnose_in_memory

LOST = "[{at}] NVRM: Xid (PCI:0000:2a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 12, in step\n    loss = total / count\n{error}\n'
PROGRAM = "TypeError: unsupported operand type(s) for /: 'str' and 'int'"
STEPS = "".join(
    f"[2025-10-10 23:0{n}:00] iteration {n}/ 100 | elapsed time per iteration (ms): 60000.0 | lm loss: 2.0E+00 |\n" for n in range(5)
)
TIMED_OUT = (
    "[rank1]:[E1010 23:{at}.000000 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
    "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600014 milliseconds before timing out.\n"
)


@pytest.mark.parametrize(
    ("error", "lost_at", "zone_s", "cause"),
    [
        (PROGRAM, "Fri Oct 10 23:27:34 2025", 0, "user_exception"),  # the job had been given up by then
        (PROGRAM, "Fri Oct 10 23:27:34 2025", None, "user_exception"),  # no clock tells; no GPU of another host does this
        (PROGRAM, "Fri Oct 10 22:53:00 2025", 0, "user_exception"),  # the job made steps after it
        ("RuntimeError: something of the other end went wrong", "Fri Oct 10 23:15:00 2025", 0, "gpu_fault"),
        ("RuntimeError: CUDA error: unspecified launch failure", "Fri Oct 10 23:05:00 2025", 0, "gpu_fault"),
    ],
)
def test_what_only_a_program_does_needs_no_device_of_another_host(
    tmp_path: Path, error: str, lost_at: str, zone_s: int | None, cause: str
) -> None:
    (tmp_path / "map.json").write_text(json.dumps({"ranks": [{"rank": n, "host": f"host-{n}", "local_rank": 0} for n in range(2)]}))
    if zone_s is not None:
        (tmp_path / "hosts.json").write_text(json.dumps({f"host-{n}": {"zone_offset_s": zone_s} for n in range(2)}))
    (tmp_path / "host-1.dmesg.log").write_text(LOST.format(at=lost_at))
    (tmp_path / "rank_0.log").write_text(STEPS + TRACEBACK.format(error=error))
    (tmp_path / "rank_1.log").write_text(STEPS + TIMED_OUT.format(at="14:02"))
    assert diagnose_in_memory(tmp_path)["verdict"]["cause"] == cause
