"""Boot times of hosts from JSON of three forms, in nanoseconds, seconds or ISO 8601; what cannot be placed is skipped, never guessed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from _sources import FIXTURES, rows_of, source_of

from collectors import host_facts

BOOT = datetime(2026, 3, 2, 8, 12, 7, tzinfo=UTC)
EPOCH_S = int(BOOT.timestamp())


def test_object_by_host_keeps_order_and_microseconds(tmp_path: Path) -> None:
    data = (FIXTURES / "kernel_hosts.json").read_bytes()
    assert host_facts.claims("x", data)
    tables, skips = rows_of(host_facts, source_of(tmp_path, data))
    assert skips == []
    at = datetime.fromtimestamp(1772000000, UTC) + timedelta(microseconds=123456)
    assert [(r["host"], r["record"]) for r in tables["hosts"]] == [("host-a", "E0"), ("host-b", "E1")]
    assert tables["hosts"][0]["boot_at"] == at


@pytest.mark.parametrize(
    "facts",
    [
        {"boot_time_ns": EPOCH_S * 10**9},
        {"boot_time_ns": str(EPOCH_S * 10**9)},
        {"boot_time_s": EPOCH_S},
        {"btime": float(EPOCH_S)},
        {"boot_time": "2026-03-02T08:12:07Z"},
        {"boot_at": "2026-03-02T10:12:07+02:00"},
    ],
)
def test_every_unit_gives_the_same_instant(facts: dict[str, Any], tmp_path: Path) -> None:
    for document in ([{"hostname": "host-a", **facts}], {"host-a": facts}, {"host": "host-a", **facts}):
        data = json.dumps(document).encode()
        assert host_facts.claims("x", data)
        tables, _ = rows_of(host_facts, source_of(tmp_path, data))
        assert [(r["host"], r["boot_at"]) for r in tables["hosts"]] == [("host-a", BOOT)]


@pytest.mark.parametrize("boot", ["2026-03-02T08:12:07", "yesterday", -5, 0, 1e300, True, None, [], "9" * 29, "1.2.3"])
def test_boot_that_cannot_be_placed_is_skipped(boot: Any, tmp_path: Path) -> None:
    tables, skips = rows_of(host_facts, source_of(tmp_path, json.dumps({"host-a": {"boot_time": boot}}).encode()))
    assert (tables["hosts"], [skip.record for skip in skips]) == ([], ["E0"])


def test_zone_is_kept_where_it_is_one(tmp_path: Path) -> None:
    entries = [{"host": "a", "btime": EPOCH_S, "zone_offset_s": -25200}, {"host": "b", "btime": EPOCH_S, "utc_offset_s": 10**9}]
    tables, _ = rows_of(host_facts, source_of(tmp_path, json.dumps(entries).encode()))
    assert [r["zone_offset_s"] for r in tables["hosts"]] == [-25200.0, None]


def test_a_zone_alone_will_do(tmp_path: Path) -> None:
    for document in (
        {"host-a": {"zone_offset_s": -25200}},
        [{"node": "host-a", "utc_offset_s": "-25200"}],
        {"host": "host-a", "utc_offset_s": -25200},
    ):
        data = json.dumps(document).encode()
        assert host_facts.claims("hosts.json", data), document
        tables, skips = rows_of(host_facts, source_of(tmp_path, data))
        assert skips == []
        assert [(r["host"], r["boot_at"], r["zone_offset_s"]) for r in tables["hosts"]] == [("host-a", None, -25200.0)]
    tables, skips = rows_of(host_facts, source_of(tmp_path, b'{"host-a": {"btime": "yesterday", "zone_offset_s": 3600}}'))
    assert ([r["zone_offset_s"] for r in tables["hosts"]], [s.record for s in skips]) == ([3600.0], ["E0"])


def test_logs_and_maps_are_left_to_others() -> None:
    for data in (
        b'{"rank": 0, "host": "host-a"}',
        b'{"t": 1, "btime": 5}\n{"t": 2, "btime": 6}\n',
        b"boot_time_ns: 5",
        b'[{"boot_time": null}]',
    ):
        assert not host_facts.claims("hosts.json", data)
