"""Which checkpoint a rollback can go back to: the newest one that a log says was saved before the fault. Pure.

A save that only began, or failed, is none. What a log does not name is not guessed: no name, no checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import polars as pl

from rca.types import Tables

__all__ = ["Save", "newest_save"]

_DONE: Final = re.compile(
    r"(?i)\b(?:saved|wrote|written|stored|persisted|(?:save|write|checkpoint)\w*\b.{0,80}\b(?:done|finished|completed?|took))\b"
)
_NOT_DONE: Final = re.compile(r"(?i)\b(?:fail\w*|error|unable|cannot|could not|not saved|will be|skip\w*|abort\w*)\b")
_PATH: Final = re.compile(r"(?<![\w:/.])(?:\w{1,10}:/)?/[\w.+=@-]+(?:/[\w.+=@-]+)*")  # from a root or a store
_NAME: Final = re.compile(
    r"(?i)(?<![\w/.-])(?:[\w.-]{1,80}/){0,8}(?:[\w-]{0,40}(?:step|iter(?:ation)?|epoch|checkpoint|ckpt)s?[_-]?\d[\w.-]{0,80}"
    r"|[\w-]{1,80}\.(?:pt|pth|ckpt|safetensors|distcp)\b)"
)


@dataclass(frozen=True)
class Save:
    """A finished save. `name` is its path or name, as the log has it; `path` and `record` say where the log does."""

    step: int
    name: str
    path: str
    record: str


def newest_save(case: Tables, *, step: int | None, at: datetime | None) -> Save | None:
    """The newest save of an earlier step than the one where the fault shows; where no step is known, of an earlier instant."""
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
        if _DONE.search(text) and not _NOT_DONE.search(text):
            named = _PATH.search(text) or _NAME.search(text)
            path = dict(case.table("evidence").filter(pl.col("evidence_id") == id_).select("evidence_id", "path").collect().iter_rows())
            return Save(saved, named[0].rstrip(".") if named else f"step {saved}", path.get(id_, ""), record)
    return None
