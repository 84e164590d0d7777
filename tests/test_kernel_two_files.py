"""One kernel event that several files of a host tell is one event; two hosts, two slots, two bursts stay two."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from _kernel_case import kernel_case

from rca.case import MemoryCase
from rca.kernel_record import KernelRecord, kernel_records

AT = datetime(2026, 3, 1, 12, 1, 40, 250000, UTC)
BOOT = AT - timedelta(seconds=100.25)
BODY = "NVRM: Xid (PCI:0000:18:00): 94, pid=4242, name=python3, Contained: SM (0x1). RST: No, D-RST: No"
HOSTS = [{"evidence_id": "hosts", "host": "host-a", "boot_at": BOOT, "zone_offset_s": 19800.0}]
JOURNAL = {
    "__REALTIME_TIMESTAMP": str(int(AT.timestamp() * 1e6)),
    "_HOSTNAME": "host-a",
    "_TRANSPORT": "kernel",
    "_SOURCE_MONOTONIC_TIMESTAMP": "100250000",
}


def forms(body: str) -> dict[str, str]:
    """The same line as files of one host hold it."""
    return {
        "ring": f"[  100.250000] {body}\n",
        "syslog": f"Mar  1 17:31:40 host-a kernel: [  100.250000] {body}\n",
        "kern": f"Mar  1 17:31:41 host-a kernel: {body}\n",
        "ctime": f"[Sun Mar  1 17:31:40 2026] {body}\n",
        "iso": f"2026-03-01T17:31:40,250000+05:30 {body}\n",
        "kmsg": f"4,1227,100250000,-;{body}\n",
        "journal": json.dumps({**JOURNAL, "MESSAGE": body}) + "\n",
        "talos": f"host-a: kern: warning: [2026-03-01T12:01:40.250000000Z]: {body}\n",
        "check": f"host-a | ERROR: nhc: check_nvidia: [  100.250000] {body}\n",
        "bare": f"{body}\n",
    }


def records(
    folder: Path, files: dict[str, str], whose: str | dict[str, str] = "host-a", *, is_noted: bool = True
) -> tuple[KernelRecord, ...]:
    named = dict.fromkeys(files, whose) if isinstance(whose, str) else whose
    return kernel_records(kernel_case(folder, files, named, hosts=HOSTS if is_noted else []))


@pytest.mark.parametrize("is_noted", [True, False])
def test_any_two_files_of_a_host_tell_one_event(tmp_path: Path, *, is_noted: bool) -> None:
    told = forms(BODY)
    for one in told:
        for two in told:
            files = {one: told[one], f"{two}-2": told[two]}
            found = records(tmp_path, files, is_noted=is_noted)
            assert len(found) == 1, (one, two, [r.row for r in found])
            assert found[0].row["num_folded"] == 1, (one, two)
            assert {cite.evidence_id for cite in found[0].cites} == set(files), (one, two)
            assert found[0].at is None or abs((found[0].at - AT).total_seconds()) <= 1.5, (one, two)
            if is_noted and {one, two} != {"bare"}:
                assert found[0].at is not None, (one, two)


def test_all_of_them_at_once(tmp_path: Path) -> None:
    """The best stamp counts: an instant to the microsecond, wherever it stands."""
    (found,) = records(tmp_path, forms(BODY))
    assert (found.at, found.row["num_folded"], found.row["pid"]) == (AT, 1, 4242)
    assert len(found.cites) == len(forms(BODY))


def test_other_kinds_too(tmp_path: Path) -> None:
    bodies = {
        "xid": "NVRM: Xid (PCI:0000:18:00): 79, pid=4242, name=python3, GPU has fallen off the bus.",
        "sxid": "nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): 12028, Non-fatal, Link 44 egress non-posted PRIV error (First)",
        "oom": "Out of memory: Killed process 4242 (python3) total-vm:1kB, anon-rss:2kB, file-rss:0kB, UID:0 pgtables:1kB",
        "aer": "pcieport 0000:16:01.0: AER: Uncorrected (Fatal) error received: 0000:16:01.0",
        "hung_task": "INFO: task python3:4242 blocked for more than 120 seconds.",
    }
    for kind, body in bodies.items():
        told = forms(body)
        found = records(tmp_path, {name: told[name] for name in ("ring", "syslog", "journal")})
        assert [(record.row["kind"], record.row["num_folded"], len(record.rows)) for record in found] == [(kind, 1, 3)], kind


def test_a_gpu_off_the_bus_is_its_xid_with_the_number_or_without(tmp_path: Path) -> None:
    lost = "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus."
    numbered = "NVRM: Xid (PCI:0000:18:00): 79, pid=4242, name=python3, GPU has fallen off the bus."
    (found,) = records(tmp_path, {"a": forms(numbered)["syslog"], "b": forms(lost)["iso"]})
    assert (found.row["kind"], found.row["code"], len(found.rows)) == ("xid", 79, 2)


def test_files_of_two_hosts_are_two_events(tmp_path: Path) -> None:
    """Every host of a model has the same addresses; two may well fail in one second."""
    iso = forms(BODY)["iso"]
    found = records(tmp_path, {"a": iso, "b": iso}, {"a": "host-a", "b": "host-b"})
    assert [(record.row["host"], record.row["num_folded"]) for record in found] == [("host-a", 1), ("host-b", 1)]
    assert len(records(tmp_path, {"a": iso, "b": iso}, {})) == 2, "whose they are is not told: they may be of two hosts"


def test_what_differs_stays_two(tmp_path: Path) -> None:
    told = forms(BODY)["iso"]
    for name, other in {
        "code": told.replace(": 94,", ": 95,"),
        "gpu": told.replace("0000:18", "0000:3b"),
        "process": told.replace("4242", "5151"),
        "time": told.replace("17:31:40", "17:41:40"),
    }.items():
        assert len(records(tmp_path, {"a": told, "b": other})) == 2, name


def test_a_count_is_that_of_the_file_with_most_lines(tmp_path: Path) -> None:
    """A syslog that drops lines, a ring that lost its beginning: neither adds to the other."""
    times = [AT + timedelta(seconds=n) for n in range(20)]
    iso = "".join(f"{at:%Y-%m-%dT%H:%M:%S,%f}+00:00 {BODY}\n" for at in times)
    ring = "".join(f"[{(at - BOOT).total_seconds():12.6f}] {BODY}\n" for at in times[4:])
    (found,) = records(tmp_path, {"a": iso, "b": ring})
    assert (found.row["num_folded"], found.at) == (20, AT)


def test_bursts_are_paired_in_time(tmp_path: Path) -> None:
    """The same line every hour, in two files: as many events as hours."""
    hours = [AT + timedelta(hours=n) for n in range(5)]
    iso = "".join(f"{at:%Y-%m-%dT%H:%M:%S,%f}+00:00 {BODY}\n" for at in hours)
    ring = "".join(f"[{(at - BOOT).total_seconds():12.6f}] {BODY}\n" for at in hours)
    found = records(tmp_path, {"a": iso, "b": ring})
    assert [(record.at, len(record.rows)) for record in found] == [(at, 2) for at in hours]


def test_a_file_that_holds_its_log_twice_counts_it_once(tmp_path: Path) -> None:
    hours = [AT + timedelta(hours=n) for n in range(3)]
    iso = "".join(f"{at:%Y-%m-%dT%H:%M:%S,%f}+00:00 {BODY}\n" for at in hours)
    ring = "".join(f"[{(at - BOOT).total_seconds():12.6f}] {BODY}\n" for at in hours)
    for text in (iso, ring):
        assert [record.at for record in records(tmp_path, {"a": text * 2})] == hours
        assert [len(record.rows) for record in records(tmp_path, {"a": text, "b": text})] == [2, 2, 2]


def test_a_cut_message_is_that_of_the_whole_one(tmp_path: Path) -> None:
    """A health check prints no clock and cuts the line."""
    told = forms(BODY)
    (found,) = records(tmp_path, {"a": told["syslog"], "b": f"[gpu-health] [CRITICAL] GPU-0000: XID: {BODY[:60]}\n"})
    assert found.row["message"] == BODY.removeprefix("NVRM: ") or found.row["message"] == BODY


def test_the_order_of_files_and_rows_does_not_matter(tmp_path: Path) -> None:
    case = kernel_case(tmp_path, forms(BODY), dict.fromkeys(forms(BODY), "host-a"), hosts=HOSTS)
    (one,) = kernel_records(case)
    frame = case.frames["kernel_events"]
    (two,) = kernel_records(MemoryCase({**case.frames, "kernel_events": frame.reverse()}))
    assert (one.row, one.at, one.cites) == (two.row, two.at, two.cites)


def test_a_reversed_file_is_in_the_order_of_time(tmp_path: Path) -> None:
    """A journal printed backwards, in which all stamps are equal or cannot be placed."""
    lines = [
        f"Mar  1 17:31:{second} host-a kernel: {BODY.replace('0000:18', f'0000:{pci}')}\n"
        for second, pci in ((40, "18"), (41, "3b"), (42, "86"))
    ]
    files = {"forward": "".join(lines), "backward": "".join(reversed(lines))}
    for name, text in files.items():
        found = records(tmp_path, {name: text}, is_noted=False)
        assert [record.row["gpu"] for record in found] == ["0000:18:00", "0000:3b:00", "0000:86:00"], name
