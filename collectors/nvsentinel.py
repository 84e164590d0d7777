"""NVSentinel: health events of GPUs and nodes, as CloudEvents 1.0, as its monitors send them, or as its store exports them.

`data.healthEvent` of a CloudEvent (its exporter writes the recommended action as a number), a health event by itself or in `events`, a document of
its store (`healthevent` with lower-case keys, times as seconds and nanos). One row per event: the first code, the first GPU that it names. A
recovery (`isHealthy`) is a row too, as it takes back what was said before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from collectors._attribution import NOTHING, of_words, of_xid
from collectors._health_message import gpu_of, said, xid_of
from collectors._json_records import host, instant, text, whole
from collectors._report_objects import objects, plain
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
_NAMED: Final = re.compile(rb'"check_?name"\s{0,8}:', re.I)
_BESIDE: Final = re.compile(rb'"(?:is_?fatal|is_?healthy|node_?name|component_?class)"\s{0,8}:', re.I)
_YAML: Final = re.compile(rb"^[ -]{0,8}checkName: ", re.M)
# Of data-models/protobufs/health_event.proto; the numbers are those of its enumeration.
_ACTIONS: Final[Mapping[int, str]] = {
    0: "NONE",
    2: "COMPONENT_RESET",
    5: "CONTACT_SUPPORT",
    6: "RUN_FIELDDIAG",
    15: "RESTART_VM",
    24: "RESTART_BM",
    25: "REPLACE_VM",
    26: "RUN_DCGMEUD",
    39: "RESTART_APP",
    99: "UNKNOWN",
}
_GPU_ENTITIES: Final = ("pci", "pci_bus_id", "gpu", "gpu_index")  # in this order: an address says more than a number


def claims(name: str, head: bytes) -> bool:
    """JSON or YAML with a health event: the name of a check beside what only such an event says."""
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return bool(_NAMED.search(head) and len({found.lower() for found in _BESIDE.findall(head)}) >= 2)
    return bool(_YAML.search(head) and b"isFatal: " in head and b"nodeName: " in head and b"\0" not in head)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `node_events`, in the order of the file."""
    rows: list[dict[str, Any]] = []
    for record, value in objects(source, inner=("events", "healthEvents", "items")):
        if isinstance(value, Skip):
            yield value
            continue
        found = _event(value)
        if record is None or found is None:
            yield Skip(record, "no health event in it")
            continue
        if len(rows) == MAX_ROWS:
            yield Skip(record, f"more than {MAX_ROWS:,} events: the rest is left out")
            break
        rows.append(_row(*found, record))
    yield TABLES["node_events"], TABLES["node_events"].rows(rows)


def _lowered(value: Any) -> dict[str, Any]:
    """An object by its keys in lower case and without underscores, as all of its writers have them."""
    return (
        {key.lower().replace("_", ""): plain(one) for key, one in value.items() if isinstance(key, str)} if isinstance(value, dict) else {}
    )


def _event(value: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The health event in an object, and the object that holds it."""
    outer = _lowered(value)
    for path in (("data", "healthevent"), ("healthevent",), ("fulldocument", "healthevent"), ("jsonpayload", "data", "healthevent"), ()):
        inner = outer
        for key in path:
            inner = _lowered(inner.get(key))
        if "checkname" in inner and ({"isfatal", "ishealthy", "nodename"} & inner.keys()):
            return inner, outer
    return None


def _row(event: Mapping[str, Any], outer: Mapping[str, Any], record: str) -> dict[str, Any]:
    entities = [
        (str(text(one.get("entitytype")) or "").lower(), text(one.get("entityvalue")))
        for one in map(_lowered, _list(event.get("entitiesimpacted")))
    ]
    codes = [code for one in _list(event.get("errorcode")) if (code := text(plain(one), 200))]
    message, check = text(event.get("message"), MESSAGE_CHARS), text(event.get("checkname"))
    told = said(message or "", check)
    xid = xid_of(codes, check, message) if codes else told.xid
    is_healthy, is_fatal = (value if isinstance(value := event.get(key), bool) else None for key in ("ishealthy", "isfatal"))
    named = next((value for kind in _GPU_ENTITIES for of, value in entities if of == kind and value), None)
    at = _instant(event.get("generatedtimestamp")) or _instant(outer.get("time")) or _instant(outer.get("createdat"))
    component = text(event.get("componentclass"))
    if is_healthy:
        what = NOTHING
    elif xid is not None:
        what = of_xid(xid)
    else:
        what = of_words(check, *codes, message) if check or codes else of_words(message)
        if what.kind == "unknown" and (component or "").upper() == "GPU":
            what = of_words("GPU fault")
    return {
        "record": record,
        "host": host(event.get("nodename")),
        "source": "nvsentinel",
        "object": component,
        "logged_at": at,
        "first_at": at,
        "reason": check,
        "kind": what.kind,
        "code": str(xid) if xid is not None else codes[0] if codes else told.codes[0] if told.codes else None,
        "gpu": gpu_of(named) if named else told.gpu,
        "gpu_uuid": next((value for of, value in entities if of in ("gpu_uuid", "gpuuuid", "uuid") and value), None)
        or text(event.get("gpuuuid"))
        or told.gpu_uuid,
        "is_fatal": is_fatal,
        "is_healthy": is_healthy,
        "recommended_action": _action(event.get("recommendedaction")) or told.action,
        "message": message,
        "num_folded": 1,
        "attribution": what.attribution,
    }


def _list(value: Any) -> list[Any]:
    value = plain(value)
    return value if isinstance(value, list) else [value] if isinstance(value, str) and value else []


def _action(value: Any) -> str | None:
    """The name of the recommended action; a number that has none stays a number."""
    number = whole(value) if isinstance(value, int) else None
    return text(value) if number is None else _ACTIONS.get(number, str(number))


def _instant(value: Any) -> datetime | None:
    """RFC 3339, seconds and nanos of a protobuf, or MongoDB's count of milliseconds."""
    if isinstance(value, dict):
        parts = _lowered(value)
        seconds, nanos = whole(parts.get("seconds")), whole(parts.get("nanos")) or 0
        return instant(seconds * 10**9 + nanos, "ns") if seconds is not None and 0 <= nanos < 10**9 and abs(seconds) < 10**10 else None
    if isinstance(value, datetime):
        return instant(value.isoformat())
    if isinstance(value, int) and value > 10**11:
        return instant(value, "ms")
    return instant(value)
