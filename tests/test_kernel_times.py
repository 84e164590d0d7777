"""Kernel records in time: the same scene, told in every form and zone, happens at the same instants; what cannot be placed stays without one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from _kernel_case import kernel_case

from rca.analyses._kernel_undated import before_the_end, past
from rca.case import MemoryCase
from rca.clocks import clocks
from rca.local_time import chained, filled

Told = list[tuple[datetime, str]]
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
HALF_PAST_FIVE = timedelta(hours=5, minutes=30)
JOB = {"evidence_id": "fr", "rank": 0}


def xid(number: int, code: int = 31) -> str:
    """A record like no other: each has a process and an address of its own."""
    return f"NVRM: Xid (PCI:0000:{number + 16:02x}:00): {code}, pid={4000 + number}, name=python3, Ch {number:08x}"


def scene(start: datetime, gaps: Sequence[float] = (0, 40, 0.25, 3600, 7000)) -> Told:
    """Records at these distances, s."""
    at, told = start, []
    for number, gap in enumerate(gaps):
        at += timedelta(seconds=gap)
        told.append((at, xid(number)))
    return told


def short(local: datetime) -> str:
    return f"{MONTHS[local.month - 1]} {local.day:2d} {local:%H:%M:%S}"


def dmesg(told: Told, boot: datetime) -> str:
    return "".join(f"[{(at - boot).total_seconds():12.6f}] {text}\n" for at, text in told)


def syslog(told: Told, boot: datetime | None, zone: timedelta, host: str = "host-a") -> str:
    stamp = "" if boot is None else "[{:12.6f}] "
    return "".join(
        f"{short(at + zone)} {host} kernel: {stamp.format((at - boot).total_seconds()) if boot else ''}{text}\n" for at, text in told
    )


def ctime(told: Told, zone: timedelta) -> str:
    return "".join(f"[{at + zone:%a} {short(at + zone)} {(at + zone).year}] {text}\n" for at, text in told)


def iso(told: Told, zone: timedelta) -> str:
    sign, minutes = ("-" if zone < timedelta() else "+"), int(abs(zone).total_seconds() // 60)
    return "".join(f"{at + zone:%Y-%m-%dT%H:%M:%S,%f}{sign}{minutes // 60:02d}:{minutes % 60:02d} {text}\n" for at, text in told)


def audit(at: datetime, boot: datetime | None, zone: timedelta) -> str:
    """A line that holds its own seconds since 1970."""
    return syslog([(at, f"audit: type=1400 audit({at.timestamp():.3f}:91): apparmor")], boot, zone)


def noted(boot: datetime | None, zone: timedelta | None, host: str = "host-a") -> list[dict[str, Any]]:
    return [{"evidence_id": "hosts", "host": host, "boot_at": boot, "zone_offset_s": zone.total_seconds() if zone is not None else None}]


def placed(case: MemoryCase) -> dict[str, list[datetime | None]]:
    """File -> the instants of its records, in its order."""
    found: dict[str, list[datetime | None]] = {}
    rows = case.table("kernel_events").collect().rows(named=True)
    for row in sorted(rows, key=lambda row: int(row["record"][1:])):
        found.setdefault(row["evidence_id"], []).append(case.derive(clocks).at(row))
    return found


def close(found: Sequence[datetime | None], told: Told, error_s: float = 1.0) -> bool:
    return len(found) == len(told) and all(
        one is not None and abs((one - at).total_seconds()) <= error_s for one, (at, _) in zip(found, told, strict=True)
    )


START = datetime(2026, 3, 1, 11, 58, 20, 250000, UTC)
BOOT = START - timedelta(days=3, seconds=17.5)


@pytest.mark.parametrize("zone", [timedelta(), HALF_PAST_FIVE, timedelta(hours=-8), timedelta(hours=12, minutes=45)], ids=str)
def test_one_scene_in_every_form_happens_at_the_same_time(tmp_path: Path, zone: timedelta) -> None:
    told = scene(START)
    forms: dict[str, tuple[str, list[dict[str, Any]]]] = {
        "dmesg": (dmesg(told, BOOT), noted(BOOT, None)),
        "syslog, zone noted": (syslog(told, None, zone), noted(BOOT, zone)),
        "syslog, uptime and boot noted": (syslog(told, BOOT, zone), noted(BOOT, None)),
        "syslog, audit": (audit(START, None, zone) + syslog(told, None, zone), []),
        "syslog, uptime, audit at the end": (syslog(told, BOOT, zone) + audit(told[-1][0], BOOT, zone), []),
        "ctime, zone noted": (ctime(told, zone), noted(BOOT, zone)),
        "iso": (iso(told, zone), []),
        "reversed": ("".join(reversed(syslog(told, BOOT, zone).splitlines(keepends=True))), noted(BOOT, None)),
    }
    for number, (name, (text, hosts)) in enumerate(forms.items()):
        case = kernel_case(tmp_path, {f"{number}.log": text}, {f"{number}.log": "host-a"}, hosts=hosts)
        found = placed(case)[f"{number}.log"]
        found = found[::-1] if name == "reversed" else found
        assert close(found, told), (name, found)
        if "uptime" in name or name in ("dmesg", "iso", "reversed"):
            assert found == sorted(found, key=lambda at: at or START), name
            assert len(set(found)) == len(found), (name, "the time since boot parts records of one second")


@pytest.mark.parametrize("start", [datetime(2025, 12, 31, 23, 59, tzinfo=UTC), datetime(2024, 2, 29, 23, 59, 10, tzinfo=UTC)], ids=str)
def test_year_without_a_year(tmp_path: Path, start: datetime) -> None:
    """Over New Year, and on a day that most years lack; whatever tells the year: a line, the host's boot, the time of the job."""
    told, boot = scene(start, (0, 90, 60)), start - timedelta(days=40)
    job = [{**JOB, "first_at": start - timedelta(hours=1), "last_at": start + timedelta(hours=1)}]
    zone = timedelta(hours=-3)
    printed = {"evidence_id": "log", "rank": 0, "signature": "train_progress", "logged_at_local": f"{start:%Y-%m-%dT%H:%M:%S}"}
    cases: list[tuple[str, dict[str, Any]]] = [
        (audit(start, None, zone) + syslog(told, None, zone), {}),
        (syslog(told, boot, zone) + audit(told[-1][0], boot, zone), {}),
        (syslog(told, boot, zone), {"hosts": noted(boot, None)}),
        (syslog(told, None, zone), {"hosts": noted(boot, zone)}),
        (syslog(told, None, zone), {"hosts": noted(start - timedelta(days=900), zone), "dumps": job}),
        (
            syslog(told, None, zone),
            {"hosts": noted(None, zone), "log_events": [printed]},
        ),  # its words have a date, in a zone that nothing tells
    ]
    for number, (text, rows) in enumerate(cases):
        found = placed(kernel_case(tmp_path, {f"{number}.log": text}, **rows))[f"{number}.log"]
        assert close(found, told), (number, found)


