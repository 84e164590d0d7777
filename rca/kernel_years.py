"""The years, and days, of kernel stamps that lack them: by what tells the instant of a line, the name of a rotated file, or when the job ran."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from rca.kernel_tracks import Track
from rca.local_time import chained, filled

__all__ = ["date_stamps"]

_DATED: Final = re.compile(
    r"-(20[0-9][0-9])([0-9][0-9])([0-9][0-9])(?:\.[a-z0-9]{1,4})?$"
)  # logrotate's dateext: the day on which the file ended
YEARS_BACK: Final = 8  # of a stamp without year: so many are tried, for a 29 February

Instants = tuple[datetime, datetime]


def date_stamps(track: Track, known: Mapping[int, datetime], about: Instants | None, name: str) -> None:
    """Gives the stamps of a track their years (and days). `known`: places whose instant is told otherwise; `about`: near which the log ends, where
    nothing of its own tells; `name`: of its file."""
    texts = [spot.text for spot in track.spots]
    near = {place: at.replace(tzinfo=None) for place, at in known.items()}
    near |= {place: spot.at.replace(tzinfo=None) for place, spot in enumerate(track.spots) if spot.at is not None}
    if not near and (dated := _DATED.search(name)) and (last := _last(texts)) is not None:
        with suppress(ValueError):  # a number that is no day
            near = {last: datetime(int(dated[1]), int(dated[2]), int(dated[3]))}
    found = chained(texts, near, in_order=True)
    if all(local is None for local in found):
        found = _nearest(texts, about)
    for spot, local in zip(track.spots, found, strict=True):
        spot.local = local


def _nearest(texts: Sequence[str | None], span: Instants | None) -> list[datetime | None]:
    """Of all years for the last stamp the one that brings the file nearest to a span; of equally near ones the one whose end lies nearest to
    its end: a log is collected soon after a job."""
    last = _last(texts)
    if span is None or last is None:
        return [None] * len(texts)
    first_at, last_at = (at.replace(tzinfo=None) for at in span)
    best: tuple[tuple[timedelta, timedelta], list[datetime | None]] | None = None
    for years in range(1, -YEARS_BACK, -1):
        seed = filled(texts[last] or "", last_at + timedelta(days=365.25 * years))
        found = chained(texts, {last: seed}, in_order=True) if seed is not None else []
        moments = [local for local in found if local is not None]
        if not moments:
            continue
        apart = max(min(moments) - last_at, first_at - max(moments))
        gap = apart if apart > timedelta(days=1) else timedelta(0), abs(max(moments) - last_at)
        if best is None or gap < best[0]:
            best = gap, found
    return best[1] if best is not None else [None] * len(texts)


def _last(texts: Sequence[str | None]) -> int | None:
    return next((place for place in range(len(texts) - 1, -1, -1) if texts[place] is not None), None)
