"""What each kernel log says of each host, in the order of time, and parted at boots: the tracks that `rca.kernel_times` dates.

A file that falls all along is reversed. A boot ends where another one is named, where a kernel starts, or where the time since boot falls; but not
where the clock falls with it (a file told twice). Stretches of different files are of one boot where both name it, or where the same message has
the same time since boot.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from rca.local_time import chained
from rca.types import Tables

__all__ = ["DRIFT", "SAME_BOOT_S", "Boots", "Placed", "Spot", "Track", "after", "sane", "seams_of", "tracks_of"]

FALL_S: Final = 1.0  # CPUs hand in their messages out of order by less
SAME_BOOT_S: Final = 5.0  # two lines whose clocks differ from their time since boot by the same, within this, are of one boot
DRIFT: Final = 1e-4  # the kernel's own clock is not corrected: it may lose so much of the time that it counts
HOUR_S: Final = 3600.0
LEAST_BACK_S: Final = 60.0  # lines of one host are not written later than the next one by more
NIGHT_H: Final = 4  # the hour of a Sunday before which summer time ends
SUNDAY: Final = 6
FIRST_AT, LAST_AT = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Placed:
    """The instant of a record (UTC) and how far off it may be against its host's clock, s."""

    at: datetime
    error_s: float


@dataclass(slots=True)
class Spot:
    """A line with a stamp: a record, or (record None) one that only tells of clocks."""

    place: tuple[int, ...]
    record: str | None
    at: datetime | None
    text: str | None
    uptime_s: float | None
    boot_id: str | None = None
    body: tuple[Any, ...] | None = None
    kind: str | None = None  # of a line that tells of clocks
    epoch: datetime | None = None  # told by the message, beside the line's own clock
    local: datetime | None = None
    boot: int = -1

    @property
    def wall(self) -> datetime | None:
        """Its clock as naive time, in whatever zone."""
        return self.at.replace(tzinfo=None) if self.at is not None else self.local


@dataclass
class Track:
    """What one file says of one host, in the order of time. `votes`: place in it -> zone, s."""

    evidence_id: str
    host: str | None
    spots: list[Spot]
    votes: dict[int, float] = field(default_factory=dict)
    seams: list[tuple[int, float]] = field(default_factory=list)

    @property
    def whose(self) -> str:
        """The host, or the file where it names none."""
        return f"host {self.host}" if self.host is not None else f"file {self.evidence_id}"

    def zones(self) -> list[float | None]:
        """The zone at each place, from the votes before and after it; None where there are none, or they contradict each other."""
        moved, by, seams = [], 0.0, dict(self.seams)
        for place in range(len(self.spots)):
            by += seams.get(place, 0.0)
            moved.append(by)
        before: list[float | None] = []
        vote = None
        for place in range(len(self.spots)):
            vote = self.votes[place] - moved[place] if place in self.votes else vote
            before.append(vote)
        found: list[float | None] = [None] * len(self.spots)
        vote = None
        for place in range(len(self.spots) - 1, -1, -1):
            vote = self.votes[place] - moved[place] if place in self.votes else vote
            told = {zone for zone in (before[place], vote) if zone is not None}
            found[place] = told.pop() + moved[place] if len(told) == 1 else None
        return found


