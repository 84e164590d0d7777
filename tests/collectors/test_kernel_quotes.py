"""A tool's line that quotes the kernel: whose clock counts. And logs of machines that have no name of their own."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from _sources import rows_of, source_of

from collectors import xid

AT = datetime(2026, 3, 2, 8, 12, 7, tzinfo=UTC)
XID = "NVRM: Xid (PCI:0000:43:00): 79, pid=4003, name=python, GPU has fallen off the bus."
OWN = "2026-03-02T08:12:07+00:00 host-a nvidia-healthcheck[123]: "
QUOTES: dict[str, tuple[datetime | None, float | None]] = {  # what stands before the driver's words -> instant, seconds since boot
    "": (AT, None),
    "dmesg: ": (AT, None),
    "dmesg: [  100.000] ": (None, 100.0),
    "WARN: [90105.250] ": (None, 90105.25),
    "found old record in dmesg: [  100.000] ": (None, None),
    "found Xid errors in kernel log: [  100.000] ": (None, None),
    "previous boot: ": (None, None),
    "history: kernel: ": (None, None),
    "old record: 2026-02-01T08:00:00+00:00 host-a kernel: ": (datetime(2026, 2, 1, 8, tzinfo=UTC), None),
}


def tables(tmp_path: Path, name: str, text: str) -> dict[str, list[dict[str, Any]]]:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    found, skips = rows_of(xid, source_of(tmp_path, text.encode(), name))
    assert not skips
    return found


def test_the_inner_clock_is_the_records_own(tmp_path: Path) -> None:
    for before, said in QUOTES.items():
        found = tables(tmp_path, "messages", f"2026-03-02T08:00:00+00:00 host-a kernel: eth0: link is up\n{OWN}{before}{XID}\n")
        (row,) = found["kernel_events"]
        assert (row["code"], row["host"], row["logged_at"], row["uptime_s"]) == (79, "host-a", *said), before
        (log,) = found["host_logs"]
        assert log["first_uptime_s"] is None, before  # a quotation tells nothing of the time that its log covers


def test_a_machine_without_a_name_has_that_of_its_file(tmp_path: Path) -> None:
    for name, host in {
        "kernel/host-b.log": "host-b",
        "host-b/messages": "host-b",
        "kernel/ip-10-0-0-2.log": "ip-10-0-0-2",
        "kernel/messages": "localhost",
    }.items():
        for said, expected in (("localhost", host), ("localhost.localdomain", host), ("host-c", "host-c")):
            found = tables(tmp_path, name, f"2026-03-02T08:12:07+00:00 {said} kernel: {XID}\n")
            assert {row["host"] for table in ("kernel_events", "host_logs") for row in found[table]} == {expected}, (name, said)
