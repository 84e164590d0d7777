"""The last chain of GPU records of a case in which nothing but kernel logs tells when the job ran: what stands at the end, and what that may follow.

1. Records that follow each other with no gap over ten minutes, up to the last one, are one burst.
2. Where that burst shows only the teardown of the job (channels of its processes, whose fault is told nowhere in it), the fault may stand a time-out
   earlier: the other ranks wait that long for the one that is gone. Torch waits 10 minutes for NCCL and 30 for other back ends, or what a line of
   the trainer's log states. So the nearest burst before it counts that has a root and is no further off than this, and the ten minutes beside.
3. Not so a burst that is the end of another job: other GPUs lost processes in it, and lost others again in the last one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rca.analyses._job_logs import Line

if TYPE_CHECKING:
    from rca.analyses._kernel_events import Record

__all__ = ["GAP_S", "last_chain", "longest_wait_s", "waited_s"]

GAP_S: Final = 600.0  # kernels notice late: a time-out of a command, a bus that no longer answers
DEFAULT_S: Final = 1800.0  # torch's longest default time-out of a process group (torch.distributed.constants: 10 min for NCCL, 30 else)
MOST_S: Final = 7 * 86_400.0  # a time-out beyond a week is set so that it never comes
TORN_DOWN: Final = 45
_STATED: Final = re.compile(r"Timeout\(ms\)=([0-9]{1,12})\b")
_RAN: Final = re.compile(r"\bran for ([0-9]{1,12}) milliseconds before timing out")


def longest_wait_s(lines: Iterable[Line]) -> float:
    """How long, s, ranks may wait for one that is gone: the longest default, or the longest time-out that a log states."""
    stated = [int(found[1]) / 1000 for line in lines if (found := _STATED.search(line.text))]
    return max([DEFAULT_S, *(seconds for seconds in stated if seconds <= MOST_S)])


def waited_s(line: Line) -> float:
    """How long before a line its rank was at work for certain, s: a call that ran out of time began so long before."""
    found = _RAN.search(line.text) or _STATED.search(line.text)
    seconds = int(found[1]) / 1000 if found else 0.0
    return seconds if seconds <= MOST_S else 0.0


def last_chain(records: Iterable[Record], wait_s: float) -> list[Record]:
    """The records of the last chain, in the order of time; `wait_s`: the longest time-out that may lie between a fault and the teardown."""
    bursts = _bursts(sorted(records, key=lambda r: r.at_s))
    if not bursts:
        return []
    last = bursts[-1]
    if any(_is_certain(r) for r in last):
        return last
    near = [
        n for n, burst in enumerate(bursts[:-1]) if last[0].at_s - burst[-1].at_s <= wait_s + GAP_S and not _is_another_end(burst, last)
    ]
    wanted = [_is_certain] if any(r.cause for r in last) else [_is_certain, _is_possible]
    for fits in wanted:
        for place in reversed(near):
            if any(fits(r) for r in bursts[place]):
                return [r for burst in bursts[place:] for r in burst]
    return last


def _bursts(records: Sequence[Record]) -> list[list[Record]]:
    found: list[list[Record]] = []
    for record in records:
        if found and record.at_s - found[-1][-1].at_s <= GAP_S:
            found[-1].append(record)
        else:
            found.append([record])
    return found


def _is_certain(record: Record) -> bool:
    return record.role == "root" and bool(record.cause)


def _is_possible(record: Record) -> bool:
    """What may be a root; the fault of a program only where it is a program of the job."""
    return bool(record.cause) and (record.role == "either" or (record.role == "application" and record.line.rank is not None))


def _is_another_end(burst: Sequence[Record], last: Sequence[Record]) -> bool:
    """Whether a burst ended another job: GPUs without a fault of their own lost processes in it, and lost others in the last one."""
    broken = {(r.host, r.gpu) for r in burst if r.cause}
    then, now = _torn_down(burst), _torn_down(last)
    return any(place not in broken and place in now and not pids & now[place] for place, pids in then.items())


def _torn_down(records: Iterable[Record]) -> Mapping[tuple[str, str | None], set[int]]:
    """(host, GPU) -> processes whose channels were torn down, as far as named."""
    found: dict[tuple[str, str | None], set[int]] = defaultdict(set)
    for r in records:
        if r.kind == "xid" and r.code == TORN_DOWN and r.line.pid is not None:
            found[r.host, r.gpu].add(r.line.pid)
    return found
