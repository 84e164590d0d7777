"""Kernel logs: every body under every prefix is the same event with the time that this prefix tells; glued, cut, shuffled and reversed logs."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from _sources import rows_of, source_of

from collectors import xid

AT = datetime(2026, 3, 2, 8, 12, 7, 612100, UTC)
WHOLE = AT.replace(microsecond=0)
DAY = "2026-03-02T08:12:07"
UP = 1843.308145
Said = dict[str, Any]  # what a prefix tells: at, local, up, host

FORMS: dict[str, Said] = {
    # dmesg
    "": {},
    "[ 1843.308145] ": {"up": UP},
    "[ 1843.308145][T12345] ": {"up": UP},
    "[ 1843.308145] [   T12] ": {"up": UP},
    "[ 1843.308145 <    0.000300>] ": {"up": UP},
    "[  +0.000316] ": {},
    "[Mar 2 08:12] ": {},
    "kern  :err   : [  +0.000316] ": {},
    "[Mon Mar  2 08:12:07 2026] ": {"local": DAY},
    "[Mon Mar  2 08:12:07 2026 <    0.000300>] ": {"local": DAY},
    "kern  :warn  : [Mon Mar  2 08:12:07 2026] ": {"local": DAY},
    "2026-03-02T08:12:07,612100+00:00 ": {"at": AT},
    "kern  :err   : 2026-03-02T09:12:07,612100+01:00 ": {"at": AT},
    "2026-03-02T01:12:07,612100-07:00 ": {"at": AT},
    "\x1b[32m[ 1843.308145] \x1b[0m\x1b[33m": {"up": UP},
    # /dev/kmsg, pstore, consoles
    "3,1227,1843308145,-;": {"up": UP},
    "3,1227,1843308145,c,caller=T12;": {"up": UP},
    "<3>[ 1843.308145] ": {"up": UP},
    "host-a login: [ 1843.308145] ": {"up": UP, "host": "host-a"},
    "2026-03-02T08:12:07.612100+00:00 host-a [ 1843.308145] ": {"at": AT, "up": UP, "host": "host-a"},
    # the journal
    "Mar 02 08:12:07 host-a kernel: ": {"local": "03-02T08:12:07", "host": "host-a"},
    "Mar 02 08:12:07.612100 host-a kernel: ": {"local": "03-02T08:12:07.612100", "host": "host-a"},
    "2026-03-02T09:12:07+0100 host-a kernel: ": {"at": WHOLE, "host": "host-a"},
    "2026-03-02T09:12:07.612100+0100 host-a kernel: ": {"at": AT, "host": "host-a"},
    "[ 1843.308145] host-a kernel: ": {"up": UP, "host": "host-a"},
    "[ 1843.308145 <    0.000030 >] host-a kernel: ": {"up": UP, "host": "host-a"},
    "1772439127.612100 host-a kernel: ": {"at": AT, "host": "host-a"},
    "2026-03-02T09:12:07+0100 kernel: ": {"at": WHOLE},
    "1772439127.612100 kernel: ": {"at": AT},
    "Mon 2026-03-02 08:12:07 UTC host-a kernel: ": {"at": WHOLE, "host": "host-a"},
    "Mon 2026-03-02 09:12:07 CET host-a kernel: ": {"at": WHOLE, "host": "host-a"},
    "Mon 2026-03-02 00:12:07 PST host-a kernel: ": {"at": WHOLE, "host": "host-a"},
    "Mon 2026-03-02 16:12:07 +08 host-a kernel: ": {"at": WHOLE, "host": "host-a"},
    "Mon 2026-03-02 08:12:07 CST host-a kernel: ": {"local": DAY, "host": "host-a"},  # of two continents
    "Mär 02 08:12:07 host-a kernel: ": {"local": "03-02T08:12:07", "host": "host-a"},
    "3月 02 08:12:07 host-a kernel: ": {"local": "03-02T08:12:07", "host": "host-a"},
    "мар 02 08:12:07 host-a kernel: ": {"local": "03-02T08:12:07", "host": "host-a"},
    "[четв. 2 мар 08:12:07 2026] ": {"local": DAY},
    "Mar 29 15:38:59 kernel: ": {"local": "03-29T15:38:59"},
    "Sep 18 20:07:01 ": {"local": "09-18T20:07:01"},
    "kernel: ": {},
    "   kernel:[405108.698255] ": {"up": 405108.698255},
    # syslog
    "Mar  2 08:12:07 host-a kernel: [ 1843.308145] ": {"local": "03-02T08:12:07", "up": UP, "host": "host-a"},
    "<3>Mar  2 08:12:07 host-a kernel: ": {"local": "03-02T08:12:07", "host": "host-a"},
    "Mar  2 08:12:07 host-a kern.err kernel: ": {"local": "03-02T08:12:07", "host": "host-a"},
    "Mon Mar  2 08:12:07 2026 kern.err kernel: [ 1843.308145] ": {"local": DAY, "up": UP},
    "Mar  2 2026 08:12:07 host-a kernel: ": {"local": DAY, "host": "host-a"},
    "2026 Mar  2 08:12:07 host-a kernel: ": {"local": DAY, "host": "host-a"},
    "2026-03-02T10:12:07.612100+02:00 host-a kernel: ": {"at": AT, "host": "host-a"},
    "2026-03-02T10:12:07.612100+02:00 HOST-A.example.org kernel: [ 1843.308145] ": {"at": AT, "up": UP, "host": "host-a"},
    "<3>1 2026-03-02T08:12:07.612100Z host-a kernel - - - ": {"at": AT, "host": "host-a"},
    "<3>1 2026-03-02T08:12:07.612100Z host-a kernel - - -  [ 1843.308145]  ": {"at": AT, "up": UP, "host": "host-a"},
    '<3>1 2026-03-02T08:12:07.612100Z host-a kernel - - [timeQuality tzKnown="1"] [ 1843.308145] ': {"at": AT, "up": UP, "host": "host-a"},
    # Talos, containers, tools that pass lines on
    "192.0.2.19: kern: warning: [2026-03-02T08:12:07.612100481Z]: ": {"at": AT, "host": "192.0.2.19"},
    "host-a: [ 1843.308145] ": {"up": UP, "host": "host-a"},
    "host-a:[ 1843.308145] ": {"up": UP, "host": "host-a"},
    "/var/log/kern.log.1:Mar  2 08:12:07 host-a kernel: ": {"local": "03-02T08:12:07", "host": "host-a"},
    "kern.log:123:Mar  2 08:12:07 host-a kernel: ": {"local": "03-02T08:12:07", "host": "host-a"},
    "host-a | ERROR: check failed: GPU errors found: [ 1843.308145] ": {"up": UP, "host": "host-a"},
    "dmesg-1  | 2026-03-02T08:12:07.612100Z [ 1843.308145] ": {"at": AT, "up": UP},
    "2026-03-02T08:12:07.612100458Z stdout F [ 1843.308145] ": {"at": AT, "up": UP},
    "[pod/dmesg-x/log] [ 1843.308145] ": {"up": UP},
    "I0302 08:12:07.612100       1 health.go:151] ": {"local": "03-02T08:12:07.612100"},
    "[rank4]:[E302 08:12:07.612100458 Some.cpp:15] ": {"local": "03-02T08:12:07.612100"},
    "2026/03/02 08:12:07 ERROR ": {"local": DAY},
    "Mon Mar  2 08:12:07 2026 ": {"local": DAY},
    "12m         Warning   TaskHung   node/host-a   ": {"host": "host-a"},
    "default   3m20s (x4 over 61m)   Warning   OOMKilling   node/host-a   ": {"host": "host-a"},
    "  Warning  OOMKilling  12m (x4 over 3h)  kernel-monitor  ": {},
    "> > [ 1843.308145] ": {"up": UP},
    "  17: Mar  2 08:12:07 host-a kernel: ": {"local": "03-02T08:12:07", "host": "host-a"},
    "XidError   True   Mon, 02 Mar 2026 09:30:00 +0000   Mon, 02 Mar 2026 08:12:07 +0000   XidErrorFound   ": {"at": WHOLE},
}

BODIES: dict[str, Said] = {
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=42, name=nvc:[driver], GPU has fallen off the bus.": {
        "kind": "xid",
        "code": 79,
        "gpu": "0000:3b:00",
        "pid": 42,
        "process": "nvc:[driver]",
    },
    "NVRM: Xid (0000:03:00): 14, Channel 00000001": {"kind": "xid", "code": 14, "gpu": "0000:03:00", "pid": None},
    "NVRM: Xid (PCI:0000:09:00): 79, pid=0, GPU has fallen off the bus.": {"kind": "xid", "code": 79, "pid": None, "process": None},
    "NVRM: Xid (PCI:0000:38:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception: ESR 0x546fb0=0x11f000e": {
        "kind": "xid",
        "code": 13,
        "pid": None,
        "process": None,
    },
    "NVRM: Xid (PCI:000d:00:00): 31, pid=9, name=re8.exe, channel 0x00000008, intr 0. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_8 faulted": {
        "kind": "xid",
        "code": 31,
        "gpu": "000d:00:00",
        "process": "re8.exe",
        "unit": "GRAPHICS GPCCLIENT_T1_8",
    },
    "NVRM: Xid (PCI:0000:01:00): 45, pid=7, name=ray::Worker[a], Ch 00000008 caused by previous Xid 31": {
        "kind": "xid",
        "code": 45,
        "caused_by": 31,
        "process": "ray::Worker[a]",
    },
    "NVRM: Xid (PCI:0000:01:00): 62, 223b6a66 00002100 00000000 20662342 20662ba6 20664272 2065f7ca 2063f48c": {"kind": "xid", "code": 62},
    "NVRM: Xid (PCI:0000:3f:00): 46": {"kind": "xid", "code": 46},
    "NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:01): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No": {
        "kind": "xid",
        "code": 94,
        "gpu": "0000:01:00",
        "unit": "CE User Channel",
        "recovery": "none",
    },
    "NVRM: Xid (PCI:0000:01:00): 95, Uncontained: FBHUB. RST: Yes, D-RST: Yes": {"kind": "xid", "code": 95, "recovery": "drain_reset"},
    "NVRM: Xid (PCI:0000:00:05): 63, Row Remapper: New row marked for remapping, reset gpu to activate.": {
        "kind": "xid",
        "code": 63,
        "gpu": "0000:00:05",
        "recovery": "reset",
    },
    "NVRM: Xid (PCI:0000:9b:00): 119, pid=2, name=nvidia-smi, Timeout waiting for RPC from GSP4! Expected function 76 (GSP_RM_CONTROL) (0x0 0x4)": {
        "kind": "xid",
        "code": 119,
        "unit": "GSP",
        "pid": 2,
    },
    "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)": {
        "kind": "xid",
        "code": 154,
        "gpu": "0008:01:00",
        "recovery": "reboot",
    },
    "NVRM: Xid (PCI:0018:01:00): 149, pid=3, name=a, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000 0x0 0x0 0x0)": {
        "kind": "xid",
        "code": 149,
        "unit": "NETIR_LINK_EVT",
        "severity": "fatal",
        "link": 9,
        "sub_code": 37,
        "recovery": None,
    },
    "NVRM: Xid (PCI:0019:01:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link -1 (0x040988e2": {
        "kind": "xid",
        "code": 145,
        "severity": "nonfatal",
        "link": -1,
        "sub_code": 0,
    },
    "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 12028, Non-fatal, Link 44 egress non-posted PRIV error": {
        "kind": "sxid",
        "code": 12028,
        "gpu": "0000:04:00",
        "link": 44,
        "severity": "nonfatal",
    },
    "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.": {"kind": "bus_loss", "gpu": "0000:18:00", "code": None},
    r"NVRM: The NVIDIA GPU 0000:18:00.0\x0aNVRM: (PCI ID: 10de:2901) installed in this system has\x0aNVRM: fallen off the bus and": {
        "kind": "bus_loss",
        "gpu": "0000:18:00",
    },
    "pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: id=0018": {
        "kind": "aer",
        "severity": "fatal",
        "device": "0000:00:03.0",
    },
    "nvme 0000:c1:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)": {"kind": "aer", "severity": "corrected"},
    "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature": {"kind": "nic", "device": "0000:5c:00.0"},
    "mlx5_core 0000:5c:00.0 eth0: TX timeout on queue: 5, SQ: 0x11ec, CQ: 0x146d": {"kind": "nic", "device": "0000:5c:00.0"},
    "mlx5_core 0000:5c:00.0 mlx5_3: Port: 1 Link DOWN": {"kind": "nic", "device": "0000:5c:00.0"},
    "igb 0000:02:00.1: Detected Tx Unit Hang": {"kind": "nic", "device": "0000:02:00.1"},
    "i40e 0000:86:00.0 ens1f0: tx_timeout: VSI_seid: 396, Q 31, NTC: 0x1cb, HWB: 0x1cb": {"kind": "nic", "device": "0000:86:00.0"},
    "nvidia 0000:3b:00.0: aer_status: 0x00000040, aer_mask: 0x00002000": {"kind": "aer", "device": "0000:3b:00.0", "severity": None},
    "nvidia 0000:3b:00.0: aer_uncor_status: 0x00004000, aer_uncor_mask: 0x00100000": {"kind": "aer", "severity": "uncorrected"},
    "pcieport 0000:16:00.0: pciehp: Slot(5): Power fault": {"kind": "power", "device": "0000:16:00.0"},
    "nvme nvme6: failed nvme_keep_alive_end_io error=10": {"kind": "storage_nvme", "device": "nvme6"},
    "nvme nvme6: starting error recovery": {"kind": "storage_nvme", "device": "nvme6"},
    "Lustre: fs02-OST0001: haven't heard from client 1-2 (at 192.0.2.1@o2ib) in 227 seconds. I think it's dead, and I am evicting it.": {
        "kind": "storage_lustre",
        "device": "fs02-OST0001",
    },
    "efa 0000:9f:00.0: Reset didn't turn on": {"kind": "nic", "device": "0000:9f:00.0"},
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,task_memcg=/kubepods/pod1,task=pt_data(1),pid=42,uid=0": {
        "kind": "oom",
        "pid": 42,
        "process": "pt_data(1)",
        "unit": "memcg",
    },
    "Memory cgroup out of memory: Killed process 42 ((resolved)) total-vm:1kB": {"kind": "oom", "pid": 42, "process": "(resolved)"},
    "INFO: task kworker/u8:[x]:931150 blocked for more than 122 seconds.": {"kind": "hung_task", "pid": 931150},
    "watchdog: BUG: soft lockup - CPU#7 stuck for 23s! [kworker/3:1:25222]": {"kind": "lockup", "device": "cpu7", "pid": 25222},
    "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-... } 6531 jiffies": {"kind": "lockup"},
    "Kernel panic - not syncing: Fatal Machine check": {"kind": "panic"},
    "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7: be00": {"kind": "mce", "severity": "uncorrected", "device": "cpu3"},
    "EDAC MC1: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1)": {"kind": "edac", "severity": "uncorrected"},
    "nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller": {"kind": "storage_nvme", "device": "nvme4"},
    "XFS (md127): log I/O error -5": {"kind": "storage_nvme", "device": "md127"},
    "nfs: server host-s not responding, still trying": {"kind": "storage_nfs", "device": "host-s"},
    "LustreError: 11-0: fs02-MDT0000-mdc-ffff: operation obd_ping to node 192.0.2.1@tcp failed: rc = -107": {"kind": "storage_lustre"},
    "pt_main_thread[25]: segfault at 8 ip 00007f sp 00007f error 4 in libnccl.so.2[7f+1] likely on CPU 3 (core 3, socket 0)": {
        "kind": "segfault",
        "pid": 25,
        "device": "libnccl.so.2",
    },
    "CPU3: Core temperature above threshold, cpu clock throttled (total events = 1)": {"kind": "thermal", "device": "cpu3"},
    "amdgpu 0000:68:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!": {"kind": "other", "gpu": "0000:68:00"},
    "NVRM: GPU 0000:b1:00.0: RmInitAdapter failed! (0x62:0xffff:2477)": {"kind": "other", "gpu": "0000:b1:00"},
}


def told(*lines: str) -> list[dict[str, Any]]:
    """Rows of the lines of one log; without a file, which is what takes time."""
    reader = xid._Reader(None)
    for number, line in enumerate(lines, 1):
        reader.take(line, number)
    return reader.take_rows()


def stamp(said: Said) -> dict[str, Any]:
    return {"logged_at": said.get("at"), "logged_at_local": said.get("local"), "uptime_s": said.get("up"), "host": said.get("host")}


def test_every_body_is_the_same_event_under_every_prefix_which_alone_tells_time_and_host() -> None:
    for prefix, said in FORMS.items():
        for body, expected in BODIES.items():
            (row,) = told(prefix + body)
            assert {key: row[key] for key in expected} == expected, (prefix, body)
            assert {key: row[key] for key in stamp({})} == stamp(said), (prefix, body)


@pytest.mark.parametrize("prefix", [*FORMS])
def test_a_file_of_one_line_is_a_kernel_log_in_every_form(prefix: str, tmp_path: Path) -> None:
    line = f"{prefix}{next(iter(BODIES))}\n".encode()
    assert xid.claims("x", line)
    tables, skips = rows_of(xid, source_of(tmp_path, line))
    assert (len(tables["kernel_events"]), skips) == (1, [])


DECOYS = (
    "NVRM: _kgspLogXid119: ********************************* GSP Timeout **********************************",
    "NVRM: GPU4 GSP RPC buffer contains function 103 (GSP_RM_ALLOC) and data 0x0000000000002081 0x0000000000000004.",
    "NVRM: Xid : 32, pid=2280636",
    "NVRM: Xid PCI:0000:01:00: 43, pid=1814139",
    "NVRM: Xid (PCI:%s): 79, GPU has fallen off the bus",
    "NVRM: Xid (PCI:0000:3b:00): 7\x009, pid=1",
    "NVRM: Xid (PCI:0000:3b:00): 7{9, pid=1",
    "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 120",
    "NVRM: Xid (PCI:.*): 79",
    "Xid (79): 3 times",
    "Common Xid (errors): 13, 31 and 43",
    "Xid Errors: 79, SXid 20034",
    'DCGM_FI_DEV_XID_ERRORS{gpu="0",pci_bus_id="00000000:3B:00.0",err_code="79",err_msg="GPU has fallen off the bus"} 79',
    'dcgm_xid_errors_total{xid="79"} 3',
    "Skipping non-nvmlEventTypeXidCriticalError event: {EventType:2}",
    "XID 149.37 (err status 0x00000000) NETIR Error detected on GPU PCI:0000:00:00",
    "pcieport 0000:00:01.0: AER: enabled with IRQ 25",
    "Memory cgroup out of memory: OOM victim 42 (python3) is already exiting. Skip killing the task",
    "mlx5_core 0000:5c:00.0: mlx5_cmd_out_err:838:(pid 2): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5)",
)


def test_what_only_looks_like_an_event_is_none_under_any_prefix() -> None:
    for prefix in FORMS:
        for body in DECOYS:
            assert told(prefix + body) == [], (prefix, body)


BODY = "NVRM: Xid (PCI:0000:3b:00): 79, pid=42, name=a, GPU has fallen off the bus."
QUOTED = (  # texts that speak of the driver's line; nobody saw it happen
    f"The line `{BODY}` means that a GPU no longer answers.",
    f"For example {BODY}",
    f"e.g. {BODY}",
    f"| `{BODY}` | GPU lost |",
    f'grep "{BODY}" /var/log/kern.log',
    f"$ dmesg | grep '{BODY}'",
    f'assert parse("{BODY}") == 79',
    f'  "example": "{BODY}",',
    f"    pattern: '{BODY}'",
    json.dumps({"pattern": BODY, "severity": "fatal"}),
    json.dumps({"checks": [{"regex": BODY}]}),
    f"2026-03-02 08:12:07,612 [INFO] train: my text says {BODY}",
    f"Mar  2 08:12:07 host-a python[7]: {BODY}",
)


def test_prose_programs_and_settings_that_quote_the_driver_report_nothing() -> None:
    for line in QUOTED:
        assert told(line) == [], line


PASSED_ON = {  # lines of tools that report what they saw, and of logs without the kernel's tag -> host
    f"Sep 18 20:07:01 host-a {BODY}": "host-a",
    f'[found] (54 minutes ago) "{BODY}"': None,
    f"[gpu-health] [CRITICAL] GPU-0000: XID: {BODY}": None,
    f"kernel-monitor: Events:[{{Timestamp:2026-03-02 08:12:07.6 +0000 UTC m=+12.5 Reason:XidError Message:{BODY}": None,
    json.dumps({"level": "warn", "msg": "known xid", "line": f"kern  :err   : 2026-03-02T08:12:07,612100+00:00 {BODY}"}): None,
    json.dumps({"log": f"[ 1843.308145] {BODY}\n", "stream": "stdout", "kubernetes": {"host": "host-a"}}): "host-a",
    json.dumps({"log": json.dumps({"message": BODY, "nodeName": "host-a"})}): "host-a",
    json.dumps({"msg": "received", "events": [{"errorCode": ["13"], "message": BODY, "nodeName": "host-a"}]}): "host-a",
    json.dumps({"jsonPayload": {"message": BODY}, "resource": {"labels": {"node_name": "host-a"}}, "xid": 94}): "host-a",
    f"ErrorCode:79 PCI:0000:3b:00 GPU_UUID:GPU-0000 kernel: [ 1843.308145] {BODY} Recommended Action=REBOOT;": None,
}


def test_tools_that_pass_a_line_on_are_believed_and_the_lines_own_code_counts() -> None:
    for line, host in PASSED_ON.items():
        (row,) = told(line)
        assert (row["code"], row["gpu"], row["host"]) == (79, "0000:3b:00", host), line


def test_each_line_of_the_driver_that_a_tool_strings_together_is_told_once() -> None:
    other = BODY.replace(": 79,", ": 94,")
    both = f"condition Message:ErrorCode:79 kernel: [ 1843.308145] {BODY} Action=REBOOT;ErrorCode:94 kernel: [ 1850.500000] {other} Action=NONE;"
    assert [(row["code"], row["uptime_s"], row["num_folded"]) for row in told(both)] == [(79, UP, 1), (94, 1850.5, 1)]
    (row,) = told(f'level=warn line="{BODY}" msg="{BODY}"')
    assert (row["code"], row["num_folded"]) == (79, 1)
    assert [row["code"] for row in told(f"[found] {BODY} as in the example: {other}")] == [79]


def test_port_that_is_active_again_counts_only_beside_its_loss() -> None:
    down, up = ("mlx5_core 0000:60:00.0 mlx5_3: Port: 1 Link " + word for word in ("DOWN", "ACTIVE"))
    assert told(up) == []
    assert [(row["kind"], row["recovery"], row["num_folded"]) for row in told(down, up)] == [("nic", "none", 2)]


JOURNAL = {
    "export": f"__CURSOR=s=1\n__REALTIME_TIMESTAMP=1772439127612100\n_TRANSPORT=kernel\n_HOSTNAME=host-a\nMESSAGE={BODY}\n_BOOT_ID={'a' * 32}\n\n",
    "verbose": f"Mon 2026-03-02 08:12:07.612100 UTC [s={'0' * 32};i=1;b={'a' * 32};m=1;t=1;x=1]\n    _TRANSPORT=kernel\n    _HOSTNAME=host-a\n"
    f"    MESSAGE={BODY}\n    _BOOT_ID={'a' * 32}\n",
    "json-pretty": '{\n\t"_HOSTNAME" : "host-a",\n\t"_TRANSPORT" : "kernel",\n\t"__REALTIME_TIMESTAMP" : "1772439127612100",\n'
    f'\t"MESSAGE" : "{BODY}",\n\t"_BOOT_ID" : "{"a" * 32}"\n}}\n',
    "json": json.dumps(
        {"MESSAGE": BODY, "__REALTIME_TIMESTAMP": "1772439127612100", "_HOSTNAME": "host-a", "_TRANSPORT": "kernel", "_BOOT_ID": "a" * 32}
    )
    + "\n",
}


@pytest.mark.parametrize("form", JOURNAL)
def test_every_form_of_the_journal_gives_instant_host_and_boot(form: str, tmp_path: Path) -> None:
    quiet = JOURNAL[form].replace(BODY, "audit: nothing").replace("host-a", "host-b")
    text = (quiet + JOURNAL[form] + quiet).encode()
    assert xid.claims("x", text)
    assert xid.claims("x", quiet.encode())
    tables, _ = rows_of(xid, source_of(tmp_path, text))
    (row,) = tables["kernel_events"]
    assert (row["code"], row["pid"], row["host"], row["logged_at"], row["boot_id"]) == (79, 42, "host-a", AT, "a" * 32)
    assert BODY[:20] in text.decode().split("\n")[int(row["record"][1:]) - 1]


def test_other_logs_with_entries_of_several_lines(tmp_path: Path) -> None:
    dmesg = (
        f'{{\n   "dmesg": [\n      {{\n         "pri": 3,\n         "time":   437.812449,\n         "msg": "{BODY}"\n      }}\n   ]\n}}\n'
    )
    sel = "Record:      12\nDate/Time:   03/02/2026 08:12:07\nDescription: Multi-bit memory errors detected on a memory device at DIMM_A1.\n---\n"
    redfish = json.dumps(
        {"Members": [{"Created": "2026-03-02T08:12:07+00:00", "Message": "Correctable memory error rate exceeded for DIMM_B2."}]}
    )
    node = {"type": "XidError", "lastHeartbeatTime": "2026-03-02T09:00:00Z", "lastTransitionTime": "2026-03-02T08:12:07Z", "message": BODY}
    for text, expected in (
        (dmesg, {"kind": "xid", "code": 79, "uptime_s": 437.812449}),
        (sel, {"kind": "edac", "device": "DIMM_A1", "severity": "uncorrected", "logged_at_local": DAY}),
        (json.dumps(json.loads(redfish), indent=2), {"kind": "edac", "severity": "corrected", "logged_at": WHOLE}),
        (json.dumps({"conditions": [node]}, indent=2), {"kind": "xid", "logged_at": WHOLE}),
        (json.dumps({"_TRANSPORT": "kernel", "MESSAGE": [*BODY.encode(), 255]}), {"kind": "xid", "code": 79}),
    ):
        tables, _ = rows_of(xid, source_of(tmp_path, text.encode()))
        (row,) = tables["kernel_events"]
        assert {key: row[key] for key in expected} == expected, text


def test_events_of_controllers_in_the_forms_of_their_tools() -> None:
    for line, expected in {
        "  3a | 12/14/22 | 23:09:44 CET | Memory #0x88 | Correctable ECC (CPU0_G1) | Asserted": ("edac", "corrected", None, 22),
        "   1 | 03/02/2026 | 08:12:07 | Memory #0x30 | Uncorrectable ECC | Asserted": ("edac", "uncorrected", DAY, None),
        "   1 | 03/02/2026 | 08:12:07 AM UTC | Processor #0x10 | IERR | Asserted": ("mce", "uncorrected", None, 8),
        "   1 | Pre-Init  |0000000015| Power Supply #0x51 | Power Supply AC lost | Asserted": ("power", None, None, None),
        "1  | Mar-02-2026 | 08:12:07 | Memory #0x88 | Memory | Uncorrectable memory error": ("edac", "uncorrected", DAY, None),
        "4    | Jul-20-2026 | 10:29:49 | Power Supply PS2 Status   | Power Supply  | Critical | Power Supply Failure detected": (
            *("power", None, "2026-07-20T10:29:49", None),
        ),
        "2    | PostInit    | PostInit | Power Supply PS2 Status   | Power Supply  | Critical | Power Supply Failure detected": (
            *("power", None, None, None),
        ),
        "  45 | 03/06/2026 | 06:51:46 | System Event #0x4a | Undetermined system hardware failure | Asserted": (
            *("other", None, "2026-03-06T06:51:46", None),
        ),
        "2 | 01/01/2000 | 00:15:20 | Critical Interrupt | Bus Fatal Error | Asserted": ("aer", "fatal", "2000-01-01T00:15:20", None),
    }.items():
        (row,) = told(line)
        hour = row["logged_at"].hour if row["logged_at"] else None
        assert (row["kind"], row["severity"], row["logged_at_local"], hour, row["host"]) == (*expected, None), line


def chain(host: str, day: int, gpu: str) -> list[str]:
    """A chain of one GPU of a host on one day, in seconds that no two hosts share."""
    bodies = ("48, pid=1, DBE", "63, Row Remapper: New row marked", "94, Contained: SM (0x1). RST: No, D-RST: No", "45, pid=1, Ch 8")
    return [f"Mar {day:2d} 08:12:{second:02d} {host} kernel: NVRM: Xid (PCI:{gpu}): {body}" for second, body in enumerate(bodies)]


def seen(rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {(row["host"], row["code"], row["gpu"], row["logged_at_local"], row["num_folded"]) for row in rows}


def test_shuffled_reversed_glued_and_cut_logs_tell_the_same() -> None:
    lines = [*chain("host-a", 2, "0000:3b:00"), *chain("host-b", 2, "0000:3b:00"), *chain("host-a", 30, "0000:3b:00")]
    expected = seen(told(*lines))
    assert len(expected) == 12
    assert seen(told(*reversed(lines))) == expected
    for seed in range(5):
        assert seen(told(*random.Random(seed).sample(lines, len(lines)))) == expected
    assert seen(told(*lines[:5])) | seen(told(*lines[5:])) == expected
    garbage = ["\x00\x01", "", "}" * 50, "[ 12", "Mar", "\ufffd" * 9]
    assert seen(told(*(part for line in lines for part in (line, *garbage)))) == expected
    assert seen(told(lines[0][30:], *lines)) == expected | {(None, 48, "0000:3b:00", None, 1)}


def test_turn_of_the_year_and_leap_days_without_a_year_stay_local() -> None:
    for day, other in (("Dec 31 23:59:59", "12-31T23:59:59"), ("Feb 29 08:12:07", "02-29T08:12:07"), ("Jan  1 00:00:00", "01-01T00:00:00")):
        (row,) = told(f"{day} host-a kernel: {BODY}", f"{day} host-a kernel: {BODY}")
        assert (row["logged_at"], row["logged_at_local"], row["num_folded"]) == (None, other, 2)
    (row,) = told(f"[Sun Feb 29 08:12:07 2026] {BODY}")  # no such day
    assert (row["logged_at"], row["code"]) == (None, 79)
    (row,) = told(f"2028-02-29T23:30:00,000000-01:00 {BODY}")
    assert row["logged_at"] == datetime(2028, 3, 1, 0, 30, tzinfo=UTC)


def test_burst_over_midnight_or_new_year_is_one_and_two_boots_are_two() -> None:
    for first, second in (("Dec 31 23:59:59 host-a kernel: ", "Jan  1 00:00:01 host-a kernel: "), ("23:59:59 ", "00:00:01 ")):
        (row,) = told(first + BODY, second + BODY)
        assert row["num_folded"] == 2
        (row,) = told(second + BODY, first + BODY)
        assert (row["num_folded"], row["logged_at_local"][-8:]) == (2, "23:59:59")
    same = "[  100.000000] "
    assert len(told(f"Mar  2 08:12:07 host-a kernel: {same}{BODY}", f"Mar  9 08:12:07 host-a kernel: {same}{BODY}")) == 2
    assert len(told(f"Mar  2 08:12:07 host-a kernel: {same}{BODY}", f"Mar  2 08:12:09 host-a kernel: {same}{BODY}")) == 1


def test_switch_fault_in_any_order_and_by_its_manager_is_one_event() -> None:
    switch = "Jul 23 07:53:55 host-a kernel: nvidia-nvswitch3: SXid (PCI:0000:86:00.0): 20034, "
    lines = [
        f"{switch}{text}"
        for text in ("Fatal, Link 33 LTSSM Fault Up", "Severity 1 Engine instance 33 Sub-engine instance 00", "Data {0x1}")
    ]
    manager = (
        "Jul 23 07:53:55 host-a nv-fabricmanager[8]: detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0"
    )
    lines.append(f"{manager} physical id 3 port 33")
    for seed in range(8):
        (row,) = told(*random.Random(seed).sample(lines, 4))
        assert (row["code"], row["gpu"], row["link"], row["severity"], row["num_folded"]) == (20034, "0000:86:00", 33, "fatal", 4)


def test_torn_message_of_a_kill_is_completed_by_the_next_or_stays_without_a_victim() -> None:
    (row,) = told("[   10.000000] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,oom_memcg=/kube", "pods,task=python3,")
    assert (row["kind"], row["pid"]) == ("oom", None)
    (row,) = told(
        "[   10.000000] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,oom_memcg=/kube", "Killed process 42 (python3)"
    )
    assert (row["kind"], row["pid"]) == ("oom", 42)


def test_kill_is_told_once_also_in_a_reversed_file() -> None:
    lines = [
        "[   12.000000] python3 invoked oom-killer: gfp_mask=0xcc0, order=0",
        "[   12.100000] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task_memcg=/a,task=python3,pid=42,uid=0",
        "[   12.200000] Out of memory: Killed process 42 (python3) total-vm:1kB",
    ]
    for order in (lines, lines[::-1]):
        (row,) = told(*order)
        assert (row["kind"], row["pid"], row["uptime_s"]) == ("oom", 42, 12.1)
    again = [line.replace("12.", "15.").replace("42", "43") for line in lines]
    assert [row["pid"] for row in told(*lines, *again)] == [42, 43]
    assert sorted(row["pid"] for row in told(*reversed(lines + again))) == [42, 43]


def test_line_glued_to_a_bar_of_progress_is_read() -> None:
    for line in (f" 10%|#  | 1/10 [00:01<00:09]\r[ 1843.308145] {BODY}", f" 10%|#  | 1/10 [00:01<00:09,  1.0it/s]\r{BODY}"):
        assert [row["code"] for row in told(line)] == [79]


def test_lost_gpu_is_found_in_every_form_of_its_message() -> None:
    three = ["NVRM: (PCI ID: 10de:2901) installed in this system has", "NVRM: fallen off the bus and is not responding to commands."]
    for lines in (
        ["Mar  2 08:12:07 host-a kernel: NVRM: The NVIDIA GPU 0000:3b:00.0", *(f"                 {line}" for line in three)],
        [f"Mar  2 08:12:07 host-a kernel: {line}" for line in ("NVRM: The NVIDIA GPU 0000:3b:00.0", *three)],
        ["host-a: Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error"],
        ["host-a: Unable to determine the device handle for GPU3: 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU"],
    ):
        (row,) = told(*lines)
        assert (row["kind"], row["gpu"], row["host"], row["code"]) == ("bus_loss", "0000:3b:00", "host-a", None)
