"""Events of Kubernetes (core/v1 and events.k8s.io/v1) as rows of `node_events`.

`type` and `reason` as NVSentinel writes them are swapped: the name of its check stands in `type`, which is Normal or Warning elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from collectors._attribution import NOTHING, Told, of_words, of_xid
from collectors._health_message import gpu_of, said
from collectors._json_records import first, host, text, whole
from collectors._kube_time import kube_instant

__all__ = ["MESSAGE_CHARS", "event_row", "is_event", "part", "report"]

MESSAGE_CHARS: Final = 2000
_USUAL: Final = ("Normal", "Warning")
# Reasons that report that all goes on, or is well again, whatever words stand beside them.
_GOING_ON: Final = frozenset(
    {"Scheduled", "Pulling", "Pulled", "Created", "Started", "Starting", "SuccessfulCreate", "SuccessfulDelete", "Completed", "NodeReady"}
    | {"NodeSchedulable", "NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientDisk", "NodeHasSufficientPID"}
    | {"NodeAllocatableEnforced", "RegisteredNode", "SuccessfulAttachVolume", "SuccessfulMountVolume", "AddedInterface", "Synced"}
    | {"Uncordon", "Uncordoned", "RemovedTaint", "TriggeredScaleUp", "NotTriggerScaleUp", "LeaderElection", "ScalingReplicaSet"}
)
_HEALTHY: Final = frozenset({"NodeReady", "NodeSchedulable", "Uncordon", "Uncordoned"})


def part(value: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """The object at a path within another; an empty one where there is none."""
    found: Any = value
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def is_event(value: Mapping[str, Any]) -> bool:
    """Whether an object is such an event."""
    about = first(value, "involvedObject", "regarding")
    return (
        isinstance(about, Mapping)
        and (value.get("kind") in ("Event", None))
        and ("reason" in value or "message" in value or "note" in value)
    )


def event_row(event: Mapping[str, Any], record: str) -> dict[str, Any]:
    """The row of one event."""
    about = part(event, "involvedObject") or part(event, "regarding")
    source, series = part(event, "source") or part(event, "deprecatedSource"), part(event, "series")
    kind, name = text(about.get("kind")), text(about.get("name"), 255)
    reason, type_, message = text(event.get("reason")), text(event.get("type")), text(first(event, "message", "note"), MESSAGE_CHARS)
    at = [kube_instant(first(series, "lastObservedTime")), kube_instant(first(event, "lastTimestamp", "deprecatedLastTimestamp"))]
    begun = [kube_instant(first(event, "firstTimestamp", "deprecatedFirstTimestamp")), kube_instant(event.get("eventTime"))]
    seen = next((moment for moment in (*at, *begun[::-1], kube_instant(part(event, "metadata").get("creationTimestamp"))) if moment), None)
    counts = [whole(series.get("count")), whole(first(event, "count", "deprecatedCount"))]
    where = host(name) if kind == "Node" else None
    where = where or host(source.get("host")) or (None if kind == "Node" else _instance(event))
    check = type_ if type_ and type_ not in _USUAL else None
    row = report(message, reason=reason, check=check, is_normal=type_ == "Normal")
    return row | {
        "record": record,
        "host": where,
        "source": "kubernetes_event",
        "object": None
        if kind == "Node" and where
        else "/".join(word for word in (kind, text(about.get("namespace")), name) if word) or None,
        "logged_at": seen,
        "first_at": next((moment for moment in begun if moment), seen),
        "reason": check if check and (not reason or reason in _USUAL) else reason,
        "is_healthy": True if reason in _HEALTHY or (check and (reason or "").endswith("IsHealthy")) else None,
        "message": message,
        "num_folded": max([count for count in counts if count is not None and count > 0], default=1),
    }


def _instance(event: Mapping[str, Any]) -> str | None:
    """The node on which a kubelet, or another agent that names it, saw the event; a controller's instance is a pod."""
    controller = text(first(event, "reportingController", "reportingComponent")) or ""
    instance = text(event.get("reportingInstance"), 255)
    return host(instance) if instance and controller in ("kubelet", "node-problem-detector", "containerd", "kube-proxy") else None


def report(message: str | None, *, reason: str | None, check: str | None = None, is_normal: bool = False) -> dict[str, Any]:
    """Columns that words tell: code, GPU, action, kind and attribution."""
    told = said(message or "", check, reason)
    code = told.codes[0] if told.codes else None
    if told.xid is not None:
        code = str(told.xid)
    if told.xid is not None and (is_xid := _speaks_of_xid(message, reason, check)):
        what: Told = of_xid(told.xid) if is_xid else NOTHING
    elif reason in _GOING_ON or (is_normal and of_words(reason, check).kind == "unknown"):
        what = NOTHING
    else:
        what = of_words(reason, check, code, message)
    return {
        "code": code,
        "gpu": gpu_of(told.gpu) if told.gpu else None,
        "gpu_uuid": told.gpu_uuid,
        "recommended_action": told.action,
        "kind": what.kind,
        "attribution": what.attribution,
    }


def _speaks_of_xid(*words: str | None) -> bool:
    return any("xid" in word.lower() for word in words if word)
