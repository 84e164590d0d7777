"""The five nouns: Source, (Table in `rca/tables/`), Finding with Cites, Verdict, Advice; and the contracts of the plugins."""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import io
import lzma
import re
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from rca.host_names import host_in_folder, host_in_name

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = [
    "Advice",
    "Analysis",
    "Cite",
    "Collector",
    "Finding",
    "Hypothesis",
    "Outcome",
    "Sign",
    "Skip",
    "Source",
    "Status",
    "Tables",
    "Verdict",
]

HEAD_BYTES = 65536  # what `claims` may look at
END_BYTES = 1 << 20  # of each end of a large file that nothing reads whole
_BYTE_ORDER_MARKS = (  # of a text; that of UTF-32 begins like that of UTF-16
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_SUFFIXES = re.compile(
    r"(\.(json|jsonl|txt|log|pkl|pickle|bin|dump|trace|out|err|stderr|stdout|gz|zst|zstd|bz2|xz|main|trainer|worker[0-9]*))+$",
    re.I,
)
_RANK_SAID = re.compile(
    r"(?:^|[^a-z])(?<!node_)(?<!group_)rank[_\-=.]?([0-9]{1,7})(?![0-9])", re.I
)  # those two number launchers and places
_RANK_LAST = re.compile(r"(?:^|[_\-.])r?([0-9]{1,7})$")  # a number of its own at the end; digits glued to letters are a serial number
_SAMPLE = re.compile(r"^(?:round|sample|iter|poll|snap|dump)[_\-]?([0-9]{1,6})$", re.I)
Compression = Literal["none", "gzip", "zstd", "bz2", "xz"]
T = TypeVar("T")


class _AsUtf8(io.RawIOBase):
    """A stream of text in another encoding as UTF-8 without a byte order mark; what is no character becomes U+FFFD."""

    def __init__(self, file: IO[bytes], encoding: str) -> None:
        self._file, self._decoder = file, codecs.getincrementaldecoder(encoding)("replace")
        self._waiting = b""
        self._has_ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """As of any raw stream: how many bytes were written into the buffer, 0 at the end."""
        while not self._waiting and not self._has_ended:
            part = self._file.read1(1 << 16)  # type: ignore[attr-defined]  # gzip and buffers
            self._has_ended = not part
            self._waiting = self._decoder.decode(part, final=self._has_ended).encode("utf-8", "replace")
        given, self._waiting = self._waiting[: len(buffer)], self._waiting[len(buffer) :]
        buffer[: len(given)] = given
        return len(given)

    def close(self) -> None:
        self._file.close()
        super().close()


@dataclass(frozen=True)
class Source:
    """One raw file of evidence and where it came from. Reading it never executes or changes it."""

    path: str  # for people: relative to the evidence root, "archive.tar.gz/member" inside an archive
    file: Path  # where the bytes lie
    size_bytes: int  # as stored, before decompression
    compression: Compression = "none"
    modified_at: datetime | None = None  # of the file, UTC; a hint only: copies lose it

    def open(self) -> IO[bytes]:
        """The decompressed bytes, buffered and forward-readable; text that a byte order mark names UTF-16 or UTF-32 as UTF-8."""
        file = self._stored()
        if not self._encoding:
            return file
        return cast("IO[bytes]", io.BufferedReader(_AsUtf8(file, self._encoding), 1 << 20))

    def _stored(self) -> IO[bytes]:
        if self.compression == "gzip":
            return cast("IO[bytes]", gzip.open(self.file, "rb"))
        if self.compression == "zstd":
            import zstandard

            raw = self.file.open("rb")
            return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(raw, closefd=True), 1 << 20)
        if self.compression == "bz2":
            return cast("IO[bytes]", bz2.open(self.file, "rb"))
        if self.compression == "xz":
            return cast("IO[bytes]", lzma.open(self.file, "rb"))
        return self.file.open("rb", buffering=1 << 20)

    @cached_property
    def _encoding(self) -> str:
        """The encoding that a byte order mark at the beginning names; "" where there is none."""
        with self._stored() as file:
            start = file.read1(4)  # type: ignore[attr-defined]  # gzip and buffers
        return next((name for mark, name in _BYTE_ORDER_MARKS if start.startswith(mark)), "")

    @property
    def rank_said(self) -> int | None:
        """The rank that the name states outright (rank_3, also of the folder); None where it does not."""
        for part in reversed(self.path.split("/")):
            if found := _RANK_SAID.findall(part):
                return int(found[-1])
        return None

    @property
    def rank_hint(self) -> int | None:
        """`rank_said`, else a number that ends the file's name: may be a rank, may be a pid. To be checked against content."""
        if (said := self.rank_said) is not None:
            return said
        found = _RANK_LAST.search(_SUFFIXES.sub("", self.path.rsplit("/", 1)[-1]))
        return int(found[1]) if found else None

    @property
    def host_said(self) -> str | None:
        """The host that the name of the file, else of its folder states, as `rca.host_names` reads it; None where neither does."""
        *folders, name = self.path.split("/")
        return host_in_name(name, kind="any") or (host_in_folder(folders[-1]) if folders else None)

    @property
    def sample_hint(self) -> int | None:
        """The capture round that a folder's name states (round_2)."""
        for part in reversed(self.path.split("/")[:-1]):
            if found := _SAMPLE.match(part):
                return int(found[1])
        return None

    def blocks(self, size: int = 1 << 20) -> Generator[bytes, None, str]:
        """The decompressed bytes, at most `size` at a time. The generator's value says why the stream broke off ("" = it did not)."""
        try:
            with self.open() as file:
                while part := file.read1(size):  # type: ignore[attr-defined]  # gzip and buffers
                    yield part
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            return str(error) or type(error).__name__
        except Exception as error:  # zstandard is loaded on demand and raises a type of its own
            if type(error).__module__.partition(".")[0] not in ("zstd", "zstandard"):
                raise
            return str(error)
        return ""

    def read(self, limit: int) -> tuple[bytes, str]:
        """Up to `limit` decompressed bytes, and why the stream broke off before its end ("" = it did not)."""
        parts: list[bytes] = []
        size, blocks = 0, self.blocks(1 << 16)
        while size < limit:
            try:
                part = next(blocks)
            except StopIteration as end:
                return b"".join(parts), end.value
            parts.append(part[: limit - size])
            size += len(parts[-1])
        return b"".join(parts), ""

    @cached_property
    def head(self) -> bytes:
        """The first 64 KiB after decompression, or what can be had of them; empty where nothing can."""
        if self.compression == "none":
            try:
                with self.file.open("rb", 0) as file:
                    start = file.read(HEAD_BYTES) or b""
            except OSError:
                return b""
            if not start.startswith(tuple(mark for mark, _ in _BYTE_ORDER_MARKS)):
                return start
        return self.read(HEAD_BYTES)[0]

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the stored bytes, hex."""
        with self.file.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @cached_property
    def is_known_by_ends(self) -> bool:
        """Whether the ends and the size stand for the bytes: `rca.reading` says so of large files that nothing reads whole."""
        return False

    @cached_property
    def ends_sha256(self) -> str:
        """SHA-256 of the size with the first and the last bytes as stored, hex: it costs the same whatever the size."""
        with self.file.open("rb") as file:
            digest = hashlib.sha256(f"{self.size_bytes} ".encode() + file.read(END_BYTES))
            file.seek(max(0, self.size_bytes - END_BYTES))
            digest.update(file.read(END_BYTES))
        return digest.hexdigest()

    @cached_property
    def bytes_id(self) -> str:
        """First 16 hex digits of the SHA-256 of the stored bytes, or of their ends (`is_known_by_ends`): a copy has the same one.

        Equal bytes in the folders of two capture rounds are two observations (a rank that did not move), not a copy.
        """
        digest = self.ends_sha256 if self.is_known_by_ends else self.sha256
        if self.sample_hint is None:
            return digest[:16]
        return hashlib.sha256(f"{digest} {self.sample_hint}".encode()).hexdigest()[:16]

    @cached_property
    def evidence_id(self) -> str:
        """`bytes_id`; another one for equal bytes that the name says are of another host or rank (`rca.reading.Originals`)."""
        return self.bytes_id


@dataclass(frozen=True)
class Skip:
    """A record that could not be read, and why. `record` is None for the whole file."""

    record: str | None
    why: str


@dataclass(frozen=True)
class Cite:
    """Where a claim comes from: a row of a table and the very place in the file behind it."""

    table: str
    evidence_id: str
    path: str
    record: str
    text: str


@dataclass(frozen=True)
class Finding:
    """One thing an analysis saw, with the rows that show it. `ranks` are the accused (or, where the sign accuses nobody, empty)."""

    analysis: str
    sign: str
    says: str
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    scope: str = ""  # tells two findings of one sign apart; ranks and groups when empty
    numbers: Mapping[str, Any] = field(default_factory=dict)
    cites: tuple[Cite, ...] = ()
    explains: tuple[int, ...] = ()  # ranks that only wait because of this

    @property
    def id(self) -> str:
        """analysis/sign/8 hex digits of the scope: stable from run to run."""
        scope = self.scope or f"{sorted(self.ranks)} {sorted(self.groups)} {sorted(self.hosts)}"
        return f"{self.analysis}/{self.sign}/{hashlib.sha256(scope.encode()).hexdigest()[:8]}"


Status = Literal["found", "clear", "blind", "failed"]


@dataclass(frozen=True)
class Outcome:
    """What became of one analysis. `blind` = did not look (or could not), never the same as `clear`."""

    analysis: str
    status: Status
    why: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Hypothesis:
    """A cause with the ranks it accuses (empty: nobody, or not known) and its posterior probability."""

    cause: str
    layer: str
    probability: float
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    supports: tuple[str, ...]  # finding ids
    against: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """The answer: who failed first and why, each with its own probability; `unknown` is a valid one."""

    cause: str
    layer: str
    attribution: str
    probability: float  # of the cause (with the ranks named, when any are)
    summary: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    gpus: tuple[str, ...]
    ranks_probability: float  # that these ranks, and no others, failed first, whatever the cause
    failed_at: datetime | None
    step: int | None
    data: Mapping[str, Any] | None  # {"shard", "sample_ids"} that the suspect worked on, where that matters
    last_collective: Mapping[str, Any] | None  # {"group", "op", "seq"} the suspect did not join
    ordered_by: Literal["collective", "wait", "clock", "log"] | None
    concurrent: bool
    proven: bool
    hypotheses: tuple[Hypothesis, ...]
    failed_after: datetime | None = None  # where `failed_at` is not told: the last that is dated before it


@dataclass(frozen=True)
class Advice:
    """What to do first, whom to evict, and why; commands are printed, never run."""

    action: str
    evict_hosts: tuple[str, ...]
    evict_ranks: tuple[int, ...]
    evict_group: str | None
    innocent_hosts: tuple[str, ...] | None  # of those, whoever only goes along; None: some do, and which ones is not told
    because: str
    commands: tuple[str, ...]
    checkpoint: str | None = None
    replay: Mapping[str, Any] | None = None
    rule: Mapping[str, Any] | None = None  # for the kernel record that the verdict rests on: ours, and what the authorities say of it
    differ: str = ""  # one line where the authorities differ
    branch: str = ""  # of the tree (rca/decision/tree.py) on which the action stands
    checks: tuple[str, ...] = ()  # stop-time checks that this branch runs before anything else, as command lines
    next: tuple[Mapping[str, Any], ...] = ()  # what comes next if it fails: branch, when, says, run
    retries: Mapping[str, Any] | None = None  # restarts so far, of the same fault, and how many may be
    losses: Mapping[str, Any] | None = None  # going on slower against replacing, GPU-hours
    shrink: Mapping[str, Any] | None = None  # what a smaller job means
    recovery: Mapping[str, Any] | None = None  # the way back with its seconds
    before_restart: tuple[Mapping[str, Any], ...] = ()  # checklist: check, status, says, run; hosts that must stay out, where some must
    eviction: Mapping[str, Any] | None = None  # where only a group is told: whom to evict, the innocents, the alternative
    spares: int | None = None  # hosts that stand ready; None = not told
    keep_out: tuple[str, ...] = ()  # hosts of which one may compute wrong bits: out of use until a replay clears them


@dataclass(frozen=True)
class Sign:
    """A thing an analysis can see. Of one family (signs that one fact sets off together) only the strongest counts per suspect set."""

    family: str
    causes: tuple[str, ...]  # causes it speaks for; how strongly stands in catalogue/bits.csv
    is_against: bool = False  # speaks against them: of numbers["cleared_ranks"], and of whoever is not named if numbers["clears_all"]
    is_note: bool = False  # told beside: it weighs nothing, and a question that has no other finding is clear


class Tables(Protocol):
    """What an analysis sees of a case: declared tables as LazyFrames, stale evidence already left out."""

    def table(self, name: str, *, where: str | None = None, with_stale: bool = False) -> pl.LazyFrame:
        """A table; with `where`, the name of a boolean column, only the rows for which it is true (the others are not even read).
        `with_stale`: rows of earlier launches and other jobs too, for the few questions that compare with them."""
        ...

    def derive(self, function: Callable[[Tables], T]) -> T:
        """What `function` makes of this case; made once, however many questions need it."""
        ...


class Collector(Protocol):
    """`collectors/<name>.py`: one source format. `claims` judges by content; `read` is pure: same bytes, same rows."""

    EMITS: tuple[str, ...]

    def claims(self, name: str, head: bytes) -> bool: ...

    def read(self, source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]: ...


class Analysis(Protocol):
    """`rca/analyses/<question>.py`: one question. Pure: tables in, findings out."""

    NEEDS: tuple[str, ...]
    USES: tuple[str, ...]
    SIGNS: Mapping[str, Sign]

    def analyse(self, case: Tables) -> Sequence[Finding]: ...
