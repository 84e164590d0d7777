"""How long would a step take, if some operations took their usual time? A replay of traced operations (OSDI'25, 2505.05713).

1. A call's own time is what is left of it once its last member has begun: waiting is no work. Where clocks contradict that, the shortest member's.
2. The usual time of a kind of operation, over all replicas, stages and steps: the mean of computation, the median of communication.
3. A replay runs the graph without any delay between operations; a step ends with its last operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from rca.analyses._op_graph import OpGraph, graph, is_compute
from rca.analyses._op_trace import Traced

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Cube = NDArray[np.float64]
    Mask = NDArray[np.bool_]

__all__ = ["Replay"]

CLOCKS_S: Final = 0.01  # that a call may seem to end before its last member begins


@dataclass(frozen=True)
class Replay:
    """Operations, what waits for what, and replays of them. All times are means over the steps, s."""

    of: Traced

    @cached_property
    def graph(self) -> OpGraph:
        """What waits for what; NotEnoughEvidence where that cannot be told."""
        return graph(self.of)

    @cached_property
    def work(self) -> Cube:
        """What each operation took without waiting, s: ops x replicas x steps."""
        import numpy as np

        of, work = self.of, self.of.took.copy()
        for members, over in zip(self.graph.nodes, self.graph.over_replicas, strict=True):
            at = list(members)
            if not self.graph.is_call[at[0]] or (len(at) == 1 and not over):
                continue
            axes = (0, 1) if over else (0,)
            began, took = of.began[at], of.took[at]
            left = began + took - began.max(axis=axes, keepdims=True)
            shortest = np.broadcast_to(took.min(axis=axes, keepdims=True), took.shape)
            wrong = np.isnan(left) | (left.min(axis=axes, keepdims=True) < -CLOCKS_S)
            work[at] = np.where(wrong, shortest, np.maximum(left, 0.0))
        return work

    @cached_property
    def ideal(self) -> Cube:
        """The usual time of each operation's kind, s; the same shape as `work`."""
        import numpy as np

        usual = np.empty_like(self.work)
        for at in self.kinds.values():
            values = self.work[at]
            usual[at] = values.mean() if is_compute(self.of.ops[at[0]].name) else np.median(values)
        return usual

    @cached_property
    def kinds(self) -> dict[str, list[int]]:
        """Operations by their name."""
        found: dict[str, list[int]] = {}
        for i, op in enumerate(self.of.ops):
            found.setdefault(op.name, []).append(i)
        return dict(sorted(found.items()))

    @cached_property
    def compute(self) -> list[int]:
        """Operations that are forward or backward computation."""
        return [i for i, op in enumerate(self.of.ops) if op.kind == "compute"]

    def step_s(self, work: Cube) -> float:
        """Mean time of a step whose operations take this long."""
        import numpy as np

        graph, nothing = self.graph, np.zeros(work.shape[1:])
        ends: list[Any] = [None] * len(work)
        for members, over in zip(graph.nodes, graph.over_replicas, strict=True):
            start = nothing
            for i in members:
                for other in graph.waits_for[i]:
                    start = np.maximum(start, ends[other])
            if over:
                start = start.max(axis=0, keepdims=True)
            for i in members:
                ends[i] = start + work[i]
        return float(np.maximum.reduce(ends).max(axis=0).mean())

    def slowdown(self, chosen: Mask) -> float:
        """How many times as long as ideal a step takes where only the chosen operations (ops x replicas) take what they took."""
        import numpy as np

        return self.step_s(np.where(chosen[:, :, None], self.work, self.ideal)) / self.ideal_s

    def removed(self, work: Cube) -> float:
        """The share of the whole loss that goes away where the operations take this long instead; 0 where nothing is lost."""
        lost = self.real_s - self.ideal_s
        return (self.real_s - self.step_s(work)) / lost if lost > 0 else 0.0

    def without(self, chosen: Mask) -> float:
        """The share of the whole loss that goes away where the chosen operations (ops x replicas) take their usual time."""
        import numpy as np

        return self.removed(np.where(chosen[:, :, None], self.ideal, self.work))

    @cached_property
    def real_s(self) -> float:
        """Mean time of a step with all operations as they were, s."""
        return self.step_s(self.work)

    @cached_property
    def ideal_s(self) -> float:
        """Mean time of a step with all operations as usual, s."""
        return self.step_s(self.ideal)
