"""From a path on the command line to an opened, judged case: what every verb that reads evidence shares."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from apps.places import cache_folder, case_path, remote_case_path
from apps.plain import complain
from apps.site import choose
from apps.supervise import entering, excluded

if TYPE_CHECKING:
    import polars as pl

    from rca.case import Case
    from rca.decision.history import History
    from rca.judge import Judgement
    from rca.reading import Progress
    from rca.sources import Inventory
    from rca.types import Tables

__all__ = ["Session", "open_session"]

SPOOL = "spool-"


@dataclass
class Session:
    """Evidence found, and where its case belongs."""

    root: Path
    inventory: Inventory
    target: Path
    spool: Path
    is_asked: bool  # the place of the case was named with --case
    later: ExitStack  # what is undone when the session ends
    build_s: float = 0.0
    diagnose_s: float = 0.0
    was_built: bool = False
    told: Progress | None = None  # is told of every file that is read
    early: Judgement | None = field(default=None, repr=False)
    full: Judgement | None = field(default=None, repr=False)  # made while building
    is_given: bool = False  # the path is a case file: taken as it is
    export: dict[str, Path] | None = None  # the path is an export: its files by table
    path: str = ""  # as it was named
    memory_bytes: int | None = None  # that reading may take; None: a quarter of the machine

    @cached_property
    def history(self) -> History:
        """What happened before, as the fleet's records and the notes on this evidence tell."""
        from apps.past import history_of

        return history_of(self.path)

    def triage(self) -> Judgement | None:
        """The early answer, when there is one and no current case makes it needless."""
        from rca.case import is_current
        from rca.triage import triage

        if self.is_given or self.export or is_current(self.target, self.inventory):
            return None
        began = time.perf_counter()
        try:
            self.early = triage(self.inventory, self.spool, lambda source: entering(source.path, source.size_bytes), self.history)
        except OSError:  # no room for what it reads: the full read finds some, or tells
            return None
        self.diagnose_s = time.perf_counter() - began
        return self.early

    def _judge(self, tables: Tables) -> dict[str, pl.DataFrame]:
        from rca.judge import judge

        began = time.perf_counter()
        self.full = judge(tables, self.history)
        self.diagnose_s = time.perf_counter() - began
        return self.full.frames()

    def judgement(self, case: Case) -> Judgement:
        """The answer of the full read: made while the case was built, or made now from the case."""
        if self.full is None:
            self._judge(case)
        assert self.full is not None
        return self.full

    def case(self, *, is_kept: bool = False) -> Case:
        """The case, built first if it is missing or out of date.

        Where its place takes no case, it is built in a folder that ends with the session, and where no disk takes any, in memory; stderr says
        so: evidence that can be read is answered. A place that was named with --case, or a case that is wanted for itself (`is_kept`), has
        no such substitute.
        """
        from rca.case import Case, is_current
        from rca.errors import UnwritableCase

        if self.is_given:
            return Case.open(self.target, of_this_version=True)
        if self.export or not is_current(self.target, self.inventory):
            began = time.perf_counter()
            refused: list[UnwritableCase] = []
            held: Case | None = None
            for place in self._places():
                try:
                    self._build(place)
                except UnwritableCase as error:
                    if self.is_asked or is_kept:
                        raise
                    refused.append(error)
                else:
                    self.target = place
                    break
            else:
                if (held := self._hold()) is None:
                    raise refused[0]
            if refused:
                complain(f"{refused[0]} This time it lay in {'memory' if held else 'a temporary folder'}, and is gone at the end.")
            self.build_s = time.perf_counter() - began - self.diagnose_s
            self.was_built = True
            if held is not None:
                return held
        return Case.open(self.target)

    def _build(self, place: Path) -> None:
        from rca.batches import Means
        from rca.building import build, copy
        from rca.case import read_parquet

        if (files := self.export) is not None:
            copy(lambda name: read_parquet(files[name], name), place, {"fingerprint": self.inventory.fingerprint}, self._judge)
        else:
            means = Means(workers=len(os.sched_getaffinity(0)), memory_bytes=self.memory_bytes)
            build(self.inventory, place, _progress(self.inventory, self.told), self._judge, means)

    def _hold(self) -> Case | None:
        """The case in memory; None where that cannot be, or for more evidence than reading may take of it."""
        from rca.batches import Means
        from rca.building import hold
        from rca.case import read_parquet
        from rca.errors import UnwritableCase
        from rca.linking import read_all
        from rca.parts import Parts

        files = self.export
        sizes = [file.stat().st_size for file in files.values()] if files else [source.size_bytes for source in self.inventory.sources]
        if sum(sizes) > Means(memory_bytes=self.memory_bytes).budget:
            return None
        made_of = {"fingerprint": self.inventory.fingerprint}
        try:
            if files is not None:
                return hold(lambda name: read_parquet(files[name], name), made_of, self._judge)
            read = read_all(self.inventory, Parts(None), _progress(self.inventory, self.told))
            return hold(lambda name: [read.frames[name] if name in read.frames else read.parts.table(name)], made_of, self._judge)
        except UnwritableCase:
            return None

    def _places(self) -> Iterator[Path]:
        """Where the case may lie, one after the other: its place, this session's folder, the system's temporary folder."""
        yield self.target
        yield self.spool / "case.duckdb"
        try:
            folder = self.later.enter_context(tempfile.TemporaryDirectory(prefix="firstfault-"))
        except OSError:
            return
        yield Path(folder) / "case.duckdb"


