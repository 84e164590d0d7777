"""When kernel records happened: what all files of a host say of its boots, its zone and its years, put together.

1. The records of one host in one file are brought into the order of time: a file that falls all along is reversed.
2. A boot ends where another one is named, where a kernel starts, or where the time since boot falls. Records of different files are of one boot where
   both name it, or where the same message has the same time since boot.
3. Lines with an instant and a time since boot tell when that boot was; else what was noted of the host does, for the last boot in each file. Two
   files of which one lacks what the other tells of a time that it covers are of two boots: of what was noted then see `rca.kernel_notes`.
4. The zone is what brings stamps to instants of the same line (seconds since 1970 beside it, time since a boot that is dated), else of the same
   message in another file of the host, or of the launcher's word that a process was killed, by a multiple of a quarter of an hour; else what was
   noted of the host; else what its other files tell; else that of the job's own logs on the host, but of a record that another zone would move
   into the job, or out of it, only where with it the file ends as the job does. A clock put forward or back by an hour in the middle moves it.
5. A year is the one that brings a stamp nearest to a dated one of its file, else to the date in the name of a rotated file, else to the time of
   the job, else to the boot of the host; in a file in the order of time a year lies between months that fall.

What this does not place has no instant, and the order of its file. The date of a file is not asked: a copy loses it, and whatever tells the zone
has a date of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rca.kernel_notes import ended_boots, ends_at, ends_of, names_of, noted_of, whose_note
from rca.kernel_tracks import DRIFT, SAME_BOOT_S, Boots, Placed, Spot, Track, after, seams_of, tracks_of
from rca.kernel_years import date_stamps
from rca.local_time import whole_zone
from rca.types import Tables

__all__ = ["KernelTimes", "Placed", "kernel_times"]

SLACK_S: Final = 240.0  # two clocks of one line, or message, may be so far apart and still tell the zone: a time-out is told late
STARTING_S, LATE_START_S = 120.0, 60.0  # so long after its start a kernel may be without a logging daemon, and its lines so late
MAX_ZONE: Final = timedelta(hours=14)
AROUND: Final = timedelta(minutes=10)  # a record so near the job is of its time


Instants = tuple[datetime, datetime]
Key = tuple[str, str]
Twins = Mapping[
    tuple[Any, ...], tuple[datetime, float | None]
]  # (whose, message) -> its instant elsewhere, and the time since boot beside it
PID: Final = 4  # place of the process in a message's body


@dataclass(frozen=True)
class KernelTimes:
    """(evidence_id, record) -> when, and in which boot (equal numbers: the same boot); host -> its zone, s, where its kernel logs tell just one.

    `ended`: records without an instant of a boot that another one followed -> when that one began, None where nothing tells. `order`: places of
    the records of one file and host in the order of time, which a reversed file turns round. `hostless`: records of no told host: what is known
    of hosts was not asked for them.
    """

    placed: Mapping[Key, Placed]
    boots: Mapping[Key, int]
    zones: Mapping[str, float]
    order: Mapping[Key, int]
    hostless: frozenset[Key]
    ended: Mapping[Key, datetime | None]


def kernel_times(
    case: Tables,
    span: Instants | None,
    job_zones: Mapping[str, float],
    kills: Mapping[tuple[str, int], datetime],
    day: datetime | None = None,
) -> KernelTimes:
    """Places all rows of `kernel_events`. `span`: first and last instant of the job; `job_zones`: host -> zone, s, of its ranks' logs; `kills`:
    (host, process) -> when a log says that it was killed; `day`: the latest stamp of the job's logs, in whatever zone, which tells the year where
    they tell no instant."""
    tracks, boots = tracks_of(case)
    noted_boots, noted_zones = noted_of(case)
    names, ends = names_of(case), ends_of(case)
    of_others = whose_note(tracks, boots, noted_boots, names, ends, span)
    _date_boots(tracks, boots, noted_boots, frozenset(of_others))
    told = _told(tracks, {}, boots)
    _date_boots_by_twins(tracks, boots, told)
    killed = _told_kills(tracks, kills)
    told = {**killed, **told}
    for track in tracks:
        booted = noted_boots.get(track.host or "")
        about = span or ((day, day) if day is not None else (booted, booted) if booted is not None else None)
        known = {place: at for place, at, _ in _known(track, boots, told)}
        date_stamps(track, known, about, names.get(track.evidence_id, track.evidence_id))
        _vote(track, boots, told)
        track.seams = seams_of(track.spots)
    _drop_contradicted(tracks, boots)
    zones = _zones_of_hosts(tracks)
    by_wall: dict[int, Placed] = {}
    for track in tracks:
        guessed = _take_zone(track, noted_zones, zones, job_zones)
        ends_so = guessed and span is not None and ends_at(track, ends, span[1])
        for spot, zone in zip(track.spots, track.zones(), strict=True):
            found = _by_wall(spot, zone)
            if found is not None and not (guessed and _is_doubtful(found.at, span, ends_so=ends_so)):
                by_wall[id(spot)] = found
    _date_boots_by_wall(tracks, by_wall, boots)
    _date_boots_by_twins(tracks, boots, _told(tracks, by_wall, boots))
    _date_boots_by_twins(tracks, boots, killed)
    placed = {
        (track.evidence_id, spot.record): found
        for track in tracks
        for spot in track.spots
        if spot.record is not None and (found := _best(spot, by_wall.get(id(spot)), boots)) is not None
    }
    numbers = {(t.evidence_id, s.record): boots.find(s.boot) for t in tracks for s in t.spots if s.record is not None}
    hostless = {(t.evidence_id, s.record) for t in tracks for s in t.spots if t.host is None and s.record is not None}
    order = {(t.evidence_id, s.record): place for t in tracks for place, s in enumerate(t.spots) if s.record is not None}
    ended = {key: began for key, began in ended_boots(tracks, boots, of_others).items() if key not in placed}
    return KernelTimes(placed, numbers, zones | noted_zones, order, frozenset(hostless), ended)


def _date_boots(tracks: Sequence[Track], boots: Boots, noted: Mapping[str, datetime], of_others: frozenset[str]) -> None:
    """Pairs from lines with an instant and a time since boot; for a last boot without one what was noted of the host, else the latest boot that
    an epoch in a message allows: what it tells of happened before the line was written."""
    late: dict[int, list[datetime]] = defaultdict(list)
    for boot, spot in ((boots.find(spot.boot), spot) for track in tracks for spot in track.spots if spot.uptime_s is not None):
        if spot.at is not None:
            boots.pairs[boot].append((spot.uptime_s or 0.0, spot.at))
        elif spot.epoch is not None and (began := after(spot.epoch, -(spot.uptime_s or 0.0))) is not None:
            late[boot].append(began)
    lasts = [(track, boots.find(track.spots[-1].boot)) for track in tracks]
    early = {boot for track, last in lasts for spot in track.spots if (boot := boots.find(spot.boot)) != last}
    for track, last in lasts:
        is_open = last not in early and last not in boots.pairs and track.evidence_id not in of_others
        if track.host is not None and track.host in noted and is_open:
            boots.pairs[last] = [(0.0, noted[track.host])]
            boots.noted.add(last)
    for boot, moments in late.items():
        if boot not in boots.pairs:
            boots.pairs[boot] = [(0.0, max(moments))]
    for pairs in boots.pairs.values():
        pairs.sort()


def _date_boots_by_twins(tracks: Sequence[Track], boots: Boots, told: Twins) -> None:
    """For boots that nothing dated yet, from the instants that other files tell of the same messages, where all agree."""
    found: dict[int, list[datetime]] = defaultdict(list)
    for track in tracks:
        once = _once(track)
        for spot in track.spots:
            boot, at = boots.find(spot.boot), _twin(track, spot, told)
            if at is not None and spot.uptime_s is not None and spot.body in once and boot not in boots.pairs:
                began = after(at, -spot.uptime_s)
                found[boot] += [began] if began is not None else []
    for boot, moments in found.items():
        if moments and _apart_s(moments) <= SAME_BOOT_S:
            boots.pairs[boot] = [(0.0, min(moments))]


def _drop_contradicted(tracks: Sequence[Track], boots: Boots) -> None:
    """Takes away what was noted of a host's boot from a stretch whose own clock no zone brings to it: it is of another boot."""
    fits: dict[int, bool] = {}
    for track in tracks:
        for place, spot in enumerate(track.spots):
            if spot.uptime_s is not None and spot.local is not None:
                boot = boots.find(spot.boot)
                fits[boot] = fits.get(boot, False) or place in track.votes
    for boot in boots.noted & {boot for boot, fit in fits.items() if not fit}:
        del boots.pairs[boot]