def test_a_log_that_goes_on_after_the_job_is_not_put_back_by_a_year(tmp_path: Path) -> None:
    """Collected on 3 January of a job that ended on 30 December: the last evidence is no limit of what a log may hold."""
    told = scene(datetime(2025, 12, 29, 8, tzinfo=UTC), (0, 86400 * 2, 86400 * 3))
    job = [{**JOB, "first_at": told[0][0], "last_at": told[0][0] + timedelta(days=1)}]
    case = kernel_case(
        tmp_path, {"a.log": syslog(told, None, timedelta())}, hosts=noted(BOOT - timedelta(days=500), timedelta()), dumps=job
    )
    assert close(placed(case)["a.log"], told)


def test_nothing_tells_a_zone(tmp_path: Path) -> None:
    """Stamps stay without an instant; the time since boot still orders them, and the file does."""
    told = scene(START)
    job = [{**JOB, "first_at": START, "last_at": START + timedelta(minutes=5)}]
    case = kernel_case(
        tmp_path, {"a.log": syslog(told, BOOT, HALF_PAST_FIVE), "b.log": ctime(told, HALF_PAST_FIVE)}, {"b.log": "host-b"}, dumps=job
    )
    assert placed(case) == {"a.log": [None] * 5, "b.log": [None] * 5}
    assert len({boot for (file, _), boot in case.derive(clocks).kernel.boots.items() if file == "a.log"}) == 1


