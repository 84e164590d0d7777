"""Which parallel group holds the ranks whose stacks stand apart, and does one of them alone not wait for others?

1. Only in a job that stands still, with half of its ranks in waits for others. Compare each rank's main thread with those of the same pipeline
   stage in other copies of the model (rca/analyses/_group_peers.py): what is seen in most copies is the rule, several patterns may be. Everybody
   else stands apart.
2. The smallest group (tensor, context, expert, pipeline, data; a host before all) that holds at least 80 % of them is what they share
   (rca/analyses/_group_cover.py). Its hosts are what an eviction takes (rca/eviction.py); nobody is accused for being in it.
3. Who stands in a call or at a point-to-point transfer is a victim, never accused for it. When exactly one rank of those apart does not wait
   for others, in every sample, it is named: its data loader, its checkpoint, its own code. Failing that the suspects are those that a chain
   of transfers leads to: not at a transfer themselves.
4. Where no stage has a rule (in small jobs every group may be as large as the next), the largest group is not the healthy one. Then: who is in
   the smallest group, if it does not wait while all others do; else the recorder's numbers decide, and this question stays open.
5. The root may sit beside the main thread. When all main threads look alike and the checkpoint threads or processes of one rank alone are busy
   in one place in every sample, while those of others rest or wait for others, that rank is named.
6. Where no call tells that others are waited for (NCCL's ranks spin in a device wait after their call), nobody is named, and a group only when
   nearly all ranks were in one place in three samples. With fewer the ranks apart are told, and what a further sample would decide.
7. A single sample shows a moment: then the group is a note, and no eviction follows. None follows either where a rank of the group left no stack
   inside the loop: that may be the one all others wait for, and its stack is cheaper than its hosts. Nor where those apart are ahead of all
   others (rca/analyses/_group_ahead.py).
Source: ByteRobust (SOSP'25, arXiv 2509.16293, section 5). The per-stage rule and the fall-backs are ours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from rca.analyses._group_ahead import ahead
from rca.analyses._group_cover import Cover, cover, numbers_of, parts
from rca.analyses._group_peers import ACTS, COLLECTIVE, HIDDEN, P2P, Apart, apart, copies, label, typical
from rca.analyses._group_savers import lone_saver
from rca.analyses._layout import hosts, stages, unseen
from rca.analyses._stack_scene import Scene, ends_by_itself, hidden_wait, scene, stays
from rca.analyses._stack_views import View, cite_view, in_loop, seen, stands_still
from rca.analyses._words import ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("stacks", "stack_frames")
USES = ("ranks", "groups", "memberships", "collectives", "dump_index", "steps", "progress", "log_events")
SIGNS = {
    "group_apart": Sign("stack", ("unknown",)),
    "group_apart_unsure": Sign("stack", (), is_note=True),
    "sample_wanted": Sign("mention", ()),
    "lone_loader": Sign("stack", ("data_stall", "storage_stall", "code_hang")),
    "lone_loader_thread": Sign("stack", ("code_hang", "data_stall", "storage_stall")),
    "lone_saver": Sign("stack", ("storage_stall", "code_hang")),
    "lone_place": Sign("stack", ("unknown",)),
}

MIN_SEEN: Final = 4  # ranks; of fewer no group is smaller than half
INSIDE_SHARE: Final = 0.5  # more than: of the ranks seen, or the job has ended and what they show is an after-effect
WAITING_SHARE: Final = 0.5  # of all ranks that must wait for others, or there is no hang to look into
# Where a device is waited for the processor spins, and a step in progress looks the same: then all must be in one place, thrice, for longer than
# steps last. A rank that is caught elsewhere each time is no chance then, and one of a group even less.
FROZEN_SAMPLES, FROZEN_SHARE, FROZEN_S = 3, 0.9, 10.0
MIN_SAMPLES: Final = 2  # of most ranks, for more than a note
THREAD_WAIT: Final = re.compile(
    r"(?:wait|Condition\.wait|get|SimpleQueue\.get) \((?:\S*/)?(?:threading|queue)\b|(?:\S*/)?(?:threading|queue):(?:\S*\.)?(?:wait|get)\b"
)
MAX_CITES: Final = 6
MAX_SIZES: Final = 8  # groups of like stacks that the text tells
MAX_NAMES: Final = 2  # groups that the text names


@dataclass(frozen=True)
class _Job:
    """What the steps share."""

    case: Tables
    shown: Scene
    usual: Mapping[int, View]
    apart: Apart
    everyone: frozenset[int]

    def view(self, rank: int) -> View:
        """Its usual one inside the loop, else the failed dump."""
        return self.usual[rank] if rank in self.usual else self.shown.failed[rank]

    @property
    def num_samples(self) -> int:
        """Samples that most ranks were seen in."""
        counts = sorted(len(seen(views)) for views in self.shown.views.values())
        return counts[len(counts) // 2] if counts else 0


def analyse(case: Tables) -> Sequence[Finding]:
    """At most one finding: the one rank that can be told, else the group."""
    shown = case.derive(scene)
    if not shown.views:
        raise NotEnoughEvidence("no stack dump has a rank: nothing says whose stacks they are")
    if shown.runs:
        return []
    usual = typical(shown)
    everyone = frozenset({*usual, *shown.failed})
    if len(everyone) < MIN_SEEN or len(everyone) <= INSIDE_SHARE * len(shown.views):
        why = f"of {len(shown.views)} ranks {len(everyone)} are seen inside the training loop"
        raise NotEnoughEvidence(f"{why}: at least {MIN_SEEN}, and most of them, are needed to tell a group")
    job = _Job(case, shown, usual, apart(shown, usual, stages(case), case.derive(copies)), everyone)
    waiting = sum(_waits(job, rank) for rank in everyone)
    is_told = waiting >= WAITING_SHARE * len(everyone)
    if not is_told and not _is_frozen(job):
        if job.apart.ranks and job.num_samples >= MIN_SAMPLES and _all_still(job):
            return [_sample_wanted(job)]
        raise NotEnoughEvidence(f"only {waiting} of {len(everyone)} ranks are seen to wait for others: their stacks show no common hang")
    if job.apart.ranks:
        return [_of_group(job, is_told=is_told)]
    if not is_told:
        return []
    if saver := _beside(job):
        return [saver]
    return [] if job.apart.num_stages else [_without_rule(job)]


def _waits(job: _Job, rank: int) -> bool:
    """Whether it waits for others: by the call it is in, or at a place where it may and stands still off the processor."""
    what = label(job.view(rank))
    return what in (COLLECTIVE, P2P) or (what == HIDDEN and stands_still(job.shown.views[rank]))


def _is_frozen(job: _Job) -> bool:
    """Whether nearly all ranks were in one place in three samples or more, over a while: where devices are waited for no call says so."""
    moments = [view.at for views in job.shown.views.values() for view in views if view.at is not None]
    is_long = not moments or (max(moments) - min(moments)).total_seconds() >= FROZEN_S
    return is_long and job.num_samples >= FROZEN_SAMPLES and _all_still(job)


def _all_still(job: _Job) -> bool:
    return len(job.shown.motion.still) >= FROZEN_SHARE * len(job.shown.views)


def _sample_wanted(job: _Job) -> Finding:
    """Ranks apart in a job that stands still in too few samples, or for too short: nobody is accused, and what would decide is said."""
    odd = job.apart.ranks
    found = cover(odd, job.case.derive(parts), len(job.everyone | set(hosts(job.case))))
    says = (
        f"{ranks_text(odd)} {'stands' if len(odd) == 1 else 'stand'} apart in {job.num_samples} samples, {_shared(found)}; no call shows that the "
        f"others wait for them, and a step in progress may look the same: {FROZEN_SAMPLES} samples over {FROZEN_S:.0f} s decide"
    )
    numbers = _numbers(job) | _measures(found) | {"candidates": sorted(odd), "samples_wanted": FROZEN_SAMPLES}
    return Finding(
        "outlier_group", "sample_wanted", says, groups=_group_names(found), scope="sample wanted", numbers=numbers, cites=_cites(job, odd)
    )


def _of_group(job: _Job, *, is_told: bool) -> Finding:
    """Steps 1 to 3, 6 and 7. `is_told`: that others are waited for; where it is not, a place in the program's own code may be such a wait."""
    odd, on = job.apart.ranks, hosts(job.case)
    hang = (*odd, *job.apart.beside)
    found = cover(hang, job.case.derive(parts), len(job.everyone | set(on)))
    acting = [rank for rank in odd if label(job.view(rank)) == ACTS and (is_told or hidden_wait(job.view(rank)) is None)]
    if len(acting) == 1 and _stays(job, acting[0]) and (is_told or job.view(acting[0]).activity == "dataloader"):
        return _of_rank(job, acting[0], found)  # a batch that is missing so long is missing, whatever the others do
    suspects = acting or _end_of_chain(job)
    stands = "stands apart from its pipeline stage" if len(odd) == 1 else "stand apart from their pipeline stages"
    says = f"{ranks_text(odd)} {stands}, where {job.apart.share:.0%} of the ranks look alike"
    if job.apart.beside:
        says += f"; {ranks_text(job.apart.beside)} of the same copies of the model are in the same place, in stages where others are too"
    says += f"; {_shared(found)}"
    if 0 < len(suspects) < len(odd) or not is_told:
        says += f"; {_doing(job, suspects or odd)}{', the others wait for others' if is_told else ''}"
    elif not acting:
        says += "; all that is seen there is waiting for others"
    is_once = job.num_samples < MIN_SAMPLES
    if is_once:
        says += "; there is one sample, and a moment of a running job may look the same"
    unseen = _unseen(job, found) if found is not None else []
    is_ahead = not acting and ahead(odd, {rank: job.view(rank) for rank in job.everyone}, stages(job.case), job.case.derive(copies))
    if is_ahead:
        says += ", at a point that all others have yet to reach: these are ahead and wait, and what holds the others up is among those"
    if unseen:
        says += f"; {ranks_text(unseen)} there left no stack inside the loop and may be what they wait for"
    numbers = _numbers(job) | {"candidates": sorted(job.everyone - set(odd) if is_ahead else {*(suspects or hang), *unseen})}
    if found is not None and not is_once and not unseen and not is_ahead and _may_go(job, found, acting, suspects):
        numbers["cover"] = numbers_of(found, hang, suspects)
    ranks = found.ranks if found is not None else frozenset(hang)
    where = tuple(sorted({on[rank] for rank in ranks if rank in on and not is_ahead}))
    is_note = is_once or is_ahead or not (is_told or "cover" in numbers)
    return Finding(
        "outlier_group", "group_apart_unsure" if is_note else "group_apart", says, hosts=where, groups=_group_names(found),
        scope=f"apart {where} {_group_names(found)}", numbers=numbers | _measures(found), cites=_cites(job, (*suspects, *odd)),
    )  # fmt: skip


