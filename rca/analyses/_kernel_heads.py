"""Which kernel records began a chain, of those that no edge of the catalogue explains.

1. Where no device has a root, what may be either is a root unless an earlier record of the host, or of a link's other end, explains it.
2. One application fault on most GPUs of a host, or on many of the job, within seconds is the program, no GPU. The same one on a single GPU, in one
   process after the other, is that GPU.
3. A fault of a link shows at both ends. The end that several others name, or that loses several links, is the one; else the ends are a tie.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from rca.analyses._kernel_events import Record

__all__ = ["REPEATING", "chain_heads", "node_wide", "one_end", "repeated_on_one"]

CHAIN: Final = timedelta(minutes=2)  # one fault shows in records so far apart
AT_ONCE_S: Final = 30.0  # application faults of one program come within seconds
NODE_WIDE: Final = 3  # GPUs with the same application fault at once: the program, not a device
REPEATED: Final = 3  # processes that one GPU failed, and no other GPU did: the device
REPEATED_UNIT: Final = 2  # the same where it is one and the same multiprocessor
NAMED_BY: Final = 2  # ends that name a GPU as the other end of their broken link: it is the one
REPEATING: Final = frozenset({13, 31})  # faults of programs that a broken GPU repeats
OF_PROCESSES: Final = frozenset({"hung_task", "lockup"})  # kinds that name the process in which the trouble of a host shows
OF_A_LINK: Final = frozenset({74, 136})  # Xids that may name the link's other end
_REMOTE: Final = re.compile(r"remote (?:PCI:)?((?:[0-9a-fA-F]{1,8}:)?[0-9a-fA-F]{1,2}:[0-9a-fA-F]{1,2})")


def chain_heads(records: Sequence[Record]) -> list[Record]:
    """Of each device the record that began its chain; a device whose chain follows from another one's of the host has none."""
    by_device: dict[tuple[str, str | None], list[Record]] = defaultdict(list)
    for record in records:
        by_device[record.host, record.gpu].append(record)
    heads = [head for chain in by_device.values() if (head := _head(chain)) is not None]
    heads = [head for head in heads if not head.is_sign] or heads
    certain = [head for head in heads if head.role == "root"]
    return sorted((_of_all(head, records) for head in certain or _unexplained(heads)), key=lambda r: (r.at_s, r.host, r.gpu or ""))


def _of_all(head: Record, records: Sequence[Record]) -> Record:
    """A head; where the same trouble of its host holds processes of several ranks, it is of none of them alone."""
    if head.kind not in OF_PROCESSES or head.line.rank is None:
        return head
    held = {r.line.rank for r in records if r.host == head.host and _is_same_trouble(head, r)}
    return head if len(held) == 1 else replace(head, line=replace(head.line, rank=None))


def _is_same_trouble(head: Record, other: Record) -> bool:
    """Whether two records name processes that the same trouble holds: tasks that wait in one module, or a processor that one of them keeps."""
    return other.kind in OF_PROCESSES and (other.unit == head.unit or other.kind != head.kind)


def _head(chain: Sequence[Record]) -> Record | None:
    """The first root of one device, else what came first of the rest. Repairs and consequences never begin anything.

    An error of the device in the same chain beats an application's fault a moment earlier: bad memory makes programs fail first.
    """
    may_be = [r for r in chain if r.role in ("either", "application")]
    return next((r for r in chain if r.role == "root"), None) or next((r for r in may_be if not r.is_sign), may_be[0] if may_be else None)


def _unexplained(heads: Sequence[Record]) -> list[Record]:
    """Heads that no earlier one of the same time explains: on the same host, or (for links) of a peer."""
    found = []
    before: dict[
        str, tuple[float, float]
    ] = {}  # host, or the links of all -> instant of the last head, and of the last one before that instant
    for head in sorted(heads, key=lambda r: r.at_s):
        is_explained = False
        for where in (f"host {head.host}", *(["links"] if head.cause == "nvlink_fault" else [])):
            last, earlier = before.get(where, (float("-inf"), float("-inf")))
            earlier = last if last < head.at_s else earlier
            is_explained |= head.at_s - earlier <= CHAIN.total_seconds()
            before[where] = head.at_s, earlier
        if not is_explained:
            found.append(head)
    return found


