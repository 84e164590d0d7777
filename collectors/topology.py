"""Rank maps: JSON or CSV that says which rank ran on which host, with GPU, parallel coordinates and process groups where given.

CSV (also with `;` or tabs): a header with `rank` and `host` (or hostname, node), and as wanted local_rank, gpu, pid, tp, dp, pp, cp, ep:

    rank,host,gpu,tp,dp,pp
    0,host-a,0,0,0,0

JSON: a list of such objects, or `{"ranks": [...], "groups": [{"name": "10", "desc": "DATA_PARALLEL_GROUP", "ranks": [1, 3]}]}`, or
`{"0": "host-a", ...}`. Groups (or coordinates) matter with gloo, whose dumps do not list the members of a group.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from collectors._groups import group_id, group_kind, parse_ranks, plain_text
from collectors._log_prefix import plain_host
from rca.errors import EvidenceError
from rca.tables import GROUP_KINDS, TABLES, Table
from rca.types import Skip, Source

__all__ = ["EMITS", "claims", "read"]

EMITS = ("ranks", "groups", "memberships")

MAX_BYTES = 1 << 28
MAX_RANKS = 2_000_000
_NAMES: Mapping[str, tuple[str, ...]] = {  # column -> spellings, lower case
    "rank": ("rank", "global_rank", "world_rank"),
    "host": ("host", "hostname", "node", "nodename", "node_name"),
    "local_rank": ("local_rank", "localrank"),
    "gpu": ("gpu_uuid", "gpu", "gpu_index", "device", "cuda_device", "pci_bus"),
    "pid": ("pid",),
    "role": ("role",),
    "dp": ("dp", "dp_rank", "data_parallel_rank"),
    "tp": ("tp", "tp_rank", "tensor_parallel_rank", "tensor_model_parallel_rank"),
    "pp": ("pp", "pp_rank", "pipeline_rank", "pipeline_model_parallel_rank", "stage"),
    "cp": ("cp", "cp_rank", "context_parallel_rank"),
    "ep": ("ep", "ep_rank", "expert_parallel_rank"),
}
_NUMBERS = ("rank", "local_rank", "pid", "dp", "tp", "pp", "cp", "ep")
_ONE_PER_RANK = ("local_rank", "gpu", "dp", "tp", "pp", "cp", "ep")
_NONE_BELOW_0 = frozenset({*_NUMBERS, "gpu"} - {"rank"})
_NOT_A_MAP = re.compile(
    rb'"(t_ns|round|step|loss|format|rc|os_thread_id|frames|started_at|dur_ms|t_start_ns|entries|communicators|coll_perf|traceEvents)"'
)
_JSON_RANK = re.compile(rb'"(?:global_|world_)?rank"\s*:\s*"?\d')
_JSON_HOST = re.compile(rb'"(?:host|hostname|node|node_?name)"\s*:', re.I)
_JSON_PAIRS = re.compile(rb'\s*\{\s*"\d{1,7}"\s*:\s*(?:"[A-Za-z][\w.\-]{0,200}"|\{\s*"(?:host|hostname|node)")')


def claims(name: str, head: bytes) -> bool:
    """JSON with rank and host side by side and nothing of a measurement in it, or CSV whose header names both."""
    start = head.lstrip()[:1]
    if start in (b"{", b"["):
        if _JSON_PAIRS.match(head):
            return True
        return bool(_JSON_RANK.search(head) and _JSON_HOST.search(head) and not _NOT_A_MAP.search(head) and not _is_lines(head))
    return _csv_columns(head) is not None


def _is_lines(head: bytes) -> bool:
    """JSON lines: a stream of events, not one map."""
    first, _, rest = head.lstrip().partition(b"\n")
    return first.rstrip().endswith(b"}") and first.startswith(b"{") and rest.lstrip().startswith(b"{")


def _csv_columns(head: bytes) -> list[str] | None:
    line = head.split(b"\n", 1)[0]
    if len(line) > 2000 or b"\0" in line:
        return None
    try:
        names = [cell.strip().strip('"').lower() for cell in re.split(r"[,;\t]", line.decode("utf-8-sig"))]
    except UnicodeDecodeError:
        return None
    has = [any(name in _NAMES[column] for name in names) for column in ("rank", "host")]
    return names if all(has) and not {"step", "loss", "step_s", "iteration"} & set(names) else None


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `ranks`, and of `groups` and `memberships` where the map has groups."""
    data, torn = source.read(MAX_BYTES + 1)
    if torn:
        yield Skip(None, f"breaks off: {torn}")
    if len(data) > MAX_BYTES:
        raise EvidenceError(source.path, None, f"more than {MAX_BYTES:,} bytes: no rank map")
    text = data.decode("utf-8-sig", "replace")
    if text.lstrip()[:1] in ("{", "["):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise EvidenceError(source.path, None, f"no valid JSON ({error})") from None
        entries, groups, lead = *_of_json(document), "E"
    else:
        sample = text.split("\n", 1)[0]
        try:
            entries = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=sample.count)))
        except csv.Error as error:
            raise EvidenceError(source.path, None, f"no valid CSV ({error})") from None
        groups, lead = [], "L"
    rows = []
    for place, entry in enumerate(entries[:MAX_RANKS]):
        row = _rank_row(entry) if isinstance(entry, Mapping) else None
        record = f"{lead}{place + (2 if lead == 'L' else 0)}"
        if row is None:
            yield Skip(record, "names no rank")
        else:
            rows.append(row | {"record": record})
    yield from _contradictions(rows)
    yield TABLES["ranks"], TABLES["ranks"].rows(rows)
    yield from _groups(groups)