def _unseen(job: _Job, found: Cover) -> list[int]:
    """Ranks of the group that left no stack inside the loop, of the copies of the model that stand apart: on a host others may run too."""
    copy_of = job.case.derive(copies)
    own = {copy_of.get(rank) for rank in job.apart.ranks}
    return sorted(rank for rank in found.ranks - job.everyone if copy_of.get(rank) in own)


def _may_go(job: _Job, found: Cover, acting: Sequence[int], suspects: Sequence[int]) -> bool:
    """Whether an eviction may follow: not for ranks in code of their own (a process that cannot be dumped shows none), and not for victims alone,
    which are one rank that waits, or ranks at transfers with somebody who looks like everybody else."""
    odd = job.apart.ranks
    if acting:
        return all(rank in job.shown.failed for rank in acting)
    if len(suspects) == 1 and suspects[0] not in job.shown.failed and hidden_wait(job.view(suspects[0])) == "place":
        return False  # alone in a place of the program, which may be its own doing: no host goes for what code does
    is_told = any(label(job.view(rank)) != P2P for rank in odd) or found.ranks & job.everyone <= {*odd, *job.apart.beside}
    return len(odd) > 1 and is_told


def _of_rank(job: _Job, rank: int, found: Cover | None = None) -> Finding:
    """The one rank that does not wait for others."""
    view = job.view(rank)
    sign = {"dataloader": "lone_loader", "checkpoint": "lone_saver"}.get(view.activity, "lone_place")
    if sign == "lone_loader" and not job.apart.num_stages and _waits_inside(job, view):
        sign = "lone_loader_thread"
    others = tuple(r for r in job.apart.ranks if r != rank)
    if sign == "lone_place":
        if any(job.view(r).stack_id == view.stack_id for r in job.everyone - {rank}):
            raise NotEnoughEvidence(f"rank {rank} is in code of its own, and so are others in the same place")
        if missing := unseen(job.case, job.everyone):
            raise NotEnoughEvidence(f"rank {rank} is in code of its own, and {missing}: any of these may be the one")
    says = f"rank {rank} alone does not wait for others: it is {_place(view)}"
    if others:
        whose, waits = ("its stage", "waits") if len(others) == 1 else ("their stages", "wait")
        says += f", and {ranks_text(others)}, apart from {whose} too, only {waits} for it"
    elif not job.apart.num_stages:
        says += f", while everybody else waits, and no group of like stacks is the rule ({_sizes(job)} ranks)"
    is_code = rank not in job.shown.failed and view.wait_kind != "none"  # inside torch itself it may be the device that does not answer
    if is_code:
        says += "; no host is evicted for what code does"
    on = hosts(job.case)
    return Finding(
        "outlier_group", sign, says, ranks=(rank,), hosts=(on[rank],) if rank in on else (), groups=_group_names(found),
        explains=tuple(sorted(job.everyone - {rank})), cites=_cites(job, (rank, *others)),
        numbers=_numbers(job) | _measures(found) | {"is_code": is_code},
    )  # fmt: skip


