"""Which of many units (GPUs, hosts) is odd in its metrics, for long, and in what? Pure.

1. Values are means over a minute. In each minute a metric of a unit is put as its distance from the median of its peers, in robust widths: from
   the median absolute deviation, at least 3 % of the median.
2. A metric is odd on a unit when it is at least six widths away, on the same side, in four of five minutes, over four minutes or more: a spike
   is none. Minder's rule (NSDI'25, section 4: stays the candidate for 4 minutes), with medians in place of its autoencoder.
3. Only where there is one: the units' vectors of all metrics, by their main components (scikit-learn's PCA), are clustered (DBSCAN). The largest
   cluster is usual; who is in another is odd together with those that are odd in the same way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

__all__ = ["MIN_PEERS", "MIN_SPAN_S", "SCHEMA", "Deviation", "Odd", "odd_units"]

SCHEMA: Final = {
    "unit": pl.String,
    "metric": pl.String,
    "at_s": pl.Float64,
    "value": pl.Float64,
}  # at_s: s since any origin that units share
WINDOW_S: Final = 60.0
MIN_SPAN_S: Final = 240.0  # that it must stay odd; Minder's continuity
MIN_WINDOWS: Final = 4
STAYS: Final = 0.8  # of the windows
MIN_PEERS: Final = 4  # units that are compared, itself included
FAR: Final = 6.0  # robust widths; of normal noise one value in a thousand million lies so far
WIDTH_FLOOR: Final = 0.03  # of the median: quieter metrics would be trusted too much; six of these are 18 %
CLIP: Final = 30.0  # widths, beyond which further is no odder
VARIANCE: Final = 0.95  # of the vectors that the main components must keep
MAX_ODD: Final = 0.25  # of the peers: more are no exception


@dataclass(frozen=True)
class Deviation:
    """One metric of a cluster of odd units."""

    metric: str
    own: float  # median over time and units
    others: float  # of the peers
    widths: float  # signed


@dataclass(frozen=True)
class Odd:
    """Units that are odd alike, the metrics that say so (furthest first), and for how long."""

    units: tuple[str, ...]
    others: tuple[str, ...]  # that they were compared with and that are not odd
    deviations: tuple[Deviation, ...]
    span_s: float


def odd_units(rows: pl.DataFrame, peers: Mapping[str, Hashable] | None = None) -> list[Odd]:
    """The odd clusters. `rows` as SCHEMA; `peers`: unit -> which it is compared with (its stage), all with all where it is not told."""
    of = peers or {}
    by_peers: dict[Hashable, list[str]] = defaultdict(list)
    for unit in rows["unit"].unique().sort():
        by_peers[of.get(unit)].append(unit)
    binned = rows.filter(pl.col("value").is_finite()).with_columns((pl.col("at_s") // WINDOW_S).cast(pl.Int64).alias("window"))
    means = binned.group_by("metric", "unit", "window").agg(pl.col("value").mean()).sort("metric", "unit", "window")
    return [
        odd for _, units in sorted(by_peers.items(), key=lambda item: item[1]) if len(units) >= MIN_PEERS for odd in _among(means, units)
    ]


def _among(means: pl.DataFrame, units: Sequence[str]) -> list[Odd]:
    """The odd clusters of one set of peers."""
    import numpy as np

    found: list[tuple[str, Any, Any, Any, float]] = []  # metric, its values by unit and window, widths by unit, which are odd, span
    for (metric,), part in means.filter(pl.col("unit").is_in(list(units))).group_by(["metric"], maintain_order=True):
        values = _matrix(part, units)
        if np.sum(np.any(~np.isnan(values), axis=1)) < MIN_PEERS:
            continue
        typical, odd = _widths(values)
        span = (int(part["window"].max()) - int(part["window"].min()) + 1) * WINDOW_S  # type: ignore[arg-type]
        found.append((str(metric), values, typical, odd if span >= MIN_SPAN_S else np.zeros_like(odd), span))
    flagged = np.any([odd for *_, odd, _ in found], axis=0) if found else np.zeros(len(units), dtype=bool)
    if not flagged.any() or flagged.sum() > MAX_ODD * len(units):
        return []
    labels = _clusters(np.nan_to_num(np.stack([typical for _, _, typical, _, _ in found], axis=1)))
    usual = np.bincount(labels).argmax()
    clusters: dict[int, list[int]] = defaultdict(list)
    for at in np.flatnonzero(flagged & (labels != usual)).tolist():
        clusters[int(labels[at])].append(at)
    return [_odd(units, members, flagged, found) for members in clusters.values()]


def _matrix(part: pl.DataFrame, units: Sequence[str]) -> Matrix:
    """units x windows; NaN where there is no value."""
    import numpy as np

    place = {unit: at for at, unit in enumerate(units)}
    windows = part["window"].unique().sort()
    values = np.full((len(units), len(windows)), np.nan)
    values[[place[u] for u in part["unit"]], np.searchsorted(windows.to_numpy(), part["window"].to_numpy())] = part["value"].to_numpy()
    return values


def _widths(values: Matrix) -> tuple[Matrix, Any]:
    """Of each unit its usual distance from the peers in widths, and whether it stays far away."""
    import warnings

    import numpy as np

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a window, or a unit, without any value: its median is NaN
        middle = np.nanmedian(values, axis=0)
        spread = 1.4826 * np.nanmedian(np.abs(values - middle), axis=0)
        width = np.maximum(spread, WIDTH_FLOOR * np.abs(middle))
        away = np.clip(np.divide(values - middle, width, out=np.full_like(values, np.nan), where=width > 0), -CLIP, CLIP)
        typical = np.nanmedian(away, axis=1)
    known = np.sum(~np.isnan(away), axis=1)
    far = np.sum(away * np.sign(typical)[:, None] >= FAR, axis=1)  # NaN compares as false
    return typical, (np.abs(typical) >= FAR) & (known >= MIN_WINDOWS) & (far >= STAYS * known)


def _clusters(vectors: Matrix) -> Any:
    """Label of each unit."""
    from sklearn.cluster import DBSCAN
    from sklearn.decomposition import PCA

    points = PCA(n_components=VARIANCE, svd_solver="full").fit_transform(vectors) if vectors.shape[1] > 1 else vectors
    return DBSCAN(eps=FAR / 2, min_samples=1).fit(points).labels_


def _odd(units: Sequence[str], members: Sequence[int], flagged: Any, found: Sequence[tuple[str, Any, Any, Any, float]]) -> Odd:
    import numpy as np

    usual = ~flagged
    told = [
        Deviation(metric, float(np.nanmedian(values[members])), float(np.nanmedian(values[usual])), float(np.median(typical[members])))
        for metric, values, typical, odd, _ in found
        if odd[members].any()
    ]
    span = max(span for *_, odd, span in found if odd[members].any())
    told.sort(key=lambda d: (-abs(d.widths), d.metric))
    others = tuple(unit for unit, is_odd in zip(units, flagged, strict=True) if not is_odd)
    return Odd(tuple(units[at] for at in members), others, tuple(told), span)
