"""What the clocks of the hosts are worth: offset and error per host, the zone of naive stamps, and whether one event was before another.

Two kinds of facts need no common clock. What ranks do together bounds how far the clocks of two hosts are apart (`rca.clock_offsets`). And a stamp
without a zone differs from an instant of the same file, rank or host by a multiple of a quarter of an hour. Kernel logs are placed by
`rca.kernel_times`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final

import polars as pl

from rca.clock_offsets import hosts_of_ranks, offsets
from rca.kernel_times import KernelTimes, kernel_times
from rca.local_time import MAX_ZONE_S, SANE_STAMP, SLACK_S, filled, shifts
from rca.log_zones import told_zones
from rca.types import Tables

__all__ = ["UNMEASURED_S", "Clocks", "clocks"]

UNMEASURED_S: Final = 300.0  # error of a host whose clock nothing bounds: authentication (Kerberos, munge) fails beyond five minutes
LATE_S: Final = 2700.0  # an end is written so long after the last step or call: time-outs of half an hour, and what they set off
KILLED: Final = (-9, 137)  # exit codes of a process that was killed
FIRST_AT, LAST_AT = (
    datetime(2000, 1, 1, tzinfo=UTC),
    datetime(2200, 1, 1, tzinfo=UTC),
)  # an instant outside is of a clock that was never set, or torn
MID_YEAR: Final = "07"
DATED: Final = re.compile(r"(?:[0-9]{4}-)?[0-9][0-9]-[0-9][0-9]")

Instants = tuple[datetime, datetime]


def clocks(case: Tables) -> Clocks:
    """The clocks of a case. Nothing is measured before it is asked for: `case.derive(clocks)` costs nothing by itself."""
    return Clocks(case)


@dataclass(frozen=True)
class Clocks:
    """Offsets, zones and order. Instants are compared across hosts only outside the error of both clocks."""

    case: Tables
    _zones: dict[str, float | None] = field(default_factory=dict)

    def of(self, host: str | None) -> tuple[float, float] | None:
        """(offset, error) of a host's clock, s, against the reference host; None where nothing bounds it."""
        return self._offsets.get(host) if host is not None else None

    def at(self, row: Mapping[str, Any], *, moment: str = "logged_at") -> datetime | None:
        """The UTC instant of a row: as written, else from the seconds since boot, else from its local stamp and the zone of its file.

        `row` has `evidence_id` and, as far as its table has them, `record`, `<moment>`, `<moment>_local`, `uptime_s`, `host`, `rank`. None
        where nothing tells, or what is told cannot be: the year 9999, 1970.
        """
        found: datetime | None = row.get(moment)
        if found is not None:
            return found if _is_sane(found) else None
        key = (row["evidence_id"], row.get("record") or "")
        if "uptime_s" in row and key in self.kernel.boots:
            placed = self.kernel.placed.get(key)
            if placed is not None or key not in self.kernel.hostless:
                return placed.at if placed is not None else None
        boot = self._boots.get(row.get("host") or "")
        if boot is not None and row.get("uptime_s") is not None:
            return _after(boot, row["uptime_s"])
        text = row.get(f"{moment}_local")
        return self.utc(row["evidence_id"], text) if text else None

    def utc(self, evidence_id: str, local_text: str) -> datetime | None:
        """The instant of a stamp without zone in a file; None unless zone, and for short stamps year and day, are told by other evidence."""
        if evidence_id not in self._zones:
            self._zones[evidence_id] = self._zone(evidence_id)
        zone = self._zones[evidence_id]
        near = self._span[1] if self._span is not None else self._last_day
        if zone is None or near is None:
            return None
        local = filled(local_text, near + timedelta(seconds=zone))
        return (local - timedelta(seconds=zone)).replace(tzinfo=UTC) if local is not None and _is_sane(local.replace(tzinfo=UTC)) else None

    def order(self, one: tuple[datetime | None, str | None], two: tuple[datetime | None, str | None]) -> int | None:
        """-1: the first of two (instant, host) is earlier; 1: later; 0: the same instant of one clock; None: not to be told."""
        if one[0] is None or two[0] is None:
            return None
        apart = (one[0] - two[0]).total_seconds()
        if one[1] == two[1] and one[1] is not None:
            return (apart > 0) - (apart < 0)
        (offset, error), (other_offset, other_error) = (self.of(at[1]) or (0.0, UNMEASURED_S / 2) for at in (one, two))
        apart -= offset - other_offset
        return None if abs(apart) <= error + other_error else 1 if apart > 0 else -1

    def zone_of(self, hosts: Iterable[str]) -> float | None:
        """Local time minus UTC, s, of these hosts: noted of them, or told by the logs that speak of them; None unless all that is told agrees."""
        zones = {told[host] for host in hosts for told in (self._host_zones, self._log_zones) if host in told}
        return zones.pop() if len(zones) == 1 else None

    def reach(self, near: datetime) -> Instants | None:
        """Between which instants the job's logs can have been written, in whatever zone their stamps without one are; None where they tell no day.
        `near` tells the year where they lack it."""
        near = self._last_day or near
        logs = [naive for naive in self._local.values() if not naive.is_kernel]
        stamps = [text for naive in logs for text in naive.stamps if DATED.match(text)]
        local = [t.replace(tzinfo=UTC) for text in stamps if (t := filled(text, near)) is not None]
        zone = timedelta(seconds=MAX_ZONE_S)
        return _wide([*((t - zone, t + zone) for t in local), *((self._span,) if self._span is not None else ())])

    def is_fitted(self, evidence_id: str) -> bool:
        """Whether nothing tells the zone of a log but that its stamps, so shifted, meet what the job did: one coincidence, if they are few."""
        naive = self._local.get(evidence_id)
        if naive is None or self._span is None or evidence_id in self._told_zones or evidence_id in self._by_evidence:
            return False
        zone = self._zone(evidence_id)
        return bool(zone) and zone != self._noted(naive) and zone not in self._told_zones.values()

    @cached_property
    def kernel(self) -> KernelTimes:
        """When, and in which boot, each row of `kernel_events` was."""
        return kernel_times(self.case, self._span, self._log_zones, self._kills, self._last_day)

    @cached_property
    def _kills(self) -> dict[tuple[str, int], datetime]:
        """(host, process) -> when a log says that it was killed, where it is said of one moment."""
        rows = self.case.table("log_events").filter(
            pl.col("pid").is_not_null() & ((pl.col("signal") == "SIGKILL") | pl.col("exit_code").is_in(KILLED))
        )
        found: dict[tuple[str, int], list[datetime]] = defaultdict(list)
        for row in rows.collect().iter_rows(named=True):
            host, moment = self._host_of.get(row["rank"]) or row["host"], self.at(row)
            if host is not None and moment is not None:
                found[host, row["pid"]].append(moment)
        return {key: min(moments) for key, moments in found.items() if max(moments) - min(moments) < timedelta(seconds=SLACK_S)}

    @cached_property
    def _host_of(self) -> dict[int, str]:
        """rank -> host, where all sources that name one agree."""
        return dict(hosts_of_ranks(self.case).collect().iter_rows())

    @cached_property
    def _log_zones(self) -> dict[str, float]:
        """host -> zone, s, of the logs that speak of it or of its ranks, where all of them have one and the same."""
        host_of = self._host_of
        found: dict[str, set[float | None]] = defaultdict(set)
        for id_, naive in self._local.items():
            for host in naive.hosts | {host_of[rank] for rank in naive.ranks if rank in host_of}:
                if not naive.is_kernel:
                    found[host].add(self._zone(id_))
        return {host: zone for host, zones in found.items() if len(zones) == 1 and (zone := next(iter(zones))) is not None}

    @cached_property
    def _offsets(self) -> dict[str, tuple[float, float]]:
        return offsets(self.case)

    @cached_property
    def _boots(self) -> dict[str, datetime]:
        """host -> when it booted, where all files agree to a second."""
        rows = self.case.table("hosts").filter(pl.col("host").is_not_null() & pl.col("boot_at").is_not_null())
        told = rows.group_by("host").agg(pl.col("boot_at").min().alias("low"), pl.col("boot_at").max().alias("high")).collect()
        return {host: low for host, low, high in told.iter_rows() if high - low < timedelta(seconds=1)}

    @cached_property
    def _host_zones(self) -> dict[str, float]:
        rows = self.case.table("hosts").filter(pl.col("host").is_not_null() & pl.col("zone_offset_s").is_not_null())
        told = rows.group_by("host").agg(pl.col("zone_offset_s").unique()).collect()
        return {host: zones[0] for host, zones in told.iter_rows() if len(zones) == 1}

    @cached_property
    def _span(self) -> Instants | None:
        """First and last instant of anything but kernel logs, which go back for weeks."""
        return _wide(span for spans in (self._by_evidence, self._by_rank) for span in spans.values())

    @cached_property
    def _last_day(self) -> datetime | None:
        """The latest stamp without zone of the job's logs that has its year, taken as UTC: where no instant is told, it tells years and days."""
        days = [
            day for naive in self._local.values() if not naive.is_kernel for text in naive.stamps if (day := _with_year(text)) is not None
        ]
        return max(days, default=None)

    @cached_property
    def _by_evidence(self) -> dict[str, Instants]:
        """evidence_id -> first and last UTC instant of a log."""
        found: dict[str, list[Instants]] = defaultdict(list)
        for table, moment in (("log_events", "logged_at"), ("progress", "ended_at"), ("scheduler_events", "changed_at")):
            for id_, first, last in _ranges(self.case, table, "evidence_id", moment):
                found[id_].append((first, last))
        return {id_: span for id_, spans in found.items() if (span := _wide(spans)) is not None}

    @cached_property
    def _by_rank(self) -> dict[int, Instants]:
        """rank -> first and last UTC instant of its recorder dump and step timings."""
        found: dict[int, list[Instants]] = defaultdict(list)
        for table, moment in (("steps", "started_at"), ("dumps", "first_at"), ("dumps", "last_at")):
            for rank, first, last in _ranges(self.case, table, "rank", moment):
                found[rank].append((first, last))
        return {rank: span for rank, spans in found.items() if (span := _wide(spans)) is not None}

    @cached_property
    def _local(self) -> dict[str, _Naive]:
        """evidence_id -> its stamps without zone."""
        found: dict[str, _Naive] = {}
        for table, moment in (("log_events", "logged_at"), ("progress", "ended_at"), ("kernel_events", "logged_at")):
            local, is_kernel, has_host = pl.col(f"{moment}_local"), table == "kernel_events", table != "progress"
            halves = (local < MID_YEAR, local >= MID_YEAR)  # without a year the ends of a time over New Year are no first and last text
            rows = self.case.table(table).filter(local.str.contains(SANE_STAMP)).group_by("evidence_id")
            told = rows.agg(
                *(local.filter(half).min().alias(f"first {n}") for n, half in enumerate(halves)),
                *(local.filter(half).max().alias(f"last {n}") for n, half in enumerate(halves)),
                pl.lit(None).alias("rank") if is_kernel else pl.col("rank").drop_nulls().unique(),
                pl.col("host").drop_nulls().unique() if has_host else pl.lit(None).alias("host"),
            )
            for id_, *ends, ranks, hosts in told.collect().iter_rows():
                naive = found.setdefault(id_, _Naive(is_kernel))
                naive.stamps.extend(text for text in ends if text is not None)
                naive.ranks.update(ranks or ())
                naive.hosts.update(hosts or ())
        return found

    def _zone(self, evidence_id: str) -> float | None:
        """Local time minus UTC of a file, s: told by steps and calls that another file dates, by what was noted of its host, or by the one shift that
        fits.

        The shift must bring its stamps to the instants of the same file, else of its ranks, else of the job; so must the zone of its host, as
        programs in a container may have another one, or at most a time-out behind them, as must the one zone of the job's other logs.
        A kernel's log goes back for weeks: for it any shift would do. Where nothing of the job tells an instant, what was noted of all its hosts is
        all there is.
        """
        naive = self._local.get(evidence_id)
        if naive is None:
            return None
        if self._span is None:
            return self._noted_alone(naive)
        told_alone = self._told_zones
        if evidence_id in told_alone:
            return told_alone[evidence_id]
        noted = self._noted(naive)
        if naive.is_kernel:
            return noted
        own = self._by_evidence.get(evidence_id)
        span = own or _wide(self._by_rank[rank] for rank in naive.ranks if rank in self._by_rank) or self._span
        local = [t for t in (filled(text, span[1]) for text in naive.stamps) if t is not None]
        fitting = shifts((min(local), max(local)), span) if local else []
        likely = set(told_alone.values())  # of the job's other logs
        for zone in (noted, next(iter(likely)) if len(likely) == 1 else None):
            if zone is not None and local and (zone in fitting or _is_late((min(local), max(local)), span, zone)):
                return zone
        if noted is not None and not fitting:
            return noted
        alike = {zone for zone in likely if zone in fitting}
        return alike.pop() if len(alike) == 1 else fitting[0] if len(fitting) == 1 else None

    def _noted(self, naive: _Naive) -> float | None:
        """The zone that was noted of the hosts that a log speaks of, as far as one was; None where they differ."""
        hosts = naive.hosts or {self._host_of[rank] for rank in naive.ranks if rank in self._host_of}
        told = {self._host_zones[host] for host in hosts if host in self._host_zones}
        return told.pop() if len(told) == 1 else None

    def _noted_alone(self, naive: _Naive) -> float | None:
        """The zone that was noted of each host that a log speaks of (of all noted hosts where it names none), if that is one and the same."""
        hosts = naive.hosts or {self._host_of[rank] for rank in naive.ranks if rank in self._host_of} or self._host_zones.keys()
        zones = {self._host_zones.get(host) for host in hosts}
        return zones.pop() if len(zones) == 1 else None

    @cached_property
    def _told_zones(self) -> dict[str, float]:
        return told_zones(self.case, self._by_rank)


