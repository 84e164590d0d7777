"""`trainer_state.json` of the Hugging Face Trainer: what it logged so far, entry by entry, kept with every checkpoint.

Rows: `progress` of each entry of `log_history` that logs a training loss. Entries of evaluations and of the end (means over the whole run) are no
steps. No entry says when, nor of which rank it is: the state is the whole job's.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from collectors import _json_records as json_of
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("progress",)
IS_ALONE: Final = True

_HISTORY: Final = "log_history"
_STATE: Final = re.compile(rb'"(?:global_step|max_steps|num_train_epochs|best_metric|total_flos|is_world_process_zero|epoch)"\s*:')
_COLUMNS: Final = {"loss": "loss", "grad_norm": "grad_norm", "learning_rate": "learning_rate", "epoch": "epoch"}
_TOKENS: Final = ("num_input_tokens_seen", "num_tokens")


def claims(name: str, head: bytes) -> bool:
    """A JSON object with the Trainer's own fields and its history of logs."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return start[:1] == b"{" and re.search(rb'"log_history"\s*:\s*\[', head) is not None and _STATE.search(head) is not None


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows in the order of the history. Raises EvidenceError where the file is no such state."""
    data, torn = source.read(json_of.MAX_DOCUMENT_BYTES + 1)
    if torn or len(data) > json_of.MAX_DOCUMENT_BYTES:
        why = f"breaks off: {torn}" if torn else f"more than {json_of.MAX_DOCUMENT_BYTES:,} bytes"
        raise EvidenceError(source.path, None, f"{why}; the state is one JSON object and cannot be read in part")
    try:
        state = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(source.path, None, f"not JSON ({str(error)[:100]}); copy the file again, it may be torn") from None
    history = state.get(_HISTORY) if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise EvidenceError(source.path, None, f"no list {_HISTORY}: not the state of a Trainer")
    table = TABLES["progress"]
    rows = []
    for place, entry in enumerate(history):
        if not isinstance(entry, dict):
            yield Skip(f"{_HISTORY}/E{place}", "no JSON object")
        elif "loss" in entry:
            rows.append({"record": f"{_HISTORY}/E{place}", **_row(entry)})
    yield table, table.rows(rows)


def _row(entry: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {column: json_of.number(entry.get(key)) for key, column in _COLUMNS.items()}
    told = [entry[key] for key in ("loss", "grad_norm") if entry.get(key) is not None]
    finite = [_is_finite(value) for value in told]
    return row | {
        "step": json_of.whole(entry.get("step")),
        "tokens_total": json_of.whole(json_of.first(entry, *_TOKENS)),
        "is_finite": None if not finite or None in finite else all(finite),
    }


def _is_finite(value: Any) -> bool | None:
    """Whether a number is finite, also one written as text; None where it is no number."""
    try:
        return math.isfinite(float(value)) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        return None
