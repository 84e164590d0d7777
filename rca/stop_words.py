"""How a job was ended from outside, in words that fit the kind of end, and what to do then. Pure.

A limit that ran out, nodes that were taken and a person who cancelled are all no fault, and not one of them is the other: nobody decided on a time
limit, and a job whose workers were taken away may run on by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rca.types import Finding

__all__ = ["STOPS", "StopWords", "stood_still", "stop_kind", "stop_words"]


@dataclass(frozen=True)
class StopWords:
    """`says` = who or what ended the job, `then` = what to do."""

    says: str
    then: str


STOPS: Final[Mapping[str, StopWords]] = {
    "time_limit": StopWords(
        "its time limit ended it",
        "its time limit ended it, nobody decided to: resubmit it from the last checkpoint, or with a longer limit",
    ),
    "preempted": StopWords(
        "the scheduler took the nodes",
        "the scheduler took the nodes: it goes on when it gets nodes again; see that it is queued (requeue), else submit it from the last checkpoint",
    ),
    "reclaimed": StopWords(
        "the cloud took its instances back",
        "the cloud took its instances back: start it from the last checkpoint on other instances; these do not come back by themselves",
    ),
    "cancelled": StopWords(
        "it was cancelled", "it was cancelled, nothing is to be mended: whoever did it knows whether and when it is to start again"
    ),
    "maintenance": StopWords(
        "it was stopped for maintenance",
        "stopped for maintenance: start it from the last checkpoint when the window is over, or on other hosts",
    ),
    "drained": StopWords(
        "its nodes were drained",
        "its nodes were drained: start it from the last checkpoint on other nodes, or when these are back in service",
    ),
    "scaled_down": StopWords(
        "workers were taken away",
        "workers were taken away: see that it runs on with those that stay (batch and learning rate follow their number), else start it at that size",
    ),
    "requeued": StopWords("the scheduler put it back in the queue", "it is back in the queue and starts again by itself: see that it does"),
    "stopped": StopWords("stopped on purpose", "stopped on purpose: start it again when the reason is over"),
}

TAKEN: Final = ("preempted", "reclaimed")  # kinds in which somebody else got the nodes
_PERSON: Final = re.compile(r"(?i)\b(?:user|owner|uid)\b|\bby (?!0\b|root\b|slurm\b)\w")  # who asked for it
_LIMIT: Final = frozenset({"time_limit", "slurm_time_limit"})
_REQUEUE: Final = frozenset({"requeued", "slurm_requeued"})
_RECLAIM: Final = re.compile(
    r"(?i)\bspot\b|\binstances?\b.{0,60}\b(?:reclaim|terminat|interrupt)|\breclaim\w*\b.{0,60}\binstance|rebalance"
)
_BY_WORDS: Final = (  # of an announcement, the sharpest first
    ("scaled_down", re.compile(r"(?i)\bscal(?:e|ed|ing)[- ]?(?:down|in)\b|\bScaleDown\b")),
    ("maintenance", re.compile(r"(?i)\bmaintenance\b|\bfirmware\b")),
    ("drained", re.compile(r"(?i)\bdrain|\bcordon|\bdecommission|\bevacuat")),
    ("cancelled", re.compile(r"(?i)\bcancel|\bscancel\b|\bqdel\b|\bbkill\b|\bkubectl delete\b|\b(?:user|owner)\b")),
)


def stop_kind(signature: str, reason: str, *, is_preemption: bool = False) -> str:
    """The kind of an announced end, a key of `STOPS`, by what the line was recognised as and its words."""
    if signature in _LIMIT:
        return "time_limit"
    if signature in _REQUEUE:
        return "requeued"
    if is_preemption:
        return "reclaimed" if _RECLAIM.search(reason) else "preempted"
    return next((kind for kind, words in _BY_WORDS if words.search(reason)), "stopped")


def stop_words(findings: Iterable[Finding], cause: str) -> StopWords | None:
    """The words for a planned cause, by the first finding that tells how the job was ended; None where none does.

    Why comes before how: a job that was cancelled for a maintenance, by nobody who is named, was ended for that; and `stopped` says least.
    """
    told = [(str(f.numbers["stop_kind"]), str(f.numbers.get("reason") or "")) for f in findings if f.numbers.get("stop_kind") in STOPS]
    fitting = [(_vagueness(kind, reason), kind) for kind, reason in told if (kind in TAKEN) == (cause == "preemption")]
    return STOPS[min(fitting, key=lambda one: one[0])[1]] if fitting else None


def _vagueness(kind: str, reason: str) -> int:
    if kind == "stopped":
        return 2
    return int(kind == "cancelled" and _PERSON.search(reason) is None)


def stood_still(findings: Iterable[Finding]) -> str | None:
    """Of a job that was stopped after it had stood still: `it was cancelled after standing still for 37 min since step 1454`."""
    found = next((f for f in findings if f.analysis == "planned_stop" and f.numbers.get("stood_still_s") is not None), None)
    if found is None:
        return None
    step, kind = found.numbers["last_step"], str(found.numbers.get("stop_kind"))
    said = STOPS[kind].says if kind in STOPS else "it was stopped"
    return f"{said} after standing still for {_long(found.numbers['stood_still_s'])}{f' since step {step}' if step is not None else ''}"


def _long(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 120 else f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