class TestBoots:
    @pytest.mark.parametrize("mark", ["[    0.000000] Linux version 5.15.0\n", "-- Reboot --\n", ""], ids=["kernel", "journal", "unmarked"])
    def test_a_new_boot_in_the_middle(self, tmp_path: Path, mark: str) -> None:
        """What was noted is of the last boot: what came before it has no instant, and is not ordered by its time since another boot."""
        again = BOOT + timedelta(days=4)
        first, second = scene(BOOT + timedelta(hours=9), (0, 50)), [(at, text) for at, text in scene(again + timedelta(hours=2), (0, 60))]
        text = dmesg(first, BOOT) + mark + dmesg(second, again)
        files = {"a.log": text, "old.log": dmesg(first[1:], BOOT)}
        case = kernel_case(tmp_path, files, dict.fromkeys(files, "host-a"), hosts=noted(again, None))
        found = placed(case)["a.log"]
        assert found[:2] == [None, None]
        assert close(found[2:], second)
        assert placed(case)["old.log"] == [None], "the last boot of its file, but not of the host"
        boots = case.derive(clocks).kernel.boots
        told = [boots["a.log", record] for record in sorted(r for f, r in boots if f == "a.log")]
        assert (told[0], told[2]) == (told[1], told[3])
        assert boots["old.log", "L1"] == told[0] != told[2]

    def test_a_host_that_slept(self, tmp_path: Path) -> None:
        """The time since boot stands still meanwhile: the clock of the line counts."""
        woke, slept = START + timedelta(hours=9, minutes=7), timedelta(hours=5, minutes=7, seconds=20)
        line = f"{short(woke)} host-a kernel: [{(woke - slept - BOOT).total_seconds():12.6f}] {xid(7)}\n"
        journal = f"{START:%Y-%m-%dT%H:%M:%S.%fZ} host-a kernel: [{(START - BOOT).total_seconds():12.6f}] {xid(1)}\n"
        cases: list[tuple[str, str, dict[str, Any]]] = [
            ("audit", audit(START, BOOT, timedelta()) + line, {}),
            ("journal", journal + line, {"hosts": noted(BOOT - timedelta(days=300), timedelta())}),
        ]
        for name, text, rows in cases:
            assert close(placed(kernel_case(tmp_path, {name: text}, **rows))[name][-1:], [(woke, xid(7))]), name

    def test_a_message_that_names_no_process_may_come_again(self, tmp_path: Path) -> None:
        """Word for word, in another boot: it ties no clocks together."""
        body = "pcieport 0000:16:01.0: AER: Uncorrected (Fatal) error received: 0000:16:01.0"
        again = BOOT + timedelta(days=2)
        files = {
            "ring.old": dmesg([(BOOT + timedelta(hours=1), body)], BOOT),
            "journal": iso([(again + timedelta(hours=3), body)], timedelta()),
        }
        assert placed(kernel_case(tmp_path, files, dict.fromkeys(files, "host-a")))["ring.old"] == [None]

    def test_a_syslog_of_two_boots_is_of_one_zone(self, tmp_path: Path) -> None:
        again = BOOT + timedelta(days=4, seconds=333)
        first, second = scene(BOOT + timedelta(hours=9), (0, 50)), scene(again + timedelta(hours=2), (0, 60))
        text = syslog(first, BOOT, HALF_PAST_FIVE) + syslog(second, again, HALF_PAST_FIVE)
        found = placed(kernel_case(tmp_path, {"a.log": text}, hosts=noted(again, None)))["a.log"]
        assert close(found, [*first, *second])

    def test_the_same_message_in_two_files_dates_the_boot(self, tmp_path: Path) -> None:
        """The ring of the kernel counts from boot, the journal has instants: in one of both, whatever else they hold."""
        told = scene(START)
        files = {"ring.log": dmesg(told, BOOT), "journal.log": iso(told[1:2], timedelta(hours=2))}
        assert close(placed(kernel_case(tmp_path, files, dict.fromkeys(files, "host-a")))["ring.log"], told)
        other = kernel_case(tmp_path, files, {"ring.log": "host-b", "journal.log": "host-a"})
        assert placed(other)["ring.log"] == [None] * 5, "another host has booted at another time"

    def test_a_rotated_log_is_of_an_earlier_boot(self, tmp_path: Path) -> None:
        """Nothing in it fits the boot that was noted, in any zone: it is not placed by it."""
        again = BOOT + timedelta(days=4, seconds=333)
        case = kernel_case(tmp_path, {"kern.1": syslog(scene(START), BOOT, HALF_PAST_FIVE)}, hosts=noted(again, None))
        assert placed(case)["kern.1"] == [None] * 5

    def test_a_kernels_clock_drifts(self, tmp_path: Path) -> None:
        """40 days after the boot that was noted it is 35 s behind: the stamps of the lines count, the time since boot only parts them."""
        boot = START - timedelta(days=40)
        told = scene(START, (0, 0.25, 0.5))
        late = [(at - timedelta(seconds=35), text) for at, text in told]
        lines = zip(syslog(told, None, timedelta(hours=2)).splitlines(), dmesg(late, boot).splitlines(), strict=True)
        text = "".join(f"{stamp.partition('NVRM')[0]}{line}\n" for stamp, line in lines)
        for number, zone in enumerate((timedelta(hours=2), None)):
            found = placed(kernel_case(tmp_path, {f"{number}.log": text}, hosts=noted(boot, zone)))[f"{number}.log"]
            assert close(found, told), number
            assert len(set(found)) == 3, number

    def test_what_the_kernel_said_before_the_daemon_started(self, tmp_path: Path) -> None:
        """All of it has the stamp of that start: the time since boot is the better clock."""
        told = scene(BOOT + timedelta(seconds=2), (0, 5, 30))
        late = f"{short(BOOT + timedelta(seconds=40))} host-a kernel: "
        text = "".join(f"{late}[{(at - BOOT).total_seconds():12.6f}] {body}\n" for at, body in told)
        assert close(placed(kernel_case(tmp_path, {"a.log": text}, hosts=noted(BOOT, timedelta())))["a.log"], told)


