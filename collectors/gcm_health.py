"""GCM (GPU cluster monitoring) health checks: one JSON object a line per check of a node.

Flat, or in Scuba's compartments (`int`, `normal`, `double`). One row per check, passed ones too. `result`: 0 passed, 1 warning, 2 critical, 3 could
not be told. Names of the fields as in gcm/schemas/health_check/log.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from collectors._attribution import NOTHING, Told, of_words, of_xid
from collectors._health_message import said
from collectors._json_records import first, host, instant, text, whole
from collectors._report_objects import objects
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("node_events",)
IS_ALONE = True

MAX_ROWS: Final = 500_000
MESSAGE_CHARS: Final = 2000
PASSED, CRITICAL, UNTOLD = 0, 2, 3
_COMPARTMENTS: Final = ("int", "double", "normal", "normvector")
_CHECK: Final = re.compile(rb'"health_check"\s{0,8}:\s{0,8}"')
_RESULT: Final = re.compile(rb'"result"\s{0,8}:\s{0,8}(?:\d{1,4}|"|null)')


def claims(name: str, head: bytes) -> bool:
    """JSON with a check, its result and its node."""
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"["):
        return False
    return bool(_CHECK.search(head) and _RESULT.search(head) and b'"node"' in head)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `node_events`, in the order of the file."""
    rows: list[dict[str, Any]] = []
    for record, value in objects(source):
        if isinstance(value, Skip):
            yield value
            continue
        flat = _flat(value)
        if record is None or text(flat.get("health_check")) is None:
            yield Skip(record, "no health check in it")
            continue
        rows.append(_row(flat, record))
        if len(rows) == MAX_ROWS:
            yield Skip(record, f"more than {MAX_ROWS:,} checks: the rest is left out")
            break
    yield TABLES["node_events"], TABLES["node_events"].rows(rows)


def _flat(value: Mapping[str, Any]) -> dict[str, Any]:
    parts = [part for key in _COMPARTMENTS if isinstance(part := value.get(key), dict)]
    return {key: one for part in (*parts, value) for key, one in part.items() if isinstance(key, str)}


def _row(check: Mapping[str, Any], record: str) -> dict[str, Any]:
    name, message, result = text(check.get("health_check")), text(first(check, "_msg", "msg"), MESSAGE_CHARS), whole(check.get("result"))
    told = said(message or "", name)
    if result == PASSED:
        what = NOTHING
    elif result is None or result == UNTOLD:
        what = Told("unknown", "unknown")
    else:
        what = of_xid(told.xid) if told.xid is not None and "xid" in f"{name} {message}".lower() else of_words(name, message)
    return {
        "record": record,
        "host": host(check.get("node")),
        "source": "gcm",
        "object": text(check.get("type")),
        "logged_at": instant(check.get("end_time")) or instant(first(check, "time", "ts")),
        "first_at": instant(check.get("start_time")),
        "reason": name,
        "kind": what.kind,
        "code": str(told.xid) if what.kind == "xid" else told.codes[0] if told.codes else None,
        "gpu": told.gpu if result != PASSED else None,
        "is_fatal": result == CRITICAL if result is not None else None,
        "is_healthy": True if result == PASSED else None if result is None or result == UNTOLD else False,
        "message": message,
        "num_folded": 1,
        "attribution": what.attribution,
    }
