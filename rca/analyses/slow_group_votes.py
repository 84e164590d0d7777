"""Which parallel group is slow, by who stands apart again and again in a job that runs?

1. Only in a job that runs, with five rounds of stacks or more (10 s apart, as ByteRobust takes them). In every round compare each rank's main
   thread with the same pipeline stage in other copies of the model, as in outlier_group.
2. A round in which the others wait, and those apart do not, flags, of each kind of group, the one with the most ranks apart, half of its own at
   least. The others wait where most of them are in a call that says so, or where nearly all have gathered at one place that may hide a wait;
   where everybody computes, some elsewhere, nobody is late. Every round counts. After the last the group with the most flags wins. A host or
   group that is a whole pipeline stage cannot be told: stages differ in sound jobs too. A group that most of its rounds show ahead of all
   others (rca/analyses/_group_ahead.py) waits for them, and is a note.
3. With few groups the same one is flagged often by chance. The chance is told; when it is small, the group is a finding, else a note. Nobody is
   accused: who of the group is slow only times tell (slow_rank).
Source: ByteRobust (SOSP'25, arXiv 2509.16293, section 5).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rca.analyses._group_ahead import ahead
from rca.analyses._group_cover import Cover, numbers_of, parts
from rca.analyses._group_peers import apart, copies
from rca.analyses._group_votes import ROUNDS, Vote, vote
from rca.analyses._layout import hosts, stages
from rca.analyses._stack_scene import hidden_wait, scene
from rca.analyses._stack_views import WAITS_FOR_OTHERS, View, cite_view, in_loop, seen
from rca.errors import NotEnoughEvidence
from rca.types import Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("stacks", "stack_frames")
USES = ("ranks", "groups", "memberships", "collectives", "dump_index", "steps", "progress", "log_events")
SIGNS = {
    "slow_group": Sign("slowness", ("slow_rank", "unknown")),
    "slow_group_hint": Sign("mention", (), is_note=True),
}

CHANCE: Final = 0.001  # at most, for a finding: a group that is not slow, of which hosts go, is told of one in a thousand sound jobs
MOST: Final = 0.5  # more than: of the other ranks are in a wait that their stacks name
GATHERED: Final = (
    0.9  # of the other ranks at one place that may hide a wait: at work ranks are spread over a step, and only a wait gathers them
)
MAJORITY: Final = 0.5  # more than: of the rounds must flag the winner
MIN_SEEN: Final = 0.5  # of the ranks must be seen in a round
MAX_CITES: Final = 6


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding or a note for the group that most rounds flag."""
    job = case.derive(scene)
    if not job.runs:
        return []
    rounds: dict[int, dict[int, View]] = defaultdict(dict)
    for rank, views in job.views.items():
        for view in seen(views):
            if in_loop(view, job.loop):
                rounds[view.sample][rank] = view
    used = [views for _, views in sorted(rounds.items()) if len(views) >= MIN_SEEN * len(job.views)]
    if len(used) < ROUNDS:
        raise NotEnoughEvidence(
            f"{len(used)} rounds of stacks of a job that runs: {ROUNDS}, some 10 s apart, are needed to tell a slow group"
        )
    stage, copy_of = stages(case), case.derive(copies)
    odd = [apart(replace(job, views={r: [v] for r, v in of.items()}, last=of, failed={}), of, stage, copy_of).ranks for of in used]
    late: list[tuple[int, ...]] = [_late(ranks, of) for of, ranks in zip(used, odd, strict=True)]
    won, is_late = _won(case, late, len(job.views)), True
    if won is None:
        won, is_late, late = _won(case, odd, len(job.views)), False, odd
    if won is None:
        return []
    where = tuple(sorted({host for rank, host in hosts(case).items() if rank in won.part.ranks}))
    is_sure = is_late and won.chance <= CHANCE
    members = sorted(won.part.ranks)
    what = f"host {won.part.names[0]}" if won.part.kind == "host" else f"{won.part.own_kind} group {won.part.name}"
    says = f"the {what} had the most ranks apart from their stages in {won.flags} of {won.rounds} rounds of stacks, of {won.rivals} such groups"
    by_chance = f"by chance that happens in up to {won.chance:.1%} of sound jobs"
    says += f": {'it is likely the slow one' if is_sure else by_chance if is_late else 'the others do not wait for it'}"
    of_it = [(of, set(ranks) & won.part.ranks) for of, ranks in zip(used, late, strict=True) if set(ranks) & won.part.ranks]
    if 2 * sum(ahead(ranks, of, stage, copy_of) for of, ranks in of_it) > len(of_it):
        says += "; but it stands at a point that all others have yet to reach: it waits for them, and is not the slow one"
        is_sure = False
    apart_there = sorted({rank for ranks in late for rank in ranks} & won.part.ranks)
    cites = [cite_view(of[rank]) for of, ranks in zip(used, late, strict=True) for rank in ranks if rank in won.part.ranks]
    numbers = {
        "kind": won.part.own_kind, "members": members, "flags": won.flags, "rounds": won.rounds, "num_groups": won.rivals,
        "chance": round(won.chance, 6), "candidates": apart_there,
    }  # fmt: skip
    if is_sure:
        numbers["cover"] = numbers_of(Cover((won.part,), 1.0), apart_there, ())
    return [
        Finding(
            "slow_group_votes", "slow_group" if is_sure else "slow_group_hint", says, hosts=where,
            groups=won.part.names if won.part.kind != "host" else (), scope=f"slow {where} {won.part.names}", numbers=numbers,
            cites=tuple(dict.fromkeys(cites))[:MAX_CITES],
        )
    ]  # fmt: skip


def _won(case: Tables, rounds: Sequence[Collection[int]], num_ranks: int) -> Vote | None:
    """The group that most rounds flag."""
    won = vote(rounds, case.derive(parts), num_ranks)
    return won if won is not None and won.flags > MAJORITY * won.rounds else None


def _late(odd: Collection[int], views: Mapping[int, View]) -> tuple[int, ...]:
    """Of the ranks apart in a round those that the others may wait for; none where the others do not wait."""
    others = [view for rank, view in views.items() if rank not in set(odd)]
    num_waiting = sum(map(_waits, others))
    hidden = Counter(view.leaf for view in others if not _waits(view) and hidden_wait(view) is not None)
    if num_waiting <= MOST * len(others) and num_waiting + max(hidden.values(), default=0) < GATHERED * len(others):
        return ()
    return tuple(rank for rank in odd if rank in views and not _waits(views[rank]))


def _waits(view: View) -> bool:
    """Whether the stack names a wait: for other ranks, or for a device that may wait for them."""
    return view.wait_kind in WAITS_FOR_OTHERS or view.wait_kind == "cuda_sync"
