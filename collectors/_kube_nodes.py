"""Nodes of Kubernetes and their conditions: what is wrong becomes rows of `node_events`, the state of each node one of `node_states`.

A condition is good when it is True if its name says so (Ready, AcceleratedHardwareReady, ...Healthy), else when it is False (MemoryPressure,
KernelDeadlock, GpuMemWatch). Taints that only reserve a node for a kind of work (nvidia.com/gpu, dedicated, a spot pool) say nothing of its health.
HyperPod writes labels (no history, so no instant) and an annotation with its recent faults (with one).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from collectors._attribution import NOTHING, Told, of_words
from collectors._json_records import host, instant, text
from collectors._kube_events import MESSAGE_CHARS, part, report
from collectors._kube_time import kube_instant

__all__ = ["Node", "Taint", "condition_row", "is_bad", "is_condition", "node_of", "node_rows", "node_state", "taint_of"]

_GOOD_WHEN_TRUE: Final = re.compile(r"(?:Ready|Healthy|Available|Succeeded|Schedulable|Online|Passed|HasNoDeadlock|OK)$")
_NEGATED: Final = re.compile(r"(?:Not|Un|un|In)(?:Ready|Healthy|healthy|Available|available|Schedulable|schedulable)$")
_RESERVES: Final = re.compile(  # taints that every node of a pool bears, whatever its health
    r"(?:nvidia\.com/gpu|amd\.com/gpu|aws\.amazon\.com/neuron|habana\.ai/gaudi|sku|dedicated|workload|node-role\.kubernetes\.io/.{1,60}"
    r"|kubernetes\.azure\.com/scalesetpriority|cloud\.google\.com/gke-(?:spot|preemptible|gpu|accelerator)|cloud\.google\.com/gke-\w{0,20}-pool"
    r"|node\.cilium\.io/agent-not-ready|node\.cloudprovider\.kubernetes\.io/uninitialized|ebs\.csi\.aws\.com/agent-not-ready)"
)
_PRESSURE: Final = re.compile(r"node\.kubernetes\.io/(?:memory|disk|pid)-pressure")
_STOPS: Final = ("NoSchedule", "NoExecute")
_HYPERPOD: Final = "sagemaker.amazonaws.com/"
_WELL: Final = frozenset({"Schedulable", "Passed", "InProgress", "passed", "schedulable", ""})
_CORDONED: Final = "node.kubernetes.io/unschedulable"


class Taint(NamedTuple):
    """A taint; `added_at` as printed."""

    key: str
    value: str | None
    effect: str
    added_at: Any

    @property
    def words(self) -> str:
        """As kubectl prints it."""
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


class Node(NamedTuple):
    """What is known of a node, however it was printed."""

    host: str | None
    conditions: Sequence[Mapping[str, Any]]
    taints: Sequence[Taint]
    is_cordoned: bool
    labels: Mapping[str, Any]
    annotations: Mapping[str, Any]
    places: Sequence[str] = ()  # of the conditions, where each has its own


def node_of(value: Mapping[str, Any]) -> Node:
    """A node from its object."""
    about, spec = part(value, "metadata"), part(value, "spec")
    listed = (part(value, "status").get("conditions"), spec.get("taints"))
    conditions, taints = ([entry for entry in one if isinstance(entry, dict)] if isinstance(one, list) else [] for one in listed)
    return Node(
        host(about.get("name")), [c for c in conditions if is_condition(c)], [taint for entry in taints if (taint := taint_of(entry))],
        spec.get("unschedulable") is True, part(about, "labels"), part(about, "annotations"),
    )  # fmt: skip


def taint_of(entry: Mapping[str, Any]) -> Taint | None:
    """A taint from its object; None for what is none."""
    key, effect = text(entry.get("key"), 300), text(entry.get("effect"), 40)
    return Taint(key, text(entry.get("value"), 300), effect, entry.get("timeAdded")) if key and effect else None


def is_condition(value: Mapping[str, Any]) -> bool:
    """Whether an object is the condition of a node."""
    return (
        isinstance(value.get("type"), str)
        and value.get("status") in ("True", "False", "Unknown")
        and ("lastTransitionTime" in value or "lastHeartbeatTime" in value or ("reason" in value and "message" in value))
    )


def is_bad(condition: Mapping[str, Any]) -> bool:
    """Whether a condition says that something is wrong. Unknown is bad only of what should be True: nobody has heard of it."""
    name, status = str(condition.get("type")), condition.get("status")
    if _GOOD_WHEN_TRUE.search(name) and not _NEGATED.search(name):
        return status in ("False", "Unknown")
    return status == "True"


def condition_row(condition: Mapping[str, Any], where: str | None, record: str) -> dict[str, Any]:
    """The row of one condition. Its instant is that of the change, not of the last sign of life."""
    reason, name = text(condition.get("reason")), text(condition.get("type"))
    message = text(condition.get("message"), MESSAGE_CHARS)
    bad = is_bad(condition)
    at = kube_instant(condition.get("lastTransitionTime")) or kube_instant(condition.get("lastHeartbeatTime"))
    row = report(message, reason=reason, check=name)
    if not bad:
        row |= NOTHING._asdict()
    return row | {
        "record": record,
        "host": where,
        "source": "node_condition",
        "object": name,
        "logged_at": at,
        "first_at": at,
        "reason": reason or name,
        "is_healthy": not bad,
        "message": message,
        "num_folded": 1,
    }


def node_rows(node: Node, record: str) -> Iterator[dict[str, Any]]:
    """Rows of `node_events`: its bad conditions, and what HyperPod found."""
    for place, condition in enumerate(node.conditions):
        if is_bad(condition):
            yield condition_row(condition, node.host, node.places[place] if node.places else record)
    yield from _hyperpod_rows(node, record)


def _label(node: Node, *names: str) -> str | None:
    return next((value for name in names if (value := text(node.labels.get(_HYPERPOD + name), 300))), None)


def _hyperpod_rows(node: Node, record: str) -> Iterator[dict[str, Any]]:
    status, deep = _label(node, "node-health-status"), _label(node, "deep-health-check-status")
    kind, reason = _label(node, "fault-types", "fault-type"), _label(node, "fault-reasons", "fault-reason")
    details = list(_details(node))
    if not details and not kind and not reason and (status or "") in _WELL and (deep or "") in _WELL:
        return
    words = (
        ", ".join(f"{name} {value}" for name, value in (("node-health-status", status), ("deep-health-check-status", deep)) if value)
        or None
    )
    common = {"record": record, "host": node.host, "source": "hyperpod", "num_folded": 1, "is_healthy": False}
    for entry in details or [{}]:
        code, why = text(entry.get("type"), 300) or kind, text(entry.get("reason"), 300) or reason
        message = text(entry.get("message"), MESSAGE_CHARS) or words
        at = kube_instant(entry.get("timestamp")) or instant(entry.get("timestamp"))
        row = report(message, reason=why, check=code)
        if row["kind"] == "unknown":  # a check that failed, or a fault without a word that says of what
            row |= Told("host", "platform")._asdict() if code or why or deep == "Failed" or "Pending" in (status or "") else {}
        yield (
            common
            | row
            | {"code": row["code"] or code, "reason": why or status or deep, "message": message, "logged_at": at, "first_at": at}
        )


def _details(node: Node) -> Iterator[Mapping[str, Any]]:
    value = node.annotations.get(f"{_HYPERPOD}fault-details")
    try:
        listed = json.loads(value) if isinstance(value, str) and len(value) < 1 << 18 else value
    except (ValueError, RecursionError):
        return
    yield from (entry for entry in (listed if isinstance(listed, list) else [listed])[:100] if isinstance(entry, dict))


def node_state(node: Node, record: str) -> dict[str, Any]:
    """The row of `node_states`. Whatever is broken about a node explains why it was cordoned; else somebody did so on purpose."""
    ready = next((c for c in node.conditions if c.get("type") == "Ready"), None)
    bad = [c for c in node.conditions if is_bad(c)]
    taints = [taint for taint in node.taints if taint.effect in _STOPS and not _RESERVES.fullmatch(taint.key)]
    status = _label(node, "node-health-status")
    is_cordoned = node.is_cordoned or any(taint.key == _CORDONED for taint in taints)
    says: list[tuple[Told, str | None, Any]] = []
    for condition in bad:
        row = condition_row(condition, node.host, record)
        words = (
            f"{condition['type']}: {text(condition.get('message'), MESSAGE_CHARS) or text(condition.get('reason')) or condition['status']}"
        )
        says.append((Told(row["kind"], row["attribution"]), words, condition.get("lastTransitionTime")))
    for taint in taints:
        if taint.key != _CORDONED and not _PRESSURE.fullmatch(taint.key) and not taint.key.startswith(_HYPERPOD):
            says.append((of_words(taint.key, taint.value), taint.words, taint.added_at))
    for row in _hyperpod_rows(node, record):
        says.append((Told(row["kind"], row["attribution"]), row["reason"], None))
    worst = min(says, key=lambda one: _RANKED.get(one[0].attribution, 2), default=None)
    if worst is None and is_cordoned:
        worst = (Told("planned", "planned"), "SchedulingDisabled", None)
    if worst is not None and is_cordoned and worst[0].attribution == "unknown":
        worst = (Told("unknown", "unknown"), *worst[1:])
    base = None if ready is None else {"True": "Ready", "False": "NotReady"}.get(str(ready.get("status")), "Unknown")
    flags = [
        *(["SchedulingDisabled"] if is_cordoned else []),
        *(t.words for t in node.taints),
        *([f"node-health-status={status}"] if status else []),
    ]
    return {
        "record": record,
        "host": node.host,
        "source": "hyperpod" if status else "kubernetes",
        "base_state": base,
        "flags": flags,
        "is_drain": is_cordoned or bool(taints) or (status is not None and status != "Schedulable"),
        "is_responding": None if ready is None else ready.get("status") != "Unknown",
        "reason": worst[1] if worst else None,
        "reason_at": kube_instant(worst[2]) if worst else None,
        "attribution": worst[0].attribution if worst else None,
    }


_RANKED: Final = {"platform": 0, "planned": 1, "workload": 3, "unknown": 4, "none": 5}
