"""Kernel lines that NVIDIA's driver and the switches write about GPUs: Xid chains, lost GPUs, NVLink, NVSwitch. Pure text.

Shapes: open-gpu-kernel-modules (kernel_rc.c, kernel_gsp.c, kern_gpu_error_cont_ga100.c, nvswitch error log) at 535 to 580; chains as public
reports show them. Each function gives (ns since the epoch, text) pairs, in order; `rng` draws what varies between drivers and chips.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from rca.drills._kernel import Line

__all__ = [
    "bad_memory",
    "broken_link",
    "drawn_address",
    "firmware_timeout",
    "lost_gpu",
    "mmu_fault",
    "process_teardown",
    "remote_packet_loss",
    "sm_exception",
    "switch_lines",
]

MS: Final = 1_000_000
S: Final = 1_000_000_000
SLOTS: Final = ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db")  # buses of the eight GPUs of an HGX H100 host
UNITS: Final = ("LTC Data", "FB DED", "DED CBC")
PROGRAMS: Final = ("python", "python3", "pt_main_thread", "python3.10")


def drawn_address(local: int) -> str:
    """The PCI address of the local GPU as the driver prints it, without the function: 0000:18:00."""
    return f"0000:{SLOTS[local % len(SLOTS)]}:00"


def _xid(address: str, code: int, body: str, *, who: str = "") -> str:
    return f"NVRM: Xid (PCI:{address}): {code}, {who + ', ' if who else ''}{body}"


def _who(rng: random.Random, pid: int | None) -> str:
    """Process as drivers 515 to 560 print it; since 570 an unknown one is left out."""
    if pid is not None:
        return f"pid={pid}, name={rng.choice(PROGRAMS)}"
    return rng.choice(("pid='<unknown>', name=<unknown>", ""))


def _first_of(address: str, at: int, rng: random.Random) -> list[Line]:
    """Before a GPU's first Xid the driver names it once."""
    uuid = f"GPU-{rng.getrandbits(32):08x}-{rng.getrandbits(16):04x}-{rng.getrandbits(16):04x}-{rng.getrandbits(16):04x}-{rng.getrandbits(48):012x}"
    lines = [(at, f"NVRM: GPU at PCI:{address}: {uuid}")]
    return [*lines, (at + 4_000, f"NVRM: GPU Board Serial Number: {rng.randrange(10**12, 2 * 10**12)}")]


