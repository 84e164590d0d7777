"""Which roots of kernel records were first: those that none of the others precedes outside the clock error, and what is one fault with them."""

from __future__ import annotations

from heapq import nsmallest
from typing import Final

from rca.analyses._faults import Story
from rca.analyses._kernel_events import Record
from rca.analyses._kernel_links import LINKS, ONE_SWITCH_S
from rca.analyses._kernel_roots import Scene

__all__ = ["first_roots"]

MAX_COMPARED: Final = 32  # earliest roots that each other one is compared with
SAME_LINK_S: Final = 2.0  # both ends of a link, on one host, tell its loss within so much


def first_roots(seen: Scene, told: Story) -> list[Record]:
    """Roots that none of the others precedes outside the clock error; the other end of the same link beside it, and of links on several hosts
    the one that was bad before."""
    roots = seen.roots
    early = nsmallest(MAX_COMPARED, roots, key=lambda r: r.at_s if r.line.at is not None else 0.0)
    first = [r for r in roots if not any(told.logs.order(o.line, r.line) == -1 for o in early if o is not r)] or list(roots)
    if all(r.cause == "nvlink_fault" for r in first) and len({r.host for r in first}) > 1:
        hinted = [r for r in first if "source" not in (r.remote_effect or "")] or first
        worn = [r for r in hinted if (r.host, r.gpu) in seen.worn]
        first = worn if len({r.host for r in worn}) == 1 else hinted
    if all(r.kind in LINKS for r in first):
        begun = min(r.at_s for r in first)
        first += [r for r in roots if r not in first and r.kind in LINKS and r.at_s - begun <= ONE_SWITCH_S]
    if len({r.host for r in first}) == 1 and first[0].cause == "nvlink_fault":
        begun = min(r.at_s for r in first)
        first += [
            r for r in roots if r not in first and r.host == first[0].host and r.cause == "nvlink_fault" and r.at_s - begun <= SAME_LINK_S
        ]
    return first
