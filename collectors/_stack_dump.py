"""Threads as the dumpers print them, and the rows they become. Shared by every reader of stack dumps."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from collectors._stack_keys import Stack, describe
from rca.errors import EvidenceError
from rca.tables import TABLES, Table
from rca.types import Skip, Source

__all__ = [
    "Process",
    "Thread",
    "dump_status",
    "host_label",
    "json_elements",
    "read_bytes",
    "read_lines",
    "tables",
    "whole_number",
]

MAX_BYTES = 200_000_000  # a dump of one host is kilobytes; more than this is something else
MAX_THREADS = 100_000
NUM_LEAF_LINES = 8
CHUNK_BYTES = 1 << 20
_INT64 = 1 << 63
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")

# What a dumper prints when it fails, most telling first: a suspend error often ends in a permission error.
_STATUS: Final = tuple(
    (status, re.compile("|".join(patterns)))
    for status, patterns in (
        (
            "suspend_failed",
            (
                r"[Ff]ailed to suspend|unexpected waitpid|PtraceEvent|already (being )?traced",
                r"[Ff]ailed to attach.{0,80}stopped",
            ),
        ),
        ("unsupported_version", (r"[Uu]nsupported (version of )?[Pp]ython( version)?|not support\w* (for )?[Pp]ython [0-9]",)),
        (
            "not_python",
            (
                r"Failed to find python (version|interpreter)|[Nn]ot a [Pp]ython",
                r"[Cc]ould ?n.t find (a )?[Pp]ython|Is this a python program",
            ),
        ),
        (
            "process_gone",
            (
                r"No such process|ESRCH|os error [23]\b|[Pp]rocess [0-9]+ (not found|does not exist|has exited)",
                r"process (has )?(exited|terminated)|ProcessLookupError|is a zombie",
            ),
        ),
        (
            "permission_denied",
            (
                r"[Pp]ermission [Dd]enied|Operation not permitted|SYS_PTRACE|ptrace_scope|EPERM|EACCES",
                r"elevated permissions|PermissionError|os error (1|13)\b",
            ),
        ),
        # py-spy prints this for any error, and the causes above only where it knows them.
        ("process_gone", (r"Failed to get process executable name|Check that the process is running",)),
    )
)


@dataclass
class Thread:
    """One thread of a dump. `frames` are (function, file), innermost first; `lines` their line numbers, 0 = none."""

    record: str
    thread_id: int | None = None
    pthread_id: int | None = None
    name: str | None = None
    is_active: bool | None = None
    owns_gil: bool | None = None
    frames: list[tuple[str, str | None]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    native: list[bool] = field(default_factory=list)
    is_cut: bool = False  # its innermost frames are missing

    def add(self, name: str, file: str | None, line: int, *, native: bool) -> None:
        """Appends the next frame outwards."""
        self.frames.append((name, file))
        self.lines.append(line)
        self.native.append(native)

    def _outermost(self) -> tuple[str, str | None]:
        """Outermost Python frame, ("", None) where the thread has none."""
        pairs = zip(reversed(self.frames), reversed(self.native), strict=True)
        return next((frame for frame, native in pairs if not native), ("", None))

    def root(self) -> str:
        """Outermost Python function, "" where the thread has none."""
        return self._outermost()[0]

    def starts_in_thread_module(self) -> bool:
        """The stack begins where `threading` starts a thread: it is not the main one."""
        name, file = self._outermost()
        return name.rpartition(".")[2] in ("_bootstrap", "_bootstrap_inner") and (file or "").endswith("threading.py")


@dataclass
class Process:
    """One process of a dump: its threads, or why there are none."""

    record: str
    pid: int | None = None
    rank: int | None = None
    host: str | None = None
    sample: int | None = None
    format: str | None = None
    command: str | None = None
    status: str | None = None  # set = failed
    noise: list[str] = field(default_factory=list)  # lines that are no frames: they tell why a dump failed
    threads: list[Thread] = field(default_factory=list)


def whole_number(value: object) -> int | None:
    """The value as a 64-bit integer, else None: evidence may hold anything."""
    if isinstance(value, bool) or not isinstance(value, int) or not -_INT64 <= value < _INT64:
        return None
    return value


def host_label(name: str | None) -> str | None:
    """A host as the tables name it: lower case, first label; addresses stay whole."""
    if not name:
        return None
    name = name.strip().strip("[]").lower()
    return name or None if ":" in name or name.replace(".", "").isdigit() else name.partition(".")[0] or None


def dump_status(text: str) -> str:
    """The kind of failure that an error text names; `unknown` where it does not tell."""
    return next((status for status, pattern in _STATUS if pattern.search(text)), "unknown")


def read_bytes(source: Source) -> tuple[bytes, Skip | None]:
    """All bytes, or the good beginning of a torn archive together with the reason."""
    data, torn = source.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise EvidenceError(source.path, None, f"larger than {MAX_BYTES} bytes after decompression: no stack dump")
    if torn and not data:
        raise EvidenceError(source.path, None, f"breaks off: {torn}")
    return data, Skip(None, f"breaks off: {torn}") if torn else None


def read_lines(data: bytes) -> list[str]:
    """Text lines as an editor counts them, without terminal colours."""
    text = data.decode("utf-8-sig", "replace")
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    return [line.rstrip("\r") for line in text.split("\n")]


def json_elements(data: bytes, skips: list[Skip]) -> Iterator[tuple[int, object]]:
    """Elements of a JSON array with their index; a torn array yields its good beginning."""
    text = data.decode("utf-8-sig", "replace").strip()
    decoder = json.JSONDecoder()
    place, index = 1, 0
    while True:
        while place < len(text) and text[place] in " \t\r\n,":
            place += 1
        if place >= len(text):
            skips.append(Skip(f"E{index}", "the array breaks off"))
            return
        if text[place] == "]":
            return
        try:
            element, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            skips.append(Skip(f"E{index}", f"not JSON: {str(error)[:120]}"))
            return
        yield index, element
        index += 1


def _number_samples(processes: Sequence[Process]) -> None:
    """Dumps of one process after another in one file are samples, in the file's order."""
    told = [(p.rank, p.host, p.pid, p.format) for p in processes if p.sample is None and (p.pid is not None or p.format == "faulthandler")]
    often = {who for who, count in Counter(told).items() if count > 1}
    seen: Counter[tuple[int | None, str | None, int | None, str | None]] = Counter()
    for process in processes:
        who = (process.rank, process.host, process.pid, process.format)
        if process.sample is None and who in often:
            process.sample = seen[who]
            seen[who] += 1


