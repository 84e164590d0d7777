"""Clocks of hosts (offset, error, zone, order) and which logs are of this job."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rca.belonging import foreign_logs
from rca.case import MemoryCase
from rca.clocks import UNMEASURED_S, Clocks, clocks
from rca.local_time import shifts
from rca.tables import TABLES

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OFFSETS = {"host-a": 0.0, "host-b": 1.5, "host-c": -0.75}
HOSTS = tuple(OFFSETS)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def case_of(**rows: Sequence[Mapping[str, Any]]) -> MemoryCase:
    return MemoryCase(
        {table: TABLES[table].rows([{"record": f"L{n + 1}", **row} for n, row in enumerate(found)]) for table, found in rows.items()}
    )


def people(hosts: Sequence[str] = HOSTS) -> list[dict[str, Any]]:
    return [{"evidence_id": "map", "rank": rank, "host": host} for rank, host in enumerate(hosts)]


def calls(*, op: str = "all_reduce", group: str = "world:0", ranks: Sequence[int] = (0, 1, 2), seed: int = 7) -> list[dict[str, Any]]:
    """Calls of a group whose members arrive at random and leave up to 20 ms after the last has come, stamped by their hosts' clocks."""
    rng, rows = random.Random(seed), []
    for number in range(50):
        arrivals = {rank: number + rng.uniform(0, 0.3) for rank in ranks}
        for rank, came in arrivals.items():
            off, left = OFFSETS[HOSTS[rank]], max(arrivals.values()) + rng.uniform(0, 0.02)
            stamps = {"created_at": at(came + off), "completed_at": at(left + off)}
            rows.append(
                {
                    "evidence_id": f"fr-{rank}",
                    "rank": rank,
                    "group_id": group,
                    "collective_seq_id": number,
                    "op": op,
                    "is_p2p": False,
                    **stamps,
                }
            )
    return rows


class TestOffsets:
    def check(self, clock: Clocks) -> None:
        reference = next(host for host in HOSTS if clock.of(host) == (0.0, 0.0))
        for host in HOSTS:
            offset, error = clock.of(host) or (float("nan"), float("nan"))
            assert abs(offset - (OFFSETS[host] - OFFSETS[reference])) <= error + 1e-6
            assert error < 0.05

    def test_calls_that_all_members_saw_bound_them(self) -> None:
        self.check(clocks(case_of(ranks=people(), collectives=calls())))

    def test_hosts_without_a_common_group_are_tied_through_a_third(self) -> None:
        rows = [*calls(group="dp:1", ranks=(0, 1)), *calls(group="dp:2", ranks=(1, 2))]
        self.check(clocks(case_of(ranks=people(), collectives=rows)))

    def test_a_broadcast_bounds_nothing(self) -> None:
        """Its source is through before the others have come."""
        assert clocks(case_of(ranks=people(), collectives=calls(op="broadcast"))).of("host-b") is None

    def test_steps_bound_them_within_a_step(self) -> None:
        rows = [
            {"evidence_id": "t", "rank": rank, "step": step, "started_at": at(step + OFFSETS[host]), "step_s": 0.2}
            for rank, host in enumerate(HOSTS)
            for step in range(10)
        ]
        offset, error = clocks(case_of(ranks=people(), steps=rows)).of("host-b") or (0.0, 0.0)
        assert (offset, error) == (pytest.approx(1.5), pytest.approx(0.2))

    def test_a_contradiction_bounds_nothing(self) -> None:
        """A clock that was set meanwhile would need two offsets."""
        rows = [*calls(ranks=(0, 1)), *[{**row, "collective_seq_id": 100 + row["collective_seq_id"]} for row in calls(ranks=(0, 1))]]
        for row in rows[100:]:
            if row["rank"] == 1:
                row["created_at"] += timedelta(seconds=5)
                row["completed_at"] += timedelta(seconds=5)
        assert clocks(case_of(ranks=people(), collectives=rows)).of("host-b") is None

    def test_nothing_is_known_of_a_host_that_no_call_was_seen_on(self) -> None:
        assert clocks(case_of(ranks=people())).of("host-a") is None
        assert clocks(case_of()).of(None) is None