def _told(tracks: Sequence[Track], by_wall: Mapping[int, Placed], boots: Boots) -> Twins:
    """Messages that files tell once with an instant, and all the same one. Only those that name a process: others come word for word again."""
    found: dict[tuple[Any, ...], list[tuple[datetime, float | None]]] = defaultdict(list)
    for track in tracks:
        once = _once(track) if track.host is not None else frozenset()
        for spot in track.spots:
            wall = by_wall.get(id(spot))
            at = spot.at or (wall.at if wall is not None else _by_boot(spot, boots))
            if spot.body in once and spot.body is not None and spot.body[PID] is not None and at is not None:
                found[track.whose, spot.body].append((at, spot.uptime_s))
    return {key: moments[0] for key, moments in found.items() if _apart_s(at for at, _ in moments) <= SAME_BOOT_S}


def _told_kills(tracks: Sequence[Track], kills: Mapping[tuple[str, int], datetime]) -> Twins:
    """When the launcher saw the end of the process that the kernel's message says it killed."""
    found: dict[tuple[Any, ...], tuple[datetime, float | None]] = {}
    for track in tracks:
        for spot in track.spots:
            if spot.body is not None and spot.body[0] == "oom" and (at := kills.get((track.host or "", spot.body[PID] or -1))) is not None:
                found[track.whose, spot.body] = at, None
    return found