class TestSummerTime:
    ENDS = datetime(2025, 10, 26, 1, 0, tzinfo=UTC)  # in Europe: 03:00 +02:00 becomes 02:00 +01:00

    def texts(self, change: datetime, before_h: int, after_h: int, boot: datetime | None) -> tuple[Told, str]:
        told = scene(change - timedelta(minutes=50), (0, 40 * 60, 15 * 60, 30 * 60, 3600))
        lines = [syslog([one], boot, timedelta(hours=before_h if one[0] < change else after_h)) for one in told]
        return told, "".join(lines)

    def test_an_hour_back(self, tmp_path: Path) -> None:
        boot = self.ENDS - timedelta(days=9)
        for number, (up, hosts) in enumerate(
            [(boot, noted(boot, None)), (boot, noted(boot, timedelta(hours=1))), (None, noted(boot, timedelta(hours=1)))]
        ):
            told, text = self.texts(self.ENDS, 2, 1, up)
            found = placed(kernel_case(tmp_path, {f"{number}.log": text}, hosts=hosts))[f"{number}.log"]
            assert close(found, told, 2.0), (number, found)

    def test_an_hour_forward(self, tmp_path: Path) -> None:
        change = datetime(2025, 3, 30, 1, 0, tzinfo=UTC)
        boot = change - timedelta(days=9)
        told, text = self.texts(change, 1, 2, boot)
        assert close(placed(kernel_case(tmp_path, {"a.log": text}, hosts=noted(boot, timedelta(hours=2))))["a.log"], told, 2.0)
        told, text = self.texts(change, 1, 2, None)
        ends = audit(told[0][0], None, timedelta(hours=1)) + text + audit(told[-1][0], None, timedelta(hours=2))
        found = placed(kernel_case(tmp_path, {"b.log": ends}))["b.log"]
        assert all(one is None or close([one], [at]) for one, at in zip(found, told, strict=True)), "where the hour was lost is not told"

    def test_an_hour_forward_in_a_boot_that_nothing_dates(self, tmp_path: Path) -> None:
        """The time since boot shows where the clock was put forward; the zone that was noted is the one afterwards."""
        change = datetime(2025, 3, 30, 1, 0, tzinfo=UTC)
        told, text = self.texts(change, 1, 2, change - timedelta(days=9))
        again = change + timedelta(days=2)
        later = scene(again + timedelta(minutes=5), (0, 40))
        case = kernel_case(tmp_path, {"a.log": text + syslog(later, again, timedelta(hours=2))}, hosts=noted(again, timedelta(hours=2)))
        assert close(placed(case)["a.log"], [*told, *later], 2.0)

    def test_a_clock_that_was_set_is_no_summer_time(self, tmp_path: Path) -> None:
        told, text = self.texts(self.ENDS, 2, 1, None)
        lines = text.splitlines(keepends=True)
        lines.insert(2, f"{short(self.ENDS + timedelta(hours=1))} host-a systemd[1]: Time has been changed\n")
        found = placed(kernel_case(tmp_path, {"a.log": "".join(lines)}, hosts=noted(BOOT, timedelta(hours=1))))["a.log"]
        assert close(found[2:], told[2:])
        assert found[0] is not None
        assert found[0] - told[0][0] == timedelta(hours=1), "the clock was wrong, not the zone"


