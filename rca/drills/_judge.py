"""Marks a verdict against the truth of a drill: what is right, what is left open, what is wrong. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

__all__ = ["PARTS", "Mark", "judge"]

Mark = Literal["right", "open", "wrong"]
PARTS = ("ranks", "hosts", "cause", "layer", "attribution", "action", "evicted")

# What a verdict may always say without being wrong: that it doesn't know, or only that a process died.
OPEN = {
    "cause": ("unknown", "process_killed"),
    "layer": ("unknown",),
    "attribution": ("unknown",),
    "action": ("human",),
}
ACCUSING = ("ranks", "hosts", "cause", "evicted")  # wrong here is wrong as a whole; the rest follows from the cause


def judge(truth: Mapping[str, Any], verdict: Mapping[str, Any], advice: Mapping[str, Any]) -> tuple[Mark, dict[str, Mark]]:
    """The mark of a whole answer and of its parts; `verdict` and `advice` as in the document of `rca diagnose --json`.

    An answer is wrong if it accuses a rank or host that is not at fault, evicts such a host or names another cause; right if every part
    is; open otherwise.
    """
    first = verdict.get("first_failing") or {}
    evicted = (advice.get("evict") or {}).get("hosts") or ()
    marks: dict[str, Mark] = {
        "ranks": _set(first.get("ranks") or (), truth["first_failing_ranks"]),
        "hosts": _set(first.get("hosts") or (), truth["hosts"]),
        **{part: _word(part, verdict.get(part), truth[part]) for part in ("cause", "layer", "attribution")},
        "action": _word("action", advice.get("action"), truth["action"]),
        "evicted": "right" if set(evicted) <= set(truth["hosts"]) else "wrong",
    }
    if any(marks[part] == "wrong" for part in ACCUSING):
        return "wrong", marks
    return ("right" if set(marks.values()) == {"right"} else "open"), marks


def _set(named: Collection[Any], wanted: Collection[Any]) -> Mark:
    """All of them is right, some or none is open, a foreign one is wrong."""
    if set(named) == set(wanted):
        return "right"
    return "open" if set(named) <= set(wanted) else "wrong"


def _word(part: str, said: str | None, accepted: Collection[str]) -> Mark:
    if said in accepted:
        return "right"
    return "open" if said is None or said in OPEN[part] else "wrong"
