"""Sentences about ranks that wait, shared by the questions that read the wait graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rca.analyses._wait_graph import Call, Waits, entered, group_kind
from rca.analyses._words import ranks_text

__all__ = ["SHOWN", "awaited_calls", "awaited_number", "says_absent", "says_alone", "says_silent", "waiting_text"]

SHOWN = 6  # ranks named one by one in a sentence


def _wait(count: int) -> str:
    return "waits" if count == 1 else "wait"


def awaited_calls(waits: Waits, ranks: Sequence[int]) -> list[Call]:
    """Calls that these ranks are awaited at, in the order of the program: the first is the one they should have made next."""
    nodes = {node for rank in ranks for node in waits.awaited.get(rank, ())}
    calls = [waits.first_at(node) for node in nodes]
    return sorted(calls, key=lambda call: (waits.place(call), entered(call)))


def awaited_number(calls: Sequence[Call]) -> dict[str, object] | None:
    """The first awaited call as figures: group, op, sequence number."""
    if not calls:
        return None
    call = calls[0]
    return {"group": call.group_id, "op": call.op, "seq": call.p2p_seq if call.is_p2p else call.seq}


def says_silent(waits: Waits, ranks: Sequence[int]) -> list[str]:
    """What ranks that wait for nobody did not do, one sentence for those of which the same can be said."""
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank in ranks:
        calls = awaited_calls(waits, (rank,))
        if not calls or calls[0].is_p2p:
            alike[(rank,)].append(rank)
        else:
            call = calls[0]
            alike[*_called(call), waits.enqueued.get((rank, call.group_id))].append(rank)
    return [_silent(waits, members[0]) if len(members) == 1 else _silent_all(waits, members) for members in alike.values()]


def _silent(waits: Waits, rank: int) -> str:
    calls = awaited_calls(waits, (rank,))
    if not calls:
        return f"rank {rank} has nothing unfinished and is awaited"
    call = calls[0]
    if call.is_p2p:
        return f"rank {rank} never made its side of {waits.name(call)}, where rank {call.rank} waits"
    waiting = waits.waiters[call.node]
    reached = waits.enqueued.get((rank, call.group_id))
    own = f"; its own last call there was #{reached}" if reached else ""
    return f"rank {rank} never joined {waits.name(call)}, where {ranks_text(waiting, SHOWN)} {_wait(len(waiting))}{own}"


def _silent_all(waits: Waits, ranks: Sequence[int]) -> str:
    """Of several ranks, whose calls have one operation and number, in one group or in groups of one kind."""
    calls = [awaited_calls(waits, (rank,))[0] for rank in ranks]
    what, waiting = _place(waits, calls)
    reached = waits.enqueued.get((ranks[0], calls[0].group_id))
    own = f"; the last call of each there was #{reached}" if reached else ""
    return f"{ranks_text(ranks)} never joined {what}, where {ranks_text(waiting, SHOWN)} {_wait(len(waiting))}{own}"


def _place(waits: Waits, calls: Sequence[Call]) -> tuple[str, list[int]]:
    """Calls of one operation and number, in one group or in groups of one kind: their name, and who waits in them."""
    call = calls[0]
    groups = {call.group_id for call in calls}
    what = waits.name(call) if len(groups) == 1 else f"{call.op} #{call.seq} of their {len(groups)} {group_kind(call.group_id)} groups"
    return what, sorted({other for call in calls for other in waits.waiters[call.node]})


def says_alone(waits: Waits, rank: int) -> str:
    """What a rank is still in although its peers are through."""
    call = waits.first[rank]
    peers = len(waits.members.get(call.group_id, ())) - 1
    return f"rank {rank} is still in {waits.name(call)}, which its {peers} peer{'' if peers == 1 else 's'} finished"


def says_absent(waits: Waits, ranks: Sequence[int], lead: str) -> str:
    """Who waits for ranks that left no dump in the first call that lacks them; of those who wait elsewhere only how many wait in all."""
    (first, *later), behind = awaited_calls(waits, ranks), waits.behind(ranks)
    what, waiting = _place(waits, [first, *(c for c in later if not (first.is_p2p or c.is_p2p) and _called(c) == _called(first))])
    them = "it" if len(ranks) == 1 else "them"
    says = f"{lead}, and {ranks_text(waiting, SHOWN)} {_wait(len(waiting))} for {them} in {what}"
    return says + (f"; {len(behind)} ranks wait in all" if len(behind) > len(waiting) else "")


def _called(call: Call) -> tuple[str, str, int | None]:
    """What the members of every group of one kind call at once."""
    return group_kind(call.group_id), call.op, call.seq


def waiting_text(behind: int, accused: int) -> str:
    """How many ranks only wait."""
    if not behind:
        return ""
    them = "it" if accused == 1 else "them"
    return f". {behind} other rank{'' if behind == 1 else 's'} {_wait(behind)} for {them}, directly or through others"