def _waits_inside(job: _Job, view: View) -> bool:
    """Whether a loader's wait is for another thread of the same process (the one that pins memory feeds the queue), and no worker was seen that has
    no data: BLOOM's hang was a lock between such threads (chronicles of 2022-04-30), not storage."""
    workers = job.case.table("stacks").filter(pl.col("role").str.contains("worker")).head(1).collect()
    return not workers.height and any(THREAD_WAIT.match(frame) for frame in view.frames[:2])


def _without_rule(job: _Job) -> Finding:
    """Step 4."""
    acting = sorted(rank for rank in job.everyone if label(job.view(rank)) == ACTS)
    if len(acting) == 1 and _stays(job, acting[0]):
        return _of_rank(job, acting[0])
    why = "everybody waits for others" if not acting else f"{len(acting)} ranks do not wait for others"
    raise NotEnoughEvidence(
        f"no group of like stacks is the rule ({_sizes(job)} ranks), and {why}: the largest group need not be the healthy one. Recorder dumps decide"
    )


def _beside(job: _Job) -> Finding | None:
    """Step 5."""
    saver = lone_saver(job.case, job.shown.views) if job.num_samples >= MIN_SAMPLES and len(job.apart.sizes) == 1 else None
    if saver is None:
        return None
    on = hosts(job.case)
    says = (
        f"all main threads look alike, but beside that of rank {saver.rank} its checkpoint {saver.what} is in {saver.leaf} in every sample, while "
        f"those of {saver.num_others} other ranks rest or wait for others"
    )
    return Finding(
        "outlier_group", "lone_saver", says, ranks=(saver.rank,), hosts=(on[saver.rank],) if saver.rank in on else (),
        explains=tuple(sorted(job.everyone - {saver.rank})), numbers=_numbers(job), cites=saver.cites[:MAX_CITES],
    )  # fmt: skip