def node_wide(records: Sequence[Record], repeated: Mapping[Record, int]) -> tuple[list[Record], list[Record]]:
    """Application faults that many GPUs show within seconds, and all other records."""
    wide: set[int] = set()
    by_code: dict[int | None, list[Record]] = defaultdict(list)
    for record in records:
        if record.role == "application" and record not in repeated:
            by_code[record.code].append(record)
    for found in by_code.values():
        for burst in _bursts(found):
            if len({(r.host, r.gpu) for r in burst}) >= NODE_WIDE:
                wide |= {id(r) for r in burst}
    return [r for r in records if id(r) in wide], [r for r in records if id(r) not in wide]


def _bursts(records: Sequence[Record]) -> list[list[Record]]:
    """Records, in the order of time, parted where nothing is told for a while: half a minute on one host, longer where clocks may differ."""
    found: list[list[Record]] = []
    for record in records:
        last = found[-1][-1] if found else None
        pause = AT_ONCE_S if last is not None and last.host == record.host else CHAIN.total_seconds()
        if last is not None and record.at_s - last.at_s <= pause:
            found[-1].append(record)
        else:
            found.append([record])
    return found


def repeated_on_one(now: Sequence[Record], everything: Sequence[Record]) -> dict[Record, int]:
    """Application faults that one GPU gave to several processes, one after the other, and no other GPU of the job gave to more than one.

    Source: NVIDIA's Xid sheet for 13 and 31: the same GPU over several jobs is to be tested, spread over GPUs it is the application.
    """
    met: dict[tuple[int | None, str, str | None], set[int]] = defaultdict(set)
    at_unit: dict[tuple[int | None, str, str | None, str], set[int]] = defaultdict(set)
    for r in everything:
        if r.code in REPEATING and r.line.pid is not None:
            met[r.code, r.host, r.gpu].add(r.line.pid)
            if r.code == 13 and r.unit and r.unit != "several":
                at_unit[r.code, r.host, r.gpu, r.unit].add(r.line.pid)
    most: dict[int | None, list[int]] = defaultdict(list)
    for key, pids in met.items():
        most[key[0]] = sorted([*most[key[0]], len(pids)])[-2:]
    found = {}
    for r in now:
        if r.gpu is None:
            continue
        own = len(met[r.code, r.host, r.gpu])
        others = next((n for n in most[r.code] if n != own), own) if len(most[r.code]) > 1 else 0  # of two that have most, the other one
        same_unit = len(at_unit.get((r.code, r.host, r.gpu, r.unit or ""), ()))
        if others <= 1 and (own >= REPEATED or same_unit >= REPEATED_UNIT):
            found[r] = own
    return found


def one_end(heads: Sequence[Record], live: Sequence[Record]) -> list[Record]:
    """The heads, of both ends of a broken link only the one that its peers name or that lost several links; as they are where neither tells."""
    ends = [r for r in live if r.kind == "xid" and r.code in OF_A_LINK]
    found = list(heads)
    is_end = {id(r) for r in ends}
    for host in sorted({r.host for r in heads if id(r) in is_end}):
        mine = [r for r in ends if r.host == host]
        named: dict[str, set[str | None]] = defaultdict(set)
        for r in mine:
            for address in _REMOTE.findall(r.line.text):
                if (other := _address(address)) != r.gpu:
                    named[other].add(r.gpu)
        lost = Counter(gpu for gpu, _ in {(r.gpu, r.link) for r in mine})
        hub = _most({gpu: len(by) for gpu, by in named.items()}) or _most({gpu: n for gpu, n in lost.items() if gpu})
        of_link = [r for r in found if r.host == host and id(r) in is_end]
        if hub is None or not of_link:
            continue
        own = next((r for r in of_link if r.gpu == hub), None)
        keep = own or replace(of_link[0], gpu=hub, line=replace(of_link[0].line, rank=None))
        found = [r for r in found if r.host != host or id(r) not in is_end] + [keep]
    return sorted(found, key=lambda r: (r.at_s, r.host, r.gpu or ""))


def _most(counts: Mapping[str, int]) -> str | None:
    """The one that has clearly the most: at least NAMED_BY and more than any other."""
    order = sorted(counts.values(), reverse=True)
    if not order or order[0] < NAMED_BY or (len(order) > 1 and order[1] == order[0]):
        return None
    return max(counts, key=lambda gpu: counts[gpu])


def _address(text: str) -> str:
    """`dddd:bb:dd` of an address that may lack its domain, as the tables write it."""
    parts = [int(part, 16) for part in text.split(":")]
    return f"{parts[0] if len(parts) == 3 else 0:04x}:{parts[-2]:02x}:{parts[-1]:02x}"
