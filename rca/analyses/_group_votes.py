"""Rounds of stacks vote for a parallel group: each flags the one with the most ranks apart, the most flags win. Pure.

Source: ByteRobust (SOSP'25, arXiv 2509.16293, section 5): 5 rounds, 10 s apart. Voting within each kind of group, and the chance, are ours.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rca.analyses._group_cover import FULL, KINDS, Part

__all__ = ["ROUNDS", "Vote", "vote"]

ROUNDS: Final = 5  # from which a vote counts
MAX_SHARE: Final = 0.5  # of the job's ranks: a larger group is no candidate


@dataclass(frozen=True)
class Vote:
    """The group that won, and how."""

    part: Part
    flags: int  # rounds that flagged it
    rounds: int
    rivals: int  # groups of its kind
    chance: float  # at most: that some group of any kind gets so many flags where none is slow


def vote(rounds: Sequence[Collection[int]], of: Sequence[Part], num_ranks: int) -> Vote | None:
    """The group with the most flags; None where no kind has a single first. `rounds`: of each the ranks that stood apart.

    In each round, of each kind, the group with the most of them is flagged, if half of it stands apart (one rank always does something of its own);
    equals are not. Of kinds with equal winners the least likely by
    chance, then the smallest group.
    """
    kinds = _by_kind(of, num_ranks)
    found = []
    for kind, candidates in kinds.items():
        flags: Counter[Part] = Counter()
        for odd in rounds:
            if (first := _first(candidates, odd)) is not None:
                flags[first] += 1
        ranked = flags.most_common(2)
        if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]):
            part, count = ranked[0]
            chance = min(1.0, len(kinds) * len(candidates) * _tail(len(rounds), count, 1.0 / len(candidates)))
            found.append((-count, chance, len(part.ranks), KINDS.index(kind), Vote(part, count, len(rounds), len(candidates), chance)))
    return min(found, key=lambda item: item[:4])[4] if found else None


def _by_kind(of: Iterable[Part], num_ranks: int) -> dict[str, list[Part]]:
    """Candidates by kind: no group inside another of its kind, two at least, none larger than half of the job."""
    kinds: dict[str, list[Part]] = defaultdict(list)
    taken: dict[str, set[int]] = defaultdict(set)
    for part in sorted(of, key=lambda p: (-len(p.ranks), p.names)):
        if 1 < len(part.ranks) <= MAX_SHARE * num_ranks and not part.ranks <= taken[part.kind]:
            kinds[part.kind].append(part)
            taken[part.kind] |= part.ranks
    return {kind: parts for kind, parts in kinds.items() if len(parts) > 1}


def _first(candidates: Sequence[Part], odd: Collection[int]) -> Part | None:
    """The one that holds the most of them and is half full of them; None where none is, or two hold alike."""
    wanted = frozenset(odd)
    held = sorted(((len(wanted & part.ranks), at) for at, part in enumerate(candidates)), reverse=True)[:2]
    first = candidates[held[0][1]]
    return first if wanted and held[0][0] > held[1][0] and held[0][0] >= FULL * len(first.ranks) else None


def _tail(n: int, k: int, p: float) -> float:
    """P(at least k of n) where each has probability p."""
    return math.fsum(math.comb(n, i) * p**i * (1.0 - p) ** (n - i) for i in range(k, n + 1))
