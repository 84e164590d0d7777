"""Did every member arrive at a collective that then never finished? That is the network or a kernel, not a rank.

1. Build the wait graph. A call at which every member waits (all dumped, all in it, none through, none late) and that others wait behind,
   or that holds the whole job, is stuck.
2. Where starts are recorded, and one member's GPU never began the call that the GPUs of all others are inside of, that GPU is held up by what it was
   given before: it is the one. So is a rank that others wait for and whose GPU never began a call in a group of its own alone.
3. Not when the members disagree about what they called (`mismatched_collective` explains it), and not when the job still moves.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rca.analyses._stack_views import main_motion
from rca.analyses._wait_graph import Call, Waits, cite_call
from rca.analyses._wait_words import awaited_number
from rca.analyses._waits import build_waits
from rca.errors import NotEnoughEvidence
from rca.types import Finding, Sign, Tables

NEEDS = ("dumps", "collectives")
USES = ("group_status", "memberships", "stacks", "stack_frames", "dump_index")
SIGNS = {
    "never_began": Sign("stuck", ("gpu_fault", "nvlink_fault", "code_hang", "unknown")),
    "all_arrived": Sign("stuck", ("network_fault", "network_transient", "nvlink_fault", "gpu_fault", "unknown")),
}

BLOCKED_SHARE = 0.5  # of the dumped ranks must be held up by the call, or it is an ordinary moment of a running job
MAX_CITES = 6


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding per stuck call; it accuses a group, no rank."""
    waits = case.derive(build_waits)
    _, motion = case.derive(main_motion)
    if motion.job_moves or not waits.first:
        return ()
    found = []
    for node, ranks in waits.waiters.items():
        call = waits.first[ranks[0]]
        members = waits.members.get(call.group_id, frozenset())
        everyone = {call.src, call.dst} if call.is_p2p else set(members)
        alone = (
            len(ranks) == 1
            and not call.is_p2p
            and everyone == set(ranks)
            and bool(waits.behind(ranks))
            and _is_scheduled(case, call, ranks[0])
        )
        if set(ranks) != everyone or (len(ranks) < 2 and not alone) or waits.lagging[node] or call.group_id in waits.open_groups:
            continue
        contents = {(waits.first[r].op.split(" ")[0] if call.is_p2p else waits.first[r].op, waits.first[r].sizes) for r in ranks}
        if not call.is_p2p and len(contents) > 1:
            continue
        held = set(ranks) | waits.behind(ranks)
        found.append((call, ranks, held))
    held_by_any = set().union(*(held for _, _, held in found)) if found else set()
    if not found:
        return ()
    if not motion.is_known and len(held_by_any) < BLOCKED_SHARE * len(waits.read):
        few = f"{len(held_by_any)} of {len(waits.read)} ranks are inside a call that all members joined, as in any running job"
        raise NotEnoughEvidence(f"{few}; no repeated stack says whether it moved")
    return [
        _finding(waits, call, ranks, held, _never_began(case, call, ranks) if len(ranks) > 1 else ranks[0]) for call, ranks, held in found
    ]


def _is_scheduled(case: Tables, call: Call, rank: int) -> bool:
    """Whether the GPU of a rank has not begun its call, where the rank records when its calls begin."""
    rows = case.table("collectives", where="is_tail").filter((pl.col("rank") == rank) & ~pl.col("is_p2p").fill_null(value=False)).collect()
    own = rows.filter((pl.col("group_id") == call.group_id) & (pl.col("collective_seq_id") == call.seq))["state"].to_list()
    return own == ["scheduled"] and rows["started_at"].count() > 0


def _never_began(case: Tables, call: Call, ranks: Sequence[int]) -> int | None:
    """The one member whose GPU has not begun the call, where those of all others have; None where two members cannot tell the odd one, or
    starts are not recorded."""
    if call.is_p2p:
        return None
    own = (pl.col("group_id") == call.group_id) & (pl.col("collective_seq_id") == call.seq) & pl.col("rank").is_in(list(ranks))
    rows = (
        case.table("collectives", where="is_tail").filter(own & ~pl.col("is_p2p").fill_null(value=False)).select("rank", "state").collect()
    )
    states = dict(rows.iter_rows())
    waiting = [rank for rank, state in sorted(states.items()) if state == "scheduled"]
    begun = sum(state == "started" for state in states.values())
    return waiting[0] if len(waiting) == 1 and begun == len(ranks) - 1 else None


def _finding(waits: Waits, call: Call, ranks: Sequence[int], held: set[int], late: int | None) -> Finding:
    if late is not None:
        who = f"all {len(ranks)} members" if len(ranks) > 1 else f"rank {late}, its only member,"
        says = (
            f"{who} made {waits.name(call)}, and the GPU of rank {late} alone never began it: what it was given before does not "
            f"end; {len(held) - 1} other ranks wait for it"
        )
        cites = (cite_call(waits.first[late]), *(cite_call(waits.first[rank]) for rank in ranks if rank != late))
        return Finding(
            "stuck_collective", "never_began", says, ranks=(late,), groups=(call.group_id,), explains=tuple(sorted(held - {late})),
            scope=str(call.node), numbers={"members": list(ranks), "awaited": awaited_number([call])}, cites=cites[:MAX_CITES],
        )  # fmt: skip
    others = len(held - set(ranks))
    behind = f"; {others} other ranks wait behind it" if others else ""
    return Finding(
        "stuck_collective", "all_arrived", f"all {len(ranks)} members arrived at {waits.name(call)} and none finished it{behind}",
        groups=(call.group_id,), explains=tuple(sorted(held)), scope=str(call.node),
        numbers={"members": list(ranks), "waiting": len(held), "awaited": awaited_number([call])},
        cites=tuple(cite_call(waits.first[rank]) for rank in ranks[:MAX_CITES]),
    )  # fmt: skip


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
