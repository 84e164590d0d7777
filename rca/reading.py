"""Raw files -> rows: each file goes to the collectors that recognise its content; what cannot be read is counted with its reason.

This is one of the two places that catch broadly: whatever a reader does with hostile bytes, the other files still count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from rca import plugins
from rca.errors import EvidenceError
from rca.guesses import guess
from rca.memory import PER_BYTE, memory_limit
from rca.tables import TABLES
from rca.types import Collector, Skip, Source

__all__ = ["Originals", "Parts", "Reading", "claimants", "collectors", "read_source"]

BATCH_ROWS = 200_000  # rows held in memory before they go to disk: ~60 MB of calls
MEMORY_FLOOR_BYTES = 1 << 30  # that a reader may use whatever the size of its file
PICKLE = b"\x80"  # how a pickle begins, and no text: forty readers of text need not look at sixteen thousand dumps
COMPRESSES = 30  # times, at most, that an honest dump is larger than its compressed file
ENDS_ABOVE = 64 << 20  # bytes: a larger file that nothing reads whole is known by its ends; smaller ones are hashed within a second
MAX_SKIPS = 20  # skips of one file that are kept one by one; the rest is counted
Progress = Callable[[int, int, str], None]  # files done, files in all, current path


@dataclass
class Reading:
    """What became of one file."""

    source: Source
    collectors: list[str] = field(default_factory=list)
    num_rows: int = 0
    skips: list[Skip] = field(default_factory=list)
    num_skipped: int = 0
    problem: str | None = None
    guess: str | None = None
    copy_of: str | None = None  # path of the file with the same bytes that was read instead
    is_unique: bool = False  # no two hosts or ranks can write such a file with the same bytes

    def skip(self, skip: Skip) -> None:
        """Count a record that could not be read; the first ones are kept with their reason."""
        self.num_skipped += 1
        if len(self.skips) < MAX_SKIPS:
            self.skips.append(skip)


class Originals:
    """The files read so far, by their bytes: tells a copy from what another host or rank left, which may be equal to the byte.

    A checkpoint may have terabytes. Of a large file whose collectors look only at its ends (READS_ENDS), or that none recognises, the ends and the
    size stand for the bytes: two different shards of a size differ in the tables of contents, checksums or last tensors at their ends.
    """

    def __init__(self, known: dict[str, Collector] | None = None) -> None:
        self._known = collectors() if known is None else known
        self._read: dict[str, dict[tuple[str | int | None, str | int | None], Reading]] = {}  # "*" = any host, any rank

    def of(self, source: Source) -> Reading | None:
        """What was read of the file that this one copies; None where it is none, with an id of its own where the bytes are known.

        Nothing may say that it is of another host or rank: seven sound hosts have the same list of packages. Only a recorder dump, which counts
        nanoseconds, is never equal to another one's.
        """
        if source.size_bytes > ENDS_ABOVE and "bytes_id" not in source.__dict__:
            source.__dict__["is_known_by_ends"] = self._is_read_by_ends(source)
        source.__dict__["evidence_id"] = source.bytes_id
        same = self._read.get(source.bytes_id)
        if same is None:
            return None
        host, rank = source.host_said, source.rank_said
        known = [(h, r) for h in (["*"] if host is None else [host, None]) for r in (["*"] if rank is None else [rank, None])]
        first = next((same[key] for key in known if key in same), None)
        if first is None and (anyones := same["*", "*"]).is_unique:
            return anyones
        if first is not None and any(getattr(self._known.get(name), "OF_ITS_FOLDER", False) for name in first.collectors):
            source.__dict__["evidence_id"] = hashlib.sha256(f"{source.bytes_id} {source.path}".encode()).hexdigest()[:16]
            return None  # the folder is part of what it says
        if first is None:
            source.__dict__["evidence_id"] = hashlib.sha256(f"{source.bytes_id} {host} {rank}".encode()).hexdigest()[:16]
        return first

    def _is_read_by_ends(self, source: Source) -> bool:
        names, problem = claimants(source, self._known)
        return problem is None and all(getattr(self._known[name], "READS_ENDS", False) for name in names)

    def add(self, reading: Reading) -> None:
        """Takes in a file that was read."""
        same = self._read.setdefault(reading.source.bytes_id, {})
        host, rank = reading.source.host_said, reading.source.rank_said
        for key in ((host, rank), (host, "*"), ("*", rank), ("*", "*")):
            same.setdefault(key, reading)


class Parts:
    """Rows on their way to the case: small tables stay in memory, `collectives` goes to Parquet parts in bounded batches."""

    SPILLED = "collectives"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: dict[str, list[pl.DataFrame]] = {}
        self._ids: dict[str, list[str]] = {}  # evidence_id of each waiting frame; "" = its rows carry their own
        self._num_waiting = 0
        self.files: list[Path] = []

    def add(self, table: str, frame: pl.DataFrame, evidence_id: str = "") -> None:
        """Take the rows of a table that one file gave."""
        if not frame.height:
            return
        self._waiting.setdefault(table, []).append(frame)
        self._ids.setdefault(table, []).append(evidence_id)
        if table == self.SPILLED:
            self._num_waiting += frame.height
            if self._num_waiting >= BATCH_ROWS:
                self.flush()

    def flush(self) -> None:
        """Write the waiting calls as one more part."""
        frame = self._take(self.SPILLED)
        self._num_waiting = 0
        self._waiting.pop(self.SPILLED, None)
        self._ids.pop(self.SPILLED, None)
        if frame.height:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{self.SPILLED}-{len(self.files):05d}.parquet"
            frame.write_parquet(path, compression="lz4", statistics=False)
            self.files.append(path)

    def rewrite(self, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        """Change the calls, part by part."""
        self.flush()
        for path in self.files:
            change(pl.read_parquet(path, glob=False)).write_parquet(path, compression="lz4", statistics=False)

    def table(self, table: str) -> pl.DataFrame:
        """All rows of a table, parts on disk included."""
        frame = self._take(table)
        if table == self.SPILLED and self.files:
            return pl.concat([*(pl.read_parquet(path, glob=False) for path in self.files), frame])
        return frame

    def _take(self, table: str) -> pl.DataFrame:
        """The waiting rows with the columns that only the reader of the file knows, filled in for all files at once."""
        frames = self._waiting.get(table, [])
        if not frames:
            return TABLES[table].frame()
        ids = pl.Series("evidence_id", self._ids[table]).to_frame().with_columns(pl.Series("n", [f.height for f in frames]))
        per_row = ids.select(pl.col("evidence_id").repeat_by("n").explode())["evidence_id"]
        stamps = [pl.when(per_row != "").then(per_row).otherwise(pl.col("evidence_id")).alias("evidence_id")]
        if "attempt" in TABLES[table].schema:
            stamps += [pl.col("job_id").fill_null("job-0"), pl.col("attempt").fill_null(0)]
        return pl.concat(frames).with_columns(stamps)


def collectors() -> dict[str, Collector]:
    """Every collector by its name."""
    from typing import cast

    return {name: cast("Collector", plugins.load("collectors", name)) for name in plugins.names("collectors")}


def claimants(source: Source, known: dict[str, Collector]) -> tuple[list[str], str | None]:
    """The collectors that recognise a file by its head, or why none could be asked."""
    try:
        head = source.head
        if not head:
            return [], "empty file" if source.size_bytes == 0 else "cannot be decompressed or read"
        is_pickle = head[:1] == PICKLE
        asked = [name for name in known if not is_pickle or getattr(known[name], "READS_PICKLES", False)]
        names = [name for name in asked if known[name].claims(source.path, head)]
        names = [name for name in names if hasattr(known[name], "SCHEMA")] or names  # a record of ours may quote any log
        if any(getattr(known[name], "IS_ALONE", False) for name in names):  # a table of nodes or a metric's label may quote any log
            names = [name for name in names if not getattr(known[name], "IS_GENERIC", False)]
        return names, None
    except Exception as error:  # noqa: BLE001 - runner site: a collector that trips over a head must not end the run
        return [], f"cannot be recognised: {type(error).__name__}: {error}"


def read_source(
    source: Source,
    known: dict[str, Collector],
    parts: Parts,
    *,
    read: Callable[[Collector, Source], Iterable[Any]] | None = None,
) -> Reading:
    """Read one file with every collector that claims it, into `parts`."""
    reading = Reading(source)
    names, reading.problem = claimants(source, known)
    if reading.problem is not None:
        return reading
    if not names:
        reading.problem = "no collector recognises it"
        reading.guess = guess(source.head)
    reading.is_unique = any("dumps" in known[name].EMITS for name in names)
    for name in names:
        _read_with(name, known[name], source, parts, reading, read)
    return reading


def _read_with(name: str, collector: Collector, source: Source, parts: Parts, reading: Reading, read: Any) -> None:
    reading.collectors.append(name)
    try:
        plain_bytes = source.size_bytes * (1 if source.compression == "none" else COMPRESSES)
        with memory_limit(MEMORY_FLOOR_BYTES + PER_BYTE * plain_bytes):
            for item in (read or (lambda c, s: c.read(s)))(collector, source):
                if isinstance(item, Skip):
                    reading.skip(item)
                    continue
                table, frame = item
                reading.num_rows += frame.height
                parts.add(table.name, frame, source.evidence_id)
    except MemoryError:
        reading.problem = "needs far more memory than a file of its size: refused"
        reading.skip(Skip(None, reading.problem))
    except EvidenceError as error:
        reading.problem = error.why
        reading.skip(Skip(error.record, error.why))
    except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001 - runner site: recorded, and the other files are still read
        reading.problem = f"the {name} reader failed: {type(error).__name__}: {str(error)[:200]}"
        reading.skip(Skip(None, reading.problem))


def readings_frame(readings: Sequence[Reading]) -> pl.DataFrame:
    """The `readings` table."""
    rows = [
        {
            "evidence_id": r.source.evidence_id,
            "path": r.source.path,
            "collector": name,
            "num_rows": r.num_rows,
            "num_skipped": r.num_skipped,
            "first_skip_record": r.skips[0].record if r.skips else None,
            "first_skip": r.skips[0].why if r.skips else None,
            "problem": r.problem,
            "copy_of": r.copy_of,
            "guess": r.guess,
        }
        for r in readings
        for name in (*r.collectors, *([] if r.collectors else [None]))
    ]
    return TABLES["readings"].rows(rows)
