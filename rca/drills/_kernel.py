"""Kernel logs of the made-up hosts: made up as well, fitted to the real times and process numbers of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from rca.drills._capture import write_json
from rca.drills._layout import Scene

__all__ = ["DAY_NS", "Line", "corrected_pcie", "killed_for_memory", "old_graphics_exception", "share_gone", "write_kernel_logs"]

Line = tuple[int, str]  # ns since the epoch, text

MINUTE_NS, DAY_NS = 60_000_000_000, 86_400_000_000_000
NUM_BENIGN = 9  # lines of an ordinary hour
BENIGN = (
    "systemd[1]: Starting Rotate log files...",
    "systemd[1]: Finished Rotate log files.",
    "perf: interrupt took too long (3139 > 3132), lowering kernel.perf_event_max_sample_rate to 63000",
    "EXT4-fs (nvme0n1p3): mounted filesystem with ordered data mode. Quota mode: none.",
    "mlx5_core 0000:1a:00.0 ens1f0np0: Link up",
    "IPv6: ADDRCONF(NETDEV_CHANGE): ens1f0np0: link becomes ready",
    "nvidia-uvm: Loaded the UVM driver, major device number 508.",
    "bash (9120): drop_caches: 3",
    "TCP: request_sock_TCP: Possible SYN flooding on port 29400. Sending cookies.",
)


def write_kernel_logs(folder: Path, scene: Scene, told: Mapping[str, Iterable[Line]]) -> None:
    """HOST.dmesg.log for every host, `told` among the lines of an ordinary hour, and hosts.json with the boot times.

    Every second seed prints seconds since boot instead of the date: hosts.json then tells the instant.
    """
    folder.mkdir()
    rng = scene.rng("kernel")
    boots = {}
    for host in scene.layout.hosts:
        boots[host] = scene.began_ns - 20 * DAY_NS - rng.randrange(20 * DAY_NS)
        lines = [(scene.began_ns - rng.randrange(60 * MINUTE_NS), rng.choice(BENIGN)) for _ in range(NUM_BENIGN)]
        lines = sorted([*lines, *told.get(host, ())])
        stamp = _since_boot if scene.seed % 2 else _iso
        (folder / f"{host}.dmesg.log").write_text("".join(f"{stamp(at, boots[host])} {text}\n" for at, text in lines))
    write_json(folder / "hosts.json", {host: {"boot_time_ns": boot} for host, boot in boots.items()})


def _iso(at_ns: int, _: int) -> str:
    """As `dmesg --time-format iso` prints it."""
    at = datetime.fromtimestamp(at_ns // 1_000_000_000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S},{at_ns // 1_000 % 1_000_000:06d}+00:00"


def _since_boot(at_ns: int, boot_ns: int) -> str:
    """As plain `dmesg` prints it."""
    return f"[{(at_ns - boot_ns) / 1e9:12.6f}]"


def killed_for_memory(at_ns: int, *, pid: int, asked_by: str) -> list[Line]:
    """The kernel kills `pid` for memory; the process that asked for it is another one."""
    return [
        (at_ns, f"{asked_by} invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0"),
        (
            at_ns + 1_000_000,
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,"
            f"task_memcg=/system.slice/train.service,task=python,pid={pid},uid=1000",
        ),
        (
            at_ns + 2_000_000,
            f"Out of memory: Killed process {pid} (python) total-vm:1062714368kB, anon-rss:968214016kB, file-rss:71680kB, "
            "shmem-rss:8192kB, UID:1000 pgtables:1904640kB oom_score_adj:0",
        ),
    ]


def share_gone(at_ns: int) -> list[Line]:
    """The client of a network share waits for its server."""
    return [(at_ns, "nfs: server filer-1 not responding, still trying")]


def corrected_pcie(at_ns: int) -> list[Line]:
    """A PCIe error that the hardware has corrected."""
    return [
        (at_ns, "pcieport 0000:40:01.0: AER: Correctable error message received from 0000:40:01.0"),
        (at_ns + 1_000, "pcieport 0000:40:01.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)"),
        (at_ns + 2_000, "pcieport 0000:40:01.0:   device [8086:352a] error status/mask=00001000/00002000"),
        (at_ns + 3_000, "pcieport 0000:40:01.0:    [12] Timeout"),
    ]


def old_graphics_exception(at_ns: int) -> list[Line]:
    """An error of some other program, long ago."""
    return [(at_ns, "NVRM: Xid (PCI:0000:41:00): 13, pid=3117, name=python3, Graphics Exception: ESR 0x505648=0x1000e 0x505650=0x20")]
