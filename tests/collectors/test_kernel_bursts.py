"""Floods of kernel lines: what is read once for all its likes gives the rows that reading line by line gives."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from _sources import rows_of, source_of
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from collectors import xid
from collectors._kernel_cover import Cover
from collectors._kernel_lines import marked_lines
from collectors._kernel_prefix import peel
from rca.tables import TABLES
from rca.types import Source

# How a line begins, given its second, microsecond and host; some are cut, impossible, doubled, or of a program.
PREFIXES = (
    "[{s:5d}.{us:06d}] ",
    "<4>[{s:5d}.{us:06d}] ",
    "<30>[{s:5d}.{us:06d}] ",
    "kern  :err   : [{s:5d}.{us:06d}] ",
    "kern  :err   : 2026-03-02T08:{m:02d}:{r:02d},{us:06d}+02:00 ",
    "Mar  2 08:{m:02d}:{r:02d} host-{h} kernel: ",
    "Mar  2 08:{m:02d}:{r:02d} host-{h} kernel: [{s:5d}.{us:06d}] ",
    "Mar  2 08:{m:02d}:{r:02d}.{us:06d} host-{h} kernel: ",
    "Feb 30 08:{m:02d}:{r:02d} host-{h} kernel: ",
    "Foo  2 08:{m:02d}:{r:02d} host-{h} kernel: ",
    "2026-03-02T08:{m:02d}:{r:02d}.{us:06d}+00:00 host-{h} kernel: ",
    "2026-03-02T08:{m:02d}:{r:02d}+0200 host-{h} kernel: ",
    "2026-03-02T08:{m:02d}:{r:02d}.{us:06d} host-{h} kernel: ",
    "2026-03-02T08:{m:02d}:{r:02d}.{us:06d}+00:00 host-{h} trainer[12]: ",
    "[Mon Mar  2 08:{m:02d}:{r:02d} 2026] ",
    "4,{s},{s}{us:06d},-;",
    "30,{s},{s}{us:06d},-;",
    "4,{s},{s}{us:06d},c,caller=T{h};",
    "[{s:5d}.{us:06d}] [{s:5d}.000001] ",
    "[{s:5d}.{us:06d}][T12] ",
    "Mar  2 08:{m:02d}:{r:02d} host-{h} health[3]: found [{s:5d}.{us:06d}] ",
    "host-{h}: [{s:5d}.{us:06d}] ",
    "\x1b[33m[{s:5d}.{us:06d}] \x1b[0m",
    '{{"_TRANSPORT":"kernel","_HOSTNAME":"host-{h}","__REALTIME_TIMESTAMP":"{s}{us:06d}","MESSAGE":"',
    '{{"__CURSOR":"i={us}","_HOSTNAME":"host-{h}","__REALTIME_TIMESTAMP":"{s}{us:06d}","_SOURCE_MONOTONIC_TIMESTAMP":"{us}","MESSAGE":"',
    '{{"__REALTIME_TIMESTAMP" : "{s}{us:06d}", "_SOURCE_MONOTONIC_TIMESTAMP" : "{s}{us:06d}", "MESSAGE" : "[{s:5d}.000001] ',
    "",
)
GPU = "NVRM: Xid (PCI:0000:{d:02x}:00)"
SWITCH = "nvidia-nvswitch{d}: SXid (PCI:0000:{d:02x}:00.0): 12028"
BODIES = (
    f"{GPU}: 95, pid={{p}}, name=python3, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    f"{GPU}: 95, pid={{p}}, name=python3, Uncontained: LTC TAG (0x2,0x0). RST: No, D-RST: No",
    f"{GPU}: 95, pid={{p}}, name=python3, Uncontained: SM (0x1). RST: No, D-RST: No",
    f"{GPU}: 119, pid={{p}}, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU4 GSP!",
    "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:{d:02x}:00",
    f"{GPU}: 79, pid=1, name=a, GPU has fallen off the bus.",
    "NVRM: GPU 0000:{d:02x}:00.0: GPU has fallen off the bus.",
    "NVRM: The NVIDIA GPU 0000:{d:02x}:00.0",
    "NVRM: fallen off the bus and is not responding to commands.",
    f"{GPU}: 154, GPU recovery action changed from 0x0 (None) to 0x{{d}} (GPU Reset Required)",
    f"{SWITCH}, Non-fatal, Link {{p}} egress non-posted PRIV error",
    f"{SWITCH}, Severity 0 Engine instance {{p}} Sub-engine instance 00",
    f"{SWITCH}, Data {{{{0x{{p:08x}}, 0x00000000}}}}",
    "pcieport 0000:{d:02x}:01.0: AER: Corrected error received: 0000:{d:02x}:00.0",
    "pcieport 0000:{d:02x}:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "EDAC MC{d}: {p} CE memory read error on DIMM{d} (channel:1 - OVERFLOW err_code:0x0101)",
    "EDAC MC{d}: {p} CE memory read error on DIMM{d} (channel:1 err_code:0x0101)",
    "nfs: server nfs-{d} not responding, still trying",
    "nfs: server nfs-{d} OK",
    "LustreError: {p}:0:(client.c:2132) scratch-OST000{d}-osc: Request sent has timed out for slow reply",
    "Lustre: Skipped {p} previous similar messages",
    "INFO: task python3:{p} blocked for more than 120 seconds.",
    "python3 invoked oom-killer: gfp_mask=0x0",
    "Out of memory: Killed process {p} (python3) total-vm:1kB",
    "oom_reaper: reaped process {p} (python3), now anon-rss:0kB",
    "message repeated {p} times: [ NVRM: Xid (PCI:0000:{d:02x}:00): 31, pid=1]",
    "XFS (md{d}): Mounting V5 Filesystem",
    "Message from syslogd@host-{d} at Mar  2 08:12:07 ...",
    "-- Boot {d:032x} --",
    "usb 1-1: new device {p}",
    "12:30:00 NVRM: Xid (PCI:0000:{d:02x}:00): 13, pid={p}",
)


# The journal's instant between two local times hides that half an hour lies between them, until the next line.
TWO_CLOCKS = "\n".join(
    prefix.format(s=1_772_439_127, us=0, m=m, r=9, h=1) + BODIES[0].format(d=1, p=1) + ('"}' if prefix.startswith("{") else "")
    for prefix, m in ((PREFIXES[5], 15), (PREFIXES[-4], 15), (PREFIXES[5], 46), (PREFIXES[5], 46), (PREFIXES[5], 46))
)


def log(seed: int) -> str:
    """A log in which few texts come again and again: close together, after a silence, backwards."""
    draw = random.Random(seed)
    prefixes, bodies = draw.sample(PREFIXES, draw.randint(1, 2)), draw.sample(BODIES, draw.randint(1, 4))
    at_us, lines = 1_000_000_000, []
    for _ in range(40):
        prefix, body, device, process = draw.choice(prefixes), draw.choice(bodies), draw.randint(1, 2), draw.randint(1, 2)
        at_us += draw.choice((0, 0, 0, 0, 5, 31, 599, -700)) * 1_000_000 + 400
        s, us = divmod(at_us, 1_000_000)
        begun = prefix.format(s=s, us=us, m=s // 60 % 60, r=s % 60, h=device)
        lines.append(begun + body.format(d=device, p=process) + ('"}' if begun.startswith("{") else ""))
    return "\n".join(reversed(lines) if draw.random() < 0.3 else lines)


def by_line(source: Source) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of events and of the log's cover, each line read with care."""
    reader, cover = xid._Reader(None), Cover(None)
    data = source.file.read_bytes()
    for number, text in marked_lines(data, 1):
        line, plan, _ = reader._read(peel(text), number)
        if plan is not None:
            reader.events.fold(plan, line, number)
        if not line.is_inner or line.stamp.has_wall:  # what a tool quotes tells nothing of the time that its log covers
            cover.see(line)
    cover.see_edges(data)
    tables = (TABLES["kernel_events"], reader.take_rows()), (TABLES["host_logs"], cover.rows(data.count(b"\n") + 1))
    events, logs = (table.rows(rows).to_dicts() for table, rows in tables)
    return events, logs


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1 << 40).map(log))
@example("\n".join(f"[{at}.000000] [10.000000] NVRM: Xid (PCI:0000:18:00): 31, pid=1" for at in (10, 10, 500, 501)))
@example(TWO_CLOCKS)
def test_lines_read_once_for_all_their_likes_give_the_same_rows(tmp_path: Path, text: str) -> None:
    tables, _ = rows_of(xid, source := source_of(tmp_path, text.encode(), "kernel.log"))
    events, logs = by_line(source)
    assert tables["kernel_events"] == events
    assert tables["host_logs"] in ([], logs)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from((1, 2)), st.sampled_from((0.0, 0.5, 29.0, 31.0, 300.0, -20.0, -45.0))), min_size=1, max_size=60))
def test_a_burst_ends_after_a_silence_and_after_ten_minutes(tmp_path: Path, steps: list[tuple[int, float]]) -> None:
    at_s, text = 10_000.0, ""
    rows: list[list[float]] = []  # earliest stamp, latest line's stamp, lines
    growing: dict[int, list[float]] = {}
    for gpu, step_s in steps:
        at_s += step_s
        text += f"[{at_s:12.6f}] NVRM: Xid (PCI:0000:{gpu:02x}:00): 31, pid=7, name=python3, x\n"
        row = growing.get(gpu)
        if row is None or abs(at_s - row[1]) > 30 or abs(at_s - row[0]) > 600:
            row = growing[gpu] = [at_s, at_s, 0]
            rows.append(row)
        row[:] = min(row[0], at_s), at_s, row[2] + 1
    tables, _ = rows_of(xid, source_of(tmp_path, text.encode()))
    assert [(row["uptime_s"], row["num_folded"]) for row in tables["kernel_events"]] == [(row[0], row[2]) for row in rows]
