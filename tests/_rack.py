"""Kernel logs, a rank map and trainer logs of made-up racks and hosts in which a GPU or link fails: what the chains of Xids are tested on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
GB200 = ("0008:01:00", "0009:01:00", "0018:01:00", "0019:01:00")  # GPUs of one compute tray
HGX = tuple(f"0000:{bus}:00" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df"))
LOST_PACKETS = "RLW_SRC_TRACK Nonfatal XC1 i0 Link {link:02} (0x040988e2 0x00000008 0x00000000 0x00000000 0x00000000 0x00000000)"
LINK_DOWN = "NETIR_LINK_EVT  Fatal   XC0 i0 Link {link:02} (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
LINK_RECOVERED = "NETIR_BER_EVENT Nonfatal XC0 i0 Link {link:02} (0x00086226 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)"
TORN_DOWN = "pid={pid}, name=python, Ch 00000012"


@dataclass
class Rack:
    """Hosts with the same GPUs each; rank r sits on GPU r % len(gpus) of host r // len(gpus), as process 5000 + r."""

    num_hosts: int = 16
    gpus: tuple[str, ...] = GB200
    lines: dict[str, list[tuple[float, str]]] = field(default_factory=dict)  # host -> seconds after noon by a perfect clock, text
    stamp: Callable[[float], str] = field(default=lambda seconds: iso(seconds))  # of a kernel log's line
    off_s: dict[str, float] = field(default_factory=dict)  # how far a host's clock is ahead

    @property
    def hosts(self) -> list[str]:
        return [f"host-{n:02}" for n in range(self.num_hosts)]

    @property
    def world_size(self) -> int:
        return self.num_hosts * len(self.gpus)

    def place(self, rank: int) -> tuple[str, str]:
        """Host and GPU of a rank."""
        return self.hosts[rank // len(self.gpus)], self.gpus[rank % len(self.gpus)]

    def say(self, host: str, seconds: float, text: str) -> Rack:
        self.lines.setdefault(host, []).append((seconds, text))
        return self

    def xid(self, rank: int, seconds: float, code: int, body: str, *, times: int = 1) -> Rack:
        """An Xid of the GPU of a rank; `times`: so many lines, a millisecond apart."""
        host, gpu = self.place(rank)
        for number in range(times):
            self.say(host, seconds + number / 1000, f"NVRM: Xid (PCI:{gpu}): {code}, {body.format(link=14, pid=5000 + rank)}")
        return self

    def torn_down(self, ranks: Iterable[int], seconds: float, *, times: int = 40) -> Rack:
        """The channels of these ranks, at the end of the job."""
        for rank in ranks:
            self.xid(rank, seconds + rank / 1e4, 45, TORN_DOWN, times=times)
        return self

    def write(
        self, folder: Path, *, logs_of: Mapping[int, Iterable[tuple[float, str]]] | None = None, without: Collection[str] = ()
    ) -> Path:
        """HOST.dmesg.log of every host but those in `without`, ranks.csv, and trainer logs where given."""
        folder.mkdir(parents=True, exist_ok=True)
        for host in self.hosts:
            if host in without:
                continue
            told = [(-600.0 + n, f"systemd[1]: Started unit {n}.") for n in range(3)] + self.lines.get(host, [])
            told = sorted([*told, (30.0, "systemd[1]: Reached target Timers.")])
            text = "".join(f"{self.stamp(seconds + self.off_s.get(host, 0.0))} {line}\n" for seconds, line in told)
            (folder / f"{host}.dmesg.log").write_text(text)
        ranks = "".join(f"{rank},{host},{gpu},{5000 + rank}\n" for rank in range(self.world_size) for host, gpu in [self.place(rank)])
        (folder / "ranks.csv").write_text(f"rank,host,gpu,pid\n{ranks}")
        for rank, lines in (logs_of or {}).items():
            host, _ = self.place(rank)
            text = "".join(f"{iso(seconds + self.off_s.get(host, 0.0)).replace(',', '.')} {line}\n" for seconds, line in lines)
            (folder / f"trainer_rank_{rank}.log").write_text(text)
        return folder


def iso(seconds: float) -> str:
    """As `dmesg --time-format iso` prints it."""
    at = NOON + timedelta(seconds=seconds)
    return f"{at:%Y-%m-%dT%H:%M:%S},{at.microsecond:06d}+00:00"


def rack_with_a_bad_link(bad: int = 21) -> Rack:
    """One GPU of 64 logs 149 after recoveries, the other 63 lose packets in the same seconds, then everybody's channels are torn down."""
    rack = Rack()
    for number in range(5):
        rack.xid(bad, -5 * 86400 + number * 60, 149, LINK_RECOVERED)
    rack.xid(bad, 0.4, 149, LINK_DOWN)
    for rank in range(rack.world_size):
        if rank != bad:
            rack.xid(rank, 0.1 + rank % 7 / 10, 145, LOST_PACKETS)
    return rack.torn_down((r for r in range(rack.world_size) if r != bad), 6.0)


def victims_words(rack: Rack, bad: int) -> dict[int, list[tuple[float, str]]]:
    """Trainer logs: steps, then at each rank but the bad one the error of a GPU that a peer's link broke, seconds after the fault."""
    error = "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error"
    found = {}
    for rank in range(rack.world_size):
        steps = [(-20.0 + n, f"INFO [rank{rank}] step {100 + n} loss 2.31 time_ms 1000.0") for n in range(20)]
        fault = [(1.0 + rank / 50, f"ERROR [rank{rank}] {error}")] if rank != bad else []
        found[rank] = [*steps, *fault]
    return found


def since_boot(seconds: float) -> str:
    """As plain `dmesg` prints it, 2 days after the boot."""
    return f"[{172_800 + 5 * 86_400 + seconds:12.6f}]"


def local_time(seconds: float) -> str:
    """As `dmesg -T` prints it: the host's own time, without a zone."""
    return f"[{NOON + timedelta(seconds=seconds):%a %b %d %H:%M:%S %Y}]"
