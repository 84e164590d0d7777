"""Text dumps innermost frame first: py-spy, faulthandler, and the blocks of torch's debug server around either of them.

A file may hold several processes and several dumps of one process. Lines may carry a log prefix (`[rank3]: `, `12: `, a
time stamp); its shape is taken from the thread headers, and streams of different ranks are read apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from collectors._stack_dump import Process, Thread, dump_status, host_label, whole_number
from collectors._stack_keys import is_native_file

__all__ = ["FAULT_FRAME", "FAULT_HEADER", "PY_SPY_HEADER", "RANK_BLOCK", "parse_frame", "parse_text"]

MAX_LINE = 65536  # characters of a line that are looked at
MAX_NOISE = 200  # lines kept to tell why a dump failed
MAX_PREFIX = 200  # characters before a thread header that may be a log prefix
PREFIX_LINES = 5000  # lines searched for the first header
LOCALS_INDENT = 8  # py-spy: frames stand at 4, values of locals deeper

PY_SPY_HEADER: Final = re.compile(r'Thread (0[xX][0-9a-fA-F]{1,16}|[0-9]{1,19}) \((idle|active|active\+gil)\)(?:: "([^"]{0,256})")?')
FAULT_HEADER: Final = re.compile(r"(Current thread|Thread) 0x([0-9a-fA-F]{1,16})(?: \[([^\]]{0,256})\])? \(most recent call first\):")
FAULT_FRAME: Final = re.compile(r'File "([^"]{1,4096})", line ([0-9]{1,9}|\?\?\?) in (\S.{0,1024})$')
RANK_BLOCK: Final = re.compile(r"=== Rank ([0-9]{1,9}): (\S{0,512}) ===")
_RANK_LINE: Final = re.compile(
    r"^[\s=#*\-]{0,80}(?:RANK|[Rr]ank)[ _:=#]{1,3}([0-9]{1,9})\b(?: ?[,;(]? ?(?:on |host[ :=]+|node[ :=]+)([\w.-]{1,255}))?[\s=#*\-):]{0,80}$"
)
_PROCESS: Final = re.compile(r"(Parent )?Process ([0-9]{1,19}): ?(.*)$")
_HOST_OF_URL: Final = re.compile(r"^\w{1,10}://(\[[^\]]{1,64}\]|[^:/\s]{1,255})")
_PREFIX_RANK: Final = re.compile(r"\brank[ =:_#]?([0-9]{1,9})\b|^\s*([0-9]{1,7}): ?$", re.IGNORECASE)
_TIME_OF_DAY: Final = re.compile(r"[0-9][0-9]:[0-9][0-9]:[0-9][0-9]")
_FAILED: Final = ("Error: ", "Permission Denied: ", "Failed to suspend process")
_PREFIX_WORD: Final = re.compile(r"[\w.+-]+")


class _Line(NamedTuple):
    number: int
    text: str  # without the log prefix, indentation kept
    stream: str  # lines of one stream belong together
    rank: int | None


@lru_cache(1 << 15)
def parse_frame(text: str) -> tuple[str, str | None, int, bool] | None:
    """(function, file, line, native) of `name (file:line)`; None where the text is no frame.

    The file may itself hold parentheses and colons (`x.py:codegen(f):14`): the last balanced ` (...)` counts, split at
    its last colon.
    """
    if not text.endswith(")"):
        return None
    start = text.rfind(" (")
    if start > 0 and text.count("(", start + 2) != text.count(")", start + 2) - 1:
        start = _balanced_start(text)
    if start <= 0:
        return None
    name, inner = text[:start].strip(), text[start + 2 : -1]
    file, colon, line = inner.rpartition(":")
    if colon and line.isascii() and line.isdigit() and len(line) <= 9 and file:
        return name, file, int(line), is_native_file(file)
    if not inner:
        return name, None, 0, False
    if " " in inner and not is_native_file(inner):
        return None
    if inner.endswith(".py") or inner.startswith("<"):
        return name, inner, 0, False
    return (name, inner, 0, True) if is_native_file(inner) or name.startswith("0x") or "/" in inner else None


def _balanced_start(text: str) -> int:
    """Where the last balanced ` (...)` begins, -1 where none does."""
    depth = 0
    for place in range(len(text) - 1, 0, -1):
        if text[place] == ")":
            depth += 1
        elif text[place] == "(":
            depth -= 1
            if depth == 0:
                return place - 1 if text[place - 1] == " " else -1
    return -1


def _pieces(text: str) -> list[str]:
    """A line that holds several headers, because the text lost its line breaks, cut before each of them; else empty."""
    starts = [match.start() for match in PY_SPY_HEADER.finditer(text)]
    if not starts or (len(starts) == 1 and (starts[0] == 0 or not text.startswith("Process "))):
        return []
    bounds = [*([0] if starts[0] else []), *starts, len(text)]
    return [text[start:end].strip() for start, end in pairwise(bounds)]


def _shape(prefix: str) -> re.Pattern[str]:
    """A pattern for log prefixes of the same shape: words and numbers vary, punctuation does not."""
    parts, last = [], 0
    for word in _PREFIX_WORD.finditer(prefix):
        parts += [re.escape(prefix[last : word.start()]), r"[\w.+-]{1,128}"]
        last = word.end()
    return re.compile("".join(parts) + re.escape(prefix[last:].rstrip()) + " ?")


def _find_prefix(lines: Sequence[str]) -> re.Pattern[str] | None:
    """Shape of the log prefix in front of the first recognised line, None where there is none."""
    for line in lines[:PREFIX_LINES]:
        text = line[:MAX_LINE]
        if "hread " not in text and 'File "' not in text:
            continue
        match = PY_SPY_HEADER.search(text) or FAULT_HEADER.search(text) or FAULT_FRAME.search(text)
        if match:
            prefix = text[: match.start()]
            if _PROCESS.match(prefix.lstrip()):
                return None  # lost line breaks, no log prefix
            return _shape(prefix.rstrip()) if prefix.strip() and len(prefix) <= MAX_PREFIX else None
    return None


def _prepared(lines: Sequence[str]) -> Iterator[_Line]:
    """The lines without log prefix, each with its stream."""
    shape = _find_prefix(lines)
    for number, line in enumerate(lines, 1):
        text, stream, rank = line[:MAX_LINE], "", None
        if shape and (match := shape.match(text)):
            prefix, text = match[0], text[match.end() :]
            told = _PREFIX_RANK.search(prefix)
            rank = int(told[1] or told[2]) if told else None
            stream = f"rank {rank}" if told else "" if _TIME_OF_DAY.search(prefix) else prefix.rstrip()
        yield _Line(number, text, stream, rank)


class _Reader:
    """Reads the lines of one stream. State: the process and thread that the next line belongs to."""

    def __init__(self, rank: int | None) -> None:
        self.processes: list[Process] = []
        self.process: Process | None = None
        self.thread: Thread | None = None
        self.seen: set[object] = set()
        self.rank = rank
        self.host: str | None = None
        self.in_block = False
        self.in_locals = self.after_blank = False

    def start(self, line: _Line, *, pid: int | None = None, command: str | None = None) -> Process:
        """Begins a process."""
        self.process = Process(f"L{line.number}", pid=pid, rank=self.rank, host=self.host, command=command)
        self.process.format = "debug_server" if self.in_block else None
        self.processes.append(self.process)
        self.thread, self.seen = None, set()
        return self.process

    def feed(self, line: _Line) -> None:
        """Takes the next line."""
        text = line.text.strip()
        if not text:
            self.after_blank = True
            return
        if self.thread and not self.in_locals and text[-1] == ")" and line.text[0] in " \t" and (frame := parse_frame(text)):
            self._add(frame)  # nearly every line
            self.after_blank = False
            return
        if "Thread " in text[8:] and (pieces := _pieces(text)):
            for piece in pieces:
                self.feed(line._replace(text=piece))
            return
        if not self._header(line, text):
            indent = len(line.text) - len(line.text.lstrip())
            if not (self.thread and self._frame(line, text, indent)):
                self._other(line, text)
        self.after_blank = False

    def _header(self, line: _Line, text: str) -> bool:
        if text.startswith(("Thread ", "Current thread ")):
            if match := PY_SPY_HEADER.match(text):
                self._py_spy_thread(line, match, text[match.end() :])
                return True
            if match := FAULT_HEADER.match(text):
                self._fault_thread(line, match)
                return True
        elif text.startswith(("Process ", "Parent Process ")):
            if (match := _PROCESS.match(text)) and not match[1]:
                self.start(line, pid=whole_number(int(match[2])), command=match[3].strip())
            return match is not None
        elif text.startswith("=== Rank ") and (match := RANK_BLOCK.match(text)):
            self._rank_block(line, match)
            return True
        elif text.startswith("Timeout (") and self.process and self.process.threads:
            self.start(line)
            return True
        elif ("ank" in text or "RANK" in text) and not text.startswith("File ") and (match := _RANK_LINE.match(text[:512])):
            self.rank, self.host = int(match[1]), host_label(match[2]) or self.host
            self.process = self.thread = None
            return True
        return False

    def _rank_block(self, line: _Line, match: re.Match[str]) -> None:
        host = _HOST_OF_URL.match(match[2])
        self.rank, self.host, self.in_block = int(match[1]), host_label(host[1]) if host else None, True
        self.start(line)

    def _open(self, line: _Line, who: object, *, format_name: str) -> Process:
        """The process that a new thread belongs to: a thread seen before begins the next dump."""
        process = self.process
        if process is None or (who is not None and who in self.seen):
            process = self.start(line, pid=process.pid if process and who != "MainThread" else None)
        process.format = process.format or format_name
        self.seen.add(who)
        self.in_locals = False
        return process

    def _py_spy_thread(self, line: _Line, match: re.Match[str], rest: str) -> None:
        number, state, name = match.groups()
        is_pthread = number[:2] in ("0x", "0X")
        process = self._open(line, name if name == "MainThread" else None, format_name="py_spy_text")
        thread_id = whole_number(int(number, 0) if is_pthread else int(number))
        self.thread = Thread(f"L{line.number}", name=name, is_active=state != "idle", owns_gil=state == "active+gil")
        if is_pthread:
            self.thread.pthread_id, self.thread.owns_gil = thread_id, None  # dumpers so old print no lock owner
        else:
            self.thread.thread_id = thread_id
        process.threads.append(self.thread)
        if rest.strip():
            self._inline_frames(rest)

    def _inline_frames(self, rest: str) -> None:
        """Frames behind the header on one line: the text lost its line breaks."""
        words: list[str] = []
        for word in rest.split():
            words.append(word)
            if word.endswith(")") and (frame := parse_frame(" ".join(words))):
                self._add(frame)
                words = []

    def _fault_thread(self, line: _Line, match: re.Match[str]) -> None:
        pthread_id = whole_number(int(match[2], 16))
        process = self._open(line, match[2].lower(), format_name="faulthandler")
        is_current = match[1] == "Current thread"
        self.thread = Thread(f"L{line.number}", pthread_id=pthread_id, name=match[3], is_active=True if is_current else None)
        process.threads.append(self.thread)

    def _add(self, frame: tuple[str, str | None, int, bool]) -> None:
        if self.thread:
            self.thread.add(frame[0], frame[1], frame[2], native=frame[3])

    def _frame(self, line: _Line, text: str, indent: int) -> bool:
        """Adds a frame to the open thread; False where the line is none."""
        if text.startswith('File "') and (match := FAULT_FRAME.match(text)):
            self._add((match[2 + 1], match[1], 0 if match[2] == "???" else int(match[2]), False))
            return True
        if text in ("Arguments:", "Locals:"):
            self.in_locals = True
            return True
        if self.in_locals and indent >= LOCALS_INDENT:
            return True
        if self.after_blank and not indent:
            return False
        frame = parse_frame(text)
        if frame:
            self._add(frame)
        return frame is not None

    def _other(self, line: _Line, text: str) -> None:
        """A line that is no frame: a bare faulthandler frame opens a thread, the rest may tell why a dump failed."""
        if text.startswith('File "') and FAULT_FRAME.match(text):
            process = self._open(line, None, format_name="faulthandler")
            self.thread = Thread(f"L{line.number}")
            process.threads.append(self.thread)
            self._frame(line, text, 0)
            return
        if (self.process is None or (self.process.threads and text.startswith(_FAILED))) and dump_status(text) != "unknown":
            self.start(line)  # a dump that failed before it printed a header
        if self.process and len(self.process.noise) < MAX_NOISE:
            self.process.noise.append(text)


def _finish(process: Process) -> None:
    """Settles the format, the main thread and, for a dump without threads, the reason."""
    if not process.threads:
        text = "\n".join(process.noise)
        process.status = dump_status(text)
        if process.status == "unknown" and process.command == "" and not text:
            process.status = "process_gone"  # an empty command line is what is left of a process that has ended
        process.format = process.format or "py_spy_text"
        return
    if any(thread.name == "MainThread" for thread in process.threads):
        return
    if process.pid is not None:
        for thread in process.threads:
            if thread.thread_id == process.pid and thread.name is None:
                thread.name = "MainThread"
                return
    if any(thread.name for thread in process.threads) and process.format == "py_spy_text":
        return
    last = next((thread for thread in reversed(process.threads) if thread.root() == "<module>"), process.threads[-1])
    is_headed = last.pthread_id is not None or last.thread_id is not None
    is_main = last.root() == "<module>" or (last.frames and last.pthread_id is not None and process.format != "py_spy_text")
    if is_headed and is_main and not last.starts_in_thread_module():
        last.name = "MainThread"


def _job_folder(process: Process) -> str | None:
    """Folder of the script that the process runs: its modules are named relative to it, as the interpreter does."""
    for thread in reversed(process.threads):
        if thread.frames and thread.frames[-1][0] == "<module>":
            file = str(thread.frames[-1][1] or "").replace("\\", "/")
            folder = file.rpartition("/")[0]
            if folder.startswith("/") and "/lib/python" not in folder and "-packages/" not in folder:
                return folder + "/"
    return None


def shorten_files(process: Process) -> None:
    """Names the files of the job's folder relative to it."""
    folder = _job_folder(process)
    if folder:
        for thread in process.threads:
            thread.frames = [
                (
                    name,
                    file[len(folder) :]
                    if file and file.startswith(folder) and "-packages/" not in file and "/lib/python" not in file
                    else file,
                )
                for name, file in thread.frames
            ]


def parse_text(lines: Sequence[str]) -> list[Process]:
    """Every process in the text, in the order of their first lines."""
    readers: dict[str, _Reader] = {}
    for line in _prepared(lines):
        reader = readers.get(line.stream)
        if reader is None:
            reader = readers[line.stream] = _Reader(line.rank)
        reader.feed(line)
    processes = [process for reader in readers.values() for process in reader.processes]
    processes.sort(key=lambda process: int(process.record[1:]))
    kept = []
    for process in processes:
        _finish(process)
        shorten_files(process)
        if process.threads or process.noise or process.pid is not None or process.format == "debug_server":
            kept.append(process)
    return kept
