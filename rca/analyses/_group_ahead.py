"""Do those that stand apart only wait for the others, because they are through with what the others are still in?

The copies of a model meet at the end of a step alone, to sum their gradients. Whoever waits there waits for the copies that have not come; whoever
is inside its own pipeline or tensor group waits for its own copy. So a copy that does not come finds all others at the end of the step, as in
ByteRobust's figure 7. Where it is the other way round, and the few stand at the end while all others are inside, nobody waits for the few.
1. By name: those apart are in a call of the step's end as frameworks name it, and nobody else is in one.
2. By place: they stand in one call on all stages of the pipeline, as no rank inside it does, and in every other copy some rank is at a transfer.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping
from typing import Final

from rca.analyses._group_peers import COLLECTIVE, HIDDEN, P2P, label
from rca.analyses._stack_views import View

__all__ = ["ahead"]

# Functions of the end of a step, in which copies meet or the gradients are complete: Megatron, DeepSpeed, FSDP and torch, apex.
_GRADIENTS: Final = re.compile(
    r":_*(?:(?:exec_)?(?:all_?)?reduce_grad(?:s|ients?)?|sync_grad\w*|finish_grad_sync|finalize_model_grads|clip_grad\w*|average_grad\w*)$"
)
# Where a copy waits for its new parameters: the first thing of a step where the optimizer is shared out, or the last.
_PARAMETERS: Final = re.compile(r":_*finish_param_sync$")


def ahead(odd: Collection[int], views: Mapping[int, View], stage: Mapping[int, Hashable], copy_of: Mapping[int, Hashable]) -> bool:
    """Whether the ranks `odd` of those seen have passed what all others are still in. `stage`, `copy_of`: of each rank, as far as told."""
    own, others = [views[rank] for rank in odd if rank in views], [view for rank, view in views.items() if rank not in set(odd)]
    if not own or not others or any(label(view) not in (COLLECTIVE, HIDDEN) or _is_in(view, _PARAMETERS) for view in own):
        return False
    if any(_is_in(view, _GRADIENTS) or _is_in(view, _PARAMETERS) for view in others):
        return False
    return all(_is_in(view, _GRADIENTS) for view in own) or _is_through(odd, views, stage, copy_of)


def _is_through(odd: Collection[int], views: Mapping[int, View], stage: Mapping[int, Hashable], copy_of: Mapping[int, Hashable]) -> bool:
    """By place."""
    own = [views[rank] for rank in odd if rank in views]
    everywhere = set(stage.values())
    if len(everywhere) < 2 or {stage.get(rank) for rank in odd} != everywhere:
        return False
    if len({view.frames[:2] for view in own}) > 1 or label(own[0]) != COLLECTIVE:
        return False
    at_transfers: dict[Hashable, bool] = defaultdict(bool)
    for rank, view in views.items():
        if rank not in set(odd):
            at_transfers[copy_of.get(rank)] |= label(view) == P2P
    return all(at_transfers.values())


def _is_in(view: View, names: re.Pattern[str]) -> bool:
    return any(names.search(frame) for frame in view.frames)