def _role(process: Process, stacks: Sequence[Stack | None]) -> str:
    """The process' role: what its main thread says, else any thread that knows."""
    known = [(thread.name == "MainThread", stack.role) for thread, stack in zip(process.threads, stacks, strict=True) if stack]
    for only_main in (True, False):
        for is_main, role in known:
            if role != "unknown" and (is_main or not only_main):
                return role
    return "unknown"


def _safe(text: str | None) -> str | None:
    """Text that can be stored: lone surrogates, which JSON allows, are replaced."""
    return None if text is None else text.encode("utf-8", "replace").decode("utf-8", "replace")


def _thread_row(process: Process, thread: Thread, stack: Stack | None, role: str) -> dict[str, object]:
    lines = ",".join(str(line) for line in thread.lines[:NUM_LEAF_LINES])
    return {
        "record": thread.record,
        "thread_id": thread.thread_id if thread.thread_id is not None else thread.pthread_id,
        "pthread_id": None if thread.pthread_id is None else str(thread.pthread_id),
        "thread_name": _safe(thread.name),
        "is_active": thread.is_active,
        "owns_gil": thread.owns_gil,
        "stack_id": stack.stack_id if stack else None,
        "lines": lines or None,
        "role": role,
        "dump_status": "ok",
    } | _common(process)


def _common(process: Process) -> dict[str, object]:
    return {
        "rank": process.rank,
        "host": process.host,
        "pid": process.pid,
        "sample": process.sample,
        "format": process.format,
    }


def tables(processes: Sequence[Process]) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """The `stacks` and `stack_frames` rows of a file's processes, in the file's order."""
    if sum(len(process.threads) for process in processes) > MAX_THREADS:
        yield Skip(None, f"more than {MAX_THREADS} threads in one file")
        return
    _number_samples(processes)
    rows: list[dict[str, object]] = []
    distinct: dict[str, dict[str, object]] = {}
    for process in processes:
        if not process.threads:
            rows.append({"record": process.record, "role": "unknown", "dump_status": process.status or "unknown"} | _common(process))
            continue
        stacks = [describe(t.frames, thread_name=t.name, native=t.native, is_cut=t.is_cut) if t.frames else None for t in process.threads]
        role = _role(process, stacks)
        for thread, stack in zip(process.threads, stacks, strict=True):
            rows.append(_thread_row(process, thread, stack, role))
            if stack and stack.stack_id not in distinct:
                distinct[stack.stack_id] = _stack_row(thread.record, stack)
    yield TABLES["stacks"], TABLES["stacks"].rows(rows)
    yield TABLES["stack_frames"], TABLES["stack_frames"].rows(list(distinct.values()))


def _stack_row(record: str, stack: Stack) -> dict[str, object]:
    return {
        "record": record,
        "stack_id": stack.stack_id,
        "frames": [_safe(frame) for frame in stack.frames],
        "leaf": _safe(stack.leaf),
        "leaf_key": _safe(stack.leaf_key),
        "shown": [_safe(frame) for frame in stack.shown],
        "activity": stack.activity,
        "wait_kind": stack.wait_kind,
    }
