"""Kernel records of weight that were seen and not counted: which they are, and why. That there were some is always said.

Of weight is what begins a chain by itself and is of a GPU or its links: memory, the bus, the chip. Reasons are the time of the record, what the job
did after it, or that all of it ended well; a GPU that no rank uses is told of elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from rca.analyses._kernel_events import UNNAMED

if TYPE_CHECKING:
    from rca.analyses._kernel_events import Record

__all__ = ["Aside", "aside_words", "broken_beside", "not_counted", "of_weight"]

KINDS: Final = frozenset({"xid", "sxid", "bus_loss"})
CAUSES: Final = frozenset({"gpu_fault", "gpu_memory_fault", "nvlink_fault"})
MOST_SHOWN: Final = 3
NONFATAL: Final = "nonfatal"  # severity of a link that goes on by its own word

Aside = tuple["Record", str]  # the record, and why it does not count


def of_weight(record: Record) -> bool:
    """Whether a record would be the root of a chain of a GPU, or is of its memory."""
    is_root = record.role == "root" or (record.role == "either" and record.cause == "gpu_memory_fault")
    return is_root and record.kind in KINDS and record.cause in CAUSES and not record.stranger


def not_counted(everything: Iterable[Record], counted: Iterable[Record], why: Mapping[tuple[str, str], str]) -> tuple[Aside, ...]:
    """Records of weight that are not among those that count, each with its reason; `why`: (evidence_id, record) -> reason where one is known."""
    taken = {_key(r) for r in counted}
    found = [r for r in everything if of_weight(r) and _key(r) not in taken]
    return tuple((r, why.get(_key(r), "when is not told")) for r in found)


def aside_words(asides: Sequence[Aside]) -> str:
    """`Xid 79 of host-a GPU 0000:3b:00 at 2026-03-01 12:00:00 UTC (from before the job)`, the latest of each kind and device, a few of them."""
    latest: dict[tuple[str, str | None, str], Aside] = {}
    for record, why in sorted(asides, key=_moment):
        latest[record.host, record.gpu, record.name] = record, why
    told = sorted(latest.values(), key=_moment, reverse=True)
    words = [f"{r.name} of {r.where}{_when(r)} ({why})" for r, why in told[:MOST_SHOWN]]
    more = f" and {len(told) - MOST_SHOWN} more such" if len(told) > MOST_SHOWN else ""
    return ", ".join(words) + more


def broken_beside(records: Iterable[Record], accused: Iterable[str]) -> list[dict[str, str]]:
    """Hosts beside those accused whose own record shows a broken GPU or link, each once: `host` and `record` in words. They did not begin it, and a
    restart would meet their fault all the same."""
    found: dict[str, str] = {}
    for r in sorted(
        (r for r in records if of_weight(r) and r.severity != NONFATAL and not r.host.startswith(UNNAMED)), key=lambda r: r.host
    ):
        if r.host not in set(accused):
            found.setdefault(r.host, f"{r.name}{f' of GPU {r.gpu}' if r.gpu else ''}{_when(r)}")
    return [{"host": host, "record": record} for host, record in found.items()]


def _moment(aside: Aside) -> tuple[bool, float]:
    at: datetime | None = aside[0].line.at
    return at is not None, at.timestamp() if at is not None else 0.0


def _when(record: Record) -> str:
    return f" at {record.line.at:%Y-%m-%d %H:%M:%S} UTC" if record.line.at is not None else ""


def _key(record: Record) -> tuple[str, str]:
    return record.line.evidence_id, record.line.record
