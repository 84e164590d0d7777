"""Which checkpoint a rollback can go back to: the newest before the fault whose files are here and whole, else one that a log says was saved. Pure.

A save that only began, or failed, is none; nor is one whose files are torn, whatever a log says. What nothing names is not guessed: no name, no
checkpoint. Why newer ones were passed over is told. Where numbers went wrong, "before the fault" means before the first step whose state may be
wrong, which is often earlier than the step at which it was noticed.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import polars as pl

from rca.saved_states import DAMAGED, SavedState, saved_states
from rca.step_names import step_said
from rca.types import Finding, Tables, Verdict

__all__ = ["Rollback", "Save", "first_divergence", "last_load", "newest_save", "rollback"]

SPREADS: Final = frozenset(
    {"silent_data_corruption", "numeric_divergence", "bad_sample"}
)  # causes after which the state itself may be wrong

MAX_PASSED: Final = 8  # newer checkpoints whose reasons are told

_DONE: Final = re.compile(
    r"(?i)\b(?:saved|wrote|written|stored|persisted|(?:save|write|checkpoint)\w*\b.{0,80}\b(?:done|finished|completed?|took))\b"
)
_NOT_DONE: Final = re.compile(r"(?i)\b(?:fail\w*|error|unable|cannot|could not|not saved|will be|skip\w*|abort\w*)\b")
_PATH: Final = re.compile(r"(?<![\w:/.])(?:\w{1,10}:/)?/[\w.+=@-]+(?:/[\w.+=@-]+)*")  # from a root or a store
_ANY_STEP: Final = 2**62  # above the step of any save
_NEVER: Final = datetime(1, 1, 1, tzinfo=UTC)
_SHARD: Final = re.compile(r"(?i)\.(?:pt|pth|bin|safetensors|distcp|metadata)$")
_CHECKPOINT: Final = re.compile(r"(?i)(?:checkpoints?|ckpts?|global_step|iter_|step[-_])[\w./=+-]*[0-9]|\.(?:ckpt|distcp|safetensors)$")
_NAME: Final = re.compile(
    r"(?i)(?<![\w/.-])(?:[\w.-]{1,80}/){0,8}(?:[\w-]{0,40}(?:step|iter(?:ation)?|epoch|checkpoint|ckpt)s?[_-]?[0-9][\w.-]{0,80}"
    r"|[\w-]{1,80}\.(?:pt|pth|ckpt|safetensors|distcp)\b)"
)


@dataclass(frozen=True)
class Save:
    """A finished save. `name` is its path or name, as the log has it; `path` and `record` say where the log does."""

    step: int | None
    name: str
    path: str
    record: str
    is_whole: bool = False  # its files are here, and none is torn


@dataclass(frozen=True)
class Rollback:
    """Where a rollback goes (None: nothing names a checkpoint), and why newer checkpoints were passed over."""

    save: Save | None
    passed: tuple[str, ...] = ()
    before: int | None = None  # the step that it must be from before: the first whose state may be wrong
    unreadable: Save | None = None  # the checkpoint that the job could not read, as a log names it: not to be loaded again
    folder: str | None = None  # where the job saves to, as far as a log tells


def first_divergence(verdict: Verdict, findings: Iterable[Finding]) -> int | None:
    """The first step whose state may be wrong, of causes that spread into the state: the smallest that any finding tells (the step after the last one
    with equal checksums, the start of a drift), whoever it accuses. Of other causes, and where none tells one, the step of the verdict.
    """
    told = [verdict.step] if verdict.step is not None else []
    if verdict.cause in SPREADS:
        told += [int(step) for f in findings if (step := f.numbers.get("first_divergence_step")) is not None]
    return min(told, default=None)


def rollback(case: Tables, *, step: int | None, at: datetime | None, cause: str = "") -> Rollback:
    """The newest whole checkpoint of an earlier step than the one where the fault shows (where no step is known, of an earlier instant), else the
    newest one that a log names and no file speaks against. A damaged checkpoint sets no such limit: any whole one will do.
    """
    states = case.derive(saved_states)
    is_free = cause == "checkpoint_corrupt"
    against = frozenset(s.step for s in states if s.step is not None and (s.status in DAMAGED or s.status == "unmarked"))
    bad = last_load(case, at) if is_free else None
    if bad is not None and bad.step is not None:
        against |= {bad.step}
        step = min(step, bad.step) if step is not None else bad.step
    logged = newest_save(case, step=step, at=at, without=against)
    reasons = [_reasons(state, step, at, is_free=is_free) for state in states]
    whole = next((state for state, why in zip(states, reasons, strict=True) if not why), None)
    newer = [(s, why) for s, why in zip(states, reasons, strict=True) if why and (whole is None or s.age > whole.age)]
    places = _places([*(s for s, _ in newer), *([whole] if whole else [])])
    passed = [f"{places[s.name]}: {why}" for s, why in newer]
    before = None if is_free else step
    folder = _folder(bad or (newest_save(case, step=_ANY_STEP, at=None) or last_load(case) if cause in SPREADS else None))
    if whole is None:
        return Rollback(logged, _shown(passed), before, bad, folder)
    if logged is not None and whole.step is not None and (logged.step or 0) > whole.step and logged.step not in {s.step for s in states}:
        passed.insert(0, f"{logged.name}: a log names it, and its files are not among the evidence")
    return Rollback(_of_state(case, whole, places[whole.name]), _shown(passed), before, bad, folder)


def _reasons(state: SavedState, step: int | None, at: datetime | None, *, is_free: bool) -> str:
    """All that speaks against a checkpoint; "" where nothing does. That it is late is said of a damaged one too: repaired it would still be."""
    late = "" if is_free else _too_late(state, step, at)
    if state.why and (state.step is None or step is None):
        return state.why
    return ", and ".join(why for why in (state.why, late) if why)


def _places(states: Sequence[SavedState]) -> dict[str, str]:
    """Name of each checkpoint -> where the job saved it, or, unless that is known of all, its folder here: never some of both.

    One without a description lies beside its siblings, if these tell of one place.
    """
    roots: dict[str, set[str]] = defaultdict(set)
    for state in states:
        parent, base = posixpath.split((state.saved_to or "").rstrip("/"))
        if base and base == posixpath.basename(state.name):
            roots[posixpath.dirname(state.name)].add(parent)
    found = {}
    for state in states:
        beside = roots.get(posixpath.dirname(state.name), set())
        found[state.name] = state.saved_to or (f"{next(iter(beside))}/{posixpath.basename(state.name)}" if len(beside) == 1 else None)
    told = {name: place for name, place in found.items() if place}
    return told if len(told) == len(states) else {state.name: state.name for state in states}


def _shown(passed: Sequence[str]) -> tuple[str, ...]:
    rest = len(passed) - MAX_PASSED
    return (*passed[:MAX_PASSED], f"{rest} more") if rest > 0 else tuple(passed)


def _too_late(state: SavedState, step: int | None, at: datetime | None) -> str:
    """Why a whole checkpoint may hold the fault's state; "" where it was saved before."""
    if step is not None:
        if state.step is None:
            return "which step it is of is not told"
        return "" if state.step < step else f"saved at step {state.step}, not before step {step}"
    if at is not None and state.saved_at is not None:
        return "" if state.saved_at < at else "saved after the fault"
    return "that it was saved before the fault is not told"


