"""What was noted of hosts (when they booted, their zone), to which of their kernel logs it applies, and how each of these logs ends."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from rca.kernel_tracks import SAME_BOOT_S, Boots, Track, after, sane
from rca.local_time import filled
from rca.types import Tables

__all__ = ["ended_boots", "ends_at", "ends_of", "names_of", "noted_of", "whose_note"]

_ROTATED: Final = re.compile(  # the file of a boot before
    r"(?:\.[0-9]{1,3}|[._-](?:old|prev|previous))(?:\.(?:log|txt))?(?:\.(?:gz|xz|zst|bz2))?$", re.I
)
SAME_END: Final = timedelta(minutes=30)  # logs collected together end so near each other; two zones differ by more
LONG_AFTER: Final = timedelta(days=7)  # the job nobody collects the log of its boot

Key = tuple[str, str]
Instants = tuple[datetime, datetime]


def noted_of(case: Tables) -> tuple[dict[str, datetime], dict[str, float]]:
    """host -> when it booted, and its zone: where all that was noted of the host agrees."""
    booted: dict[str, list[datetime]] = defaultdict(list)
    zones: dict[str, set[float]] = defaultdict(set)
    for host, boot, zone in case.table("hosts").select("host", "boot_at", "zone_offset_s").unique().collect().iter_rows():
        if host is not None and boot is not None and sane(boot) is not None:
            booted[host].append(boot)
        if host is not None and zone is not None:
            zones[host].add(zone)
    return (
        {host: min(found) for host, found in booted.items() if max(found) - min(found) < timedelta(seconds=1)},
        {host: next(iter(found)) for host, found in zones.items() if len(found) == 1},
    )


def names_of(case: Tables) -> dict[str, str]:
    """evidence_id -> name of the file."""
    rows = case.table("evidence").select("evidence_id", "path").drop_nulls().collect()
    return {id_: path.rstrip("/").rpartition("/")[2] for id_, path in rows.iter_rows()}


@dataclass(frozen=True)
class _End:
    """What a kernel log covers by its clocks."""

    host: str | None
    uptimes: tuple[float, float] | None  # of a log without any other clock
    at: datetime | None
    local: str | None


def ends_of(case: Tables) -> dict[str, list[_End]]:
    """evidence_id -> what it covers of each host."""
    found: dict[str, list[_End]] = defaultdict(list)
    columns = ("evidence_id", "host", "last_at", "last_at_local", "first_uptime_s", "last_uptime_s")
    for id_, host, at, local, first, last in case.table("host_logs").select(columns).collect().iter_rows():
        uptimes = (first, last) if at is None and local is None and first is not None and last is not None else None
        found[id_].append(_End(host, uptimes, sane(at), local))
    return found


def whose_note(
    tracks: Sequence[Track], boots: Boots, noted: Mapping[str, datetime], names: Mapping[str, str], ends: Mapping[str, Sequence[_End]],
    span: Instants | None,
) -> dict[str, datetime | None]:  # fmt: skip
    """Files to which what was noted of their host's boot does not apply -> until when they were written, None where that is not told.

    Of two boots the one of a file that rotation has renamed is the older; else what was noted is of the file that goes on, with it, to the end of
    the job, where just one does. A file that would end long after the job is of no boot that was noted with it.
    """
    found: dict[str, datetime | None] = {}
    rings = {(id_, end.host): end.uptimes for id_, of_file in ends.items() for end in of_file if end.uptimes is not None}
    of_host: dict[str | None, list[tuple[str, tuple[float, float]]]] = defaultdict(list)
    for (id_, host), uptimes in rings.items():
        of_host[host].append((id_, uptimes))
    by_file: dict[str, set[int]] = defaultdict(set)
    for track in tracks:
        by_file[track.evidence_id] |= {boots.find(spot.boot) for spot in track.spots}
    for track in tracks:
        began = noted.get(track.host or "")
        own = rings.get((track.evidence_id, track.host))
        if began is None or own is None:
            continue
        if span is not None and (end := after(began, own[1])) is not None and end > span[1] + LONG_AFTER:
            found[track.evidence_id] = None
        last = boots.find(track.spots[-1].boot)
        ups = [spot.uptime_s for spot in track.spots if spot.record and spot.uptime_s is not None and boots.find(spot.boot) == last]
        for id_, (first, latest) in of_host[track.host]:
            others = by_file[id_]
            is_other = id_ != track.evidence_id and len(others) < 2 and last not in others
            if not is_other or not any(first + SAME_BOOT_S < up < latest - SAME_BOOT_S for up in ups):
                continue
            mine, theirs = (_ROTATED.search(names.get(name, name)) is not None for name in (track.evidence_id, id_))
            if mine != theirs:
                if mine:
                    found[track.evidence_id] = began
            elif span is None or not own[1] >= (span[1] - began).total_seconds() > latest:
                found.setdefault(track.evidence_id, None)
    return found


def ended_boots(tracks: Sequence[Track], boots: Boots, of_others: Mapping[str, datetime | None]) -> dict[Key, datetime | None]:
    """Records of boots that another one followed, in their file or by what was noted -> when that one began."""
    found: dict[Key, datetime | None] = {}
    for track in tracks:
        later, began = None, of_others.get(track.evidence_id)
        is_old = began is not None
        for spot in reversed(track.spots):
            boot = boots.find(spot.boot)
            if later is not None and boot != later:
                start = boots.instant(later, 0.0)
                began, is_old = (start.at if start is not None else began), True
            later = boot
            if is_old and spot.record is not None:
                found[track.evidence_id, spot.record] = began
    return found


def ends_at(track: Track, ends: Mapping[str, Sequence[_End]], moment: datetime) -> bool:
    """Whether a file ends about then, by the zone that it was just given."""
    last, zone = track.spots[-1].local, track.votes.get(len(track.spots) - 1)
    if last is None or zone is None:
        return False
    told = [filled(end.local, last) for end in ends.get(track.evidence_id, ()) if end.local and end.host in (track.host, None)]
    local = max([last, *(local for local in told if local is not None)])
    return abs(local.replace(tzinfo=UTC) - timedelta(seconds=zone) - moment) <= SAME_END