def _stays(job: _Job, rank: int) -> bool:
    """Whether every sample shows it at the same thing, inside the loop where it is code of its own (outside it has ended: an after-effect)."""
    view = job.view(rank)
    if rank in job.shown.failed:
        return True
    known = view.activity in ("dataloader", "checkpoint") or view.wait_kind == "io"
    return (
        not ends_by_itself(job.shown.views[rank], view) and stays(job.shown.views[rank], view) and (known or in_loop(view, job.shown.loop))
    )


def _end_of_chain(job: _Job) -> list[int]:
    """Of ranks that all wait, those that are not at a transfer, when others of them are: transfers lead to them. Else nobody is told apart."""
    rest = [rank for rank in job.apart.ranks if label(job.view(rank)) != P2P]
    return rest if len(rest) < len(job.apart.ranks) else []


def _sizes(job: _Job) -> str:
    """4/4/4/3/1"""
    return "/".join(map(str, job.apart.sizes[:MAX_SIZES])) + ("/..." if len(job.apart.sizes) > MAX_SIZES else "")


def _shared(found: Cover | None) -> str:
    if found is None:
        return "no group or host is shared by most of them"
    first, size = found.parts[0], len(found.ranks)
    if first.kind == "host":
        return f"they are on {', '.join(part.names[0] for part in found.parts)}"
    names = [name for part in found.parts for name in part.names]
    told = ", ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
    inside = f"{told}, with their tp peers" if any(part.is_widened for part in found.parts) else told
    num = len(found.parts)
    return f"they fit into {'one' if num == 1 else num} {first.own_kind} group{'' if num == 1 else 's'} of {size} ranks ({inside})"