def test_the_zone_of_the_jobs_logs_is_taken_where_it_cannot_mislead(tmp_path: Path) -> None:
    """A kernel prints local time, and so do the ranks on its host. In another zone a record near the job would not be of it: that stays open."""
    ranks = [{"evidence_id": "map", "rank": 0, "host": "host-a"}]
    logs = [
        {"evidence_id": "rank-0", "rank": 0, "logged_at_local": f"2026-03-01T17:{minute}:21", "signature": "train_progress"}
        for minute in (28, 29)
    ]
    job = [{**JOB, "first_at": START, "last_at": START + timedelta(minutes=1)}]
    told = [(START + timedelta(seconds=30), xid(0)), (START - timedelta(hours=3), xid(1)), (START - timedelta(days=9), xid(2))]
    case = kernel_case(tmp_path, {"a.log": syslog(sorted(told), None, HALF_PAST_FIVE)}, ranks=ranks, log_events=logs, dumps=job)
    old, near, during = placed(case)["a.log"]
    assert close([old, during], [told[2], told[0]])
    assert near is None


def quiet(at: datetime, zone: timedelta = timedelta()) -> str:
    """A line that tells nothing but that the log was written then."""
    return f"{short(at + zone)} host-a kernel: eth0: link is up\n"


UTC_LOGS: dict[str, Any] = {
    "ranks": [{"evidence_id": "map", "rank": 0, "host": "host-a"}],
    "log_events": [
        {"evidence_id": "rank-0", "rank": 0, "logged_at_local": f"{START + timedelta(seconds=s):%Y-%m-%dT%H:%M:%S}", "signature": "x"}
        for s in (0, 59)
    ],
    "dumps": [{**JOB, "first_at": START, "last_at": START + timedelta(minutes=1)}],
}


