"""Which rank did the others wait for first, while itself waiting for nobody?

1. Build the wait graph from the flight recorder (`_waits`): every rank's first unfinished call, and who has not arrived at it. A rank without a dump
   whose own log gives up that call has arrived (`_given_up`).
2. A job that still moves (stacks change between samples) has no silent rank; neither has one in which nobody waits.
3. Follow the waits to their roots: ranks that others wait for and that wait for nobody. A rank whose stack shows it waiting for others is
   a victim of a call the recorder does not show (gloo records no send or recv), not a root.
4. Of the roots: a rank with a dump (it never made the call), one that alone has not finished what all its peers have, one without a dump.
   Where two of them could be waiting for each other, it is a tie: nobody is accused. So it is where one of two waits for the other at a call that
   is new to their kind of group (`_new_call`), and no stack shows the other outside communication.
5. Waits without a root close a ring: the ranks of the smallest ring are reported together, none accused alone.
6. Where the stacks of the others name no wait, those of the one accused rank tell what keeps it (`_awaited_place`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice

import polars as pl

from rca.analyses._awaited_place import SIGNS as SIGNS_OF_PLACE
from rca.analyses._awaited_place import awaited_place
from rca.analyses._given_up import READS as LOG_READS
from rca.analyses._given_up import but_given_up
from rca.analyses._new_call import new_to_both
from rca.analyses._stack_views import WAITS_FOR_OTHERS, Loop, View, cite_view, in_loop, main_motion, main_views, seen
from rca.analyses._wait_graph import Waits, cite_call, group_name
from rca.analyses._wait_words import SHOWN, awaited_calls, awaited_number, says_absent, says_alone, says_silent, waiting_text
from rca.analyses._waits import build_waits
from rca.analyses._words import ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Cite, Finding, Sign, Tables

NEEDS = ("dumps", "collectives")
USES = tuple(sorted({"group_status", "memberships", "ranks", "stacks", "stack_frames", "dump_index", *LOG_READS}))

SIGNS = {
    "never_joined": Sign(
        "silent",
        (
            "code_hang", "data_stall", "storage_stall", "collective_mismatch", "gpu_fault", "host_fault", "user_exception", "process_killed",
            "unknown",
        ),
    ),
    "unfinished_alone": Sign("silent", ("gpu_fault", "nvlink_fault", "code_hang", "network_fault", "unknown")),
    "no_dump_awaited": Sign("silent", ("process_killed", "host_lost", "user_exception", "host_out_of_memory", "code_hang", "unknown")),
    "no_trace_awaited": Sign("silent", ("process_killed", "user_exception", "host_out_of_memory", "host_lost", "unknown")),
    "host_silent": Sign("silent", ("host_lost", "process_killed", "unknown")),
    "wait_ring": Sign("ring", ("collective_mismatch", "unknown")),
    "tie": Sign("tie", ("unknown",)),
    **SIGNS_OF_PLACE,
}  # fmt: skip

MAX_ROOTS_SHARE = 0.25  # more roots than this share of the dumped ranks (and more than MIN_ROOTS) is no accusation but a lack of evidence
MIN_ROOTS = 4
BLOCKED_SHARE = 0.5  # without stacks: a hung job has at least half of its ranks in a call; less is an ordinary moment of a running one
TRACED_SHARE = 0.75  # of the dumped ranks must have left stacks before a rank without any is called gone
MAX_CITES = 6

_TOO_MANY = "too many ranks wait for nobody: the dumps were not taken at one moment, or most are missing"
_HIDDEN = "several ranks wait for nobody as far as recorded, but this backend records no send or recv, so one may wait for another"
_AFTER_ABSENT = "a rank fell silent after a call with a rank that left no dump: either may be first"
_SHORT = "a rank is awaited, but its last call was in a group whose members are not all known, and may have failed there"
_ABSENT_HIDDEN = (
    "ranks without a dump are awaited, and others wait in calls the recorder does not show (a send or recv, or one that failed)"
)
_ONLY_VICTIMS = (
    "all waits end at ranks whose stacks show them waiting too, in a call the recorder does not show (a send or recv, or one that failed)"
)
_DOUBTFUL = "a rank without a dump is awaited, and whether others had arrived their dumps do not tell"
_LOST_FILES = (
    "several ranks left neither a dump nor a stack, and only some of them are awaited: files were lost, of whom they would tell is open"
)
_NEW_CALL = (
    "one of two waits for the other at a call that no group of their kind made before: it made one too many, or the other left it out"
)
_ABSENT_TIE = "ranks without a dump are awaited, and they may be waiting for each other"


@dataclass(frozen=True)
class _Scene:
    """All that the decision rests on."""

    case: Tables
    waits: Waits
    views: Mapping[int, Sequence[View]]
    loop: Loop
    hosts: Mapping[int, str]
    silent: tuple[int, ...]  # dumped, nothing unfinished
    alone: tuple[int, ...]  # dumped, unfinished although all peers are through
    absent: tuple[int, ...]  # no dump
    victims: tuple[int, ...]  # would be roots, but their stacks show them waiting for others

    def shown(self, rank: int) -> list[View]:
        """The samples that show a stack of the rank."""
        return seen(self.views.get(rank, ()))

    def has_left(self, rank: int) -> bool:
        """Whether every stack of the rank lies outside the training loop: it is done, or handles an error."""
        return bool(self.loop and self.shown(rank)) and not any(in_loop(view, self.loop) for view in self.shown(rank))

    def is_confirmed(self, rank: int) -> bool:
        """Whether the stacks show the rank outside communication in every sample."""
        return bool(self.shown(rank)) and all(v.wait_kind not in WAITS_FOR_OTHERS for v in self.shown(rank))


def analyse(case: Tables) -> Sequence[Finding]:
    """Findings: the silent ranks, or a tie, or a ring. Empty when the job moves or nobody waits."""
    waits = case.derive(build_waits)
    if not waits.first:
        if not waits.last:
            raise NotEnoughEvidence("no call in any dump has a rank: nothing says which rank a dump is of")
        return ()
    waits = but_given_up(case, waits)
    views = case.derive(main_views)
    loop, motion = case.derive(main_motion)
    if motion.job_moves:
        return ()
    if not motion.is_known and len(waits.first) < BLOCKED_SHARE * len(waits.read):
        few = f"only {len(waits.first)} of {len(waits.read)} ranks were inside a call when dumped, as in any running job"
        raise NotEnoughEvidence(f"{few}, and no repeated stack says whether it moved")
    unread = sorted(waits.awaited.keys() & (waits.dumped - waits.read))
    if unread:
        raise NotEnoughEvidence(f"{ranks_text(unread, SHOWN)} are awaited and only the headers of their dumps were read")
    scene = _scene(case, waits, views, loop)
    found = _accusations(scene)
    found += awaited_place(found, views, loop)
    return found if found or scene.silent or scene.absent or scene.alone else _rings(waits)


def _scene(case: Tables, waits: Waits, views: Mapping[int, Sequence[View]], loop: Loop) -> _Scene:
    silent: list[int] = []
    alone: list[int] = []
    absent: list[int] = []
    victims: list[int] = []
    for rank in sorted(waits.awaited):
        if rank not in waits.dumped:
            absent.append(rank)
        elif rank not in waits.first and rank not in waits.held:
            (victims if _is_victim(waits, rank, views.get(rank, ()), loop) else silent).append(rank)
        elif rank in waits.first and not waits.ways_out(rank) and _peers_through(waits, rank):
            alone.append(rank)
    known = case.table("ranks").filter(pl.col("rank").is_not_null() & pl.col("host").is_not_null())
    hosts = dict(known.select("rank", "host").unique().collect().iter_rows())
    return _Scene(case, waits, views, loop, hosts, tuple(silent), tuple(alone), tuple(absent), tuple(victims))


def _reached(case: Tables, waits: Waits, ranks: Iterable[int]) -> Iterator[Cite]:
    """The row of each rank that shows how far it came in the group where it is awaited: the call itself, else what its dump's header says."""
    for rank in ranks:
        calls = awaited_calls(waits, (rank,))
        seq = waits.enqueued.get((rank, calls[0].group_id)) if calls and not calls[0].is_p2p else None
        if not seq:
            continue
        group = calls[0].group_id
        own = (pl.col("rank") == rank) & (pl.col("group_id") == group)
        made = case.table("collectives", where="is_tail").filter(own & (pl.col("collective_seq_id") == seq))
        row = (
            made.filter(~pl.col("is_p2p").fill_null(value=False))
            .select("evidence_id", "record", "op", "sizes")
            .sort(pl.all())
            .head(1)
            .collect()
        )
        if row.height:
            id_, record, op, sizes = row.row(0)
            yield Cite("collectives", id_, "", record, f"rank {rank}: {op or '?'} #{seq} on {group_name(group)} {sizes or ''}".strip())
            continue
        told = case.table("group_status").filter(own & (pl.col("last_enqueued") == seq)).select("evidence_id", "record")
        row = told.sort(pl.all()).head(1).collect()
        if row.height:
            id_, record = row.row(0)
            yield Cite("group_status", id_, "", record, f"rank {rank}: last enqueued #{seq} on {group_name(group)}")