def _of_json(document: Any) -> tuple[list[Any], list[Any]]:
    if isinstance(document, list):
        return document, []
    if not isinstance(document, dict):
        return [], []
    ranks, groups = document.get("ranks"), document.get("groups")
    if isinstance(ranks, list):
        return ranks, groups if isinstance(groups, list) else []
    pairs = ranks if isinstance(ranks, dict) else document
    found = []
    for key, value in pairs.items():
        if (rank := _integer(key)) is not None:
            found.append({"rank": rank, **(value if isinstance(value, dict) else {"host": value})})
    return found, groups if isinstance(groups, list) else []


def _contradictions(rows: Sequence[dict[str, Any]]) -> Iterator[Skip]:
    """Take out what a map says of one rank in two ways; both hosts stay, as the other sources may tell which of them is right."""
    first: dict[int, dict[str, Any]] = {}
    torn: dict[int, set[str]] = defaultdict(set)
    for row in rows:
        before = first.setdefault(row["rank"], row)
        if wrong := [name for name in ("host", *_ONE_PER_RANK) if None not in (before[name], row[name]) and before[name] != row[name]]:
            torn[row["rank"]].update(wrong)
            yield Skip(
                row["record"], f"rank {row['rank']} stands twice in this map, with another {', '.join(wrong)}: which is right is not known"
            )
    for row in rows:
        for name in torn.get(row["rank"], set()) - {"host"}:
            row[name] = None


def _rank_row(entry: Mapping[Any, Any]) -> dict[str, Any] | None:
    lowered = {str(key).strip().lower(): value for key, value in entry.items() if isinstance(key, str)}
    row: dict[str, Any] = {}
    for column, spellings in _NAMES.items():
        value = next((lowered[s] for s in spellings if lowered.get(s) not in (None, "")), None)
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        row[column] = _integer(value) if column in _NUMBERS else plain_text(value) or None
        if column in _NONE_BELOW_0 and (number := _integer(row[column])) is not None:  # -1 stands for "none" in many a launcher
            row[column] = None if number < 0 else number if column in _NUMBERS else str(number)
        if column == "rank" and (row["rank"] is None or row["rank"] < 0):
            return None  # the first column: a file of a million empty lines is not asked for the others
    if row["host"]:
        row["host_name"] = row["host"].strip() or None
        row["host"] = plain_host(row["host"].strip())
    return row


def _integer(value: Any) -> int | None:
    text = plain_text(value).strip()
    return int(text.partition(".")[0]) if re.fullmatch(r"-?[0-9]{1,15}(\.0+)?", text) else None


def _groups(groups: Sequence[Any]) -> Iterator[tuple[Table, pl.DataFrame]]:
    rows, members = [], []
    for place, group in enumerate(groups[:MAX_RANKS]):
        if not isinstance(group, Mapping) or not (ranks := parse_ranks(group.get("ranks"))):
            continue
        desc = plain_text(group.get("desc"))
        said = plain_text(group.get("kind"))
        kind = group_kind(desc) if desc and group_kind(desc) not in ("other", "unknown") else said if said in GROUP_KINDS else "unknown"
        id_ = group_id(kind, ranks)
        record = f"groups/E{place}"
        rows.append(
            {
                "record": record,
                "group_id": id_,
                "group_name": plain_text(group.get("name")),
                "group_desc": desc,
                "kind": kind,
                "size": len(ranks),
            }
        )
        members += [
            {"record": record, "group_id": id_, "rank": rank, "group_rank": at, "is_inferred": False} for at, rank in enumerate(ranks)
        ]
    if rows:
        yield TABLES["groups"], TABLES["groups"].rows(rows)
        yield TABLES["memberships"], TABLES["memberships"].rows(members)
