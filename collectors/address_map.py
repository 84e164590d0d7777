"""Which address is which host's: hosts files, maps and inventories that give both. Network errors name the far end by its address.

Text as in /etc/hosts or `getent hosts` (`192.0.2.5 node-b node-b.cluster`); CSV with a host and an address column (a rank map too); JSON: a list
of objects with both, `{"node-b": "192.0.2.5"}` either way round, an object by host, nodes and pods as `kubectl get -o json` prints them.
"""

from __future__ import annotations

import csv
import io
import ipaddress
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from collectors._config_tables import HOST_KEYS, LISTS
from collectors._kernel_prefix import host_name
from collectors._lines import is_text
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("host_addresses",)

MAX_BYTES: Final = 1 << 26
MAX_ROWS: Final = 100_000
SNIFF_LINES: Final = 200
MOST: Final = 0.8  # of the lines of a hosts file must be entries
ADDRESS_KEYS: Final = (
    *("ip", "ips", "ip_address", "ip_addr", "ipaddress", "address", "addresses", "addr", "host_ip", "hostip", "node_ip", "private_ip"),
    *("internal_ip", "pod_ip", "podip", "ib_ip", "rdma_ip", "ipv4", "ipv6"),
)
_ENTRY: Final = re.compile(
    r"(?P<address>[0-9a-fA-F][0-9a-fA-F:.]{2,44})(?:%\S{1,16})?[ \t]{1,40}(?P<names>[A-Za-z][\w.\-]{0,200}(?:[ \t]{1,40}[\w.\-]{1,200}){0,20})"
)
_QUOTED: Final = rb'"(?:\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}|[0-9a-fA-F]{1,4}:[0-9a-fA-F:.]{2,40})"'
_JSON_KEY: Final = re.compile(rb'"(?:' + "|".join(ADDRESS_KEYS).encode() + rb')"\s*:\s*(?:\[\s*)?' + _QUOTED, re.I)
_JSON_HOST: Final = re.compile(rb'"(?:' + "|".join(HOST_KEYS).encode() + rb')"\s*:\s*"|^\s*\{\s*"[A-Za-z][\w.\-]{1,80}"\s*:\s*\{', re.I)
_JSON_PAIRS: Final = re.compile(
    rb'\s*\{\s*(?:"[A-Za-z][\w.\-]{0,80}"\s*:\s*' + _QUOTED + rb"|" + _QUOTED + rb'\s*:\s*"[A-Za-z][\w.\-]{0,80}")\s*[,}]'
)
_NODES: Final = re.compile(rb'"(?:InternalIP|podIPs?|hostIP)"')
_OTHERS: Final = re.compile(rb'"(?:schema_version|step|loss|frames|entries|msg|log|MESSAGE|t_ns|round|dur_ms|traceEvents)"\s*:')


_host_name = lru_cache(maxsize=4096)(host_name)


def claims(name: str, head: bytes) -> bool:
    """A hosts file, or a table or document that gives addresses beside hosts and nothing of a log or measurement."""
    if head.lstrip()[:1] in (b"{", b"["):
        if _NODES.search(head) and b'"kind"' in head:
            return True
        if _OTHERS.search(head) or b'"message"' in head:
            return False
        return _JSON_PAIRS.match(head) is not None or (_JSON_KEY.search(head) is not None and _JSON_HOST.search(head) is not None)
    if head[:1] == b"\x80" or not is_text(head):
        return False
    lines = head.decode("utf-8-sig", "replace").split("\n")[:SNIFF_LINES]
    return _columns(lines[0]) is not None or _is_hosts_file(lines)


def _is_hosts_file(lines: Sequence[str]) -> bool:
    said = [line for line in lines if (text := line.strip()) and not text.startswith("#")]
    entries = [found for line in said if (found := _ENTRY.fullmatch(line.partition("#")[0].strip())) and _address(found["address"])]
    return len(entries) >= 1 and len(entries) + sum("localhost" in line or "loopback" in line for line in said) >= MOST * len(said)


