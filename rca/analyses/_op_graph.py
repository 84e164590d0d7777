"""What waits for what among the operations of a pipeline: the same for every replica and step. After what-if analysis (OSDI'25, 2505.05713).

1. Computation of a stage runs in its order. Sends and receives of one direction run in their order.
2. The n-th receive goes before the n-th computation that needs one, and after the computation of its kind before that; the n-th send follows its
   computation. The first backward transfer waits for the last computation but one before the first backward. Where no transfer is traced, a
   computation waits for that of the same micro-batch on the stage before it (backward: behind it).
3. What else begins before all computation holds it up. What begins beside it follows the computation that had ended by then. What begins after it
   runs in its order behind it and behind all that began beside it.
4. A call begins when all its members have arrived: a send and its receive; gradients of embeddings on all stages that have them; clipping of
   gradients on all stages and replicas; other collectives on all replicas. Those inside a tensor group stand alone: one of its ranks is traced.

Interleaved pipelines: the n-th forward of a micro-batch on a stage is of its n-th chunk of the model, backward in reverse.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rca.analyses._op_trace import BACKWARD, FORWARD, Traced
from rca.errors import NotEnoughEvidence

__all__ = ["OpGraph", "graph", "is_compute"]

TOUCHING_S: Final = 1e-3  # that an operation may seem to begin before the end of what it waits for
_SEND, _RECEIVE = re.compile(r"send"), re.compile(r"recv|receive")
_EMBEDDING, _EVERYBODY = re.compile(r"embed"), re.compile(r"clip|grad_?norm")
_OWN: Final = re.compile(r"layer_?norm|tensor|(?<![a-z])tp(?![a-z])")
_GATHER: Final = re.compile(r"gather")
Edge = tuple[int, int]


@dataclass(frozen=True)
class OpGraph:
    """Nodes in an order in which they can run: calls, whose members begin together, and single operations. By places in `Traced.ops`."""

    nodes: list[tuple[int, ...]]
    waits_for: list[tuple[int, ...]]  # of each op
    over_replicas: list[bool]  # of each node: whether all replicas take part
    is_call: list[bool]  # of each op: whether it waits for others


def is_compute(name: str) -> bool:
    """Whether its usual time is a mean: whatever is no communication and no clipping of gradients (which waits for all)."""
    plain = name.lower().replace("-", "_")
    moved = re.search(r"send|recv|receive|gather|reduce|all_to_all|broadcast|barrier", plain)
    return not moved and not _EVERYBODY.search(plain)


def graph(of: Traced) -> OpGraph:
    """The graph of these operations. Raises NotEnoughEvidence where sends and receives do not fit the computation, or waits close a ring."""
    begin = of.began[:, 0, 0].tolist()
    if any(at != at for at in begin):  # not told: in the order of the file
        begin = [float(n) for n in range(len(of.ops))]
    end = [at + took for at, took in zip(begin, of.took[:, 0, 0].tolist(), strict=True)]
    edges: list[Edge] = []
    links: dict[tuple[str, int, int], list[int]] = defaultdict(list)  # direction, stage that sends, number
    last = len(of.stages) - 1
    by_stage: list[list[int]] = []
    for at, stage in enumerate(of.stages):
        own = sorted((i for i, op in enumerate(of.ops) if op.stage == stage), key=lambda i: (begin[i], of.ops[i].number, of.ops[i].name))
        compute = [i for i in own if of.ops[i].kind == "compute"]
        if not compute:
            raise NotEnoughEvidence(f"no computation of pipeline stage {stage} among its operations")
        by_stage.append(compute)
        edges += pairwise(compute)
        edges += _around(own, compute, begin, end, of)
        for way, pattern in (("forward", FORWARD), ("backward", BACKWARD)):
            work = [i for i in compute if pattern.search(_plain(of, i))]
            chunk = _chunks(work, of.batches, backward=way == "backward")
            top = max(chunk.values(), default=0)
            for sends in (False, True):
                moves = [
                    i
                    for i in own
                    if of.ops[i].kind == "p2p" and pattern.search(_plain(of, i)) and (_SEND if sends else _RECEIVE).search(_plain(of, i))
                ]
                if not moves:
                    continue
                edge = (0, 0) if (way == "forward") != sends else (last, top)  # the ends of the model neither send on nor receive
                needs = [i for i in work if (at, chunk[i]) != edge]
                if len(moves) != len(needs):
                    name = of.ops[moves[0]].name
                    why = f"{len(moves)} {name} a step on pipeline stage {stage}, and {len(needs)} computations that need one"
                    raise NotEnoughEvidence(f"{why}: which belongs to which cannot be told")
                edges += _moved(moves, needs, work, sends=sends)
                sender = at if sends else (at - 1 if way == "forward" else at + 1) % (last + 1)
                for number, move in enumerate(moves):
                    links[way, sender, number].append(move)
                if way == "backward" and (held := _before_backward(compute, of)) is not None:
                    edges.append((held, moves[0]))
    if not links:
        edges += _by_batch(by_stage, of)
    calls, over = _calls(of)
    calls += [tuple(pair) for pair in links.values()]
    return _ordered(of, edges, calls, over)


def _plain(of: Traced, i: int) -> str:
    return of.ops[i].name.lower().replace("-", "_")


def _moved(moves: Sequence[int], needs: Sequence[int], work: Sequence[int], *, sends: bool) -> Iterator[Edge]:
    """Transfers in their order, each behind or before its computation; a receive also behind the computation before that."""
    yield from pairwise(moves)
    earlier = dict(pairwise(work))
    before = {other: one for one, other in earlier.items()}
    for move, need in zip(moves, needs, strict=True):
        yield (need, move) if sends else (move, need)
        if not sends and need in before:
            yield before[need], move


def _before_backward(compute: Sequence[int], of: Traced) -> int | None:
    """The last computation but one before the first backward."""
    first = next((n for n, i in enumerate(compute) if BACKWARD.search(_plain(of, i))), 0)
    return compute[first - 2] if first >= 2 else None


def _chunks(work: Sequence[int], batches: Sequence[int], *, backward: bool) -> dict[int, int]:
    """op -> the chunk of the model that it computes: how often its micro-batch was on the stage before, backward counted from the last."""
    seen: Counter[int] = Counter()
    chunk = {}
    for i in work:
        chunk[i] = seen[batches[i]] if batches[i] >= 0 else 0
        seen[batches[i]] += 1
    most = max(chunk.values(), default=0)
    return {i: most - n for i, n in chunk.items()} if backward else chunk


def _around(own: Sequence[int], compute: Sequence[int], begin: Sequence[float], end: Sequence[float], of: Traced) -> Iterator[Edge]:
    """Collectives, the optimizer and whatever else is neither computation nor a transfer, by when they begin."""
    rest = [i for i in own if of.ops[i].kind not in ("compute", "p2p")]
    ends, begins = [end[i] for i in compute], [begin[i] for i in compute]
    ahead = [i for i in rest if begin[i] < begins[0]]
    behind = [i for i in rest if begin[i] >= ends[-1] - TOUCHING_S and i not in ahead]
    beside = [i for i in rest if i not in ahead and i not in behind]
    yield from pairwise([*ahead, compute[0]])
    yield from pairwise([compute[-1], *behind])
    for one, other in pairwise(beside):
        if of.ops[one].name == of.ops[other].name:
            yield one, other
    for i in beside:
        done = bisect_right(ends, begin[i] + TOUCHING_S)
        if done:
            yield compute[done - 1], i
        following = bisect_right(begins, end[i] - TOUCHING_S)
        if _GATHER.search(_plain(of, i)) and following < len(compute):  # parameters that the next computation needs
            yield i, compute[following]
        if behind:
            yield i, behind[0]


def _by_batch(by_stage: Sequence[Sequence[int]], of: Traced) -> Iterator[Edge]:
    """Computation behind that of the same micro-batch on the stage before it; backward on the stage behind it."""
    for one, other in pairwise(by_stage):
        for pattern, turned in ((FORWARD, False), (BACKWARD, True)):
            first, then = ([i for i in ops if pattern.search(_plain(of, i))] for ops in ((other, one) if turned else (one, other)))
            number: Mapping[int, int] = {of.batches[i]: i for i in first}
            if len(number) != len(first) or len(first) != len(then):
                raise NotEnoughEvidence("no sends and receives are traced, and the micro-batches do not tell what waits for what")
            yield from ((number[of.batches[i]], i) for i in then if of.batches[i] in number)


def _calls(of: Traced) -> tuple[list[tuple[int, ...]], set[int]]:
    """Collectives as groups of operations, and the operations of those that go over all replicas."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    over: set[int] = set()
    for i, op in enumerate(of.ops):
        plain = _plain(of, i)
        if _EVERYBODY.search(plain):
            groups[op.name, op.number].append(i)
            over.add(i)
        elif op.kind == "collective" and not _OWN.search(plain):
            if _EMBEDDING.search(plain):
                groups[op.name, op.number].append(i)
            else:
                groups[op.name, op.number, op.stage].append(i)
                over.add(i)
    return [tuple(members) for members in groups.values()], over


