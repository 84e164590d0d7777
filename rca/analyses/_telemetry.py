"""Which of many units (GPUs, hosts) is odd in its metrics, for long, and in what? Pure.

1. Values are means over a minute. In each minute a metric of a unit is put as its distance from the median of its peers, in robust widths: from
   the median absolute deviation, at least 3 % of the median.
2. A metric is odd on a unit when it is at least six widths away, on the same side, in four of five minutes, over four minutes or more: a spike
   is none. Minder's rule (NSDI'25, section 4: stays the candidate for 4 minutes), with medians in place of its autoencoder. It may have been like
   its peers before, and have parted from them during the look: what counts is the stretch up to its last value.
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

__all__ = ["MIN_PEERS", "MIN_SPAN_S", "SCHEMA", "Deviation", "Odd", "lasted", "odd_units"]

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
    since_s: float  # when it began, as `at_s`
    span_s: float
    is_whole: bool  # all the time that was looked at; else only the last of it


@dataclass(frozen=True)
class _Seen:
    """One metric of all units."""

    metric: str
    values: Matrix  # units x windows
    windows: Any  # number of each window
    starts: Any  # window, by its place, from which each unit stays far away; -1: it does not
    typical: Matrix  # usual distance of each unit from its peers in widths: of the far stretch, else of all


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


def lasted(odd: Odd) -> str:
    """For how long, in words: `12 minutes`; `the last 6 minutes` where it was like its peers before."""
    return f"{'' if odd.is_whole else 'the last '}{odd.span_s / 60:.0f} minutes"


def _among(means: pl.DataFrame, units: Sequence[str]) -> list[Odd]:
    """The odd clusters of one set of peers."""
    import numpy as np

    found: list[_Seen] = []
    for (metric,), part in means.filter(pl.col("unit").is_in(list(units))).group_by(["metric"], maintain_order=True):
        values, windows = _matrix(part, units)
        if np.sum(np.any(~np.isnan(values), axis=1)) >= MIN_PEERS:
            away = _away(values)
            found.append(_Seen(str(metric), values, windows, *_parted(away, windows)))
    flagged = np.any([seen.starts >= 0 for seen in found], axis=0) if found else np.zeros(len(units), dtype=bool)
    if not flagged.any() or flagged.sum() > MAX_ODD * len(units):
        return []
    labels = _clusters(np.nan_to_num(np.stack([seen.typical for seen in found], axis=1)))
    usual = np.bincount(labels).argmax()
    clusters: dict[int, list[int]] = defaultdict(list)
    for at in np.flatnonzero(flagged & (labels != usual)).tolist():
        clusters[int(labels[at])].append(at)
    return [_odd(units, members, flagged, found) for members in clusters.values()]


def _matrix(part: pl.DataFrame, units: Sequence[str]) -> tuple[Matrix, Any]:
    """units x windows, NaN where there is no value; and the windows' numbers."""
    import numpy as np

    place = {unit: at for at, unit in enumerate(units)}
    windows = part["window"].unique().sort().to_numpy()
    values = np.full((len(units), len(windows)), np.nan)
    values[[place[u] for u in part["unit"]], np.searchsorted(windows, part["window"].to_numpy())] = part["value"].to_numpy()
    return values, windows


def _away(values: Matrix) -> Matrix:
    """The distance of each value from the peers' in the same window, in widths."""
    import warnings

    import numpy as np

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a window without any value: its median is NaN
        middle = np.nanmedian(values, axis=0)
        spread = 1.4826 * np.nanmedian(np.abs(values - middle), axis=0)
    width = np.maximum(spread, WIDTH_FLOOR * np.abs(middle))
    away = np.divide(values - middle, width, out=np.full_like(values, np.nan), where=width > 0)
    return np.clip(away, -CLIP, CLIP)


def _parted(away: Matrix, windows: Any) -> tuple[Any, Matrix]:
    """Of each unit the window from which it stays far away up to its last value (-1: it does not), and its usual distance: since then, else ever."""
    import numpy as np

    starts = np.full(len(away), -1)
    typical = np.full(len(away), np.nan)
    for unit, row in enumerate(away):
        places = np.flatnonzero(~np.isnan(row))
        if not len(places):
            continue
        own = row[places]
        left = np.arange(len(own), 0, -1)  # values from each one to the last
        spans = (windows[places[-1]] - windows[places] + 1) * WINDOW_S
        typical[unit] = np.median(own)
        for is_far in (own >= FAR, own <= -FAR):
            stays = is_far & (np.cumsum(is_far[::-1])[::-1] >= STAYS * left) & (left >= MIN_WINDOWS) & (spans >= MIN_SPAN_S)
            if stays.any():
                first = int(np.argmax(stays))
                starts[unit], typical[unit] = places[first], np.median(own[first:])
    return starts, typical


def _clusters(vectors: Matrix) -> Any:
    """Label of each unit."""
    from sklearn.cluster import DBSCAN
    from sklearn.decomposition import PCA

    points = PCA(n_components=VARIANCE, svd_solver="full").fit_transform(vectors) if vectors.shape[1] > 1 else vectors
    return DBSCAN(eps=FAR / 2, min_samples=1).fit(points).labels_


def _odd(units: Sequence[str], members: Sequence[int], flagged: Any, found: Sequence[_Seen]) -> Odd:
    import numpy as np

    told: list[Deviation] = []
    stretches: list[tuple[int, int, bool]] = []  # number of the first window and of the last, and whether it is all that was looked at
    for seen in found:
        far = [at for at in members if seen.starts[at] >= 0]
        if not far:
            continue
        start = min(int(seen.starts[at]) for at in far)
        known = np.flatnonzero(np.any(~np.isnan(seen.values[far]), axis=0))
        since = seen.values[:, start:]
        own, others = float(np.nanmedian(since[members])), float(np.nanmedian(since[~flagged]))
        told.append(Deviation(seen.metric, own, others, float(np.median(seen.typical[members]))))
        is_whole = start - int(known[0]) <= (1 - STAYS) * len(known)
        stretches.append((int(seen.windows[start]), int(seen.windows[known[-1]]), is_whole))
    told.sort(key=lambda d: (-abs(d.widths), d.metric))
    first, last = min(first for first, *_ in stretches), max(last for _, last, _ in stretches)
    return Odd(
        units=tuple(units[at] for at in members),
        others=tuple(unit for unit, is_odd in zip(units, flagged, strict=True) if not is_odd),
        deviations=tuple(told),
        since_s=first * WINDOW_S,
        span_s=(last - first + 1) * WINDOW_S,
        is_whole=any(is_whole for *_, is_whole in stretches),
    )
