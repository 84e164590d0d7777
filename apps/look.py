"""Cases as a page looks at them: everything shown in memory, the database closed again, the raw files at hand for their lines.

A page lives for hours. A connection held open would show the case as it was (DuckDB keeps one instance of a file per process until the last
connection closes), so a case is opened, read and closed, and read again as soon as the evidence or the case file is another.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from apps.plain import one_line
from apps.supervise import entering

if TYPE_CHECKING:
    import polars as pl

    from rca.case import Case
    from rca.judge import Judgement
    from rca.types import Cite, Source

__all__ = ["Excerpt", "Look", "Shelf", "is_fleet"]

AROUND = 3  # lines shown before and after the cited one
LINE_LETTERS = 500  # of a line
SCAN_BYTES = 1 << 28  # of a file that are searched for a line: seconds, not minutes
KEPT = 8  # cases at hand at a time
FRESH_S = (2.0, 10.0)  # a look is taken for current so long, or so many times what it takes to check
IN_FLEET = ("incidents", "attempts")  # folders of a fleet's records
TABLES_SHOWN = ("incidents", "stages", "notes", "attempts")
_LINE = re.compile(r"L(\d{1,15})")


class Excerpt(NamedTuple):
    """Lines of a raw file around a cited one. `why` says why there are none, and `lines` is then empty."""

    lines: tuple[tuple[int, str], ...]  # number, text
    hit: int | None
    why: str


@dataclass
class Look:
    """A case as it was read. `source` finds the raw file of a path."""

    path: str
    case_file: Path
    judgement: Judgement
    skips: list[dict[str, Any]]
    tables: dict[str, pl.DataFrame]
    states: pl.DataFrame
    links: list[tuple[int, int]]
    events: pl.DataFrame
    num_unplaced: int  # kinds of events without a date
    num_early: int  # events from long before the job
    num_files: int
    refused: list[tuple[str, str]]  # files of which not even a byte was read, and why
    kinds: list[str]  # collectors that read something
    source: Callable[[str], Source | None] = field(repr=False)
    later: ExitStack = field(repr=False)  # what is let go when this look is replaced
    fingerprint: str = ""
    stamp: tuple[int, ...] = ()  # of the case file
    fresh_until: float = 0.0

    @property
    def is_fleet(self) -> bool:
        """Whether it is a fleet: records of incidents, not the evidence of one."""
        return is_fleet(Path(self.path))

    def excerpt(self, cite: Cite) -> Excerpt:
        """The real lines around a cite that names a line of a text file."""
        found = _LINE.fullmatch(cite.record)
        if not found:
            return Excerpt((), None, "not a line of a text file: what was read there is quoted above")
        source = self.source(cite.path)
        if source is None:
            return Excerpt((), None, "the raw file is not at hand")
        return lines_around(source, int(found[1]))


def lines_around(source: Source, number: int, around: int = AROUND) -> Excerpt:
    """The lines of a file around one, the file searched from its start and no further than needed."""
    first, last = max(1, number - around), number + around
    shown: list[tuple[int, str]] = []
    done, read, rest = 0, 0, b""  # lines ended, bytes read, beginning of a line that goes on
    try:
        for block in source.blocks():
            read += len(block)
            ended = block.count(b"\n")
            if done + ended < first - 1:
                done, rest = done + ended, b""
            else:
                *lines, rest = (rest + block).split(b"\n")
                shown += [(done + i, _readable(line)) for i, line in enumerate(lines, 1) if first <= done + i <= last]
                done += len(lines)
                rest = rest[: 4 * LINE_LETTERS]
            if done >= last:
                break
            if read > SCAN_BYTES:
                return Excerpt((), None, f"line {number} lies beyond the first {SCAN_BYTES >> 20} MB of the file: open it yourself")
    except OSError as error:
        return Excerpt((), None, f"the raw file cannot be read: {error.strerror or error}")
    if rest and first <= done + 1 <= last:
        shown.append((done + 1, _readable(rest)))
    if not any(n == number for n, _ in shown):
        return Excerpt((), None, f"the file has no line {number}: it is not the one that was read")
    return Excerpt(tuple(shown), number, "")


def _readable(line: bytes) -> str:
    text = one_line(line.removesuffix(b"\r")[: 4 * LINE_LETTERS].decode("utf-8", "replace"))
    return text if len(text) <= LINE_LETTERS else f"{text[: LINE_LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}"


def is_fleet(path: Path) -> bool:
    """Whether a folder (or the case file in it) is a fleet: it holds records of incidents or attempts."""
    folder = path.parent if path.name == "case.duckdb" else path
    return any((folder / name).is_dir() for name in IN_FLEET)


class Shelf:
    """Looks at hand, by path. One at a time is made; whoever else asks waits for it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._looks: dict[str, Look] = {}

    def look(self, path: str, told: Callable[[int, int], None] | None = None) -> Look:
        """The case of a path as it is now. Raises RcaError where there is none; `told` hears how many of how many files are read."""
        with self._lock:
            known = self._looks.get(path)
            if known is not None and time.monotonic() < known.fresh_until and known.stamp == _stamp(known.case_file):
                return known
            began = time.perf_counter()
            look = _of_case_file(Path(path), known) if _is_case(Path(path)) else _of_evidence(path, known, told)
            if look is not known:
                self.drop(path)
                self._looks[path] = look
                while len(self._looks) > KEPT:
                    self.drop(next(iter(self._looks)))
            look.fresh_until = time.monotonic() + max(FRESH_S[0], FRESH_S[1] * (time.perf_counter() - began))
            return look

    def drop(self, path: str) -> None:
        """Let go of a look."""
        if (look := self._looks.pop(path, None)) is not None:
            look.later.close()

    def forget(self) -> None:
        """Check every case anew at its next look."""
        for look in list(self._looks.values()):
            look.fresh_until = 0.0