def lost_gpu(at: int, rng: random.Random, *, address: str, pid: int | None, switches: bool = True) -> list[Line]:
    """The device does not answer any more: 79, often after an uncorrected error of the bus; its switches complain some seconds later."""
    lines: list[Line] = []
    port = f"{address.split(':')[0]}:{int(address.split(':')[1], 16) - 1:02x}:01.0"
    if rng.random() < 0.5:
        told = "Uncorrected (Fatal)" if rng.random() < 0.5 else "Uncorrectable (Fatal)"
        lines += [
            (at - 90 * MS, f"pcieport {port}: AER: {told} error message received from {port}"),
            (at - 89 * MS, f"pcieport {port}: PCIe Bus Error: severity={told}, type=Transaction Layer, (Receiver ID)"),
            (at - 89 * MS + 900, f"pcieport {port}:   device [8086:352a] error status/mask=00000020/00100000"),
            (at - 88 * MS, f"pcieport {port}:    [ 5] SDES                   (First)"),
        ]
    lines += _first_of(address, at, rng)
    lines.append((at + 7_000, _xid(address, 79, "GPU has fallen off the bus.", who=_who(rng, None))))
    lines.append((at + 11_000, f"NVRM: GPU {address}.0: GPU has fallen off the bus."))
    if rng.random() < 0.5:
        lines.append((at + 30_000, "NVRM: A GPU crash dump has been created. If possible, please run"))
        lines.append((at + 30_001, "NVRM: nvidia-bug-report.sh as root to collect this data before"))
        lines.append((at + 30_002, "NVRM: the NVIDIA kernel module is unloaded."))
    if rng.random() < 0.4:
        lines.append((at + 900_000, _xid(address, 154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")))
    if switches:
        for number in range(rng.choice((0, 2, 4))):
            lines += switch_lines(at + 12 * S + number * 4 * MS, rng, number=number, code=20034, text="LTSSM Fault Up", is_fatal=True)
    return lines


def switch_lines(at: int, rng: random.Random, *, number: int, code: int, text: str, is_fatal: bool) -> list[Line]:
    """An NVSwitch reports an error of a link in three lines, as `nvidia-nvswitchN`."""
    head, link = f"nvidia-nvswitch{number}: SXid (PCI:0000:{number + 4:02x}:00.0): {code}", rng.randrange(64)
    data = ", ".join(f"0x{rng.getrandbits(32) if k < 2 else 0:08x}" for k in range(9))
    return [
        (at, f"{head}, {'Fatal' if is_fatal else 'Non-fatal'}, Link {link:02d} {text}"),
        (at + 200_000, f"{head}, Severity {int(is_fatal)} Engine instance {link:02d} Sub-engine instance 00"),
        (at + 400_000, f"{head}, Data {{{data}}}"),
    ]


def bad_memory(at: int, rng: random.Random, *, address: str, pid: int | None, variant: str) -> list[Line]:
    """Errors of the GPU's own memory that cannot be corrected.

    dbe: 48, a remapped row (63), the process contained (94) and gone (45). remap_failed: 48 and 64. uncontained: 95. contained: 94 alone with 63.
    """
    lines = _first_of(address, at, rng)
    at_address, row = rng.getrandbits(36) & ~0x1F, rng.random() < 0.5
    bank = f"at physAddr 0x{at_address:x} partition {rng.randrange(20)}, subpartition {rng.randrange(4)}"
    contained = f"Contained: {rng.choice(UNITS)} (0x{rng.randrange(16):x},0x{rng.randrange(4):x}). RST: No, D-RST: No"
    if variant in ("dbe", "remap_failed"):
        lines.append(
            (
                at + 8_000,
                _xid(
                    address,
                    48,
                    f"An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer {bank}.",
                    who=_who(rng, None),
                ),
            )
        )
    if variant == "remap_failed":
        why = f"Row Remapper Error: (0x{at_address:016x}) - {rng.choice(('Row Remapping table is full', 'All reserved rows for bank are remapped'))}"
        lines.append(
            (
                at + 40 * MS,
                _xid(address, 64, why, who=_who(rng, None)),
            )
        )
        lines.append((at + 42 * MS, _xid(address, 154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")))
    elif variant == "uncontained":
        body = f"Uncontained: {rng.choice(('LTC TAG', 'FBHUB', 'LTC Data'))} (0x{rng.randrange(16):x},0x{rng.randrange(4):x}). RST: Yes, D-RST: No"
        lines.append((at + 8_000, _xid(address, 95, body, who=_who(rng, pid))))
        lines.append((at + 20 * MS, _xid(address, 154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")))
    else:
        lines.append(
            (
                at + 35 * MS,
                _xid(
                    address,
                    63,
                    f"Row Remapper: New row {f'(0x{at_address:016x}) ' if row else ''}marked for remapping, reset gpu to activate.",
                    who=_who(rng, None),
                ),
            )
        )
        lines += [(at + (60 + k) * MS, _xid(address, 94, contained, who=_who(rng, pid))) for k in range(rng.randrange(1, 4))]
    return lines + process_teardown(at + 300 * MS, rng, address=address, pid=pid, cause=None)


def process_teardown(at: int, rng: random.Random, *, address: str, pid: int | None, cause: int | None) -> list[Line]:
    """Channels that the driver removes when their process goes: 45, one a channel; since 575 they name the Xid before."""
    if pid is None:
        return []
    tail = f" caused by previous Xid {cause}" if cause is not None and rng.random() < 0.4 else ""
    first = rng.randrange(2, 12)
    return [(at + k * 90_000, _xid(address, 45, f"Ch {first + k:08x}{tail}", who=_who(rng, pid))) for k in range(rng.randrange(1, 7))]


def broken_link(at: int, rng: random.Random, *, address: str, pid: int | None, variant: str) -> list[Line]:
    """An NVLink of this GPU fails: 74 (Hopper and before) or 149 (Blackwell); variant `switch` begins at an NVSwitch."""
    link, lines = rng.randrange(18), _first_of(address, at, rng)
    if variant == "switch":
        lines = (
            switch_lines(
                at - 2 * MS,
                rng,
                number=rng.randrange(4),
                code=rng.choice((12028, 20009, 22007)),
                text="ingress egress fault",
                is_fatal=True,
            )
            + lines
        )
    if variant == "blackwell":
        words = f"(0x{rng.choice((0x004505C6, 0x021425C6, 0x025525C6)):08x} 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
        lines.append((at + 5_000, _xid(address, 149, f"NETIR_LINK_EVT  Fatal   XC0 i0 Link {link:02d} {words}")))
        lines.append((at + 3 * MS, _xid(address, 154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")))
    else:
        words = ", ".join(("0x0", "0x0", f"0x{1 << rng.randrange(8, 20):x}", "0x0", "0x0", "0x0", "0x0"))
        lines.append((at + 5_000, _xid(address, 74, f"NVLink: fatal error detected on link {link}({words})", who=_who(rng, pid))))
    return lines + process_teardown(at + 200 * MS, rng, address=address, pid=pid, cause=149 if variant == "blackwell" else 74)


def remote_packet_loss(at: int, rng: random.Random, *, address: str, pid: int | None) -> list[Line]:
    """The far side of a broken NVLink (Blackwell): packets that never came, then its own channels go."""
    words = f"(0x{rng.choice((0x040988E2, 0x0409A0C2)):08x} 0x00000008 0x00000000 0x00000000 0x00100000 0x00000004)"
    body = f"{rng.choice(('RLW_SRC_TRACK', 'RLW_RXPIPE'))} Nonfatal XC1 i0 Link {rng.randrange(18):02d} {words}"
    return [(at, _xid(address, 145, body, who=_who(rng, pid))), *process_teardown(at + 40 * MS, rng, address=address, pid=pid, cause=145)]


def firmware_timeout(at: int, rng: random.Random, *, address: str, index: int, callers: Sequence[tuple[int, str]]) -> list[Line]:
    """The GPU's firmware does not answer: 119, again for every process that asks; 120 where the firmware says itself that it failed."""
    lines = _first_of(address, at, rng)
    if rng.random() < 0.25:
        lines.append(
            (
                at + 3_000,
                _xid(
                    address,
                    120,
                    f"GSP task exception: load access page fault (cause:0xd) @ pc:0x{rng.getrandbits(25):x}, partition:2#0, task:3",
                    who=_who(rng, None),
                ),
            )
        )
    for k, (pid, name) in enumerate(callers):
        function, data = rng.choice(((103, "GSP_RM_ALLOC"), (76, "GSP_RM_CONTROL"))), "0x2080a097 0x4a8"
        text = (
            f"Timeout after 6s of waiting for RPC response from GPU{index} GSP! Expected function {function[0]} ({function[1]}) ({data})."
        )
        lines.append((at + 6 * S + k * 45 * S, _xid(address, 119, text, who=f"pid={pid}, name={name}")))
    if rng.random() < 0.6:
        text = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
        lines.append((at + 6 * S + 30 * MS, _xid(address, 154, text)))
    return sorted(lines)


def mmu_fault(at: int, rng: random.Random, *, address: str, pid: int, place: str, tail: bool = True) -> list[Line]:
    """A kernel touched an address that is not mapped: 31, and the process's channels after it. `place`: hi_lo of the address, as printed."""
    engine = f"ENGINE GRAPHICS GPC{rng.randrange(7)} GPCCLIENT_T1_{rng.randrange(12)}"
    kind = rng.choice(("FAULT_PDE ACCESS_TYPE_VIRT_READ", "FAULT_PDE ACCESS_TYPE_VIRT_WRITE", "FAULT_PTE ACCESS_TYPE_VIRT_READ"))
    text = f"Ch 0000000{rng.randrange(2, 9)}, intr 00000000. MMU Fault: {engine} faulted @ 0x{place}. Fault is of type {kind}"
    lines = [*_first_of(address, at, rng), (at + 8_000, _xid(address, 31, text, who=f"pid={pid}, name={rng.choice(PROGRAMS)}"))]
    if tail:
        lines.append((at + 3 * MS, _xid(address, 43, f"Ch {rng.randrange(2, 12):08x}", who=f"pid={pid}, name={rng.choice(PROGRAMS)}")))
    return lines


def sm_exception(at: int, rng: random.Random, *, address: str, pid: int | None) -> list[Line]:
    """A kernel did what it may not: 13 from several processors of one chip."""
    lines = []
    for k in range(rng.randrange(1, 4)):
        place = f"(GPC {rng.randrange(7)}, TPC {rng.randrange(9)}, SM {rng.randrange(2)})"
        text = f"Graphics SM Warp Exception on {place}: {rng.choice(('Out Of Range Address', 'Illegal Instruction Parameter', 'Misaligned Address'))}"
        lines.append((at + k * 200_000, _xid(address, 13, text, who=_who(rng, pid))))
    words = f"ESR 0x{rng.getrandbits(20) | 0x500000:x}=0x{rng.getrandbits(24):x} 0x{rng.getrandbits(20) | 0x500000:x}=0x24"
    return [*lines, (at + MS, _xid(address, 13, f"Graphics Exception: {words}", who=_who(rng, pid)))]
