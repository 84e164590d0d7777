"""gpud: what its `/v1/states`, `/v1/events` and `/v1/info` answer, and the same from its command line as JSON.

One row per event, and one per state of a component, healthy ones too (gpud lists what it looked at). It does not name its host: the name of the file
or folder may. Field names as in gpud's api/v1/types.go.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from collectors._attribution import NOTHING, of_words, of_xid
from collectors._health_message import gpu_of, said
from collectors._json_records import first, host, text, whole
from collectors._kube_time import kube_instant
from collectors._report_objects import objects
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("node_events",)
IS_ALONE = True

MAX_ROWS: Final = 200_000
MESSAGE_CHARS: Final = 2000
MAX_EXTRA: Final = 1 << 16
_COMPONENT: Final = re.compile(rb'"component"\s{0,8}:\s{0,8}"')
_STATES: Final = re.compile(rb'"(?:states|events)"\s{0,8}:\s{0,8}(?:\[|null)')
_HEALTH: Final = re.compile(rb'"health"\s{0,8}:\s{0,8}"(?:Healthy|Unhealthy|Degraded|Initializing)"')
_TYPE: Final = re.compile(rb'"type"\s{0,8}:\s{0,8}"(?:Info|Warning|Critical|Fatal|Unknown)"')
_WORSE: Final = {"Unhealthy", "Degraded"}


def claims(name: str, head: bytes) -> bool:
    """Lists of a component's states or events."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start not in (b"{", b"[") or not _COMPONENT.search(head):
        return False
    return bool(
        _STATES.search(head) and (_HEALTH.search(head) or _TYPE.search(head) or b'"suggested_actions"' in head or b'"startTime"' in head)
    )


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `node_events`, in the order of the file."""
    rows: list[dict[str, Any]] = []
    where = source.host_said
    for record, value in objects(source, inner=()):
        if isinstance(value, Skip):
            yield value
            continue
        if record is None or not any(key in value for key in ("component", "states", "events", "info")):
            yield Skip(record, "no component in it")
            continue
        info = value["info"] if isinstance(value.get("info"), dict) else value
        component = text(value.get("component"))
        named = host(first(value, "hostname", "host", "node", "nodeName", "machine_id")) or where
        for event in _dicts(info.get("events")):
            rows.append(_event(event, component) | {"record": record, "host": named})
        for state in _dicts(info.get("states")):
            rows.append(_state(state, component) | {"record": record, "host": named})
        if len(rows) >= MAX_ROWS:
            yield Skip(record, f"more than {MAX_ROWS:,} rows: the rest is left out")
            break
    yield TABLES["node_events"], TABLES["node_events"].rows(rows)


def _event(event: Mapping[str, Any], component: str | None) -> dict[str, Any]:
    kind = text(event.get("type"))
    row = _told(event, component, text(event.get("message"), MESSAGE_CHARS), is_well=kind == "Info")
    return row | {"reason": text(event.get("name")), "is_fatal": kind == "Fatal" if kind else None, "is_healthy": None}


def _state(state: Mapping[str, Any], component: str | None) -> dict[str, Any]:
    health = text(state.get("health"))
    words = [text(state.get(key), MESSAGE_CHARS) for key in ("reason", "error")]
    row = _told(state, component, ": ".join(word for word in words if word) or None, is_well=health not in _WORSE)
    is_healthy = True if health == "Healthy" else False if health in _WORSE else None
    return row | {"reason": words[0] or text(state.get("name")), "is_fatal": None, "is_healthy": is_healthy}


def _told(entry: Mapping[str, Any], component: str | None, message: str | None, *, is_well: bool) -> dict[str, Any]:
    """Columns that events and states share."""
    component = text(entry.get("component")) or component
    extra = entry["extra_info"] if isinstance(entry.get("extra_info"), dict) else {}
    detail = _detail(extra)
    told = said(message or "", component, text(entry.get("name")))
    found = whole(first(detail, "xid", "Xid"))
    xid = found if found is not None else told.xid if "xid" in f"{component} {message}".lower() else None
    device = text(first(detail, "device_uuid", "deviceUUID", "device_id")) or text(first(extra, "device_uuid", "device_id"))
    sxid = whole(first(detail, "sxid", "SXid"))
    code = xid if xid is not None else sxid
    if is_well:
        what = NOTHING
    elif xid is not None:
        what = of_xid(xid)
    else:
        what = of_words(component, text(entry.get("name")), message)
    at = kube_instant(entry.get("time"))
    is_uuid = bool(device and device.startswith("GPU-"))
    return {
        "source": "gpud",
        "object": component,
        "logged_at": at,
        "first_at": at,
        "kind": what.kind,
        "code": str(code) if code is not None else told.codes[0] if told.codes else None,
        "sub_code": whole(first(detail, "sub_code", "subCode", "sub-code")) if detail else whole(first(extra, "sub_code", "subCode")),
        "gpu": gpu_of(device) if device and not is_uuid else told.gpu,
        "gpu_uuid": device if is_uuid else told.gpu_uuid or text(first(extra, "gpu_uuid", "uuid")),
        "recommended_action": _actions(entry.get("suggested_actions")) or _actions(detail.get("suggested_actions_by_gpud")),
        "message": message,
        "num_folded": 1,
        "attribution": what.attribution,
    }


def _detail(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an event says of its Xid: an object as text in `data`, or the number alone."""
    for value in extra.values():
        if isinstance(value, dict):
            return value
        if isinstance(value, str) and value.lstrip()[:1] == "{" and len(value) < MAX_EXTRA:
            try:
                found = json.loads(value)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                return found
    number = whole(extra.get("data"))
    return {**extra, **({"xid": number} if number is not None and "device_uuid" in extra else {})}


def _actions(value: Any) -> str | None:
    """The repair actions, as gpud joins them."""
    listed = value.get("repair_actions") if isinstance(value, dict) else None
    return ", ".join(action for one in listed if (action := text(one, 100))) or None if isinstance(listed, list) else None


def _dicts(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
