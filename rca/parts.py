"""Rows on their way to a case, by table: in memory as long as they are few, else in Parquet files of bounded size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from rca.tables import TABLES

__all__ = ["PartFile", "Parts"]

BATCH_ROWS = 400_000  # rows of a table held in memory before they go to disk: ~100 MB of calls
STAYING = frozenset(
    {"collectives", "steps", "ops", "gpu_samples", "rank_progress"}
)  # tables that grow with ranks and steps, and that nothing links


@dataclass(frozen=True)
class PartFile:
    """A Parquet file with rows of one table."""

    path: Path
    num_rows: int


class Parts:
    """Rows on their way to the case. A table's rows keep the order in which they were taken in."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: of the files; None keeps all rows in memory, where no disk takes them."""
        self._folder = folder
        self._waiting: dict[str, list[pl.DataFrame]] = defaultdict(list)
        self._ids: dict[str, list[str]] = defaultdict(list)  # evidence_id of each waiting frame; "" = its rows carry their own
        self._num_waiting: dict[str, int] = defaultdict(int)
        self.files: dict[str, list[PartFile]] = defaultdict(list)
        self.are_kept = False  # the files outlive the build: a large table stays in them

    def stay(self, folder: Path) -> None:
        """The files that are taken in from now on, and what is rewritten of them into `folder`, outlive the build."""
        self._folder, self.are_kept = folder, True

    def add(self, table: str, frame: pl.DataFrame, evidence_id: str = "") -> None:
        """Take the rows of a table that one file gave."""
        if not frame.height:
            return
        self._waiting[table].append(frame)
        self._ids[table].append(evidence_id)
        self._num_waiting[table] += frame.height
        if self._folder is not None and self._num_waiting[table] >= BATCH_ROWS:
            self._write(table)

    def take(self, table: str, files: Iterable[PartFile]) -> None:
        """Take rows that lie in files already."""
        if self._waiting[table]:
            self._write(table)
        self.files[table] += files

    def flush(self) -> None:
        """Write all that is still in memory."""
        for table in [name for name, frames in self._waiting.items() if frames]:
            self._write(table)

    def _write(self, table: str) -> None:
        assert self._folder is not None, "rows that are kept in memory go to no file"
        frame = self._taken(table)
        self._waiting[table], self._ids[table], self._num_waiting[table] = [], [], 0
        self._folder.mkdir(parents=True, exist_ok=True)
        self.files[table].append(_written(frame, self._folder / f"{table}-{len(self.files[table]):05d}.parquet"))

    def rewrite(self, table: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        """Change the rows of a table, file by file. The files that were taken in stay as they are."""
        waiting = self._taken(table)
        self._waiting[table], self._ids[table], self._num_waiting[table] = [], [], 0
        old, self.files[table] = self.files[table], []
        for number, file in enumerate(old):
            assert self._folder is not None, "rows that are kept in memory lie in no file"
            self._folder.mkdir(parents=True, exist_ok=True)
            frame = change(pl.read_parquet(file.path, glob=False))
            self.files[table].append(_written(frame, self._folder / f"{table}-linked-{number:05d}.parquet"))
        self.add(table, change(waiting))

    def height(self, table: str) -> int:
        """Rows of a table."""
        return sum(file.num_rows for file in self.files[table]) + self._num_waiting[table]

    @property
    def large(self) -> frozenset[str]:
        """Tables that stay in files, which no more rows are added to."""
        return frozenset(name for name in STAYING if self.are_kept and self.files[name])

    def waiting(self, table: str) -> pl.DataFrame:
        """The rows of a table that lie in no file."""
        return self._taken(table)

    def table(self, table: str) -> pl.DataFrame:
        """All rows of a table, in memory."""
        frame = self._taken(table)
        if not self.files[table]:
            return frame
        return pl.concat([*(pl.read_parquet(file.path, glob=False) for file in self.files[table]), frame])

    def scan(self, table: str) -> pl.LazyFrame:
        """All rows of a table that lies in files, read when they are asked for."""
        files = self.files[table]
        return pl.scan_parquet([file.path for file in files], glob=False) if files else TABLES[table].frame().lazy()

    def _taken(self, table: str) -> pl.DataFrame:
        """The waiting rows with the columns that only the reader of the file knows, filled in for all files at once."""
        frames = self._waiting[table]
        if not frames:
            return TABLES[table].frame()
        ids = pl.Series("evidence_id", self._ids[table]).to_frame().with_columns(pl.Series("n", [f.height for f in frames]))
        per_row = ids.select(pl.col("evidence_id").repeat_by("n").explode())["evidence_id"]
        stamps = [pl.when(per_row != "").then(per_row).otherwise(pl.col("evidence_id")).alias("evidence_id")]
        if "attempt" in TABLES[table].schema:
            stamps += [pl.col("job_id").fill_null("job-0"), pl.col("attempt").fill_null(0)]
        return pl.concat(frames).with_columns(stamps)


def _written(frame: pl.DataFrame, path: Path) -> PartFile:
    frame.write_parquet(path, compression="lz4", statistics=False)
    return PartFile(path, frame.height)
