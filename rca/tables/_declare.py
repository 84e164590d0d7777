"""How a table is declared: its columns with types and units, and what derives from them. The common columns of all tables stand here once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import polars as pl

__all__ = [
    "ATTEMPT",
    "BOOL",
    "DUMP_STATUS",
    "EVIDENCE_ID",
    "FLOAT",
    "FROM",
    "GROUP_KINDS",
    "INSTANT",
    "INT",
    "INTS",
    "JOB",
    "OF_RANK",
    "RANK",
    "RECORD",
    "TEXT",
    "TEXTS",
    "Column",
    "Table",
    "table",
]

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
                single = self._nulls[column.name] if value is None else pl.Series(column.name, [value], dtype=column.dtype)
                series.append(single.new_from_index(0, height))
        return pl.DataFrame(series)

    @cached_property
    def _nulls(self) -> dict[str, pl.Series]:
        """One null of every column: most columns of most frames are not given."""
        return {column.name: pl.Series(column.name, [None], dtype=column.dtype) for column in self.columns}

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
FROM = (EVIDENCE_ID, RECORD)
OF_RANK = (EVIDENCE_ID, RECORD, JOB, ATTEMPT)


def table(name: str, grain: str, *columns: Column, lead: tuple[Column, ...] = OF_RANK) -> Table:
    return Table(name, grain, (*lead, *columns), from_evidence=bool(lead))