class TestOrder:
    def test_outside_the_error_and_after_the_offset(self) -> None:
        clock = clocks(case_of(ranks=people(), collectives=calls()))
        assert clock.order((at(10), "host-a"), (at(11.4), "host-b")) == 1, "host-b runs 1.5 s ahead"
        assert clock.order((at(11.4), "host-b"), (at(10), "host-a")) == -1
        assert clock.order((at(10), "host-a"), (at(11.5), "host-b")) is None, "closer than the error"

    def test_one_clock_needs_no_error(self) -> None:
        clock = clocks(case_of())
        assert clock.order((at(1), "host-x"), (at(1.001), "host-x")) == -1
        assert clock.order((at(1), "host-x"), (at(1), "host-x")) == 0

    @pytest.mark.parametrize(("apart", "told"), [(UNMEASURED_S - 1, None), (UNMEASURED_S + 1, -1)])
    def test_unmeasured_clocks_may_be_minutes_apart(self, apart: float, told: int | None) -> None:
        assert clocks(case_of()).order((at(0), "host-x"), (at(apart), None)) == told

    def test_without_an_instant_nothing_is_told(self) -> None:
        assert clocks(case_of()).order((None, "host-x"), (at(1), "host-x")) is None


def logged(local: str | None = None, *, seconds: float | None = None, evidence: str = "log", **values: Any) -> dict[str, Any]:
    return {"evidence_id": evidence, "logged_at": at(seconds) if seconds is not None else None, "logged_at_local": local, **values}


