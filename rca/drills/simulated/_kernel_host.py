"""Kernel lines about everything of a host that is no GPU: bus, adapters, memory, hung tasks, panics, disks, network file systems. Pure text.

Shapes: linux (drivers/pci/pcie/aer.c, mm/oom_kill.c, kernel/hung_task.c, edac, mlx5/core, nvme, fs/nfs), Lustre's client. Each function gives
(ns since the epoch, text) pairs, in order.
"""

from __future__ import annotations

import random
from typing import Final

from rca.drills._kernel import Line

__all__ = [
    "cgroup_kill",
    "corrected_memory",
    "disk_failed",
    "hung_tasks",
    "link_down",
    "link_up",
    "lustre_lost",
    "lustre_recovered",
    "machine_check",
    "nfs_hangs",
    "panic",
    "segfault",
    "soft_lockup",
    "throttled",
]

MS: Final = 1_000_000
S: Final = 1_000_000_000
BOOT_ID: Final = "5.15.0-1064-nvidia"


def _device(rng: random.Random) -> tuple[str, str]:
    """A network adapter: PCI address and name of its port."""
    return rng.choice(
        (("0000:1a:00.0", "ibp26s0"), ("0000:4f:00.0", "ibp79s0"), ("0000:5c:00.0", "ens1f0np0"), ("0000:d2:00.0", "enp210s0np0"))
    )


def link_down(at: int, rng: random.Random, *, why: str = "") -> list[Line]:
    """A port of an adapter goes down; `why` unplugged or cable: its module says so."""
    address, name = _device(rng)
    lines: list[Line] = []
    if why == "unplugged":
        lines.append((at - 3 * MS, f"mlx5_core {address}: Port module event: module 0, Cable unplugged"))
    elif why == "cable":
        lines.append(
            (at - 3 * MS, f"mlx5_core {address}: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)")
        )
    if name.startswith("ib"):
        return [*lines, (at, f"mlx5_core {address}: Port: 1 Link DOWN"), (at + MS, f"{name}: link down")]
    return [*lines, (at, f"mlx5_core {address} {name}: Link down")]


def link_up(at: int, rng: random.Random) -> list[Line]:
    """The port is up again (of the same draw as `link_down` when both get a generator of the same state)."""
    address, name = _device(rng)
    if name.startswith("ib"):
        return [(at, f"mlx5_core {address}: Port: 1 Link ACTIVE")]
    return [(at, f"mlx5_core {address} {name}: Link up")]


def cgroup_kill(at: int, rng: random.Random, *, pid: int, limit_kb: int, pod: bool) -> list[Line]:
    """The memory limit of a container or of a job's control group kills one of its processes."""
    group = (
        f"/kubepods.slice/kubepods-pod{rng.getrandbits(32):08x}.slice"
        if pod
        else f"/slurm/uid_1000/job_{rng.randrange(10**4, 10**6)}/step_0"
    )
    used = limit_kb - rng.randrange(4096)
    return [
        (at, "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"),
        (at + MS, f"memory: usage {used}kB, limit {limit_kb}kB, failcnt {rng.randrange(100, 9000)}"),
        (
            at + 2 * MS,
            f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg={group},task_memcg={group},"
            f"task=python,pid={pid},uid=1000",
        ),
        (
            at + 3 * MS,
            f"Memory cgroup out of memory: Killed process {pid} (python) total-vm:{limit_kb * 3}kB, anon-rss:{used // 2}kB, "
            "file-rss:71680kB, shmem-rss:8192kB, UID:1000 pgtables:190464kB oom_score_adj:0",
        ),
    ]


