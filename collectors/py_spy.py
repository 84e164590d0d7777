"""Stack dumps of Python processes: py-spy (text and JSON), faulthandler, and torch's debug server.

Rows: one per thread (`stacks`), one per distinct stack (`stack_frames`). A dump that failed is evidence too: one row
whose `dump_status` says why. Labels are those of `_stack_labels`. A traceback in a log is no dump and is not claimed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from collectors._stack_dump import Process, Thread, json_elements, read_bytes, read_lines, tables, whole_number
from collectors._stack_text import FAULT_FRAME, FAULT_HEADER, PY_SPY_HEADER, RANK_BLOCK, parse_frame, parse_text
from rca.errors import EvidenceError
from rca.types import Skip, Source

if TYPE_CHECKING:
    import polars as pl

    from rca.tables import Table

__all__ = ["EMITS", "claims", "read"]

EMITS = ("stacks", "stack_frames")

MIN_SHARE = 0.5  # of the non-empty lines must belong to a dump: a log that only quotes one stays a log
SNIFF_LINES = 4000
SNIFF_LINE = 4096  # characters of a line that sniffing looks at
_JSON_HEAD: Final = re.compile(rb'^\s*\[\s*\{.{0,2000}?"frames"\s*:', re.DOTALL)
_JSON_KEYS: Final = (b'"thread_id"', b'"os_thread_id"', b'"thread_name"', b'"owns_gil"')
_PROCESS_LINE: Final = re.compile(r"^Process [0-9]{1,19}:(?: ?$| (?:\S*/\S|\S*python))")
_FAILURE: Final = re.compile(
    r"^(?:Error: |Permission Denied: Try running again|Failed to suspend process|Unsupported version of Python|"
    r"\s*[0-9]+: (?:<?py_spy::|py_spy::))"
)
_PY_SPY_SAYS: Final = re.compile(
    r"Failed to (?:get process executable name|find python version|get stack traces|suspend process|open process|copy )|py_spy::|"
    r"Permission Denied: Try running again with elevated|Unsupported version of Python|SYS_PTRACE"
)
_KNOWN: Final = re.compile(
    r"^\s*(?:Process [0-9]|Parent Process [0-9]|Python v[0-9]|-{40,}|Thread 0x"
    r"|Thread [0-9]|Current thread 0x|Timeout \(|File \"|Arguments:$|Locals:$|"
    r"<no Python frame>|Error: |Caused by:|Reason:|Stack backtrace:|[0-9]{1,3}: |=== Rank |PARTIAL DATA|Fatal Python error|"
    r"Extension modules|\.\.\.$)"
)


def claims(name: str, head: bytes) -> bool:
    """Whether the content is such a dump, or the message of one that failed."""
    if _JSON_HEAD.match(head[:8192]) and any(key in head[:8192] for key in _JSON_KEYS):
        return True
    if head[:1] == b"\x80":  # a pickle: not worth reading as text
        return False
    lines = [line for line in read_lines(head)[:SNIFF_LINES] if line.strip()]
    return bool(lines) and (_begins_with_headers(lines) or _is_failure(lines) or _is_dump(lines))


def _begins_with_headers(lines: list[str]) -> bool:
    """The three headers with which py-spy begins: no need to look further."""
    return len(lines) > 2 and bool(_PROCESS_LINE.match(lines[0]) and lines[1].startswith("Python v") and PY_SPY_HEADER.match(lines[2]))


def _is_failure(lines: list[str]) -> bool:
    """Only the header or the error of a dump, nothing else."""
    first = lines[0].strip()[:SNIFF_LINE]
    says_so = _PY_SPY_SAYS.search("\n".join(line[:SNIFF_LINE] for line in lines[:60])) is not None
    if _PROCESS_LINE.match(first):
        return says_so or all(_KNOWN.match(line[:SNIFF_LINE]) for line in lines[:20])
    return says_so and _FAILURE.match(first) is not None


def _is_dump(lines: list[str]) -> bool:
    """A thread header, or bare faulthandler frames, and mostly lines that belong to stacks."""
    num_headers = num_belonging = num_bare = 0
    inside = False
    for line in lines:
        text = line[:SNIFF_LINE]
        if "hread " in text and (PY_SPY_HEADER.search(text) or FAULT_HEADER.search(text)):
            num_headers, inside = num_headers + 1, True
            num_belonging += 1
        elif RANK_BLOCK.match(text):
            num_headers, num_belonging = num_headers + 1, num_belonging + 1
        elif 'File "' in text and FAULT_FRAME.search(text):
            num_bare, num_belonging = num_bare + 1, num_belonging + 1
        elif _KNOWN.match(text) or (inside and (text.startswith("        ") or parse_frame(text.strip()))):
            num_belonging += 1
        elif inside and text.rstrip().endswith(")") and parse_frame(text.strip().rpartition(": ")[2].strip()):
            num_belonging += 1  # behind a log prefix
    return (num_headers > 0 or num_bare > 1) and num_belonging >= MIN_SHARE * len(lines)


def read(source: Source) -> Iterator[tuple[Table, pl.DataFrame] | Skip]:
    """Rows of one file: `stacks` and `stack_frames`, and what could not be read."""
    data, torn = read_bytes(source)
    if torn:
        yield torn
    if data.lstrip()[:1] == b"[" and _JSON_HEAD.match(data[:8192]):
        skips: list[Skip] = []
        processes = _parse_json(data, skips)
        yield from skips
    else:
        processes = parse_text(read_lines(data))
    if not processes:
        raise EvidenceError(source.path, None, "no thread and no error of a dump in it")
    yield from tables(processes)


def _parse_json(data: bytes, skips: list[Skip]) -> list[Process]:
    """Processes of a py-spy JSON dump; threads in the array's order."""
    processes: dict[int | None, Process] = {}
    for index, element in json_elements(data, skips):
        if not isinstance(element, dict) or not isinstance(element.get("frames"), list):
            skips.append(Skip(f"E{index}", "no thread: an object with frames is expected"))
            continue
        pid = whole_number(element.get("pid"))
        if pid not in processes:
            info = element.get("process_info")
            command = info.get("command_line") if isinstance(info, dict) else None
            processes[pid] = Process(f"E{index}", pid=pid, format="py_spy_json", command=command if isinstance(command, str) else None)
        thread = _json_thread(index, element)
        if thread.name is None and pid is not None and thread.thread_id == pid:
            thread.name = "MainThread"
        processes[pid].threads.append(thread)
    return list(processes.values())


def _json_thread(index: int, element: dict[str, object]) -> Thread:
    name, active, owner = element.get("thread_name"), element.get("active"), element.get("owns_gil")
    thread = Thread(
        f"E{index}",
        thread_id=whole_number(element.get("os_thread_id")),
        pthread_id=whole_number(element.get("thread_id")),
        name=name if isinstance(name, str) and name else None,
        is_active=active if isinstance(active, bool) else None,
        owns_gil=owner if isinstance(owner, bool) else None,
    )
    frames = element["frames"]
    for frame in frames if isinstance(frames, list) else ():
        if isinstance(frame, dict) and isinstance(function := frame.get("name"), str):
            file, native = _json_file(frame)
            thread.add(function, file, whole_number(frame.get("line")) or 0, native=native)
    return thread


def _json_file(frame: dict[str, object]) -> tuple[str | None, bool]:
    """The file that names the module, and whether the frame is C code. The text form prints py-spy's short name."""
    module, file, short = (
        value if isinstance(value, str) and value else None for value in map(frame.get, ("module", "filename", "short_filename"))
    )
    if module and not (file and file.endswith(".py")):
        return module, True
    if file and "-packages/" not in file and short and file.endswith(short):
        return short, False
    return file or short, False