def _twin(track: Track, spot: Spot, told: Twins) -> datetime | None:
    """The instant that is told of a message elsewhere; not where another time since boot stands beside it: then it is another message."""
    at, uptime = told.get((track.whose, spot.body), (None, None))
    return None if uptime is not None and spot.uptime_s is not None and abs(uptime - spot.uptime_s) > SAME_BOOT_S else at


def _apart_s(moments: Iterable[datetime]) -> float:
    listed = list(moments)
    return (max(listed) - min(listed)).total_seconds()


def _once(track: Track) -> frozenset[tuple[Any, ...]]:
    """Messages that a file holds once."""
    counts: dict[tuple[Any, ...], int] = defaultdict(int)
    for spot in track.spots:
        if spot.body is not None:
            counts[spot.body] += 1
    return frozenset(body for body, count in counts.items() if count == 1)


def _by_boot(spot: Spot, boots: Boots) -> datetime | None:
    found = boots.instant(spot.boot, spot.uptime_s) if spot.uptime_s is not None else None
    return found.at if found is not None else None


def _known(track: Track, boots: Boots, told: Twins) -> Iterator[tuple[int, datetime, float]]:
    """Places with a stamp without zone whose instant is told otherwise (in the same line, by its boot, by the same message elsewhere), and how far
    the two may be apart, s."""
    once = _once(track)
    for place, spot in enumerate(track.spots):
        if spot.text is None:
            continue
        by_boot = _by_boot(spot, boots)
        if spot.epoch is not None:
            yield place, spot.epoch, SLACK_S
        elif by_boot is not None:
            yield place, by_boot, min(SLACK_S, _lag(spot) + DRIFT * (spot.uptime_s or 0.0))
        elif spot.body in once and (at := _twin(track, spot, told)) is not None:
            yield place, at, SLACK_S


def _vote(track: Track, boots: Boots, told: Twins) -> None:
    """What the lines whose instant is told otherwise say of the zone."""
    for place, at, slack in _known(track, boots, told):
        local = track.spots[place].local
        zone = whole_zone((local - at.replace(tzinfo=None)).total_seconds(), slack) if local is not None else None
        if zone is not None:
            track.votes[place] = zone