def machine_check(at: int, rng: random.Random, *, is_fatal: bool) -> list[Line]:
    """The processor reports an uncorrected error of memory; a fatal one ends the kernel."""
    socket, bank = rng.randrange(2), rng.choice((7, 13, 14))
    lines: list[Line] = [
        (at, "mce: [Hardware Error]: Machine check events logged"),
        (at + 20_000, f"mce: [Hardware Error]: CPU {rng.randrange(96)}: Machine Check Exception: 5 Bank {bank}: bd80000000100134"),
        (
            at + 40_000,
            f"EDAC MC{socket}: 1 UE memory read error on CPU_SrcID#{socket}_MC#1_Chan#0_DIMM#0 (channel:0 slot:0 "
            f"page:0x{rng.getrandbits(28):x} offset:0x0 grain:32)",
        ),
    ]
    if is_fatal:
        lines.append((at + 90_000, "mce: [Hardware Error]: Machine check: Processor context corrupt"))
        lines += panic(at + 100_000, rng, why="Fatal machine check on current CPU")
    return lines


def corrected_memory(at: int, rng: random.Random) -> list[Line]:
    """An error of a memory module that its code corrected."""
    socket = rng.randrange(2)
    place = f"CPU_SrcID#{socket}_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x{rng.getrandbits(28):x} offset:0x40 grain:32 syndrome:0x0)"
    return [
        (at, "mce: [Hardware Error]: Machine check events logged"),
        (at + 20_000, f"EDAC MC{socket}: 1 CE memory read error on {place}"),
    ]


def panic(at: int, rng: random.Random, *, why: str) -> list[Line]:
    """The kernel stops."""
    cpu = rng.randrange(96)
    return [
        (at, f"Kernel panic - not syncing: {why}"),
        (at + 100_000, f"CPU: {cpu} PID: {rng.randrange(300, 4000)} Comm: swapper/{cpu} Tainted: P           OE     {BOOT_ID} #65-Ubuntu"),
        (at + 200_000, "Call Trace:"),
        (at + 300_000, f" panic+0x{rng.randrange(0x100, 0x400):x}/0x3f4"),
        (at + 400_000, "Kernel Offset: 0x1be00000 from 0xffffffff81000000 (relocation range: 0xffffffff80000000-0xffffffffbfffffff)"),
    ]


def hung_tasks(at: int, rng: random.Random, *, pids: list[int], where: str) -> list[Line]:
    """Tasks that have not run for two minutes, with the place in the kernel where they wait: nfs, lustre, nvidia, disk."""
    frames = {
        "nfs": ("nfs_wait_bit_killable+0x2c/0x90 [nfs]", "nfs_wb_all+0x2c/0x190 [nfs]", "nfs4_file_flush+0x7a/0xb0 [nfsv4]"),
        "lustre": ("ptlrpc_set_wait+0x2a1/0x770 [ptlrpc]", "ll_file_read_iter+0x1f2/0x530 [lustre]", "vfs_read+0xa1/0x1b0"),
        "nvidia": (
            "rwsem_down_write_slowpath+0x2f5/0x4e0",
            "os_acquire_rwlock_write+0x35/0x50 [nvidia]",
            "nvidia_ioctl+0x6d/0x2f0 [nvidia]",
        ),
        "disk": ("io_schedule+0x46/0x80", "xfs_log_force+0x1a3/0x2c0 [xfs]", "xfs_file_fsync+0x9b/0x220 [xfs]"),
    }[where]
    lines: list[Line] = []
    for number, pid in enumerate(pids[:10]):  # the kernel tells ten, then it is silent
        begins = at + number * 400_000
        lines.append((begins, f"INFO: task python:{pid} blocked for more than 120 seconds."))
        lines.append((begins + 20_000, f"      Tainted: P           OE     {BOOT_ID} #65-Ubuntu"))
        lines.append((begins + 40_000, '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.'))
        lines.append((begins + 60_000, f"task:python          state:D stack:    0 pid:{pid:5d} ppid: {max(1, pid - 9)} flags:0x00004002"))
        lines.append((begins + 80_000, "Call Trace:"))
        lines += [
            (begins + 90_000 + k * 1000, f" {frame}") for k, frame in enumerate(("__schedule+0x2cd/0x890", "schedule+0x69/0x110", *frames))
        ]
    return lines


