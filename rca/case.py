"""A case: the tables of one job, in a `case.duckdb` (which `rca.building` writes and every reader opens read-only) or in memory."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import polars as pl

from rca import __version__, catalogues
from rca.errors import CaseError
from rca.tables import TABLES

if TYPE_CHECKING:
    import duckdb

    from rca.sources import Inventory
    from rca.types import Tables

__all__ = ["JUDGED", "SCHEMA_VERSION", "UNFILTERED", "Case", "MemoryCase", "is_case_file", "is_current", "read_parquet"]

LAYOUT = "2"  # of a case file beside its tables: 2 = large tables may stay in files
SCHEMA_VERSION = hashlib.sha256("".join([LAYOUT, *(table.ddl for table in TABLES.values())]).encode()).hexdigest()[
    :16
]  # another one: built again
CHUNK_ROWS = 500_000  # rows handed to an analysis at a time
KEPT_ROWS = 5_000  # a table of no more is read once: several questions ask for it, and a query costs more than its rows
JUDGED = ("outcomes", "findings", "cites", "hypotheses")  # tables that the judge makes of the others
UNFILTERED = frozenset({"evidence", "readings", "cites", "stack_frames"})  # tables that show stale evidence too; a stack is nobody's own
T = TypeVar("T")


class Derived:
    """Remembers what was derived from a case, by the function that derives it. A case never changes, so nothing is ever forgotten."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    def derive(self, function: Callable[[Tables], T]) -> T:
        """`function(self)`, made once."""
        if function not in self._made:
            self._made[function] = function(cast("Tables", self))
        return cast("T", self._made[function])


class MemoryCase(Derived):
    """Tables as frames in memory: what the triage and the tests analyse."""

    def __init__(
        self,
        frames: Mapping[str, pl.DataFrame],
        stale: Mapping[str, pl.DataFrame] | None = None,
        large: Mapping[str, pl.LazyFrame] | None = None,
    ) -> None:
        super().__init__()
        # polars 2.1 panics where it joins texts of columns that are cut into pieces at other places: then all are put in one
        self.frames = {name: frame if len(set(frame.n_chunks("all"))) <= 1 else frame.rechunk() for name, frame in frames.items()}
        self.stale = stale or {}  # rows of earlier launches and other jobs
        self.large = large or {}  # tables that lie in files

    def table(self, name: str, *, where: str | None = None, with_stale: bool = False) -> pl.LazyFrame:
        """A declared table; empty when nothing was read for it."""
        frame = self.large[name] if name in self.large else (self.frames[name] if name in self.frames else TABLES[name].frame()).lazy()
        if with_stale and name in self.stale:
            frame = pl.concat([frame, self.stale[name].lazy()])
        return frame if where is None else frame.filter(pl.col(where))


