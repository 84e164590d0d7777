"""Metrics of OneLogger (Megatron and NeMo write them; kept by W&B or as JSON): flat objects with names such as train_iterations_time_msecs_avg.

They are sums and means over the job so far, of the job as a whole. Rows: `progress` where an object counts iterations and their mean time
(`train_iterations_end`, in ms: as `logged_step_s`); `trainer_events` for each moment (a name that ends in _time, ms since 1970) and each sum (names
that end in _total, _min, _max, _avg, _productive, _productive_end, ...), when it changes. No row says anything of a rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from collectors import _json_records as json_of
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("progress", "trainer_events")
IS_ALONE = True

BATCH_ROWS: Final = 50_000
MAX_NAMES: Final = 2_000
_MEAN: Final = "train_iterations_time_msecs_avg"
_STEP: Final = ("train_iterations_end", "train_iterations")
_KNOWN: Final = re.compile(
    r"(?:train|validation|testing)_iterations_time_(?:msecs_)?(?:avg|min|max|total)"
    r"|(?:save|load)_checkpoint_(?:sync_|async_)?time_(?:msecs_)?(?:total|min|max|avg)(?:_productive)?|app_train_loop_(?:start|finish)_time"
    r"|(?:train|save|load|app)\w{0,60}_productive_end|(?:first|last)_(?:logged|saved|successful)\w{0,80}_time"
)
_MOMENT: Final = re.compile(r"\w{1,120}_time")
_SUM: Final = re.compile(r"\w{1,120}_(?:total|min|max|avg|productive|productive_end|count)")


def claims(name: str, head: bytes) -> bool:
    """A JSON object with the name of such a metric."""
    return b"_time" in head and any(_KNOWN.fullmatch(key) for record in json_of.first_objects(head) for key in list(record)[:MAX_NAMES])


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of both tables, in the order of the file. Raises EvidenceError without any metric."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in EMITS}
    last: dict[str, float] = {}
    num_read = 0
    for place, record in json_of.records(source):
        if isinstance(record, Skip):
            yield Skip(place, record.why)
            continue
        at = json_of.instant(json_of.first(record, "_timestamp", "timestamp", "time"))
        step, mean = json_of.whole(json_of.first(record, *_STEP)), json_of.number(record.get(_MEAN))
        if step is not None and mean is not None:
            rows["progress"].append({"record": place, "step": step, "ended_at": at, "logged_step_s": mean / 1000})
        for key, raw in list(record.items())[:MAX_NAMES]:
            value = json_of.number(raw)
            moment = json_of.instant(raw, "ms") if value is not None and _MOMENT.fullmatch(key) else None
            if value is None or (moment is None and not _SUM.fullmatch(key)) or last.get(key) == value:
                continue
            last[key] = value
            event = {"record": place, "event": key, "source": "one_logger", "step": step, "logged_at": moment or at}
            rows["trainer_events"].append(event | {"value": None if moment else value})
            num_read += 1
        if len(rows["trainer_events"]) >= BATCH_ROWS:
            for name, found in rows.items():
                yield TABLES[name], TABLES[name].rows(found)
            rows = {name: [] for name in EMITS}
    if not num_read:
        raise EvidenceError(source.path, None, "no metric of OneLogger in it")
    for name, found in rows.items():
        yield TABLES[name], TABLES[name].rows(found)
