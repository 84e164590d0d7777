"""Announced ends and changes: what schedulers, operators and autoscalers say that they do to a job or a node, and whether on purpose.

The recognised lines of Slurm and Kubernetes are known by their signature; announcements in free words by a verb and what it is done to.
One that is taken back ("window postponed") or that lies ahead ("tomorrow") is none; one with a failure as its reason is not planned.
"""

from __future__ import annotations

import re
from typing import Any, Final

from collectors._log_lines import holds
from collectors._log_prefix import plain_host
from rca.catalogues import cached, rows

__all__ = ["WORDS", "announcement"]

MAX_TEXT = 1000  # characters of a reason that are kept
WORDS: Final = (
    *("maintenance", "drain", "cordon", "decommission", "planned", "scale down", "scale-down", "scaling down", "scaled down", "scaledown"),
    *("scale in", "scale-in", "scaling in", "scaled in", "on request", "request of", "requested", "operator", "by user", "by the user"),
    *("by admin", "by the admin", "by owner", "user stop", "user cancel", "admin", "resum", "back in service"),
    *("scheduler:", "controller:", "autoscaler", "user ", "down for"),
    *(
        "preempt",
        "term_owner",
        "term_admin",
        "term_preempt",
        "reclaim",
        "interruption",
        "time limit",
        "walltime",
        "scancel",
        "qdel",
        "bkill",
        "kubectl delete",
    ),
)
_OF_SIGNATURE: Final[dict[str, dict[str, Any]]] = {
    "slurm_time_limit": {"state": "time_limit", "is_planned": True, "by": "scheduler"},
    "slurm_preempted": {"state": "preempted", "is_planned": True, "by": "scheduler"},
    "slurm_requeued": {"state": "requeued", "is_planned": True, "by": "scheduler"},
    "slurm_cancelled": {"state": "cancelled", "is_planned": None, "by": None},
    "slurm_node_failure": {"state": "node_failure", "is_planned": False, "by": "scheduler"},
    "k8s_eviction": {"state": "stopping", "is_planned": False, "by": "scheduler"},
}
_TAKEN_BACK: Final = re.compile(
    r"(?i)\b(?:no|not|without|never|un(?:til|less))\b.{0,30}\b(?:maintenance|drain|stop|shutdown|planned|scheduled)"
    r"|\b(?:maintenance|window|drain|stop|shutdown|scale.?down)\b.{0,40}\b(?:cancell?ed|postponed|rescheduled|aborted|skipped|deferred|denied|rejected)\b"
)
_OVER: Final = re.compile(r"(?i)\b(?:maintenance|window|drain)\b.{0,60}\b(?:completed|finished|ended|over|done|closed)\b")
_AHEAD: Final = re.compile(
    r"(?i)\b(?:tomorrow|upcoming|reminder|next (?:week|month|monday|tuesday|wednesday|thursday|friday|saturday|sunday))\b"
    r"|\bin [0-9]+ (?:days?|weeks?|hours?)\b|\b(?:may|might|could|can) be (?:preempted|reclaimed|stopped|drained|cancelled)\b"
)
_ADVICE: Final = re.compile(
    r"(?i)\b(?:please|need to|must|should) (?:resume|restart|rerun|requeue)\b"
)  # what a person is to do: nothing was done
_FAILURE: Final = re.compile(
    r"(?i)\b(?:fail(?:ed|ure|ing|s)?|faulty|error|xid|ecc|unhealthy|unreachable|not responding|unresponsive|broken|f(?:allen|ell) off|overheat\w*"
    r"|bad (?:gpu|node|dimm|nic))\b"
)
_ACTORS: Final = (
    ("autoscaler", re.compile(r"(?i)autoscal|scal(?:e|ed|ing)[- ]?(?:down|in)|ScaleDown")),
    ("user", re.compile(r"(?i)\b(?:user|owner)\b")),
    ("operator", re.compile(r"(?i)\b(?:operator|admin\w*|maintenance)\b")),
    ("scheduler", re.compile(r"(?i)\b(?:scheduler|slurm\w*|kube\w*|controller)\b")),
)
_NODE: Final = re.compile(r"(?i)\b(?:node|host)s?[:= ]+(?P<host>[a-z][\w.-]*[0-9][\w-]*)")


@cached
def _states() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((row["state"], re.compile(row["pattern"], re.IGNORECASE)) for row in rows("announcements"))


def announcement(text: str, signature: str | None) -> dict[str, Any] | None:
    """Columns of `scheduler_events` of one line, or None. `signature` is what the line was recognised as."""
    if signature in _OF_SIGNATURE:
        told = _OF_SIGNATURE[signature]
        by = "user" if signature == "slurm_cancelled" and " by " in text.lower() else told["by"]
        return told | {"by": by, "host": None, "reason": text.strip()[:MAX_TEXT]}
    if not holds(text, WORDS):
        return None
    state = next((state for state, regex in _states() if regex.search(text)), None)
    if state is None or any(denied.search(text) for denied in (_TAKEN_BACK, _AHEAD, _ADVICE)):
        return None
    if _OVER.search(text):
        state = "resumed"
    node = _NODE.search(text)
    return {
        "state": state,
        "is_planned": _FAILURE.search(text) is None,
        "by": next((actor for actor, regex in _ACTORS if regex.search(text)), None),
        "host": plain_host(node["host"]) if node else None,
        "reason": text.strip()[:MAX_TEXT],
    }
