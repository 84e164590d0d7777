"""What the driver says once: which GPU sits in a slot, its own version, and what the vendor's sheet makes of lines of NVLink with it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from _house import ROOT

from collectors import xid
from collectors._kernel_nvlink import NVLINK5_XIDS, decoded, nvlink_line
from rca.catalogues import rows

NEW, OLD = "580.82.07", "570.195.03"
OPEN = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (b@c)  Sat Sep 20 00:47:16 UTC 2025"
DRIVERS = (
    OPEN,
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {}  Wed Aug 20 00:00:00 UTC 2025",
    "NVRM: loading NVIDIA UNIX aarch64 Kernel Module  {}  Wed Aug 20 00:00:00 UTC 2025",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build",
    "nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms  {}  Wed Aug 20",
    "nvidia-modeset: Loading NVIDIA UNIX Open Kernel Mode Setting Driver for x86_64  {}  Release Build",
)
XID = "NVRM: Xid (PCI:0018:01:00): "


def told(*lines: str) -> list[dict[str, Any]]:
    reader = xid._Reader(None)
    for number, line in enumerate(lines, 1):
        reader.take(line, number)
    return reader.take_rows()


def identity(stamp: str, gpu: str, number: int) -> list[str]:
    uuid = f"GPU-00000000-0000-0000-0000-{number:012d}"
    return [f"{stamp}NVRM: GPU at PCI:{gpu}: {uuid}", f"{stamp}NVRM: GPU Board Serial Number: {number:013d}"]


def who(rows: list[dict[str, Any]]) -> list[tuple[int | None, int | None]]:
    """Number of UUID and of serial number of each row, as `identity` made them."""
    return [tuple(int(row[name][-12:]) if row[name] else None for name in ("gpu_uuid", "gpu_serial")) for row in rows]  # type: ignore[misc]


@pytest.mark.parametrize("form", DRIVERS)
def test_version_of_the_driver_is_read_in_every_form_it_is_printed(form: str) -> None:
    (row,) = told(f"[    1.000000] {form.format(NEW)}", f"[   10.000000] {XID}79, GPU has fallen off the bus.")
    assert row["driver_version"] == NEW


def test_slot_of_a_host_holds_the_gpu_that_the_driver_named_there() -> None:
    a, b = "Mar  2 08:12:06 host-a kernel: ", "Mar  2 08:12:06 host-b kernel: "
    lines = [*identity(a, "0000:3b:00", 1), *identity(b, "0000:3b:00", 2), *identity(a, "0000:86:00", 3)]
    events = [
        f"{prefix}NVRM: Xid (PCI:{gpu}): 48" for prefix, gpu in ((a, "0000:3b:00"), (b, "0000:3b:00"), (a, "0000:86:00"), (b, "0000:86:00"))
    ]
    expected = [(1, 1), (2, 2), (3, 3), (None, None)]
    assert who(told(*lines, *events)) == expected
    assert who(told(*reversed(lines), *events)) == expected
    assert who(told(*events, *lines)) == expected, "a file may be reversed"


def test_after_a_repair_another_gpu_sits_in_the_slot() -> None:
    lines = []
    for day, number in ((2, 1), (9, 2)):
        stamp = f"Mar {day:2d} 08:12:07 host-a kernel: [  100.000000] "
        lines += [*identity(stamp, "0000:3b:00", number), f"{stamp}NVRM: Xid (PCI:0000:3b:00): 48", f"{stamp}NVRM: GPU 0000:3b:00.0: quiet"]
    assert who(told(*lines)) == [(1, 1), (2, 2)]
    assert who(told(*reversed(lines))) == [(2, 2), (1, 1)]
    undated = [line[line.index("[") :] for line in lines]
    assert who(told(*undated)) == [(None, None)], "two boots on one clock: which GPU is meant is not known"


def test_serial_number_also_stands_in_the_line_of_a_loss() -> None:
    lines = (f"{XID}79, GPU has fallen off the bus.", "NVRM: GPU 0018:01:00.0: GPU serial number is 0000000000007.")
    assert who(told(*(f"[   1.00000{n}] {line}" for n, line in enumerate(lines)))) == [(None, 7)]


def nvlink(bits: str, status: str, text: str = "145, RLW_REMAP Nonfatal XC1 i0 Link 10") -> str:
    return f"[   10.000000] {XID}{text} ({bits} {status} 0x00000000"


def test_line_of_nvlink_is_looked_up_with_the_bits_of_its_driver() -> None:
    old_bits, new_bits = "0x00000082", "0x00000004"
    for driver, bits, expected in (
        *((OLD, old_bits, ("none", "none")), (NEW, new_bits, ("none", "none"))),
        *((OLD, new_bits, (None, None)), (NEW, old_bits, (None, None))),
        (None, new_bits, (None, None)),  # without the driver's version only the printed word counts
    ):
        loaded = [f"[    1.000000] {OPEN.format(driver)}"] if driver else []
        (row,) = told(*loaded, nvlink(bits, "0x00000100"))
        assert (row["recovery"], row["remote_effect"]) == expected, (driver, bits)
        assert (row["severity"], row["unit"], row["link"], row["sub_code"]) == ("nonfatal", "RLW_REMAP", 10, 0)


def test_sheet_gives_no_advice_where_the_line_says_another_severity() -> None:
    line = nvlink("0x00000004", "0x00000100", "145, RLW_REMAP Fatal XC1 i0 Link 10")
    (row,) = told(f"[    1.000000] {OPEN.format(NEW)}", line)
    assert (row["severity"], row["recovery"], row["remote_effect"]) == ("fatal", None, None)


def test_sub_code_tells_where_a_link_broke() -> None:
    lost = "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09"
    loaded = f"[    1.000000] {OPEN.format(OLD)}"
    for bits, sub_code, effect in (("0x025525c6", 37, "source"), ("0x004525c6", 4, "later_packet_loss"), ("0x02e525c6", 46, None)):
        (row,) = told(loaded, nvlink(bits, "0x00000000", lost))
        assert (row["sub_code"], row["remote_effect"]) == (sub_code, effect)
        assert row["recovery"] == ("reset" if effect else None)


def test_every_row_of_the_sheet_is_found_by_a_line_that_it_describes() -> None:
    for number, row in enumerate(rows("nvlink5"), 2):
        unit = row["units"].split("|")[-1]
        word = {"fatal": "Fatal", "nonfatal": "Nonfatal"}[row["severity"]]
        for column, driver in (("word_before_575", OLD), ("word_since_575", NEW)):
            bits = int(row[column].replace("-", "0"), 2)
            line = nvlink_line(f"{unit} {word} XC0 i0 Link 03 (0x{bits:08x} {row['error_status']} 0x0)")
            assert line is not None
            found = decoded(int(row["xid"]), line, driver)
            assert found is not None, f"line {number}"
            assert found.remote_effect == row["peer"], f"line {number}"
            assert found.recovery == {"reset": "reset", "none": "none", "read_154": None}[row["action"]], f"line {number}"


def test_sheet_is_whole_and_in_our_words() -> None:
    sheet = rows("nvlink5")
    assert {int(row["xid"]) for row in sheet} == set(NVLINK5_XIDS)
    for row in sheet:
        assert all(re.fullmatch(r"[01-]{32}", row[column]) for column in ("word_before_575", "word_since_575")), row
        assert row["severity"] in ("fatal", "nonfatal")
        assert row["action"] in ("none", "reset", "read_154")
        assert row["source"]
    assert len({(row["xid"], row["units"], row["word_since_575"], row["error_status"]) for row in sheet}) == len(sheet)
    assert (ROOT / "rca" / "catalogue" / "nvlink5.csv").read_text("ascii")