def _of_state(case: Tables, state: SavedState, place: str) -> Save:
    cite = state.cites[0]
    rows = case.table("evidence").filter(pl.col("evidence_id") == cite.evidence_id).select("path").collect()
    return Save(state.step, place, rows["path"][0] if rows.height else "", cite.record, is_whole=True)


def last_load(case: Tables, at: datetime | None = None) -> Save | None:
    """The checkpoint that the job read last (until `at`, where lines are dated), as its logs name it, else as an error names it. None where nothing
    names one, or logs name several and no stamp orders them."""
    events = case.table("log_events").select("evidence_id", "record", "logged_at", "step", "message", "signature")
    for signature in ("checkpoint_load", "python_traceback"):
        rows = events.filter(pl.col("signature") == signature).collect()
        found = [(row, name) for row in rows.iter_rows(named=True) if (name := _loaded(row, is_error=signature != "checkpoint_load"))]
        if at is not None:
            found = [(row, name) for row, name in found if row["logged_at"] is None or row["logged_at"] <= at] or found
        if not found:
            continue
        last: dict[str, tuple[dict[str, Any], str]] = {}
        for row, name in sorted(found, key=lambda told: int(re.sub(r"\D", "", told[0]["record"]) or 0)):
            last[row["evidence_id"]] = (row, name)  # of each file the last
        told = sorted(last.values(), key=lambda one: (one[0]["logged_at"] or _NEVER, one[0]["evidence_id"]))
        if len({name for _, name in told}) > 1 and any(row["logged_at"] is None for row, _ in told):
            return None
        row, name = told[-1]
        path = dict(
            case.table("evidence").filter(pl.col("evidence_id") == row["evidence_id"]).select("evidence_id", "path").collect().iter_rows()
        )
        said = step_said(name)
        return Save(said if said is not None else row["step"], name, path.get(row["evidence_id"], ""), row["record"])
    return None


def _loaded(row: Mapping[str, Any], *, is_error: bool) -> str:
    """The folder or file that a line says is read, of a shard its folder; "" where it names none. In an error any path may stand: only one that
    looks like a checkpoint counts."""
    text = str(row["message"] or "")
    named = _PATH.search(text) or _NAME.search(text)
    if named is None:
        return ""
    name = named[0].rstrip("./")
    if is_error and not _CHECKPOINT.search(name):
        return ""
    if _SHARD.search(name) and step_said(posixpath.dirname(name)) is not None:
        name = posixpath.dirname(name)
    return f"{name} at step {row['step']}" if step_said(name) is None and row["step"] is not None and not is_error else name


def _folder(save: Save | None) -> str | None:
    """Where saves lie, by the path of one."""
    if save is None or "/" not in save.name:
        return None
    path, _, at = save.name.partition(" at step ")
    return path if at else posixpath.dirname(path)


def newest_save(case: Tables, *, step: int | None, at: datetime | None, without: frozenset[int] = frozenset()) -> Save | None:
    """The newest save that a log tells of an earlier step than the one where the fault shows; where no step is known, of an earlier instant.

    `without`: steps whose checkpoints are known to be no good.
    """
    if step is None and at is None:
        return None
    early = pl.col("step") < step if step is not None else pl.col("logged_at") < at
    rows = (
        case.table("log_events")
        .filter((pl.col("signature") == "checkpoint_save") & pl.col("step").is_not_null() & early)
        .select("evidence_id", "record", "step", "message")
        .sort("step", "evidence_id", "record", descending=[True, False, False])
        .collect()
    )
    for id_, record, saved, message in rows.iter_rows():
        text = message or ""
        if saved not in without and _DONE.search(text) and not _NOT_DONE.search(text):
            named = _PATH.search(text) or _NAME.search(text)
            path = dict(case.table("evidence").filter(pl.col("evidence_id") == id_).select("evidence_id", "path").collect().iter_rows())
            return Save(saved, named[0].rstrip(".") if named else f"step {saved}", path.get(id_, ""), record)
    return None
