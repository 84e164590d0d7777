"""Parquet files: tables of steps and of timed operations, told by their columns. The same columns as in CSV.

    dp_rank, stage, rank, step, optype, start_ts, duration, seq_id, mb_id    one row per operation: ByteDance's straggler traces
    step, rank, stage, compute_s                                             one row per rank and step
    src_rank, dst_rank, transfer_s, bytes                                    one row per transfer between two ranks

What the columns are stands at the end of such a file, so every Parquet file is taken, and one of other columns is named as what it is. Rows: `ops`
with sums of them in `steps`; or `steps`, `progress` and `rank_progress`; or `transfers`. Records are E<row>, counted from 0. Read with DuckDB, in
batches.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from collectors._op_table import Sums, op_layout
from collectors._step_table import frames, layout, wholes
from collectors._transfer_table import transfer_frames, transfer_layout
from rca.errors import EvidenceError
from rca.tables import TABLES
from rca.types import Skip, Source

if TYPE_CHECKING:
    import duckdb

    from rca.tables import Table

__all__ = ["EMITS", "IS_ALONE", "claims", "read"]

EMITS = ("ops", "steps", "progress", "rank_progress", "transfers")
IS_ALONE = True

MAGIC: Final = b"PAR1"
BATCH_ROWS: Final = 100_000
MAX_BYTES: Final = 1 << 29  # of a file that is unpacked, into memory, to be read
MEMORY: Final = "768MB"
MAX_TOLD: Final = 12  # columns that are named
_OURS: Final = frozenset({"evidence_id", "record"})
_PLAIN: Final = re.compile(
    r"U?(?:TINY|SMALL|BIG|HUGE)?INT\b|U?INTEGER|FLOAT|DOUBLE|DECIMAL|VARCHAR|ENUM|BOOLEAN|TIMESTAMP"
)  # numbers, texts


def claims(name: str, head: bytes) -> bool:
    """A Parquet file, whatever its columns: they stand at its end."""
    return head.startswith(MAGIC)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows in the order of the file. Raises EvidenceError where it is damaged, or where its columns are of neither kind."""
    import duckdb

    config: dict[str, Any] = {
        "threads": 1,
        "memory_limit": MEMORY,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    with _plain(source) as path, duckdb.connect(":memory:", config=config | {"temp_directory": ""}) as db:
        try:
            yield from _tables(source, db, path)
        except duckdb.Error as error:
            why = (
                "the file is gone"
                if not source.file.exists()
                else f"a Parquet file that cannot be read: {str(error).splitlines()[0][:160]}"
            )
            raise EvidenceError(source.path, None, why) from None
        except (UnicodeDecodeError, OverflowError, ValueError) as error:  # text that is none, numbers beyond a table's
            raise EvidenceError(source.path, None, f"a Parquet file that holds no such values: {str(error)[:160]}") from None


@contextmanager
def _plain(source: Source) -> Iterator[str]:
    """A path, as DuckDB takes it, below which the bytes lie uncompressed: the file's own, or one in memory."""
    if source.compression == "none":
        yield glob.escape(str(source.file))
        return
    if not hasattr(os, "memfd_create"):
        raise EvidenceError(source.path, None, "a compressed Parquet file is not read on this system: unpack it first")
    with os.fdopen(os.memfd_create("table"), "wb") as out:
        size, blocks = 0, source.blocks()
        while True:
            try:
                part = next(blocks)
            except StopIteration as end:
                if end.value:
                    raise EvidenceError(source.path, None, f"breaks off: {end.value}") from None
                break
            size += out.write(part)
            if size > MAX_BYTES:
                raise EvidenceError(source.path, None, f"more than {MAX_BYTES:,} bytes after decompression: unpack it first")
        out.flush()
        yield f"/proc/self/fd/{out.fileno()}"


def _tables(source: Source, db: duckdb.DuckDBPyConnection, path: str) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    described = db.execute("DESCRIBE SELECT * FROM read_parquet(?)", [path]).fetchall()
    names, types = [str(row[0]) for row in described], [str(row[1]) for row in described]
    ours = next((table for table, of in TABLES.items() if set(of.schema) <= set(names)), None) if set(names) >= _OURS else None
    if ours is not None:
        raise EvidenceError(source.path, None, f"the table {ours} as `rca export` writes it: read the evidence that it was made from")
    kept = [name if _PLAIN.match(kind) and not kind.endswith("]") else "" for name, kind in zip(names, types, strict=True)]
    moved, ops, steps = transfer_layout(kept), op_layout(kept), layout(kept)
    about = moved or steps or ops
    if about is None:
        shown = ", ".join(names[:MAX_TOLD]) + (", ..." if len(names) > MAX_TOLD else "")
        wanted = "one of steps has `step` and a time, one of operations rank, step, op and duration, one of transfers two ranks and a time"
        raise EvidenceError(source.path, None, f"a Parquet table of other columns ({shown[:300]}): {wanted}")
    sums = Sums(ops) if about is ops and ops is not None else None
    used = about.used
    chosen = ", ".join(_expression(names[number], types[number]) for number in used)
    rows = db.execute(f"SELECT {chosen} FROM read_parquet(?)", [path])
    num_read = num_rows = 0
    while batch := rows.fetchmany(BATCH_ROWS):
        cells = dict(zip(used, map(_series, zip(*batch, strict=True)), strict=True))
        known = wholes(cells[about.step]).is_not_null()
        places = "E" + pl.Series(range(num_read, num_read + len(batch)), dtype=pl.Int64).cast(pl.String)
        if not known.all():
            yield Skip(places.filter(~known)[0], f"{int((~known).sum())} rows without a {'step' if moved is None else 'source rank'}")
        num_read += len(batch)
        cells, places = {number: cell.filter(known) for number, cell in cells.items()}, places.filter(known)
        num_rows += len(places)
        if not len(places):
            continue
        if moved is not None:
            yield from transfer_frames(moved, cells, places)
        elif sums is not None:
            yield from sums.frames(cells, places)
        elif steps is not None:
            yield from frames(steps, cells, places, source.rank_said)
    if not num_rows:
        raise EvidenceError(source.path, None, "no row with a step (or source rank) in it")
    if sums is not None:
        yield from sums.steps()


def _expression(name: str, kind: str) -> str:
    """A column as numbers or text; instants as microseconds since 1970, if they are ones."""
    quoted = '"' + name.replace('"', '""') + '"'
    if kind == "TIMESTAMP WITH TIME ZONE":
        return f"epoch_us({quoted})"
    if kind.startswith("TIMESTAMP"):
        return f"CAST({quoted} AS VARCHAR)"
    if kind.startswith(("DECIMAL", "HUGEINT", "UHUGEINT")):
        return f"CAST({quoted} AS DOUBLE)"
    return f"CAST({quoted} AS VARCHAR)" if kind.startswith("ENUM") else quoted


def _series(values: Sequence[Any]) -> pl.Series:
    first = next((value for value in values if value is not None), None)
    dtype = pl.String if isinstance(first, str) else pl.Float64 if isinstance(first, float) else pl.Int64
    return pl.Series(values, dtype=dtype, strict=False)