@dataclass(frozen=True)
class _Naive:
    """A file with stamps without zone: first and last of them, whom it speaks of."""

    is_kernel: bool
    stamps: list[str] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)


def _ranges(case: Tables, table: str, key: str, moment: str) -> Iterable[tuple[Any, datetime, datetime]]:
    rows = case.table(table).filter(pl.col(key).is_not_null() & pl.col(moment).is_between(FIRST_AT, LAST_AT))
    return rows.group_by(key).agg(pl.col(moment).min().alias("first"), pl.col(moment).max().alias("last")).collect().iter_rows()


def _after(at: datetime, seconds: float) -> datetime | None:
    try:
        later = at + timedelta(seconds=seconds)
    except (OverflowError, ValueError):  # beyond the year 9999; not a number
        return None
    return later if _is_sane(later) else None


def _with_year(text: str) -> datetime | None:
    """A stamp without zone as if it were UTC; None where it lacks its year, or cannot be."""
    if not re.match(r"2[01][0-9][0-9]-", text):
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None


def _is_sane(at: datetime) -> bool:
    return FIRST_AT <= at < LAST_AT


def _wide(spans: Iterable[Instants]) -> Instants | None:
    """The span from the first beginning to the last end."""
    listed = list(spans)
    return (min(first for first, _ in listed), max(last for _, last in listed)) if listed else None


def _is_late(local: Instants, span: Instants, zone: float) -> bool:
    """Whether local stamps of a zone lie behind a span, as those of an end do that comes when ranks have waited long enough."""
    apart = (local[0] - span[1].replace(tzinfo=None)).total_seconds() - zone
    return 0.0 < apart <= LATE_S
