"""A folder of evidence in, one `case.duckdb` out.

The file is a build product: written beside its place and moved in atomically. A kill at any moment leaves the old case or none, never half of one.
Where no disk takes it, the same tables are held in memory.
"""

from __future__ import annotations

import glob
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from rca import __version__, catalogues
from rca.batches import Means
from rca.case import JUDGED, SCHEMA_VERSION, Case
from rca.errors import UnwritableCase
from rca.linking import Read, read_all
from rca.parts import PartFile, Parts
from rca.reading import Progress
from rca.sources import WORKSPACE, Inventory
from rca.store import Store, parts_folder
from rca.tables import TABLES
from rca.types import Tables

if TYPE_CHECKING:
    import duckdb

__all__ = ["build", "copy", "hold"]

PART_FILES = (
    "CREATE TABLE part_files (table_name VARCHAR, place INTEGER, file VARCHAR, num_rows BIGINT)"  # files relative to the folder of the case
)
IN_MEMORY = ":memory:"  # DuckDB's name of a database without a file
MEMORY_LIMIT = "256MB"  # of DuckDB while it takes in rows; beyond it spills to disk


def build(
    inventory: Inventory,
    target: Path,
    progress: Progress | None = None,
    judge: Callable[[Tables], dict[str, pl.DataFrame]] | None = None,
    means: Means | None = None,
) -> Read:
    """Read everything and put the case in place. What `judge` makes of the tables (the verdict) is stored with them.

    Much evidence is read in batches with the given means, by this process alone where none are, and what was read is kept beside the case
    (`rca.store`). Raises UnwritableCase where the place takes no case: told before anything is read, unless its disk fills up on the way.
    """
    store = Store(parts_folder(target))
    with _draft(target) as (connection, draft):
        read = read_all(inventory, Parts(draft.parent / "parts"), progress, store, means)
        staying = read.parts.large
        _declare(connection, {"fingerprint": inventory.fingerprint})
        for name in TABLES:
            files = read.parts.files[name]
            if name in staying:
                _leave(connection, name, files, target.parent)
            elif name in read.frames:
                _insert(connection, name, read.frames[name], draft.parent)
            else:
                _insert_parts(connection, name, [file.path for file in files])
                _insert(connection, name, read.parts.waiting(name), draft.parent)
        if judge is not None:
            _store(connection, draft, judge, target.parent)
    store.drop_unused()
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
            _store(connection, draft, judge, target.parent)


def hold(
    chunks: Callable[[str], Iterable[pl.DataFrame]], made_of: Mapping[str, str], judge: Callable[[Tables], dict[str, pl.DataFrame]]
) -> Case:
    """The case in memory alone, from the rows of its tables (`made_of` as for `copy`): nothing is written, and it ends when it is closed."""
    import duckdb

    connection = duckdb.connect(IN_MEMORY, config={"threads": 1, "temp_directory": ""})
    _declare(connection, made_of)
    for name in TABLES:
        if name not in JUDGED:
            for frame in chunks(name):
                _take(connection, name, frame)
    for name, frame in judge(Case(Path(IN_MEMORY), connection)).items():
        _take(connection, name, frame)
    return Case(Path(IN_MEMORY), connection)


class _Rows:
    """Rows as DuckDB reads them without a library between: for polars' own frames it asks for pyarrow."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.__arrow_c_stream__ = frame.__arrow_c_stream__


def _take(connection: duckdb.DuckDBPyConnection, name: str, frame: pl.DataFrame) -> None:
    """Rows into a table that is held in memory. Raises UnwritableCase: DuckDB before 2 asks for pyarrow after all."""
    import duckdb

    if not frame.height:
        return
    listed = ", ".join(f'"{column}"' for column in TABLES[name].schema.names())
    connection.register("taken", _Rows(frame))
    try:
        connection.execute(f'INSERT INTO "{name}" SELECT {listed} FROM taken')
    except duckdb.Error as error:
        raise UnwritableCase(IN_MEMORY, str(error).splitlines()[0]) from None
    connection.unregister("taken")


def _store(connection: duckdb.DuckDBPyConnection, draft: Path, judge: Callable[[Tables], dict[str, pl.DataFrame]], home: Path) -> None:
    """What `judge` makes of the tables, beside them. `home`: the folder that the case goes to."""
    for name, frame in judge(Case(draft, connection, home)).items():
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
    connection.execute(PART_FILES)
    connection.commit()


def _leave(connection: duckdb.DuckDBPyConnection, name: str, files: Sequence[PartFile], home: Path) -> None:
    """A table whose rows stay in files below `home`: a view for whoever opens the case with DuckDB, and a list of the files for this library, which
    finds them wherever case and files are moved to together."""
    listed = ", ".join(f'"{column}"' for column in TABLES[name].schema.names())
    paths = ", ".join("'" + glob.escape(str(file.path.resolve())).replace("'", "''") + "'" for file in files)
    connection.execute(f'DROP TABLE "{name}"')
    connection.execute(f'CREATE VIEW "{name}" AS SELECT {listed} FROM read_parquet([{paths}])')
    rows = [[name, place, file.path.relative_to(home).as_posix(), file.num_rows] for place, file in enumerate(files)]
    connection.executemany("INSERT INTO part_files VALUES (?, ?, ?, ?)", rows)


def _insert(connection: duckdb.DuckDBPyConnection, name: str, frame: pl.DataFrame, folder: Path) -> None:
    if frame.height:
        part = folder / f"{name}.parquet"
        frame.write_parquet(part, compression="lz4", statistics=False)
        _insert_parts(connection, name, [part])


def _insert_parts(connection: duckdb.DuckDBPyConnection, name: str, parts: Iterable[Path]) -> None:
    listed = ", ".join(f'"{column}"' for column in TABLES[name].schema.names())
    for part in parts:
        connection.execute(f'INSERT INTO "{name}" SELECT {listed} FROM read_parquet(?)', [glob.escape(str(part))])


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
