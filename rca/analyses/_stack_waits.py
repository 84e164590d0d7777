"""Which ranks wait for others, by their stacks, and how that shows: the rule that a rank apart is an exception to."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rca.analyses._stack_scene import hidden_wait
from rca.analyses._stack_views import UNTOLD, WAITS_FOR_OTHERS, Loop, View, awaits, in_loop, seen, stands_still
from rca.errors import NotEnoughEvidence

__all__ = ["MIN_SAMPLES", "MIN_SEEN", "PAIR", "Waits", "waits_of", "waits_of_pair", "works"]

WAITING_SHARE: Final = 0.5  # of the ranks seen must wait for others, or there is no rule to be an exception to
MOST, NEARLY_ALL = 0.5, 0.75  # more than, or at least, this share in one place: a wait for others that no frame names
MIN_SEEN: Final = 3
PAIR: Final = 2  # ranks of the smallest job in which one can wait for another
MIN_SAMPLES: Final = 3  # that tell what goes on for longer: twice is an ordinary moment
INNER: Final = 4  # innermost frames that say what is waited for
# Calls that wait for a message of somebody, who may be another rank.
_MESSAGES: Final = re.compile(
    r"(?:ray|zmq|mpi4py|multiprocessing/(?:queues|connection|managers)|grpc|redis)\b|(?:socket|ssl|selectors|asyncio\S*):"
)
FROZEN_S: Final = 10.0  # from the first sample to the last: what a step in progress does not take in one place


@dataclass(frozen=True)
class Waits:
    """Ranks that wait for others, and how that shows."""

    ranks: tuple[int, ...]
    kind: str  # "call" they are inside of, "backward", "device", a "place" of their own code, or "spin" there
    stack_id: str | None = None  # of that place
    leaf: str | None = None  # its innermost frame
    is_pair: bool = False  # one of two ranks waits: which is the rule and which the exception their number does not tell

    @property
    def is_told(self) -> bool:
        """Whether their stacks name what they wait in."""
        return self.kind == "call"

    def may_hold(self, view: View, *, works: bool) -> bool:
        """Whether another rank may be in a wait of the same sort, only elsewhere or not all the time. `works`: it is seen to run code."""
        if self.kind in ("place", "spin") and self.leaf in view.frames:
            return True  # in the same wait, called from elsewhere, or a frame deeper
        if self.kind == "place":
            return view.stack_id == self.stack_id
        if self.kind == "spin":  # who waits for a lock, a queue of its own threads or a file does not spin for others
            if any(map(_MESSAGES.match, view.frames[:INNER])):
                return True
            return not works and (view.wait_kind in (UNTOLD, "cuda_sync") or view.wait_kind in WAITS_FOR_OTHERS)
        return self.kind in ("backward", "device") and hidden_wait(view) in ("backward", "device")


def waits_of(views: Mapping[int, Sequence[View]], last: Mapping[int, View], count: int) -> Waits:
    """Steps 2 and 3. Raises NotEnoughEvidence where no sort of wait is common enough."""
    inside = tuple(rank for rank, view in last.items() if view.wait_kind in WAITS_FOR_OTHERS)
    if len(inside) >= WAITING_SHARE * count:
        return Waits(inside, "call")
    places: dict[tuple[str, str | None, str], list[int]] = defaultdict(list)
    for rank, view in last.items():
        if stands_still(views[rank]) and (kind := hidden_wait(view)):
            places[kind, view.stack_id, view.lines].append(rank)
    (kind, stack_id, _), ranks = max(places.items(), key=lambda item: (len(item[1]), item[0]), default=(("", None, ""), []))
    together = len(ranks) + len(inside)  # who waits inside a call is no exception to those whose wait has no name
    needed = together >= NEARLY_ALL * count if kind == "place" else together > MOST * count
    if len(ranks) >= MIN_SEEN - 1 and needed:
        return Waits((*ranks, *inside), kind, stack_id, _leaf(last[ranks[0]]))
    spinning = Counter(views[rank][0].stack_id for rank, view in last.items() if _spins(views[rank]) and hidden_wait(view))
    stack_id, most = spinning.most_common(1)[0] if spinning else (None, 0)
    if most + len(inside) >= max(NEARLY_ALL * count, MIN_SEEN - 1):
        there = [rank for rank in last if _spins(views[rank]) and views[rank][0].stack_id == stack_id]
        return Waits((*there, *inside), "spin", stack_id, _leaf(last[there[0]]))
    raise NotEnoughEvidence(f"only {len(inside)} of {count} ranks wait for others: their stacks show no common hang")


def _leaf(view: View) -> str | None:
    return view.frames[0] if view.frames else None


def _spins(views: Sequence[View]) -> bool:
    """Whether three samples or more, over a while, show the thread at one line, on the processor or not, and never with the interpreter lock."""
    shown = seen(views)
    same = len({(v.stack_id, v.lines) for v in shown}) == 1 and all(v.owns_gil is False for v in shown)
    return len(shown) >= MIN_SAMPLES and same and _is_long(shown)


def works(views: Sequence[View], loop: Loop) -> bool:
    """Whether three samples or more, over a while, show the thread run code inside the loop: with the interpreter lock each time, or on the
    processor, with the lock now and then, and never twice at one line."""
    shown = seen(views)
    if len(shown) < MIN_SAMPLES or not _is_long(shown) or not all(in_loop(v, loop) for v in shown):
        return False
    if all(v.owns_gil for v in shown):
        return True
    moves = all((one.stack_id, one.lines) != (other.stack_id, other.lines) for one, other in pairwise(shown))
    return moves and any(v.owns_gil for v in shown) and all(v.is_active for v in shown)


def _is_long(shown: Sequence[View]) -> bool:
    moments = [v.at for v in shown if v.at is not None]
    return not moments or (max(moments) - min(moments)).total_seconds() >= FROZEN_S


def waits_of_pair(views: Mapping[int, Sequence[View]], last: Mapping[int, View]) -> Waits:
    """Of two ranks: the one that stands in a wait for the other, which may not be in such a wait itself."""
    waiting = tuple(rank for rank, view in last.items() if awaits(view) and all(awaits(v) for v in seen(views[rank])))
    rest = [view for rank, view in last.items() if rank not in waiting]
    if len(waiting) != 1 or len(seen(views[waiting[0]])) < PAIR or hidden_wait(rest[0]) in ("backward", "device"):
        raise NotEnoughEvidence("of the two ranks, not one waits for the other, as far as their stacks show")
    return Waits(waiting, "call" if last[waiting[0]].wait_kind in WAITS_FOR_OTHERS else "backward", is_pair=True)
