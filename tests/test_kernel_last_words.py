"""A panic with which a kernel log ends: that host is dead, whether or not anything tells when the job ran."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from _kernel_case import kernel_case

from rca.questions import ask

MAP = [{"evidence_id": "map", "rank": rank, "host": f"host-{'ab'[rank // 2]}", "local_rank": rank % 2} for rank in range(4)]
QUIET = "2026-03-04T05:00:00+00:00 host-b kernel: IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready\n"
PANIC = """2026-03-04T05:06:07+00:00 host-a kernel: mce: [Hardware Error]: CPU 2: Machine Check Exception: 5 Bank 4: b200000000070005
2026-03-04T05:06:07+00:00 host-a kernel: mce: [Hardware Error]: Machine check: Processor context corrupt
2026-03-04T05:06:07+00:00 host-a kernel: Kernel panic - not syncing: Fatal machine check on current CPU
2026-03-04T05:06:07+00:00 host-a kernel: Call Trace:
"""
LATER = "2026-03-04T05:16:07+00:00 host-a kernel: Linux version 6.8.0\n"


@pytest.mark.parametrize(("text", "ranks"), [(PANIC, (0, 1)), (PANIC + LATER, ())])
def test_the_host_whose_log_ends_with_a_panic_failed(tmp_path: Path, text: str, ranks: tuple[int, ...]) -> None:
    case = kernel_case(tmp_path, {"host-a.log": text, "host-b.log": QUIET}, ranks=MAP)
    found = ask(case, "fatal_xid")
    assert {rank for f in found.findings for rank in f.ranks} == set(ranks)
    assert [f.sign for f in found.findings] == (["host_record"] if ranks else ["doubtful_record"])


START = datetime(2026, 3, 4, 5, 0, tzinfo=UTC)
STEPS = [
    {"evidence_id": "steps", "rank": rank, "step": step, "started_at": START + timedelta(minutes=step)}
    for rank in range(4)
    for step in range(12)
]  # the last one five minutes after the panic, by the clock of host-a


@pytest.mark.parametrize(("gave_up", "ranks"), [((2, 3), (0, 1)), ((), ()), ((0, 2, 3), ())])
def test_a_wrong_clock_does_not_bring_a_dead_host_back(tmp_path: Path, gave_up: tuple[int, ...], ranks: tuple[int, ...]) -> None:
    """Steps after a panic count against it, unless the ranks of other hosts gave up and those of this one fell silent."""
    lines = [{"evidence_id": "log", "rank": rank, "signature": "nccl_watchdog_timeout", "message": "Timed out"} for rank in gave_up]
    case = kernel_case(tmp_path, {"host-a.log": PANIC, "host-b.log": QUIET}, ranks=MAP, steps=STEPS, log_events=lines)
    assert {rank for f in ask(case, "fatal_xid").findings for rank in f.ranks} == set(ranks)


LOST = """[Thu Nov 13 00:06:05 2025] NVRM: GPU at PCI:0000:18:00: GPU-0000
[Thu Nov 13 00:06:05 2025] NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
"""
CALM = "[{} 2025] IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready\n"


@pytest.mark.parametrize(("end", "sign"), [("Thu Nov 13 00:09:20", "gpu_record"), ("Sun Nov 23 00:09:20", "not_counted_unread")])
def test_a_lost_gpu_long_before_the_end_of_its_own_log_is_of_another_time(tmp_path: Path, end: str, sign: str) -> None:
    """Its zone dates the record; nothing dates the end but the stamps of the same log."""
    zone = [{"evidence_id": "hosts", "host": "host-a", "zone_offset_s": 0}]
    case = kernel_case(tmp_path, {"dmesg": LOST + CALM.format(end)}, whose={"dmesg": "host-a"}, ranks=MAP, hosts=zone)
    assert [f.sign for f in ask(case, "fatal_xid").findings] == [sign]
