"""Kernel logs of hosts as files: the forms in which sites keep them, with the lines of an ordinary hour around what is told."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from rca.drills._kernel import BENIGN, Line

__all__ = ["FORMS", "Form", "boots", "kernel_files"]

Form = Literal["since_boot", "iso", "journal", "syslog", "kmsg", "ctime"]
FORMS: Final[tuple[Form, ...]] = ("since_boot", "iso", "journal", "syslog", "kmsg", "ctime")
S: Final = 1_000_000_000
HOUR: Final = 3600 * S
DAY: Final = 24 * HOUR
MORE_BENIGN: Final = (
    "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
    'audit: type=1400 audit(0.0:31): apparmor="STATUS" operation="profile_replace" profile="unconfined" name="snap.lxd"',
    "docker0: port 1(veth1a2b3c) entered blocking state",
    "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 268269): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5)",
    "process 'local/bin/collector' started with executable stack",
    "cgroup: fork rejected by pids controller in /user.slice",
    "EDAC MC: Ver: 3.0.0",
    "mce: CPU12: Core temperature/speed normal",
    "systemd[1]: Started Session 412 of user root.",
)


def boots(hosts: Iterable[str], began_at: int, seed: int) -> dict[str, int]:
    """When each host booted, ns: 3 to 40 days before the training began."""
    rng = random.Random(f"boots:{seed}")
    return {host: began_at - rng.randrange(3 * DAY, 40 * DAY) for host in hosts}


def kernel_files(
    told: Mapping[str, Iterable[Line]],
    hosts: Sequence[str],
    *,
    form: Form,
    booted: Mapping[str, int],
    began_at: int,
    captured_at: int,
    seed: int,
    skew_ns: Mapping[str, int],
    ends_at: Mapping[str, int] | None = None,
    zone_h: int | None = None,
) -> dict[str, list[str]]:
    """Path -> lines of the log of each host, and hosts.json where stamps count from boot. `ends_at`: hosts that wrote nothing after an
    instant. `zone_h`: hours that local time is ahead of UTC, where hosts.json shall tell it.
    """
    files: dict[str, list[str]] = {}
    began: dict[str, int] = {}
    stamp = _STAMPS[form]
    for host in hosts:
        rng = random.Random(f"kernel:{seed}:{host}")
        span = range(min(began_at, captured_at) - HOUR, captured_at)
        ordinary = [(rng.choice(span), rng.choice((*BENIGN, *MORE_BENIGN))) for _ in range(rng.randrange(2, 8))]
        last = (ends_at or {}).get(host)
        lines = sorted(line for line in [*ordinary, *told.get(host, ())] if last is None or line[0] <= last)
        began[host] = up = min([booted[host], *(at - HOUR for at, _ in lines)])  # nothing was logged before the host was up
        # A clock that is off shows in wall stamps; what counts from boot is right, and so is a boot that the right clock tells.
        off = 0 if form in ("since_boot", "kmsg") else skew_ns.get(host, 0) + (HOUR * (zone_h or 0) if form in ("ctime", "syslog") else 0)
        files[f"kernel/{host}.{'journal' if form in ('journal', 'syslog') else 'dmesg'}.log"] = [
            stamp(at + off, up + off, host, text, number) for number, (at, text) in enumerate(lines)
        ]
    is_local = form in ("ctime", "syslog") or zone_h is not None
    facts = {host: {"zone_offset_s": 3600 * (zone_h or 0)} if is_local else {} for host in hosts}
    if form in ("since_boot", "kmsg", "ctime"):
        facts = {host: {"boot_time_ns": began[host], **facts[host]} for host in hosts}
    if any(facts.values()):
        files["kernel/hosts.json"] = json.dumps(facts, indent=1).split("\n")
    return files


def _at(ns: int) -> datetime:
    return datetime.fromtimestamp(ns // S, UTC)


def _since_boot(at: int, boot: int, host: str, text: str, number: int) -> str:
    return f"[{(at - boot) / 1e9:12.6f}] {text}"


def _iso(at: int, boot: int, host: str, text: str, number: int) -> str:
    return f"{_at(at):%Y-%m-%dT%H:%M:%S},{at // 1000 % 1_000_000:06d}+00:00 {text}"


def _journal(at: int, boot: int, host: str, text: str, number: int) -> str:
    """`journalctl -k -o short-iso-precise`."""
    who = "" if text.startswith("systemd[") else "kernel: "
    return f"{_at(at):%Y-%m-%dT%H:%M:%S}.{at // 1000 % 1_000_000:06d}+0000 {host} {who}{text}"


def _syslog(at: int, boot: int, host: str, text: str, number: int) -> str:
    """RFC 3164: no year, no zone; the stamp since boot beside it."""
    when = f"{_at(at):%b} {_at(at).day:2d} {_at(at):%H:%M:%S}"
    return f"{when} {host} {text}" if text.startswith("systemd[") else f"{when} {host} kernel: [{(at - boot) / 1e9:12.6f}] {text}"


def _kmsg(at: int, boot: int, host: str, text: str, number: int) -> str:
    return f"{4 if 'NVRM' in text or 'rror' in text else 6},{2000 + number},{(at - boot) // 1000},-;{text}"


def _ctime(at: int, boot: int, host: str, text: str, number: int) -> str:
    when = _at(at)
    return f"[{when:%a %b} {when.day:2d} {when:%H:%M:%S %Y}] {text}"


_STAMPS: Final[Mapping[str, Callable[[int, int, str, str, int], str]]] = {
    "since_boot": _since_boot,
    "iso": _iso,
    "journal": _journal,
    "syslog": _syslog,
    "kmsg": _kmsg,
    "ctime": _ctime,
}