class TestZones:
    def test_the_same_steps_in_utc_tell_the_zone_exactly(self) -> None:
        printed = [{"evidence_id": "log", "step": n, "ended_at_local": f"2026-03-01T17:{30 + n}:00"} for n in range(3)]
        metrics = [{"evidence_id": "metrics", "step": n, "ended_at": at(60 * n)} for n in range(3)]
        clock = clocks(case_of(progress=[*printed, *metrics], log_events=[logged("2026-03-01T17:31:00")]))
        assert clock.utc("log", "2026-03-01T17:31:00,250") == at(60.25), "five and a half hours ahead"

    def test_stamps_near_a_ranks_own_instants_tell_it_too(self) -> None:
        rows = [logged("2026-03-01T04:00:01", rank=3)]
        clock = clocks(case_of(log_events=rows, dumps=[{"evidence_id": "fr", "rank": 3, "first_at": at(0), "last_at": at(60)}]))
        assert clock.at({"evidence_id": "log", "logged_at_local": "2026-03-01T04:00:05"}) == at(5)

    def test_a_container_may_have_another_zone_than_its_host(self) -> None:
        """What was noted of a host decides where several zones fit, and where none does; not against the only one that fits."""
        hosts = [{"evidence_id": "h", "host": "host-a", "boot_at": at(-100), "zone_offset_s": 3600.0}]
        ranks = [{"evidence_id": "map", "rank": 3, "host": "host-a"}]
        rows = [logged("2026-03-01T12:00:01", rank=3)]
        for last, expected in ((60, at(5)), (7200, at(5 - 3600))):
            dumps = [{"evidence_id": "fr", "rank": 3, "first_at": at(0 if last == 60 else -7200), "last_at": at(last)}]
            clock = clocks(case_of(hosts=hosts, ranks=ranks, log_events=rows, dumps=dumps))
            assert clock.utc("log", "2026-03-01T12:00:05") == expected, last

    def test_when_several_zones_fit_none_is_taken(self) -> None:
        rows = [logged("2026-03-01T04:00:01", rank=3)]
        clock = clocks(case_of(log_events=rows, dumps=[{"evidence_id": "fr", "rank": 3, "first_at": at(0), "last_at": at(7200)}]))
        assert clock.utc("log", "2026-03-01T04:00:05") is None

    @pytest.mark.parametrize("short", ["12:00:07", "03-01T12:00:07", "2026-03-01 12:00:07"])
    def test_a_missing_year_or_day_is_the_nearest(self, short: str) -> None:
        rows = [logged("12:00:01", rank=0), logged(seconds=0, evidence="agent"), logged(seconds=30, evidence="agent")]
        assert clocks(case_of(log_events=rows)).utc("log", short) == at(7)

    def test_over_new_year(self) -> None:
        rows = [logged("12-31T23:59:58", rank=0), {**logged(evidence="agent"), "logged_at": datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC)}]
        assert clocks(case_of(log_events=rows)).utc("log", "12-31T23:59:59") == datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC)

    def test_without_any_instant_nothing_is_told(self) -> None:
        assert clocks(case_of(log_events=[logged("2026-03-01T04:00:01")])).utc("log", "2026-03-01T04:00:01") is None

    @pytest.mark.parametrize("text", ["soon", "", "99:99:99", "02-30T00:00:00"])
    def test_what_is_no_stamp_is_no_instant(self, text: str) -> None:
        rows = [logged("12:00:01", rank=0), logged(seconds=0, evidence="agent")]
        assert clocks(case_of(log_events=rows)).utc("log", text) is None

    def test_instants_that_cannot_be_tell_nothing_and_cost_nothing(self) -> None:
        """A torn year, a clock that was never set: the other stamps of the file are read as if these were not there."""
        rows = [logged("2026-03-01T04:00:01", rank=3), *(logged(f"{year}-12-31T23:59:59", rank=3) for year in ("0001", "1970", "9999"))]
        rows += [{**logged(evidence="agent"), "logged_at": datetime(year, 1, 1, tzinfo=UTC)} for year in (1970, 9999)]
        clock = clocks(case_of(log_events=rows, dumps=[{"evidence_id": "fr", "rank": 3, "first_at": at(0), "last_at": at(60)}]))
        assert clock.utc("log", "2026-03-01T04:00:05") == at(5)
        assert [clock.utc("log", f"{year}-12-31T23:59:59") for year in ("0001", "1970", "9999")] == [None] * 3
        assert [clock.at(row) for row in rows[-2:]] == [None, None]

    @pytest.mark.parametrize(
        ("stamp", "expected"),
        [("12:12:41", at(761)), ("12:30:00", at(1800)), ("20:02:00", at(120)), ("12:02:00", at(120))],
        ids=["a time-out later, not a quarter of an hour off", "half an hour later", "in another zone", "at the end"],
    )
    def test_an_end_behind_the_last_instant_is_in_the_zone_of_the_other_logs(self, stamp: str, expected: datetime) -> None:
        printed = [{"evidence_id": "rank", "step": n, "ended_at_local": f"2026-03-01T12:0{n}:00"} for n in range(3)]
        timings = [{"evidence_id": "t", "step": n, "rank": 0, "started_at": at(60 * n - 30), "step_s": 30.0} for n in range(3)]
        clock = clocks(case_of(progress=printed, steps=timings, log_events=[logged(f"2026-03-01T{stamp}", evidence="slurm")]))
        assert clock.utc("slurm", f"2026-03-01T{stamp}") == expected

    @pytest.mark.parametrize(
        ("local", "days"),
        [("2026-03-01T12:00:00", 0), ("03-01T12:00:00", 0), ("12:00:00", None)],
        ids=["a full stamp", "the year is that of what is near", "no day"],
    )
    def test_logs_reach_as_far_as_any_zone_brings_them(self, local: str, days: int | None) -> None:
        reach = clocks(case_of(log_events=[logged(local)])).reach(at(-5 * 86400))
        assert reach == (None if days is None else (at(-14 * 3600), at(14 * 3600)))

    @pytest.mark.parametrize("zone_h", [0.0, 5.0, -7.0])
    @pytest.mark.parametrize("timeout_min", [30, 60], ids=["half an hour", "an hour"])
    def test_a_time_out_tells_the_zone_by_when_its_call_began(self, zone_h: float, timeout_min: int) -> None:
        """Half an hour behind the last call is no zone of half an hour: the line says for how long the call ran."""
        ended = at(60 + 60 * timeout_min)
        stamp = (ended + timedelta(hours=zone_h)).replace(tzinfo=None).isoformat()
        ran = f"WorkNCCL(SeqNum=7) ran for {timeout_min * 60_000} milliseconds before timing out."
        rows = [logged(stamp, rank=3, signature="nccl_watchdog_timeout", message=ran), logged(stamp, rank=3, message="aborting")]
        clock = clocks(case_of(log_events=rows, dumps=[{"evidence_id": "fr", "rank": 3, "first_at": at(0), "last_at": at(60)}]))
        assert clock.utc("log", stamp) == ended

    def test_half_an_hour_is_no_zone_where_no_country_has_it(self) -> None:
        dumps = [{"evidence_id": "fr", "rank": 3, "first_at": at(0), "last_at": at(60)}]
        told = [
            clocks(case_of(log_events=[logged(stamp, rank=3)], dumps=dumps)).utc("log", stamp)
            for stamp in ("2026-03-01T12:31:00", "2026-03-01T17:31:00")
        ]
        assert told == [None, at(60)], "0:30 ahead is nowhere, 5:30 ahead is India"

    def test_far_stamps_are_tried_against_zones_alone(self) -> None:
        far = (datetime(1, 1, 1), datetime(9999, 1, 1))
        assert len(shifts(far, (at(0), at(1)))) == 2 * 14 + 1 + 13, "full hours, and the half and quarter hours that some country has"

    def test_a_kernel_line_is_placed_by_its_boot_or_its_hosts_zone(self) -> None:
        hosts = [{"evidence_id": "h", "host": "host-a", "boot_at": at(-100), "zone_offset_s": 3600.0}]
        event = {"evidence_id": "dmesg", "host": "host-a", "logged_at_local": "2026-03-01T13:00:09"}
        clock = clocks(case_of(hosts=hosts, kernel_events=[event], log_events=[logged(seconds=0)]))
        assert clock.at({"evidence_id": "dmesg", "host": "host-a", "uptime_s": 104.5}) == at(4.5)
        assert clock.at(event) == at(9)
        assert [clock.at({"evidence_id": "dmesg", "host": "host-a", "uptime_s": up}) for up in (1e11, 1e15, float("nan"))] == [None] * 3


