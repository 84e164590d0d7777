"""Much evidence, read in batches: by several processes within a bound of memory, each batch kept when it is finished (`rca.store`).

1. Files that a finished batch knows by name, size and time are known by their bytes too; the bytes of the others are looked at.
2. Copies are told from originals. A finished batch counts where all of its files are there as they were; what is left is read in batches of
   neighbours, so that a build that goes on from a killed one makes the same batches.
3. A process that dies or stays too long with a batch ends the others; what is left is then read here, where whoever watches is told each file.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import secrets
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rca.memory import machine_bytes
from rca.parts import Parts
from rca.reading import Originals, Progress, Reading, claimants, collectors, is_unique, read_sources
from rca.store import Finished, Store
from rca.types import Collector, Source

__all__ = ["Means", "read_in_batches"]

BATCH_BYTES, BATCH_FILES = 64 << 20, 256
WORKER_BYTES = 400 << 20  # that a reading process takes: libraries 150 MB, the rows of a batch and their compressed form
SHARE = 4  # a quarter of the machine is used where nothing else is asked for
PATIENCE_S, PATIENCE_S_PER_MB = 60.0, 20.0  # with a batch; as long as apps/supervise.py has with one file of that size
PR_SET_PDEATHSIG = 1
ID_FIELDS = ("sha256", "ends_sha256", "is_known_by_ends", "bytes_id")


@dataclass(frozen=True)
class Means:
    """What a build may use, and from how many bytes of evidence on it does so."""

    workers: int = 1  # processes at most
    memory_bytes: int | None = None  # of all processes together; None: a quarter of the machine
    many_bytes: int = 64 << 20  # from which files are read in batches: less is read within seconds, and nothing of it is kept
    pool_bytes: int = 1 << 30  # from which more than one process reads, one more for each half of it: each takes a second to start
    compile_bytes: int = 64 << 20  # from which compiled readers are worth loading

    def processes(self, total_bytes: int) -> int:
        """How many processes read so much evidence."""
        if total_bytes < self.pool_bytes:
            return 1
        return max(1, min(self.workers, self.budget // WORKER_BYTES, 1 + total_bytes // max(self.pool_bytes // 2, 1)))

    @property
    def budget(self) -> int:
        """Bytes that all processes together may take."""
        return self.memory_bytes if self.memory_bytes is not None else machine_bytes() // SHARE

    @property
    def batch_bytes(self) -> int:
        """Bytes of evidence that are read into one batch; a larger file is one of its own."""
        return max(1 << 20, min(BATCH_BYTES, self.budget // 16))


def read_in_batches(sources: Sequence[Source], parts: Parts, store: Store, means: Means, progress: Progress | None) -> list[Reading]:
    """What became of every file; the rows go to `parts` as files of finished batches, in the order of the sources."""
    known = collectors()
    store.clear_unfinished()
    finished = store.finished()
    _recognise(sources, finished)
    told = _Told(sources, progress)
    names = {reading.source.path: reading.collectors for one in finished for reading in one.readings}
    with _pool(means.processes(told.total)) as pool:
        names |= _look([source for source in sources if "bytes_id" not in source.__dict__], pool)
        readings, wanted = _originals(sources, names, known)
        kept = _usable(finished, wanted)
        have = {reading.source.path for one in kept for reading in one.readings}
        told.skip([source for source in sources if source.path in have])
        batches = list(_planned(sources, wanted, have, means.batch_bytes))
        made = _read(batches, store, pool, told, is_compiled=told.total >= means.compile_bytes and _has_compiled(known))
    place = {source.path: number for number, source in enumerate(sources)}
    linked = store.folder / f"linked-{secrets.token_hex(8)}"
    parts.stay(linked)
    store.used = [linked, *(one.folder for one in (*kept, *made))]
    for one in sorted([*kept, *made], key=lambda one: place[one.readings[0].source.path]):
        for table, files in one.tables.items():
            parts.take(table, files)
        for reading in one.readings:
            reading.source = wanted[reading.source.path]
            readings.append(reading)
    return readings


class _Told:
    """Tells how far the reading is."""

    def __init__(self, sources: Iterable[Source], progress: Progress | None) -> None:
        self.total = sum(source.size_bytes for source in sources)
        self._done, self._progress = 0, progress

    def entering(self, source: Source) -> None:
        """A file is read next, in this process."""
        if self._progress:
            self._progress(self._done, self.total, source.path)
        self._done += source.size_bytes

    def skip(self, sources: Iterable[Source]) -> None:
        """Files that need not be read, or were read elsewhere."""
        self._done += sum(source.size_bytes for source in sources)
        if self._progress:
            self._progress(min(self._done, self.total - 1), self.total, "")


def _recognise(sources: Sequence[Source], finished: Sequence[Finished]) -> None:
    """What finished batches know of the bytes of files with the same name, size and time."""
    known = {(r.source.path, r.source.size_bytes, r.source.modified_at): r.source for one in finished for r in one.readings}
    for source in sources:
        same = known.get((source.path, source.size_bytes, source.modified_at))
        if same is not None and source.modified_at is not None:
            source.__dict__.update({name: same.__dict__[name] for name in ID_FIELDS if name in same.__dict__})


def _look(sources: Sequence[Source], pool: ProcessPoolExecutor | None) -> dict[str, list[str]]:
    """The bytes of files by their digests, and by path the collectors that recognise them; a file that cannot be read has neither."""
    chunks = [sources[start : start + BATCH_FILES] for start in range(0, len(sources), BATCH_FILES)]
    found: Iterable[list[Looked]]
    try:
        found = map(_looked, chunks) if pool is None else list(pool.map(_looked, chunks))
    except BrokenProcessPool:
        found = map(_looked, chunks)
    names = {}
    for chunk, looked in zip(chunks, found, strict=True):
        for source, (digests, names[source.path]) in zip(chunk, looked, strict=True):
            source.__dict__.update(digests)
    return names


Looked = tuple[dict[str, object], list[str]]


def _looked(sources: Sequence[Source]) -> list[Looked]:
    known = collectors()
    originals = Originals(known)
    found: list[Looked] = []
    for source in sources:
        names, _ = claimants(source, known)
        try:
            originals.look(source)
        except OSError:
            found.append(({}, []))
            continue
        found.append(({name: source.__dict__[name] for name in ID_FIELDS if name in source.__dict__}, names))
        source.__dict__.pop("head", None)  # 64 KiB a file would add up
    return found


def _originals(
    sources: Sequence[Source], names: Mapping[str, list[str]], known: Mapping[str, Collector]
) -> tuple[list[Reading], dict[str, Source]]:
    """Readings of copies and of what cannot be read; and the files that must be read, by path."""
    originals = Originals(dict(known))
    readings, wanted = [], {}
    for source in sources:
        if (known_by := originals.instead(source)) is not None:
            readings.append(known_by)
            continue
        claimed = names.get(source.path, [])
        originals.add(Reading(source, claimed, is_unique=is_unique(claimed, known)))
        wanted[source.path] = source
    return readings, wanted


def _usable(finished: Sequence[Finished], wanted: Mapping[str, Source]) -> list[Finished]:
    """Batches all of whose files are there as they were, none of them in two."""
    kept, taken = [], set[str]()
    for one in finished:
        paths = {reading.source.path for reading in one.readings}
        if (
            one.readings
            and not paths & taken
            and all(_is_same(reading.source, wanted.get(reading.source.path)) for reading in one.readings)
        ):
            kept.append(one)
            taken |= paths
    return kept


def _is_same(was: Source, now: Source | None) -> bool:
    return now is not None and (was.size_bytes, was.modified_at, was.bytes_id, was.evidence_id) == (
        now.size_bytes, now.modified_at, now.bytes_id, now.evidence_id,
    )  # fmt: skip


def _planned(sources: Sequence[Source], wanted: Mapping[str, Source], have: set[str], batch_bytes: int) -> Iterator[list[Source]]:
    """Neighbours that are read together; a batch never reaches over what was read before."""
    batch: list[Source] = []
    size = 0
    for source in sources:
        if source.path not in wanted:
            continue
        is_had = source.path in have
        if batch and (is_had or size + source.size_bytes > batch_bytes or len(batch) >= BATCH_FILES):
            yield batch
            batch, size = [], 0
        if not is_had:
            batch.append(source)
            size += source.size_bytes
    if batch:
        yield batch


def _has_compiled(known: Mapping[str, Collector]) -> bool:
    return any(getattr(one, "is_compiled", lambda: False)() for one in known.values())


def _read(
    batches: Sequence[list[Source]], store: Store, pool: ProcessPoolExecutor | None, told: _Told, *, is_compiled: bool
) -> list[Finished]:
    """Reads all batches: in the pool, and what that leaves here."""
    made: list[Finished] = []
    left = dict(enumerate(batches))
    if pool is not None and len(batches) > 1:
        under_way: dict[Future[Finished], int] = {}
        try:
            for number, batch in left.items():
                under_way[pool.submit(_batch, store.folder, batch, is_compiled)] = number
            longest = max(sum(source.size_bytes for source in batch) for batch in batches) / (1 << 20)
            while under_way:
                done, _ = wait(under_way, PATIENCE_S + PATIENCE_S_PER_MB * longest, FIRST_COMPLETED)
                if not done:
                    break
                for future in done:
                    made.append(future.result())
                    told.skip(left.pop(under_way.pop(future)))
        except BrokenProcessPool:
            pass  # whoever watches this process finds the file that does it, below
        if left:
            _end(pool)
    for batch in left.values():
        made.append(_batch(store.folder, batch, is_compiled, told))
    return made


def _batch(folder: Path, sources: Sequence[Source], is_compiled: bool, told: _Told | None = None) -> Finished:  # noqa: FBT001 - given to a pool
    """Reads one batch and keeps it."""
    store = Store(folder)
    parts = Parts(store.room())
    readings = read_sources(sources, collectors(), parts, told.entering if told else lambda _: None, is_compiled=is_compiled)
    return store.write(readings, parts)


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor | None]:
    """So many processes that read; None for one, which is this one."""
    if processes < 2:
        yield None
        return
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_begin)
    is_done = False
    try:
        yield pool
        pool.shutdown()
        is_done = True
    finally:
        if not is_done:
            _end(pool)


def _end(pool: ProcessPoolExecutor) -> None:
    for child in multiprocessing.active_children():
        child.kill()
    pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """In a reading process: it ends with its parent, leaves Ctrl-C to it, and collects no cycles, of which its work makes none."""
    with suppress(OSError, AttributeError):  # elsewhere it ends when its work does
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
