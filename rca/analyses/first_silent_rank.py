"""Which rank did the others wait for first, while itself waiting for nobody?

1. Build the wait graph from the flight recorder (`_waits`): every rank's first unfinished call, and who has not arrived at it.
2. A job that still moves (stacks change between samples) has no silent rank; neither has one in which nobody waits.
3. Follow the waits to their roots: ranks that others wait for and that wait for nobody. A rank whose stack shows it waiting for others is
   a victim of a call the recorder does not show (gloo records no send or recv), not a root.
4. Of the roots: a rank with a dump (it never made the call), one that alone has not finished what all its peers have, one without a dump.
   Missing dumps that could be waiting for each other are a tie: nobody is accused.
5. Waits without a root close a ring: the ranks of the smallest ring are reported together, none accused alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from rca.analyses._stack_views import WAITS_FOR_OTHERS, Loop, View, cite_view, in_loop, loop_of, main_views, movement, seen
from rca.analyses._waits import Call, Waits, build_waits, cite_call
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

NEEDS = ("dumps", "collectives")
USES = ("group_status", "memberships", "ranks", "stacks", "stack_frames")

_ANY = (
    "code_hang",
    "data_stall",
    "storage_stall",
    "collective_mismatch",
    "gpu_fault",
    "host_fault",
    "user_exception",
    "process_killed",
    "unknown",
)
SIGNS = {
    "never_joined": Sign("silent", _ANY),
    "unfinished_alone": Sign("silent", ("gpu_fault", "nvlink_fault", "code_hang", "network_fault", "unknown")),
    "no_dump_awaited": Sign("silent", ("process_killed", "host_lost", "user_exception", "host_out_of_memory", "code_hang", "unknown")),
    "no_trace_awaited": Sign("silent", ("process_killed", "user_exception", "host_out_of_memory", "host_lost", "unknown")),
    "host_silent": Sign("silent", ("host_lost", "process_killed", "unknown")),
    "wait_ring": Sign("ring", ("collective_mismatch", "unknown")),
    "tie": Sign("tie", ("unknown",)),
}

MAX_ROOTS_SHARE = 0.25  # more roots than this share of the dumped ranks (and more than MIN_ROOTS) is no accusation but a lack of evidence
MIN_ROOTS = 4
BLOCKED_SHARE = 0.5  # without stacks: a hung job has at least half of its ranks in a call; less is an ordinary moment of a running one
MAX_CITES = 6
TRACED_SHARE = 0.75  # of the dumped ranks must have left stacks before a rank without any is called gone


@dataclass(frozen=True)
class _Roots:
    silent: tuple[int, ...]  # dumped, nothing unfinished
    alone: tuple[int, ...]  # dumped, unfinished although all peers are through
    absent: tuple[int, ...]  # no dump
    victims: tuple[int, ...]  # would be roots, but their stacks show them waiting for others


def analyse(case: Tables) -> Sequence[Finding]:
    """Findings: the silent ranks, or a tie, or a ring. Empty when the job moves or nobody waits."""
    waits = case.derive(build_waits)
    if not waits.first:
        if not waits.last:
            raise NotEnoughEvidence("no call in any dump has a rank: nothing says which rank a dump is of")
        return ()
    views = case.derive(main_views)
    loop = loop_of(case, views)
    motion = movement(views, loop)
    if motion.job_moves:
        return ()
    if not motion.is_known and len(waits.first) < BLOCKED_SHARE * len(waits.read):
        raise NotEnoughEvidence(
            f"only {len(waits.first)} of {len(waits.read)} ranks were inside a call when dumped, as in any running job, and no repeated stack says whether it moved"
        )
    unread = sorted(rank for rank in waits.awaited if rank in waits.dumped - waits.read)
    if unread:
        raise NotEnoughEvidence(f"ranks {_short(unread)} are awaited and only the headers of their dumps were read")
    roots = _roots(waits, views, loop)
    found = _accusations(waits, roots, views, _hosts(case))
    if not found and not (roots.silent or roots.absent or roots.alone):
        found = _rings(waits)
    return found


def _hosts(case: Tables) -> dict[int, str]:
    rows = case.table("ranks").filter(pl.col("rank").is_not_null() & pl.col("host").is_not_null()).select("rank", "host").unique().collect()
    return {rank: host for rank, host in rows.iter_rows()}


def _roots(waits: Waits, views: Mapping[int, Sequence[View]], loop: Loop) -> _Roots:
    silent, alone, absent, victims = [], [], [], []
    for rank in sorted(waits.awaited):
        if rank not in waits.dumped:
            absent.append(rank)
        elif rank not in waits.first and rank not in waits.held:
            (victims if _is_victim(waits, rank, views.get(rank, ()), loop) else silent).append(rank)
        elif rank in waits.first and not waits.ways_out(rank) and _peers_through(waits, rank):
            alone.append(rank)
    return _Roots(tuple(silent), tuple(alone), tuple(absent), tuple(victims))


def _is_victim(waits: Waits, rank: int, views: Sequence[View], loop: Loop) -> bool:
    """Whether the stacks clear a rank: its last one inside the training loop waits for others; or it has left the loop, and its last call was
    with a rank that left no dump, so that call failed under it."""
    shown = seen(views)
    inside = [v for v in shown if in_loop(v, loop)]
    if inside:
        return inside[-1].wait_kind in WAITS_FOR_OTHERS
    return bool(shown) and bool(waits.may_have_failed(rank))


def _peers_through(waits: Waits, rank: int) -> bool:
    """Whether every other member has finished the call this rank is still in."""
    call = waits.first[rank]
    others = waits.members.get(call.group_id, frozenset()) - {rank}
    return bool(others) and others <= waits.finished.get(call.node, frozenset())


def _accusations(waits: Waits, roots: _Roots, views: Mapping[int, Sequence[View]], hosts: Mapping[int, str]) -> list[Finding]:
    silent, absent = roots.silent, roots.absent
    limit = max(MIN_ROOTS, MAX_ROOTS_SHARE * len(waits.dumped))
    if len(silent) + len(roots.alone) > limit:
        return [
            _tie(
                waits,
                (*silent, *roots.alone),
                "too many ranks wait for nobody: the dumps were not taken at one moment, or most are missing",
            )
        ]
    if len(silent) > 1 and waits.hidden_p2p and not all(_explained(views.get(r, ())) for r in silent):
        plain = tuple(r for r in silent if _explained(views.get(r, ())))
        if len(plain) != 1:
            return [
                _tie(
                    waits,
                    silent,
                    "several ranks wait for nobody as far as recorded, but this backend records no send or recv: one may wait for another",
                ),
                *_absent(waits, absent),
            ]
        silent = plain
    unsure = tuple(r for r in silent if absent and not seen(views.get(r, ())) and waits.hidden_p2p and waits.may_have_failed(r))
    if unsure:
        return [_tie(waits, (*unsure, *absent), "a rank fell silent after a call with a rank that left no dump: either may be first")]
    unresolved = [r for r in roots.victims if absent and not waits.may_have_failed(r) & set(absent)]
    if unresolved:  # they wait in a call that is not recorded, for an absent rank or through one
        return [_tie(waits, (*silent, *absent), "ranks without a dump are awaited, and others wait in calls the recorder does not show")]
    confirmed = [r for r in silent if _explained(views.get(r, ()))]
    absent = tuple(r for r in absent if not any(_share_group(waits, r, c) for c in confirmed))  # those may only wait for the confirmed one
    if not silent and roots.victims and not absent and not roots.alone:
        return [_tie(waits, roots.victims, "all waits end at ranks that themselves wait in a call the recorder does not show")]
    return [*_present(waits, silent, roots.alone, views), *_absent(waits, absent, views, hosts)]


def _share_group(waits: Waits, one: int, two: int) -> bool:
    """Whether two ranks are in a group smaller than the world."""
    world = max(map(len, waits.members.values()), default=0)
    return any(one in members and two in members and len(members) < world for members in waits.members.values())


def _explained(views: Sequence[View]) -> bool:
    """Whether the stacks show the rank in the same place outside communication in every sample."""
    shown = seen(views)
    return bool(shown) and all(v.wait_kind not in WAITS_FOR_OTHERS for v in shown)


def _present(waits: Waits, silent: tuple[int, ...], alone: tuple[int, ...], views: Mapping[int, Sequence[View]]) -> list[Finding]:
    """One finding for all present roots together: they failed independently, or one fault hit them at once."""
    ranks = tuple(sorted({*silent, *alone}))
    if not ranks:
        return []
    sign = "unfinished_alone" if alone and not silent else "never_joined"
    behind = waits.behind(ranks)
    calls = _awaited_calls(waits, ranks)
    cites = [cite_call(call) for call in _sample_waiters(waits, ranks)]
    cites += [cite_call(waits.first.get(r) or waits.last[r]) for r in ranks if r in waits.last or r in waits.first]
    cites += [cite_view(seen(views[r])[-1]) for r in ranks if seen(views.get(r, ()))]
    says = "; ".join(_says(waits, rank, rank in alone) for rank in ranks)
    if behind:
        says += f". {len(behind)} other rank{'s' if len(behind) != 1 else ''} wait{'s' if len(behind) == 1 else ''} for {'it' if len(ranks) == 1 else 'them'}, directly or through others"
    return [
        Finding(
            "first_silent_rank", sign, says, ranks=ranks, groups=tuple(sorted({c.group_id for c in calls})), explains=tuple(sorted(behind)),
            numbers={"waiting": len(behind), "awaited": _awaited(calls), "ranks_with_dump": len(waits.dumped)}, cites=_capped(cites),
        )
    ]  # fmt: skip


def _awaited(calls: Sequence[Call]) -> dict[str, object] | None:
    """The collective that the most peers wait at: group, op, sequence number."""
    if not calls:
        return None
    call = calls[0]
    return {"group": call.group_id, "op": call.op, "seq": call.p2p_seq if call.is_p2p else call.seq}


def _awaited_calls(waits: Waits, ranks: Sequence[int]) -> list[Call]:
    """Calls that these ranks are awaited at, in the order of the program: the first is the one they should have made next."""
    nodes = {node for rank in ranks for node in waits.awaited.get(rank, ())}
    calls = [min((waits.first[r] for r in waits.waiters[node]), key=_entered) for node in nodes]
    return sorted(calls, key=lambda call: (waits.place(call), _entered(call)))


def _entered(call: Call) -> tuple[bool, float, bool, int, str]:
    at = call.created_at
    return (at is None, at.timestamp() if at else 0.0, call.is_p2p, call.rank, call.group_id)


def _sample_waiters(waits: Waits, ranks: Sequence[int]) -> list[Call]:
    return _awaited_calls(waits, ranks)[:3]


def _says(waits: Waits, rank: int, is_alone: bool) -> str:  # noqa: FBT001
    if is_alone:
        call = waits.first[rank]
        peers = len(waits.members.get(call.group_id, ())) - 1
        return f"rank {rank} is still in {waits.name(call)}, which its {peers} peer{'s' if peers != 1 else ''} finished"
    calls = _awaited_calls(waits, (rank,))
    if not calls:
        return f"rank {rank} has nothing unfinished and is awaited"
    call = calls[0]
    reached = waits.enqueued.get((rank, call.group_id))
    if call.is_p2p:
        return f"rank {rank} never made its side of {waits.name(call)}, where rank {call.rank} waits"
    waiting = waits.waiters[call.node]
    own = f"; its own last call there was #{reached}" if reached else ""
    return f"rank {rank} never joined {waits.name(call)}, where rank{'s' if len(waiting) > 1 else ''} {_short(waiting)} wait{'' if len(waiting) > 1 else 's'}{own}"


def _short(ranks: Sequence[int], limit: int = 6) -> str:
    shown = ", ".join(map(str, ranks[:limit]))
    return f"{shown} and {len(ranks) - limit} more" if len(ranks) > limit else shown


def _absent(waits: Waits, absent: tuple[int, ...], views: Mapping[int, Sequence[View]], hosts: Mapping[int, str]) -> list[Finding]:
    """Ranks without a dump that others wait for. One that alone explains all such waits is accused, or all of a host; several are a tie."""
    if not absent:
        return []
    missing = frozenset().union(*waits.members.values()) - waits.dumped
    host = hosts.get(absent[0])
    of_host = frozenset(rank for rank, name in hosts.items() if name == host) if host else frozenset()
    traced = missing & set(views)
    if len(of_host) > 1 and missing == of_host and not traced and len(waits.dumped) > len(missing):
        return [_absence(waits, tuple(sorted(of_host)), "host_silent", f"all {len(of_host)} ranks of {host} left no dump")]
    doubtful = sorted({rank for a in absent for node in waits.awaited[a] for rank in waits.unsure.get(node, ())})
    if doubtful:
        return [
            _tie(waits, (*absent, *doubtful), "a rank without a dump is awaited, and whether others had arrived their dumps do not tell")
        ]
    needed = _needed(waits, absent)
    if len(needed) != 1 or len(waits.dumped) < 2:
        return [_tie(waits, absent, "ranks without a dump are awaited, and they may be waiting for each other")]
    rank = needed[0]
    others_traced = len(set(views) & waits.dumped)
    if rank not in views and others_traced >= TRACED_SHARE * len(waits.dumped):
        return [
            _absence(
                waits, (rank,), "no_trace_awaited", f"rank {rank} left neither a dump nor a stack, where {others_traced} others left both"
            )
        ]
    return [_absence(waits, (rank,), "no_dump_awaited", f"rank {rank} left no dump")]


def _absence(waits: Waits, ranks: tuple[int, ...], sign: str, says: str) -> Finding:
    direct = sorted({other for rank in ranks for other in waits.waiting_for(rank)} - set(ranks))
    behind = waits.behind(ranks)
    calls = _awaited_calls(waits, ranks)
    says += f", and rank{'s' if len(direct) != 1 else ''} {_short(direct)} wait{'s' if len(direct) == 1 else ''} for {'it' if len(ranks) == 1 else 'them'}"
    says += f" in {waits.name(calls[0])}" if calls else ""
    says += f"; {len(behind)} ranks wait in all" if len(behind) > len(direct) else ""
    numbers = {"waiting": len(behind), "awaited": _awaited(calls), "ranks_with_dump": len(waits.dumped)}
    return Finding(
        "first_silent_rank", sign, says, ranks=ranks, groups=tuple(sorted({c.group_id for c in calls})), explains=tuple(sorted(behind)),
        numbers=numbers, cites=_capped([cite_call(c) for c in calls]),
    )  # fmt: skip


def _needed(waits: Waits, absent: Sequence[int]) -> list[int]:
    """The absent ranks that some call cannot do without: those awaited where no other absent rank is. Else all of them."""
    alone = {next(iter(late)) for late in waits.lagging.values() if len(late) == 1 and next(iter(late)) in absent}
    if not alone:
        return list(absent)
    rest = [late for late in waits.lagging.values() if late & set(absent) and not late & alone]
    return sorted(alone) if not rest else list(absent)


def _tie(waits: Waits, ranks: Sequence[int], why: str) -> Finding:
    cites = [cite_call(call) for call in _sample_waiters(waits, ranks)]
    says = f"{why}: ranks {_short(sorted(ranks), 12)}"
    return Finding(
        "first_silent_rank",
        "tie",
        says,
        scope=f"tie {sorted(ranks)}",
        numbers={"candidates": sorted(ranks)},
        cites=_capped(cites),
    )


def _rings(waits: Waits) -> list[Finding]:
    """The smallest ring of ranks that wait for each other, if the waits have no root."""
    best: list[int] = []
    for start in sorted(waits.first):
        trail = [start]
        while (ahead := sorted(waits.ways_out(trail[-1]))) and ahead[0] not in trail:
            trail.append(ahead[0])
        if ahead:
            ring = trail[trail.index(ahead[0]) :]
            if len(ring) > 1 and (not best or len(ring) < len(best)):
                best = ring
    if not best:
        return []
    calls = [waits.first[rank] for rank in best]
    says = (
        "; ".join(f"rank {call.rank} waits in {waits.name(call)}" for call in calls[:MAX_CITES]) + ": each for the next, so none can go on"
    )
    return [
        Finding(
            "first_silent_rank", "wait_ring", says, groups=tuple(sorted({c.group_id for c in calls})), scope=f"ring {sorted(best)}",
            numbers={"ring": sorted(best)}, cites=_capped([cite_call(c) for c in calls]),
        )
    ]  # fmt: skip


def _capped(cites: Sequence[Cite]) -> tuple[Cite, ...]:
    return tuple(dict.fromkeys(cites))[:MAX_CITES]


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