@contextmanager
def open_session(path: str, case: str | None, site: str | None = None, memory_bytes: int | None = None) -> Iterator[Session]:
    """Find the evidence below a path; unpacked archives live as long as the session. `site` names the site's own catalogue files (else RCA_SITE),
    `memory_bytes` is what reading may take."""
    from apps.exports import exported_tables, is_export
    from apps.remote import is_remote
    from rca.case import is_case_file
    from rca.errors import UsageError
    from rca.sources import Inventory, inventory

    if not path:
        raise UsageError("name the folder, file or archive with the evidence")
    choose(site)
    root = Path(path)
    with ExitStack() as later:
        spool = Path(later.enter_context(_spool()))
        if is_remote(path):
            yield replace(_remote(path, case, spool, later), path=path, memory_bytes=memory_bytes)
            return
        if is_case_file(root):
            if case:
                raise UsageError(f"--case {case}: {path} is a case file already, which is read as it is; leave --case out")
            yield Session(root, Inventory(root, (), ()), root, spool, False, later, is_given=True, path=path)
            return
        if is_export(root):
            files, _ = exported_tables(root)
            target = Path(case) if case else spool / "case.duckdb"
            yield Session(root, Inventory(root, (), ()), target, spool, bool(case), later, export=files, path=path)
            return
        found = _without(inventory(root, spool / "archives"), excluded)
        target = case_path(root, case, spool, is_plain_file=_is_plain_file(root, found))
        found = replace(found, unreadable=tuple(one for one in found.unreadable if (root / one.path) != target))  # its own case
        yield Session(root, found, target, spool, bool(case), later, path=path, memory_bytes=memory_bytes)


def _remote(url: str, case: str | None, spool: Path, later: ExitStack) -> Session:
    """Evidence in an object store: fetched, unless the case of just this listing is there."""
    from apps.remote import fetch, listed, recall, remember, store_of
    from rca.case import is_current
    from rca.sources import IGNORED_NAMES, Unreadable, inventory_of

    store, path = store_of(url)
    objects = [one for one in listed(store, path, url) if not IGNORED_NAMES & set(one.name.split("/")) and not one.key.endswith("/")]
    target = remote_case_path(url, case)
    known = recall(target.parent, objects) if not case else None
    if known is not None and is_current(target, _without(known, excluded)):
        return Session(target.parent, _without(known, excluded), target, spool, False, later)
    files, refused = fetch(store, objects, spool / "fetched", url)
    found = inventory_of(spool / "fetched", files, [Unreadable(name, why) for name, why in refused], spool / "archives")
    if not case:
        remember(target.parent, objects, found)
    return Session(spool / "fetched", _without(found, excluded), target, spool, bool(case), later)


def _spool() -> tempfile.TemporaryDirectory[str]:
    """A folder of this process: in the cache folder, else, where nothing can be written there, in the system's temporary folder."""
    from rca.errors import UsageError

    cache = cache_folder()
    prefix = f"{SPOOL}{os.getpid()}-"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        for stray in cache.glob(f"{SPOOL}*"):  # of a process that was killed
            number = stray.name.removeprefix(SPOOL).partition("-")[0]
            if number.isdigit() and not Path(f"/proc/{number}").exists():
                shutil.rmtree(stray, ignore_errors=True)
        return tempfile.TemporaryDirectory(prefix=prefix, dir=cache)
    except OSError:
        pass
    try:
        return tempfile.TemporaryDirectory(prefix=prefix)
    except OSError as error:
        raise UsageError(
            f"no folder to work in ({error.strerror or error}): set XDG_CACHE_HOME or TMPDIR to one that can be written"
        ) from None


def _without(found: Inventory, killers: dict[str, str]) -> Inventory:
    """The inventory without files that ended a reader before."""
    from rca.sources import Inventory, Unreadable

    if not killers:
        return found
    kept = tuple(source for source in found.sources if source.path not in killers)
    refused = tuple(Unreadable(path, why) for path, why in sorted(killers.items()))
    return Inventory(found.root, kept, (*found.unreadable, *refused))


def _is_plain_file(root: Path, found: Inventory) -> bool:
    """One file that is no archive: read in a moment, so its case is not kept."""
    return root.is_file() and len(found.sources) <= 1 and all("/" not in source.path for source in found.sources)


def _progress(inventory: Inventory, told: Progress | None = None) -> Progress:
    """Names each file to the watching process and to whoever asked; on a terminal also a line that rewrites itself, once reading takes a while."""
    sizes = {source.path: source.size_bytes for source in inventory.sources}
    began = time.monotonic()
    last = began
    is_shown = sys.stderr is not None and sys.stderr.isatty()

    def show(done: int, total: int, path: str) -> None:
        nonlocal last
        entering(path, sizes.get(path, 0))
        if told is not None:
            told(done, total, path)
        now = time.monotonic()
        if not is_shown:
            return
        if done == total:
            if last != began:
                sys.stderr.write("\r\x1b[K")
        elif now - began > 1 and now - last > 0.2:
            last = now
            rate = done / (now - began)
            left = f", {rate / 1e6:,.0f} MB/s, about {(total - done) / rate:,.0f} s left" if rate else ""
            sys.stderr.write(f"\r\x1b[Kreading {done / 1e6:,.0f} of {total / 1e6:,.0f} MB{left}")
            sys.stderr.flush()

    return show