class Boots:
    """Which stretches of files are of one boot, and when that boot was, as (time since boot, instant) pairs."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self.pairs: dict[int, list[tuple[float, datetime]]] = defaultdict(list)
        self.noted: set[int] = set()  # dated by what was noted of the host alone

    def new(self) -> int:
        self._parent.append(len(self._parent))
        return self._parent[-1]

    def find(self, boot: int) -> int:
        while self._parent[boot] != boot:
            self._parent[boot] = self._parent[self._parent[boot]]
            boot = self._parent[boot]
        return boot

    def join(self, one: int, two: int) -> None:
        low, high = sorted((self.find(one), self.find(two)))
        self._parent[high] = low

    def instant(self, boot: int, uptime_s: float) -> Placed | None:
        """When it was, by the pair with the nearest time since boot."""
        pairs = self.pairs.get(self.find(boot))
        if not pairs:
            return None
        place = bisect_left(pairs, uptime_s, key=lambda pair: pair[0])
        nearest, at = min(pairs[max(0, place - 1) : place + 1], key=lambda pair: abs(pair[0] - uptime_s))
        later = after(at, uptime_s - nearest)
        return Placed(later, 1.0 + DRIFT * abs(uptime_s - nearest)) if later is not None else None


def tracks_of(case: Tables) -> tuple[list[Track], Boots]:
    """All rows of `kernel_events` and `clock_anchors`, by file and host, and the boots that they are of."""
    tracks, boots = _read(case), Boots()
    for track in tracks:
        _order(track.spots)
        _split(track.spots, boots)
    _join(tracks, boots)
    return tracks, boots


def _read(case: Tables) -> list[Track]:
    """The records, and what the same files tell of clocks, by file and host and place."""
    spots: dict[tuple[str, str | None], list[Spot]] = defaultdict(list)
    said = ["kind", "code", "gpu", "device", "pid", "link", "message"]
    rows = case.table("kernel_events").select("evidence_id", "host", "record", "logged_at", "logged_at_local", "uptime_s", "boot_id", *said)
    for id_, host, record, at, text, uptime, boot, *body in rows.collect().iter_rows():
        spots[id_, host].append(Spot(_place(record), record, sane(at), text, uptime, boot, tuple(body)))
    anchors = case.table("clock_anchors").select("evidence_id", "host", "record", "told_at", "told_at_local", "uptime_s", "boot_id", "kind")
    for id_, host, record, at, text, uptime, boot, kind in anchors.collect().iter_rows():
        own, epoch = (None, sane(at)) if kind == "epoch" else (sane(at), None)
        spot = Spot(_place(record), None, own, text, uptime, boot, None, kind, epoch)
        is_of_file = kind == "month" or (host is None and kind == "boot")  # the months of a file; a separator between entries
        of_file = [key for key in spots if key[0] == id_] if is_of_file else []
        for key in of_file or [(id_, host)]:
            spots[key].append(replace(spot))
    return [
        Track(id_, host, sorted(found, key=lambda spot: (spot.place, spot.record or "")))
        for (id_, host), found in sorted(spots.items(), key=lambda item: (item[0][0], item[0][1] or ""))
    ]


def _order(spots: list[Spot]) -> None:
    """Turns a list round that falls more often than it rises; by clocks, as times since boot also fall with a new boot."""
    _preliminary(spots)
    signs = [sign for one, two in pairwise(spot for spot in spots if spot.wall is not None) if (sign := _rises(one, two))]
    falls, rises = signs.count(-1), signs.count(1)
    if not signs:
        ups = [spot.uptime_s for spot in spots if spot.uptime_s is not None]
        falls, rises = sum(b < a for a, b in pairwise(ups)), sum(b > a for a, b in pairwise(ups))
        falls = falls if falls > 2 and not rises else 0
    if falls > rises:
        spots.reverse()


def _preliminary(spots: Sequence[Spot]) -> None:
    """Stamps without year in some leap year, only to compare them."""
    texts = [spot.text for spot in spots]
    first = next((place for place, text in enumerate(texts) if text is not None), None)
    near = {first: datetime(2000, 7, 1)} if first is not None else {}
    for spot, local in zip(spots, chained(texts, near), strict=True):
        spot.local = local


def _rises(one: Spot, two: Spot) -> int:
    """1, -1 by the clocks of two lines; where the time since boot rises a fall of the clock is a clock put back, and no turned file."""
    if one.wall is None or two.wall is None or one.wall == two.wall:
        return 0
    if two.wall > one.wall:
        return 1
    has_uptime = one.uptime_s is not None and two.uptime_s is not None
    return 1 if has_uptime and (two.uptime_s or 0) > (one.uptime_s or 0) else -1


def _split(spots: Sequence[Spot], boots: Boots) -> None:
    """Numbers the boots along a file."""
    boot = boots.new()
    highest: Spot | None = None  # of the times since this boot
    boot_id: str | None = None
    is_empty = True
    for spot in spots:
        is_new = spot.kind == "boot" and not is_empty
        is_new |= spot.boot_id is not None and boot_id is not None and spot.boot_id != boot_id
        if highest is not None and spot.uptime_s is not None and spot.uptime_s < (highest.uptime_s or 0) - FALL_S:
            is_new |= not _is_late(highest, spot)
        if is_new:
            boot, highest, boot_id = boots.new(), None, None
        spot.boot = boot
        boot_id, is_empty = spot.boot_id or boot_id, False
        if spot.uptime_s is not None and (highest is None or spot.uptime_s > (highest.uptime_s or 0)):
            highest = spot


def _is_late(last: Spot, spot: Spot) -> bool:
    """Whether a line with a smaller time since boot is of the same boot: its clock lies behind by as much (a file told twice)."""
    if last.wall is None or spot.wall is None or (last.at is None) != (spot.at is None):
        return False
    apart = (last.wall - spot.wall).total_seconds() - ((last.uptime_s or 0) - (spot.uptime_s or 0))
    return abs(apart) <= SAME_BOOT_S


def _join(tracks: Sequence[Track], boots: Boots) -> None:
    """One boot for what names the same, and for what holds the same message at the same time since boot."""
    names: dict[int, set[str]] = defaultdict(set)
    for track in tracks:
        for spot in track.spots:
            if spot.boot_id is not None:
                names[spot.boot].add(spot.boot_id)
    seen: dict[tuple[Any, ...], int] = {}
    for track in tracks:
        for spot in track.spots:
            keys: list[tuple[Any, ...]] = [(track.whose, spot.boot_id)] if spot.boot_id is not None else []
            if spot.body is not None and spot.uptime_s is not None and spot.uptime_s > FALL_S:
                keys.append((track.whose, spot.body, round(spot.uptime_s, 3)))
            for key in keys:
                other = seen.setdefault(key, spot.boot)
                one, two = boots.find(other), boots.find(spot.boot)
                if one != two and not (names[one] and names[two] and names[one] != names[two]):
                    boots.join(one, two)
                    names[boots.find(one)] = names[one] | names[two]


def seams_of(spots: Sequence[Spot]) -> list[tuple[int, float]]:
    """Where the clock was put forward or back by an hour, and by what."""
    found = []
    last: Spot | None = None
    was_set = False  # by hand or by a time server: no summer time
    for place, spot in enumerate(spots):
        was_set |= spot.kind == "set"
        if spot.local is None:
            continue
        if last is not None and (by := _moved_by(last, spot)) and not was_set:
            found.append((place, by))
        last, was_set = spot, False
    return found


def _moved_by(one: Spot, two: Spot) -> float:
    """3600, -3600 or 0, s: by the time since boot of both lines; without one only a step back in the night of a Sunday shows."""
    if one.local is None or two.local is None or one.boot != two.boot:
        return 0.0
    apart = (two.local - one.local).total_seconds()
    if one.uptime_s is not None and two.uptime_s is not None:
        extra = apart - (two.uptime_s - one.uptime_s)
        return HOUR_S if abs(extra - HOUR_S) <= SAME_BOOT_S else -HOUR_S if abs(extra + HOUR_S) <= SAME_BOOT_S else 0.0
    is_night = two.local.weekday() == SUNDAY and two.local.hour < NIGHT_H and one.local.hour < NIGHT_H
    return -HOUR_S if is_night and -HOUR_S <= apart < -LEAST_BACK_S else 0.0


def _place(record: str | None) -> tuple[int, ...]:
    """Order of a record in its file: the numbers in `L12` or `M3/L12`."""
    return tuple(int(digits) for part in (record or "").split("/") if (digits := "".join(c for c in part if c.isdigit())))


def sane(at: datetime | None) -> datetime | None:
    return at if at is not None and FIRST_AT <= at < LAST_AT else None


def after(at: datetime, seconds: float) -> datetime | None:
    try:
        return sane(at + timedelta(seconds=seconds))
    except (OverflowError, ValueError):  # beyond the year 9999; not a number
        return None