def _is_victim(waits: Waits, rank: int, views: Sequence[View], loop: Loop) -> bool:
    """Whether the stacks clear a rank: its last one inside the training loop waits for others; or it has left the loop, and its last call
    was with a rank that left no dump, so that call failed under it."""
    shown = seen(views)
    inside = [v for v in shown if in_loop(v, loop)]
    if inside:
        return inside[-1].wait_kind in WAITS_FOR_OTHERS
    return bool(shown) and (bool(waits.may_have_failed(rank)) or waits.last_is_short(rank))


def _peers_through(waits: Waits, rank: int) -> bool:
    """Whether every other member has finished the call this rank is still in."""
    call = waits.first[rank]
    others = waits.members.get(call.group_id, frozenset()) - {rank}
    return bool(others) and others <= waits.finished.get(call.node, frozenset())


def _accusations(scene: _Scene) -> list[Finding]:
    """Step 4."""
    waits, silent, absent = scene.waits, scene.silent, scene.absent
    if len(silent) + len(scene.alone) > max(MIN_ROOTS, MAX_ROOTS_SHARE * len(waits.dumped)):
        return [_tie(waits, (*silent, *scene.alone), _TOO_MANY)]
    left = tuple(rank for rank in silent if scene.has_left(rank))
    if left and waits.hidden_p2p and (missing := _without_trace(scene)):
        traceless = _traceless(scene)
        if whole := _one_host(scene, traceless):
            lead = f"all {len(traceless)} ranks of {whole} left neither a dump nor a stack, where all others left both"
            says = f"{lead}; {ranks_text(left)} left the training loop, and no recorded call says why"
            return [_finding(waits, "host_silent", traceless, says, [cite_call(waits.last[rank]) for rank in left if rank in waits.last])]
        return [_tie(waits, (*left, *missing), _AFTER_ABSENT)]
    unseen = tuple(rank for rank in silent if not scene.shown(rank))
    if unseen and waits.hidden_p2p and (missing := _without_trace(scene)):
        return [_tie(waits, (*unseen, *missing), _AFTER_ABSENT)]
    if len(silent) > 1 and waits.hidden_p2p:  # one may wait for another in a call that is not recorded: only stacks can tell
        confirmed = tuple(rank for rank in silent if scene.is_confirmed(rank))
        if len(confirmed) != len(silent) and len(confirmed) != 1:
            return [_tie(waits, silent, _HIDDEN), *_absent(scene, absent)]
        silent = confirmed
    told = bool(scene.loop)  # whether a stack can show that its rank is still in the training loop
    unsure = [r for r in silent if absent and not (told and scene.shown(r)) and waits.hidden_p2p and waits.may_have_failed(r)]
    if unsure:
        return [_tie(waits, (*unsure, *absent), _AFTER_ABSENT)]
    if absent and any(not waits.may_have_failed(rank) & set(absent) for rank in scene.victims):
        return [_tie(waits, (*silent, *absent), _ABSENT_HIDDEN)]
    short = [r for r in silent if waits.hidden_p2p and not (told and scene.shown(r)) and waits.last_is_short(r)]
    if short:
        return [_tie(waits, (*silent, *absent), _SHORT)]
    confirmed = tuple(rank for rank in silent if scene.is_confirmed(rank))
    absent = tuple(a for a in absent if not any(_share_group(waits, a, c) for c in confirmed))  # those may only wait for the confirmed one
    gone = _only_trace_missing(scene)
    if scene.victims and not silent and not absent and not scene.alone and gone is not None:
        lead = (
            f"rank {gone} left neither a dump nor a stack, where all others left both; all waits end at {ranks_text(scene.victims, SHOWN)}"
        )
        says = f"{lead}, whose last call was in a group with a member unknown to the dumps"
        return [_finding(waits, "no_trace_awaited", (gone,), says, [cite_call(waits.last[v]) for v in scene.victims if v in waits.last])]
    if scene.victims and not silent and not absent and not scene.alone:
        return [_tie(waits, scene.victims, _ONLY_VICTIMS)]
    return [*_present(scene, silent), *_absent(scene, absent)]


