"""Did a rank go past a collective that all its peers wait in, and now waits for them somewhere else?

Such a rank looks like a victim: it waits, too. With gloo the call it waits in (a send or recv) is not even recorded.

1. Take the collectives that somebody waits in and that only one dumped member has not made, although it has nothing unfinished on record
   and its stack shows it waiting for others inside the training loop.
2. Every recorded call has a stack, so the order in which the parts of the loop follow each other is known from the peers. If, after the part
   in which the rank made its last call, the part of the missing call always comes next, and the rank is by now in a third part, it has gone
   past the missing call.
"""

from __future__ import annotations

from collections.abc import Sequence

from rca.analyses._stack_views import (
    WAITS_FOR_OTHERS,
    Loop,
    View,
    call_paths,
    cite_view,
    in_loop,
    main_motion,
    main_views,
    seen,
    shared,
    turns,
)
from rca.analyses._wait_graph import Call, Waits, cite_call
from rca.analyses._wait_words import awaited_number
from rca.analyses._waits import build_waits
from rca.errors import NotEnoughEvidence
from rca.types import Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("dumps", "collectives", "stacks")
USES = ("group_status", "memberships", "stack_frames", "dump_index")
SIGNS = {"went_past": Sign("mismatch", ("collective_mismatch", "unknown"))}

MIN_ORDERS = 2  # times that the peers show the one part following the other
MAX_PEERS = 8  # whose order of calls is looked at


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding per rank that went past an awaited collective; nothing when no rank is in such a place."""
    waits, views = case.derive(build_waits), case.derive(main_views)
    loop, motion = case.derive(main_motion)
    if motion.job_moves:
        return ()
    suspects = [(rank, call, view) for rank, call in _missing(waits) if (view := _waiting_view(views.get(rank, ()), loop))]
    if not loop and suspects:
        raise NotEnoughEvidence("the recorder kept no stacks of calls: the order of the program is not known")
    return [_finding(waits, rank, call, view, past) for rank, call, view in suspects if (past := _gone_past(case, waits, rank, call, view))]


def _missing(waits: Waits) -> list[tuple[int, Call]]:
    """(rank, awaited collective) where this rank alone has not arrived, and has nothing unfinished of its own."""
    found = []
    for rank, nodes in sorted(waits.awaited.items()):
        if rank in waits.read and rank not in waits.first and rank not in waits.torn:
            calls = [waits.first[waits.waiters[node][0]] for node in nodes if waits.lagging[node] == {rank}]
            found += [(rank, call) for call in calls if not call.is_p2p][:1]
    return found


def _waiting_view(views: Sequence[View], loop: Loop) -> View | None:
    inside = [view for view in seen(views) if in_loop(view, loop)]
    return inside[-1] if inside and inside[-1].wait_kind in WAITS_FOR_OTHERS else None


def _gone_past(case: Tables, waits: Waits, rank: int, call: Call, view: View) -> tuple[str, str] | None:
    """(part of the missing call, part the rank is in) when the peers' order says that the second comes after the first.

    Parts are told apart by as many root frames as it takes to keep the last call, the missing call and the rank's present stack asunder.
    """
    peers = [other for other in waits.waiters[call.node] if other != rank][:MAX_PEERS]
    paths = call_paths(case, [rank, *peers])
    ends = {paths[peer][-1] for peer in peers if peer in paths}
    if rank not in paths or len(ends) != 1:
        return None
    last, missing, now = paths[rank][-1], next(iter(ends)), view.frames[::-1]
    depths = range(1, min(map(len, (last, missing, now))) + 1)
    depth = next((d for d in depths if len({last[:d], missing[:d], now[:d]}) == 3), None)
    if depth is None:
        return None
    orders = [turns(paths[peer], shared(last, missing), depth) for peer in peers if peer in paths]
    following = [order[place + 1] for order in orders for place in range(len(order) - 1) if order[place] == last[:depth]]
    known = any(now[:depth] in order for order in orders)  # a part without recorded calls could lie anywhere
    if len(following) < MIN_ORDERS or set(following) != {missing[:depth]} or not known:
        return None
    return missing[depth - 1], now[depth - 1]


def _finding(waits: Waits, rank: int, call: Call, view: View, parts: tuple[str, str]) -> Finding:
    says = (
        f"rank {rank} never made {waits.name(call)}, where all other members wait, and is already in {parts[1]}, "
        f"which comes after the call (in {parts[0]}) in the program: it left the call out"
    )
    behind = waits.behind([rank])
    return Finding(
        "passed_call", "went_past", says, ranks=(rank,), groups=(call.group_id,), explains=tuple(sorted(behind)),
        numbers={"awaited": awaited_number([call]), "waiting": len(behind)},
        cites=(cite_call(call), *((cite_call(waits.last[rank]),) if rank in waits.last else ()), cite_view(view)),
    )  # fmt: skip
