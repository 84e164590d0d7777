"""Every table, declared once: grain, columns, units. The polars schema, the DuckDB DDL and docs/tables.md all derive from here.

Instants end in `_at` (UTC), durations in `_s` (seconds), sizes in `_bytes`. Missing is null, never 0 or "". Evidence-derived rows carry
`evidence_id` and `record` (`L<line>`, `E<entry>`, `M<member>/...`), so every row leads back to the very place it came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import polars as pl

__all__ = ["DUMP_STATUS", "GROUP_KINDS", "TABLES", "Column", "Table"]

INT, FLOAT, TEXT, BOOL = pl.Int64(), pl.Float64(), pl.String(), pl.Boolean()
INSTANT = pl.Datetime("us", "UTC")
INTS = pl.List(pl.Int64())
TEXTS = pl.List(pl.String())

_SQL: Final[dict[str, str]] = {
    "Int64": "BIGINT",
    "Float64": "DOUBLE",
    "String": "VARCHAR",
    "Boolean": "BOOLEAN",
    "List(Int64)": "BIGINT[]",
    "List(String)": "VARCHAR[]",
    "Datetime(time_unit='us', time_zone='UTC')": "TIMESTAMPTZ",
}

GROUP_KINDS: Final = (
    "world",
    "dp",
    "tp",
    "pp",
    "cp",
    "ep",
    "mp",
    "dp_cp",
    "tp_cp",
    "tp_dp",
    "expert_tp",
    "expert_dp",
    "embedding",
    "other",
    "unknown",
)
DUMP_STATUS: Final = (
    "ok",
    "process_gone",
    "not_python",
    "permission_denied",
    "suspend_failed",
    "unsupported_version",
    "unknown",
)


@dataclass(frozen=True)
class Column:
    """A column: its type and what it holds, with unit."""

    name: str
    dtype: pl.DataType
    doc: str


@dataclass(frozen=True)
class Table:
    """A declared table. `grain` completes "one row per ..."."""

    name: str
    grain: str
    columns: tuple[Column, ...]
    from_evidence: bool = True  # rows begin with evidence_id and record

    @cached_property
    def schema(self) -> pl.Schema:
        """Column name -> polars type, in order."""
        return pl.Schema([(c.name, c.dtype) for c in self.columns])

    def frame(self, data: Mapping[str, Any] | None = None, /, *, height: int | None = None) -> pl.DataFrame:
        """A frame of exactly this schema from columns (sequences, Series or single values); those not given are null.

        `evidence_id` is filled in by the reader that knows the file, so collectors leave it out.
        """
        data = data or {}
        unknown = sorted(set(data) - set(self.schema))
        if unknown:
            raise KeyError(f"table {self.name} has no column {', '.join(unknown)}")
        if height is None:
            heights = [len(v) for v in data.values() if isinstance(v, pl.Series | list | tuple)]
            height = heights[0] if heights else (1 if data else 0)
        series = []
        for column in self.columns:
            value = data.get(column.name)
            if isinstance(value, pl.Series):
                series.append((value if value.dtype == column.dtype else value.cast(column.dtype)).alias(column.name))
            elif isinstance(value, list | tuple):
                series.append(pl.Series(column.name, value, dtype=column.dtype))
            else:
                series.append(pl.Series(column.name, [value], dtype=column.dtype).new_from_index(0, height))
        return pl.DataFrame(series)

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
        """A frame of exactly this schema from row dictionaries; keys left out are null."""
        if not rows:
            return self.frame()
        unknown = sorted({key for row in rows for key in row} - set(self.schema))
        if unknown:
            raise KeyError(f"table {self.name} has no column {', '.join(unknown)}")
        return pl.from_dicts([{name: row.get(name) for name in self.schema} for row in rows], schema=self.schema)

    @property
    def ddl(self) -> str:
        """CREATE TABLE with a comment on the table and on every column."""

        def quoted(text: str) -> str:
            return "'" + text.replace("'", "''") + "'"

        columns = ", ".join(f'"{c.name}" {_SQL[str(c.dtype)]}' for c in self.columns)
        lines = [
            f'CREATE TABLE "{self.name}" ({columns})',
            f'COMMENT ON TABLE "{self.name}" IS {quoted("one row per " + self.grain)}',
        ]
        lines += [f'COMMENT ON COLUMN "{self.name}"."{c.name}" IS {quoted(c.doc)}' for c in self.columns]
        return ";\n".join(lines) + ";\n"


EVIDENCE_ID = Column("evidence_id", TEXT, "file the row comes from (evidence.evidence_id)")
RECORD = Column("record", TEXT, "place in that file: L<line>, E<entry>, T<thread>, M<member>/...")
JOB = Column("job_id", TEXT, "job; job-0 where nothing names it")
ATTEMPT = Column("attempt", INT, "launch of the job, 0 where nothing tells them apart")
RANK = Column("rank", INT, "global rank; null where nothing names it")
_FROM = (EVIDENCE_ID, RECORD)
_OF_RANK = (EVIDENCE_ID, RECORD, JOB, ATTEMPT)


def _table(name: str, grain: str, *columns: Column, lead: tuple[Column, ...] = _OF_RANK) -> Table:
    return Table(name, grain, (*lead, *columns), from_evidence=bool(lead))


_ALL: Final = (
    _table(
        "evidence",
        "raw file",
        EVIDENCE_ID,
        Column("path", TEXT, "path below the evidence root; a copy adds no row"),
        Column("kind", TEXT, "collector that read it; null = nothing recognised it"),
        Column("host", TEXT, "host it was taken on, where the file or its name says so"),
        RANK,
        Column("size_bytes", INT, "size as stored"),
        Column("sha256", TEXT, "SHA-256 of the stored bytes, hex"),
        Column("captured_at", INSTANT, "when it was taken; null where the file does not say"),
        Column("is_stale", BOOL, "true = an older view of the same rank or another launch: listed, not diagnosed"),
        Column("stale_because", TEXT, "why it is left out"),
        lead=(),
    ),
    _table(
        "readings",
        "file x collector",
        EVIDENCE_ID,
        Column("path", TEXT, "path below the evidence root"),
        Column("collector", TEXT, "collector; null = nothing recognised the file"),
        Column("num_rows", INT, "rows read, all tables"),
        Column("num_skipped", INT, "records that could not be read"),
        Column("first_skip_record", TEXT, "place of the first of them"),
        Column("first_skip", TEXT, "why the first of them could not be read"),
        Column("problem", TEXT, "why the file as a whole could not be read"),
        Column("copy_of", TEXT, "path of the file with the same bytes that was read instead"),
        Column("guess", TEXT, "nearest known format of a file that nothing recognised"),
        lead=(),
    ),
    _table(
        "ranks",
        "rank of an attempt and source that names it",
        RANK,
        Column("host", TEXT, "host, lower-case first label"),
        Column("local_rank", INT, "rank on its host"),
        Column("gpu", TEXT, "GPU as the source names it (index, UUID or PCI address)"),
        Column("pid", INT, "process id of the trainer on its host"),
        Column("role", TEXT, "trainer, dataloader_worker, agent, other; null = not said"),
        Column("dp", INT, "data-parallel coordinate, null = axis unused or unknown"),
        Column("tp", INT, "tensor-parallel coordinate"),
        Column("pp", INT, "pipeline stage"),
        Column("cp", INT, "context-parallel coordinate"),
        Column("ep", INT, "expert-parallel coordinate"),
    ),
    _table(
        "dump_index",
        "stack dump that a capture's index lists",
        RANK,
        Column("host", TEXT, "host it was taken on"),
        Column("pid", INT, "process id on that host"),
        Column("role", TEXT, "as the index names it: main, worker0, ..."),
        Column("sample", INT, "capture round, 0 = first"),
        Column("sampled_at", INSTANT, "when it was taken"),
        Column("format", TEXT, "json or txt"),
        Column("dump_status", TEXT, "ok, or the kind of failure: " + ", ".join(DUMP_STATUS[1:])),
    ),
    _table(
        "groups",
        "process group and file that describes it",
        Column("group_id", TEXT, "<kind>:<8 hex digits of its sorted global ranks>; ? where the members are unknown"),
        Column("group_name", TEXT, "name in that process or map"),
        Column("group_desc", TEXT, "description given at creation"),
        Column("kind", TEXT, "world dp tp pp cp ep mp dp_cp ... other unknown"),
        Column("size", INT, "number of members, null = unknown"),
    ),
    _table(
        "memberships",
        "rank in a process group, per file that says so",
        Column("group_id", TEXT, "group"),
        RANK,
        Column("group_rank", INT, "rank inside the group, null = unknown"),
        Column("is_inferred", BOOL, "true = not listed anywhere, concluded from the rank using the group"),
    ),
    _table(
        "collectives",
        "rank x recorded call (collective or point-to-point)",
        RANK,
        Column("group_id", TEXT, "process group"),
        Column("backend", TEXT, "nccl, gloo, ... as recorded before the colon"),
        Column("record_id", INT, "order of recording in that process, all groups"),
        Column("collective_seq_id", INT, "number of the collective in its group, +1 per call"),
        Column("p2p_seq_id", INT, "number of the point-to-point call in its group"),
        Column("op_id", INT, "number of the logical operation in its group"),
        Column("op", TEXT, "operation as recorded (all_reduce, send 0->1, ...), without the backend"),
        Column("is_p2p", BOOL, "point-to-point call"),
        Column("src", INT, "sending global rank of a point-to-point call"),
        Column("dst", INT, "receiving global rank"),
        Column("state", TEXT, "scheduled, started or completed, as recorded"),
        Column("is_retired", BOOL, "the recorder has put the call away; with gloo the only sign of its end"),
        Column("sizes", TEXT, "input -> output shapes as recorded"),
        Column("dtypes", TEXT, "input -> output types as recorded"),
        Column("created_at", INSTANT, "when the CPU enqueued it"),
        Column("started_at", INSTANT, "when the watchdog saw it start"),
        Column("completed_at", INSTANT, "when the watchdog saw it end"),
        Column("timeout_s", FLOAT, "time-out of the call, s"),
        Column("thread_id", TEXT, "pthread id of the calling thread"),
        Column("stack_id", TEXT, "stack at the moment of enqueueing (stack_frames)"),
        Column("is_tail", BOOL, "not seen to end, or one of the rank's last calls in the group: all that most questions need"),
    ),
    _table(
        "group_status",
        "rank x process group, as the dump's header tells",
        RANK,
        Column("group_id", TEXT, "process group; null where the header could not be mapped to one"),
        Column("place", INT, "place in the header by the process-local number, which grows with creation; null = not in it"),
        Column("last_enqueued", INT, "last number enqueued; -1 = none. Counts calls of any kind"),
        Column("last_started", INT, "last number seen started; -1 = none or not recorded"),
        Column("last_completed", INT, "last number seen completed; -1 = none"),
        Column(
            "mapped_by",
            TEXT,
            "how the header was tied to the group: entries, order, peers, absence (a group without status was never used)",
        ),
        Column("counts", TEXT, "what the numbers count: collectives, calls (with point-to-point), unknown"),
    ),
    _table(
        "dumps",
        "flight-recorder dump",
        RANK,
        Column("backend", TEXT, "backend of its calls; null = no calls"),
        Column("version", TEXT, "recorder version as written"),
        Column("format", TEXT, "pickle or json"),
        Column("num_entries", INT, "calls read; null = only the header was read"),
        Column(
            "first_record_id",
            INT,
            "record_id of the first call; above 0 the ring has wrapped or only active calls were written",
        ),
        Column("first_at", INSTANT, "first call created"),
        Column("last_at", INSTANT, "last call created"),
        Column("is_torn", BOOL, "true = the file breaks off; what precedes was read"),
        Column("has_only_active", BOOL, "true = no finished call is in it: only pending ones were written"),
        Column("main_thread_id", TEXT, "pthread id of the thread with most calls"),
    ),
    _table(
        "stacks",
        "thread of a process in a sample, or failed dump",
        RANK,
        Column("host", TEXT, "host, where the file or its name says so"),
        Column("pid", INT, "process id"),
        Column("role", TEXT, "trainer, dataloader_worker, agent, compile_worker, other, unknown: by the stack's root"),
        Column("thread_id", INT, "operating-system thread id, else the pthread id"),
        Column("pthread_id", TEXT, "pthread id where the file gives it: ties the dump to a flight-recorder dump"),
        Column("thread_name", TEXT, "MainThread for the main thread, also where the format only implies it"),
        Column("is_active", BOOL, "the dumper called the thread running"),
        Column("owns_gil", BOOL, "the thread held the interpreter lock; null = the format does not say"),
        Column("sample", INT, "capture round, 0 = first; null = nothing orders the dumps"),
        Column("sampled_at", INSTANT, "when it was taken"),
        Column("stack_id", TEXT, "stack (stack_frames); null = no frame at all"),
        Column("lines", TEXT, "leaf line numbers, innermost first, first 8"),
        Column("dump_status", TEXT, " ".join(DUMP_STATUS)),
        Column("format", TEXT, "py_spy_json, py_spy_text, faulthandler, debug_server, ..."),
    ),
    _table(
        "stack_frames",
        "distinct stack",
        Column("stack_id", TEXT, "16 hex digits of the canonical frames"),
        Column("frames", TEXTS, "canonical frames module:function, innermost first"),
        Column("leaf", TEXT, "innermost Python frame; null = native frames only"),
        Column("leaf_key", TEXT, "first informative frame, wrappers skipped"),
        Column(
            "activity",
            TEXT,
            "what the program is doing: train_step eval checkpoint compile dataloader import init teardown ...",
        ),
        Column("wait_kind", TEXT, "what it waits for: collective p2p store lock queue cuda_sync io sleep none unknown ..."),
        lead=_FROM,
    ),
    _table(
        "outcomes",
        "analysis that was asked",
        Column("analysis", TEXT, "question"),
        Column("status", TEXT, "found, clear, blind (did not or could not look), failed"),
        Column("why", TEXT, "reason in words"),
        lead=(),
    ),
    _table(
        "findings",
        "thing that an analysis saw",
        Column("finding_id", TEXT, "analysis/sign/8 hex digits of its scope"),
        Column("analysis", TEXT, "question"),
        Column("sign", TEXT, "kind of observation"),
        Column("ranks", INTS, "accused ranks; empty = the sign accuses nobody"),
        Column("hosts", TEXTS, "hosts of the accused"),
        Column("groups", TEXTS, "process groups concerned"),
        Column("explains", INTS, "ranks that only wait because of this"),
        Column("says", TEXT, "the observation in words"),
        Column("numbers", TEXT, "its figures, as JSON"),
        lead=(),
    ),
    _table(
        "cites",
        "row that a finding rests on",
        Column("finding_id", TEXT, "finding"),
        Column("table", TEXT, "table of the row"),
        EVIDENCE_ID,
        Column("path", TEXT, "file"),
        RECORD,
        Column("text", TEXT, "what stands there"),
        lead=(),
    ),
    _table(
        "hypotheses",
        "cause with the ranks it accuses",
        Column("cause", TEXT, "cause"),
        Column("layer", TEXT, "layer of the cause"),
        Column("ranks", INTS, "accused ranks"),
        Column("hosts", TEXTS, "their hosts"),
        Column("probability", FLOAT, "posterior, 0..1; all rows sum to 1"),
        Column("supports", TEXTS, "findings that speak for it"),
        Column("against", TEXTS, "findings that speak against it"),
        lead=(),
    ),
)

TABLES: Final[Mapping[str, Table]] = {table.name: table for table in _ALL}