def _without_trace(scene: _Scene) -> tuple[int, ...]:
    """Ranks of the job that left neither a dump nor a stack; () where no stacks were taken at all."""
    known = frozenset().union(*scene.waits.members.values()) | frozenset(scene.hosts)
    return tuple(sorted(known - scene.waits.dumped - set(scene.views))) if scene.views else ()


def _traceless(scene: _Scene) -> tuple[int, ...]:
    """`_without_trace`, where all others left both a dump and a stack; else ()."""
    gone = _without_trace(scene)
    known = frozenset().union(*scene.waits.members.values()) | frozenset(scene.hosts)
    return gone if known - set(gone) <= scene.waits.dumped & set(scene.views) else ()


def _one_host(scene: _Scene, ranks: tuple[int, ...]) -> str | None:
    """The host that just these ranks, several of them, ran on."""
    names = {scene.hosts.get(rank) for rank in ranks}
    name = next(iter(names)) if len(names) == 1 else None
    return name if len(ranks) > 1 and {rank for rank, host in scene.hosts.items() if host == name} == set(ranks) else None


def _only_trace_missing(scene: _Scene) -> int | None:
    """The one rank of the job that left nothing at all, if the groups that the victims called last are short of a member."""
    waits = scene.waits
    known = frozenset().union(*waits.members.values()) | frozenset(scene.hosts)
    lost = known - waits.dumped
    if len(lost) != 1 or lost & set(scene.views) or not waits.dumped <= set(scene.views):
        return None
    return next(iter(lost)) if all(waits.last_is_short(victim) for victim in scene.victims) else None