def named(evidence: str, rank: int, *, host: str | None = None, pid: int | None = None) -> dict[str, Any]:
    return {"evidence_id": evidence, "rank": rank, "host": host, "pid": pid}


def line(evidence: str, seconds: float = 0.0, **values: Any) -> dict[str, Any]:
    return {"evidence_id": evidence, "logged_at": at(seconds), "signature": "worker_started", **values}


class TestBelonging:
    def test_a_log_with_another_process_for_a_rank_is_of_another_launch(self) -> None:
        ranks = [named("log-0", 0, pid=10), named("old-0", 0, pid=5)]
        stacks = [{"evidence_id": "stack", "rank": 0, "pid": 10, "role": "trainer"}]
        assert list(foreign_logs(case_of(ranks=ranks, stacks=stacks, log_events=[line("log-0"), line("old-0")]))) == ["old-0"]

    def test_a_log_with_another_host_for_a_rank_is_of_another_job(self) -> None:
        ranks = [named("map", 0, host="host-a"), named("log-0", 0, host="host-a"), named("old-0", 0, host="host-q")]
        assert list(foreign_logs(case_of(ranks=ranks, log_events=[line("log-0"), line("old-0")]))) == ["old-0"]

    def test_not_when_logs_and_maps_only_name_hosts_differently(self) -> None:
        ranks = [named("map", 0, host="host-a"), named("log-0", 0, host="ip-192-0-2-1", pid=7)]
        assert foreign_logs(case_of(ranks=ranks, log_events=[line("log-0")])) == {}

    def test_one_rank_on_a_host_of_the_same_name_proves_nothing(self) -> None:
        ranks = [named("map", rank, host=f"host-{rank}") for rank in range(4)] + [named("log-0", 0, host="host-0")]
        ranks += [named("agent", 0, host="host-0")] + [named("agent", rank, host=f"node-{rank}") for rank in range(1, 4)]
        assert list(foreign_logs(case_of(ranks=ranks, log_events=[line("log-0"), line("agent")]))) == ["agent"]

    def test_of_two_launches_and_nothing_else_the_newer_counts(self) -> None:
        ranks = [named(f"{name}-{rank}", rank, pid=pid + rank) for name, pid in (("new", 100), ("old", 50)) for rank in (0, 1)]
        ranks += [named("old-agent", rank, pid=50 + rank) for rank in (0, 1)]
        rows = [line("new-0", 900), line("new-1", 900), line("old-0"), line("old-1"), line("old-agent", 10)]
        assert sorted(foreign_logs(case_of(ranks=ranks, log_events=rows))) == ["old-0", "old-1", "old-agent"]

    def test_a_restart_told_in_one_log_is_one_job(self) -> None:
        ranks = [named("agent", 0, pid=5), named("agent", 0, pid=10), named("log-0", 0, pid=10)]
        assert foreign_logs(case_of(ranks=ranks, log_events=[line("agent", 0), line("log-0", 50)])) == {}

    def test_metrics_of_another_hour_are_of_another_job(self) -> None:
        ranks = [named("log-0", 0, pid=10)]
        metrics = [
            {"evidence_id": name, "step": 1, "ended_at": at(seconds)} for name, seconds in (("mine", 5), ("other", -400), ("older", -9000))
        ]
        found = foreign_logs(case_of(ranks=ranks, log_events=[line("log-0", 0), line("log-0", 10)], progress=metrics))
        assert sorted(found) == ["older", "other"]

    def test_without_logs_there_is_nothing_to_tell_apart(self) -> None:
        assert foreign_logs(case_of(ranks=people())) == {}
