"""Which stacks are one pattern: same canonical frames, near-duplicates joined where there are many (scikit-learn, on distinct patterns only)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from rca.analyses._stack_views import View

__all__ = ["patterns"]

CLUSTER_FROM = 16  # distinct patterns; below, exact groups are as readable and need no scikit-learn
CLUSTER_UP_TO = 1000  # distinct patterns that are compared in pairs; more are no hang but a job on the move
NEAR = 0.2  # distance under which two patterns are one: they differ in a frame or two away from the leaf
LEAF_WEIGHT = 0.8  # each frame weighs this much of the one it called
Key = tuple[Hashable, tuple[str, ...]]


def patterns(last: Mapping[int, View], stages: Mapping[int, Hashable]) -> dict[int, int]:
    """rank -> number of its pattern: same canonical stack in the same stage, near-duplicates joined."""
    keys: list[Key] = sorted({(stages.get(rank, -1), view.frames) for rank, view in last.items()}, key=lambda key: (str(key[0]), key[1]))
    number = dict(zip(keys, _joined(keys), strict=True))
    return {rank: number[stages.get(rank, -1), view.frames] for rank, view in last.items()}


def _joined(keys: Sequence[Key]) -> list[int]:
    """Cluster number of each distinct pattern; exact while there are few of them, and where there are too many to compare."""
    if not CLUSTER_FROM <= len(keys) <= CLUSTER_UP_TO:
        return list(range(len(keys)))
    import numpy as np
    from sklearn.cluster import DBSCAN

    weights = [{frame: LEAF_WEIGHT**depth for depth, frame in reversed(list(enumerate(frames)))} for _, frames in keys]
    distance = np.ones((len(keys), len(keys)))
    for one, (stage, _) in enumerate(keys):
        for two in range(one + 1):
            if keys[two][0] == stage:
                distance[one, two] = distance[two, one] = _distance(weights[one], weights[two])
    return [int(label) for label in DBSCAN(eps=NEAR, min_samples=1, metric="precomputed").fit(distance).labels_]


def _distance(one: Mapping[str, float], two: Mapping[str, float]) -> float:
    """Weighted Jaccard distance of two stacks."""
    both = sum(min(one[f], two[f]) for f in one.keys() & two.keys())
    either = sum(max(one.get(f, 0.0), two.get(f, 0.0)) for f in one.keys() | two.keys())
    return 1.0 - both / either if either else 0.0