def _share_group(waits: Waits, one: int, two: int) -> bool:
    """Whether two ranks are in a group smaller than the world."""
    world = max(map(len, waits.members.values()), default=0)
    return any(one in members and two in members and len(members) < world for members in waits.members.values())


def _present(scene: _Scene, silent: tuple[int, ...]) -> list[Finding]:
    """One finding for all present roots together: they failed independently, or one fault hit them at once."""
    waits = scene.waits
    ranks = tuple(sorted({*silent, *scene.alone}))
    if not ranks:
        return []
    if ranks == silent and len(ranks) == 1 and not scene.is_confirmed(ranks[0]) and (pair := new_to_both(scene.case, waits, ranks[0])):
        return [_tie(waits, pair, _NEW_CALL)]
    sign = "unfinished_alone" if scene.alone and not silent else "never_joined"
    quiet = [rank for rank in ranks if rank not in scene.alone]
    says = "; ".join((*says_silent(waits, quiet), *(says_alone(waits, rank) for rank in ranks if rank in scene.alone)))
    own = [call for rank in ranks if (call := waits.first.get(rank) or waits.last.get(rank))]
    cites = [cite_call(call) for call in awaited_calls(waits, ranks)[:3]]
    cites += islice(_reached(scene.case, waits, silent), MAX_CITES)
    cites += [cite_call(call) for call in own]
    cites += [cite_view(scene.shown(rank)[-1]) for rank in ranks if scene.shown(rank)]
    return [_finding(waits, sign, ranks, says + waiting_text(len(waits.behind(ranks)), len(ranks)), cites)]