def _zones_of_hosts(tracks: Sequence[Track]) -> dict[str, float]:
    """host -> zone, where all its files that tell one tell the same."""
    found: dict[str, set[float]] = defaultdict(set)
    for track in tracks:
        if track.host is not None:
            found[track.host].update(track.votes.values())
    return {host: next(iter(zones)) for host, zones in found.items() if len(zones) == 1}


def _take_zone(track: Track, noted: Mapping[str, float], told: Mapping[str, float], job: Mapping[str, float]) -> bool:
    """Gives a file that tells no zone that of its host, as of the file's end. True where it is that of the job's logs, which is a guess."""
    if track.votes or track.host is None:
        return False
    for zones, is_guess in ((noted, False), (told, False), (job, True)):
        if track.host in zones:
            track.votes[len(track.spots) - 1] = zones[track.host]
            return is_guess
    return False


def _is_doubtful(at: datetime, span: Instants | None, *, ends_so: bool) -> bool:
    """Whether a record lies outside the time of the job, but in another zone would lie inside; or inside, where the file does not end as the job
    does."""
    if span is None or span[0] - AROUND <= at <= span[1] + AROUND:
        return span is None or not ends_so
    return span[0] - MAX_ZONE <= at <= span[1] + MAX_ZONE


def _by_wall(spot: Spot, zone: float | None) -> Placed | None:
    """The instant of a line by its clock alone."""
    at = spot.at
    if at is None and spot.local is not None and zone is not None:
        at = after(spot.local.replace(tzinfo=UTC), -zone)
    return Placed(at, 1e-3 if at.microsecond else 1.0) if at is not None else None


def _date_boots_by_wall(tracks: Sequence[Track], by_wall: Mapping[int, Placed], boots: Boots) -> None:
    """For boots that nothing dated yet, or a note of the host alone (from which the kernel's clock drifts), from lines with a stamp and a time since
    boot."""
    told: dict[int, list[tuple[float, datetime]]] = defaultdict(list)
    for track in tracks:
        for spot in track.spots:
            boot, found = boots.find(spot.boot), by_wall.get(id(spot))
            is_open = boot not in boots.pairs or (boot in boots.noted and (spot.uptime_s or 0.0) >= STARTING_S)
            if spot.uptime_s is not None and found is not None and is_open:
                told[boot].append((spot.uptime_s, found.at))
    for boot, pairs in told.items():
        boots.pairs[boot] = [pair for group in _agreeing(sorted(pairs)) for pair in group]


def _agreeing(pairs: Sequence[tuple[float, datetime]]) -> Iterator[list[tuple[float, datetime]]]:
    """Pairs whose stamps, cut to whole seconds, fit one start of the kernel: with it they get the fraction of the second back."""
    group: list[tuple[float, datetime]] = []
    start = pairs[0][1]
    low = high = 0.0
    for uptime, at in pairs:
        began = (at - start).total_seconds() - uptime
        width = 1e-3 if at.microsecond else 1.0
        if group and max(low, began) <= min(high, began + width):
            low, high = max(low, began), min(high, began + width)
        else:
            if group:
                yield [(up, start + timedelta(seconds=low + up)) for up, _ in group]
            group, low, high = [], began, began + width
        group.append((uptime, at))
    yield [(up, start + timedelta(seconds=low + up)) for up, _ in group]


def _best(spot: Spot, by_wall: Placed | None, boots: Boots) -> Placed | None:
    """An instant as written; else by boot, which is finer than a second; but the clock where the two contradict each other (suspended, set)."""
    by_boot = boots.instant(spot.boot, spot.uptime_s) if spot.uptime_s is not None else None
    if spot.at is not None or by_boot is None or by_wall is None:
        return by_wall or by_boot
    apart, least = (by_wall.at - by_boot.at).total_seconds(), by_wall.error_s + by_boot.error_s
    return by_boot if -least - SAME_BOOT_S <= apart <= least + _lag(spot) else by_wall


def _lag(spot: Spot) -> float:
    """How late a line may get its stamp, s: what the kernel says before the logging daemon has started gets the time of that start."""
    return LATE_START_S if (spot.uptime_s or 0.0) < STARTING_S else SAME_BOOT_S