def _columns(line: str) -> tuple[str, int, list[int]] | None:
    """Delimiter, place of the host and places of the addresses in a header; None for any other line."""
    delimiter = max(",;\t", key=line.count)
    names = [cell.strip().strip('"').strip().lower() for cell in line[:4000].split(delimiter)]
    of_host = [place for place, name in enumerate(names) if name in HOST_KEYS]
    of_address = [place for place, name in enumerate(names) if name in ADDRESS_KEYS]
    return (delimiter, of_host[0], of_address) if of_host and of_address and len(names) > 1 and "step" not in names else None


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `host_addresses`, in the order of the file. Loopback and link-local addresses are every host's and left out."""
    data, torn = source.read(MAX_BYTES + 1)
    if torn:
        yield Skip(None, f"breaks off: {torn}")
    if len(data) > MAX_BYTES:
        raise EvidenceError(source.path, None, f"more than {MAX_BYTES:,} bytes: no map of addresses")
    rows: list[dict[str, object]] = []
    for record, host, address in _pairs(source, data.decode("utf-8-sig", "replace")):
        if (name := _host_name(host)) is None or (shown := _address(address)) is None:
            continue
        if len(rows) == MAX_ROWS:
            yield Skip(record, f"more than {MAX_ROWS:,} addresses: the rest is left out")
            break
        rows.append({"record": record, "host": name, "address": shown})
    if not rows:
        yield Skip(None, "gives no address beside a host")
    yield TABLES["host_addresses"], TABLES["host_addresses"].rows(rows)


def _pairs(source: Source, text: str) -> Iterator[tuple[str, str, str]]:
    """Record, host and address."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise EvidenceError(source.path, None, f"no valid JSON ({str(error)[:100]})") from None
        yield from _of_json(document)
        return
    header = _columns(text.split("\n", 1)[0])
    if header is None:
        for number, line in enumerate(text.split("\n"), 1):
            if found := _ENTRY.fullmatch(line[:2000].partition("#")[0].strip()):
                yield f"L{number}", found["names"].split()[0], found["address"]
        return
    delimiter, of_host, of_address = header
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        next(rows, None)
        for cells in rows:
            for place in of_address if len(cells) > max(of_host, *of_address) else ():
                yield f"L{rows.line_num}", cells[of_host].strip(), cells[place]
    except csv.Error as error:
        raise EvidenceError(source.path, None, f"no valid CSV ({error})") from None


def _of_json(document: Any) -> Iterator[tuple[str, str, str]]:
    lead = "E"
    if isinstance(document, dict) and (
        inner := next((k for k in ("items", "ranks", *LISTS) if isinstance(document.get(k), list | dict)), None)
    ):
        document, lead = document[inner], f"{inner}/E"
    if isinstance(document, dict) and not any(isinstance(document.get(key), str) for key in HOST_KEYS):
        for place, (name, value) in enumerate(document.items()):
            if isinstance(value, dict):
                yield from _of_entry({"host": name, **value}, f"{lead}{place}")
            elif isinstance(value, str) and isinstance(name, str):
                yield (f"{lead}{place}", value, name) if _address(name) else (f"{lead}{place}", name, value)
        return
    for place, entry in enumerate(document if isinstance(document, list) else [document]):
        if isinstance(entry, dict):
            yield from _of_entry(entry, f"{lead}{place}")


def _of_entry(entry: Mapping[Any, Any], record: str) -> Iterator[tuple[str, str, str]]:
    status, spec, about = (part if isinstance(part := entry.get(key), dict) else {} for key in ("status", "spec", "metadata"))
    lowered = {key.lower(): value for key, value in entry.items() if isinstance(key, str)}
    host = next((value for key in HOST_KEYS if isinstance(value := lowered.get(key), str)), None)
    host = host or (spec.get("nodeName") if isinstance(spec.get("nodeName"), str) else None) or (about.get("name") if status else None)
    if not isinstance(host, str):
        return
    said = [lowered[key] for key in ADDRESS_KEYS if key in lowered] + [status.get(key) for key in ("hostIP", "podIP", "addresses")]
    for value in said:
        for one in value if isinstance(value, list) else [value]:
            text = one.get("address") if isinstance(one, dict) else one
            if isinstance(text, str):
                yield record, host, text


@lru_cache(maxsize=4096)
def _address(text: str) -> str | None:
    """An address in its usual form; None for what is none, or any host's own."""
    try:
        address = ipaddress.ip_address(text.strip()[:60].partition("%")[0].partition("/")[0])
    except ValueError:
        return None
    return None if address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast else str(address)
