"""Network links of several hosts that go down together: one fault of what the hosts share, a switch or a leaf.

Nothing but such lines may tell when the job ran. One link that is down then proves little: any host has ports that no job uses. Links of several
hosts that go down within seconds, near the end of logs that never say that they came back, are of the job: a restart meets them all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rca.analyses._kernel_events import Record

__all__ = ["LINKS", "ONE_SWITCH_S", "last_links", "went_together"]

LINKS: Final = frozenset({"nic", "ib"})  # kinds of the network
ONE_SWITCH_S: Final = 5.0  # links of several hosts that go down within so much are one fault: each notices it when its driver next looks


def went_together(records: Sequence[Record]) -> bool:
    """Whether these are links of several hosts that went down within seconds."""
    if any(r.kind not in LINKS or r.line.at is None for r in records) or len({r.host for r in records}) < 2:
        return False
    moments = [r.at_s for r in records]
    return max(moments) - min(moments) <= ONE_SWITCH_S


def last_links(records: Iterable[Record], end: datetime | None, near_s: float) -> list[Record]:
    """The last links that went down together, no longer than `near_s` before the logs end; those that came back are no records of a fault."""
    down = sorted((r for r in records if r.kind in LINKS and r.cause and not r.is_sign and r.line.at is not None), key=lambda r: r.at_s)
    for last in reversed(down):
        if end is not None and end.timestamp() - last.at_s > near_s:
            break
        burst = [r for r in down if 0 <= last.at_s - r.at_s <= ONE_SWITCH_S]
        if went_together(burst):
            return burst
    return []