def _absent(scene: _Scene, absent: tuple[int, ...]) -> list[Finding]:
    """Ranks without a dump that others wait for. One that alone explains all such waits is accused, or all of a host; several are a tie."""
    waits = scene.waits
    if not absent:
        return []
    missing = frozenset().union(*waits.members.values()) - waits.dumped
    host = scene.hosts.get(absent[0])
    of_host = frozenset(rank for rank, name in scene.hosts.items() if name == host) if host else frozenset()
    if len(of_host) > 1 and missing == of_host and not missing & set(scene.views) and len(waits.dumped) > len(missing):
        return [_absence(waits, tuple(sorted(of_host)), "host_silent", f"all {len(of_host)} ranks of {host} left no dump")]
    doubtful = sorted({rank for a in absent for node in waits.awaited[a] for rank in waits.unsure.get(node, ())})
    if doubtful:
        return [_tie(waits, (*absent, *doubtful), _DOUBTFUL)]
    needed = _needed(waits, absent)
    if len(needed) != 1 or len(waits.dumped) < 2:
        return [_tie(waits, absent, _ABSENT_TIE)]
    rank = needed[0]
    others = set(_without_trace(scene)) - {rank}
    if others and waits.hidden_p2p:  # one of them may be awaited in a call that is not recorded
        return [_tie(waits, (rank, *others), _LOST_FILES)]
    traced = len(set(scene.views) & waits.dumped)
    if rank not in scene.views and traced >= TRACED_SHARE * len(waits.dumped):
        return [
            _absence(waits, (rank,), "no_trace_awaited", f"rank {rank} left neither a dump nor a stack, where {traced} others left both")
        ]
    return [_absence(waits, (rank,), "no_dump_awaited", f"rank {rank} left no dump")]


def _absence(waits: Waits, ranks: tuple[int, ...], sign: str, lead: str) -> Finding:
    return _finding(waits, sign, ranks, says_absent(waits, ranks, lead), [cite_call(call) for call in awaited_calls(waits, ranks)])


def _finding(waits: Waits, sign: str, ranks: tuple[int, ...], says: str, cites: Sequence[Cite]) -> Finding:
    calls, behind = awaited_calls(waits, ranks), waits.behind(ranks)
    numbers = {"waiting": len(behind), "awaited": awaited_number(calls), "ranks_with_dump": len(waits.dumped)}
    groups = tuple(sorted({call.group_id for call in calls}))
    return Finding(
        "first_silent_rank", sign, says, ranks=ranks, groups=groups, explains=tuple(sorted(behind)), numbers=numbers, cites=_capped(cites)
    )


def _needed(waits: Waits, absent: Sequence[int]) -> list[int]:
    """The absent ranks that some call cannot do without: those awaited where no other absent rank is. Else all of them."""
    alone = {next(iter(late)) for late in waits.lagging.values() if len(late) == 1 and next(iter(late)) in absent}
    if not alone:
        return list(absent)
    rest = [late for late in waits.lagging.values() if late & set(absent) and not late & alone]
    return list(absent) if rest else sorted(alone)


def _tie(waits: Waits, ranks: Sequence[int], why: str) -> Finding:
    ordered = sorted(ranks)
    cites = [cite_call(call) for call in awaited_calls(waits, ranks)[:3]]
    lost = sorted(frozenset().union(*waits.members.values()) - waits.dumped - set(ordered))
    says = f"{why}: {ranks_text(ordered, 12)}" + (f"; no dump of {ranks_text(lost, SHOWN)}" if lost else "")
    return Finding("first_silent_rank", "tie", says, scope=f"tie {ordered}", numbers={"candidates": ordered}, cites=_capped(cites))


def _rings(waits: Waits) -> list[Finding]:
    """Step 5."""
    best: list[int] = []
    least = {node: nsmallest(2, late) for node, late in waits.lagging.items()}  # a way out is to the first of them that is not the rank
    met: set[int] = set()  # whoever comes to one of these ends in a ring that is known, or in none
    for start in sorted(waits.first):
        trail: dict[int, int] = {}  # rank -> place
        rank: int | None = start
        while rank is not None and rank not in trail and rank not in met:
            trail[rank] = len(trail)
            late = least.get(waits.first[rank].node, []) if rank in waits.first else []
            rank = next((other for other in late if other != rank), None)
        met |= trail.keys()
        ring = list(trail)[trail[rank] :] if rank in trail else []
        if len(ring) > 1 and (not best or len(ring) < len(best)):
            best = ring
    if not best:
        return []
    calls = [waits.first[rank] for rank in best]
    shown = "; ".join(f"rank {call.rank} waits in {waits.name(call)}" for call in calls[:MAX_CITES])
    return [
        Finding(
            "first_silent_rank", "wait_ring", f"{shown}: each for the next, so none can go on", scope=f"ring {sorted(best)}",
            groups=tuple(sorted({c.group_id for c in calls})), numbers={"ring": sorted(best)}, cites=_capped([cite_call(c) for c in calls]),
        )
    ]  # fmt: skip


def _capped(cites: Sequence[Cite]) -> tuple[Cite, ...]:
    return tuple(dict.fromkeys(cites))[:MAX_CITES]


__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]
