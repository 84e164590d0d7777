"""A case: a folder of evidence in, one `case.duckdb` out. The only place that knows DuckDB.

The file is a build product: written beside its place and moved in atomically, opened read-only by every reader. A kill at any moment leaves
the old case or none, never half of one.
"""

from __future__ import annotations

import glob
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import polars as pl

from rca import __version__, belonging, catalogues, topology
from rca.errors import CaseError, UnwritableCase
from rca.memory import without_gc
from rca.reading import Originals, Parts, Progress, Reading, collectors, read_source, readings_frame
from rca.sources import WORKSPACE, Inventory
from rca.tables import TABLES
from rca.topology import Hint
from rca.types import Source, Tables

if TYPE_CHECKING:
    import duckdb

__all__ = ["JUDGED", "SCHEMA_VERSION", "Case", "MemoryCase", "build", "copy", "frames_of", "is_case_file", "is_current", "read_parquet"]

SCHEMA_VERSION = hashlib.sha256("".join(table.ddl for table in TABLES.values()).encode()).hexdigest()[:16]  # another one: built again
MEMORY_LIMIT = "256MB"  # of DuckDB while it takes in rows; beyond it spills to disk
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

    def __init__(self, frames: Mapping[str, pl.DataFrame], stale: Mapping[str, pl.DataFrame] | None = None) -> None:
        super().__init__()
        # polars 2.1 panics where it joins texts of columns that are cut into pieces at other places: then all are put in one
        self.frames = {name: frame if len(set(frame.n_chunks("all"))) <= 1 else frame.rechunk() for name, frame in frames.items()}
        self.stale = stale or {}  # rows of earlier launches and other jobs

    def table(self, name: str, *, where: str | None = None, with_stale: bool = False) -> pl.LazyFrame:
        """A declared table; empty when nothing was read for it."""
        frame = (self.frames[name] if name in self.frames else TABLES[name].frame()).lazy()
        if with_stale and name in self.stale:
            frame = pl.concat([frame, self.stale[name].lazy()])
        return frame if where is None else frame.filter(pl.col(where))


class Case(Derived):
    """An opened case file. `table` gives LazyFrames without stale evidence; nothing is ever written through it."""

    def __init__(self, path: Path, connection: duckdb.DuckDBPyConnection, *, has_stale: bool) -> None:
        super().__init__()
        self.path = path
        self._connection = connection
        self._has_stale = has_stale
        self._heights: dict[str, int] = {}
        self._kept: dict[tuple[str, ...], pl.LazyFrame] = {}

    @classmethod
    def open(cls, path: Path, *, of_this_version: bool = False) -> Case:
        """Open read-only. Raises CaseError when it is no case, or, where that is asked for, one with other tables than this version's."""
        import duckdb

        try:
            connection = duckdb.connect(str(path), read_only=True)
            connection.execute("SET TimeZone='UTC'")
            (has_stale,) = connection.execute("SELECT coalesce(bool_or(is_stale), false) FROM evidence").fetchall()[0]
        except duckdb.Error as error:
            raise CaseError(
                f"{path}: no case file that this version can open ({str(error).splitlines()[0]}). Delete it and build again."
            ) from None
        case = cls(path, connection, has_stale=bool(has_stale))
        if of_this_version and (schema := case.meta().get("schema")) != SCHEMA_VERSION:
            made_by = case.meta().get("firstfault")
            case.close()
            raise CaseError(f"{path}: a case of another version (firstfault {made_by}, tables {schema}). Build it again from the evidence.")
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
        conditions = [f'"{where}"'] if where else []
        if self._has_stale and not with_stale and "evidence_id" in schema and name not in UNFILTERED:
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
        for frame in self._chunks(name, schema.names(), ()):
            yield frame.cast(schema)

    def write_parquet(self, name: str, target: Path) -> int:
        """All rows of a table as a Parquet file, without holding them in memory. Returns how many. Raises OSError where it cannot be written."""
        import duckdb

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