def test_a_zone_that_only_the_jobs_logs_tell_is_not_believed_of_a_log_that_ends_at_another_time(tmp_path: Path) -> None:
    """Containers have UTC, the host may not: a record an hour before the job prints a time within it, and the file goes on for an hour."""
    at = START + timedelta(seconds=20)
    for number, (end_s, expected) in enumerate(((180, at.replace(microsecond=0)), (3780, None), (7200, None), (-3600, None))):
        printed = f"{short(at)} host-a kernel: {xid(1)}\n" if end_s > 0 else f"{short(at - timedelta(hours=3))} host-a kernel: {xid(1)}\n"
        text = quiet(at - timedelta(hours=4)) + printed + quiet(START + timedelta(seconds=end_s))
        assert placed(kernel_case(tmp_path, {f"{number}.log": text}, **UTC_LOGS))[f"{number}.log"] == [expected], end_s


def test_years_are_counted_back_from_the_end_of_a_log_of_many_months(tmp_path: Path) -> None:
    """Records of the same day and hour as the job, one year or two before it; lines of other months between tell so."""
    at = START + timedelta(seconds=20)
    for months, years in (([7], 1), ([5, 9, 11], 1), ([10], 1), ([7, 10, 12, 3, 5, 8, 11], 2), ([], 0)):
        between = "".join(quiet(datetime(2025, month, 3, tzinfo=UTC)) for month in months)
        filler = "".join(quiet(datetime(2025, month, 4, tzinfo=UTC)) * 2000 for month in months)
        for number, rest in enumerate((between, filler)):
            name = f"{len(months)}-{months[:1]}-{number}.log"
            text = f"{short(at)} host-a kernel: {xid(1)}\n{rest}" + quiet(START + timedelta(minutes=2))
            (found,) = placed(kernel_case(tmp_path, {name: text}, hosts=noted(BOOT, timedelta()), dumps=UTC_LOGS["dumps"]))[name]
            assert found is not None, name
            assert found.year == 2026 - years, (name, found)


def test_a_file_that_rotation_has_dated_is_of_that_year(tmp_path: Path) -> None:
    at = START + timedelta(seconds=20)
    for name, year in (("messages-20250308", 2025), ("messages-20260308.gz", 2026), ("messages-20269999", 2026)):
        text = f"{short(at)} host-a kernel: {xid(1)}\n" + quiet(at + timedelta(days=1))
        (found,) = placed(kernel_case(tmp_path, {name: text}, hosts=noted(BOOT, timedelta()), dumps=UTC_LOGS["dumps"]))[name]
        assert found is not None
        assert found.year == year, name