def _group_names(found: Cover | None) -> tuple[str, ...]:
    return tuple(sorted({name for part in found.parts if part.kind != "host" for name in part.names})) if found is not None else ()


def _place(view: View) -> str:
    if view.dump_status != "ok":
        return "in the kernel and not to be suspended" if view.dump_status == "suspend_failed" else "gone"
    words = {"dataloader": "in its data loader", "checkpoint": "in a checkpoint"}.get(view.activity, "in code of its own")
    return f"{words} ({view.leaf})" if view.leaf else words


def _doing(job: _Job, suspects: Sequence[int]) -> str:
    leaf = Counter(job.view(rank).leaf or job.view(rank).dump_status for rank in suspects).most_common(1)[0][0]
    if set(suspects) == set(job.apart.ranks):
        return f"{'it is' if len(suspects) == 1 else 'most are'} in {leaf}"
    return f"of them {ranks_text(suspects)} {'is' if len(suspects) == 1 else 'are'} in {leaf}"


def _numbers(job: _Job) -> dict[str, Any]:
    """`dominance_share` of the ranks in stages with a rule; `sizes` of the patterns of all ranks."""
    return {
        "dominance_share": round(job.apart.share, 4), "outliers": list(job.apart.ranks), "sizes": list(job.apart.sizes[:16]),
        "num_ranks": len(job.everyone), "num_stages": job.apart.num_stages, "num_samples": job.num_samples,
    }  # fmt: skip


def _measures(found: Cover | None) -> dict[str, Any]:
    """Of a cover: its kind, its members and the share of the outliers that it holds."""
    if found is None:
        return {}
    return {"kind": found.parts[0].own_kind, "members": sorted(found.ranks), "covered_share": round(found.share, 4)}


def _cites(job: _Job, ranks: Sequence[int]) -> tuple[Any, ...]:
    """Those apart first, then one that follows the rule."""
    rule = [rank for rank in job.apart.ruled or sorted(job.everyone) if rank not in ranks][:1]
    return tuple(cite_view(job.view(rank)) for rank in [*dict.fromkeys(ranks)][: MAX_CITES - 1] + rule)
