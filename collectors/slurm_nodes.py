"""States of nodes as Slurm tells them: `scontrol show node` (one line or several a node, or JSON) and the tables of `sinfo` (`-N -l`, `-R`, plain).

`DOWN*` does not answer, DRAIN is a flag beside the base state, MAINTENANCE is planned; a reservation alone is not, and PLANNED means that a job
waits for the node. Of a table that shows a node in several partitions it has one row. Times are local to the cluster; JSON counts from 1970.
Source: Slurm, manual pages of scontrol and sinfo; data parsers v0.0.37 to v0.0.42.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import polars as pl

from collectors._batches import batches
from collectors._hostlist import expand
from collectors._json_records import text
from collectors._slurm_blocks import Shown, begins, shown
from collectors._slurm_json import entries, flags_of, moment
from collectors._slurm_node_states import Reason, attribution, reason_of, state_of
from collectors._slurm_tables import text_lines
from collectors._slurm_values import stamp
from collectors._stack_dump import host_label
from rca.errors import EvidenceError
from rca.tables import Table
from rca.types import Skip, Source

__all__ = ["EMITS", "claims", "read"]

EMITS = ("node_states",)
IS_ALONE = True

SNIFF_LINES: Final = 40
MAX_NODES: Final = 200_000  # of one table
_CONFIG: Final = re.compile(rb"^(?:ClusterName|SlurmctldHost|ControlMachine|SlurmUser|PartitionName)[ \t]*=", re.M)
_JSON_NODE: Final = re.compile(rb'"nodes"\s*:\s*\[\s*\{')
_JSON_SLURM: Final = re.compile(rb'"(?:slurmd_start_time|next_state_after_reboot|reason_changed_at|real_memory|slurmd_version)"\s*:')
_COLUMNS: Final = frozenset(
    {
        "NODELIST",
        "NODES",
        "PARTITION",
        "STATE",
        "CPUS",
        "S:C:T",
        "MEMORY",
        "TMP_DISK",
        "WEIGHT",
        "AVAIL_FE",
        "AVAIL_FEATURES",
        "REASON",
        "USER",
    }
    | {
        "TIMESTAMP",
        "AVAIL",
        "TIMELIMIT",
        "JOB_SIZE",
        "ROOT",
        "OVERSUBS",
        "GROUPS",
        "RESERVATION",
        "GRES",
        "CPU_LOAD",
        "FREE_MEM",
        "HOSTNAMES",
    }
    | {
        "NODE_ADDR",
        "CPUS(A/I/O/T)",
        "NODES(A/I/O/T)",
        "ACTIVE_FEATURES",
        "GRES_USED",
        "CLUSTER",
        "VERSION",
        "SHARE",
        "ALLOCMEM",
        "NODEHOST",
    }
)


def claims(name: str, head: bytes) -> bool:
    """Nodes of scontrol with a state (not a slurm.conf, which names them too), the header of sinfo, or JSON of Slurm's nodes."""
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{":
        return bool(_JSON_NODE.search(head) and _JSON_SLURM.search(head))
    if any(True for _ in begins(head, "NodeName")) and b"State=" in head and not _CONFIG.search(head):
        return any("[" not in line.split(" ", 1)[0] for line in islice(begins(head, "NodeName"), SNIFF_LINES))
    return any(_header(line.decode("utf-8", "replace")) for line in islice(head.splitlines(), SNIFF_LINES))


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of `node_states` in the order of the file. Raises EvidenceError where there is none."""
    num_rows, _ = yield from batches("node_states", _rows(source))
    if not num_rows:
        raise EvidenceError(source.path, None, "no node with a state in it")


def _rows(source: Source) -> Iterator[dict[str, Any] | Skip]:
    if source.head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{":
        yield from _of_json(source)
    elif any(True for _ in begins(source.head, "NodeName")):
        for item in shown(source, "NodeName"):
            yield item if isinstance(item, Skip) else _of_block(item)
    else:
        yield from _of_tables(source)


def _row(record: str, host: str | None, state_text: str | None, reason: Reason, *, flags: tuple[str, ...] = ()) -> dict[str, Any] | Skip:
    """A row; `state_text` None where the table has no states."""
    state = state_of(state_text, flags) if state_text is not None else None
    if host is None or (state is None and state_text is not None):
        return Skip(record, f"no state of a node: {state_text!r} of {host!r}"[:200])
    return {
        "record": record,
        "host": host,
        "source": "slurm",
        "base_state": state.base if state else None,
        "flags": list(state.flags) if state else None,
        "is_drain": state.is_drain if state else None,
        "is_responding": state.is_responding if state else None,
        "reason": reason.why,
        "reason_by": reason.by,
        "reason_at_local": stamp(reason.at),
        "attribution": attribution(state, reason.why),
    }


def _of_block(block: Shown) -> dict[str, Any] | Skip:
    fields = block.fields
    reason = reason_of(fields.get("Reason"))
    if reason.at is None and "Reason" in fields:  # words of it may look like a field
        whole = reason_of(block.rest_of("Reason"))
        reason = whole if whole.at is not None else reason
    return _row(f"L{block.number}", host_label(fields["NodeName"].split(" ")[0]), fields.get("State", ""), reason)


def _of_json(source: Source) -> Iterator[dict[str, Any] | Skip]:
    for item in entries(source, "nodes"):
        if isinstance(item, Skip):
            yield item
            continue
        record, node = item
        words = flags_of(node.get("state"))
        told = _row(
            record,
            host_label(text(node.get("name"), 255) or text(node.get("hostname"), 255)),
            words[0] if words else "",
            Reason(reason_of(text(node.get("reason"))).why, text(node.get("reason_set_by_user"), 64), None),
            flags=(*words[1:], *flags_of(node.get("state_flags"))),
        )
        if not isinstance(told, Skip):
            told["reason_at"], told["reason_at_local"] = moment(node.get("reason_changed_at"))
        yield told


def _header(line: str) -> list[tuple[str, int]] | None:
    """Columns of a header of sinfo and where their words begin; None for any other line."""
    if len(line) > 2000 or "NODE" not in line or not ("STATE" in line or "REASON" in line):
        return None
    words = [(found[0], found.start()) for found in re.finditer(r"[^\s|]{1,40}", line)]
    names = [name for name, _ in words]
    is_one = len(words) > 1 and set(names) <= _COLUMNS and _host_column(names) is not None and ("STATE" in names or "REASON" in names)
    return words if is_one else None


def _host_column(names: list[str]) -> str | None:
    return next((name for name in ("NODELIST", "HOSTNAMES", "NODEHOST") if name in names), None)


def _of_tables(source: Source) -> Iterator[dict[str, Any] | Skip]:
    header: list[tuple[str, int]] | None = None
    delimiter: str | None = None
    seen: set[tuple[Any, ...]] = set()
    for item in text_lines(source):
        if isinstance(item, Skip):
            yield item
            continue
        number, line = item
        found = _header(line)
        if found is not None:
            header, delimiter = found, "|" if "|" in line else None
            seen.clear()
            continue
        if header is None or not line.strip():
            continue
        for row in _of_line(f"L{number}", header, _cells(line, header, delimiter)):
            if isinstance(row, Skip):
                yield row
                continue
            key = (row["host"], row["base_state"], tuple(row["flags"] or ()), row["reason"])
            if key not in seen and len(seen) < MAX_NODES:
                seen.add(key)
                yield row


def _cells(line: str, header: list[tuple[str, int]], delimiter: str | None) -> Mapping[str, str]:
    """Cells of a line. Only a reason holds blanks: words before it are counted from the left, those behind it from the right."""
    names = [name for name, _ in header]
    if delimiter:
        return dict(zip(names, (cell.strip() for cell in line.split(delimiter)), strict=False))
    words = line.split()
    if "REASON" not in names:
        return dict(zip(names, words, strict=True)) if len(words) == len(names) else {}
    place = names.index("REASON")
    behind = len(names) - place - 1
    if len(words) < len(names) - 1:
        return {}
    right = words[len(words) - behind :] if behind else []
    middle = line
    for word in words[:place]:
        middle = middle.lstrip()[len(word) :]
    for word in reversed(right):
        middle = middle.rstrip()[: -len(word)]
    return dict(zip(names, [*words[:place], middle.strip(), *right], strict=True))


def _of_line(record: str, header: list[tuple[str, int]], cells: Mapping[str, str]) -> Iterator[dict[str, Any] | Skip]:
    column = _host_column([name for name, _ in header])
    if not cells or column is None or not cells.get(column):
        yield Skip(record, "no line of the table above it")
        return
    hosts = expand(cells[column])
    if hosts.problem:
        yield Skip(record, hosts.problem)
    reason = Reason(reason_of(cells.get("REASON")).why, cells.get("USER") or None, cells.get("TIMESTAMP"))
    for host in hosts.names:
        yield _row(record, host, cells.get("STATE"), reason)