def test_what_was_noted_of_a_boot_is_of_one_of_two_boots(tmp_path: Path) -> None:
    """A log that covers the time of a record and does not hold it is of another boot; a renamed one is the older."""
    boot, record, up = START - timedelta(seconds=5000), xid(1), 5020.0

    def ring(*ups: float, told: bool) -> str:
        lines = [(u, "eth0: link is up") for u in ups] + ([(up, record)] if told else [])
        return "".join(f"[{u:12.6f}] {body}\n" for u, body in sorted(lines))

    def of(files: dict[str, str]) -> Any:
        for old in tmp_path.iterdir():
            old.unlink()
        case = kernel_case(tmp_path, files, dict.fromkeys(files, "host-a"), hosts=noted(boot, None), dumps=UTC_LOGS["dumps"])
        kernel = case.derive(clocks).kernel
        return {file: placed(case).get(file, ["none"])[0] for file in files}, {file: at for (file, _), at in kernel.ended.items()}

    at, wide, short_one = boot + timedelta(seconds=up), (900.0, 6000.0), (1.0, 5030.0)
    assert of({"dmesg": ring(*wide, told=False), "dmesg.0": ring(*wide, told=True)}) == (
        {"dmesg": "none", "dmesg.0": None},
        {"dmesg.0": boot},
    )
    assert of({"dmesg": ring(*wide, told=True), "dmesg.0": ring(*wide, told=False)}) == ({"dmesg": at, "dmesg.0": "none"}, {})
    assert of({"a": ring(*wide, told=True), "b": ring(*wide, told=False)}) == ({"a": None, "b": "none"}, {}), "which one is not told"
    assert of({"a": ring(*wide, told=True), "b": ring(*short_one, told=False)}) == ({"a": at, "b": "none"}, {}), (
        "one lasts to the job's end"
    )
    assert of({"a": ring(*wide, told=True), "b": ring(1.0, 4000.0, told=False)}) == ({"a": at, "b": "none"}, {}), "an earlier look"
    assert of({"a": ring(*wide, told=True), "b": ring(*wide, told=True)}) == ({"a": at, "b": at}, {}), "the same one twice"
    assert of({"a": ring(900.0, 9e6, told=True)}) == ({"a": None}, {}), "it would end months after the job"
    two = (
        "[    0.000000] Linux version 5.15.0\n" + ring(*wide, told=True) + "[    0.000000] Linux version 5.15.0\n" + ring(*wide, told=False)
    )
    assert of({"a": two}) == ({"a": None}, {"a": boot}), "the boot before the noted one had ended when that began"


def test_undated_records_that_cannot_be_of_the_job_are_told(tmp_path: Path) -> None:
    span = START, START + timedelta(minutes=20)
    told = {
        "weeks.log": f"[  100.000000] {xid(1)}\n[ 2000000.000000] eth0: link is up\n",
        "hours.log": f"[  100.000000] {xid(1)}\n[ 20000.000000] eth0: link is up\n",
        "days.log": f"Dec 20 10:00:00 kernel: {xid(1)}\nDec 24 10:00:00 kernel: eth0: link is up\n",
        "year.log": f"Dec 20 10:00:00 kernel: eth0: link is up\nJan  3 10:00:00 kernel: {xid(1)}\n",
    }
    case = kernel_case(tmp_path, told, dict.fromkeys(told, "host-a"))
    assert sorted(file for file, _ in past(case, span)) == ["days.log", "weeks.log"]
    ends = {"turn.log": f"Dec 31 12:00:00 kernel: {xid(1)}\nJan  1 00:03:10 kernel: {xid(2)}\n", "day.log": f"12:00:00 kernel: {xid(1)}\n"}
    counted = before_the_end(kernel_case(tmp_path, ends, dict.fromkeys(ends, "host-a")))
    assert {key: seconds for key, seconds in counted.items() if key[0] == "turn.log"} == {
        ("turn.log", "L1"): -(12 * 3600 + 190.0),
        ("turn.log", "L2"): 0.0,
    }
    two = f"[    0.000000] Linux version 5\n[ 50.000000] {xid(1)}\n[    0.000000] Linux version 5\n[ 4000.000000] eth0: link is up\n"
    for began, gone in ((span[0] - timedelta(hours=1), ["two.log"]), (span[0] + timedelta(minutes=9), [])):
        case = kernel_case(tmp_path, {"two.log": two}, {"two.log": "host-a"}, hosts=noted(began, None))
        assert [file for file, _ in past(case, span)] == gone, "a host that rebooted in the job may have been its fault"


