"""Which kind of line is it: the patterns of rca/catalogue/log_patterns.csv, first fit first, and what their named groups tell.

A pattern may name groups: rank (a global one), peer, peer2, host, pid, signal (name or number), death (signal in words), code (exit code),
stamp. A signature left empty marks a line that says nothing although it holds words of another pattern.
"""

from __future__ import annotations

import csv
import re
import signal
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Final

from collectors._log_prefix import plain_host

__all__ = ["Sighting", "classify", "signal_name", "signal_of_exit", "words"]

WRAPPERS: Final = frozenset({"nccl_watchdog_terminated"})  # the text behind the match is the real message
ENDED_BY_SIGNAL: Final = 128  # shells and containers report 128 + signal number as the exit code
_DEATHS: Final = {
    "killed": "SIGKILL",
    "terminated": "SIGTERM",
    "aborted": "SIGABRT",
    "bus error": "SIGBUS",
    "segmentation fault": "SIGSEGV",
    "floating point exception": "SIGFPE",
    "floating-point exception": "SIGFPE",
    "illegal instruction": "SIGILL",
    "hangup": "SIGHUP",
    "interrupt": "SIGINT",
    "out of memory": "SIGKILL",
    "keyboardinterrupt": "SIGINT",
}


@dataclass(frozen=True, slots=True)
class Sighting:
    """A recognised kind of line and the columns of `log_events` that its text fills."""

    signature: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Pattern:
    signature: str
    word: str
    regex: re.Pattern[str]


@lru_cache(maxsize=1)
def _patterns() -> tuple[_Pattern, ...]:
    text = resources.files("rca.catalogue").joinpath("log_patterns.csv").read_text("utf-8")
    return tuple(_Pattern(row["signature"], row["word"], re.compile(row["pattern"])) for row in csv.DictReader(text.splitlines()))


def words() -> tuple[str, ...]:
    """Lower-case words of which a line holds at least one if any pattern fits it."""
    return tuple(dict.fromkeys(pattern.word for pattern in _patterns()))


def classify(text: str) -> list[Sighting]:
    """The kinds of one message: none or one, and behind a wrapper also what it wraps."""
    lowered = text.lower()
    for pattern in _patterns():
        if pattern.word in lowered and (found := pattern.regex.search(text)):
            if not pattern.signature:
                return []
            sightings = [Sighting(pattern.signature, _fields(found, pattern.signature))]
            return sightings + (classify(text[found.end() :]) if pattern.signature in WRAPPERS else [])
    return []


def _fields(found: re.Match[str], signature: str) -> dict[str, Any]:
    said = {name: value for name, value in found.groupdict().items() if value}
    fields: dict[str, Any] = {name: int(said[name]) for name in ("rank", "pid") if name in said and len(said[name]) < 16}
    if peer := said.get("peer") or said.get("peer2"):
        fields["peer"] = peer
    if "host" in said:
        fields["host"] = plain_host(said["host"])
    if "stamp" in said:
        fields["logged_at_local"] = said["stamp"]
    name = signal_name(said.get("signal") or said.get("death") or "")
    if "code" in said:
        fields["exit_code"] = int(said["code"])
        name = name or signal_of_exit(int(said["code"]))
    if signature == "slurm_task_exit":  # an exit status, not the signal that a process met
        fields.setdefault("exit_code", -int(signal.Signals[name]) if name else None)
    elif name and not signature.startswith("elastic_"):
        fields["signal"] = name
    return fields


def signal_name(said: str) -> str | None:
    """SIGKILL of "9", "SIGKILL", "KILL", "Signals.SIGKILL" or "Killed"; None for what is no signal."""
    said = said.strip()
    if said.isascii() and said.isdigit():
        return signal.Signals(int(said)).name if len(said) < 3 and int(said) in signal.valid_signals() else None
    if known := _DEATHS.get(said.lower()):
        return known
    name = said.upper().rpartition(".")[2]
    name = name if name.startswith("SIG") else f"SIG{name}"
    return name if name in signal.Signals.__members__ else None


def signal_of_exit(code: int) -> str | None:
    """The signal behind an exit code: negative (Python), or 128 and more (shells, containers); None for a plain exit."""
    number = -code if code < 0 else code - ENDED_BY_SIGNAL
    return signal_name(str(number)) if number > 0 else None
