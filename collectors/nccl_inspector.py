"""Finished calls that NCCL's Inspector plugin writes down: JSON objects with `header`, `metadata` and `coll_perf` or `p2p_perf` (formats v4.x, v5.x).

Only what ended is written, in batches: a call that hangs is a gap, and the last batch may be missing. `logged_at` is when the batch was written.
Objects may stand one a line, spread over lines, in a list, or one behind the other. A record of counts alone (`dump_stats`) is no call: since v4.3
it alone holds the header of a batch, which is of as many records behind it as it counts. Nor is one of the network's (`proxy_trace`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from collectors import _json_records as json_of
from collectors._json_stream import stream
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("nccl_calls",)
IS_ALONE = True

BATCH_ROWS: Final = 50_000
_PER_S: Final = 1_000_000  # the format counts microseconds
_KINDS: Final = (("coll_perf", "coll", False), ("p2p_perf", "p2p", True))
_COUNTED: Final = ("coll_records", "p2p_records", "proxy_records")  # of a batch
_IS_CALL: Final = re.compile(rb'"(?:coll_perf|p2p_perf|dump_stats)"\s*:\s*\{')
_IS_INSPECTOR: Final = re.compile(
    rb'"(?:inspector_output_format_version|rec_mechanism|(?:coll|p2p)_(?:sn|exec_time_us|msg_size_bytes))"\s*:'
)


def claims(name: str, head: bytes) -> bool:
    """Objects that hold a finished call and say who wrote it down."""
    starts = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    return starts in (b"{", b"[") and _IS_CALL.search(head) is not None and _IS_INSPECTOR.search(head) is not None and b'"header"' in head


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """A row per finished call, in the order of the file. Raises EvidenceError without any record of the Inspector."""
    rows: list[dict[str, Any]] = []
    num_read = left = 0  # records behind the last header that it is of
    common: dict[str, Any] = {}
    for place, record in stream(source):
        if isinstance(record, str):
            yield Skip(place, "a line that is no JSON object")
        elif isinstance(record, Skip):
            yield Skip(place, record.why)
            left -= 1
        elif isinstance(stats := record.get("dump_stats"), dict):
            num_read += 1
            common = {key: record[key] for key in ("header", "metadata") if key in record}
            left = sum(max(json_of.whole(stats.get(key)) or 0, 0) for key in _COUNTED)
            if lost := _dropped(stats):
                yield Skip(place, f"{lost} finished calls were dropped before they were written down (the plugin's buffer was full)")
        elif (row := _row(record if "header" in record or left <= 0 else common | record)) is not None:
            num_read += 1
            left -= 1
            rows.append({"record": place} | row)
            if len(rows) >= BATCH_ROWS:
                yield TABLES["nccl_calls"], TABLES["nccl_calls"].rows(rows)
                rows = []
        elif isinstance(record.get("proxy_trace"), dict):
            left -= 1
        else:
            left -= 1
            yield Skip(place, "no call (coll_perf or p2p_perf with the name of an operation)")
    if not num_read:
        raise EvidenceError(source.path, None, "no call of the NCCL Inspector in it")
    yield TABLES["nccl_calls"], TABLES["nccl_calls"].rows(rows)


def _dropped(stats: Mapping[str, Any]) -> int:
    return sum(max(json_of.whole(stats.get(f"{kind}_dropped_since_last_dump")) or 0, 0) for kind in ("coll", "p2p"))


def _row(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """A call as a row; None where the record holds none."""
    header, about = (value if isinstance(value := record.get(key), dict) else {} for key in ("header", "metadata"))
    for key, kind, is_p2p in _KINDS:
        call = record.get(key)
        op = json_of.text(call.get(kind), 80) if isinstance(call, dict) else None
        if isinstance(call, dict) and op is not None:
            took = json_of.number(call.get(f"{kind}_exec_time_us"))
            name = json_of.text(header.get("comm_name"), 200)
            return {
                "comm": json_of.text(header.get("id"), 80),
                "comm_name": name if name != "unknown" else None,  # what the plugin writes where it has none
                "group_rank": json_of.whole(header.get("rank")),
                "group_size": json_of.whole(header.get("n_ranks")),
                "num_hosts": json_of.whole(header.get("nnodes")),
                "host": json_of.host(about.get("hostname")),
                "pid": json_of.whole(about.get("pid")),
                "collective_seq_id": json_of.whole(call.get(f"{kind}_sn")),
                "op": op,
                "is_p2p": is_p2p,
                "peer": json_of.whole(call.get("p2p_peer")) if is_p2p else None,
                "size_bytes": json_of.whole(call.get(f"{kind}_msg_size_bytes")),
                "exec_s": took / _PER_S if took is not None else None,
                "timing_source": json_of.text(call.get(f"{kind}_timing_source"), 80),
                "bus_gb_s": json_of.number(call.get(f"{kind}_busbw_gbs")),
                "logged_at": json_of.instant(about.get("dump_timestamp_us"), "us"),
            }
    return None
