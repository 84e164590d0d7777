"""Kernel records of the job's hosts: which began a chain, which only followed, and which ranks sit on the device.

1. What each record can be by itself: `_kernel_events`. Which of them are of the job's time: `_kernel_when`.
2. What follows from what by the edges of the catalogue (`_kernel_edges`) is never a root. Of the rest `_kernel_heads` tells what began each chain.
3. A GPU or process that no rank of the job uses (`_kernel_users`) accuses nobody, unless records of the job's own GPUs follow from it. What is
   only a sign (`_kernel_signs`) counts where nothing stronger is told.
4. Errors of a disk or a mount beside those of GPUs count only where the job itself speaks of storage: every host has some that no job needs.
5. Faults of programs of which nobody in the job complains accuse nobody (`_kernel_programs`).
6. Records that only tell of another's fault (lost packets, accesses of a peer) accuse nobody where that other one left no record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from rca.analyses._alive import last_steps
from rca.analyses._faults import Story
from rca.analyses._job_logs import Line, cite_line
from rca.analyses._kernel_aside import Aside, not_counted
from rca.analyses._kernel_edges import Link, chain_of, follow
from rca.analyses._kernel_events import Record, records
from rca.analyses._kernel_heads import REPEATING, chain_heads, node_wide, one_end, repeated_on_one
from rca.analyses._kernel_last import longest_wait_s
from rca.analyses._kernel_programs import is_calm, without_unheard
from rca.analyses._kernel_undated import past
from rca.analyses._kernel_when import (
    AFTER,
    BEFORE,
    after_the_end,
    last_down,
    last_of_storage,
    last_records,
    last_undated,
    last_words,
    of_the_dead,
    of_the_job,
    reasons,
    undated_of_the_job,
    was_outlived,
)
from rca.analyses._kernel_zone import may_be_at_the_end
from rca.analyses._storage_hints import in_storage, speaks_of_storage
from rca.types import Cite, Tables

__all__ = ["FAR", "Scene", "cites_of", "scene"]


@dataclass(frozen=True)
class Scene:
    """What the kernels of the job's hosts say."""

    roots: tuple[Record, ...]  # began a chain, in the job's time
    undated: tuple[Record, ...]  # could have, but when is not told
    node_wide: tuple[Record, ...]  # the same application fault on many GPUs at once
    victims: tuple[Record, ...]  # tell of another's fault, which no log shows
    num_old: int  # roots from before the job or after it
    repeated: Mapping[Record, int] = field(default_factory=dict)  # application faults of one GPU alone -> processes that met them
    worn: frozenset[tuple[str, str | None]] = frozenset()  # devices with the same kind of record from before
    live: tuple[Record, ...] = ()
    links: Mapping[int, Link] = field(default_factory=dict)  # of `live`, by place
    aside: tuple[Aside, ...] = ()  # of weight, and not counted
    strangers: tuple[Record, ...] = ()  # would be roots, but are of a GPU or process that no rank of the job uses

    def followers(self, root: Record) -> list[tuple[Record, Link]]:
        """What follows from a root, in the order of time, each with the reason."""
        if root not in self.live:
            return []
        return [(self.live[n], self.links[n]) for n in chain_of(self.live.index(root), self.links)]


def cites_of(records: Sequence[Record], others: Sequence[Line] = ()) -> tuple[Cite, ...]:
    """The best place of each record, then other lines, then the other files that tell the same records."""
    first = [record.cites[0] if record.cites else cite_line(record.line) for record in records]
    return (*first, *(cite_line(line) for line in others), *(cite for record in records for cite in record.cites[1:]))


FAR: Final = "no time zone brings it near the end of the job's own log"
OTHER_DAYS: Final = "no time zone brings it to the days of the job's own log"


def _within_reach(case: Tables, everything: Sequence[Record], told: Story) -> list[Record]:
    """Without those whose instant no zone of the job's own logs brings near it: of days before, or after, or not near the end of a calm log."""
    if is_calm(case, told):
        everything = [r for r in everything if r.line.at is None or r.line.rank is not None or may_be_at_the_end(case, r.line.at)]
    days = _reach(everything, told)
    return [r for r in everything if _is_within(r, days)]


def _reach(everything: Sequence[Record], told: Story) -> tuple[datetime, datetime] | None:
    """Between which instants the job's own logs can have been written, in whatever zone; None where they tell no day."""
    latest = max((r.line.at for r in everything if r.line.at is not None), default=None)
    return told.logs.clocks.reach(latest) if latest is not None else None


def _is_within(record: Record, days: tuple[datetime, datetime] | None) -> bool:
    """Whether a record can be of these days."""
    return record.line.at is None or days is None or days[0] - BEFORE <= record.line.at <= days[1] + AFTER


