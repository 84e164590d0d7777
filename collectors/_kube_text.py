"""Kubernetes as text: the tables of `kubectl get events` and `kubectl get nodes`, and `kubectl describe node`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from collectors._json_records import host, text
from collectors._kube_events import event_row
from collectors._kube_nodes import Node, Taint, node_rows, node_state
from collectors._lines import blocks, is_text
from rca.types import Skip, Source

__all__ = ["is_text_form", "text_rows"]

MAX_LINE: Final = 20_000
MAX_SECTION: Final = 2000  # lines of one section that are kept
_EVENTS: Final = re.compile(
    r"(?:NAMESPACE +)?LAST SEEN +(?:FIRST SEEN +)?(?:COUNT +|NAME +|TYPE +|KIND +){1,3}.{0,200}\bREASON +.{0,200}\bMESSAGE\b.{0,80}"
)
_NODES: Final = re.compile(r"NAME +STATUS +ROLES +AGE +VERSION\b.{0,400}")
_DESCRIBED: Final = re.compile(r"Name: {2,60}\S{1,253}\s*")
_GAP: Final = re.compile(r" {2,}")
_AGE: Final = re.compile(r"(?:[0-9]{1,6}[smhdy]){1,3}|<unknown>|<invalid>")
_TIMES: Final = re.compile(r"\(x(?P<count>[0-9]{1,9})(?: over (?P<over>\S{1,20}))?\)")
_KEY: Final = re.compile(r"(?P<key>[A-Z][A-Za-z \-]{0,40}):(?: {1,80}(?P<value>.*))?")
_TAINT: Final = re.compile(r"(?P<key>[^\s=:]{1,300})(?:=(?P<value>[^\s:]{0,300}))?:(?P<effect>NoSchedule|PreferNoSchedule|NoExecute)")
_SECTIONS: Final = ("Labels", "Annotations", "Taints", "Conditions", "Events")

Told = tuple[str, dict[str, Any]]


def is_text_form(head: bytes) -> bool:
    """Whether the head holds the header of such a table, or the description of a node."""
    if not is_text(head):
        return False
    lines = [line.rstrip("\r") for line in head.decode("utf-8-sig", "replace").split("\n")[:2000]]
    if any(_EVENTS.fullmatch(line.rstrip()) or _NODES.fullmatch(line.rstrip()) for line in lines[:40]):
        return True
    named = any(_DESCRIBED.fullmatch(line) for line in lines[:40])
    return (
        named
        and any(line.startswith("Conditions:") for line in lines)
        and any(line.startswith(("Taints:", "Unschedulable:")) for line in lines)
    )


def text_rows(source: Source) -> Iterator[Told | Skip]:
    """Rows as (table, row), in the order of the file."""
    reader = _Reader()
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            continue
        for number, raw in enumerate(block.lines, block.first):
            yield from reader.take(raw[:MAX_LINE].decode("utf-8", "replace").lstrip("\ufeff").rstrip(), number)
    yield from reader.end()


@dataclass
class _Described:
    """A node of `kubectl describe` so far."""

    name: str
    line: int
    is_cordoned: bool = False
    section: str = ""
    parts: dict[str, list[tuple[int, str]]] = field(default_factory=dict)


class _Reader:
    def __init__(self) -> None:
        self._columns: list[tuple[str, int]] = []
        self._table = ""
        self._node: _Described | None = None

    def take(self, line: str, number: int) -> Iterator[Told | Skip]:
        if _EVENTS.fullmatch(line) or _NODES.fullmatch(line):
            yield from self.end()
            self._table = "nodes" if line.startswith("NAME ") else "events"
            self._columns = [(found[0], found.start()) for found in re.finditer(r"\S+(?: \S+)*", line)]
        elif _DESCRIBED.fullmatch(line):
            yield from self.end()
            self._columns, self._node = [], _Described(line.partition(":")[2].strip(), number)
        elif self._node is not None:
            self._describe(self._node, line, number)
        elif self._columns and line.strip():
            cells = self._cells(line)
            if self._table == "events" and _AGE.match(cells.get("LAST SEEN", "")):
                yield "node_events", _event(cells, f"L{number}")
            elif self._table == "nodes" and cells.get("STATUS") and _AGE.match(cells.get("AGE", "")):
                yield from _node_line(cells, f"L{number}")

    def end(self) -> Iterator[Told | Skip]:
        """What waits for its end: the rows of a described node."""
        node, self._node = self._node, None
        if node is not None:
            yield from _described_rows(node)

    def _cells(self, line: str) -> dict[str, str]:
        """Cells of a line by the places of the header's columns; by the gaps between them where a stream has shifted them."""
        names, starts = [name for name, _ in self._columns], [start for _, start in self._columns]
        if all(start == 0 or start >= len(line) or line[start - 1] == " " for start in starts):
            ends = [*starts[1:], len(line)]
            return {name: line[start:end].strip() for name, start, end in zip(names, starts, ends, strict=True)}
        parts = _GAP.split(line.strip(), maxsplit=len(names) - 1)
        return dict(zip(names, parts, strict=False))

    def _describe(self, node: _Described, line: str, number: int) -> None:
        found = _KEY.fullmatch(line)
        if found:
            node.section = found["key"]
            if node.section == "Unschedulable":
                node.is_cordoned = (found["value"] or "").strip() == "true"
        if node.section in _SECTIONS and len(node.parts.setdefault(node.section, [])) < MAX_SECTION:
            said = (found["value"] or "") if found else line
            if said.strip():
                node.parts[node.section].append((number, said.strip()))


