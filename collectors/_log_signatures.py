"""Which kind of line is it: the patterns of rca/catalogue/log_patterns.csv, first fit first, and what their named groups tell.

A pattern may name groups: rank (a global one), peer, peer2, host, pid, signal (name or number), death (signal in words), code (exit code),
stamp. A signature left empty marks a line that says nothing although it holds words of another pattern. `unless` names what takes a loose
pattern's meaning away: `denied`, words around it that say that nothing happened, or that it is only looked for; `info`, a logger that itself
calls the line information. No pattern is believed inside of a quoted sample: what a model read or wrote.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Any, Final

from collectors._log_prefix import plain_host
from rca.catalogues import cached, rows

__all__ = ["Pattern", "Sighting", "classify", "first_fit", "numbers_of", "patterns", "signal_name", "signal_of_exit", "words"]

WRAPPERS: Final = frozenset({"nccl_watchdog_terminated"})  # the text behind the match is the real message
ENDED_BY_SIGNAL: Final = 128  # shells and containers report 128 + signal number as the exit code
_OUT_OF_MEMORY: Final = "out of memory"
_DEATHS: Final = {
    "killed": "SIGKILL",
    "terminated": "SIGTERM",
    "aborted": "SIGABRT",
    "bus error": "SIGBUS",
    "segmentation fault": "SIGSEGV",
    "segfault": "SIGSEGV",
    "floating point exception": "SIGFPE",
    "floating-point exception": "SIGFPE",
    "illegal instruction": "SIGILL",
    "hangup": "SIGHUP",
    "interrupt": "SIGINT",
    _OUT_OF_MEMORY: "SIGKILL",
    "keyboardinterrupt": "SIGINT",
}


_DENIED_BEFORE: Final = re.compile(
    r"(?i)(?:\b(?:no|not|non|without|zero|never|neither|avoid\w*|prevent\w*|check\w*|look\w* for|detection of|in case of|may|might|could|would)"
    r"|(?:^|[,;:=(] ?|\b(?:with|found|has|had|have|of|reports?) )0)(?:[ _-]{1,2}\w{1,20}){0,2}[ _-]{0,2}$"
)
_DENIED_INSIDE: Final = re.compile(r"(?i)\b(?:no|not|without) (?:an? )?(?:nan|inf)")
_DENIED_BEHIND: Final = re.compile(
    r"(?i)^\w{0,8}(?:/inf)?[ _-]?(?:\w{1,20}[ _-]){0,2}?(?:\(\w{1,20}\) ?)?(?:\w{0,20} ?[:=] ?(?:0|false|none|no|off|ok)\b|\.{2,3} ?ok\b"
    r"|(?:counts?|is|are|was|were|stays?|remains?) (?:at )?(?:0|zero)\b"
    r"|(?:enabled|disabled|will be|checks?|checking|handl(?:ing|ed|ers?)|detection|protection)\b)"
)
_SAMPLE: Final = re.compile(  # what a model read or wrote, as trainers print it
    r"(?i)\b(?:answers?|questions?|prompts?|completions?|generated(?:_text)?|generations?|hypothesis|predictions?|references?|transcript|caption)"
    r"[\"']{0,2} ?[:=] ?[\[(]?(?:\"[^\"]{0,300}|'[^']{0,300})$"
)
SAMPLED = 340  # characters before a match in which a sample may begin
NEAR = 40  # characters on either side of a match that may deny it

_DIGITS: Final = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class Sighting:
    """A recognised kind of line and the columns of `log_events` that its text fills."""

    signature: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A row of the list: a line of this kind holds the word, in whatever case, and the expression finds a place in it."""

    signature: str
    word: str
    unless: frozenset[str]
    regex: re.Pattern[str]


@cached
def patterns() -> tuple[Pattern, ...]:
    """All of them, in the order in which they are asked."""
    return tuple(
        Pattern(row["signature"], row["word"], frozenset(row.get("unless", "").split()), re.compile(row["pattern"]))
        for row in rows("log_patterns")
    )


def words() -> tuple[str, ...]:
    """Lower-case words of which a line holds at least one if any pattern fits it."""
    return tuple(dict.fromkeys(pattern.word for pattern in patterns()))


def numbers_of(text: str) -> set[str]:
    """Numbers that patterns of which the text holds the word name outright: with another one the text may be of another kind."""
    lowered = _DIGITS.sub("0", text.lower())
    plain = (re.sub(r"\{[0-9,]*\}", "", p.regex.pattern) for p in patterns() if _DIGITS.sub("0", p.word) in lowered)
    return {number for source in plain for number in _DIGITS.findall(source)}


def first_fit(text: str, level: str | None = None) -> tuple[Pattern, re.Match[str]] | None:
    """The pattern that tells what a message is, and where it fits; None where none does. `level` is what the message's logger calls it."""
    lowered = text.lower()
    is_information = level in ("info", "debug")
    for pattern in patterns():
        if pattern.word not in lowered or (is_information and "info" in pattern.unless) or not (found := pattern.regex.search(text)):
            continue
        if "denied" in pattern.unless and _is_denied(text, found):
            continue
        return None if _SAMPLE.search(text[max(found.start() - SAMPLED, 0) : found.start()]) else (pattern, found)
    return None


def classify(text: str, level: str | None = None) -> list[Sighting]:
    """The kinds of one message: none or one, and behind a wrapper also what it wraps; what srun says of memory is also told of the host."""
    if (fit := first_fit(text, level)) is None or not fit[0].signature:
        return []
    signature, found = fit[0].signature, fit[1]
    sightings = [Sighting(signature, _fields(found, signature))]
    if signature in WRAPPERS:
        return sightings + classify(text[found.end() :])
    if signature == "slurm_task_exit" and (found["death"] or "").strip().lower() == _OUT_OF_MEMORY:  # the limit of a cgroup
        sightings.append(Sighting("host_out_of_memory", {"host": sightings[0].fields.get("host")}))
    return sightings


def _is_denied(text: str, found: re.Match[str]) -> bool:
    """Whether the words around a match say that nothing happened."""
    start, end = found.span()
    return (
        _DENIED_BEFORE.search(text[max(start - NEAR, 0) : start]) is not None
        or _DENIED_INSIDE.search(found[0]) is not None
        or _DENIED_BEHIND.match(text[end : end + NEAR]) is not None
    )


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
