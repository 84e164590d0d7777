"""Did every member arrive at a collective that then never finished? That is the network or a kernel, not a rank.

1. Build the wait graph. A call at which every member waits (all dumped, all in it, none through, none late) and that others wait behind,
   or that holds the whole job, is stuck.
2. Where starts are recorded, and one member's GPU never began the call that the GPUs of all others are inside of, that GPU is held up by what it was
   given before: it is the one. So is a rank that others wait for and whose GPU never began a call in a group of its own alone. Where processes ran
   so far ahead that the call is no longer in the records, the groups' counters tell it: the one GPU that is inside no call, while those of all
   others in one of its groups have begun the next.
3. Not when some member's records do not reach back to a call that had finished: they begin behind the call that holds it, which they no longer
   hold, so it has not come to this one.
4. Not when the members disagree about what they called (`mismatched_collective` explains it), and not when the job still moves.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rca.analyses._call_records import SAME_SHAPES
from rca.analyses._stack_views import main_motion
from rca.analyses._wait_graph import Call, Waits, cite_call
from rca.analyses._wait_words import awaited_number
from rca.analyses._waits import build_waits, is_done
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

NEEDS = ("dumps", "collectives")
USES = ("group_status", "memberships", "stacks", "stack_frames", "dump_index")
SIGNS = {
    "never_began": Sign("stuck", ("gpu_fault", "nvlink_fault", "code_hang", "unknown")),
    "all_arrived": Sign("stuck", ("network_fault", "network_transient", "nvlink_fault", "gpu_fault", "unknown")),
}

BLOCKED_SHARE = 0.5  # of the dumped ranks must be held up by the call, or it is an ordinary moment of a running job
MAX_CITES = 6
MIN_COUNTED = 3  # members; of two neither is the odd one


def analyse(case: Tables) -> Sequence[Finding]:
    """One finding per stuck call; it accuses a group, no rank."""
    waits = case.derive(build_waits)
    _, motion = case.derive(main_motion)
    if motion.job_moves or not waits.first:
        return ()
    if (told := _by_counters(case, waits)) is not None:
        return (told,)
    found, cut_off = [], case.derive(_cut_off)
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
        contents = {(own.op, own.sizes if own.op in SAME_SHAPES else "") for own in (waits.first[rank] for rank in ranks)}
        if not call.is_p2p and len(contents) > 1:
            continue
        if not cut_off.isdisjoint(ranks):  # held by a call before this one: it has not arrived here
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


def _cut_off(case: Tables) -> frozenset[int]:
    """Ranks whose records begin behind their first unfinished call: by a group's counter, calls between its last finished and its first recorded one
    are missing; or all that is recorded, although finished calls are too, is unfinished."""
    calls = case.table("collectives", where="is_tail")
    is_p2p = pl.col("is_p2p").fill_null(value=False)
    counted = case.table("group_status").filter(pl.col("last_completed") >= 0).select("rank", "group_id", "last_completed", "counts")
    seen = calls.group_by("rank", "group_id").agg(
        collectives=pl.col("collective_seq_id").filter(~is_p2p).min(), transfers=pl.col("p2p_seq_id").filter(is_p2p).min()
    )
    oldest = pl.when(pl.col("counts") == "collectives").then("collectives").when(pl.col("counts") == "calls").then("transfers")
    gaps = seen.join(counted, on=["rank", "group_id"]).filter(oldest > pl.col("last_completed") + 1).select("rank")
    found = pl.concat([gaps, _none_finished(case)]).unique().collect()
    return frozenset(found["rank"].drop_nulls().to_list())


def _none_finished(case: Tables) -> pl.LazyFrame:
    """Ranks whose records, which do not begin with the job, hold none of the finished calls that they would: unless the oldest is what comes next."""
    dumps = case.table("dumps").filter((pl.col("first_record_id") > 0) & ~pl.col("has_only_active").fill_null(value=False))
    calls = case.table("collectives", where="is_tail")
    none_done = calls.group_by("rank").agg(is_done().fill_null(value=False).any().alias("done")).filter(~pl.col("done"))
    status = case.table("group_status").select("rank", "group_id", collective_seq_id=pl.col("last_completed") + 1)
    oldest = calls.sort("rank", "record_id").group_by("rank", maintain_order=True).first().filter(~pl.col("is_p2p").fill_null(value=False))
    next_one = oldest.join(status, on=["rank", "group_id", "collective_seq_id"], how="semi")
    return none_done.join(dumps, on="rank", how="semi").join(next_one, on="rank", how="anti").select("rank")


def _by_counters(case: Tables, waits: Waits) -> Finding | None:
    """Step 2 by the counters of each rank's groups (calls made, begun, finished); None where the records hold the call, or no one rank is it."""
    counted = pl.col("rank").is_not_null() & (pl.col("last_enqueued") > pl.col("last_completed"))
    rows = case.table("group_status").filter(counted).select("rank", "group_id", "last_started", "last_completed").unique().collect()
    is_inside = pl.col("last_started") > pl.col("last_completed")
    rows = rows.with_columns(rests=(~is_inside).all().over("rank"))
    sizes = {group: len(members) for group, members in waits.members.items() if group not in waits.open_groups}
    transfers = case.table("collectives", where="is_tail").filter(pl.col("is_p2p")).select("group_id").unique()
    known = rows.lazy().join(transfers, on="group_id", how="anti").collect()
    groups = known.group_by("group_id").agg(
        pl.len().alias("n"), pl.col("rank").n_unique().alias("ranks"), pl.col("last_completed").n_unique().alias("ends"),
        (pl.col("last_started") == pl.col("last_completed") + 1).sum().alias("begun"),
        pl.col("rank").filter(pl.col("rests") & (pl.col("last_started") == pl.col("last_completed"))).alias("late"),
        pl.col("last_completed").first().alias("seq"), pl.col("rank").sort().alias("members"),
    )  # fmt: skip
    odd = groups.filter(
        (pl.col("n") == pl.col("ranks")) & (pl.col("n") >= MIN_COUNTED) & (pl.col("ends") == 1) & (pl.col("begun") == pl.col("n") - 1)
    )
    odd = odd.filter(pl.col("late").list.len() == 1).with_columns(pl.col("late").list.first()).sort("n", "group_id")
    odd = odd.filter(pl.struct("group_id", "n").map_elements(lambda g: sizes.get(g["group_id"]) == g["n"], return_dtype=pl.Boolean))
    if odd["late"].n_unique() != 1:
        return None
    late, group, seq, members = odd.select("late", "group_id", "seq", "members").row(0)
    call = waits.first.get(late)
    if call is None or (call.group_id == group and call.seq == seq + 1) or not waits.dumped <= waits.first.keys():
        return None
    if call.is_p2p and not {call.src, call.dst} <= waits.first.keys():
        return None  # the other end of the transfer may be the one
    held = waits.dumped - {late}
    says = (
        f"of {len(members)} members of {group} the GPU of rank {late} alone never began call #{seq + 1}, and it is inside no other: what it was "
        f"given before does not end; {len(held)} other ranks wait for it"
    )
    own = (pl.col("group_id") == group) & pl.col("rank").is_in([late, *members[:2]])
    cited = case.table("group_status").filter(own).select("evidence_id", "record", "rank", "last_started").sort("rank").collect()
    cites = tuple(
        Cite("group_status", evidence, "", record, f"rank {rank}: last began #{last} on {group}")
        for evidence, record, rank, last in cited.iter_rows()
    )
    return Finding(
        "stuck_collective", "never_began", says, ranks=(late,), groups=(group,), explains=tuple(sorted(held)), scope=f"{group} #{seq + 1}",
        numbers={"members": members}, cites=cites,
    )  # fmt: skip


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