def test_a_kill_that_the_launcher_saw_dates_the_kernels_log(tmp_path: Path) -> None:
    """Nothing was noted of the host: the process that both name was killed once."""
    killed = "Out of memory: Killed process 4242 (python3) total-vm:1kB, anon-rss:2kB, file-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0"
    told = [*scene(START), (START + timedelta(hours=4), killed)]
    seen = {"evidence_id": "agent", "rank": 0, "host": "host-a", "pid": 4242, "signature": "process_signal", "signal": "SIGKILL"}
    kill = {**seen, "logged_at": told[-1][0] + timedelta(seconds=1.5)}
    for name, text in (("syslog", syslog(told, None, HALF_PAST_FIVE)), ("ring", dmesg(told, BOOT))):
        assert close(placed(kernel_case(tmp_path, {name: text}, {name: "host-a"}, log_events=[kill]))[name], told, 1.5), name
        for other in ({"host": "host-b"}, {"pid": 4243}, {"signal": "SIGTERM"}):
            case = kernel_case(tmp_path, {name: text}, {name: "host-a"}, log_events=[kill | other])
            assert set(placed(case)[name]) == {None}, (name, other)


def test_epochs_of_memory_errors_and_of_lustre(tmp_path: Path) -> None:
    at = datetime(2018, 2, 23, 3, 28, 16, tzinfo=UTC)
    told = scene(at + timedelta(minutes=2), (0, 50))
    lines: list[Callable[[int], str]] = [
        lambda epoch: f"mce: [Hardware Error]: PROCESSOR 0:306f2 TIME {epoch} SOCKET 0 APIC 0 microcode 2b",
        lambda epoch: (
            f"Lustre: 7:0:(client.c:1920:ptlrpc_expire_one_request()) @@@ Request sent has timed out for slow reply: [sent {epoch}/real {epoch}]"
        ),
    ]
    for number, line in enumerate(lines):
        text = syslog([(at, line(int(at.timestamp())))], None, timedelta(hours=-6)) + syslog(told, None, timedelta(hours=-6))
        found = placed(kernel_case(tmp_path, {f"{number}.log": text}))[f"{number}.log"]
        assert close(found[-2:], told), number


def test_shuffled_records_of_one_file_are_placed_as_before(tmp_path: Path) -> None:
    told = scene(START)
    case = kernel_case(tmp_path, {"a.log": syslog(told, BOOT, HALF_PAST_FIVE)}, hosts=noted(BOOT, None))
    expected = placed(case)
    rows = case.frames["kernel_events"].to_dicts()
    random.Random(3).shuffle(rows)
    shuffled = MemoryCase(
        {
            **case.frames,
            "kernel_events": case.frames["kernel_events"]
            .clear()
            .vstack(type(case.frames["kernel_events"])(rows, schema=case.frames["kernel_events"].schema)),
        }
    )
    assert placed(shuffled) == expected


class TestLocalTime:
    def test_a_stamp_is_filled_nearest(self) -> None:
        near = datetime(2025, 3, 4, 12)
        for text, year in (("02-29T10:00:00", 2024), ("12-31T23:59:59", 2024), ("03-04T12:00:01", 2025), ("2019-01-01 00:00:00", 2019)):
            found = filled(text, near)
            assert found is not None, text
            assert found.year == year, text
        assert [filled("02-29T10:00:00", datetime(year, 3, 4)) for year in (2025, 2026, 2027)] == [datetime(2024, 2, 29, 10)] * 3
        assert filled("23:59:59.5", datetime(2025, 3, 4, 0, 1)) == datetime(2025, 3, 3, 23, 59, 59, 500000)
        assert [filled(text, near) for text in ("soon", "", "99:99:99", "02-30T00:00:00")] == [None] * 4
        assert filled("23:00:00", datetime.min) is not None, "before the first day there is none"

    def test_a_chain_goes_over_the_end_of_a_year_both_ways(self) -> None:
        texts = ["12-30T10:00:00", None, "12-31T23:59:00", "01-01T00:01:00", "02-29T00:00:00"]
        found = chained(texts, {3: datetime(2024, 1, 1)})
        assert [moment.year if moment else None for moment in found] == [2023, None, 2023, 2024, 2024]
        assert chained(texts, {}) == [None] * 5
