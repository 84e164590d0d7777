"""Stack dumps of debuggers (gdb, cuda-gdb, lldb, py-bt, pystack) and of programs that print their own Python stacks.

gdb, lldb and py-bt print the innermost frame first, pystack and Python print it last. A traceback that ends in an
exception is a log's matter and is not claimed. Rows as of `py_spy`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from collectors._stack_dump import Process, Thread, dump_status, read_bytes, read_lines, tables, whole_number
from collectors._stack_text import FAULT_HEADER, PY_SPY_HEADER, shorten_files
from rca.errors import EvidenceError
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("stacks", "stack_frames")

MAX_LINE = 16384  # characters of a line that are looked at
MAX_ENTRY_LINES = 12  # lines that a debugger wraps one frame over
SNIFF_LINES = 4000
MIN_SHARE = 0.5  # of the non-empty lines must belong to frames of a debugger
MIN_PYTHON_SHARE = 0.9  # a bare Python stack has nothing else in it
MIN_PYTHON_FRAMES = 3

_GDB_FRAME: Final = re.compile(r"^(?:\(\w{0,8}gdb\) )?\s{0,24}#([0-9]{1,4})\s+(?=0x|[\w?<~:(.])")
_LLDB_FRAME: Final = re.compile(r"^\s{0,8}(?:\* )?frame #[0-9]{1,4}: 0x[0-9a-fA-F]+ ([^`]{1,256})`(.{1,4096})")
_LLDB_THREAD: Final = re.compile(
    r"^\s{0,4}(?:\* )?thread #([0-9]{1,6})(?:: tid = (0x[0-9a-fA-F]{1,16}|[0-9]{1,10}))?(?:.{0,80}name = '([^']{0,128})')?"
)
_GDB_THREAD: Final = re.compile(
    r'^Thread ([0-9]{1,6}) (?:\(Thread (0x[0-9a-fA-F]{1,16})(?: \(LWP ([0-9]{1,10})\))?(?: "([^"]{0,128})")?\)|"([^"]{0,128})")'
)
_CORE_THREAD: Final = re.compile(r"^\s{0,24}Stack trace of thread ([0-9]{1,10}):")
_PYSTACK_THREAD: Final = re.compile(
    r"^Traceback for thread ([0-9]{1,20})(?: \(([^)]{0,64})\))?(?: \[([^\]]{0,80})\])? \(most recent call (last|first)\):"
)
_PY_BT: Final = re.compile(r"Frame 0x[0-9a-fA-F]{1,16}, for file (.{1,1024}?), line ([0-9]{1,9}), in (\S{1,512})")
_PY_BT_HEADER: Final = re.compile(r"^Traceback \(most recent call first\):")
_PYTHON_FRAME: Final = re.compile(r'^\s{0,16}(?:\((Python|C|C\+\+)\) )?File:? "([^"]{1,4096})", line ([0-9]{1,9}),? in (\S.{0,4096})$')
_NAMED_THREAD: Final = re.compile(
    r"^[\s#*=\-]{0,80}(?:Stack (?:trace )?(?:for|of) )?[Tt]hread(?:[ _]?I[Dd])?[ :=]{1,3}(.{1,200}?)"
    r"(?:\s*\(daemon: \w+\)|\s*\(most recent call (?:last|first)\))?[\s:=*\-]{0,80}$"
)
_IMPORTER: Final = "<frozen importlib._bootstrap>"
_CALLS_ON: Final = (
    "_find_and_load",
    "_find_and_load_unlocked",
    "_load_unlocked",
    "_call_with_frames_removed",
)  # never innermost themselves
_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]{1,16}|[0-9]{1,20}")
_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\)")
_EXCEPTION: Final = re.compile(r"^(?:\w{1,64}\.){0,8}\w{0,64}(?:Error|Exception|Interrupt|Exit|Warning)(?::|$)")
_ATTACH_FAILED: Final = re.compile(
    r"^(?:ptrace: |Could not attach to process|warning: process [0-9]+ is (?:already traced|a zombie)|gdb: |"
    r".{0,40}pystack.{0,80}(?:failed|not|error))",
    re.IGNORECASE,
)


def claims(name: str, head: bytes) -> bool:
    """Whether the content is a debugger's dump or a program's own, and nothing that another reader knows better."""
    if head[:1] == b"\x80":  # a pickle: not worth reading as text
        return False
    lines = [line[:MAX_LINE] for line in read_lines(head)[:SNIFF_LINES] if line.strip()]
    if not lines or any("hread " in line and (PY_SPY_HEADER.search(line) or FAULT_HEADER.search(line)) for line in lines):
        return False
    if any(_PYSTACK_THREAD.match(line) for line in lines):
        return True
    num_frames = sum(bool(_GDB_FRAME.match(line) or _LLDB_FRAME.match(line)) for line in lines)
    if num_frames:
        around = sum(bool(_GDB_THREAD.match(line) or _LLDB_THREAD.match(line) or _CORE_THREAD.match(line)) for line in lines)
        wrapped = sum(line[0] in " >(" and not _GDB_FRAME.match(line) for line in lines)
        is_native = any(_is_debugger_frame(line) for line in lines)
        return is_native and (num_frames + around + wrapped) >= MIN_SHARE * len(lines)
    return _is_python_stack(lines) or (len(lines) < 20 and _ATTACH_FAILED.match(lines[0].strip()) is not None)


def _is_debugger_frame(line: str) -> bool:
    """A frame with an address, a library or a source place; `#3 foo` alone may be a list of issues."""
    match = _GDB_FRAME.match(line)
    rest = line[match.end() :] if match else ""
    return bool(_LLDB_FRAME.match(line)) or rest.startswith(("0x", "Frame 0x")) or (") at " in rest or ") from " in rest)


def _is_python_stack(lines: Sequence[str]) -> bool:
    """Frames and their source lines only, root first, without an exception: a program printed where it stands."""
    num_frames = belonging = num_threads = 0
    after_frame = False
    for line in lines:
        if _TRACEBACK.search(line) or _EXCEPTION.match(line):
            return False
        if _PYTHON_FRAME.match(line):
            num_frames, belonging, after_frame = num_frames + 1, belonging + 1, True
        elif _NAMED_THREAD.match(line) or _PY_BT_HEADER.match(line):
            num_threads, belonging, after_frame = num_threads + 1, belonging + 1, False
        else:
            belonging += after_frame or not line.strip(" .-=*#") or (not num_frames and line.startswith("    "))
            after_frame = False
    return num_frames >= (1 if num_threads else MIN_PYTHON_FRAMES) and belonging >= MIN_PYTHON_SHARE * len(lines)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of one file: `stacks` and `stack_frames`, and what could not be read."""
    data, torn = read_bytes(source)
    if torn:
        yield torn
    lines = [line[:MAX_LINE] for line in read_lines(data)]
    process = _Reader().read(lines)
    if not process.threads:
        text = "\n".join(line for line in lines[:200] if line.strip())
        if not _ATTACH_FAILED.match(text.strip()):
            raise EvidenceError(source.path, None, "no frame of a debugger in it")
        process.status = dump_status(text)
    yield from tables([process])


