"""Which group's transfers are slow against its sibling groups, or against its own first calls: communication, or members that compute longer?

1. Siblings are groups of one kind, size and pipeline stage, on as many hosts. Of each take what its calls take once all members are there
   (rca/analyses/_group_transfers.py): waiting for a late member is no part of it.
2. A group is suspect whose calls take SLOWER times as long as the same calls of its siblings, and that stands out from their scatter. That may be
   how the cluster is wired, and is told beside; its communication is slow where it is MUCH slower or became so in the run. Whose is open: the
   group is named, and no rank; where two slow groups of different kinds share one rank, that rank.
3. A group alone in its place, and all groups of a place together, are compared with their own first calls: a lasting rise that no single group
   explains is the fabric's, or that one group's.
4. Where transfers are alike and the members of one group own more time between their calls than those of its siblings, that is said: the cause is
   computation (`recorded_pace` says whose), not the network.

After GREYHOUND (ATC'25): groups against same-position groups, 1.2 times their median; a group alone in its position is always verified. Aegis
(NSDI'25): a member behind in its calls is computation, calls that start together and end late are communication.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import Final

import polars as pl

from rca.analyses._change_points import MIN_SIDE, change_points
from rca.analyses._group_transfers import READS, Place, cite_calls, group_transfers, members_of, places
from rca.analyses._layout import hosts
from rca.analyses._own_time import call_times
from rca.analyses._words import ranks_text
from rca.errors import NotEnoughEvidence
from rca.types import Finding, Sign, Tables

__all__ = ["NEEDS", "SIGNS", "USES", "analyse"]

NEEDS = ("evidence",)  # calls of recorders or of NCCL's Inspector will do
USES = tuple(sorted({"collectives", "nccl_calls", *READS} - {*NEEDS}))
SIGNS = {
    "slow_transfers": Sign("transfers", ("network_fault", "unknown")),
    "slow_transfers_inside": Sign("transfers", ("nvlink_fault", "unknown")),
    "slow_shared_rank": Sign("transfers", ("network_fault", "nvlink_fault", "gpu_fault", "unknown")),
    "slower_than_before": Sign("transfers", ("network_fault", "unknown")),
    "suspect_group": Sign("mention", (), is_note=True),
    "members_compute": Sign("mention", (), is_note=True),
}

SLOWER: Final = 1.2  # times the siblings' (GREYHOUND)
MUCH: Final = 1.5  # the same where no beginning was seen: other switches on the way are no fault, a lost port of two doubles the time
LOW: Final = 1.1  # the same for the faster quarter of the group's own calls
SCATTER: Final = 5.0  # widths of the scatter of the siblings
MIN_SCATTER: Final = 0.03  # of the logarithm: groups repeat no better
MIN_SIBLINGS: Final = 2  # others of a place, or it is open whether one is slow or the other fast
MIN_CALLS: Final = 5  # of a group and kind of call
MANY: Final = 1 / 3  # of the siblings slow at once is no longer an exception
MIN_SERIES: Final = 12  # calls by which a group is compared with itself
MAX_CITES: Final = 4
ALMOST: Final = 1 - 1e-9  # rounding of logarithms


@dataclass(frozen=True)
class _Group:
    """A group's transfers over those of its siblings, from its own rise on where there is one: the usual ratio, and that of its faster quarter."""

    name: str
    place: Place
    table: str
    ratio: float
    low: float
    own: tuple[tuple[int, float], ...]  # number of the call, time over the usual one of its kind


def analyse(case: Tables) -> Sequence[Finding]:
    """A finding per suspect group. NotEnoughEvidence where no call has the times of all members."""
    told = group_transfers(case)
    if not told.height:
        raise NotEnoughEvidence(
            "no collective has the start and the end of all members: TORCH_NCCL_ENABLE_TIMING, or NCCL's Inspector, writes them"
        )
    members = members_of(case)
    by_place: dict[Place, list[_Group]] = defaultdict(list)
    for group in _groups(told, _peopled(places(case, members))):
        by_place[group.place].append(group)
    found: list[Finding] = []
    suspects: list[_Group] = []
    alone = 0
    for place, groups in sorted(by_place.items(), key=lambda item: (item[0].kind, item[0].stage, item[0].size, item[0].num_hosts)):
        slow = _suspects(groups)
        suspects += slow
        if not slow and len(groups) > MIN_SIBLINGS:
            found += _before(case, place, groups)
        elif not slow:
            found += [finding for group in groups for finding in _before(case, place, [group])]
        alone += len(groups) if len(groups) <= MIN_SIBLINGS and max(len(group.own) for group in groups) < MIN_SERIES else 0
    found += _named(case, suspects, members)
    if not found:
        found += _computing(case, by_place, members)
    if not found and alone:
        raise NotEnoughEvidence(f"{alone} groups have too few siblings and too few calls to be compared with anything")
    return found


