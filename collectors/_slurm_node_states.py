"""The state of a node as Slurm prints it: base state, flags, whether it answers, why; and whose doing that is.

Source: Slurm, manual pages of scontrol (show node) and sinfo (node state codes and the signs behind them).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["NodeState", "Reason", "attribution", "reason_of", "state_of"]

# what sinfo writes, short or long -> base state (None = it does not tell) and flags
_WORDS: Final[dict[str, tuple[str | None, tuple[str, ...]]]] = {
    "alloc": ("ALLOCATED", ()),
    "allocated": ("ALLOCATED", ()),
    "mix": ("MIXED", ()),
    "mixed": ("MIXED", ()),
    "idle": ("IDLE", ()),
    "down": ("DOWN", ()),
    "error": ("ERROR", ()),
    "err": ("ERROR", ()),
    "future": ("FUTURE", ()),
    "futr": ("FUTURE", ()),
    "unknown": ("UNKNOWN", ()),
    "unk": ("UNKNOWN", ()),
    "drain": ("IDLE", ("DRAIN",)),
    "drained": ("IDLE", ("DRAIN",)),
    "draining": (None, ("DRAIN",)),
    "drng": (None, ("DRAIN",)),
    "fail": ("IDLE", ("FAIL",)),
    "failing": (None, ("FAIL",)),
    "failg": (None, ("FAIL",)),
    "maint": (None, ("MAINTENANCE",)),
    "maintenance": (None, ("MAINTENANCE",)),
    "resv": (None, ("RESERVED",)),
    "reserved": (None, ("RESERVED",)),
    "plnd": ("IDLE", ("PLANNED",)),
    "planned": ("IDLE", ("PLANNED",)),
    "comp": (None, ("COMPLETING",)),
    "completing": (None, ("COMPLETING",)),
    "blocked": ("IDLE", ("BLOCKED",)),
    "block": ("IDLE", ("BLOCKED",)),
    "inval": (None, ("INVALID_REG",)),
    "boot": (None, ("REBOOT_ISSUED",)),
    "reboot": (None, ("REBOOT_ISSUED",)),
    "rebooting": (None, ("REBOOT_ISSUED",)),
    "npc": (None, ("PERFCTRS",)),
    "perfctrs": (None, ("PERFCTRS",)),
    "pow_dn": (None, ("POWERING_DOWN",)),
    "pow_up": (None, ("POWERING_UP",)),
    "powering_down": (None, ("POWERING_DOWN",)),
    "powered_down": (None, ("POWERED_DOWN",)),
    "powering_up": (None, ("POWERING_UP",)),
}
_SIGNS: Final = {
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
_BASES: Final = frozenset({"ALLOCATED", "MIXED", "IDLE", "DOWN", "ERROR", "FUTURE", "UNKNOWN"})
_STATE: Final = re.compile(r"([A-Za-z][A-Za-z_+]{1,200})([*~#!%$@^\-]{0,4})((?:\+[A-Za-z_]{2,30}){0,16})")
_REASON: Final = re.compile(r"(?P<why>.*?)\s*\[(?P<by>[^\[\]@]{1,64})@(?P<at>[^\[\]\s]{1,40})\]")
_NO_ANSWER: Final = frozenset({"NOT_RESPONDING", "NO_RESPOND"})
_BROKEN: Final = re.compile(
    r"(?i)\b(?:fail(?:ed|ure|ing|s)?|fault(?:y|s)?|error|xid|ecc|nvlink|unhealthy|unreachable|not responding|unresponsive|broken|lost|dead|died"
    r"|hung|hang|fell off|fallen off|overheat\w*|thermal|bad|missing|degraded|unexpectedly|low (?:real|tmp|socket|cpu|gres)\w*"
    r"|count (?:too low|reported)|kill task|epilog|prolog|leak\w*|crash\w*|panic|mce|rma|replace)\b"
)
_PLANNED: Final = re.compile(
    r"(?i)\b(?:maint(?:enance)?|planned|scheduled|upgrad\w*|updat\w*|firmware|patch\w*|reimag\w*|re-?install\w*|decommission\w*|downtime"
    r"|reboot\w*|migrat\w*|reconfig\w*|relocat\w*|benchmark\w*|acceptance|burn-?in)(?![a-z])"
)


@dataclass(frozen=True)
class NodeState:
    """A state taken apart."""

    base: str | None
    flags: tuple[str, ...]
    is_responding: bool

    @property
    def is_drain(self) -> bool:
        """Whether no new work is placed on it by somebody's wish."""
        return bool({"DRAIN", "DRAINING", "DRAINED", "FAIL"} & set(self.flags))


@dataclass(frozen=True)
class Reason:
    """Why a node is not in use, as somebody wrote it."""

    why: str | None
    by: str | None
    at: str | None  # as printed


def state_of(text: str, more: tuple[str, ...] = ()) -> NodeState | None:
    """The parts of `MIXED+DRAIN`, `DOWN*`, `drained*`, `idle~`; `more` are flags told apart from it. None where it is no state."""
    found = _STATE.fullmatch(text.strip())
    if found is None:
        return None
    base: str | None = None
    flags: list[str] = []
    for place, word in enumerate((found[1] + found[3]).split("+")):
        if word.upper() in _BASES and (place == 0 or base is None):
            base = word.upper()
        elif place == 0 and word.lower() in _WORDS:
            base, told = _WORDS[word.lower()]
            flags += told
        elif place == 0:
            return None
        elif word:
            flags.append(word.upper())
    flags += [_SIGNS[sign] for sign in found[2] if sign in _SIGNS]
    flags += more
    answers = "*" not in found[2] and not _NO_ANSWER & set(flags)
    return NodeState(base, tuple(dict.fromkeys(flag for flag in flags if flag not in _NO_ANSWER)), answers)


def reason_of(text: str | None) -> Reason:
    """`bad dimm [root@2026-09-10T12:00:00]` in its parts; blanks and `=` inside are kept."""
    whole = (text or "").strip()
    found = _REASON.match(whole)
    why, by, at = (found["why"], found["by"], found["at"]) if found else (whole, None, None)
    why = why.strip()[:1000]
    return Reason(None if why.lower() in ("", "none", "(null)", "n/a") else why, by if by not in ("(null)", "Unknown") else None, at)


def attribution(state: NodeState | None, reason: str | None) -> str | None:
    """planned, platform or unknown; None where nothing is wrong: a reservation, work that is planned for it, a node that saves power.

    The scheduler's own maintenance counts before everything. Then what is broken by the words of the reason, then what somebody plans by them; a
    node that is down or does not answer without such words is the platform's, and of one that is only drained nobody says why.
    """
    flags = set(state.flags) if state is not None else set()
    if {"MAINTENANCE", "MAINT"} & flags:
        return "planned"
    is_off = bool({"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP", "CLOUD"} & flags)
    is_down = state is not None and (
        state.base in ("DOWN", "ERROR") or not state.is_responding or "INVALID_REG" in flags or "FAIL" in flags
    )
    is_out = is_down or state is None or state.is_drain or bool({"REBOOT_REQUESTED", "REBOOT_ISSUED"} & flags)
    if not is_out or (is_off and not is_down):
        return None
    if reason and _BROKEN.search(reason):
        return "platform"
    if (reason and _PLANNED.search(reason)) or ({"REBOOT_REQUESTED", "REBOOT_ISSUED"} & flags and not is_down):
        return "planned"
    return "platform" if is_down else "unknown"
