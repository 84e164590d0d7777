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
    is; open otherwise. Where the truth says `any_of_ranks`, nobody could tell its ranks apart: some of them are enough, and with `tie` others may
    be named beside them; with `or_nobody` naming none is as right. `evict_hosts` are those that may go, where they are not the hosts at fault: a
    group nobody can look into goes whole.
    """
    first = verdict.get("first_failing") or {}
    evicted = (advice.get("evict") or {}).get("hosts") or ()
    some = bool(truth.get("any_of_ranks"))
    may_go = {*truth["hosts"], *(truth.get("evict_hosts") or ())}
    marks: dict[str, Mark] = {
        "ranks": _set(first.get("ranks") or (), truth["first_failing_ranks"], some=some, beside=some and bool(truth.get("tie"))),
        "hosts": _set(first.get("hosts") or (), truth["hosts"], some=some, beside=some),
        **{part: _word(part, verdict.get(part), truth[part]) for part in ("cause", "layer", "attribution")},
        "action": _word("action", advice.get("action"), truth["action"]),
        "evicted": "right" if some or set(evicted) <= may_go else "wrong",
    }
    if truth.get("or_nobody"):
        marks |= {part: "right" for part in ("ranks", "hosts") if not first.get(part)}
    if any(marks[part] == "wrong" for part in ACCUSING):
        return "wrong", marks
    return ("right" if set(marks.values()) == {"right"} else "open"), marks


def _set(named: Collection[Any], wanted: Collection[Any], *, some: bool = False, beside: bool = False) -> Mark:
    """All of them (or `some`) is right, part of them or none is open, a foreign one is wrong unless it may stand `beside` them."""
    has_hit, is_foreign = bool(set(named) & set(wanted)), not set(named) <= set(wanted)
    if set(named) == set(wanted) or (some and has_hit and (beside or not is_foreign)):
        return "right"
    return "wrong" if is_foreign else "open"


def _word(part: str, said: str | None, accepted: Collection[str]) -> Mark:
    if said in accepted:
        return "right"
    return "open" if said is None or said in OPEN[part] else "wrong"
