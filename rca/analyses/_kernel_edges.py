"""What follows from what among kernel records: the edges of rca/catalogue/xid_edges.csv, laid on the records of a job.

1. An edge names two kinds of records, how long after the one the other may come (`window_s`), how much earlier it may be printed (`early_s`), and
   where: on the same GPU, the same host, or anywhere in the NVLink domain. Which hosts share a domain no evidence tells: all of the job count.
2. Between two hosts the window is wider by what both clocks can be off, and instants are compared after their offsets.
3. Of several parents the nearest counts: the same GPU before the host before the domain, then the earliest. A line that names its cause itself
   (45 since R575) follows that one.
4. Where an edge `announces`, the earlier record is the herald: it belongs to the later one, which names the device.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol

from rca.catalogues import SCOPES, cached, rows
from rca.clocks import UNMEASURED_S, Clocks

__all__ = ["Edge", "Event", "Link", "chain_of", "edges", "follow"]

LOST: Final = 79  # Xid of a GPU that left the bus; the same is told without any number
STATED_S: Final = 600.0  # how long before a line the Xid may be that it names as its cause
MAX_TRIED: Final = 256  # records that may be the parent of one: beyond that the earliest ones are not looked at any further
ANY: Final = "*"
ANNOUNCES: Final = "announces"


class Event(Protocol):
    """What the edges look at in a record."""

    @property
    def host(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def code(self) -> int | None: ...
    @property
    def gpu(self) -> str | None: ...
    @property
    def unit(self) -> str | None: ...
    @property
    def caused_by(self) -> int | None: ...
    @property
    def cause(self) -> str: ...
    @property
    def at_s(self) -> float: ...


@dataclass(frozen=True)
class Edge:
    """One row of the catalogue."""

    parent: str  # xid:79, xid:* (any that can be a fault), aer
    child: str  # the same; xid:94/SM = only of that unit
    window_s: float
    early_s: float
    scope: str
    kind: str  # causes, detail, repairs, worsens, verdict, announces
    says: str
    source: str


@dataclass(frozen=True)
class Link:
    """Of a record: the place of the record that it follows, and why; no edge where its own line says so."""

    parent: int | None  # None = the line names a cause that no log shows
    edge: Edge | None

    @property
    def says(self) -> str:
        """Why it only follows."""
        return self.edge.says if self.edge else "its line names the Xid before it as its cause"


@cached
def edges() -> tuple[Edge, ...]:
    """All edges, in the order of the catalogue."""
    return tuple(
        Edge(r["from"], r["to"], float(r["window_s"]), float(r["early_s"] or 0), r["scope"], r["kind"], r["says"], r["source"])
        for r in rows("xid_edges")
    )


def follow(events: Sequence[Event], clocks: Clocks) -> dict[int, Link]:
    """Place of a record -> what it follows. A record that is missing here follows nothing that was seen."""
    index = _Index(events, clocks)
    found: dict[int, list[tuple[int, float, int, Edge]]] = defaultdict(list)
    by_child: dict[str, list[Edge]] = defaultdict(list)
    for edge in edges():
        by_child[edge.child].append(edge)
    for place, event in enumerate(events):
        for term in _terms(event):
            for edge in by_child.get(term, ()):
                parent = index.parent(place, edge)
                if parent is not None:
                    child, head = (parent, place) if edge.kind == ANNOUNCES else (place, parent)
                    found[child].append((SCOPES.index(edge.scope), events[head].at_s, head, edge))
    links = {child: Link((best := min(told, key=lambda t: t[:3]))[2], best[3]) for child, told in found.items()}
    for place, event in enumerate(events):
        if event.caused_by is not None:
            links[place] = Link(index.stated(place, event.caused_by), None)
    return links


def chain_of(head: int, links: Mapping[int, Link]) -> list[int]:
    """Places of all records that follow a record, directly or through others, sorted."""
    return sorted(place for place in links if _top(place, links) == head and place != head)


def _top(place: int, links: Mapping[int, Link]) -> int:
    seen = {place}
    while (link := links.get(place)) is not None and link.parent is not None and link.parent not in seen:
        place = link.parent
        seen.add(place)
    return place


def _terms(event: Event) -> list[str]:
    """What edges may call a record."""
    if event.kind == "bus_loss":
        return [f"xid:{LOST}"]
    if event.code is None:
        return [event.kind]
    name = f"{event.kind}:{event.code}"
    return [name, f"{name}/{event.unit}"] if event.unit else [name]


class _Index:
    """Records by what edges call them and where they are, in the order of their times."""

    def __init__(self, events: Sequence[Event], clocks: Clocks) -> None:
        self._events = events
        told = {host: clocks.of(host) for host in {event.host for event in events}}
        self._offset = {host: known[0] if known else 0.0 for host, known in told.items()}
        self._error = {host: known[1] if known else UNMEASURED_S / 2 for host, known in told.items()}
        self._widest = max(self._error.values(), default=0.0)
        groups: dict[tuple[str, Any], list[tuple[float, int]]] = defaultdict(list)
        for place, event in enumerate(events):
            at_s = self._at(event)
            names = _terms(event)
            if event.cause:
                names.append(f"{event.kind}:{ANY}")
            for name in names:
                for where in (("gpu", event.host, event.gpu), ("host", event.host), ("all",)):
                    groups[name, where].append((at_s, place))
        self._groups = {key: sorted(found) for key, found in groups.items()}

    def _at(self, event: Event) -> float:
        return event.at_s - self._offset[event.host]

    def parent(self, place: int, edge: Edge) -> int | None:
        """The earliest record that the edge lets this one follow."""
        event = self._events[place]
        where: tuple[Any, ...] = {"same_gpu": ("gpu", event.host, event.gpu), "same_node": ("host", event.host)}.get(edge.scope, ("all",))
        if edge.scope == "same_gpu" and event.gpu is None:
            return None
        known = self._groups.get((edge.parent, where), [])
        at_s, slack = self._at(event), self._error[event.host] + self._widest if edge.scope == "nvlink_domain" else 0.0
        for when, other in islice(known, begin := bisect_left(known, (at_s - edge.window_s - slack, -1)), begin + MAX_TRIED):
            if when > at_s + edge.early_s + slack:
                return None
            if other != place and self._is_near(place, other, at_s - when, edge):
                return other
        return None

    def _is_near(self, place: int, other: int, later_s: float, edge: Edge) -> bool:
        """Whether the times fit when the clocks of just these two hosts are taken into account, and the two are no equals of each other."""
        one, two = self._events[place], self._events[other]
        if edge.parent.endswith(ANY) and (one.kind, one.code) == (two.kind, two.code):
            return False
        slack = 0.0 if one.host == two.host else self._error[one.host] + self._error[two.host]
        return -edge.early_s - slack <= later_s <= edge.window_s + slack

    def stated(self, place: int, code: int) -> int | None:
        """The latest record of that Xid before the line that names it: on its GPU, else on its host; None where no log shows one."""
        event = self._events[place]
        for where in (("gpu", event.host, event.gpu), ("host", event.host)):
            known = self._groups.get((f"xid:{code}", where), [])
            at_s = self._at(event)
            last = bisect_left(known, (at_s + 1, 0)) - 1
            if last >= 0 and known[last][1] == place:
                last -= 1
            if last >= 0 and known[last][0] >= at_s - STATED_S:
                return known[last][1]
        return None
