"""Pods of Kubernetes that failed, as rows of `node_events`: a pod that ended for a reason of its own, a container that did not end well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from collectors._attribution import Told, of_words
from collectors._json_records import host, text, whole
from collectors._kube_events import MESSAGE_CHARS, part
from collectors._kube_time import kube_instant

__all__ = ["job_rows", "pod_rows"]

_LISTS: Final = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
# Conditions by which jobs, Kubeflow's training jobs, JobSets, Kueue's workloads and Volcano's groups tell an end that is none of their own choice.
_ENDS: Final = frozenset(
    {"Failed", "FailureTarget", "Evicted", "Preempted", "Suspended", "Restarting", "DisruptionTarget", "Unschedulable"}
)


def pod_rows(pod: Mapping[str, Any], record: str) -> Iterator[dict[str, Any]]:
    """Rows of one pod, none where nothing failed."""
    about, status = part(pod, "metadata"), part(pod, "status")
    where = host(part(pod, "spec").get("nodeName"))
    name = "/".join(word for word in ("Pod", text(about.get("namespace")), text(about.get("name"), 255)) if word)
    common = {"record": record, "host": where, "source": "kubernetes_pod", "num_folded": 1, "is_healthy": False}
    reason = text(status.get("reason"))
    ended = [condition for condition in _dicts(status.get("conditions")) if condition.get("type") == "DisruptionTarget"]
    for condition in [c for c in ended if c.get("status") == "True"][:1]:
        message = text(condition.get("message"), MESSAGE_CHARS)
        why = text(condition.get("reason")) or reason
        yield common | _told(why, message) | {
            "object": name, "reason": why, "message": message, "logged_at": kube_instant(condition.get("lastTransitionTime")),
        }  # fmt: skip
        reason = None
    if reason and status.get("phase") == "Failed":
        message = text(status.get("message"), MESSAGE_CHARS)
        yield common | _told(reason, message) | {"object": name, "reason": reason, "message": message, "logged_at": None}
    for key in _LISTS:
        for container in _dicts(status.get(key)):
            ends = [part(container, "state", "terminated"), part(container, "lastState", "terminated")]
            for end in ends:
                if end and (
                    whole(end.get("exitCode"))
                    or whole(end.get("signal"))
                    or end.get("reason") in ("OOMKilled", "Error", "ContainerCannotRun")
                ):
                    yield common | _container(end, f"{name}/{text(container.get('name')) or ''}".rstrip("/"))


def job_rows(value: Mapping[str, Any], record: str) -> Iterator[dict[str, Any]]:
    """Rows of what a job, workload or group of pods says of its own end, in its conditions; of no node."""
    about = part(value, "metadata")
    words = (text(value.get("kind")), text(about.get("namespace")), text(about.get("name"), 255))
    for condition in _dicts(part(value, "status").get("conditions")):
        if condition.get("status") == "True" and condition.get("type") in _ENDS:
            name, reason, message = (
                text(condition.get("type")),
                text(condition.get("reason")),
                text(condition.get("message"), MESSAGE_CHARS),
            )
            at = kube_instant(condition.get("lastTransitionTime")) or kube_instant(condition.get("lastProbeTime"))
            yield {
                "record": record,
                "source": "kubernetes_job",
                "object": "/".join(word for word in words if word),
                "logged_at": at,
                "first_at": at,
                "reason": reason or name,
                "is_healthy": False,
                "message": message,
                "num_folded": 1,
                **of_words(name, reason, message)._asdict(),
            }


def _container(end: Mapping[str, Any], name: str) -> dict[str, Any]:
    reason, message, code = text(end.get("reason")), text(end.get("message"), MESSAGE_CHARS), whole(end.get("exitCode"))
    at = kube_instant(end.get("finishedAt"))
    return _told(reason, message) | {
        "object": name,
        "reason": reason,
        "code": None if code is None else str(code),
        "message": message,
        "logged_at": at,
        "first_at": at,
    }


def _told(reason: str | None, message: str | None) -> dict[str, Any]:
    what: Told = of_words(reason, message)
    return {"kind": what.kind, "attribution": what.attribution}


def _dicts(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
