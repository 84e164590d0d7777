"""Notices of cloud providers on machines: scheduled events of AWS and Azure, status checks of EC2, interruptions of spot instances, GCE maintenance.

`aws ec2 describe-instance-status`, the instance's own `events/maintenance/scheduled` and `spot/instance-action`, EventBridge's "EC2 Spot Instance
Interruption Warning" and "AWS Health Event"; Azure's `metadata/scheduledevents`; `upcomingMaintenance` of a GCE instance. Each event of a machine is
one row of `node_events`; one with a begin is a planned window too. The host is the machine's own name there, which may not be that of the job's logs.
Sources: the providers' documentation of these documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from collectors._attribution import NOTHING, Told, of_words
from collectors._json_records import first, host, instant, number, text
from collectors._report_objects import objects
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "IS_ALONE", "claims", "read"]

EMITS = ("node_events", "planned_windows")
IS_ALONE: Final = True

MAX_ROWS: Final = 100_000
MAX_DURATION_S: Final = 10 * 366 * 86_400
_AZURE: Final = re.compile(rb'"DocumentIncarnation"\s{0,8}:')
_AWS: Final = re.compile(rb'"(?:InstanceStatuses|InstanceEventId|detail-type|instance-action)"\s{0,8}:')
_AWS_OWN: Final = re.compile(rb'"Code"\s{0,8}:\s{0,8}"(?:instance|system)-(?:reboot|stop|retirement|maintenance)"')
_AWS_SOURCE: Final = re.compile(rb'"source"\s{0,8}:\s{0,8}"aws\.(?:ec2|health|autoscaling)"')
_SPOT: Final = re.compile(
    rb'\s{0,8}\{\s{0,8}"action"\s{0,8}:\s{0,8}"(?:terminate|stop|hibernate)"\s{0,8},\s{0,8}"time"\s{0,8}:\s{0,8}"[^"]{10,40}"\s{0,8}\}\s*'
)
_GCE: Final = re.compile(rb'"upcomingMaintenance"\s{0,8}:\s{0,8}\{')
_PLANNED: Final = Told("planned", "planned")
_OVER: Final = re.compile(r"^\[(?:Completed|Canceled|Cancelled)\]", re.I)  # how EC2 marks what is past or called off


def claims(name: str, head: bytes) -> bool:
    """JSON with what only such a document holds."""
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"["):
        return False
    if _AZURE.search(head) and b'"Events"' in head:
        return True
    if b'"InstanceStatuses"' in head and b'"InstanceId"' in head:
        return True
    if _AWS_OWN.search(head) and b'"NotBefore"' in head:
        return True
    if _AWS_SOURCE.search(head) and b'"detail-type"' in head and b'"detail"' in head:
        return True
    return bool(_SPOT.fullmatch(head) or _GCE.search(head))


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `node_events` and `planned_windows`, in the order of the file."""
    events: list[dict[str, Any]] = []
    windows: list[dict[str, Any]] = []
    for record, value in objects(source, inner=("InstanceStatuses",)):
        if isinstance(value, Skip):
            yield value
        elif record is not None:
            for event, window in _notices(value, record, source.host_said):
                events.append({"record": record, "num_folded": 1, **event})
                windows += [{"record": event.get("record", record), **window}] if window else []
        if len(events) >= MAX_ROWS:
            yield Skip(record, f"more than {MAX_ROWS:,} events: the rest is left out")
            break
    yield TABLES["node_events"], TABLES["node_events"].rows(events)
    yield TABLES["planned_windows"], TABLES["planned_windows"].rows(windows)


_Notice = tuple[dict[str, Any], dict[str, Any] | None]


def _notices(value: Mapping[str, Any], record: str, said: str | None) -> Iterator[_Notice]:
    if "DocumentIncarnation" in value:
        listed = value.get("Events")
        for place, event in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(event, dict):
                for row, window in _azure(event):
                    yield row | {"record": f"Events/E{place}" if record == "E0" else record}, window
    elif "detail-type" in value and isinstance(value.get("detail"), dict):
        yield from _event_bridge(value, value["detail"])
    elif "InstanceId" in value:
        yield from _status(value)
    elif "Code" in value and "NotBefore" in value:
        yield _scheduled(value, said)
    elif isinstance(value.get("action"), str) and "time" in value:
        at = _instant(value.get("time"))
        yield _row("aws", said, f"spot instance {text(value['action'])}", None, at=at, told=Told("preemption", "planned")), None
    else:
        yield from _gce(value, said)


def _azure(event: Mapping[str, Any]) -> Iterator[_Notice]:
    kind, begin = text(event.get("EventType")), _instant(event.get("NotBefore"))
    lasts = number(event.get("DurationInSeconds"))
    told = Told("preemption", "planned") if kind == "Preempt" else _PLANNED
    names: list[str | None] = [*_texts(event.get("Resources"))]
    for name in names or [None]:
        row = _row("azure", host(name), kind, text(event.get("Description")), told=told, object_=text(event.get("ResourceType")))
        yield row, _window(kind, row["host"], begin, _after(begin, lasts))


