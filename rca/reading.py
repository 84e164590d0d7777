"""Raw files -> rows: each file goes to the collectors that recognise its content; what cannot be read is counted with its reason.

This is one of the two places that catch broadly: whatever a reader does with hostile bytes, the other files still count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from rca import plugins
from rca.errors import EvidenceError
from rca.guesses import guess
from rca.memory import PER_BYTE, memory_limit
from rca.parts import Parts
from rca.tables import TABLES
from rca.types import Collector, Skip, Source

__all__ = ["Originals", "Reading", "claimants", "collectors", "is_unique", "read_headers", "read_source", "read_sources", "readings_frame"]

BATCH_ROWS = 200_000  # calls that a compiled reader makes into one frame
MEMORY_FLOOR_BYTES = 1 << 30  # that a reader may use whatever the size of its file
PICKLE = b"\x80"  # how a pickle begins, and no text: forty readers of text need not look at sixteen thousand dumps
COMPRESSES = 30  # times, at most, that an honest dump is larger than its compressed file
ENDS_ABOVE = 64 << 20  # bytes: a larger file that nothing reads whole is known by its ends; smaller ones are hashed within a second
MAX_SKIPS = 20  # skips of one file that are kept one by one; the rest is counted
Progress = Callable[[int, int, str], None]  # bytes done, bytes in all, path of the file that is read next ("" = several at once, or none)


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

    @classmethod
    def unreadable(cls, source: Source, error: OSError) -> Reading:
        """A file whose bytes cannot be had."""
        source.__dict__["evidence_id"] = "unreadable"
        return cls(source, problem=f"cannot be read: {error.strerror or error}")

    @classmethod
    def copied(cls, source: Source, original: Reading) -> Reading:
        """A file that has the bytes of another one."""
        return cls(source, collectors=original.collectors, copy_of=original.source.path)

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
        self.look(source)
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

    def instead(self, source: Source) -> Reading | None:
        """What stands for a file that need not be read: that its bytes cannot be had, or whose copy it is; None where it has to be."""
        try:
            first = self.of(source)
        except OSError as error:
            return Reading.unreadable(source, error)
        return None if first is None else Reading.copied(source, first)

    def look(self, source: Source) -> None:
        """Find out what tells a file by its bytes. Raises OSError where they cannot be had."""
        if source.size_bytes > ENDS_ABOVE and "bytes_id" not in source.__dict__:
            source.__dict__["is_known_by_ends"] = self._is_read_by_ends(source)
        _ = source.bytes_id

    def _is_read_by_ends(self, source: Source) -> bool:
        names, problem = claimants(source, self._known)
        return problem is None and all(getattr(self._known[name], "READS_ENDS", False) for name in names)

    def add(self, reading: Reading) -> None:
        """Takes in a file that was read."""
        same = self._read.setdefault(reading.source.bytes_id, {})
        host, rank = reading.source.host_said, reading.source.rank_said
        for key in ((host, rank), (host, "*"), ("*", rank), ("*", "*")):
            same.setdefault(key, reading)


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


def read_source(source: Source, known: dict[str, Collector], parts: Parts) -> Reading:
    """Read one file with every collector that claims it, into `parts`."""
    reading, names = _begun(source, known)
    for name in names:
        _read_with(name, known[name], source, parts, reading)
    return reading


def is_unique(names: Iterable[str], known: Mapping[str, Collector]) -> bool:
    """Whether no two hosts or ranks can write such a file with the same bytes: a recorder dump counts nanoseconds."""
    return any("dumps" in known[name].EMITS for name in names)


def read_sources(
    sources: Iterable[Source], known: dict[str, Collector], parts: Parts, entering: Callable[[Source], None], *, is_compiled: bool
) -> list[Reading]:
    """Read files one after the other, into `parts`; where a collector has a compiled reader and it is wanted, by that, as far as it goes."""
    readings = []
    batch: Any = None
    waiting: list[Reading] = []

    def empty() -> None:
        if waiting:
            _emptied(batch, parts, waiting)
        waiting.clear()

    for source in sources:
        entering(source)
        reading, names = _begun(source, known)
        readings.append(reading)
        maker = getattr(known[names[0]], "batch", None) if is_compiled and len(names) == 1 else None
        if maker is not None:
            batch = batch or maker()
            if _added(batch.add, source):
                reading.collectors = [*names]
                waiting.append(reading)
                if batch.height >= BATCH_ROWS:
                    empty()
                continue
            batch = None if not waiting else batch
        empty()
        for name in names:
            _read_with(name, known[name], source, parts, reading)
        source.__dict__.pop("head", None)  # 64 KiB a file would add up
    empty()
    return readings


def _begun(source: Source, known: dict[str, Collector]) -> tuple[Reading, list[str]]:
    """A file about to be read, and who reads it."""
    reading = Reading(source)
    names, reading.problem = claimants(source, known)
    if reading.problem is None and not names:
        reading.problem = "no collector recognises it"
        reading.guess = guess(source.head)
    reading.is_unique = is_unique(names, known)
    return reading, names


def read_headers(sources: Iterable[Source], recorder: Any, parts: Parts, entering: Callable[[Source], None]) -> list[Reading] | None:
    """What recorder dumps tell before their calls, into `parts`; None where one of them cannot be read so."""
    batch, readings = recorder.batch(), []
    for source in sources:
        entering(source)
        if not _added(batch.add_header, source):
            return None
        readings.append(Reading(source, ["flight_recorder"], is_unique=True))
    _emptied(batch, parts, readings)
    return readings


def _added(add: Callable[[Source], bool], source: Source) -> bool:
    """Whether a batch took a file; whatever it trips over, the plain reader has to say what is wrong."""
    try:
        with memory_limit(MEMORY_FLOOR_BYTES + PER_BYTE * source.size_bytes):
            took = add(source)
    except Exception:  # noqa: BLE001 - runner site: the plain reader reads it, and records what it finds
        return False
    source.__dict__.pop("head", None)
    return took


def _emptied(batch: Any, parts: Parts, readings: Sequence[Reading]) -> None:
    """The rows of the files that a batch took."""
    of_file = {reading.source.evidence_id: reading for reading in readings}
    for source, item in batch.items():
        if source is not None:
            reading = of_file[source.evidence_id]
            if isinstance(item, Skip):
                reading.skip(item)
            else:
                reading.num_rows += item
            continue
        table, frame = item
        for evidence_id, num_rows in frame.group_by("evidence_id").len().iter_rows():
            of_file[evidence_id].num_rows += num_rows
        parts.add(table.name, frame)


def _read_with(name: str, collector: Collector, source: Source, parts: Parts, reading: Reading) -> None:
    reading.collectors.append(name)
    try:
        plain_bytes = source.size_bytes * (1 if source.compression == "none" else COMPRESSES)
        with memory_limit(MEMORY_FLOOR_BYTES + PER_BYTE * plain_bytes):
            for item in collector.read(source):
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
