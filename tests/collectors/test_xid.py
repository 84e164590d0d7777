"""Kernel logs: one body gives one event under every prefix; decoys give none; bursts fold; torn and hostile files do no harm."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from _house import ROOT
from _sources import FIXTURES, rows_of, source_of

from collectors import xid
from rca.causes import CAUSES

BODY = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=nvc:[driver], GPU has fallen off the bus."
AT = datetime(2026, 3, 2, 8, 12, 7, 612100, UTC)
NOTHING = {"logged_at": None, "logged_at_local": None, "uptime_s": None, "host": None}
# prefix -> what a row says of time and host
PREFIXES: dict[str, dict[str, Any]] = {
    "": {},
    "[ 1843.308145] ": {"uptime_s": 1843.308145},
    "[ 1843.308145][T12345] ": {"uptime_s": 1843.308145},
    "[ 1843.308145 <    0.000300>] ": {"uptime_s": 1843.308145},
    "<4>[2315424.098863] ": {"uptime_s": 2315424.098863},
    "kern  :err   : [ 1843.308145] ": {"uptime_s": 1843.308145},
    "[Mon Mar  2 08:12:07 2026] ": {"logged_at_local": "2026-03-02T08:12:07"},
    "[Mon Mar 2 08:12:07 2026] ": {"logged_at_local": "2026-03-02T08:12:07"},
    "[一 3月  2 08:12:07 2026] ": {"logged_at_local": "2026-03-02T08:12:07"},
    "[lun. mars  2 08:12:07 2026] ": {"logged_at_local": "2026-03-02T08:12:07"},
    "[пн мар  2 08:12:07 2026] ": {"logged_at_local": "2026-03-02T08:12:07"},
    "[จ. มี.ค.  2 08:12:07 2026] ": {"logged_at_local": "08:12:07"},
    "[  +0.000316] ": {},
    "[Mar 2 08:12] ": {},
    "2026-03-02T08:12:07,612100+00:00 ": {"logged_at": AT},
    "2026-03-02T10:12:07,612100+02:00 ": {"logged_at": AT},
    "kern  :err   : 2026-03-02T08:12:07,612100+00:00 ": {"logged_at": AT},
    "2026-03-02T08:12:07.612100Z host-a kernel: ": {"logged_at": AT, "host": "host-a"},
    "2026-03-02T10:12:07.612100+0200 HOST-A.example.org kernel: ": {"logged_at": AT, "host": "host-a"},
    "Mon 2026-03-02 08:12:07 UTC host-a kernel: ": {"logged_at": AT.replace(microsecond=0), "host": "host-a"},
    "1772439127.612100 host-a kernel: ": {"logged_at": AT, "host": "host-a"},
    "2026-03-02 08:12:07.612 ": {"logged_at_local": "2026-03-02T08:12:07.612"},
    "Mar  2 08:12:07 host-a kernel: ": {"logged_at_local": "03-02T08:12:07", "host": "host-a"},
    "Mar  2 08:12:07 host-a kernel: [ 1843.308145] ": {"logged_at_local": "03-02T08:12:07", "uptime_s": 1843.308145, "host": "host-a"},
    "Mar  2 08:12:07.612100 host-a kernel: ": {"logged_at_local": "03-02T08:12:07.612100", "host": "host-a"},
    "<3>Mar  2 08:12:07 host-a kernel: ": {"logged_at_local": "03-02T08:12:07", "host": "host-a"},
    "Feb 29 08:12:07 host-a kernel: ": {"logged_at_local": "02-29T08:12:07", "host": "host-a"},
    "april 19 09:27:03 host-a kernel: ": {"logged_at_local": "04-19T09:27:03", "host": "host-a"},
    "2 mars 08:12:07 host-a kernel: ": {"logged_at_local": "03-02T08:12:07", "host": "host-a"},
    "Mar  2 08:12:07 kernel: ": {"logged_at_local": "03-02T08:12:07"},
    "Mar  2 08:12:07 ": {"logged_at_local": "03-02T08:12:07"},
    "08:12:07  ": {"logged_at_local": "08:12:07"},
    "kernel: ": {},
    "<3>1 2026-03-02T08:12:07.612100Z host-a kernel - - - ": {"logged_at": AT, "host": "host-a"},
    '<3>1 2026-03-02T08:12:07.612100Z host-a kernel - - [meta a="b"] [ 1843.308145] ': {
        "logged_at": AT,
        "host": "host-a",
        "uptime_s": 1843.308145,
    },
    "[ 1843.308145] host-a kernel: ": {"uptime_s": 1843.308145, "host": "host-a"},
    "4,1227,437812449,-;": {"uptime_s": 437.812449},
    "4,1227,437812449,c,caller=T12;": {"uptime_s": 437.812449},
    "192.0.2.19: kern: warning: [2026-03-02T08:12:07.612100458Z]: ": {"logged_at": AT, "host": "192.0.2.19"},
    "host-a: [ 1843.308145] ": {"uptime_s": 1843.308145, "host": "host-a"},
    "host-a: ": {"host": "host-a"},
    "3: [ 1843.308145] ": {"uptime_s": 1843.308145},
    "host-a | ERROR: check failed: GPU errors found: [ 1843.308145] ": {"uptime_s": 1843.308145, "host": "host-a"},
    "host-a login: [ 1843.308145] ": {"uptime_s": 1843.308145, "host": "host-a"},
    "[gpu-health] [CRITICAL] GPU-0000: XID: ": {},
    '[found] (54 minutes ago) "': {},
    "[pod/dmesg-x/log] [ 1843.308145] ": {"uptime_s": 1843.308145},
    "> > [ 1843.308145] ": {"uptime_s": 1843.308145},
    "\x1b[33m[ 1843.308145] \x1b[0m": {"uptime_s": 1843.308145},
    "2026-03-02T08:12:07.612100458Z stderr F [ 1843.308145] ": {"logged_at": AT, "uptime_s": 1843.308145},
    "192.0.2.19: kern:     err: [2026-03-02T08:12:07.612100458Z]: ": {"logged_at": AT, "host": "192.0.2.19"},
    "17: Mar  2 08:12:07 host-a kernel: ": {"logged_at_local": "03-02T08:12:07", "host": "host-a"},
    "Jul 23 2024 07:53:55 host-a kernel: ": {"logged_at_local": "2024-07-23T07:53:55", "host": "host-a"},
    "I0302 08:12:07.612100       1 health.go:151] ": {"logged_at_local": "03-02T08:12:07.612100"},
    "[ 1843.308145] \r": {"uptime_s": 1843.308145},
}


def events_of(folder: Path, text: str, name: str = "x.log") -> list[dict[str, Any]]:
    tables, skips = rows_of(xid, source_of(folder, text.encode(), name))
    assert skips == []
    return tables["kernel_events"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_one_body_is_one_event_under_every_prefix(prefix: str, tmp_path: Path) -> None:
    text = f"{prefix}{BODY}\n"
    assert xid.claims("x", text.encode())
    (row,) = events_of(tmp_path, text)
    assert (row["kind"], row["code"], row["gpu"], row["pid"], row["num_folded"]) == ("xid", 79, "0000:3b:00", 4242, 1)
    assert row["process"] == "nvc:[driver]"
    assert row["message"].startswith("NVRM: Xid (PCI:0000:3b:00): 79")
    assert {key: row[key] for key in NOTHING} == {**NOTHING, **PREFIXES[prefix]}


def test_journal_json_gives_instant_boot_and_host_also_where_the_message_is_bytes(tmp_path: Path) -> None:
    first, second = events_of(tmp_path, (FIXTURES / "kernel_journal.json").read_text())
    assert (first["code"], first["logged_at"], first["uptime_s"], first["host"]) == (48, AT, 437.812449, "host-a")
    assert first["boot_id"] == "0123456789abcdef0123456789abcdef"
    assert (second["code"], second["record"]) == (63, "L2")


def test_broadcast_names_host_and_time_for_the_line_below_it(tmp_path: Path) -> None:
    text = "\nMessage from syslogd@host-a at Mar  2 08:12:07 ...\n"
    text += " kernel:[405108.698255] watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [python3:77]\n"
    (row,) = events_of(tmp_path, text)
    assert (row["kind"], row["device"], row["pid"], row["host"]) == ("lockup", "cpu3", 77, "host-a")
    assert (row["logged_at_local"], row["uptime_s"]) == ("03-02T08:12:07", 405108.698255)


def test_boots_of_the_journal_are_told_apart(tmp_path: Path) -> None:
    text = "".join(f"-- Boot {c * 32} --\nMar 02 08:12:07 host-a kernel: {BODY}\nMar 02 09:00:00 host-a kernel: Linux\n" for c in "ab")
    rows = events_of(tmp_path, text)
    assert [row["boot_id"] for row in rows[:1]] == ["a" * 32]


XIDS: dict[str, dict[str, Any]] = {
    "NVRM: Xid (0000:03:00): 14, Channel 00000001": {"code": 14, "gpu": "0000:03:00"},
    "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.": {
        "code": 63,
        "gpu": "0000:10:1c",
        "pid": 1896,
        "recovery": "reset",
    },
    "NVRM: Xid (PCI:0000:00:08.0): 46": {"code": 46, "gpu": "0000:00:08"},
    "NVRM: Xid (PCI:...): 13, pid=0, name=a.out, Graphics SM Warp Exception on (GPC 7, TPC 3, SM 1): Illegal Address": {
        "code": 13,
        "gpu": None,
        "pid": None,
        "process": "a.out",
        "unit": "GPC7/TPC3/SM1",
    },
    "NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 94, pid=7194, name=ray::Worker, Contained: CE User Channel (0x9). RST: No, D-RST: No": {
        "code": 94,
        "gpu": "0000:01:00",
        "process": "ray::Worker",
        "unit": "CE User Channel",
        "severity": "uncorrected",
        "recovery": "none",
    },
    "NVRM: Xid (PCI:0000:01:00): 95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No": {
        "code": 95,
        "unit": "LTC TAG",
        "recovery": "reset",
    },
    "NVRM: Xid (PCI:0000:01:00): 45, pid=7062, name=python3, Ch 00000008 caused by previous Xid 79": {"code": 45, "caused_by": 79},
    "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)": {
        "code": 154,
        "recovery": "drain_reset",
    },
    "NVRM: Xid (PCI:0008:01:00): 154 (": {"code": 154, "recovery": None},
    "NVRM: Xid (PCI:0003:00:00): 74, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)": {
        "code": 74,
        "link": 14,
    },
    "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000)": {
        "code": 149,
        "unit": "NETIR_LINK_EVT",
        "severity": "fatal",
        "link": 9,
    },
    "NVRM: Xid (PCI:0019:01:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link -1 (0x040988e2": {"code": 145, "severity": "nonfatal", "link": -1},
    "NVRM: Xid (PCI:0000:66:00): 999, pid=1234, name=test": {"code": 999, "process": "test"},
    "NVRM: Xid (PCI:0000:9b:00): 119, pid=2, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU4 GSP!": {
        "code": 119,
        "unit": "GSP",
    },
}


@pytest.mark.parametrize("line", XIDS)
def test_xid_of_every_shape(line: str, tmp_path: Path) -> None:
    (row,) = events_of(tmp_path, f"[   10.000000] {line}\n")
    assert row["kind"] == "xid"
    assert {key: row[key] for key in XIDS[line]} == XIDS[line]


OTHERS: dict[str, dict[str, Any]] = {
    "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 12028, Non-fatal, Link 44 egress non-posted PRIV error": {
        "kind": "sxid",
        "code": 12028,
        "gpu": "0000:04:00",
        "link": 44,
        "severity": "nonfatal",
    },
    "[Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 port 33": {
        "kind": "sxid",
        "code": 20034,
        "gpu": "0000:86:00",
        "link": 33,
        "severity": "fatal",
        "logged_at_local": "2024-07-23T07:53:55",
    },
    "NVRM: GPU 18:00.0: GPU has fallen off the bus.": {"kind": "bus_loss", "gpu": "0000:18:00", "code": None},
    "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error": {"kind": "bus_loss", "gpu": "0000:03:00"},
    "pcieport 0000:00:01.1: AER: Correctable error message received from 0000:01:00.0": {
        "kind": "aer",
        "device": "0000:00:01.1",
        "severity": "corrected",
    },
    "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)": {
        "kind": "aer",
        "severity": "uncorrected",
    },
    "Out of memory: Killed process 15925 ((resolved)) total-vm:1kB, anon-rss:1kB": {
        "kind": "oom",
        "pid": 15925,
        "process": "(resolved)",
        "unit": "host",
    },
    "Out of memory: Kill process 456 (python) score 50 or sacrifice child": {"kind": "oom", "pid": 456, "process": "python"},
    "Killed process 12, UID 1000, (a (b) c) total-vm:1kB": {"kind": "oom", "pid": 12, "process": "a (b) c"},
    "INFO: task kworker/u8:[x]:931150 blocked for more than 122 seconds.": {
        "kind": "hung_task",
        "pid": 931150,
        "process": "kworker/u8:[x]",
    },
    "Kernel panic - not syncing: hung_task: blocked tasks": {"kind": "panic"},
    "NMI watchdog: Watchdog detected hard LOCKUP on cpu 12": {"kind": "lockup", "device": "cpu12"},
    "pt main[25]: segfault at 7f79 ip 00007f7c sp 00007f7c error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]": {
        "kind": "segfault",
        "pid": 25,
        "process": "pt main",
        "device": "libnccl.so.2",
    },
    "mce: [Hardware Error]: Machine check events logged": {"kind": "mce"},
    "{1}[Hardware Error]:   event severity: recoverable": {"kind": "mce", "severity": "uncorrected"},
    "EDAC MC1: 262 CE memory read error on CPU_SrcID#0_Chan#1_DIMM#0 (channel:1 slot:0 -  OVERFLOW area:DRAM)": {
        "kind": "edac",
        "severity": "corrected",
        "device": "CPU_SrcID#0_Chan#1_DIMM#0",
        "is_rate_limited": True,
    },
    "CPU3: Package temperature above threshold, cpu clock throttled (total events = 1)": {"kind": "thermal", "device": "cpu3"},
    "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).": {
        "kind": "power",
        "device": "0000:5c:00.0",
    },
    "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)": {
        "kind": "nic",
        "device": "0000:5c:00.0",
    },
    "mlx5_core 0000:5c:00.0 eth0: Link down": {"kind": "nic", "device": "0000:5c:00.0"},
    "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out": {"kind": "nic", "device": "eth0"},
    "ib1: Lost carrier": {"kind": "ib", "device": "ib1"},
    "blk_update_request: I/O error, dev nvme2n1, sector 6442712256 op 0x1:(WRITE)": {"kind": "storage_nvme", "device": "nvme2n1"},
    "nvme nvme4: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff": {"kind": "storage_nvme", "device": "nvme4"},
    "EXT4-fs (md0): Remounting filesystem read-only": {"kind": "storage_nvme", "device": "md0"},
    "XFS (md127): log I/O error -5": {"kind": "storage_nvme", "device": "md127"},
    "nfs: server 192.0.2.16 not responding, still trying": {"kind": "storage_nfs", "device": "192.0.2.16"},
    "LustreError: 11-0: fs02-MDT0000-mdc-ffff: operation obd_ping to node 192.0.2.1@tcp failed: rc = -107": {
        "kind": "storage_lustre",
        "device": "fs02-MDT0000",
    },
    "NVRM: GPU 0000:b1:00.0: RmInitAdapter failed! (0x62:0xffff:2477)": {"kind": "other", "gpu": "0000:b1:00"},
    "Memory cgroup out of memory: Killed process 12, UID 48, (httpd).": {"kind": "oom", "pid": 12, "process": "httpd"},
    "nvidia: probe of 0000:05:00.0 failed with error -1": {"kind": "other", "gpu": "0000:05:00"},
    "mlx5_core 0000:03:00.0: wait_func:1151:(pid 12): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource": {"kind": "nic"},
    "mlx5_core 0000:03:00.0: poll_health:795:(pid 0): device's health compromised - reached miss count": {"kind": "nic"},
    "efa 0000:00:06.0: Admin queue is closed": {"kind": "nic", "device": "0000:00:06.0"},
    "pcieport 0000:b0:01.0: DPC: containment event, status:0x1f01 source:0x0000": {"kind": "aer", "severity": "uncorrected"},
    "Memory cgroup out of memory: Killed process 12 (pyth": {"kind": "oom", "pid": 12, "process": "pyth", "unit": "memcg"},
    "  3a | 12/14/22 | 23:09:44 CET | Memory | Correctable ECC (@DIMMA1) | Asserted": {
        "kind": "edac",
        "severity": "corrected",
        "logged_at": datetime(2022, 12, 14, 22, 9, 44, tzinfo=UTC),
    },
    "1 | 01/01/2000 | 00:15:20 | Power Supply PS1 | Failure detected () | Asserted": {
        "kind": "power",
        "logged_at_local": "2000-01-01T00:15:20",
    },
}


@pytest.mark.parametrize("line", OTHERS)
def test_other_line_of_every_kind(line: str, tmp_path: Path) -> None:
    (row,) = events_of(tmp_path, f"{line}\n")
    assert {key: row[key] for key in OTHERS[line]} == OTHERS[line]


WHOLE = (
    "[ 1843.308145] ",
    "2026-03-02T08:12:07,612100+00:00 ",
    "Mar  2 08:12:07 host-a kernel: [ 1843.308145] ",
    "4,1227,437812449,-;",
    "host-b: [  1.000000] ",
)


@pytest.mark.parametrize("prefix", WHOLE)
def test_every_body_is_the_same_event_under_any_prefix(prefix: str, tmp_path: Path) -> None:
    for line, expected in {**XIDS, **OTHERS}.items():
        if not {"logged_at", "logged_at_local"} & set(expected):
            (row,) = events_of(tmp_path, f"{prefix}{line}\n")
            assert {key: row[key] for key in expected} == expected, line


DECOYS = (
    "NVRM: _kgspLogXid119: ********************************* GSP Timeout **********************************",
    "NVRM: Xid : 32, pid=2280636",
    "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
    "NVRM: Xid PCI:0000:01:00: 43, pid=1814139",
    "NVRM: Xid (PCI:0000:66:00): \u0667\u0669, pid=1814139, GPU has fallen off the bus.",
    "Skipping non-nvmlEventTypeXidCriticalError event: {EventType:2}",
    'DCGM_FI_DEV_XID_ERRORS{gpu="0",modelName="Xid Errors (last)"} 79',
    "see the page on Xid 79 and SXid 20034 for what GPUs do when they fall off the bus",
    "NVRM: GPU4 GSP RPC buffer contains function 103 (GSP_RM_ALLOC) and data 0x0000000000002081 0x0000000000000004.",
    "nvidia-nvswitch3: open (major=510)",
    "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
    "mlx5_core 0000:5c:00.0: mlx5_cmd_out_err:838:(pid 268269): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5)",
    "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
    "veth1a2b3c4: Lost carrier",
    "EXT4-fs (nvme1n1): mounted filesystem with ordered data mode. Opts: errors=remount-ro. Quota mode: none.",
    "nvme nvme0: Shutdown timeout set to 8 seconds",
    "perf: interrupt took too long (2513 > 2500), lowering kernel.perf_event_max_sample_rate to 79500",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.",
    "1 | 01/01/2000 | 00:15:20 | Power Supply PS1 | Failure detected () | Deasserted",
    "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0: DEV 0000:64:0a.0 (INTERRUPT)",
    "pcieport 0000:00:01.0: AER: enabled with IRQ 25",
    "NVRM: The NVIDIA GPU invalid-bdf.0\nNVRM: fallen off the bus and is not responding to commands.",
)


@pytest.mark.parametrize("line", DECOYS)
def test_decoy_gives_no_event(line: str, tmp_path: Path) -> None:
    assert events_of(tmp_path, f"[   10.000000] {line}\n") == []


def test_log_without_an_event_is_claimed_and_listed_with_what_it_covers(tmp_path: Path) -> None:
    data = (FIXTURES / "kernel_quiet.log").read_bytes()
    assert xid.claims("x", data)
    tables, _ = rows_of(xid, source_of(tmp_path, data, "gpu-n18.dmesg.log"))
    assert tables["kernel_events"] == []
    (log,) = tables["host_logs"]
    assert (log["host"], log["first_uptime_s"], log["last_uptime_s"], log["num_lines"]) == ("gpu-n18", 1.000001, 33.0, 8)


def test_file_that_only_quotes_a_kernel_line_is_no_kernel_log(tmp_path: Path) -> None:
    data = f"step 1 loss 2.5\nstep 2 loss 2.4\nmonitor: {BODY}\nstep 3 loss 2.3\n".encode()
    assert xid.claims("x", data)
    tables, _ = rows_of(xid, source_of(tmp_path, data))
    assert len(tables["kernel_events"]) == 1
    assert tables["host_logs"] == []


def test_syslog_is_read_to_its_first_kernel_line_however_late_that_comes(tmp_path: Path) -> None:
    user = "Mar  2 08:00:00 host-a cron[12]: (root) CMD (true)\n" * 3000
    kernel = f"Mar  2 09:00:00 host-a kernel: {BODY}\n"
    assert xid.claims("x", user.encode()[:65536])
    tables, _ = rows_of(xid, source_of(tmp_path, (user + kernel).encode()))
    assert [row["record"] for row in tables["kernel_events"]] == ["L3001"]
    assert [row["host"] for row in tables["host_logs"]] == ["host-a"]
    tables, _ = rows_of(xid, source_of(tmp_path, user.encode()))
    assert not any(tables.values()), "nothing of the kernel was read"


def test_hosts_of_one_file_are_listed_one_by_one(tmp_path: Path) -> None:
    tables, _ = rows_of(xid, source_of(tmp_path, (FIXTURES / "kernel_syslog.log").read_bytes()))
    assert {(r["host"], r["first_at_local"], r["last_at_local"]) for r in tables["host_logs"]} == {
        ("host-a", "03-02T08:00:00", "03-02T08:12:01"),
        ("host-b", "03-02T08:20:00", "03-02T08:20:00"),
    }


def test_number_at_which_a_file_is_cut_is_no_xid(tmp_path: Path) -> None:
    line = "2026-03-02T08:00:00+00:00 node-7 kernel: NVRM: Xid (PCI:0000:9a:00): 4"
    for end, codes in (("", []), ("8", []), ("\n", [4]), ("8, pid=1", [48])):
        tables, _ = rows_of(xid, source_of(tmp_path, f"{line.replace(': 4', ': 13, x')}\n{line}{end}".encode()))
        assert [row["code"] for row in tables["kernel_events"]] == [13, *codes], end


def test_what_a_log_without_years_covers_goes_by_the_order_of_its_lines(tmp_path: Path) -> None:
    spans = {
        ("Dec 30 20:50:01", "Dec 31 12:00:00", "Jan  1 00:03:10", "Jan  2 01:00:00"): ("12-30T20:50:01", "01-02T01:00:00"),
        ("Dec 31 23:59:59", "Jan  1 00:00:01", "Dec 31 23:59:58", "Jan  1 00:00:00"): ("12-31T23:59:58", "01-01T00:00:01"),
        ("Jan 10 10:00:00", "Apr 10 10:00:00", "Aug 10 10:00:00", "Aug 10 09:59:00"): ("01-10T10:00:00", "08-10T10:00:00"),
        ("Jun  1 12:00:01", "Jun  1 12:00:00", "Jun  1 11:00:00"): ("06-01T11:00:00", "06-01T12:00:01"),
        ("2025-12-31T23:00:00", "2026-01-01T01:00:00"): ("2025-12-31T23:00:00", "2026-01-01T01:00:00"),
    }
    for stamps, span in spans.items():
        text = "".join(f"{stamp} node-7 kernel: eth0: link becomes ready\n" for stamp in stamps)
        tables, _ = rows_of(xid, source_of(tmp_path, text.encode()))
        assert [(r["first_at_local"], r["last_at_local"]) for r in tables["host_logs"]] == [span], stamps


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("gpu-n18.dmesg.log", "gpu-n18"),
        ("kernel-host12.log", "host12"),
        ("journalctl-k-gpu-a01.txt", "gpu-a01"),
        ("run/HOST-A7.example.org.kern.log.1", "host-a7"),
        ("kern.log-20260302", None),
        ("dmesg-after-crash.txt", None),
        ("dmesg.log", None),
        ("kernel-2026-03-02.log", None),
        ("obj0017", None),
        ("rank_3.kernel.log", None),
        ("kernel.old.log", None),
        ("x17-4.log", None),
    ],
)
def test_host_comes_from_the_name_only_beside_a_word_for_a_kernel_log(name: str, host: str | None, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert [row["host"] for row in events_of(tmp_path, f"[   10.000000] {BODY}\n", name)] == [host]


def test_killed_process_is_the_event_not_the_one_that_asked_for_memory(tmp_path: Path) -> None:
    rows = events_of(tmp_path, (FIXTURES / "kernel_syslog.log").read_text())
    (oom,) = [row for row in rows if row["kind"] == "oom"]
    assert (oom["pid"], oom["process"], oom["unit"], oom["num_folded"], oom["record"]) == (5120, "pt_data_worker", "memcg", 3, "L3")
    assert oom["uptime_s"] == 7320.12


def test_cut_log_keeps_an_out_of_memory_whose_victim_is_not_told(tmp_path: Path) -> None:
    (row,) = events_of(tmp_path, "[   10.000000] python3 invoked oom-killer: gfp_mask=0xcc0, order=0\n")
    assert (row["kind"], row["pid"], row["process"]) == ("oom", None, None)


def test_three_lines_of_a_switch_fault_are_one_row_per_link(tmp_path: Path) -> None:
    switch = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, "
    lines = [
        *("Fatal, Link 63 LTSSM Fault Up", "Data {0x10000000}", "Fatal, Link 62 LTSSM Fault Up"),
        *("Severity 1 Engine instance 62 Sub-engine instance 00", "Severity 1 Engine instance 63 Sub-engine instance 00"),
    ]
    rows = events_of(tmp_path, "".join(f"[  10.00{n}000] {switch}{line}\n" for n, line in enumerate(lines)))
    assert [(row["link"], row["num_folded"], row["severity"]) for row in rows] == [(63, 3, "fatal"), (62, 2, "fatal")]


def test_switch_fault_begins_with_its_first_line_whichever_that_is(tmp_path: Path) -> None:
    (row,) = [row for row in events_of(tmp_path, (FIXTURES / "kernel_syslog.log").read_text()) if row["kind"] == "sxid"]
    assert (row["host"], row["uptime_s"], row["link"], row["num_folded"]) == ("host-b", 1000.0, 37, 3)
    assert "Link 37" in row["message"]


def test_loss_from_the_bus_is_told_once_with_or_without_its_number(tmp_path: Path) -> None:
    lost, gpu = "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", "0000:3b:00"
    for lines in ((BODY, lost), (lost, BODY)):
        (row,) = events_of(tmp_path, "".join(f"[   1.00000{n}] {line}\n" for n, line in enumerate(lines)))
        assert (row["kind"], row["code"], row["gpu"], row["num_folded"], row["uptime_s"]) == ("xid", 79, gpu, 2, 1.0)
    three = "[   7.000000] NVRM: The NVIDIA GPU 0000:3b:00.0\nNVRM: (PCI ID: 10de:2901) installed in this system has\n"
    three += "NVRM: fallen off the bus and is not responding to commands.\n"
    (row,) = events_of(tmp_path, three)
    assert (row["kind"], row["gpu"], row["uptime_s"], row["record"]) == ("bus_loss", gpu, 7.0, "L1")


def test_burst_is_one_row_and_a_later_one_another(tmp_path: Path) -> None:
    seconds = [0, 10, 20, 100, 101]
    (first, second) = events_of(tmp_path, "".join(f"[{100 + s}.000000] {BODY}\n" for s in seconds))
    assert (first["num_folded"], second["num_folded"], second["record"]) == (3, 2, "L4")


def test_burst_that_does_not_end_gets_a_row_each_ten_minutes(tmp_path: Path) -> None:
    rows = events_of(tmp_path, "".join(f"[{1000 + s}.000000] {BODY}\n" for s in range(0, 1800, 20)))
    assert [row["num_folded"] for row in rows] == [31, 31, 28]


def test_reversed_file_keeps_the_earliest_stamp(tmp_path: Path) -> None:
    (row,) = events_of(tmp_path, "".join(f"Mar  2 08:12:{s:02d} host-a kernel: {BODY}\n" for s in (9, 8, 7)))
    assert (row["logged_at_local"], row["num_folded"], row["record"]) == ("03-02T08:12:07", 3, "L1")


def test_repeats_that_syslog_counts_are_counted(tmp_path: Path) -> None:
    line = "Mar  2 08:12:07 host-a kernel: "
    (row,) = events_of(tmp_path, f"{line}{BODY}\n{line}message repeated 41 times: [ {BODY}]\n")
    assert row["num_folded"] == 42


def test_limited_printing_marks_the_count_as_a_lower_bound(tmp_path: Path) -> None:
    timeout = "NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=a, Timeout after 6s of waiting for RPC response from GPU4 GSP!"
    limit = "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30)."
    (row,) = events_of(tmp_path, f"[  1.000000] {timeout}\n[  2.000000] {limit}\n")
    assert (row["num_folded"], row["is_rate_limited"]) == (1, True)


def test_units_and_verdicts_that_differ_are_not_merged_into_one_claim(tmp_path: Path) -> None:
    sm = "NVRM: Xid (PCI:0000:3b:00): 13, pid=1, name=a, Graphics SM Warp Exception on (GPC {0}, TPC 0, SM 0): Illegal Address"
    (row,) = events_of(tmp_path, "".join(f"[  1.00000{n}] {sm.format(n)}\n" for n in range(3)))
    assert (row["unit"], row["num_folded"]) == ("several", 3)
    verdict = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x{0} (x) to 0x{1} (y)"
    rows = events_of(tmp_path, "".join(f"[  1.00000{n}] {verdict.format(n, 1 - n)}\n" for n in range(2)))
    assert [row["recovery"] for row in rows] == ["reset", "none"]


def test_good_news_count_only_beside_the_trouble_they_end(tmp_path: Path) -> None:
    bad, good = "nfs: server host-s not responding, timed out", "nfs: server host-s OK"
    (row,) = events_of(tmp_path, f"{good}\n{bad}\n{good}\n")
    assert (row["kind"], row["num_folded"], row["recovery"]) == ("storage_nfs", 2, "none")


def test_event_at_any_place_of_a_large_file_is_found_with_its_line(tmp_path: Path) -> None:
    quiet = "[    1.000000] audit: type=1400 caf\u00e9\n".encode() + b"[    1.000001] \xff\xfe torn\n"
    data = quiet * 60_000 + f"[   10.000000] {BODY}".encode()
    tables, _ = rows_of(xid, source_of(tmp_path, data))
    assert [row["record"] for row in tables["kernel_events"]] == ["L120001"]
    assert [row["num_lines"] for row in tables["host_logs"]] == [120_001]


def test_endless_line_does_no_harm_and_hides_no_later_one(tmp_path: Path) -> None:
    data = b"[    1.000000] " + b"Xid (" * 1_000_000 + b"\n" + f"[   10.000000] {BODY}\n".encode()
    tables, _ = rows_of(xid, source_of(tmp_path, data))
    assert [row["record"] for row in tables["kernel_events"]] == ["L2"]


def test_line_that_no_clock_can_hold_keeps_its_event(tmp_path: Path) -> None:
    for stamp in ("2026-13-45T99:99:99Z ", "Feb 31 25:61:61 host-a kernel: ", "1,2,999999999999999999,-;"):
        assert [row["code"] for row in events_of(tmp_path, f"{stamp}{BODY}\n")] == [79]


def test_entry_of_the_journal_with_values_of_wrong_kinds_does_no_harm(tmp_path: Path) -> None:
    for entry in (
        {"MESSAGE": BODY, "__REALTIME_TIMESTAMP": 1e300, "_BOOT_ID": 7, "_HOSTNAME": []},
        {"MESSAGE": BODY, "__REALTIME_TIMESTAMP": "99999999999999999999", "_HOSTNAME": None},
        {"MESSAGE": {"Xid": BODY}},
        {"MESSAGE": [300, -1], "x": BODY},
    ):
        rows_of(xid, source_of(tmp_path, json.dumps(entry).encode()))


@pytest.mark.parametrize("name", ["xid", "sxid"])
def test_catalogue_of_codes_uses_our_words_and_names_each_code_once(name: str) -> None:
    rows = catalogue(name)
    assert len({row["code"] for row in rows}) == len(rows) > 80
    assert {row["role"] for row in rows} <= {"root", "application", "consequence", "either", "repair", "info"}
    assert {row["cause"] for row in rows} <= {*CAUSES, ""}
    assert all(row["name"] and row["layer"] and row["policy"] and row["source"] for row in rows)


def test_catalogue_of_lines_has_for_every_rule_a_word_to_find_it_by_and_who_says_it() -> None:
    rows = catalogue("kernel_lines")
    assert all(len(marker) > 3 for row in rows for marker in row["markers"].split("|"))
    assert all(row["said_by"] for row in rows)


def catalogue(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((ROOT / "rca" / "catalogue" / f"{name}.csv").read_text().splitlines()))


@pytest.mark.parametrize(
    "prefix",
    [
        "Mar  2 08:12:07 host-a python[7531]: my text says ",
        "Mar  2 08:12:07 host-a python[7531]: ",
        "Mar  2 08:12:07 host-a python[7531]: kernel: ",
        "Mar  2 08:12:07 host-a python[7531]: [ 1843.308145] ",
        "Mar  2 08:12:07 host-a trainer: my text says ",
        "2026-03-02T08:12:07.612100Z host-a train.sh[12]: seen: kernel: ",
        "<14>1 2026-03-02T08:12:07.612100Z host-a python 7531 - - ",
        "[ 1843.308145] python[7531]: my text says ",
        "<12>[ 1843.308145] ",
        "12,1227,437812449,-;",
        "12,1227,437812449,-;python[7531]: ",
        "user  :warn  : [ 1843.308145] ",
        '{"_TRANSPORT": "stdout", "SYSLOG_IDENTIFIER": "python", "_HOSTNAME": "host-a", "MESSAGE": "kernel: ',
    ],
)
def test_a_program_that_writes_the_drivers_words_is_not_the_driver(prefix: str, tmp_path: Path) -> None:
    kernel = "Mar  2 08:12:07 host-a kernel: Linux\n"
    assert events_of(tmp_path, f"{kernel}{prefix}{BODY}" + ('"}\n' if prefix[0] == "{" else "\n")) == []


def test_a_program_says_nothing_of_other_faults_either(tmp_path: Path) -> None:
    bodies = (
        "Out of memory: Killed process 12 (python), UID 0",
        "x invoked oom-killer: gfp_mask=0xcc0",
        "nvidia-nvswitch0: SXid (PCI:0000:04:00.0): 20034, Fatal, Link 30",
    )
    assert events_of(tmp_path, "".join(f"Mar  2 08:12:07 host-a app[7]: {body}\n" for body in bodies)) == []


def test_a_log_of_programs_alone_is_no_kernel_log_that_was_read(tmp_path: Path) -> None:
    lines = "".join(f"Mar  2 08:12:0{s} host-a python[7531]: kernel: step {s}\n" for s in range(9))
    tables, _ = rows_of(xid, source_of(tmp_path, lines.encode(), "x.log"))
    assert tables.get("host_logs", []) == []


@pytest.mark.parametrize(
    "prefix",
    [
        "Mar  2 08:12:07 host-a nvidia-fabricmanager[812]: ",
        "Mar  2 08:12:07 host-a nv-hostengine[812]: seen ",
        "Mar  2 08:12:07 host-a nhc[812]: check failed: ",
        "Mar  2 08:12:07 host-a node-problem-detector[1]: ",
        "Mar  2 08:12:07 host-a dcgm-exporter: new: ",
        "<30>1 2026-03-02T08:12:07.612100Z host-a gpu-health 7531 - - ",
        "30,1227,437812449,-;dmesg[3]: ",
        '{"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "nvidia-fabricmanager", "_HOSTNAME": "host-a", "MESSAGE": "',
    ],
)
def test_daemons_that_watch_the_hardware_pass_on_what_the_driver_says(prefix: str, tmp_path: Path) -> None:
    (row,) = events_of(tmp_path, f"{prefix}{BODY}" + ('"}\n' if prefix[0] == "{" else "\n"))
    assert (row["kind"], row["code"], row["pid"]) == ("xid", 79, 4242)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_log_with_garbage_is_read_before_it_and_after_it(at: int, tmp_path: Path) -> None:
    lines = [f"[ 1843.30814{n}] NVRM: Xid (PCI:0000:3b:00): {code}, pid=42\n".encode() for n, code in enumerate((48, 63))]
    lines.insert(at, bytes(n * 37 % 256 for n in range(300)) + b"\n")
    data = b"".join(lines)
    assert xid.claims("x", data)
    tables, skips = rows_of(xid, source_of(tmp_path, data))
    assert [row["code"] for row in tables["kernel_events"]] == [48, 63]
    assert skips
    assert all(row["record"][1:].isdigit() and b"Xid" in data.split(b"\n")[int(row["record"][1:]) - 1] for row in tables["kernel_events"])
    assert "garbage" in skips[0].why


def test_a_log_as_windows_tools_write_it_is_read(tmp_path: Path) -> None:
    text = f"[    1.000000] Linux\r\n[ 1843.308145] {BODY}\r\n"
    source = source_of(tmp_path, text.encode("utf-16"))
    assert xid.claims("x", source.head)
    tables, skips = rows_of(xid, source)
    assert [(row["record"], row["code"], row["pid"]) for row in tables["kernel_events"]] == [("L2", 79, 4242)]
    assert skips == []
