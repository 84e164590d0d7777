"""Which step timings are of another launch of the same ranks, where launches of one job lie in one folder? Pure.

Files are parted into eras: stretches of time with an hour between them in which nothing was timed. Two eras that share ranks are of two launches
where steps go back, or where more steps are missing between them than either has on record and the time between is not what so many steps take.
A run that was resumed soon, or at one of the next steps, stays whole: it is compared with itself on purpose. So does one that was timed now and then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, Protocol

__all__ = ["Timed", "other_launches"]

Span = tuple[datetime, datetime]

APART: Final = timedelta(hours=1)  # without a timed step: a job that goes on saves, evaluates or restarts in less
MANY: Final = 0.5  # of the ranks of the smaller era that both must have: else they are two parts of one launch, each with a tail of its own
OTHER_PACE: Final = (
    1.5  # times as long, or as short, as a step of either: then the job did not make the missing steps in that time, one after the other
)


class Timed(Protocol):
    """What one file of timings says (rca.timing_sets.TimedFile)."""

    folder: str
    spans: dict[int, Span]
    steps: dict[int, tuple[int, int]]

    @property
    def span(self) -> Span | None: ...


@dataclass
class _Era:
    """Files timed with no hour between them."""

    begin: datetime
    end: datetime
    ids: list[str] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    low: int | None = None
    high: int | None = None

    def adds(self, id_: str, file: Timed, span: Span) -> None:
        self.ids.append(id_)
        self.end = max(self.end, span[1])
        for rank in file.spans.keys() & file.steps.keys():
            low, high = file.steps[rank]
            self.ranks.add(rank)
            self.low, self.high = min(low, low if self.low is None else self.low), max(high, high if self.high is None else self.high)

    @property
    def length(self) -> int:
        return self.high - self.low + 1 if self.low is not None and self.high is not None else 0

    @property
    def step_s(self) -> float:
        return (self.end - self.begin).total_seconds() / max(1, self.length)


def other_launches(files: Mapping[str, Timed], ties: Mapping[str, int], *, firm: int) -> dict[str, str]:
    """evidence_id -> why it is left out, of timings of other launches than the one that is judged: that which other evidence is of (`ties` of at
    least `firm`), else the last by time. Numbers without instants go with the timings whose steps they have."""
    eras = _eras(files)
    launches: list[list[_Era]] = [[era] for era in eras[:1]]
    for before, after in pairwise(eras):
        if _is_another(before, after):
            launches.append([])
        launches[-1].append(after)
    if len(launches) < 2:
        return {}
    firmly = [max(ties.get(id_, 0) for era in launch for id_ in era.ids) >= firm for launch in launches]
    judged = max(range(len(launches)), key=lambda place: (firmly[place], place))
    whys = {place: _why(launch, launches[judged]) for place, launch in enumerate(launches) if place != judged}
    found = {id_: why for place, why in whys.items() for era in launches[place] for id_ in era.ids}
    for id_, file in files.items():
        if file.span is None and file.steps:
            of = [place for place, launch in enumerate(launches) if _has_steps_of(file, launch)]
            if of and judged not in of:
                found[id_] = whys[of[-1]]
    return found


def _eras(files: Mapping[str, Timed]) -> list[_Era]:
    dated = sorted((span, id_) for id_, file in files.items() if (span := file.span) is not None and file.steps)
    eras: list[_Era] = []
    for span, id_ in dated:
        if not eras or span[0] > eras[-1].end + APART:
            eras.append(_Era(*span))
        eras[-1].adds(id_, files[id_], span)
    return eras


def _is_another(before: _Era, after: _Era) -> bool:
    """Whether the later one is of another launch than the one before it in time."""
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return False
    if len(before.ranks & after.ranks) < MANY * min(len(before.ranks), len(after.ranks)):
        return False
    if after.high < before.low:
        return True
    missing = after.low - before.high - 1
    if missing <= max(before.length, after.length):
        return False
    took = (after.begin - before.end).total_seconds() / missing
    return not min(before.step_s, after.step_s) / OTHER_PACE <= took <= max(before.step_s, after.step_s) * OTHER_PACE


def _why(launch: Sequence[_Era], judged: Sequence[_Era]) -> str:
    is_earlier = launch[0].begin < judged[0].begin
    of, to = [(era.low, era.high) for era in launch], [(era.low, era.high) for era in judged]
    when = (
        f"ended {launch[-1].end:%Y-%m-%d %H:%M:%S} UTC, before"
        if is_earlier
        else f"began {launch[0].begin:%Y-%m-%d %H:%M:%S} UTC, long after"
    )
    return (
        f"{'an earlier' if is_earlier else 'a later'} launch: its steps {of[0][0]} to {of[-1][1]} {when} steps {to[0][0]} to {to[-1][1]} of the "
        "same ranks, and what lies between is not on record"
    )


def _has_steps_of(file: Timed, launch: Sequence[_Era]) -> bool:
    return any(
        era.low is not None and era.high is not None and low <= era.high and era.low <= high
        for era in launch
        for rank, (low, high) in file.steps.items()
        if rank in era.ranks
    )