@contextmanager
def _workspace(target: Path) -> Iterator[Path]:
    """A folder beside the target for parts and the file being written; gone afterwards, whatever happens.

    A build that was killed could not remove its own: it bears the number of its process, and the next build clears it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f"{target.name}{WORKSPACE}"
    for stray in target.parent.glob(f"{glob.escape(prefix)}*"):
        number = stray.name.removeprefix(prefix).partition("-")[0]
        if number.isdigit() and not Path(f"/proc/{number}").exists():
            shutil.rmtree(stray, ignore_errors=True)
    folder = target.parent / f"{prefix}{os.getpid()}-{secrets.token_hex(8)}"  # named before it is there: an interrupt may come right after
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Read:
    """Everything read from an inventory, before it is a case."""

    inventory: Inventory
    parts: Parts
    readings: list[Reading]
    frames: dict[str, pl.DataFrame]  # linked small tables


def read_all(inventory: Inventory, parts: Parts, progress: Progress | None = None) -> Read:
    """Read every file of an inventory, one at a time, a copy (same bytes, and no name that tells of another host or rank) only once."""
    known = collectors()
    readings: list[Reading] = []
    originals = Originals()
    with without_gc():
        for number, source in enumerate(sorted(inventory.sources, key=_best_named_first)):
            if progress:
                progress(number, len(inventory.sources), source.path)
            try:
                first = originals.of(source)
            except OSError as error:
                reading = Reading(source, problem=f"cannot be read: {error.strerror or error}")
                source.__dict__["evidence_id"] = "unreadable"
                readings.append(reading)
                continue
            if first is not None:
                readings.append(Reading(source, collectors=first.collectors, copy_of=first.source.path))
                continue
            readings.append(reading := read_source(source, known, parts))
            originals.add(reading)
            source.__dict__.pop("head", None)  # 64 KiB a file would add up
    if progress:
        progress(len(inventory.sources), len(inventory.sources), "")
    parts.flush()
    readings.sort(key=lambda r: r.source.path)
    return Read(inventory, parts, readings, link(parts, readings))


def _best_named_first(source: Source) -> tuple[bool, bool, bool, str]:
    """Of two files with the same bytes the one is read whose name says more."""
    return source.rank_said is None, source.host_said is None, source.rank_hint is None, source.path


def link(parts: Parts, readings: Sequence[Reading]) -> dict[str, pl.DataFrame]:
    """The small tables with identities joined: evidence with staleness, stacks with ranks, groups with all their members."""
    frames = {name: parts.table(name) for name in TABLES if name != Parts.SPILLED}
    hints = {
        r.source.evidence_id: Hint(r.source.rank_said, r.source.rank_hint, r.source.sample_hint, r.source.path, r.source.modified_at)
        for r in reversed(readings)
    }
    frames["stack_frames"] = frames["stack_frames"].unique("stack_id", keep="first", maintain_order=True)
    misnamed = topology.misnamed_dumps(frames, hints)
    for name in ("dumps", "group_status", "memberships"):
        frames[name] = topology.without_ranks(frames[name], misnamed)
    parts.rewrite(lambda frame: topology.without_ranks(frame, misnamed)) if misnamed else None
    frames["group_status"] = topology.status_by_peers(frames)
    instead = topology.same_groups(frames)
    for name in ("groups", "memberships", "group_status"):
        frames[name] = topology.rename_groups(frames[name], instead)
    parts.rewrite(lambda frame: topology.rename_groups(frame, instead)) if instead else None
    frames["memberships"] = topology.members_by_coordinates(frames)
    frames["stacks"] = topology.link_stacks(frames, hints)
    hosts = topology.hosts_by_name(frames, hints)
    for name in topology.HOST_FILES:
        frames[name] = topology.with_hosts(frames[name], hosts)
    frames["readings"] = readings_frame(readings)
    stale = topology.stale_dumps(frames["dumps"], hints)
    left_out = belonging.foreign_evidence(MemoryCase(frames), stale) | stale
    frames["evidence"] = _evidence(readings, frames, left_out)
    return frames


def _evidence(readings: Sequence[Reading], frames: dict[str, pl.DataFrame], stale: dict[str, str]) -> pl.DataFrame:
    ranks: dict[str, int] = {}
    for table in ("stacks", "dumps"):
        ranks.update(frames[table].select("evidence_id", "rank").drop_nulls().unique("evidence_id", keep="first").iter_rows())
    hosts = topology.rank_hosts(frames)
    rows: dict[str, dict[str, Any]] = {}
    for r in readings:
        key = r.source.evidence_id
        rank = ranks.get(key)
        rows.setdefault(
            key,
            {
                "evidence_id": key,
                "path": r.source.path,
                "kind": ",".join(r.collectors) or None,
                "rank": rank,
                "host": hosts.get(rank) if rank is not None else None,
                "size_bytes": r.source.size_bytes,
                "sha256": r.source.sha256 if "sha256" in r.source.__dict__ else None,
                "is_stale": key in stale,
                "stale_because": stale.get(key),
            },
        )
    return TABLES["evidence"].rows(list(rows.values()))


def frames_of(parts: Parts, linked: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """All tables in memory, stale evidence left out: for the triage and for inputs small enough."""
    frames = {**linked, Parts.SPILLED: parts.table(Parts.SPILLED)}
    stale = frames["evidence"].filter("is_stale")["evidence_id"]
    if stale.len():
        for name, frame in frames.items():
            if "evidence_id" in frame.columns and name not in UNFILTERED:
                frames[name] = frame.filter(~pl.col("evidence_id").is_in(stale.implode()))
    return frames


def build(
    inventory: Inventory, target: Path, progress: Progress | None = None, judge: Callable[[Tables], dict[str, pl.DataFrame]] | None = None
) -> Read:
    """Read everything and put the case in place. What `judge` makes of the tables (the verdict) is stored with them.

    Raises UnwritableCase where the place takes no case: told before anything is read, unless its disk fills up on the way.
    """
    with _draft(target) as (connection, draft):
        read = read_all(inventory, Parts(draft.parent / "parts"), progress)
        _declare(connection, {"fingerprint": inventory.fingerprint})
        for name in TABLES:
            if name == Parts.SPILLED:
                _insert_parts(connection, name, read.parts.files)
            elif name in read.frames:
                _insert(connection, name, read.frames[name], draft.parent)
        if judge is not None:
            _store(connection, draft, judge)
    return read


def copy(
    chunks: Callable[[str], Iterable[pl.DataFrame]],
    target: Path,
    made_of: Mapping[str, str],
    judge: Callable[[Tables], dict[str, pl.DataFrame]] | None = None,
) -> None:
    """A case from the rows of another one (as `Case.chunks` gives them, or read back from an export); with `judge`, judged anew.

    `made_of` goes beside the versions: at least `fingerprint`. Raises UnwritableCase as `build` does.
    """
    with _draft(target) as (connection, draft):
        _declare(connection, made_of)
        for name in TABLES:
            if judge is None or name not in JUDGED:
                for frame in chunks(name):
                    _insert(connection, name, frame, draft.parent)
        if judge is not None:
            _store(connection, draft, judge)


def _store(connection: duckdb.DuckDBPyConnection, draft: Path, judge: Callable[[Tables], dict[str, pl.DataFrame]]) -> None:
    """What `judge` makes of the tables, beside them."""
    (has_stale,) = connection.execute("SELECT coalesce(bool_or(is_stale), false) FROM evidence").fetchall()[0]
    for name, frame in judge(Case(draft, connection, has_stale=bool(has_stale))).items():
        _insert(connection, name, frame, draft.parent)


@contextmanager
def _draft(target: Path) -> Iterator[tuple[duckdb.DuckDBPyConnection, Path]]:
    """A new case beside the target, moved in when all went well."""
    import duckdb

    if target.is_dir():
        raise UnwritableCase(str(target), "a folder of that name lies there")
    try:
        with _workspace(target) as folder:
            draft = folder / "case.duckdb"
            config: dict[str, Any] = {"memory_limit": MEMORY_LIMIT, "threads": 1, "temp_directory": str(folder / "spill")}
            with duckdb.connect(str(draft), config=config) as connection:
                yield connection, draft
                connection.execute("CHECKPOINT")  # raises when the disk is full; closing would not, and leave all in the log beside
            if draft.with_name(f"{draft.name}.wal").exists():
                raise UnwritableCase(str(target), "not all of it reached the disk")
            draft.replace(target)
    except OSError as error:
        raise UnwritableCase(str(target), error.strerror or str(error)) from None
    except RuntimeError as error:
        if "interrupt" in str(error).lower():
            raise KeyboardInterrupt from None  # DuckDB turns Ctrl-C into an error of its own
        raise
    except duckdb.Error as error:
        raise UnwritableCase(str(target), str(error).splitlines()[0]) from None


def _declare(connection: duckdb.DuckDBPyConnection, made_of: Mapping[str, str]) -> None:
    """Empty tables, and what the case is made of and with."""
    connection.execute("SET TimeZone='UTC'")
    connection.begin()  # else every statement of its own waits for the disk
    connection.execute("CREATE TABLE meta (key VARCHAR, value VARCHAR)")
    for pair in ({"schema": SCHEMA_VERSION, "firstfault": __version__, "site": catalogues.site_fingerprint()} | dict(made_of)).items():
        connection.execute("INSERT INTO meta VALUES (?, ?)", list(pair))
    for table in TABLES.values():
        connection.execute(table.ddl)
    connection.commit()


def _insert(connection: duckdb.DuckDBPyConnection, name: str, frame: pl.DataFrame, folder: Path) -> None:
    if frame.height:
        part = folder / f"{name}.parquet"
        frame.write_parquet(part, compression="lz4", statistics=False)
        _insert_parts(connection, name, [part])


def _insert_parts(connection: duckdb.DuckDBPyConnection, name: str, parts: Iterable[Path]) -> None:
    listed = ", ".join(f'"{column}"' for column in TABLES[name].schema.names())
    for part in parts:
        connection.execute(f'INSERT INTO "{name}" SELECT {listed} FROM read_parquet(?)', [glob.escape(str(part))])


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