def scene(case: Tables, told: Story) -> Scene:
    """The records of the job's hosts, sorted into what began and what followed."""
    everything = records(case, told.logs)
    wait_s = longest_wait_s(told.logs.lines)
    dead = last_words(case, everything) if told.logs.hosts and told.logs.span is None else None
    near = _within_reach(case, everything, told)
    span = of_the_job(told.logs) or last_records(case, near, wait_s) or dead
    stuck = None if span is not None else last_of_storage(case, everything, told.logs.hosts_of(case.derive(in_storage)))
    span = span or stuck
    down = last_down(case, near) if span is None else []
    span = span or _span_of(down)
    dated = [r for r in everything if r.line.at is not None and span is not None]
    in_time = [r for r in dated if span is not None and r.line.at is not None and span[0] - BEFORE <= r.line.at <= span[1] + AFTER]
    if told.logs.span is None:
        in_time = [r for r in in_time if r.of_gpus or (stuck and r.kind.startswith("storage")) or r in down or _within(r, dead)]
    in_time += undated_of_the_job(case, told.logs, everything, wait_s)
    final = {id(r) for r in of_the_dead(case, told.logs, everything)}
    in_time += [r for r in everything if id(r) in final and id(r) not in {id(known) for known in in_time}]
    steps = last_steps(case, told.logs)
    faults = [(fault, frozenset(told.logs.hosts_of(fault.ranks))) for fault in told.first]
    ended = [r for r in in_time if id(r) in final or not (after_the_end(r, told, faults) or was_outlived(r, steps, told.logs))]
    live = sorted(ended, key=lambda r: (r.at_s, r.line.evidence_id, r.order))
    links = follow(live, told.logs.clocks)
    first = [r for n, r in enumerate(live) if n not in links and r.cause]
    repeated = repeated_on_one([r for r in first if r.code in REPEATING and r.role == "application"], everything)
    strangers = [r for r in first if r.stranger and r not in repeated and not _reaches_job(r, live, links)]
    foreign = {id(r) for r in strangers}
    heard, unheard = without_unheard(case, told, [r for r in first if id(r) not in foreign], repeated)
    wide, rest = node_wide(heard, repeated)
    rest, disks = _without_disks(case, told, rest, has_others=bool(wide))
    victims = [r for r in rest if r.role == "consequence"]
    roots = one_end(chain_heads([r for r in rest if r.role != "consequence"]), live)
    if victims and not roots:  # what they suffer from may stand in a log whose clock nothing places
        roots = [r for r in last_undated(case, everything, wait_s) if r.role == "root" and r.cause in ("nvlink_fault", "gpu_fault")]
    reached = {id(r) for r in near}
    days = _reach(everything, told)
    far = {
        (r.line.evidence_id, r.line.record): FAR if _is_within(r, days) else OTHER_DAYS
        for r in everything
        if span is None and id(r) not in reached
    }
    before = {(r.host, r.gpu, r.code) for r in dated if span is not None and r.line.at is not None and r.line.at < span[0] - BEFORE}
    older = past(case, span)
    return Scene(
        tuple(roots),
        tuple(
            r
            for r in near
            if (r.line.at is None or span is None)
            and r.role == "root"
            and not older & {(c.evidence_id, c.record) for c in r.cites}
            and not r.stranger
        ),  # asked for where nothing is live
        tuple(wide),
        tuple(victims),
        sum(r.role == "root" for r in dated) - sum(r.role == "root" for r in live),
        repeated,
        frozenset((r.host, r.gpu) for r in roots if (r.host, r.gpu, r.code) in before),
        tuple(live),
        links,
        (*not_counted(everything, [*live, *roots], reasons(everything, live, span, in_time, told, steps) | far), *disks, *unheard),
        tuple(strangers),
    )


def _span_of(records: Sequence[Record]) -> tuple[datetime, datetime] | None:
    moments = [r.line.at for r in records if r.line.at is not None]
    return (min(moments), max(moments)) if moments else None


def _within(record: Record, span: tuple[datetime, datetime] | None) -> bool:
    return span is not None and record.line.at is not None and span[0] <= record.line.at <= span[1]


def _without_disks(case: Tables, told: Story, records: Sequence[Record], *, has_others: bool) -> tuple[list[Record], list[Aside]]:
    """The records without those of disks and mounts, where GPUs tell of faults and the job itself says nothing of storage; and these, with why."""
    disks = [r for r in records if r.kind.startswith("storage") and r.line.rank is None]
    has_others |= any(r.of_gpus and not r.is_sign for r in records)
    if not disks or not has_others or speaks_of_storage(case, told):
        return list(records), []
    kept = {id(r) for r in disks}
    return [r for r in records if id(r) not in kept], [(r, "the job itself says nothing of storage") for r in disks]


def _reaches_job(stranger: Record, live: Sequence[Record], links: Mapping[int, Link]) -> bool:
    """Whether a fault of another's GPU broke one of the job's: a record that could be a root itself follows from it there."""
    place = next(n for n, r in enumerate(live) if r is stranger)
    return any(live[n].cause and live[n].gpu is not None and not live[n].stranger for n in chain_of(place, links))
