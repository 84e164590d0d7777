"""The smallest parallel groups, or hosts, that a set of ranks fits into. By group maps and coordinates: no order of ranks is assumed.

1. Parts: every group of the job along one axis, also widened by the tensor-parallel peers of its members (a pipeline of machines is the union of
   the pipeline groups of their GPUs, a model-parallel group), and every host.
2. All on one host: the host. Else the smallest part that holds at least 80 % of the ranks and is half full of them.
3. Else up to three parts of one kind (two faults); the fewest ranks in all. Nothing that takes in more than half of the job is an answer.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from rca.analyses._layout import hosts
from rca.group_ids import group_id
from rca.types import Tables

__all__ = ["COVERED", "KINDS", "Cover", "Part", "cover", "numbers_of", "parts"]

COVERED: Final = 0.8  # of the ranks that a cover must hold
FULL: Final = 0.5  # of a part's own ranks that must stand apart, or it is not this part that they share
MAX_PARTS: Final = 3  # parts of a cover: more are no few faults
MAX_SHARE: Final = 0.5  # of the job's ranks that a cover may take in
KINDS: Final = ("host", "tp", "cp", "tp_cp", "ep", "expert_tp", "pp", "mp", "dp", "dp_cp", "tp_dp", "expert_dp")  # the first of equals
AXES: Final = ("tp", "cp", "ep", "pp", "dp")
WIDER: Final = {
    "pp": "mp",
    "cp": "tp_cp",
    "ep": "expert_tp",
    "dp": "tp_dp",
    "dp_cp": "tp_dp",
}  # kind of a group with its members' tensor peers
_TENSOR: Final = re.compile(r"(?<= of )tp [0-9]+, ")  # in a name made of coordinates: whoever is widened has all of them


@dataclass(frozen=True)
class Part:
    """A host, or a parallel group with those that come with it."""

    kind: str  # the axis along which it was found
    names: tuple[str, ...]  # of the host, or of the groups inside, sorted
    ranks: frozenset[int]
    is_widened: bool = False  # by tensor-parallel peers: no group of `kind`, which is smaller

    @property
    def own_kind(self) -> str:
        """What it is as a whole."""
        return WIDER.get(self.kind, self.kind) if self.is_widened else self.kind

    @property
    def name(self) -> str:
        """Of the host or group as a whole."""
        return group_id(self.own_kind, tuple(sorted(self.ranks))) if self.is_widened else self.names[0]

    @property
    def order(self) -> tuple[int, int, tuple[str, ...]]:
        """The smaller the better; of equals by kind, then by name."""
        return len(self.ranks), KINDS.index(self.kind), self.names


@dataclass(frozen=True)
class Cover:
    """Parts that hold the ranks."""

    parts: tuple[Part, ...]
    share: float  # of the ranks that they hold

    @property
    def ranks(self) -> frozenset[int]:
        """All ranks of the parts."""
        return frozenset().union(*(part.ranks for part in self.parts))


def parts(case: Tables) -> list[Part]:
    """Every host and group of the case; to be derived."""
    by_name = _groups(case)
    tensor = {rank: members for kind, members in by_name.values() if kind == "tp" for rank in members}
    named: dict[tuple[str, frozenset[int], bool], set[str]] = defaultdict(set)
    for name, (kind, members) in by_name.items():
        named[kind, members, False].add(name)
        wider = members.union(*(tensor.get(rank, frozenset()) for rank in members)) if kind != "tp" else members
        if wider != members:
            named[kind, wider, True].add(_TENSOR.sub("", name))
    found = [Part(kind, tuple(sorted(names)), members, is_widened) for (kind, members, is_widened), names in named.items()]
    on: dict[str, set[int]] = defaultdict(set)
    for rank, host in hosts(case).items():
        on[host].add(rank)
    return sorted([*found, *(Part("host", (host,), frozenset(ranks)) for host, ranks in on.items())], key=lambda part: part.order)


def _groups(case: Tables) -> dict[str, tuple[str, frozenset[int]]]:
    """name -> (kind, ranks) of groups with two members or more; of equal members the name that a source gives, else one made of coordinates."""
    kinds = case.table("groups").filter(pl.col("kind").is_in(KINDS)).select("group_id", "kind").unique("group_id", keep="first")
    rows = case.table("memberships").filter(pl.col("rank").is_not_null()).select("group_id", "rank").unique()
    told = rows.join(kinds, on="group_id", how="inner").group_by("group_id", "kind").agg(pl.col("rank")).sort("group_id").collect()
    found = {name: (kind, frozenset(ranks)) for name, kind, ranks in told.iter_rows() if len(ranks) > 1}
    listed = set(found.values())
    ranks = case.table("ranks").drop_nulls("rank").select("rank", *AXES).unique("rank", keep="first", maintain_order=True).collect()
    used = [axis for axis in AXES if ranks[axis].n_unique() > 1 and not ranks[axis].null_count()]
    rest = [axis for axis in used if axis != "ep"]
    if "ep" in used and ranks.n_unique(used) == ranks.n_unique(rest):  # the expert coordinate only cuts up another one: it makes no axis
        used = rest
    for axis in used:
        rest = [other for other in used if other != axis]
        for *at, members in ranks.group_by(rest or [pl.lit(0).alias("all")]).agg(pl.col("rank")).iter_rows():
            own = (axis, frozenset(members))
            if len(members) > 1 and own not in listed:
                found[f"{axis} of {', '.join(f'{o} {v}' for o, v in zip(rest, at, strict=False)) or 'all'}"] = own
    return found


def cover(odd: Collection[int], of: Sequence[Part], num_ranks: int) -> Cover | None:
    """The cover of these ranks in a job of `num_ranks`; None where they fit into nothing that is smaller than half of it."""
    wanted = frozenset(odd)
    room = MAX_SHARE * num_ranks
    told = [(len(wanted & part.ranks), part) for part in of if len(part.ranks) <= room]
    told = [(held, part) for held, part in told if held]
    alone = [part for held, part in told if part.kind == "host" and held == len(wanted)]
    single = [part for held, part in told if part.kind != "host" and held >= COVERED * len(wanted) and held >= FULL * len(part.ranks)]
    for fitting in (alone, single):
        if fitting:
            best = min(fitting, key=lambda part: part.order)
            return Cover((best,), len(wanted & best.ranks) / len(wanted))
    several = [c for kind in KINDS if (c := _greedy(wanted, [part for _, part in told if part.kind == kind]))]
    several = [c for c in several if len(c.ranks) <= room]
    return min(several, key=lambda c: (len(c.ranks), len(c.parts), KINDS.index(c.parts[0].kind)), default=None)


def _greedy(wanted: frozenset[int], of: Sequence[Part]) -> Cover | None:
    """The fewest parts of one kind that hold enough, the one that holds most first, the smaller of equals."""
    left = wanted
    chosen: list[Part] = []
    while of and len(chosen) < MAX_PARTS and len(left) > (1.0 - COVERED) * len(wanted):
        best = min(of, key=lambda part: (-len(left & part.ranks), part.order))
        if not left & best.ranks:
            break
        chosen.append(best)
        left -= best.ranks
    if len(left) > (1.0 - COVERED) * len(wanted) + 1e-9 or not chosen:
        return None
    whole = frozenset().union(*(part.ranks for part in chosen))
    if len(chosen) > 1 and chosen[0].kind != "host" and len(wanted & whole) < FULL * len(whole):
        return None
    return Cover(tuple(sorted(chosen, key=lambda part: part.order)), len(wanted & whole) / len(wanted))


def numbers_of(found: Cover, odd: Collection[int], suspects: Collection[int]) -> list[dict[str, Any]]:
    """What `rca.eviction` reads of a cover: a JSON object for each part."""
    return [
        {
            "group": part.name,
            "kind": part.own_kind,
            "ranks": sorted(part.ranks),
            "outliers": sorted(part.ranks & set(odd)),
            "suspects": sorted(part.ranks & set(suspects)),
        }
        for part in found.parts
    ]