def _peopled(place_of: Mapping[str, Place]) -> dict[str, Place]:
    """Places of at least MIN_SIBLINGS others: where a stage has fewer groups of a kind, those of all such stages stand together."""
    num = Counter(place_of.values())
    return {name: place if num[place] > MIN_SIBLINGS else replace(place, stage="any") for name, place in place_of.items()}


def _groups(told: pl.DataFrame, place_of: Mapping[str, Place]) -> list[_Group]:
    """Of each group its transfers over the usual ones of its place, kind of call by kind of call."""
    at = pl.DataFrame(
        [(name, f"{p.kind}/{p.stage}/{p.size}/{p.num_hosts}") for name, p in place_of.items()],
        schema={"group": pl.String, "place": pl.String},
        orient="row",
    )
    rows = told.join(at, on="group").with_columns(pl.len().over("group", "call").alias("n")).filter(pl.col("n") >= MIN_CALLS)
    mine = rows.group_by("place", "call", "group").agg(pl.col("transfer_s").median().alias("usual"))
    usual = mine.group_by("place", "call").agg(pl.col("usual").median())
    over = pl.col("transfer_s") / pl.col("usual")
    rows = rows.join(usual, on=["place", "call"]).select("group", "number", "call", "usual", "table", over.alias("over"))
    rows = rows.sort("group", "number", "call")
    own = rows.group_by("group", maintain_order=True).agg("number", "over", pl.col("table").first())
    series = dict(own.select("group", "over").iter_rows())
    begins = {name: rise[0] for name in _changing(rows) if (rise := _rise(series[name])) is not None}
    begin = pl.col("group").replace_strict(begins, default=0, return_dtype=pl.Int64)
    now = rows.filter(pl.int_range(pl.len()).over("group") >= begin).group_by("group", "call")  # as it is now
    weight = now.agg(pl.col("over").median(), pl.col("over").quantile(0.25).alias("low"), pl.col("usual").sum()).sort("group", "call")
    total = pl.col("usual").sum()
    weighed = weight.group_by("group").agg(((pl.col(name) * pl.col("usual")).sum() / total).alias(name) for name in ("over", "low"))
    ratios = {name: (ratio, low) for name, ratio, low in weighed.iter_rows()}
    return [
        _Group(name, place_of[name], table, *ratios[name], tuple(zip(numbers, series[name], strict=True)))
        for name, numbers, table in own.select("group", "number", "table").iter_rows()
    ]


def _changing(rows: pl.DataFrame) -> list[str]:
    """Groups (rows sorted by them) that may have a lasting rise: so few are looked at closely.

    A change has MIN_SIDE values or more on each side, and a level is their median: of some MIN_SIDE values in a row half reach the higher
    one, and of some others half are no more than the lower one.
    """
    import numpy as np

    half, over = MIN_SIDE // 2, rows["over"].to_numpy()
    if len(over) < MIN_SERIES:
        return []
    group = rows["group"].rle_id().to_numpy()
    windows = np.sort(np.lib.stride_tricks.sliding_window_view(over, MIN_SIDE), axis=1)
    is_one = group[: len(windows)] == group[MIN_SIDE - 1 :]
    ends = rows["group"][: len(windows)], windows[:, half - 1], windows[:, MIN_SIDE - half]
    seen = pl.DataFrame({"group": ends[0], "low": ends[1], "high": ends[2]}).filter(pl.Series(is_one))
    wide = seen.group_by("group").agg(pl.col("high").max() >= ALMOST * SLOWER * pl.col("low").min()).filter("high")
    return sorted(wide["group"])


def _suspects(groups: Sequence[_Group]) -> list[_Group]:
    """Groups that are slow against the others of their place."""
    if len(groups) <= MIN_SIBLINGS:
        return []
    logs = {group.name: math.log(group.ratio) for group in groups}
    middle = median(logs.values())
    scatter = max(MIN_SCATTER, 1.4826 * median(abs(log - middle) for log in logs.values()))
    slow = [
        group
        for group in groups
        if logs[group.name] - middle >= max(math.log(SLOWER), SCATTER * scatter) and group.low >= LOW * math.exp(middle)
    ]
    return slow if len(slow) <= max(1, MANY * len(groups)) else []


