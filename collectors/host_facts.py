"""Facts of hosts as JSON: when each booted and how its clock is set, which places kernel lines without an instant.

`{"host-a": {"boot_time_ns": 1772000000000000000}, ...}`, a list of objects with `host` (or hostname, node) beside them, or one such
object. Boot: boot_time_ns, boot_time_s, boot_time, boot_at or btime, as nanoseconds or seconds since 1970, or ISO 8601 with a zone.
Zone: zone_offset_s or utc_offset_s, seconds ahead of UTC. One of the two will do: a boot dates what counts from it, a zone what is in local time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from collectors._kernel_prefix import host_name
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("hosts",)

MAX_BYTES: Final = 1 << 26
MAX_HOSTS: Final = 1_000_000
BOOT_KEYS: Final = ("boot_time_ns", "boot_time_s", "boot_time", "boot_at", "btime")
HOST_KEYS: Final = ("host", "hostname", "node", "node_name")
ZONE_KEYS: Final = ("zone_offset_s", "utc_offset_s")
MAX_ZONE_S: Final = 15 * 3600
NS_FROM: Final = 1e15  # a number above it counts nanoseconds: as seconds it would lie 30 million years ahead
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS_S: Final = (0.0, 4e9)  # 1970 to 2096: a boot outside is no boot
_HEAD: Final = re.compile(rb'"(?:' + "|".join((*BOOT_KEYS, *ZONE_KEYS)).encode() + rb')"\s*:\s*["\d-]')


def claims(name: str, head: bytes) -> bool:
    """JSON, not JSON lines, with the boot or the zone of a host in it."""
    start = head.lstrip()
    return start[:1] in (b"{", b"[") and _HEAD.search(start) is not None and b"}\n{" not in start.replace(b"\r", b"")


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `hosts`, in the order of the file."""
    data, torn = source.read(MAX_BYTES + 1)
    if torn:
        yield Skip(None, f"breaks off: {torn}")
    if len(data) > MAX_BYTES:
        raise EvidenceError(source.path, None, f"more than {MAX_BYTES:,} bytes: no list of hosts")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(source.path, None, f"no valid JSON ({error})") from None
    rows = []
    for place, (name, facts) in enumerate(_entries(document)[:MAX_HOSTS]):
        host = host_name(name)
        boot, zone = _boot(facts), _zone(facts)
        if host is None:
            yield Skip(f"E{place}", "names no host")
            continue
        if boot is None and (zone is None or any(facts.get(key) is not None for key in BOOT_KEYS)):
            yield Skip(f"E{place}", "gives no boot time that can be placed in UTC" + (" and no zone" if zone is None else ""))
        if boot is not None or zone is not None:
            rows.append({"record": f"E{place}", "host": host, "boot_at": boot, "zone_offset_s": zone})
    yield TABLES["hosts"], TABLES["hosts"].rows(rows)


def _entries(document: Any) -> list[tuple[str | None, dict[str, Any]]]:
    """Host and its facts, for any of the three forms."""
    if isinstance(document, list):
        return [(_name(entry), entry if isinstance(entry, dict) else {}) for entry in document]
    if not isinstance(document, dict):
        return []
    if any(key in document for key in (*BOOT_KEYS, *ZONE_KEYS)):
        return [(_name(document), document)]
    return [(name, facts if isinstance(facts, dict) else {}) for name, facts in document.items()]


def _name(entry: Any) -> str | None:
    values = [entry[key] for key in HOST_KEYS if key in entry] if isinstance(entry, dict) else []
    return next((value for value in values if isinstance(value, str)), None)


def _boot(facts: dict[str, Any]) -> datetime | None:
    value = next((facts[key] for key in BOOT_KEYS if facts.get(key) is not None), None)
    if isinstance(value, str) and not re.fullmatch(r"[0-9.]{1,30}", value):
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            return None
        return at.astimezone(UTC) if at.tzinfo and 1970 < at.year < 2097 else None  # without a zone it cannot be placed
    number = _number(value)
    if number is None:
        return None
    microseconds = int(number) // 1000 if number >= NS_FROM else round(number * 1e6)
    return _EPOCH + timedelta(microseconds=microseconds) if _YEARS_S[0] < microseconds / 1e6 < _YEARS_S[1] else None


def _zone(facts: dict[str, Any]) -> float | None:
    value = next((number for key in ZONE_KEYS if (number := _number(facts.get(key))) is not None), None)
    return float(value) if value is not None and abs(value) <= MAX_ZONE_S else None


def _number(value: Any) -> int | float | None:
    """A finite number, also one written as a string; whole ones stay whole, since nanoseconds need every digit."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or (isinstance(value, str) and not value.isascii()):
        return None
    try:
        number = (int(value) if value.isdigit() else float(value)) if isinstance(value, str) else value
        return number if math.isfinite(number) else None
    except (ValueError, OverflowError):
        return None