def _is_case(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(12)[8:] == b"DUCK"


def _stamp(file: Path) -> tuple[int, ...]:
    """Another one as soon as another file lies there."""
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _of_case_file(file: Path, known: Look | None) -> Look:
    """A case file named by itself: taken as it is, never rebuilt; the evidence is sought beside it."""
    from apps.past import history_of
    from rca.case import Case
    from rca.judge import judge

    stamp = _stamp(file)
    if known is not None and known.stamp == stamp:
        return known
    folder = file.parent.resolve()

    def source(path: str) -> Source | None:
        from rca.types import Compression, Source

        beside = folder / path
        if not beside.is_file() or not beside.resolve().is_relative_to(folder):  # a case from elsewhere may name any path
            return None
        with beside.open("rb") as raw:
            magic = raw.read(4)
        compression: Compression = "gzip" if magic[:2] == b"\x1f\x8b" else "zstd" if magic == b"\x28\xb5\x2f\xfd" else "none"
        return Source(path, beside, beside.stat().st_size, compression)

    case = Case.open(file)
    try:
        return _read(str(file), file, case, judge(case, history_of(str(file))), [], [], source, ExitStack(), stamp=stamp)
    finally:
        case.close()


def _of_evidence(path: str, known: Look | None, told: Callable[[int, int], None] | None) -> Look:
    """A folder, archive or file of evidence; its case is built when it is missing or out of date."""
    from apps.document import skipped
    from apps.session import open_session

    with ExitStack() as until_read:
        later = until_read.enter_context(_kept())
        session = later.enter_context(open_session(path, None))
        fingerprint = session.inventory.fingerprint
        if known is not None and known.fingerprint == fingerprint and known.stamp == _stamp(known.case_file):
            return known
        session.told = None if told is None else lambda done, total, _: told(done, total)
        try:
            case = session.case()
        finally:
            entering("")  # a build that was broken off must not be taken for one that is stuck in a file
        try:
            stamp = _stamp(session.target)
            sources = {s.path: s for s in session.inventory.sources}
            skips = skipped(case, session.inventory)
            refused = [(one.path, one.why) for one in session.inventory.unreadable]
            look = _read(path, session.target, case, session.judgement(case), skips, refused, sources.get, later.pop_all(), stamp=stamp)
        finally:
            case.close()
        look.fingerprint = fingerprint
        return look


@contextmanager
def _kept() -> Iterator[ExitStack]:
    """A stack that is closed here unless somebody takes over what is in it."""
    with ExitStack() as stack:
        yield stack


def _read(
    path: str,
    case_file: Path,
    case: Case,
    judgement: Judgement,
    skips: list[dict[str, Any]],
    refused: list[tuple[str, str]],
    source: Callable[[str], Source | None],
    later: ExitStack,
    *,
    stamp: tuple[int, ...],
) -> Look:
    import polars as pl

    from apps.document import collectors_of
    from apps.scene import first_events, rank_states, wait_links

    events, num_unplaced, num_early = first_events(case, judgement)
    return Look(
        path=path,
        case_file=case_file,
        judgement=judgement,
        skips=skips,
        tables={name: case.table(name).collect() for name in TABLES_SHOWN},
        states=rank_states(case, judgement),
        links=wait_links(case),
        events=events,
        num_unplaced=num_unplaced,
        num_early=num_early,
        num_files=case.table("evidence").select(pl.len()).collect().item(),
        refused=refused,
        kinds=collectors_of(case),
        source=source,
        later=later,
        stamp=stamp,
    )