def _named(case: Tables, suspects: Sequence[_Group], members: Mapping[str, frozenset[int]]) -> list[Finding]:
    """The suspect groups, and the rank that slow ones of different kinds share."""
    where = hosts(case)
    found = []
    slow = [group for group in suspects if group.ratio >= MUCH or _rise([over for _, over in group.own]) is not None]
    for group in suspects:
        ranks = sorted(members.get(group.name, ()))
        on = sorted({where[rank] for rank in ranks if rank in where})
        inside = len(on) == 1 and all(rank in where for rank in ranks) and bool(ranks)
        worst = sorted(group.own, key=lambda call: (-call[1], call[0]))[:MAX_CITES]
        says = (
            f"{group.name} ({ranks_text(ranks)}{' on ' + ', '.join(on[:4]) if on else ''}): its calls take {group.ratio:.2f} times as long as those "
            f"of other {group.place.text} once all members are there: communication, not computation"
        )
        numbers = {"ratio": round(group.ratio, 3), **({"candidates": ranks} if ranks else {})}
        cites = cite_calls(case, group.name, group.table, [number for number, _ in worst])
        sign = "suspect_group" if group not in slow else "slow_transfers_inside" if inside else "slow_transfers"
        found.append(Finding("sibling_groups", sign, says, groups=(group.name,), numbers=numbers, cites=cites))
    shared = {
        (next(iter(both)), one, other)
        for one, other in combinations(slow, 2)
        if one.place.kind != other.place.kind
        and len(both := members.get(one.name, frozenset()) & members.get(other.name, frozenset())) == 1
    }
    if len({rank for rank, *_ in shared}) == 1:
        rank, one, other = min(shared, key=lambda item: (item[1].name, item[2].name))
        host = (where[rank],) if rank in where else ()
        says = f"rank {rank}{' on ' + host[0] if host else ''} is the one member that the slow groups {one.name} and {other.name} share"
        others = tuple(sorted((members[one.name] | members[other.name]) - {rank}))
        cites = tuple(cite for group in (one, other) for cite in cite_calls(case, group.name, group.table, [group.own[-1][0]]))
        found.append(
            Finding(
                "sibling_groups", "slow_shared_rank", says, ranks=(rank,), hosts=host, groups=(one.name, other.name), explains=others, cites=cites
            )
        )  # fmt: skip
    return found


def _before(case: Tables, place: Place, groups: Sequence[_Group]) -> list[Finding]:
    """A lasting rise over their own first calls that all groups of a place share."""
    by_number: dict[int, list[float]] = defaultdict(list)
    for group in groups:
        first = median(over for _, over in group.own[: max(MIN_CALLS, len(group.own) // 4)])
        for number, over in group.own:
            by_number[number].append(over / first)
    numbers = [number for number in sorted(by_number) if 2 * len(by_number[number]) > len(groups)]
    if len(numbers) < MIN_SERIES:
        return []
    rise = _rise([median(by_number[number]) for number in numbers])
    if rise is None:
        return []
    place_of_rise, ratio = rise
    name = groups[0].name
    who = name if len(groups) == 1 else f"all {len(groups)} {place.text}"
    says = (
        f"from call #{numbers[place_of_rise]} on the calls of {who} take {ratio:.2f} times as long once all members are there, and stay so"
    )
    cites = cite_calls(case, name, groups[0].table, numbers[place_of_rise : place_of_rise + MAX_CITES])
    of = (name,) if len(groups) == 1 else ()
    return [
        Finding(
            "sibling_groups", "slower_than_before", says, groups=of, scope=f"{place} {of}", numbers={"ratio": round(ratio, 3)}, cites=cites
        )
    ]


def _rise(series: Sequence[float]) -> tuple[int, float] | None:
    """Place and ratio of a lasting rise; None where there is none, or too few values to tell."""
    changes = change_points(series) if len(series) >= MIN_SERIES else []
    up = next((change for change in changes if change.ratio > 1), None)
    return (up.index, changes[-1].after / up.before) if up is not None and changes[-1].after >= SLOWER * up.before else None


def _computing(case: Tables, by_place: Mapping[Place, Sequence[_Group]], members: Mapping[str, frozenset[int]]) -> list[Finding]:
    """Groups a member of which owns more time between its calls than any member of their siblings usually does: told beside."""
    own = case.derive(call_times).own
    usual = dict(own.group_by("rank").agg(pl.col("own_s").median()).iter_rows())
    found = []
    for place, groups in by_place.items():
        most = {
            group.name: max((usual[rank], rank) for rank in members[group.name])
            for group in groups
            if members.get(group.name) and all(rank in usual for rank in members[group.name])
        }
        if len(most) <= MIN_SIBLINGS:
            continue
        middle = median(value for value, _ in most.values())
        slow = [name for name, (value, _) in sorted(most.items()) if value >= SLOWER * middle]
        if not slow or len(slow) > max(1, MANY * len(most)):
            continue
        value, rank = max(most[name] for name in slow)
        group = next(group for group in groups if group.name == slow[0])
        says = (
            f"{', '.join(slow)}: the calls of other {place.text} take as long, but rank {rank} owns {value / middle:.2f} times as much time between "
            "its calls as members of the others do: computation, not the network"
        )
        cites = cite_calls(case, group.name, group.table, [group.own[-1][0]])
        found.append(Finding("sibling_groups", "members_compute", says, groups=tuple(slow), scope=f"{place}", cites=cites))
    return found[:1]
