"""Status reports of NCCL's RAS subsystem (`ncclras`, NCCL 2.24 and later): text, JSON (`-f json`), and what its monitor mode (`-m`) tells.

Rows: `nccl_ras`, one per group of communicators of the text, or per communicator of the JSON; `nccl_ras_ranks`, one per rank or process that is
named (in JSON: every rank); `nccl_ras_ops`, how many calls were launched; `trainer_events`, one per event of the monitor. A file may hold many
reports, one behind the other: each is a snapshot. A rank here is the communicator's, not the global one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from collectors import _nccl_ras_json as ras_json
from collectors import _nccl_ras_text as ras_text
from collectors._json_stream import stream
from collectors._lines import blocks
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("nccl_ras", "nccl_ras_ranks", "nccl_ras_ops", "trainer_events")

BATCH_ROWS: Final = 50_000
MAX_PREAMBLE: Final = 8  # lines that a session of netcat or a prompt leaves before the first object
_FIRST_KEYS: Final = re.compile(  # of the first object, which goes on beyond the head where the job is large
    rb'\s*\{\s*"(?:nccl_version"\s*:\s*"|timestamp"\s*:\s*"[^"]{8,40}"\s*,\s*"group"\s*:\s*"(?:LIFECYCLE|TRACE)"|communicators_count"\s*:|communicators"\s*:\s*\[\s*\{\s*"hash")'
)


def claims(name: str, head: bytes) -> bool:
    """A table of communicators or a section about one, or a JSON object with the keys of a report or of an event of the monitor."""
    return ras_text.is_report(head) or _is_json(head)


def _is_json(head: bytes) -> bool:
    lines = head.lstrip(b"\xef\xbb\xbf").split(b"\n", MAX_PREAMBLE)
    start = next((at for at, line in enumerate(lines) if line.lstrip()[:1] in (b"{", b"[")), None)
    return start is not None and _FIRST_KEYS.match(b"\n".join(lines[start:]).lstrip(b" \t\r\n[")) is not None


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of all tables, in the order of the file. Raises EvidenceError without any."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in EMITS}
    num_read = 0
    for item in _json(source) if _is_json(source.head) else _text(source):
        if isinstance(item, Skip):
            num_read += item.why == ras_json.NOTHING
            yield item
            continue
        name, row = item
        rows[name].append(row)
        num_read += 1
        if len(rows[name]) >= BATCH_ROWS:
            yield TABLES[name], TABLES[name].rows(rows[name])
            rows[name] = []
    if not num_read:
        raise EvidenceError(source.path, None, "no status report of RAS in it")
    for name in EMITS:
        yield TABLES[name], TABLES[name].rows(rows[name])


def _text(source: Source) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
    """Rows of reports and of the monitor, printed as text."""
    report = ras_text.Report()
    for block in blocks(source):
        if isinstance(block, Skip):
            yield block
            continue
        for place, line in enumerate(block.lines, block.first):
            text = line[: ras_text.MAX_LINE].decode("utf-8", "replace")
            if text.lstrip().startswith(ras_text.EMPTY):
                yield Skip(f"L{place}", ras_json.NOTHING)
            yield from report.line(place, text)
    yield from report.end()


def _json(source: Source) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
    """Rows of reports and of the monitor, printed as JSON; the place of a communicator where the file is one report."""
    documents = stream(source, mend=ras_json.with_commas)
    held: tuple[str | None, dict[str, Any]] | None = None
    num_reports = 0
    for place, value in documents:
        if isinstance(value, Skip):
            yield Skip(place, value.why)
        elif isinstance(value, dict):
            if held is not None:
                num_reports += ras_json.is_report(held[1])
                yield from ras_json.rows(held[1], max(num_reports, 1), held[0] or "L1", is_alone=False)
            held = place, value
    if held is not None:
        num_reports += ras_json.is_report(held[1])
        yield from ras_json.rows(held[1], max(num_reports, 1), held[0] or "L1", is_alone=num_reports == 1 and held[0] == "L1")