def _status(value: Mapping[str, Any]) -> Iterator[_Notice]:
    """Scheduled events of an EC2 instance, and of its two checks those that fail."""
    named = host(value.get("InstanceId"))
    for event in _dicts(value.get("Events")):
        yield _scheduled(event, named)
    for key in ("SystemStatus", "InstanceStatus"):
        check = value[key] if isinstance(value.get(key), dict) else {}
        if check.get("Status") == "impaired":
            since = next((at for one in _dicts(check.get("Details")) if (at := _instant(one.get("ImpairedSince")))), None)
            whose = (
                Told("host", "platform") if key == "SystemStatus" else Told("host", "unknown")
            )  # the second one tests what the user runs
            yield _row("aws", named, f"{key} impaired", None, at=since, told=whose) | {"is_healthy": False}, None


def _scheduled(event: Mapping[str, Any], named: str | None) -> _Notice:
    code, why = text(event.get("Code")), text(event.get("Description"))
    is_over = bool(why and _OVER.match(why)) or event.get("State") in ("completed", "canceled")
    told = of_words(code, why)
    row = _row("aws", named, code, why, told=NOTHING if is_over else told if told.kind != "unknown" else _PLANNED)
    window = _window(code, named, _instant(event.get("NotBefore")), _instant(event.get("NotAfter")))
    if window is not None and is_over:
        window["is_cancelled"] = "ancel" in f"{why} {event.get('State')}"
    return row, window


def _event_bridge(value: Mapping[str, Any], detail: Mapping[str, Any]) -> Iterator[_Notice]:
    kind, at = text(value.get("detail-type")), _instant(value.get("time"))
    if kind == "AWS Health Event":
        code, words = text(detail.get("eventTypeCode")), " ".join(_latest_words(detail))
        is_planned = detail.get("eventTypeCategory") == "scheduledChange"
        named = [text(one.get("entityValue"), 255) for one in _dicts(detail.get("affectedEntities"))] or [None]
        for name in named:
            told = of_words(code, words)
            row = _row("aws", host(name), code, words or None, at=at, told=_PLANNED if is_planned and told.kind == "unknown" else told)
            yield (
                row,
                _window(code, row["host"], _instant(detail.get("startTime")), _instant(detail.get("endTime"))) if is_planned else None,
            )
        return
    told = of_words(kind, text(detail.get("instance-action")))
    yield (
        _row("aws", host(first(detail, "instance-id", "EC2InstanceId")), kind, text(detail.get("instance-action")), at=at, told=told),
        None,
    )


def _latest_words(detail: Mapping[str, Any]) -> Iterator[str]:
    for one in _dicts(detail.get("eventDescription")):
        if words := text(one.get("latestDescription"), 1000):
            yield words


def _gce(value: Mapping[str, Any], said: str | None) -> Iterator[_Notice]:
    status = value["resourceStatus"] if isinstance(value.get("resourceStatus"), dict) else value
    if isinstance(coming := status.get("upcomingMaintenance"), dict):
        named = host(value.get("name")) or said
        kind, state = text(coming.get("type")), text(first(coming, "maintenanceStatus", "status"))
        begin, end = (
            _instant(first(coming, *keys)) for keys in (("windowStartTime", "window_start_time"), ("windowEndTime", "window_end_time"))
        )
        yield (
            _row("gce", named, "upcomingMaintenance", f"{kind or ''} {state or ''}".strip() or None, told=_PLANNED),
            _window(kind, named, begin, end),
        )


def _row(
    source: str, named: str | None, reason: str | None, message: str | None, *, told: Told, at: datetime | None = None, object_: str | None = None
) -> dict[str, Any]:  # fmt: skip
    return {
        "host": named,
        "source": source,
        "object": object_,
        "logged_at": at,
        "first_at": at,
        "reason": reason,
        "message": message,
        "kind": told.kind,
        "attribution": told.attribution,
    }


def _window(name: str | None, named: str | None, begin: datetime | None, end: datetime | None) -> dict[str, Any] | None:
    """A planned window; None where nothing says when it begins."""
    if begin is None:
        return None
    return {
        "name": name,
        "kind": "maintenance",
        "hosts": [named] if named else None,
        "started_at": begin,
        "ended_at": end,
        "is_cancelled": False,
    }


def _instant(value: Any) -> datetime | None:
    """RFC 3339, or a date as e-mails have it (`21 Jan 2019 09:00:43 GMT`)."""
    if not isinstance(value, str) or len(value) > 60:
        return None
    if (at := instant(value)) is not None:
        return at
    try:
        return instant(parsedate_to_datetime(value).isoformat()) if value.rstrip().endswith(("GMT", "UTC", "0000")) else None
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _after(begin: datetime | None, lasts_s: float | None) -> datetime | None:
    return begin + timedelta(seconds=lasts_s) if begin is not None and lasts_s is not None and 0 < lasts_s < MAX_DURATION_S else None


def _dicts(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [word for one in value if (word := text(one, 255))] if isinstance(value, list) else []
