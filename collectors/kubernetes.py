"""Kubernetes: events, conditions and states of nodes, failed pods, as `kubectl get` and `kubectl describe node` print them.

JSON and YAML (one object, lists, one object a line, `--watch` streams, watch events), the tables of `kubectl get events` and `kubectl get nodes`,
and `kubectl describe node`. Also the agents that speak through Kubernetes: NVSentinel, node-problem-detector, EKS node monitoring agent, HyperPod.
A node is one row of `node_states`; what is wrong with it, and every event, is one of `node_events`. Ages ("5m") give no instant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from collectors._kube_events import event_row, is_event
from collectors._kube_nodes import condition_row, is_condition, node_of, node_rows, node_state
from collectors._kube_pods import job_rows, pod_rows
from collectors._kube_text import is_text_form, text_rows
from collectors._report_objects import objects
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("node_events", "node_states")
IS_ALONE = True

MAX_ROWS: Final = 200_000
_KIND: Final = re.compile(rb'"kind"\s{0,8}:\s{0,8}"(?:Event|EventList|Node|NodeList|Pod|PodList)"')
_LIST: Final = re.compile(rb'"kind"\s{0,8}:\s{0,8}"List"')
_IS_EVENT: Final = re.compile(rb'"(?:involvedObject|regarding)"\s{0,8}:\s{0,8}\{')
_API: Final = re.compile(rb'"apiVersion"\s{0,8}:\s{0,8}"')
_IS_CONDITION: Final = re.compile(rb'"status"\s{0,8}:\s{0,8}"(?:True|False|Unknown)"')
_CONDITION_TIME: Final = re.compile(rb'"last(?:Transition|Heartbeat)Time"')
_YAML: Final = re.compile(rb"^(?:- )?kind: (?:Event|EventList|Node|NodeList|Pod|PodList|List)\s*$", re.M)
_YAML_EVENT: Final = re.compile(rb"^ {0,4}(?:involvedObject|regarding):\s*$", re.M)
_YAML_CONDITION: Final = re.compile(rb"^[ -]{0,6}lastTransitionTime: ", re.M)
_SAME: Final = ("source", "host", "object", "reason", "code", "logged_at")  # of what a node says again each time that a stream shows it
_YAML_API: Final = re.compile(rb"^[ -]{0,4}apiVersion: ", re.M)


def claims(name: str, head: bytes) -> bool:
    """Objects of Kubernetes of these kinds, a condition by itself, or such a table."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] in (b"{", b"["):
        if _API.search(head) and (_KIND.search(head) or _LIST.search(head)):
            return True
        if _IS_EVENT.search(head) and (b'"reason"' in head or b'"note"' in head):
            return True
        return bool(_IS_CONDITION.search(head) and _CONDITION_TIME.search(head) and b'"type"' in head)
    if head[:1] == b"\x80" or b"\0" in head:
        return False
    if _YAML_API.search(head) and (
        _YAML.search(head) or _YAML_EVENT.search(head) or re.search(rb"^ {2}kind: (?:Event|Node|Pod)\s*$", head, re.M)
    ):
        return True
    if _YAML_CONDITION.search(head) and re.search(rb'^[ -]{0,6}status: ["\'](?:True|False|Unknown)["\']', head, re.M):
        return True
    return is_text_form(head)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `node_events` and `node_states`, in the order of the file. An event that a stream repeats counts once, as it was told last."""
    rows = _Rows()
    if is_text_form(source.head):
        for item in text_rows(source):
            if isinstance(item, Skip):
                yield item
            else:
                rows.add(*item)
    else:
        for record, value in objects(source):
            if isinstance(value, Skip):
                yield value
            elif record is not None:
                _take(rows, value, record)
            if rows.is_full:
                yield Skip(record, f"more than {MAX_ROWS:,} rows: the rest is left out")
                break
    if not rows.events and not rows.states and not rows.num_fine:
        yield Skip(None, "no event, node, condition or pod in it")
    yield TABLES["node_events"], TABLES["node_events"].rows([*rows.events.values()])
    yield TABLES["node_states"], TABLES["node_states"].rows([*rows.states.values()])


class _Rows:
    """Rows so far; events by their identity, so that a later version of one replaces it."""

    def __init__(self) -> None:
        self.events: dict[Any, dict[str, Any]] = {}
        self.states: dict[Any, dict[str, Any]] = {}
        self.num_fine = 0  # pods and jobs, which may have nothing to tell

    @property
    def is_full(self) -> bool:
        return len(self.events) + len(self.states) >= MAX_ROWS

    def add(self, table: str, row: dict[str, Any], key: Any = None) -> None:
        if table == "node_states":
            self.states[row["host"] or len(self.states)] = row  # of a node that a stream shows again the last
        else:
            self.events[key if key is not None else len(self.events)] = row


def _take(rows: _Rows, value: Mapping[str, Any], record: str) -> None:
    if isinstance(value.get("object"), dict) and value.get("type") in ("ADDED", "MODIFIED", "DELETED"):  # of --output-watch-events
        if value["type"] == "DELETED":
            return
        value = value["object"]
    kind, about = value.get("kind"), value.get("metadata")
    if is_event(value):
        uid = about.get("uid") if isinstance(about, dict) else None
        rows.add("node_events", event_row(value, record), uid if isinstance(uid, str) and uid else None)
    elif kind == "Node" or (kind is None and isinstance(value.get("status"), dict) and isinstance(value["status"].get("nodeInfo"), dict)):
        node = node_of(value)
        for row in node_rows(node, record):
            rows.add("node_events", row, tuple(row.get(key) for key in _SAME))
        rows.add("node_states", node_state(node, record))
    elif kind == "Pod":
        rows.num_fine += 1
        for row in pod_rows(value, record):
            rows.add("node_events", row)
    elif is_condition(value):
        rows.add("node_events", condition_row(value, None, record))
    elif isinstance(listed := value.get("conditions"), list):  # of `-o jsonpath={.status}`
        for place, condition in enumerate(listed):
            if isinstance(condition, dict) and is_condition(condition):
                rows.add("node_events", condition_row(condition, None, f"conditions/E{place}" if record == "E0" else record))
    elif isinstance(value.get("status"), dict):
        rows.num_fine += 1
        for row in job_rows(value, record):
            rows.add("node_events", row)
