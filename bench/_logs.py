"""The logs that are measured: kernel logs without an event in the usual prefixes, floods of one Xid, and the logs of trainers.

Run as a program, it writes one log: `python bench/_logs.py NAME MEGABYTES FILE`. The same words always give the same bytes.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

__all__ = ["LOGS", "Log", "write"]

BEGUN: Final = datetime(2026, 3, 1, 8, tzinfo=UTC)
BATCH: Final = 4096  # lines written at once
ORDINARY: Final = (  # what a healthy node prints; {n} is another number each time, {at} the seconds since 1970
    "usb 1-1: new high-speed USB device number {n} using xhci_hcd",
    "docker0: port {n}(veth1a2b3c4) entered disabled state",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{n}: link becomes ready",
    'audit: type=1400 audit({at}:{n}): apparmor="DENIED" operation="open" profile="snap" pid={n}',
    "nvidia-uvm: Loaded the UVM driver, major device number {n}.",
    "perf: interrupt took too long ({n} > 2500), lowering kernel.perf_event_max_sample_rate to 79000",
    "systemd[1]: Started Session {n} of User root.",
    "mlx5_core 0000:5e:00.0: firmware version: 20.{n}.1",
    "NFS: nfs4_discover_server_trunking unhandled error -{n}",
    "cgroup: fork rejected by pids controller in /kubepods/burstable/pod{n}",
)
NEAR: Final = (  # words that begin like those of an event, or are like them, and are none
    "NVRM: Persistence mode was switched on {n} s after the driver came up",
    "nvidia 0000:18:00.0: enabling device ({n} -> 0003)",
    "mlx5_core 0000:5e:00.0: Port module event: module {n}, Cable plugged",
    "Lustre: Mounted scratch-client, {n} errors were corrected before",
    "oom_kill_disable of memory cgroup {n} is deprecated",
    "md/raid0:md127: Disk {n} of 8 is fine, no failure of a disk",
    "EXT4-fs (md127): mounted filesystem {n} with ordered data mode",
    "PCIe Bus of slot {n} runs at full width; no error was received",
    "nvme_core: timeouts of {n} s are taken from the command line",
    "systemd[1]: a task was not blocked for {n} seconds, no stall seen",
)


@dataclass(frozen=True)
class Log:
    """One kind of log, the collector that reads it, and a word to look for: what the plain readers beside it do."""

    name: str
    about: str
    collector: str
    word: str
    lines: Callable[[random.Random], Iterator[str]]  # without end


def write(log: Log, size_bytes: int, file: Path) -> None:
    """Write whole lines until the size is reached."""
    lines = log.lines(random.Random(7))
    with file.open("wb") as out:
        written = 0
        while written < size_bytes:
            batch = "".join(f"{next(lines)}\n" for _ in range(BATCH)).encode()
            written += out.write(batch)


def _dmesg(at: datetime, uptime_s: float, n: int) -> str:
    return f"[{uptime_s:12.6f}] "


def _syslog(at: datetime, uptime_s: float, n: int) -> str:
    return f"{at:%b} {at.day:2d} {at:%H:%M:%S} host-a kernel: [{uptime_s:12.6f}] "


def _iso(at: datetime, uptime_s: float, n: int) -> str:
    return f"{at.isoformat(timespec='microseconds')} host-a kernel: "


def _ctime(at: datetime, uptime_s: float, n: int) -> str:
    return f"[{at:%a %b} {at.day:2d} {at:%H:%M:%S %Y}] "


def _kmsg(at: datetime, uptime_s: float, n: int) -> str:
    return f"6,{n},{int(uptime_s * 1e6)},-;"


def _journal(at: datetime, uptime_s: float, n: int) -> str:
    us = int(at.timestamp() * 1e6)
    return (
        f'{{"_TRANSPORT":"kernel","PRIORITY":"6","_HOSTNAME":"host-a","SYSLOG_IDENTIFIER":"kernel","_BOOT_ID":"{"0a" * 16}",'
        f'"__REALTIME_TIMESTAMP":"{us}","_SOURCE_MONOTONIC_TIMESTAMP":"{int(uptime_s * 1e6)}","MESSAGE":"'
    )


Prefix = Callable[[datetime, float, int], str]


def _quiet(prefix: Prefix, bodies: tuple[str, ...] = ORDINARY) -> Callable[[random.Random], Iterator[str]]:
    """Lines of a node without any event."""
    ends = '"}' if prefix is _journal else ""

    def lines(draw: random.Random) -> Iterator[str]:
        uptime_s, n = 1000.0, 0
        while True:
            uptime_s, n = uptime_s + draw.random(), n + 1
            at = BEGUN + timedelta(seconds=uptime_s)
            body = draw.choice(bodies).replace("{n}", str(draw.randrange(10**6))).replace("{at}", f"{at.timestamp():.3f}")
            if ends:
                body = body.replace('"', '\\"')
            yield prefix(at, uptime_s, n) + body + ends

    return lines


def _flood(draw: random.Random) -> Iterator[str]:
    """Two GPUs repeat one Xid 2,500 times a second, from seven processes."""
    uptime_s, n = 1000.0, 0
    while True:
        uptime_s, n = uptime_s + 0.0004, n + 1
        gpu = ("0000:18:00", "0000:2a:00")[n % 2]
        yield (
            f"[{uptime_s:12.6f}] NVRM: Xid (PCI:{gpu}): 95, pid={4000 + n % 7}, name=python3, "
            "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"
        )


def _distinct(draw: random.Random) -> Iterator[str]:
    """A dead GPU's firmware does not answer: every caller of the driver gets a line with its own process id."""
    uptime_s, n = 1000.0, 0
    while True:
        uptime_s, n = uptime_s + 0.02, n + 1
        yield (
            f"[{uptime_s:12.6f}] NVRM: Xid (PCI:0000:9b:00): 119, pid={1000 + n}, name=nvidia-smi, Timeout after 6s of waiting for RPC "
            f"response from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802a02 0x{draw.randrange(4096):x})."
        )


