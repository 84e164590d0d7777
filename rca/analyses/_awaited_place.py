"""What the rank that all others wait for is seen doing, where the stacks of the others name no wait: with NCCL, Python has long left the call.

The recorder says who is awaited; so one sample of that rank tells why it does not come, which it could not by itself (a moment of any running job).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from rca.analyses._stack_views import WAITS_FOR_OTHERS, Loop, View, cite_view, seen, shared
from rca.types import Finding, Sign

__all__ = ["SIGNS", "awaited_place"]

SIGNS: Final = {
    "awaited_in_code": Sign("stack", ("code_hang", "slow_rank")),
    "awaited_in_loader": Sign("stack", ("data_stall", "storage_stall", "code_hang")),
    "awaited_in_saver": Sign("stack", ("storage_stall", "code_hang")),
    "awaited_in_io": Sign("stack", ("storage_stall", "data_stall", "code_hang")),
}
TOLD_SHARE: Final = 0.5  # of the ranks seen inside a call, from which on `stack_clusters` tells the exception from the rule
LOOP_SHARE: Final = (
    0.6  # of the frames that lead into the loop: a save or a batch is fetched outside of the step that most calls are made in
)
_DOING: Final = {
    "awaited_in_code": "in code of its own",
    "awaited_in_loader": "in its data loader",
    "awaited_in_saver": "in a checkpoint",
    "awaited_in_io": "reading or writing",
}


def awaited_place(found: Sequence[Finding], all_views: Mapping[int, Sequence[View]], loop: Loop) -> list[Finding]:
    """A finding for the one rank that `found` accuses and that left stacks inside the loop, none of them in a wait for others or for a device."""
    accused = {f.ranks for f in found if f.sign in ("never_joined", "no_dump_awaited")}
    if len(accused) != 1 or len(next(iter(accused))) != 1:
        return []
    ((rank,),) = accused
    last = {r: shown[-1] for r, views in all_views.items() if (shown := [v for v in seen(views) if _about(v, loop)])}
    inside = sum(view.wait_kind in WAITS_FOR_OTHERS for view in last.values())
    own = [v for v in seen(all_views.get(rank, ())) if _about(v, loop)]
    if not own or len(last) < 2 or inside >= TOLD_SHARE * len(last) or any(v.wait_kind in (*WAITS_FOR_OTHERS, "cuda_sync") for v in own):
        return []
    view = own[-1]
    if any(other.stack_id == view.stack_id for r, other in last.items() if r != rank):
        return []  # others are in the same place: it may be where all of them wait
    places = {"dataloader": "awaited_in_loader", "checkpoint": "awaited_in_saver"}
    sign = places.get(view.activity, "awaited_in_io" if view.wait_kind == "io" else "awaited_in_code")
    more = f" in each of {len(own)} samples" if len(own) > 1 and len({v.stack_id for v in own}) == 1 else ""
    says = f"rank {rank}, which the others wait for, is {_DOING[sign]}{more} ({view.leaf})"
    return [Finding("first_silent_rank", sign, says, ranks=(rank,), cites=(cite_view(view),), numbers={"leaf": view.leaf})]


def _about(view: View, loop: Loop) -> bool:
    """Whether a stack is inside the loop, or in what calls its body."""
    return len(shared(tuple(reversed(view.frames)), loop)) >= math.ceil(LOOP_SHARE * len(loop))