def _ordered(of: Traced, edges: Sequence[Edge], calls: Sequence[tuple[int, ...]], over: set[int]) -> OpGraph:
    grouped = {i for call in calls for i in call}
    nodes = [*calls, *((i,) for i in range(len(of.ops)) if i not in grouped)]
    node_of = {i: number for number, members in enumerate(nodes) for i in members}
    waits: list[set[int]] = [set() for _ in of.ops]
    for one, other in edges:
        waits[other].add(one)
    before = [{node_of[j] for i in members for j in waits[i]} for members in nodes]
    after: list[list[int]] = [[] for _ in nodes]
    for number, needed in enumerate(before):
        for other in needed:
            after[other].append(number)
    open_ = [len(needed) for needed in before]
    ready = deque(number for number, count in enumerate(open_) if not count)
    order: list[int] = []
    while ready:
        order.append(number := ready.popleft())
        for other in after[number]:
            open_[other] -= 1
            if not open_[other]:
                ready.append(other)
    if len(order) < len(nodes):
        raise NotEnoughEvidence("the operations wait for each other in a ring: their order, or which call is whose, is not as traced")
    return OpGraph(
        [nodes[number] for number in order],
        [tuple(sorted(found)) for found in waits],
        [nodes[number][0] in over for number in order],
        [i in grouped for i in range(len(of.ops))],
    )
