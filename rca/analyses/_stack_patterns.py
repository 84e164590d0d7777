"""Which stacks are one pattern: same canonical frames, near-duplicates joined where there are many (scikit-learn, on distinct patterns only)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from rca.analyses._stack_views import View

__all__ = ["patterns"]

CLUSTER_FROM = 16  # distinct patterns; below, exact groups are as readable and need no scikit-learn
CLUSTER_UP_TO = 1000  # distinct patterns that are compared in pairs; more are no hang but a job on the move
NEAR = 0.2  # distance under which two patterns are one: they differ in a frame or two away from the leaf
LEAF_WEIGHT = 0.8  # each frame weighs this much of the one it called


def patterns(last: Mapping[int, View], stages: Mapping[int, Hashable] | None = None) -> dict[int, int]:
    """rank -> number of its pattern: same canonical stack (in the same stage, where stages are given), near-duplicates joined."""
    distinct = sorted({view.frames for view in last.values()})
    joined = dict(zip(distinct, _joined(distinct), strict=True))
    keys = {rank: (str((stages or {}).get(rank, "")), joined[view.frames]) for rank, view in last.items()}
    number = {key: at for at, key in enumerate(sorted(set(keys.values())))}
    return {rank: number[key] for rank, key in keys.items()}


def _joined(stacks: Sequence[tuple[str, ...]]) -> list[int]:
    """Cluster number of each distinct stack; exact while there are few of them, and where there are too many to compare."""
    if not CLUSTER_FROM <= len(stacks) <= CLUSTER_UP_TO:
        return list(range(len(stacks)))
    import numpy as np
    from sklearn.cluster import DBSCAN

    weights = [{frame: LEAF_WEIGHT**depth for depth, frame in reversed(list(enumerate(frames)))} for frames in stacks]
    distance = np.zeros((len(stacks), len(stacks)))
    for one in range(len(stacks)):
        for two in range(one):
            distance[one, two] = distance[two, one] = _distance(weights[one], weights[two])
    return [int(label) for label in DBSCAN(eps=NEAR, min_samples=1, metric="precomputed").fit(distance).labels_]


def _distance(one: Mapping[str, float], two: Mapping[str, float]) -> float:
    """Weighted Jaccard distance of two stacks."""
    both = sum(min(one[f], two[f]) for f in one.keys() & two.keys())
    either = sum(max(one.get(f, 0.0), two.get(f, 0.0)) for f in one.keys() | two.keys())
    return 1.0 - both / either if either else 0.0