def soft_lockup(at: int, rng: random.Random, *, pid: int) -> list[Line]:
    """A processor that did not come back from the kernel."""
    cpu = rng.randrange(96)
    return [
        (at + k * 28 * S, f"watchdog: BUG: soft lockup - CPU#{cpu} stuck for {22 + 4 * k}s! [python:{pid}]")
        for k in range(rng.randrange(2, 5))
    ]


def nfs_hangs(at: int, rng: random.Random, *, server: str, until: int | None = None) -> list[Line]:
    """A server of files does not answer; `until`: when it did again."""
    lines = [(at + k * 61 * S, f"nfs: server {server} not responding, still trying") for k in range(rng.randrange(1, 4))]
    lines = [line for line in lines if until is None or line[0] < until]
    return [*lines, (until, f"nfs: server {server} OK")] if until is not None else lines


def lustre_lost(at: int, rng: random.Random, *, server: str) -> list[Line]:
    """Lustre's client loses a storage target."""
    target = f"fs0{rng.randrange(1, 4)}-OST{rng.randrange(64):04x}"
    client = f"{target}-osc-ffff{rng.getrandbits(48):012x}"
    sent = at // S - 100
    request = f"req@ffff{rng.getrandbits(48):012x} x{rng.getrandbits(50)}/t0(0) o4->{client}@{server}@o2ib:6/4 lens 608/448 e 0 to 1"
    return [
        (
            at,
            f"Lustre: {rng.randrange(2000, 9000)}:0:(client.c:2295:ptlrpc_expire_one_request()) @@@ "
            f"Request sent has timed out for slow reply: [sent {sent}/real {sent}]  {request}",
        ),
        (
            at + 50_000,
            f"Lustre: {client}: Connection to {target} (at {server}@o2ib) was lost; "
            "in progress operations using this service will wait for recovery to complete",
        ),
        (at + 60 * S, f"LustreError: 11-0: {client}: operation ost_write to node {server}@o2ib failed: rc = -107"),
    ]


def lustre_recovered(at: int, *, target: str, server: str) -> list[Line]:
    """Lustre's client has it again."""
    return [(at, f"Lustre: {target}-osc: Connection restored to {server}@o2ib (at {server}@o2ib)")]


def disk_failed(at: int, rng: random.Random) -> list[Line]:
    """A local NVMe disk goes away under its file system."""
    disk = rng.randrange(1, 8)
    return [
        (at, f"nvme nvme{disk}: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff"),
        (at + 60 * S, f"nvme nvme{disk}: Disabling device after reset failure: -19"),
        (
            at + 60 * S + 2 * MS,
            f"blk_update_request: I/O error, dev nvme{disk}n1, sector {rng.getrandbits(32)} op 0x1:(WRITE) flags 0x1000 phys_seg 8 prio class 0",
        ),
        (at + 60 * S + 9 * MS, f"XFS (nvme{disk}n1): log I/O error -5"),
        (at + 60 * S + 12 * MS, f"XFS (nvme{disk}n1): Log I/O Error Detected. Shutting down filesystem"),
    ]


def segfault(at: int, rng: random.Random, *, pid: int, library: str) -> list[Line]:
    """A process touched memory that is not its own."""
    ip, base = rng.getrandbits(46), rng.getrandbits(34) << 12
    return [
        (
            at,
            f"pt_main_thread[{pid}]: segfault at {rng.choice((0, 8, 0x10)):x} ip {ip:016x} "
            f"sp {rng.getrandbits(46):016x} error 4 in {library}[{base:x}+d3d3000]",
        )
    ]


def throttled(at: int, rng: random.Random) -> list[Line]:
    """A processor that is too hot runs slower for a moment."""
    cpu = rng.randrange(96)
    return [
        (at, f"mce: CPU{cpu}: Core temperature above threshold, cpu clock throttled (total events = {rng.randrange(1, 40)})"),
        (at + 2 * MS, f"mce: CPU{cpu}: Core temperature/speed normal"),
    ]