def _described_rows(node: _Described) -> Iterator[Told | Skip]:
    conditions, places = [], []
    for number, line in node.parts.get("Conditions", ()):
        cells = _GAP.split(line, maxsplit=5)
        if len(cells) >= 5 and cells[1] in ("True", "False", "Unknown"):
            conditions.append(
                dict(zip(("type", "status", "lastHeartbeatTime", "lastTransitionTime", "reason", "message"), cells, strict=False))
            )
            places.append(f"L{number}")
        elif len(cells) == 4 and cells[1] in ("True", "False", "Unknown"):  # of Karpenter and others: without a sign of life
            conditions.append({"type": cells[0], "status": cells[1], "lastTransitionTime": cells[2], "reason": cells[3]})
            places.append(f"L{number}")
    taints = [
        Taint(found["key"], found["value"], found["effect"], None)
        for _, line in node.parts.get("Taints", ()) if (found := _TAINT.fullmatch(line))
    ]  # fmt: skip
    seen = Node(
        host(node.name), conditions, taints, node.is_cordoned, _pairs(line for _, line in node.parts.get("Labels", ())),
        _pairs((line for _, line in node.parts.get("Annotations", ())), ": "), places,
    )  # fmt: skip
    record = f"L{node.line}"
    yield from (("node_events", row) for row in node_rows(seen, record))
    for number, line in node.parts.get("Events", ()):
        cells = _GAP.split(line, maxsplit=4)
        if len(cells) == 5 and _AGE.match(cells[2]):
            names = ("TYPE", "REASON", "LAST SEEN", "SOURCE", "MESSAGE")
            yield "node_events", _event({**dict(zip(names, cells, strict=True)), "OBJECT": f"node/{node.name}"}, f"L{number}")
    yield "node_states", node_state(seen, record)


def _pairs(lines: Iterable[str], sign: str = "=") -> dict[str, str]:
    return {key: value for line in lines for key, found, value in [line.partition(sign)] if found}


def _event(cells: Mapping[str, str], record: str) -> dict[str, Any]:
    """The row of a line of the events' table. Its ages are no instants."""
    kind, _, name = cells.get("OBJECT", "").partition("/")
    if not name and cells.get("KIND"):  # of old kubectl: the event's own name begins with that of the object
        kind, name = cells["KIND"], cells.get("NAME", "").rpartition(".")[0]
    times = _TIMES.search(cells.get("LAST SEEN", ""))
    count = times["count"] if times else cells.get("COUNT", "")
    component, _, of_host = cells.get("SOURCE", "").partition(",")
    row = event_row(
        {
            "involvedObject": {
                "kind": "Node" if kind.lower() == "node" else kind or None,
                "name": name,
                "namespace": cells.get("NAMESPACE"),
            },
            "type": cells.get("TYPE"),
            "reason": cells.get("REASON"),
            "message": cells.get("MESSAGE"),
            "count": int(count) if count.isascii() and count.isdigit() and len(count) < 10 else None,
            "source": {"component": component, "host": of_host.strip() or None},
        },
        record,
    )
    return row | {"logged_at": None, "first_at": None}


def _node_line(cells: Mapping[str, str], record: str) -> Iterator[Told]:
    states = cells["STATUS"].split(",")
    labels = _pairs(cells.get("LABELS", "").split(","))
    for name in ("node-health-status", "deep-health-check-status", "fault-types", "fault-reasons"):
        if value := cells.get(name.upper()):
            labels[f"sagemaker.amazonaws.com/{name}"] = value
    ready = {"type": "Ready", "status": "True" if states[0] == "Ready" else "False", "reason": states[0]}
    node = Node(host(text(cells.get("NAME"), 255)), [ready], (), "SchedulingDisabled" in states, labels, {})
    yield from (("node_events", row) for row in node_rows(node, record))
    yield "node_states", node_state(node, record) | {"is_responding": True if states[0] == "Ready" else None}