class _Reader:
    """Reads one file. State: the open thread, and whether its frames come root first."""

    def __init__(self) -> None:
        self.process = Process("L1")
        self.thread: Thread | None = None
        self.root_first: set[int] = set()  # places of threads whose innermost frame comes last

    def read(self, lines: Sequence[str]) -> Process:
        """The process that the lines describe."""
        place = 0
        while place < len(lines):
            place += self._take(lines, place)
        for place, thread in enumerate(self.process.threads):
            if place in self.root_first:
                thread.frames.reverse()
                thread.lines.reverse()
                thread.native.reverse()
        if len(self.process.threads) - 1 in self.root_first:  # the text ends where its innermost frames stood
            last = self.process.threads[-1]
            last.is_cut = bool(last.frames) and last.frames[0][1] == _IMPORTER and last.frames[0][0] in _CALLS_ON
        self._name_main()
        shorten_files(self.process)
        if self.process.threads:
            self.process.record = self.process.threads[0].record
        return self.process

    def _take(self, lines: Sequence[str], place: int) -> int:
        """Reads what begins at this line; returns the number of lines used."""
        line = lines[place]
        if self._header(line, place + 1):
            return 1
        if match := _GDB_FRAME.match(line):
            end = place + 1
            while end < min(len(lines), place + MAX_ENTRY_LINES) and lines[end][:1] in (" ", "\t") and not _GDB_FRAME.match(lines[end]):
                end += 1
            self._gdb_frame(place + 1, match, " ".join([line[match.end() :], *(more.strip() for more in lines[place + 1 : end])]))
            return end - place
        if match := _LLDB_FRAME.match(line):
            self._open(place + 1, "lldb").add(match[2].partition(" + ")[0].partition(" at ")[0], match[1].strip(), 0, native=True)
        elif match := _PYTHON_FRAME.match(line):
            self._python_frame(place + 1, match)
        return 1

    def _open(self, number: int, format_name: str) -> Thread:
        if self.thread is None:
            self.thread = Thread(f"L{number}")
            self.process.threads.append(self.thread)
        self.process.format = self.process.format or format_name
        return self.thread

    def _start(self, number: int, format_name: str, *, root_first: bool) -> Thread:
        self.thread = None
        thread = self._open(number, format_name)
        if root_first:
            self.root_first.add(len(self.process.threads) - 1)
        return thread

    def _header(self, line: str, number: int) -> bool:
        if match := _PYSTACK_THREAD.match(line):
            thread = self._start(number, "pystack", root_first=match[4] == "last")
            thread.thread_id, thread.owns_gil = whole_number(int(match[1])), "GIL" in (match[3] or "")
        elif match := _GDB_THREAD.match(line):
            thread = self._start(number, "gdb", root_first=False)
            thread.pthread_id = int(match[2], 16) if match[2] else None
            thread.thread_id = int(match[3]) if match[3] else None
            thread.name = "MainThread" if match[1] == "1" else match[4] or match[5]
        elif match := _LLDB_THREAD.match(line):
            thread = self._start(number, "lldb", root_first=False)
            thread.thread_id = int(match[2], 0) if match[2] and not match[2].startswith("0") else int(match[2], 16) if match[2] else None
            thread.name = "MainThread" if match[1] == "1" else match[3]
        elif match := _CORE_THREAD.match(line):
            self._start(number, "coredump", root_first=False).thread_id = int(match[1])
        elif _PY_BT_HEADER.match(line):
            if self.thread is None or self.thread.frames:
                self._start(number, "py_bt", root_first=False)
        elif (match := _NAMED_THREAD.match(line)) and self.process.format in (None, "python_stack"):
            self._named_thread(number, match[1], line)
        else:
            return False
        return True

    def _named_thread(self, number: int, name: str, line: str) -> None:
        thread = self._start(number, "python_stack", root_first="most recent call first" not in line)
        told = _NUMBER.search(name)
        thread.name = "MainThread" if "MainThread" in name else name.strip() or None
        thread.pthread_id = whole_number(int(told[0], 0 if told[0].startswith("0x") else 10)) if told and len(told[0]) > 4 else None

    def _python_frame(self, number: int, match: re.Match[str]) -> None:
        kind, file, line, function = match.groups()
        if self.thread is None:
            self._start(number, "python_stack", root_first=True)
        name = function if kind in ("C", "C++") else function.split()[0]
        if kind in ("C", "C++"):
            symbol, _, library = function.rpartition(" (")
            name, file = symbol or function, library.rstrip(")") if symbol else "?"
        self._open(number, "python_stack").add(name, file, int(line), native=kind in ("C", "C++"))

    def _gdb_frame(self, number: int, match: re.Match[str], text: str) -> None:
        """`[0xaddr in] symbol (args) [from lib | at file:line]`, `Frame 0x.., for file F, line N, in f`, and wrapped."""
        if self.thread and match[1] == "0" and self.thread.frames and self.process.format != "py_bt":
            self.thread = None  # the numbers begin again: the next thread
        thread = self._open(number, "gdb")
        if python := _PY_BT.search(text):
            thread.add(python[3], python[1], int(python[2]), native=False)
            return
        address, rest = None, text
        if text.startswith("0x"):
            address, _, rest = text.partition(" ")
            rest = rest.removeprefix("in ").strip()
        if rest.startswith("<signal handler"):
            return
        name, library, line = _gdb_place(rest)
        thread.add(name or str(address), library, line, native=True)

    def _name_main(self) -> None:
        threads = self.process.threads
        if not threads or any(thread.name == "MainThread" for thread in threads):
            return
        if self.process.format not in ("pystack", "python_stack"):
            return
        main = [thread for thread in threads if thread.frames and not thread.starts_in_thread_module()]
        headed = [thread for thread in main if thread.thread_id is not None or thread.pthread_id is not None]
        for thread in [thread for thread in headed if thread.root() == "<module>"][-1:] or headed[-1:]:
            thread.name = "MainThread"


def _gdb_place(rest: str) -> tuple[str, str | None, int]:
    """(symbol, library or source file, line) of a gdb frame without its address."""
    line, best = 0, max(rest.rfind(") from "), rest.rfind(") at "))
    if best < 0:
        symbol, plus, _ = rest.rpartition(" + 0x")
        if plus and " (" in symbol:  # coredumpctl: symbol (library + 0x..)
            name, _, library = symbol.rpartition(" (")
            return name.strip(), library, 0
        return rest, None, 0
    file = rest[best + 1 :].strip().partition(" ")[2].strip()
    if rest.startswith(") at ", best):
        path, colon, number = file.rpartition(":")
        if colon and number.isascii() and number.isdigit() and len(number) < 10:
            file, line = path, int(number)
    return rest[: best + 1], file, line