class Case(Derived):
    """An opened case file. `table` gives LazyFrames without stale evidence; nothing is ever written through it."""

    def __init__(self, path: Path, connection: duckdb.DuckDBPyConnection, home: Path | None = None) -> None:
        """`home`: the folder below which rows lie that stayed in files, where it is not the case's own."""
        super().__init__()
        self.path = path
        self._connection = connection
        self._heights: dict[str, int] = {}
        self._files: dict[str, list[Path]] = defaultdict(list)
        self._kept: dict[tuple[str, ...], pl.LazyFrame] = {}
        rows = connection.execute("SELECT evidence_id FROM evidence WHERE is_stale ORDER BY evidence_id").fetchall()
        self._stale = [evidence_id for (evidence_id,) in rows]
        for name, file, num_rows in connection.execute(
            "SELECT table_name, file, num_rows FROM part_files ORDER BY table_name, place"
        ).fetchall():
            self._files[name].append((home or path.parent) / file)
            self._heights[name] = self._heights.get(name, 0) + num_rows

    @classmethod
    def open(cls, path: Path, *, of_this_version: bool = False) -> Case:
        """Open read-only. Raises CaseError when it is no case, or, where that is asked for, one with other tables than this version's."""
        import duckdb

        try:
            connection = duckdb.connect(str(path), read_only=True)
            connection.execute("SET TimeZone='UTC'")
            case = cls(path, connection)
        except duckdb.Error as error:
            raise CaseError(
                f"{path}: no case file that this version can open ({str(error).splitlines()[0]}). Delete it and build again."
            ) from None
        if of_this_version and (schema := case.meta().get("schema")) != SCHEMA_VERSION:
            made_by = case.meta().get("firstfault")
            case.close()
            raise CaseError(f"{path}: a case of another version (firstfault {made_by}, tables {schema}). Build it again from the evidence.")
        lost = [file for files in case._files.values() for file in files if not file.is_file()]
        if lost:
            case.close()
            raise CaseError(f"{path}: its rows lie in files beside it, of which {lost[0]} is gone. Keep both together, or build it again.")
        return case

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def meta(self) -> dict[str, str]:
        """What the case was built from and with."""
        return dict(self._rows("SELECT key, value FROM meta"))

    def _rows(self, query: str) -> list[Any]:
        import duckdb

        try:
            return self._connection.cursor().execute(query).fetchall()
        except duckdb.Error as error:
            raise CaseError(f"{self.path}: damaged ({str(error).splitlines()[0]}). Delete it and build again.") from None

    def table(self, name: str, *, where: str | None = None, with_stale: bool = False) -> pl.LazyFrame:
        """A declared table as a LazyFrame; of a large one only the columns (and with `where` the rows) asked for are read, in chunks."""
        from polars.io.plugins import register_io_source

        schema = TABLES[name].schema
        is_filtered = bool(self._stale) and not with_stale and "evidence_id" in schema and name not in UNFILTERED
        if name in self._files:
            rows = pl.scan_parquet(self._files[name], glob=False)
            rows = rows.filter(pl.col(where)) if where else rows
            return rows.filter(~pl.col("evidence_id").is_in(self._stale)) if is_filtered else rows
        conditions = [f'"{where}"'] if where else []
        if is_filtered:
            conditions.append("evidence_id NOT IN (SELECT evidence_id FROM evidence WHERE is_stale)")
        if self._height(name) <= KEPT_ROWS:
            if (name, *conditions) not in self._kept:
                self._kept[name, *conditions] = pl.concat(self._chunks(name, schema.names(), conditions)).cast(schema).lazy()
            return self._kept[name, *conditions]

        def chunks(columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _batch: int | None) -> Iterator[pl.DataFrame]:
            names = columns or schema.names()
            for frame in self._chunks(name, names, conditions):
                typed = frame.cast({column: schema[column] for column in names})
                yield typed.filter(predicate) if predicate is not None else typed
                if n_rows is not None and (n_rows := n_rows - frame.height) <= 0:
                    return

        return register_io_source(chunks, schema=schema)

    def chunks(self, name: str) -> Iterator[pl.DataFrame]:
        """All rows of a table, those of stale evidence too, in order, a part at a time; at least one part, which may be empty."""
        schema = TABLES[name].schema
        for file in self._files.get(name, ()):
            yield pl.read_parquet(file, glob=False)
        if name not in self._files:
            for frame in self._chunks(name, schema.names(), ()):
                yield frame.cast(schema)

    def write_parquet(self, name: str, target: Path) -> int:
        """All rows of a table as a Parquet file, without holding them in memory. Returns how many. Raises OSError where it cannot be written."""
        import duckdb

        if name in self._files:
            pl.scan_parquet(self._files[name], glob=False).sink_parquet(target, compression="zstd")
            return self._heights[name]
        listed = ", ".join(f'"{column}"' for column in TABLES[name].schema.names())
        cursor = self._connection.cursor()
        cursor.execute("SET TimeZone='UTC'")
        quoted = str(target).replace("'", "''")
        try:
            cursor.execute(f"COPY (SELECT {listed} FROM \"{name}\" ORDER BY rowid) TO '{quoted}' (FORMAT parquet, COMPRESSION zstd)")
        except duckdb.IOException as error:
            raise OSError(str(error).splitlines()[0]) from None
        return self._height(name)

    def _height(self, name: str) -> int:
        if name not in self._heights:
            self._heights[name] = int(self._rows(f'SELECT count(*) FROM "{name}"')[0][0])
        return self._heights[name]

    def _chunks(self, name: str, columns: Sequence[str], conditions: Sequence[str]) -> Iterator[pl.DataFrame]:
        import duckdb

        cursor = self._connection.cursor()  # one query at a time each: an analysis may read two tables at once
        cursor.execute("SET TimeZone='UTC'")
        height = self._height(name)
        listed = ", ".join(f'"{column}"' for column in columns)
        for start in range(0, max(height, 1), CHUNK_ROWS):
            window = [f"rowid >= {start} AND rowid < {start + CHUNK_ROWS}"] if height > CHUNK_ROWS else []
            where = " AND ".join([*conditions, *window])
            query = f'SELECT {listed} FROM "{name}"{" WHERE " + where if where else ""} ORDER BY rowid'
            try:
                frame = pl.DataFrame(cursor.sql(query))
            except duckdb.Error as error:
                raise CaseError(f"{self.path}: damaged ({str(error).splitlines()[0]}). Delete it and build again.") from None
            yield frame


def read_parquet(file: Path, name: str) -> Iterator[pl.DataFrame]:
    """The rows of a table from a Parquet file that `Case.write_parquet` wrote, a part at a time. Raises CaseError where they are none of it."""
    schema = TABLES[name].schema
    try:
        rows = pl.scan_parquet(file, glob=False)
        height = rows.select(pl.len()).collect().item()
        for start in range(0, max(height, 1), CHUNK_ROWS):
            yield rows.slice(start, CHUNK_ROWS).select(schema.names()).cast(schema).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise CaseError(f"{file}: no rows of {name} that this version can read ({str(error).splitlines()[0]})") from None


def is_case_file(path: Path) -> bool:
    """Whether a DuckDB file lies there, by its first bytes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(12)[8:] == b"DUCK"


def is_current(target: Path, inventory: Inventory) -> bool:
    """Whether a case file is there that was built from just these files by this version, with the site's rules that count now."""
    if not target.is_file():
        return False
    try:
        case = Case.open(target)
        try:
            meta = case.meta()
        finally:
            case.close()
    except CaseError:
        return False
    return (
        meta.get("schema") == SCHEMA_VERSION
        and meta.get("firstfault") == __version__
        and meta.get("fingerprint") == inventory.fingerprint
        and meta.get("site") == catalogues.site_fingerprint()
    )
