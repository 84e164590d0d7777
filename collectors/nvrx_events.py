"""Profiling events of NVRx's launcher: `- Cycle: 1 Event: failure_detected Node: NODE Rank: RANK Time: ... UTC`, whatever logger stands before.

They are the stages of a recovery: failure_detected, worker_terminated, rendezvous_started, health_check_completed, rendezvous_completed,
worker_start_started, worker_start_completed. Rows: `trainer_events`. A node is named HOST_PID_NUMBER; its host and pid are taken from that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from collectors import _json_records as json_of
from collectors._lines import blocks
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("trainer_events",)

BATCH_ROWS: Final = 50_000
_MARK: Final = b" Event: "
_LINE: Final = re.compile(
    rb"Cycle: {0,4}(?P<cycle>\d{1,9}|\w{1,20}) {1,4}Event: {0,4}(?P<event>[\w.-]{1,80}) {1,4}Node: {0,4}(?P<node>[^\s]{1,255})"
    rb" {1,4}Rank: {0,4}(?P<rank>\d{1,9}|\w{1,20}) {1,4}Time: {0,4}(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?)(?P<zone> ?UTC| ?Z)?"
)
_SPEAKS: Final = re.compile(rb"\[ft_launcher\d{0,10}@|=== Fault Tolerance Profiling Summary ===|\bft_launcher: |\[nvidia_resiliency_ext\b")
_NODE: Final = re.compile(r"(?P<host>.+?)_(?P<pid>[0-9]{1,10})_[0-9]{1,6}")


def claims(name: str, head: bytes) -> bool:
    """A line with cycle, event, node, rank and time of such an event, or a launcher of NVRx that speaks: its first event may come hours later."""
    return (_MARK in head and _LINE.search(head) is not None) or _SPEAKS.search(head) is not None


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `trainer_events`, in the order of the lines; other lines are passed over. None where nothing happened yet."""
    rows: list[dict[str, Any]] = []
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            continue
        if _MARK not in block.data:
            continue
        for number, line in enumerate(block.lines, block.first):
            if _MARK in line and (found := _LINE.search(line)):
                rows.append(
                    _row(f"L{number}", {name: (value or b"").decode("utf-8", "replace") for name, value in found.groupdict().items()})
                )
        if len(rows) >= BATCH_ROWS:
            yield TABLES["trainer_events"], TABLES["trainer_events"].rows(rows)
            rows = []
    yield TABLES["trainer_events"], TABLES["trainer_events"].rows(rows)


def _row(place: str, said: dict[str, str]) -> dict[str, Any]:
    node = _NODE.fullmatch(said["node"])
    name = node["host"] if node else said["node"] if said["node"] not in ("None", "unknown") else None
    stamp = said["time"].replace(" ", "T")
    return {
        "record": place,
        "event": said["event"],
        "source": "nvrx",
        "rank": json_of.whole(said["rank"]),
        "cycle": json_of.whole(said["cycle"]),
        "host": json_of.host(name),
        "pid": json_of.whole(node["pid"]) if node else None,
        "logged_at": json_of.instant(f"{stamp}+00:00") if said["zone"] else None,
        "logged_at_local": json_of.local(stamp) if not said["zone"] else None,
        "message": said["node"],
    }