def _dense(draw: random.Random) -> Iterator[str]:
    """One rank's steps and nothing else, as Megatron-LM prints them."""
    step = 0
    while True:
        step += 1
        at = BEGUN + timedelta(seconds=step)
        yield (
            f" [{at:%Y-%m-%d %H:%M:%S}.123456] iteration {step:8d}/ 9000000 | consumed samples: {step * 512:12d} | "
            f"elapsed time per iteration (ms): {1000 + draw.random() * 50:.1f} | learning rate: 1.500000E-04 | global batch size:   512 | "
            f"lm loss: {2 + draw.random():.6E} | loss scale: 1.0 | grad norm: {draw.random():.3f} | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |"
        )


def _mixed(draw: random.Random) -> Iterator[str]:
    """Eight ranks in one file: steps, what the communication library tells at level INFO, warnings, and lines of a data loader."""
    n = 0
    while True:
        n += 1
        rank, at = draw.randrange(8), BEGUN + timedelta(seconds=n // 60)
        if n % 20 == 0:
            yield (
                f"[rank{rank}]: {at:%Y-%m-%d %H:%M:%S},123 INFO train: step {n} loss {2 + draw.random():.4f} grad_norm {draw.random():.3f} "
                f"lr 1.0e-4 step_time {draw.random():.3f}s"
            )
        elif n % 3 == 0:
            yield f"host-a:{4000 + rank}:{4100 + rank} [{rank}] NCCL INFO Channel {n % 32:02d}/0 : {rank}[{rank}] -> {n % 8}[{n % 8}] via P2P/CUMEM"
        elif n % 3 == 1:
            yield f"{at:%Y-%m-%d %H:%M:%S},123 - megatron.core - INFO - rank {rank} building dataset shard {n} took {draw.random():.3f} seconds"
        else:
            yield (
                f"[rank{rank}]:W{at:%m%d %H:%M:%S}.123000 {4000 + rank} torch/_dynamo/convert_frame.py:906] "
                f"torch._dynamo hit config.recompile_limit ({n})"
            )


_KERNEL: Final = {
    "kernel_dmesg": ("kernel, no event: dmesg", _quiet(_dmesg)),
    "kernel_syslog": ("kernel, no event: syslog", _quiet(_syslog)),
    "kernel_iso": ("kernel, no event: journal, ISO stamps", _quiet(_iso)),
    "kernel_ctime": ("kernel, no event: dmesg -T", _quiet(_ctime)),
    "kernel_kmsg": ("kernel, no event: raw kmsg", _quiet(_kmsg)),
    "kernel_json": ("kernel, no event: journal as JSON", _quiet(_journal)),
    "kernel_near": ("kernel, no event: words like those of events", _quiet(_syslog, NEAR)),
    "kernel_xid95": ("kernel, flood: Xid 95 of two GPUs", _flood),
    "kernel_xid119": ("kernel, flood: Xid 119, another process each line", _distinct),
}
_TRAINER: Final = {
    "trainer_mixed": ("trainer: eight ranks, one line in twenty a step", _mixed),
    "trainer_dense": ("trainer: every line a step", _dense),
}
LOGS: Final[Mapping[str, Log]] = {
    **{name: Log(name, about, "xid", "Xid", lines) for name, (about, lines) in _KERNEL.items()},
    **{name: Log(name, about, "trainer_log", "loss", lines) for name, (about, lines) in _TRAINER.items()},
}


if __name__ == "__main__":
    write(LOGS[sys.argv[1]], int(float(sys.argv[2]) * 1e6), Path(sys.argv[3]))
