"""Kernel lines that are no Xid: memory, disks, network cards, PCIe, tasks and processors, by the rules of rca/catalogue/kernel_lines.csv."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from collectors._kernel_event import ADDRESS, MESSAGE_CHARS, Event, gpu_address, number
from rca.catalogues import cached
from rca.catalogues import rows as catalogue_rows

__all__ = ["FRAME_MARKERS", "markers", "other_event", "waits_in"]

# Words that patterns are made of. Interfaces of containers come and go with them and mean nothing.
_WORDS: Final[Mapping[str, str]] = {
    "<driver>": r"\w[\w\-]{0,24}",
    "<bdf>": rf"(?P<device>{ADDRESS})",
    "<pci>": ADDRESS,
    "<netdev>": r"(?!lo:|veth|docker|br-|cali|cni|flannel|cilium|lxc|virbr|vnet|tap|tun|podman)(?P<device>[A-Za-z][\w.\-]{0,15})",
    "<mlx5>": r"(?:\w{1,60}:[0-9]{1,6}:\s?\(pid [0-9]{1,10}\): )?",  # function, line and caller
    "<target>": r"(?:(?=.{0,400}?\b(?P<device>[A-Za-z0-9_]{1,16}-(?:MDT|OST)[0-9a-f]{4})))?",  # of Lustre, anywhere in the line
    "<task>": r"(?P<process>.{1,64}?)",
}
_SEVERITIES: Final = (  # how the words for them begin, lower case; the first that fits counts
    *(("uncorrected (fatal", "fatal"), ("uncorrectable (fatal", "fatal"), ("fatal", "fatal")),
    *(
        ("uncor", "uncorrected"),
        ("multi-bit", "uncorrected"),
        ("ue", "uncorrected"),
        ("deferred", "uncorrected"),
        ("recoverable", "uncorrected"),
    ),
    *(("machine check exception", "uncorrected"), ("machine check", "corrected"), ("cor", "corrected"), ("ce", "corrected")),
)

FRAME_MARKERS: Final = (
    "[nvidia",
    "[nfs",
    "[sunrpc",
    "[lustre",
    "[ptlrpc",
    "[ceph",
    "[libceph",
    "[fuse",
)  # drivers in which trainers get stuck
_FRAME: Final = re.compile(
    r"[\w.]{1,120}\+0x[0-9a-f]{1,8}/0x[0-9a-f]{1,8} \[(?P<module>\w{1,60})\b"
)  # one with `?` before it may be a left-over


@dataclass(frozen=True, slots=True)
class _Rule:
    """Lines of one kind: they begin as `pattern` says, whose groups fill columns (device2 is device too)."""

    kind: str
    what: str
    pattern: re.Pattern[str]
    severity: str | None
    turn: Callable[[Event], Event] | None


def other_event(body: str) -> Event | None:
    """The event that the first fitting rule makes of a line; None for a line that no rule knows."""
    for marker, rule in _rules():
        if marker in body and (found := rule.pattern.match(body)):
            event = _event(rule, found, body[:MESSAGE_CHARS])
            return rule.turn(event) if rule.turn else event
    return None


def waits_in(body: str) -> str | None:
    """The module of the kernel whose function a line of a call trace names; None for any other line, and for functions of the kernel proper."""
    found = _FRAME.match(body.lstrip()) if any(marker in body for marker in FRAME_MARKERS) else None
    return found["module"] if found else None


def markers() -> set[str]:
    """Words of which a line must hold one for any rule to fit."""
    return {marker for marker, _ in _rules()} | set(FRAME_MARKERS)


@cached
def _rules() -> tuple[tuple[str, _Rule], ...]:
    """Every rule with each of its markers, in the order of the catalogue."""
    rules = []
    for row in catalogue_rows("kernel_lines"):
        pattern = row["pattern"]
        for word, meaning in _WORDS.items():
            pattern = pattern.replace(word, meaning)
        turn = _TURNS[row["turn"]] if row["turn"] else None
        rule = _Rule(row["kind"], row["what"], re.compile(pattern), row["severity"] or None, turn)
        rules += [(marker, rule) for marker in row["markers"].split("|")]
    return tuple(rules)


def _event(rule: _Rule, found: re.Match[str], message: str) -> Event:
    said = {name.rstrip("2"): text for name, text in found.groupdict().items() if text is not None}
    device = said.get("device") or (f"cpu{said['cpu']}" if "cpu" in said else None)
    is_ib = rule.kind == "nic" and device is not None and device.startswith("ib")  # an interface on InfiniBand
    return Event(
        "ib" if is_ib else rule.kind,
        message,
        what=rule.what,
        gpu=gpu_address(said["gpu"]) if "gpu" in said else None,
        device=device,
        pid=number(said.get("pid")),
        process=said.get("process"),
        severity=_severity(said["severity"]) if "severity" in said else rule.severity,
    )


def _severity(word: str) -> str | None:
    lowered = word.lower()
    return next((severity for start, severity in _SEVERITIES if lowered.startswith(start)), None)


def _over(event: Event) -> Event:
    """Good news: counts only beside the trouble that it ends."""
    return replace(event, recovery="none", folds_only=True)


def _lower_bound(event: Event) -> Event:
    """A controller that says OVERFLOW has counted more errors than it tells."""
    return replace(event, is_lower_bound="OVERFLOW" in event.message)


def _victim(event: Event) -> Event:
    """Where memory ran out: in a container's memory cgroup, or on the host; lines of the reaper leave it open."""
    if "Memory cgroup" in event.message or "CONSTRAINT_MEMCG" in event.message:
        return replace(event, unit="memcg")
    return replace(event, unit="host") if event.message.startswith(("Out of memory", "oom-kill:")) else event


_TURNS: Final[Mapping[str, Callable[[Event], Event]]] = {"over": _over, "lower_bound": _lower_bound, "victim": _victim}
